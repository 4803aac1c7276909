package sqlstore

import "github.com/weirlimits/weir/lib/ratelimit"

// Statements are the package's SQL texts with the number of arguments that each is given.
func Statements() map[string]int {
	all := map[string]int{
		giveBackPlain.sql: 2, giveBackRotating.sql: 2, operate.sql: 6, sweepText.sql: 3, sweepInPassing.sql: 3, lastKey.sql: 2, lastRefund.sql: 2, sweepKeys.sql: 3, sweepRefunds.sql: 3, activeKeys.sql: 2,
		activeKeysRead.sql: 1, auditEnds.sql: 2, auditBefore.sql: 2, newestRefusals.sql: 3, someRefusals.sql: 3, audit.sql: 2, words.sql: 3,
		sweepAuditText.sql: 3, sweepAuditInPassing.sql: 3,
	}
	for _, limits := range []int{1, 2, ratelimit.MaxCharges} {
		for algorithms := range 31 {
			for bits := range 4 {
				s := shape{limits, uint8(algorithms+1) << 1, bits&1 != 0, bits&2 != 0}
				entries := make([]ratelimit.Entry, s.limits)
				decide, read := s.decideArguments(entries, nil), s.readArguments(entries, nil)
				text := s.statements()
				all[text.decide.sql], all[text.read.sql] = len(decide), len(read)
			}
		}
	}
	return all
}
