package storetest

import (
	"testing"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// PlayBytes plays the stream that data stands for on the store that open makes, and compares every answer with the
// models. Any bytes are a stream: the first 7 choose two limits, then each 4 are a request or a refund.
func PlayBytes(t *testing.T, open Open, data []byte) {
	next := func() int64 {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int64(b)
	}
	clock := NewClock()
	harness := open(t, clock.Now)
	limiter, err := ratelimit.New(harness.Store, Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{t: t, clock: clock, limiter: limiter, Harness: harness}
	policy := func(name string, window int64) ratelimit.Policy {
		p := ratelimit.Policy{Name: name, Algorithm: algorithms[next()%5], Limit: 1 + next()%12, Window: milliseconds(window)}
		size := next() % 12
		switch p.Algorithm {
		case ratelimit.TokenBucket:
			p.Burst = size
		case ratelimit.LeakyBucket:
			p.Queue = size
		}
		return p
	}
	window := 1 + next()
	first, second := &model{policy: policy("first", window)}, &model{policy: policy("second", 2*window+1)}
	second.policy.Count = ratelimit.Count(window % 2)
	now := Start.UnixMilli()
	var all []made
	var owners []*model
	for request := 0; len(data) > 0 && request < 100; request++ {
		now += next()
		clock.AtMilli(now)
		what, cost1, cost2 := next(), next(), next()
		if what%4 == 0 && len(all) > 0 {
			i := int(cost1) % len(all)
			owners[i].giveBack(all[i].charge, now)
			s.giveBackTo(all[i].reservation)
			now++ // see refundsWithinOneMillisecond
			continue
		}
		asks := []ask{{first, cost1 % (first.capacity() + 1)}, {second, cost2 % (second.capacity() + 1)}}
		if what%4 == 1 {
			asks = asks[:1]
		}
		var charges []ratelimit.Charge
		for _, a := range asks {
			charges = append(charges, a.key.policy.ChargeN("someone", a.cost))
		}
		want := decide(now, asks)
		got := s.decide(charges...)
		if difference := differs(got, want.Decision); difference != "" {
			t.Fatalf("request %d at %d ms: %s\nbefore: %s\nand: %s", request, now, difference, history(first), history(second))
		}
		for i, limit := range got.Limits {
			if want.charges[i] != nil {
				all = append(all, made{limit.Reservation, want.charges[i]})
				owners = append(owners, asks[i].key)
			}
		}
	}
}

// PlayNumbers takes decisions under a policy of any numbers, with clocks of any, on the store that open makes. A policy that
// Validate refuses is refused by Decide; with any other no answer is out of its bounds, and a moment admits its capacity.
func PlayNumbers(t *testing.T, open Open, policy ratelimit.Policy, cost int64, times []int64) {
	clock := NewClock()
	limiter, err := ratelimit.New(open(t, clock.Now).Store, Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	_, err = limiter.Decide(t.Context(), policy.ChargeN("someone", 0))
	if invalid := policy.Validate(); (invalid == nil) != (err == nil) {
		t.Fatalf("valid: %v, decided: %v", invalid, err)
	} else if err != nil {
		return
	}
	capacity := policy.Capacity()
	if _, err := limiter.Decide(t.Context(), policy.ChargeN("someone", capacity+1)); err == nil {
		t.Fatal("a cost above the capacity was decided")
	}
	for i, milli := range times {
		clock.AtMilli(milli)
		var admitted int64
		for _, cost := range []int64{cost, capacity, 1, 0} {
			if cost < 0 || cost > capacity {
				continue
			}
			got, err := limiter.Decide(t.Context(), policy.ChargeN("someone", cost))
			if err != nil {
				t.Fatalf("%s, time %d: %v", describe(policy), i, err)
			}
			limit := got.Limits[0]
			if limit.Remaining < 0 || limit.Remaining > capacity || limit.RetryAfter < 0 || limit.Reset < 0 || limit.Delay < 0 ||
				got.Allowed != (got.RetryAfter == 0) || limit.RetryAfter > 2*ratelimit.MaxWindow {
				t.Fatalf("%s, time %d, cost %d: %s", describe(policy), i, cost, summary(limit))
			}
			if got.Allowed {
				admitted += cost
			} else if cost <= limit.Remaining {
				t.Fatalf("%s, time %d: %d refused with %d left", describe(policy), i, cost, limit.Remaining)
			}
		}
		if admitted > capacity {
			t.Fatalf("%s, time %d: %d admitted at one moment", describe(policy), i, admitted)
		}
		if i == 0 && admitted == 0 {
			t.Fatalf("%s: nothing was admitted to a new key", describe(policy))
		}
	}
}
