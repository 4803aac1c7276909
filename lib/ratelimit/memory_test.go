package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

func TestMemoryStore(t *testing.T) {
	open := func(t *testing.T, now func() time.Time) storetest.Harness {
		store, steady := ratelimit.NewMemoryStore(now), ratelimit.NewSteadyMemoryStore(now)
		return storetest.Harness{
			Store: store, Steady: steady, // a test uses one of them
			Audits: func() []ratelimit.Audit { return append(store.Audits(), steady.Audits()...) },
			Writes: func() int64 { return store.Writes() + steady.Writes() },
		}
	}
	storetest.Run(t, open)
	storetest.RunWrites(t, open)
}

// entryOf is a charge of one unit under a key.
func entryOf(key int64, policy ratelimit.Policy) []ratelimit.Entry {
	return []ratelimit.Entry{{Key: key, Policy: policy, Cost: 1}}
}

func decide(t testing.TB, store *ratelimit.MemoryStore, entries []ratelimit.Entry) ratelimit.Row {
	t.Helper()
	rows, err := store.Decide(t.Context(), entries)
	if err != nil {
		t.Fatal(err)
	}
	return rows[0]
}

// Issue 10.16: keys that are charged once, refused once and given back once each, in a store that nobody sweeps.
func TestTheMemoryStoreHoldsLittleMoreThanWhatIsLive(t *testing.T) {
	clock := storetest.NewClock()
	store := ratelimit.NewMemoryStore(clock.Now)
	limiter := newLimiter(t, store, string(storetest.Secret))
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingLog, ratelimit.TokenBucket} {
		policy := ratelimit.Policy{Name: algorithm.String(), Algorithm: algorithm, Limit: 1, Window: 100 * time.Millisecond}
		for i := range 20_000 {
			if i%10 == 0 {
				clock.Add(time.Millisecond) // 1,000 keys are charged in a window
			}
			charge := policy.Charge(fmt.Sprint(i))
			charged, err := limiter.Decide(t.Context(), charge)
			if err != nil || !charged.Allowed {
				t.Fatalf("%+v, %v", charged, err)
			}
			if refused, err := limiter.Decide(t.Context(), charge); err != nil || refused.Allowed {
				t.Fatalf("%+v, %v", refused, err)
			}
			if err := limiter.GiveBack(t.Context(), charged.Limits[0].Reservation); err != nil {
				t.Fatal(err)
			}
			// A refund is kept for three windows, a bucket's for as long again and two refills.
			if keys, refunds, audits := store.Held(); keys > 2_500 || refunds > 6_000 || audits > 1<<17 {
				t.Fatalf("%s: after %d keys %d keys, %d refunds and %d audit rows are held", algorithm, i+1, keys, refunds, audits)
			}
		}
	}
}

// Issue 10.16: a key that never expires is charged and given back again and again.
func TestTheMemoryStoreForgetsTheRefundsOfALiveKey(t *testing.T) {
	clock := storetest.NewClock()
	store := ratelimit.NewMemoryStore(clock.Now)
	limiter := newLimiter(t, store, string(storetest.Secret))
	policy := ratelimit.Policy{Name: "bucket", Algorithm: ratelimit.TokenBucket, Limit: 100, Window: 100 * time.Millisecond}
	for range 10_000 {
		clock.Add(time.Millisecond)
		charged, err := limiter.Decide(t.Context(), policy.Charge("someone"))
		if err != nil || !charged.Allowed {
			t.Fatalf("%+v, %v", charged, err)
		}
		if err := limiter.GiveBack(t.Context(), charged.Limits[0].Reservation); err != nil {
			t.Fatal(err)
		}
	}
	if _, refunds, _ := store.Held(); refunds > 600 {
		t.Fatalf("%d refunds are held, of which 500 can still count", refunds)
	}
}

// Issue 10.16: what a step looks at is what has expired, however much is live beside it.
func TestASweepOfTheMemoryStoreLooksAtNothingLive(t *testing.T) {
	const each = 100_000
	clock := storetest.NewClock()
	store := ratelimit.NewSteadyMemoryStore(clock.Now)
	short := ratelimit.Policy{Name: "short", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: time.Second}
	long := ratelimit.Policy{Name: "long", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: time.Hour}
	for key := range int64(each) {
		decide(t, store, entryOf(2*key, short))
		decide(t, store, entryOf(2*key+1, long))
	}
	clock.Add(time.Minute)
	var looked, deleted int64
	for from := int64(0); ; {
		swept, err := store.Sweep(t.Context(), from, 1_000)
		if err != nil || swept.Looked > 1_000 {
			t.Fatalf("%+v, %v", swept, err)
		}
		looked += swept.Looked
		deleted += swept.Deleted
		from = swept.Last + 1
		if swept.Looked < 1_000 {
			break
		}
	}
	if keys, _, _ := store.Held(); looked != each || deleted != each || keys != each {
		t.Fatalf("looked at %d, deleted %d, %d are left, want %d each", looked, deleted, keys, each)
	}
	for key := range int64(each) {
		if decide(t, store, entryOf(2*key+1, long)).Charged {
			t.Fatalf("the sweep took the live key %d", key)
		}
	}
}

// BenchmarkMemorySweep sweeps 1,000 expired keys beside so many live ones: the figures should be alike.
func BenchmarkMemorySweep(b *testing.B) {
	for _, live := range []int64{0, 1_000, 100_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			clock := storetest.NewClock()
			store := ratelimit.NewSteadyMemoryStore(clock.Now)
			long := ratelimit.Policy{Name: "long", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: ratelimit.MaxWindow}
			short := ratelimit.Policy{Name: "short", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: time.Second}
			for key := range live {
				decide(b, store, entryOf(1<<40+key, long))
			}
			for b.Loop() {
				b.StopTimer()
				for key := range int64(1_000) {
					decide(b, store, entryOf(key, short))
				}
				clock.Add(time.Minute)
				b.StartTimer()
				if swept, err := store.Sweep(b.Context(), 0, 1_001); err != nil || swept.Deleted != 1_000 {
					b.Fatalf("%+v, %v", swept, err)
				}
			}
		})
	}
}
