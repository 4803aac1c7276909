package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// countAdmitted asks n times for one unit at the time that the clock shows.
func (s *suite) countAdmitted(policy ratelimit.Policy, n int) (admitted int) {
	s.t.Helper()
	for range n {
		if s.decide(policy.Charge("someone")).Allowed {
			admitted++
		}
	}
	return admitted
}

// Row C6.
func tokenBucketFigures(t *testing.T, s *suite) {
	policy := ratelimit.Policy{Name: "tokens", Algorithm: ratelimit.TokenBucket, Limit: 100, Window: time.Minute, Burst: 100}
	if got := s.countAdmitted(policy, 150); got != 100 {
		t.Fatalf("%d of 150 passed, want 100", got)
	}
	refused := s.decide(policy.Charge("someone"))
	if refused.Allowed || refused.RetryAfter != 600*time.Millisecond {
		t.Fatalf("allowed %t, retry after %v, want a refusal for 0.6 s", refused.Allowed, refused.RetryAfter)
	}
	s.clock.At(599 * time.Millisecond)
	if got := s.countAdmitted(policy, 1); got != 0 {
		t.Fatal("passed before 0.6 s")
	}
	s.clock.At(600 * time.Millisecond)
	if got := s.countAdmitted(policy, 2); got != 1 {
		t.Fatalf("%d passed after 0.6 s, want 1", got)
	}
	for _, moment := range []struct {
		at   time.Duration // since the bucket was empty
		left int64
	}{{0, 0}, {30 * time.Second, 50}, {60*time.Second - time.Millisecond, 99}, {60 * time.Second, 100}, {time.Hour, 100}} {
		s.clock.At(600*time.Millisecond + moment.at)
		s.remaining(policy, moment.left)
	}
}

// Row C7.
func leakyBucketFigures(t *testing.T, s *suite) {
	policy := ratelimit.Policy{Name: "queue", Algorithm: ratelimit.LeakyBucket, Limit: 2, Window: time.Second, Queue: 2}
	for _, request := range []struct {
		at      time.Duration
		allowed bool
		delay   time.Duration
		retry   time.Duration
	}{
		{at: 0, allowed: true, delay: 0},
		{at: 0, allowed: true, delay: 500 * time.Millisecond},
		{at: 0, allowed: true, delay: time.Second},
		{at: 0, retry: 500 * time.Millisecond},
		{at: 0, retry: 500 * time.Millisecond},
		{at: 499 * time.Millisecond, retry: time.Millisecond},
		{at: 500 * time.Millisecond, allowed: true, delay: time.Second},
		{at: 500 * time.Millisecond, retry: 500 * time.Millisecond},
		{at: 10 * time.Second, allowed: true, delay: 0},
	} {
		s.clock.At(request.at)
		got := s.decide(policy.Charge("someone"))
		if got.Allowed != request.allowed || got.Limits[0].Delay != request.delay || got.RetryAfter != request.retry {
			t.Fatalf("at %v: allowed %t, delay %v, retry after %v; want %+v", request.at, got.Allowed, got.Limits[0].Delay, got.RetryAfter, request)
		}
	}
}

// Row C8: 150 units are asked for 0.1 s before the minute's edge, and again 0.1 s after it. The bucket is full at the
// first; it refills by less than a unit in between.
func boundaryFigures(t *testing.T, s *suite) {
	cost, want := int64(1), map[ratelimit.Algorithm]int64{
		ratelimit.FixedWindow: 200, ratelimit.SlidingWindow: 100, ratelimit.SlidingLog: 100, ratelimit.TokenBucket: 100,
	}
	if s.Streams != 0 {
		cost = 10 // fewer requests to a slow store
	}
	for _, algorithm := range algorithms[:4] {
		policy := ratelimit.Policy{Name: "edge-" + algorithm.String(), Algorithm: algorithm, Limit: 100, Window: time.Minute}
		var passed int64
		for _, at := range []time.Duration{59_900 * time.Millisecond, 60_100 * time.Millisecond} {
			s.clock.At(at)
			for range 150 / cost {
				if s.decide(policy.ChargeN("someone", cost)).Allowed {
					passed += cost
				}
			}
		}
		if passed != want[algorithm] {
			t.Errorf("%s: %d passed within 0.2 s, want %d", algorithm, passed, want[algorithm])
		}
	}
}

// Row C9: 60 × (1 − 0.5) + 40 = 70 of 100, so 30 are left, and 31 are too many until the 60 have faded by one more.
func estimateFigures(t *testing.T, s *suite) {
	policy := ratelimit.Policy{Name: "estimate", Algorithm: ratelimit.SlidingWindow, Limit: 100, Window: time.Minute}
	s.clock.At(20 * time.Second)
	s.decide(policy.ChargeN("someone", 60))
	s.clock.At(90 * time.Second)
	s.decide(policy.ChargeN("someone", 40))
	s.remaining(policy, 30)
	refused := s.decide(policy.ChargeN("someone", 31))
	if refused.Allowed || refused.RetryAfter != time.Second {
		t.Fatalf("31 more: allowed %t, retry after %v, want a refusal for 1 s", refused.Allowed, refused.RetryAfter)
	}
	if !s.decide(policy.ChargeN("someone", 30)).Allowed {
		t.Fatal("the 30 that are left are refused")
	}
}

// Row C10: 95 of 100 are used, and 20 come at once. The naive way, as the exercise has it: each reads the count before any
// writes it.
func readThenWriteFigures(t *testing.T, s *suite) {
	naive := struct {
		sync.Mutex
		used int
	}{used: 95}
	var read sync.WaitGroup
	read.Add(20)
	var naivePassed, passed atomic.Int64
	together(20, func(int) {
		naive.Lock()
		used := naive.used
		naive.Unlock()
		read.Done()
		read.Wait()
		if used < 100 {
			naive.Lock()
			naive.used = used + 1
			naive.Unlock()
			naivePassed.Add(1)
		}
	})
	if naivePassed.Load() != 20 {
		t.Fatalf("reading before writing passed %d, want all 20", naivePassed.Load())
	}
	for _, algorithm := range algorithms {
		policy := ratelimit.Policy{Name: "atomic-" + algorithm.String(), Algorithm: algorithm, Limit: 100, Window: time.Minute}
		if algorithm == ratelimit.LeakyBucket {
			policy.Queue = 99
		}
		s.decide(policy.ChargeN("someone", 95))
		passed.Store(0)
		together(20, func(int) {
			if s.decide(policy.Charge("someone")).Allowed {
				passed.Add(1)
			}
		})
		if passed.Load() != 5 {
			t.Errorf("%s passed %d, want 5", algorithm, passed.Load())
		}
	}
}

// Row C11: one client's 100 requests reach ten servers unevenly.
func localLimitFigures(t *testing.T, s *suite) {
	loads := []int{30, 20, 20, 15, 5, 4, 3, 2, 1, 0}
	shared := fixed("shared", 100, time.Minute)
	local, all, asked := 0, 0, 0
	for _, load := range loads {
		asked += load
		memory := s.twin() // a server that knows only itself
		local += memory.countAdmitted(fixed("local", 10, time.Minute), load)
		all += s.countAdmitted(shared, load)
	}
	if asked != 100 || local != 10+10+10+10+5+4+3+2+1+0 || all != 100 {
		t.Fatalf("of %d the local limits passed %d and the shared one %d, want 55 and 100 of 100", asked, local, all)
	}
}

// Row C12: each of 1,000 addresses guesses 10 times at one account. A slow store plays fewer addresses.
func stuffingFigures(t *testing.T, s *suite) {
	perAddress, perAccount := fixed("per-address", 10, 15*time.Minute), fixed("per-account", 5, 15*time.Minute)
	perAddress.Subject, perAccount.Subject = ratelimit.Address, ratelimit.Account
	perAddress.Count = ratelimit.EveryAttempt
	addresses := s.scaled(1000)
	for _, guarded := range []bool{false, true} {
		through := 0
		for i := range addresses {
			// A /64 is one client.
			address := fmt.Sprintf("2001:db8:%x:%x::1", i/250, i%250)
			for range 10 {
				charges := []ratelimit.Charge{perAddress.Charge(address)}
				if guarded {
					charges = append(charges, perAccount.Charge("Ada"))
				}
				if s.decide(charges...).Allowed {
					through++
				}
			}
		}
		want := 10 * addresses
		if guarded {
			want = 5
		}
		if through != want {
			t.Fatalf("per account %t: %d of %d guesses got through, want %d", guarded, through, 10*addresses, want)
		}
		perAddress.Name = "per-address-again"
	}
}

// Row C13: requests all through the window, refused ones included, don't push its end out.
func windowEndFigures(t *testing.T, s *suite) {
	policy := fixed("five", 5, time.Minute)
	for at := 3 * time.Second; at < time.Minute; at += 3 * time.Second {
		s.clock.At(at)
		got := s.decide(policy.Charge("someone"))
		if got.Limits[0].Reset != time.Minute-at {
			t.Fatalf("at %v the window ends in %v, want at 1m0s", at, got.Limits[0].Reset)
		}
	}
	s.clock.At(time.Minute)
	s.remaining(policy, 5)
}
