package ratelimit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// passing is when units of one subject passed, in seconds.
type passing []int64

// most gives how many passed in any stretch of so many seconds, or in any aligned one.
func (p passing) most(seconds int64, aligned bool) (most int) {
	for _, from := range p {
		if aligned {
			from -= from % seconds
		}
		n := 0
		for _, at := range p {
			if at >= from && at < from+seconds {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Row D6: a shard is added, taken away, or one store becomes several, as docs/operations.md says, while instances of one step and the next
// run at once; and no subject has more than its limit, by any algorithm. With a step left out, or its wait cut short, a
// subject that moves has at most one limit more.
func TestWhenShardsChangeInStepsNoHoleOpens(t *testing.T) {
	const limit, window, subjects = 6, 60, 25
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.SlidingLog, ratelimit.TokenBucket, ratelimit.LeakyBucket} {
		for _, change := range [][2]int{{2, 3}, {3, 2}, {1, 4}} {
			for _, steps := range []struct {
				what string
				ends [3]int64 // of each phase, in seconds: the second is the one in which both are charged
				more bool     // a hole opens
			}{
				{"every step", [3]int64{90, 90 + 2*window + 20, 500}, false},
				{"no step between", [3]int64{90, 90, 400}, true},
				{"a wait that is too short", [3]int64{90, 92, 400}, true},
			} {
				t.Run(fmt.Sprintf("%s, %d to %d, %s", algorithm, change[0], change[1], steps.what), func(t *testing.T) {
					seed := rand.Uint64()
					t.Logf("seed %d", seed)
					random := rand.New(rand.NewPCG(seed, 0))
					f := newFleet(t, max(change[0], change[1]))
					before, between, after := f.over(change[0], 0, storetest.Secret, nil), f.over(change[0], change[1], storetest.Secret, nil), f.over(change[1], 0, storetest.Secret, nil)
					policy := ratelimit.Policy{Name: "p", Algorithm: algorithm, Limit: limit, Window: window * time.Second}
					if algorithm == ratelimit.LeakyBucket {
						policy.Queue = limit - 1
					}
					passed := make([]passing, subjects)
					var charged []ratelimit.Reservation
					for second := range steps.ends[2] {
						f.clock.At(time.Duration(second) * time.Second)
						for subject := range passed {
							if random.IntN(3) > 0 {
								continue
							}
							// For some seconds around the end of a phase instances of both run.
							kinds := []*ratelimit.Limiter{after}
							switch {
							case second < steps.ends[0]-3:
								kinds[0] = before
							case second < min(steps.ends[0]+3, steps.ends[1]) && steps.ends[0] != steps.ends[1]:
								kinds = []*ratelimit.Limiter{before, between}
							case second < steps.ends[1]-3 && steps.ends[1]-steps.ends[0] > 3:
								kinds[0] = between
							case second < steps.ends[1] && steps.ends[0] != steps.ends[1]:
								kinds = []*ratelimit.Limiter{between, after}
							case second < steps.ends[1]:
								kinds = []*ratelimit.Limiter{before, after}
							}
							limiter := kinds[random.IntN(len(kinds))]
							decision, err := limiter.Decide(t.Context(), policy.Charge(fmt.Sprint(subject)))
							if err != nil {
								t.Fatal(err)
							}
							if !decision.Allowed {
								continue
							}
							// One in four was charged for what turns out not to count, and is given back by any instance.
							if random.IntN(4) == 0 {
								sealed, err := limiter.Open(limiter.Seal(decision))
								if err == nil {
									err = kinds[random.IntN(len(kinds))].GiveBack(t.Context(), sealed...)
								}
								if err != nil {
									t.Fatal(err)
								}
								charged = append(charged, sealed...)
								continue
							}
							passed[subject] = append(passed[subject], second)
						}
					}
					broken := 0
					for subject, p := range passed {
						var most, allowed int
						switch algorithm {
						case ratelimit.FixedWindow:
							most, allowed = p.most(window, true), limit
						case ratelimit.SlidingWindow:
							most, allowed = p.most(window, false), 2*limit-1
						case ratelimit.SlidingLog:
							most, allowed = p.most(window, false), limit
						default: // what it holds, and what comes within one window but its last second
							most, allowed = p.most(window, false), 2*limit
						}
						if most > allowed {
							broken++
						}
						if most > allowed+limit {
							t.Errorf("subject %d: %d passed in a window, more than a limit above %d: %v", subject, most, allowed, p)
						}
						if most > allowed && !steps.more {
							t.Errorf("subject %d: %d passed in a window, allowed are %d: %v", subject, most, allowed, p)
						}
					}
					// A hole that can't be seen would make a test that can't fail.
					if (algorithm == ratelimit.FixedWindow || algorithm == ratelimit.SlidingLog) && steps.more && broken == 0 {
						t.Errorf("no subject had more than its limit, though a step was left out")
					}
				})
			}
		}
	}
}

// Row D6: while shards change, what moves is charged in both places or in none, whichever call fails, and is given back in both.
func TestWhileShardsChangeWhatMovesIsInBothPlacesOrWasNotAdmitted(t *testing.T) {
	f := newFleet(t, 3)
	moves := ""
	for i := 0; moves == "" && i < 1000; i++ {
		name := fmt.Sprintf("subject %d", i)
		f.said()
		if _, err := f.over(2, 3, storetest.Secret, nil).Peek(t.Context(), minute.Charge(name)); err != nil {
			t.Fatal(err)
		}
		if f.said() == "peek a, peek c, " {
			moves = name
		}
	}
	before, between, after := f.over(2, 0, storetest.Secret, nil), f.over(2, 3, storetest.Secret, nil), f.over(3, 0, storetest.Secret, nil)
	edge, attempts := perMinute("edge", 5, 0), everyAttempt(perMinute("attempts", 5, 0))
	used := func(policy ratelimit.Policy) string {
		return fmt.Sprint(f.used(before, policy, moves), f.used(after, policy, moves))
	}
	charge := func() (ratelimit.Decision, string) {
		t.Helper()
		f.said()
		decision, err := between.Decide(t.Context(), edge.Charge(moves), attempts.Charge(moves))
		if err != nil {
			t.Fatal(err)
		}
		return decision, f.said()
	}
	first, calls := charge()
	if calls != "peek a, peek c, decide a, decide c, " || !first.Allowed || used(edge) != "1 1" || used(attempts) != "1 1" {
		t.Fatalf("%+v by %q: used %s and %s", first, calls, used(edge), used(attempts))
	}
	for range 2 { // once
		if err := between.GiveBack(t.Context(), first.Limits[0].Reservation); err != nil {
			t.Fatal(err)
		}
		if used(edge) != "0 0" || used(attempts) != "1 1" {
			t.Fatalf("after giving back: used %s and %s", used(edge), used(attempts))
		}
	}
	for fail := 1; fail <= 4; fail++ {
		for _, carriedOut := range []bool{false, true} {
			f.said()
			f.hook = func(n int, c call) (error, error) {
				switch {
				case n != fail:
					return nil, nil
				case carriedOut:
					return nil, errCut
				}
				return errCut, nil
			}
			if _, err := between.Decide(t.Context(), edge.Charge(moves)); !errors.Is(err, errCut) {
				t.Fatalf("call %d failed: %v", fail, err)
			}
			f.hook = nil
			want := "0 0"
			switch { // what failed unseen may have been charged, by itself
			case fail == 3 && carriedOut:
				want = "1 0"
			case fail == 4 && carriedOut:
				want = "0 1"
			}
			if got := used(edge); got != want {
				t.Errorf("call %d failed, carried out %t: used %s, want %s", fail, carriedOut, got, want)
			}
			for _, limiter := range []*ratelimit.Limiter{before, after} {
				if err := limiter.Operate(t.Context(), ratelimit.Reset, edge, moves, time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	// The place that is to come is full already: nothing passes, the attempt counts where it is counted.
	for range 5 {
		if _, err := after.Decide(t.Context(), edge.Charge(moves)); err != nil {
			t.Fatal(err)
		}
	}
	if got, calls := charge(); got.Allowed || got.Limits[0].Allowed || used(edge) != "0 5" || used(attempts) != "2 2" {
		t.Errorf("%+v by %q: used %s and %s", got, calls, used(edge), used(attempts))
	}
	// A refusal by the place that decides charges nothing in the other.
	for range 5 {
		if _, err := before.Decide(t.Context(), attempts.Charge(moves)); err != nil {
			t.Fatal(err)
		}
	}
	if got, calls := charge(); got.Allowed || used(edge) != "0 5" || used(attempts) != "5 2" {
		t.Errorf("%+v by %q: used %s and %s", got, calls, used(edge), used(attempts))
	}
	// What an operator says while shards change holds in both.
	if err := between.Operate(t.Context(), ratelimit.Ban, attempts, moves, f.clock.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for i, limiter := range []*ratelimit.Limiter{before, between, after} {
		if decision, err := limiter.Decide(t.Context(), attempts.Charge(moves)); err != nil || decision.Allowed || decision.RetryAfter != time.Hour {
			t.Errorf("instance %d, banned: %+v, %v", i, decision, err)
		}
	}
}
