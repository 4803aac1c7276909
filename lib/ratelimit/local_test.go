package ratelimit_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

var algorithms = []ratelimit.Algorithm{
	ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.SlidingLog, ratelimit.TokenBucket, ratelimit.LeakyBucket,
}

// shaped gives a policy of ten a minute.
func shaped(algorithm ratelimit.Algorithm, failure ratelimit.Failure) ratelimit.Policy {
	policy := perMinute("p", 10, failure)
	policy.Algorithm = algorithm
	if algorithm == ratelimit.LeakyBucket {
		policy.Queue = 9
	}
	return policy
}

// Issue 10, point 3: however often the store comes and goes, a limit admits its own and one share
// of an outage, by every algorithm, whichever of two deadlines a call has, and over shards that
// fail in turn.
func TestAStoreThatComesAndGoesOpensNoLimit(t *testing.T) {
	for _, algorithm := range algorithms {
		for failure, share := range map[ratelimit.Failure]int{ratelimit.Refuse: 0, ratelimit.Strict: 1, ratelimit.Open: 2} {
			policy := shaped(algorithm, failure)
			hasty := policy
			hasty.Deadline = time.Second
			for _, every := range []int{2, 3, 7} { // so many calls from one failure to the next
				store, limiter := newFaulty(t, ratelimit.Config{Instances: 10})
				passed, locally := 0, 0
				for i := range 1000 {
					store.set(false, nil)
					if i%every == 1 {
						store.set(false, errRefused)
					}
					asked := policy
					if i%4 < 2 {
						asked = hasty
					}
					decision, err := limiter.Decide(t.Context(), asked.Charge("a"))
					switch {
					case err != nil && !errors.Is(err, ratelimit.ErrStore):
						t.Fatal(err)
					case err == nil && decision.Allowed:
						passed++
						if decision.Outage != nil {
							locally++
						}
					}
				}
				if passed != 10+share || locally != share {
					t.Errorf("%v, %v, every %d: %d of 1,000 passed, %d of them without the store; want %d and %d",
						algorithm, failure, every, passed, locally, 10+share, share)
				}
			}
		}
	}
}

// Issue 10, point 3: a decision over several shards has one share, whichever of them doesn't
// answer.
func TestShardsThatComeAndGoOpenNoLimit(t *testing.T) {
	clock := storetest.NewClock()
	var stores []*faulty
	for range 4 {
		stores = append(stores, &faulty{MemoryStore: ratelimit.NewMemoryStore(clock.Now), clock: clock})
	}
	limiter, err := ratelimit.New(newShards(t, shardsOf(stores...), nil), storetest.Secret, ratelimit.Config{Instances: 10, Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	var charges []ratelimit.Charge
	for i := range 12 {
		charges = append(charges, perMinute(fmt.Sprint("p", i), 30, ratelimit.Strict).Charge(fmt.Sprint("subject", i)))
	}
	passed, locally := 0, 0
	for i := range 1000 {
		for j, store := range stores {
			store.set(false, nil)
			if j == i/2%4 && i%2 == 1 {
				store.set(false, errRefused)
			}
		}
		decision, err := limiter.Decide(t.Context(), charges...)
		if err == nil && decision.Allowed {
			passed++
			if decision.Outage != nil {
				locally++
			}
		}
	}
	if passed > 33 || locally != 3 {
		t.Errorf("%d passed, %d of them without a shard, want 33 at the most and 3", passed, locally)
	}
}

// Issue 10, point 3: what an outage admitted counts until its own window is over, and no longer.
func TestWhatAnOutageAdmittedEndsWithItsWindow(t *testing.T) {
	for _, algorithm := range algorithms {
		store, limiter := newFaulty(t, ratelimit.Config{Instances: 10})
		policy := shaped(algorithm, ratelimit.Strict)
		ask := func() bool {
			store.set(false, errRefused)
			_, err := limiter.Decide(t.Context(), policy.Charge("a"))
			store.set(false, nil)
			limiter.Decide(t.Context(), perMinute("other", 10, ratelimit.Refuse).Charge("a")) // it is back
			return err == nil
		}
		if !ask() || ask() {
			t.Errorf("%v: the share is not one", algorithm)
		}
		store.clock.Add(30 * time.Second)
		if ask() {
			t.Errorf("%v: half a window later another one passes", algorithm)
		}
		store.clock.Add(90 * time.Second)
		if !ask() {
			t.Errorf("%v: nothing passes when it is over", algorithm)
		}
	}
}

// Issue 10, point 3: what is kept stays within its bound, and goes while the store answers.
func TestWhatAnOutageLeavesBehindGoes(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{})
	policy := perMinute("p", 30, ratelimit.Strict)
	store.set(false, errRefused)
	for round := range 3 {
		passed := 0
		for i := range 12_000 {
			if _, err := limiter.Decide(t.Context(), policy.Charge(fmt.Sprint(i))); err == nil {
				passed++
			}
			if n := ratelimit.LocalKeys(limiter); n > 10_000 {
				t.Fatalf("%d keys are kept", n)
			}
		}
		if passed != 10_000 {
			t.Errorf("round %d: %d subjects passed", round, passed)
		}
		store.clock.Add(time.Minute)
	}
	store.set(false, nil)
	for i := range 1000 {
		if _, err := limiter.Decide(t.Context(), policy.Charge(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if n := ratelimit.LocalKeys(limiter); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// Issue 10, point 3: with 10,000 keys that haven't expired, refusing one more takes no walk over
// them.
func BenchmarkFullOutage(b *testing.B) {
	clock := storetest.NewClock()
	store := &faulty{MemoryStore: ratelimit.NewMemoryStore(clock.Now), clock: clock, err: errRefused}
	limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Clock: clock.Now})
	if err != nil {
		b.Fatal(err)
	}
	policy := perMinute("p", 30, ratelimit.Strict)
	for i := range 10_000 {
		limiter.Decide(b.Context(), policy.Charge(fmt.Sprint(i)))
	}
	for i := 0; b.Loop(); i++ {
		if _, err := limiter.Decide(b.Context(), policy.Charge(fmt.Sprint("more", i))); err == nil {
			b.Fatal("there was room")
		}
	}
}

// Issue 10, point 4: in an outage a queue keeps its pace. Each instance admits its share, and lets
// it leave at its share of the rate.
func TestAQueueKeepsItsPaceInAnOutage(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{Instances: 2})
	queue := ratelimit.Policy{Name: "q", Algorithm: ratelimit.LeakyBucket, Limit: 4, Window: time.Second, Queue: 7, Failure: ratelimit.Strict}
	store.set(false, errRefused)
	var delays []time.Duration
	for range 8 {
		decision, err := limiter.Decide(t.Context(), queue.Charge("gateway"))
		if err != nil {
			continue
		}
		if limit := decision.Limits[0]; limit.Remaining != 0 || limit.Reset != 0 || limit.RetryAfter != 0 {
			t.Errorf("an outage tells figures: %+v", limit)
		}
		delays = append(delays, decision.Limits[0].Delay)
	}
	if fmt.Sprint(delays) != "[0s 500ms 1s 1.5s]" { // half of the queue, at half of the rate
		t.Errorf("they wait %v", delays)
	}
	store.clock.Add(500 * time.Millisecond)
	if decision, err := limiter.Decide(t.Context(), queue.Charge("gateway")); err != nil || decision.Limits[0].Delay != 1500*time.Millisecond {
		t.Errorf("when one has left: %+v, %v", decision, err)
	}
}
