package ratelimit

import "math"

// State is what a store keeps of one key: a few integers that mean the same for every algorithm. The zero value is a key
// that was never charged. Times are microseconds since 1970 by the store's clock.
//
// A state is relative to the moment of its last write, HighMicros − BehindMicros: Used units stood just after it. When
// the store's clock steps back, the state comes along to the new time as it stands, so that nobody gains units and nobody
// is kept waiting for the clock to come back; BehindMicros remembers how far, and the time between is not credited a
// second time when it is passed again.
type State struct {
	HighMicros    int64 // the latest time the key has seen; never goes back
	BehindMicros  int64 // how far the last write lies before HighMicros: 0 unless the clock stepped back
	Used          int64 // units that stood just after the last write
	Rest          int64 // the algorithm's second number; the fixed window has none
	RefusedMicros int64 // when the newest audited refusal was; 0 for never
}

// step is what one limit says to one charge at one moment, by itself.
type step struct {
	Fits        bool  // the charge is within the limit
	Used        int64 // units that stand now, before the charge
	ResetMicros int64 // until more units are to be had; at least 1
	First       bool  // a refusal now is the first of its window, and is to be audited
	Stepped     bool  // the clock lies before the key's last write
}

// at brings a state to the time nowMicros: the moment up to which its units have been counted, and the latest time seen.
func (s State) at(nowMicros int64) (atMicros, highMicros int64) {
	if s == (State{}) || nowMicros < s.HighMicros-s.BehindMicros {
		return nowMicros, max(s.HighMicros, nowMicros)
	}
	if nowMicros >= s.HighMicros {
		return s.HighMicros, nowMicros
	}
	return s.HighMicros - s.BehindMicros, s.HighMicros
}

// step asks one limit for cost units at nowMicros. It is a pure function; cost is between 0 and the limit.
func (p Policy) step(s State, nowMicros, cost int64) step {
	at, _ := s.at(nowMicros)
	window := p.Window.Microseconds()
	result := step{
		ResetMicros: window - nowMicros%window,
		First:       s.RefusedMicros == 0 || s.RefusedMicros/window != nowMicros/window,
		Stepped:     s != (State{}) && nowMicros < s.HighMicros-s.BehindMicros,
	}
	if at/window == nowMicros/window {
		result.Used = max(s.Used, 0)
	}
	result.Fits = cost <= p.Limit-result.Used
	return result
}

// charged gives the state after cost units were charged at nowMicros to a limit that answered with step.
func (s State) charged(step step, nowMicros, cost int64) State {
	_, high := s.at(nowMicros)
	return State{
		HighMicros:    high,
		BehindMicros:  high - nowMicros,
		Used:          min(step.Used, math.MaxInt64-cost) + cost,
		RefusedMicros: s.RefusedMicros,
	}
}

// refused gives the state after a refusal at nowMicros was written down. Later refusals of the window are not written,
// except that the first after the clock stepped back moves the key to the new time.
func (s State) refused(step step, nowMicros int64) State {
	next := s.charged(step, nowMicros, 0)
	if step.First {
		next.RefusedMicros = nowMicros
	}
	return next
}

// givenBack gives the state after what stands of a charge was given back: nothing once the window of the charge is over.
func (s State) givenBack(refund Refund) State {
	window := refund.Policy.Window.Microseconds()
	if (s.HighMicros-s.BehindMicros)/window == refund.ChargedMicros/window {
		s.Used = max(s.Used-refund.Cost, 0)
	}
	return s
}
