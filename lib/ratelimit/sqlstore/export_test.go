package sqlstore

import "github.com/weirlimits/weir/lib/ratelimit"

// Statements are the package's SQL texts with the number of arguments that each is given.
func Statements() map[string]int {
	all := map[string]int{giveBackPlain: 2, giveBackRotating: 2, operate: 6, sweep: 3, lastOf: 2}
	for _, limits := range []int{1, 2, ratelimit.MaxCharges} {
		for algorithms := range 31 {
			for _, rotating := range []bool{false, true} {
				s := shape{limits, uint8(algorithms+1) << 1, rotating}
				decide, read := s.arguments(make([]ratelimit.Entry, s.limits), nil)
				text := s.statements()
				all[text.decide], all[text.read], all[text.both] = len(decide), len(read), len(decide)+len(read)
			}
		}
	}
	return all
}
