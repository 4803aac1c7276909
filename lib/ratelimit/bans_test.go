package ratelimit_test

import (
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// Issue 10, point 11: no wait of a decision is told as longer than a century, and a ban is told
// with its exact end, by every algorithm, over shards, and when the refusal is remembered.
func TestABanIsToldWithItsEndAndAWaitOfACenturyAtTheMost(t *testing.T) {
	end := time.Date(2199, 12, 31, 23, 59, 59, 0, time.UTC)
	for _, algorithm := range algorithms {
		for _, shards := range []int{1, 3} {
			clock := storetest.NewClock()
			var store ratelimit.Store = ratelimit.NewMemoryStore(clock.Now)
			if shards > 1 {
				store = newShards(t, shardsOf(memories(shards, clock.Now)...), nil)
			}
			limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Clock: clock.Now, Remember: 10})
			if err != nil {
				t.Fatal(err)
			}
			banned, other := shaped(algorithm, ratelimit.Refuse), perMinute("other", 5, ratelimit.Refuse)
			banned.Count = ratelimit.EveryAttempt
			if err := limiter.Operate(t.Context(), ratelimit.Ban, banned, "a", end); err != nil {
				t.Fatal(err)
			}
			for i := range 3 { // the second and third are remembered where nothing else is charged
				decision, err := limiter.Decide(t.Context(), banned.Charge("a"), other.Charge("b"))
				if i == 2 {
					decision, err = limiter.Peek(t.Context(), banned.Charge("a"), other.Charge("b"))
				}
				if err != nil || decision.Allowed {
					t.Fatalf("%+v, %v", decision, err)
				}
				one, two := decision.Limits[0], decision.Limits[1]
				all := decision.RetryAfterOf(func(ratelimit.Policy) bool { return true })
				for _, wait := range []time.Duration{decision.RetryAfter, one.RetryAfter, one.Reset, all} {
					if wait > ratelimit.MaxWindow || wait < ratelimit.MaxWindow-time.Second {
						t.Errorf("%v, %d stores: a wait of %v", algorithm, shards, wait)
					}
				}
				if !one.BannedUntil.Equal(end) || !two.BannedUntil.IsZero() {
					t.Errorf("%v, %d stores: banned until %v and %v", algorithm, shards, one.BannedUntil, two.BannedUntil)
				}
			}
			// A ban that is over, and an exemption, are none.
			short := clock.Now().Add(time.Hour)
			for _, action := range []ratelimit.Action{ratelimit.Ban, ratelimit.Allow} {
				if err := limiter.Operate(t.Context(), action, banned, "c", short); err != nil {
					t.Fatal(err)
				}
				if action == ratelimit.Ban {
					clock.Add(time.Hour)
				}
				decision, err := limiter.Decide(t.Context(), banned.Charge("c"))
				if err != nil || !decision.Allowed || !decision.Limits[0].BannedUntil.IsZero() {
					t.Errorf("%v, after %s: %+v, %v", algorithm, action, decision, err)
				}
				short = clock.Now().Add(time.Hour)
			}
		}
	}
}
