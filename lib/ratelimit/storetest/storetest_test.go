package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// What judges must itself be able to fail.

func TestABrokenPromiseIsSeen(t *testing.T) {
	policy := func(algorithm ratelimit.Algorithm) ratelimit.Policy {
		p := ratelimit.Policy{Algorithm: algorithm, Limit: 2, Window: time.Second}
		if algorithm == ratelimit.LeakyBucket {
			p.Queue = 1
		}
		return p
	}
	for _, test := range []struct {
		name      string
		algorithm ratelimit.Algorithm
		passed    []passage
		want      string
	}{
		{"both sides of an edge are full", ratelimit.FixedWindow, []passage{{999, 2, 0}, {1000, 2, 0}}, ""},
		{"one more in a fixed window", ratelimit.FixedWindow, []passage{{1000, 2, 0}, {1999, 1, 0}}, "in the window"},
		{"a sliding window fades", ratelimit.SlidingWindow, []passage{{999, 2, 0}, {1500, 1, 0}}, ""},
		{"twice the limit in a sliding window", ratelimit.SlidingWindow, []passage{{999, 2, 0}, {1998, 2, 0}}, "in the stretch"},
		{"a log after its window", ratelimit.SlidingLog, []passage{{999, 2, 0}, {1999, 2, 0}}, ""},
		{"a log within its window", ratelimit.SlidingLog, []passage{{999, 2, 0}, {1998, 1, 0}}, "in the window that ends"},
		{"a bucket refilled", ratelimit.TokenBucket, []passage{{0, 2, 0}, {500, 1, 0}, {1000, 1, 0}}, ""},
		{"a bucket not yet refilled", ratelimit.TokenBucket, []passage{{0, 2, 0}, {500, 1, 0}, {999, 1, 0}}, "more than the capacity"},
		{"a queue at its rate", ratelimit.LeakyBucket, []passage{{0, 1, 0}, {0, 1, 500}, {500, 1, 500}}, ""},
		{"a queue faster than its rate", ratelimit.LeakyBucket, []passage{{0, 1, 0}, {0, 1, 499}}, "faster"},
		{"a queue slower than its rate", ratelimit.LeakyBucket, []passage{{0, 1, 0}, {100, 1, 401}}, "slower"},
		{"a delay longer than the queue", ratelimit.LeakyBucket, []passage{{0, 1, 501}}, "longer"},
		{"the first is delayed", ratelimit.LeakyBucket, []passage{{0, 1, 5}}, "the first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := breaks(policy(test.algorithm), test.passed)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestEachDifferenceBetweenTwoAnswersIsSeen(t *testing.T) {
	answer := func(change func(*ratelimit.Decision)) ratelimit.Decision {
		d := ratelimit.Decision{Allowed: true, Limits: []ratelimit.LimitResult{{Allowed: true, Remaining: 3, Reset: time.Second}}}
		change(&d)
		return d
	}
	want := answer(func(*ratelimit.Decision) {})
	if got := differs(want, want); got != "" {
		t.Errorf("equal answers differ: %s", got)
	}
	for i, change := range []func(*ratelimit.Decision){
		func(d *ratelimit.Decision) { d.Allowed = false },
		func(d *ratelimit.Decision) { d.RetryAfter = time.Millisecond },
		func(d *ratelimit.Decision) { d.Limits = nil },
		func(d *ratelimit.Decision) { d.Limits[0].Allowed = false },
		func(d *ratelimit.Decision) { d.Limits[0].Remaining++ },
		func(d *ratelimit.Decision) { d.Limits[0].Reset += time.Millisecond },
		func(d *ratelimit.Decision) { d.Limits[0].RetryAfter = time.Millisecond },
		func(d *ratelimit.Decision) { d.Limits[0].Delay = time.Millisecond },
	} {
		if differs(answer(change), want) == "" {
			t.Errorf("change %d is not seen", i)
		}
	}
}

// The streams play a limiter whose limit, window or algorithm is a little off.
func TestALimiterThatIsALittleOffIsSeen(t *testing.T) {
	for _, algorithm := range algorithms {
		for name, change := range map[string]func(*ratelimit.Policy){
			"one unit more":     func(p *ratelimit.Policy) { p.Limit++ },
			"a longer window":   func(p *ratelimit.Policy) { p.Window += time.Millisecond },
			"another algorithm": func(p *ratelimit.Policy) { p.Algorithm, p.Burst, p.Queue = p.Algorithm%5+1, 0, 0 },
		} {
			t.Run(algorithm.String()+", "+name, func(t *testing.T) {
				random, clock := seeded(t), NewClock()
				limiter, err := ratelimit.New(ratelimit.NewMemoryStore(clock.Now), Secret, ratelimit.Config{})
				if err != nil {
					t.Fatal(err)
				}
				seen := 0
				for stream := range 50 {
					policy := randomPolicy(random, algorithm, fmt.Sprintf("off-%d", stream))
					key, played := &model{policy: policy}, policy
					change(&played)
					pace := newPace(random, policy)
					for range 25 {
						want := decide(pace.next(clock), []ask{{key, 1}})
						got, err := limiter.Decide(context.Background(), played.Charge("someone"))
						if err != nil {
							t.Fatal(err)
						}
						if differs(got, want.Decision) != "" {
							seen++
							break
						}
					}
				}
				if seen < 10 {
					t.Errorf("seen in %d of 50 streams", seen)
				}
			})
		}
	}
}

func TestAHistoryWithoutAnOrderIsSeen(t *testing.T) {
	decision := func(call, end int64, allowed bool, left int64) porcupine.Operation {
		return porcupine.Operation{
			Input: operation{costs: [2]int64{1, 0}}, Call: call, Return: end,
			Output: outcome{allowed: allowed, charged: [2]bool{allowed, false}, remaining: [2]int64{left, 0}},
		}
	}
	back := porcupine.Operation{Input: operation{costs: [2]int64{1, 0}, isBack: true}, Call: 5, Return: 6, Output: outcome{}}
	for _, test := range []struct {
		name    string
		history []porcupine.Operation
		want    bool
	}{
		{"one after the other", []porcupine.Operation{decision(1, 2, true, 1), decision(3, 4, true, 0), decision(7, 8, false, 0)}, true},
		{"at once, in either order", []porcupine.Operation{decision(1, 4, true, 0), decision(2, 3, true, 1)}, true},
		{"three at a limit of two", []porcupine.Operation{decision(1, 4, true, 1), decision(2, 3, true, 0), decision(7, 8, true, 0)}, false},
		{"a refusal while one is left", []porcupine.Operation{decision(1, 2, true, 1), decision(3, 4, false, 0)}, false},
		{"the later one is told of more", []porcupine.Operation{decision(1, 2, true, 0), decision(3, 4, true, 1)}, false},
		{"three with one given back", []porcupine.Operation{decision(1, 2, true, 1), decision(3, 4, true, 0), back, decision(7, 8, true, 0)}, true},
		{"four with one given back twice", []porcupine.Operation{decision(1, 2, true, 1), decision(3, 4, true, 0), back, back, decision(7, 8, true, 0), decision(9, 10, true, 0)}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := porcupine.CheckOperations(ideal([2]int64{2, 2}, [2]bool{}), test.history); got != test.want {
				t.Errorf("has an order: %t, want %t", got, test.want)
			}
		})
	}
}
