package ratelimit_test

import (
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// steady counts what a policy admits of 200 windows of requests that come evenly, at exactly its limit.
func steady(t *testing.T, policy ratelimit.Policy) (admitted int64) {
	t.Helper()
	clock := storetest.NewClock()
	limiter := newLimiter(t, ratelimit.NewMemoryStore(clock.Now), string(storetest.Secret))
	for i := range 200 * policy.Limit {
		clock.At(time.Duration(i) * policy.Window / time.Duration(policy.Limit))
		decision, err := limiter.Decide(t.Context(), policy.Charge("someone"))
		if err != nil {
			t.Fatal(err)
		}
		if decision.Allowed {
			admitted++
		}
	}
	return admitted
}

// Issue 10: what the guide says of a steady flow at the limit.
func TestASlidingWindowAdmitsLessThanItsLimitOfASteadyFlow(t *testing.T) {
	for _, limit := range []int64{1, 2, 4, 10, 50, 100} {
		policy := ratelimit.Policy{Name: "steady", Algorithm: ratelimit.SlidingWindow, Limit: limit, Window: 2 * time.Minute}
		want := 200 * (limit - 1)
		if limit == 1 {
			want = 100
		}
		if got := steady(t, policy); max(got-want, want-got) > limit {
			t.Errorf("a sliding window of %d admits %d of %d, want about %d", limit, got, 200*limit, want)
		}
		for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingLog, ratelimit.TokenBucket} {
			policy.Algorithm = algorithm
			if got := steady(t, policy); got != 200*limit {
				t.Errorf("a %s of %d admits %d of %d", algorithm, limit, got, 200*limit)
			}
		}
	}
}

// Issue 10: what the guide says of weeks.
func TestAWeekBeginsOnThursday(t *testing.T) {
	clock := storetest.NewClock()
	limiter := newLimiter(t, ratelimit.NewMemoryStore(clock.Now), string(storetest.Secret))
	weekly := ratelimit.Policy{Name: "weekly", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: 7 * 24 * time.Hour}
	decision, err := limiter.Decide(t.Context(), weekly.Charge("someone"))
	if err != nil {
		t.Fatal(err)
	}
	ends := clock.Now().Add(decision.Limits[0].Reset).UTC()
	if ends.Weekday() != time.Thursday || ends.Truncate(24*time.Hour) != ends {
		t.Errorf("a week ends at %v", ends)
	}
}
