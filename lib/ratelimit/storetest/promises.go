package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// passage is a request that was admitted, as its client saw it. Times are milliseconds.
type passage struct{ at, cost, delay int64 }

// breaks holds admitted requests, in order, against what the policy's algorithm promises, and describes the first breach;
// "" when there is none. It looks at nothing but the times.
func breaks(policy ratelimit.Policy, passed []passage) string {
	limit, window := policy.Limit, policy.Window.Milliseconds()
	for i, last := range passed {
		var aligned, rolling, since int64
		for j := i; j >= 0; j-- {
			p := passed[j]
			since += p.cost
			if p.at/window == last.at/window {
				aligned += p.cost
			}
			if p.at > last.at-window {
				rolling += p.cost
			}
			bucket := policy.Algorithm == ratelimit.TokenBucket || policy.Algorithm == ratelimit.LeakyBucket
			if bucket && (since-policy.Capacity())*window > limit*(last.at-p.at) {
				return fmt.Sprintf("%d passed from %d to %d ms, more than the capacity and what was refilled", since, p.at, last.at)
			}
		}
		switch policy.Algorithm {
		case ratelimit.FixedWindow:
			if aligned > limit {
				return fmt.Sprintf("%d passed in the window of %d ms", aligned, last.at)
			}
		case ratelimit.SlidingWindow:
			if aligned > limit || rolling >= 2*limit && limit > 0 {
				return fmt.Sprintf("%d passed in the window of %d ms and %d in the stretch that ends there", aligned, last.at, rolling)
			}
		case ratelimit.SlidingLog:
			if rolling > limit {
				return fmt.Sprintf("%d passed in the window that ends at %d ms", rolling, last.at)
			}
		case ratelimit.LeakyBucket:
			if broken := breaksQueue(policy, passed[:i+1]); broken != "" {
				return broken
			}
		}
	}
	return ""
}

// breaksQueue looks at when the last request leaves the queue: not before the one in front of it was served, not later
// than that either unless it came later, and never after more than the queue's length. A delay is rounded up to 1 ms.
func breaksQueue(policy ratelimit.Policy, passed []passage) string {
	limit, window := policy.Limit, policy.Window.Milliseconds()
	last := passed[len(passed)-1]
	if (last.delay-1)*limit >= policy.Queue*window {
		return fmt.Sprintf("delayed by %d ms at %d ms, longer than the queue is", last.delay, last.at)
	}
	if len(passed) == 1 {
		if last.delay != 0 {
			return fmt.Sprintf("the first was delayed by %d ms", last.delay)
		}
		return ""
	}
	front := passed[len(passed)-2]
	gap := last.at + last.delay - (front.at + front.delay)
	if (gap+1)*limit <= front.cost*window {
		return fmt.Sprintf("at %d ms one leaves %d ms after %d units, faster than the rate", last.at, gap, front.cost)
	}
	if last.delay > 0 && (gap-1)*limit >= front.cost*window {
		return fmt.Sprintf("at %d ms one leaves %d ms after %d units, slower than the rate", last.at, gap, front.cost)
	}
	return ""
}

// Rows C1 to C5, from both sides: a client that asks for a unit again and again gets no more than is promised, and no less.
func greedyClients(t *testing.T, s *suite) {
	const second = 1000
	windows, pause := int64(4), int64(25)
	if s.Streams != 0 {
		windows, pause = 2, 125 // fewer requests to a slow store
	}
	policy := func(algorithm ratelimit.Algorithm) ratelimit.Policy {
		p := ratelimit.Policy{Name: "greedy-" + algorithm.String(), Algorithm: algorithm, Limit: 8, Window: time.Second}
		if algorithm == ratelimit.TokenBucket {
			p.Burst = 5
		}
		if algorithm == ratelimit.LeakyBucket {
			p.Queue = 3
		}
		return p
	}
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		policy := policy(algorithm)
		first := Start.UnixMilli() + 300
		var passed []passage
		var sum int64
		perWindow := map[int64]int64{}
		for now := first; now <= first+windows*second; now += pause {
			s.clock.AtMilli(now)
			for {
				got := s.decide(policy.Charge("someone"))
				if !got.Allowed {
					break
				}
				passed = append(passed, passage{now, 1, got.Limits[0].Delay.Milliseconds()})
				perWindow[now/second]++
				sum++
			}
		}
		if broken := breaks(policy, passed); broken != "" {
			t.Fatal(broken)
		}
		var want int64
		switch algorithm {
		case ratelimit.FixedWindow:
			want = 8 * (windows + 1)
		case ratelimit.SlidingLog:
			want = 8 * (windows + 1)
		case ratelimit.TokenBucket:
			want = 5 + 8*windows
		case ratelimit.LeakyBucket:
			want = 4 + 8*windows
		case ratelimit.SlidingWindow:
			// The estimate never reaches the limit while the window before still weighs: near the limit, not at it.
			for window := first/second + 1; window < first/second+windows; window++ {
				if perWindow[window] < 7 || perWindow[window] > 8 {
					t.Fatalf("%d passed in window %d, want 7 or 8", perWindow[window], window)
				}
			}
			return
		}
		if sum != want {
			t.Fatalf("%d passed in %d windows, want %d", sum, windows, want)
		}
	})
}
