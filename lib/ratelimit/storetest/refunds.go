package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// made is a charge as its caller knows it and as a model does.
type made struct {
	reservation ratelimit.Reservation
	charge      *charge
}

// Cases A21, A22: charges are given back once or again, early or late, in any order, while others are charged.
func refundsAgree(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		random := seeded(t)
		gained := 0
		for stream := range s.scaled(100) {
			policy := randomPolicy(random, algorithm, fmt.Sprintf("refunds-%s-%d", algorithm, stream))
			key := &model{policy: policy}
			pace := newPace(random, policy)
			var all []made
			for request := range 20 {
				now := pace.next(s.clock)
				if len(all) > 0 && random.IntN(3) == 0 {
					before := key.remaining(now)
					back := all[random.IntN(len(all))]
					key.giveBack(back.charge, now)
					s.giveBackTo(back.reservation)
					if key.remaining(now) > before {
						gained++
					}
					want := decide(now, []ask{{key, 0}})
					if difference := differs(s.decide(policy.ChargeN("someone", 0)), want.Decision); difference != "" {
						t.Fatalf("stream %d, request %d at %d ms, after %d of %d ms was given back: %s\nbefore: %s",
							stream, request, now, back.charge.cost, back.charge.at, difference, history(key))
					}
					pace.now++ // see refundsWithinOneMillisecond
					continue
				}
				cost := randomCost(random, policy)
				want := decide(now, []ask{{key, cost}})
				got := s.decide(policy.ChargeN("someone", cost))
				if difference := differs(got, want.Decision); difference != "" {
					t.Fatalf("stream %d, request %d at %d ms, cost %d: %s\nbefore: %s", stream, request, now, cost, difference, history(key))
				}
				if want.charges[0] != nil {
					all = append(all, made{got.Limits[0].Reservation, want.charges[0]})
				}
				pace.mark(now + policy.Window.Milliseconds())
				pace.mark(now + got.RetryAfter.Milliseconds())
			}
		}
		want := s.scaled(40)
		if algorithm == ratelimit.LeakyBucket {
			want = s.scaled(20) // only those that wait give anything back
		}
		if s.streams() >= 50 && gained < want {
			t.Fatalf("only %d refunds gave anything back", gained)
		}
	})
}

// Cases A13, A22: the same where the models don't follow: the clock jumps, operators reset, algorithms change.
func disturbedRefundsAgree(t *testing.T, s *suite) {
	random, twin := seeded(t), s.twin()
	s = s.steady()
	type pair struct{ mine, twins ratelimit.Reservation }
	for stream := range s.streams() {
		twin.trace = ""
		policy := randomPolicy(random, algorithms[random.IntN(5)], fmt.Sprintf("disturbed-%d", stream))
		pace := newPace(random, policy)
		var all []pair
		for range 20 {
			if random.IntN(4) == 0 {
				pace.jump()
			}
			now := pace.next(s.clock)
			switch n := random.IntN(12); {
			case n == 0:
				action, until := []ratelimit.Action{ratelimit.Reset, ratelimit.Ban, ratelimit.Allow}[random.IntN(3)], now+random.Int64N(pace.window+1)
				twin.note("%s until %d", action, until)
				s.operate(action, policy, until)
				twin.operate(action, policy, until)
			case n == 1:
				policy = changed(random, policy)
			case n < 5 && len(all) > 0:
				which := random.IntN(len(all))
				back := all[which]
				twin.note("give back the charge %d", which)
				s.giveBackTo(back.mine)
				twin.giveBackTo(back.twins)
				s.agree(twin, policy.ChargeN("someone", 0))
			default:
				got, same := s.agree(twin, policy.ChargeN("someone", randomCost(random, policy)))
				if got.Allowed {
					twin.note("that is charge %d", len(all))
					all = append(all, pair{got.Limits[0].Reservation, same.Limits[0].Reservation})
				}
				pace.mark(now + got.RetryAfter.Milliseconds())
			}
		}
	}
	s.agreeOnAudits(twin)
}

// Case A22: one charge of many is given back. What is left then is at most what would be left without that charge, and at
// least what would be left if it had been kept, at once and at any time later.
func refundsTouchNobodyElse(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		random := seeded(t)
		for stream := range s.scaled(60) {
			policy := randomPolicy(random, algorithm, "")
			switch algorithm {
			case ratelimit.TokenBucket:
				policy.Burst = 100
			case ratelimit.LeakyBucket:
				policy.Queue = 99
			default:
				policy.Limit = 100
			}
			named := func(kind string) ratelimit.Policy {
				named := policy
				named.Name = fmt.Sprintf("%s-%s-%d", kind, algorithm, stream)
				return named
			}
			returned, missing, kept := named("returned"), named("missing"), named("kept")
			pace := newPace(random, policy)
			which := random.IntN(8)
			var back ratelimit.Reservation
			for i := range 8 {
				pace.next(s.clock)
				cost := 1 + random.Int64N(3)
				s.decide(kept.ChargeN("someone", cost))
				got := s.decide(returned.ChargeN("someone", cost))
				if i == which {
					back = got.Limits[0].Reservation
				} else {
					s.decide(missing.ChargeN("someone", cost))
				}
			}
			pace.next(s.clock)
			s.giveBackTo(back)
			for range 4 {
				got := s.decide(returned.ChargeN("someone", 0), missing.ChargeN("someone", 0), kept.ChargeN("someone", 0))
				left, most, least := got.Limits[0].Remaining, got.Limits[1].Remaining, got.Limits[2].Remaining
				if left > most || left < least {
					t.Fatalf("stream %d, %s: %d left, want at most %d, as without the charge, and at least %d, as with it",
						stream, describe(policy), left, most, least)
				}
				pace.next(s.clock)
			}
		}
	})
}

// buckets that refill by one unit a second.
func buckets(name string) []ratelimit.Policy {
	return []ratelimit.Policy{
		{Name: name + "-tokens", Algorithm: ratelimit.TokenBucket, Limit: 60, Window: time.Minute, Burst: 20},
		{Name: name + "-queue", Algorithm: ratelimit.LeakyBucket, Limit: 60, Window: time.Minute, Queue: 19},
	}
}

// Charged, given back, charged again, all within a millisecond: the second charge stands where the first no longer is.
func refundsWithinOneMillisecond(t *testing.T, s *suite) {
	for _, policy := range buckets("instant") {
		s.decide(policy.Charge("someone"))
		first := s.decide(policy.ChargeN("someone", 2)).Limits[0]
		s.giveBack(first)
		second := s.decide(policy.ChargeN("someone", 5)).Limits[0]
		s.giveBack(second)
		s.remaining(policy, 19)
	}
}

// A charge that an operator has forgotten isn't in front of any later one.
func refundsAcrossAReset(t *testing.T, s *suite) {
	for _, policy := range buckets("reset") {
		s.clock.At(0)
		forgotten := s.decide(policy.ChargeN("someone", 5)).Limits[0]
		s.operate(ratelimit.Reset, policy, 0)
		s.clock.At(time.Millisecond)
		s.decide(policy.ChargeN("someone", 5))
		later := s.decide(policy.ChargeN("someone", 5)).Limits[0]
		s.clock.At(2 * time.Millisecond)
		s.giveBack(forgotten)
		s.remaining(policy, 10)
		s.giveBack(later)
		s.remaining(policy, 15)
	}
}

// Two limiters with their secrets in turn: one's refund moves the other's charges forward in a token bucket. The first 5 are
// given back, so after 4 s 1 of the next 5 stands, and the last 5 stay. In a queue all keep their places: of the first 5 1 is
// still vacant after 4 s, and 5 more join the end.
func refundsDuringRotation(t *testing.T, s *suite) {
	old, young := s.rotating(Secret, otherSecret), s.rotating(otherSecret, Secret)
	for _, policy := range buckets("rotation") {
		s.clock.At(0)
		first := old.decide(policy.ChargeN("someone", 5)).Limits[0]
		second := young.decide(policy.ChargeN("someone", 5)).Limits[0]
		old.giveBack(first)
		s.clock.At(4 * time.Second)
		old.decide(policy.ChargeN("someone", 5))
		if policy.Algorithm == ratelimit.LeakyBucket {
			young.remaining(policy, 10)
		} else {
			young.remaining(policy, 14)
		}
		young.giveBack(second)
		old.remaining(policy, 15)
		young.remaining(policy, 15)
	}
}

// sweep takes every expired key.
func (s *suite) sweep() {
	s.t.Helper()
	if _, _, err := s.limiter.Sweep(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// Case A22: a key that was swept begins another life. What was charged, and given back, in its former one is of no account.
func refundsAcrossASweep(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		policy := plain(algorithm, "swept")
		s.clock.At(0)
		late := s.decide(policy.ChargeN("someone", 5)).Limits[0]
		s.clock.At(3 * time.Minute)
		s.sweep()
		s.clock.At(0) // the clock steps back, so that all is as it was
		s.decide(policy.ChargeN("someone", 5))
		s.giveBack(late)
		s.remaining(policy, 0)

		// The charge was of a longer window, which the sweep of the shorter one knows nothing of.
		shorter, longer := plain(algorithm, "shortened"), plain(algorithm, "shortened")
		longer.Window = 24 * time.Hour
		late = s.decide(longer.ChargeN("someone", 5)).Limits[0]
		s.clock.At(24 * time.Hour)
		s.decide(shorter.Charge("someone"))
		s.clock.At(24*time.Hour + 10*time.Minute)
		s.sweep()
		s.decide(shorter.ChargeN("someone", 5))
		s.giveBack(late)
		s.remaining(shorter, 0)
	})
	for _, policy := range buckets("swept") {
		s.clock.At(0)
		first := s.decide(policy.ChargeN("someone", 8)).Limits[0]
		s.decide(policy.Charge("someone"))
		s.decide(policy.Charge("someone"))
		s.giveBack(first)
		s.clock.At(90 * time.Second)
		s.sweep()
		s.decide(policy.Charge("someone"))
		s.giveBack(s.decide(policy.Charge("someone")).Limits[0])
		s.remaining(policy, 19)
	}
}

// A reservation given twice in one call is given once, and so are several of one key.
func refundsOfOneCall(t *testing.T, s *suite) {
	for _, policy := range buckets("one-call") {
		s.clock.At(0)
		s.decide(policy.Charge("someone"))
		first := s.decide(policy.ChargeN("someone", 5)).Limits[0].Reservation
		second := s.decide(policy.ChargeN("someone", 5)).Limits[0].Reservation
		third := s.decide(policy.ChargeN("someone", 5)).Limits[0].Reservation
		s.giveBackTo(first)
		s.giveBackTo(second, second)
		s.remaining(policy, 14)
		s.giveBackTo(third, second, first, third)
		s.remaining(policy, 19)
	}
}

// The clock was ahead for a moment. Refunds of what was charged then don't make the store forget others that were given back.
func refundsWhenTheClockWasAhead(t *testing.T, s *suite) {
	ahead, policy := fixed("ahead", 1000, time.Hour), fixed("now", 1000, time.Hour)
	var strange, ours []ratelimit.Reservation
	s.clock.At(24 * time.Hour)
	for range 20 {
		strange = append(strange, s.decide(ahead.Charge("someone")).Limits[0].Reservation)
	}
	s.clock.At(0)
	for range 10 {
		ours = append(ours, s.decide(policy.ChargeN("someone", 10)).Limits[0].Reservation)
	}
	s.decide(policy.ChargeN("someone", 900))
	s.giveBackTo(ours...)
	s.remaining(policy, 100)
	s.giveBackTo(strange...)
	s.giveBackTo(ours...)
	s.remaining(policy, 100)
}

// Reservations from before a rotation don't make the counter that they are of the newer one again.
func refundsFromBeforeARotation(t *testing.T, s *suite) {
	young := s.rotating(otherSecret, Secret)
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		young := young.in(t)
		policy := plain(algorithm, "before-rotation")
		s.clock.At(0)
		var old []ratelimit.Reservation
		for range 3 {
			old = append(old, s.decide(policy.Charge("someone")).Limits[0].Reservation)
		}
		young.decide(policy.ChargeN("someone", 2)) // within the same millisecond
		young.giveBackTo(old...)
		if got := young.decide(policy.ChargeN("someone", 0)).Limits[0].Remaining; got > 3 {
			t.Fatalf("%d left, but 2 that were charged stand", got)
		}
	})
}

// Two limiters with their secrets in turn, sweeps of one row or of all, and then one secret: whatever goes and in whatever
// order, each refund gives back what stands of its charge, as the models say.
func refundsAmongSweeps(t *testing.T, s *suite) {
	random := seeded(t)
	old, young, alone := s.rotating(Secret, otherSecret), s.rotating(otherSecret, Secret), s.alone(otherSecret)
	swept := int64(0)
	for stream := range s.streams() {
		// Buckets, whose charges stand behind one another, more often than the others.
		algorithm := algorithms[random.IntN(4)] // a queue is left out: see queueKeepsItsPace, and Store on rotations
		if random.IntN(2) == 0 {
			algorithm = ratelimit.TokenBucket
		}
		policy := randomPolicy(random, algorithm, fmt.Sprintf("among-sweeps-%d", stream))
		key := &model{policy: policy}
		pace := newPace(random, policy)
		var all []made
		var trace string
		for move := range 40 {
			who, name := old, "old"
			switch {
			case move >= 32: // the old secret is gone
				who, name = alone, "alone"
			case random.IntN(2) == 0:
				who, name = young, "young"
			}
			now := pace.next(s.clock)
			switch n := random.IntN(8); {
			case move == 31: // the younger secret takes the counter along: see rotationShares
				for charges := len(key.history); len(key.history) == charges; now = pace.next(s.clock) {
					if want := decide(now, []ask{{key, 1}}); want.charges[0] != nil {
						all = append(all, made{young.decide(policy.Charge("someone")).Limits[0].Reservation, want.charges[0]})
						break
					}
					young.decide(policy.Charge("someone"))
					pace.now += pace.window / 2
				}
			case n == 0:
				from := random.Int64() // of two rows this finds one as often as both
				some, err := s.Store.Sweep(t.Context(), from, 1+random.IntN(2))
				if err != nil {
					t.Fatal(err)
				}
				swept += some.Deleted
				trace += fmt.Sprintf("\n\t%d ms: sweep from %d: %d", now, from, some.Deleted)
			case n < 4 && len(all) > 0:
				back := all[len(all)-1-random.IntN(min(len(all), 4))]
				trace += fmt.Sprintf("\n\t%d ms: %s gives %d of %d ms back", now, name, back.charge.cost, back.charge.at)
				key.giveBack(back.charge, now)
				who.giveBackTo(back.reservation)
				pace.now++ // see refundsWithinOneMillisecond
			default:
				cost := randomCost(random, policy)
				want := decide(now, []ask{{key, cost}})
				got := who.decide(policy.ChargeN("someone", cost))
				trace += fmt.Sprintf("\n\t%d ms: %s asks for %d: %t", now, name, cost, got.Allowed)
				if difference := differs(got, want.Decision); difference != "" {
					t.Fatalf("stream %d of %s at %d ms, %s, cost %d: %s\nbefore: %s", stream, describe(policy), now, name, cost, difference, trace)
				}
				if want.charges[0] != nil {
					all = append(all, made{got.Limits[0].Reservation, want.charges[0]})
				}
				pace.mark(now + got.RetryAfter.Milliseconds())
			}
		}
		s.clock.AtMilli(pace.now + 1_000*pace.window*policy.Capacity())
		s.sweep() // so that the next stream's sweeps meet its own rows
	}
	if s.streams() >= 50 && swept < int64(s.scaled(100)) {
		t.Fatalf("only %d rows were swept", swept)
	}
}

// queued is a queue that serves one unit a second: one is served and three wait.
func queued(name string) ratelimit.Policy {
	return ratelimit.Policy{Name: name, Algorithm: ratelimit.LeakyBucket, Limit: 60, Window: time.Minute, Queue: 3}
}

// join takes places in a queue and holds the wait of each against what is wanted, in milliseconds; -1 for a refusal.
func (s *suite) join(policy ratelimit.Policy, want ...int64) (places []ratelimit.Reservation) {
	s.t.Helper()
	for i, wait := range want {
		got := s.decide(policy.Charge("someone")).Limits[0]
		delay := got.Delay.Milliseconds()
		if !got.Allowed {
			delay = -1
		}
		if delay != wait {
			s.t.Fatalf("the %d. waits for %d ms, want %d", i+1, delay, wait)
		}
		places = append(places, got.Reservation)
	}
	return places
}

// A client that leaves while it waits frees its place, and only that: those behind it keep theirs, and the next client gets it.
// So what is admitted always leaves at the queue's pace.
func queueKeepsItsPace(t *testing.T, s *suite) {
	s.clock.At(0)
	policy := queued("leaving")
	places := s.join(policy, 0, 1000, 2000, 3000, -1)
	s.giveBackTo(places[1]) // from the middle
	s.remaining(policy, 1)
	s.join(policy, 1000, -1)

	policy = queued("all-leave")
	places = s.join(policy, 0, 1000, 2000, 3000)
	s.clock.At(500 * time.Millisecond)
	s.giveBackTo(places[3])
	s.giveBackTo(places[1], places[2])
	s.giveBackTo(places[0]) // it has been served
	s.remaining(policy, 3)
	s.join(policy, 500, 1500, 2500, -1)

	s.clock.At(0)
	policy = queued("too-late")
	places = s.join(policy, 0, 1000, 2000, 3000)
	s.clock.At(1500 * time.Millisecond)
	s.giveBackTo(places[2])
	s.clock.At(2500 * time.Millisecond)
	s.giveBackTo(places[2], places[3])
	s.join(policy, 500, 1500, 2500, -1) // the place at 2,000 ms has gone by

	s.clock.At(0)
	policy = queued("twice")
	places = s.join(policy, 0, 1000, 2000, 3000)
	s.giveBackTo(places[2], places[2])
	again := s.join(policy, 2000, -1)
	s.giveBackTo(places[2]) // it is another's now
	s.join(policy, -1)
	s.giveBackTo(again[0])
	s.join(policy, 2000, -1)

	// Places of several units: a part of a large place may be taken, and what is left of it too.
	policy = queued("large")
	policy.Queue = 9
	s.decide(policy.Charge("someone"))
	large := s.decide(policy.ChargeN("someone", 4)).Limits[0].Reservation
	s.decide(policy.ChargeN("someone", 5))
	s.giveBackTo(large)
	if got := s.decide(policy.ChargeN("someone", 3)); got.Limits[0].Delay != time.Second || got.Limits[0].Remaining != 1 {
		t.Fatalf("3 of 4 vacant places: after %v, %d left", got.Limits[0].Delay, got.Limits[0].Remaining)
	}
	if got := s.decide(policy.ChargeN("someone", 2)); got.Allowed {
		t.Fatal("2 units fit into a place of 1")
	}
	s.join(policy, 4000, -1)

	// A queue that is made shorter has no places beyond its end, and the others stay.
	s.clock.At(0)
	policy = queued("shorter")
	policy.Queue = 9
	places = s.join(policy, 0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000)
	s.giveBackTo(places[1], places[7], places[8])
	policy.Queue = 2
	s.remaining(policy, 1)
	s.join(policy, 1000, -1, -1)
	policy.Queue = 9
	s.join(policy, 7000, 8000, -1)

	// During a rotation the place is found under either secret.
	s.clock.At(0)
	old, young := s.rotating(Secret, otherSecret), s.rotating(otherSecret, Secret)
	policy = queued("rotating")
	places = old.join(policy, 0, 1000)
	places = append(places, young.join(policy, 2000, 3000)...)
	old.giveBackTo(places[2])
	young.giveBackTo(places[1])
	young.join(policy, 1000)
	old.join(policy, 2000, -1)

	// After a reset the queue is empty, and what is given back of the old one is no place in the new one.
	policy = queued("reset")
	places = s.join(policy, 0, 1000, 2000)
	s.giveBackTo(places[1])
	s.operate(ratelimit.Reset, policy, 0)
	s.giveBackTo(places[2])
	s.join(policy, 0, 1000, 2000, 3000, -1)
}

// Clients that join and leave at random, in three streams at once: those that stay leave a second apart or more.
func queuesAtOnceKeepTheirPace(t *testing.T, s *suite) {
	policy := queued("at-once")
	policy.Queue = 19
	s.clock.At(0)
	var mu sync.Mutex
	turns := map[time.Duration]int{}
	together(6, func(worker int) {
		for i := range 8 {
			got := s.decide(policy.Charge("someone")).Limits[0]
			switch {
			case !got.Allowed:
			case (i+worker)%2 == 0 && got.Delay > 0: // the one that is served at once can't leave
				s.giveBackTo(got.Reservation)
			default:
				mu.Lock()
				turns[got.Delay]++
				mu.Unlock()
			}
		}
	})
	for turn, clients := range turns {
		if clients != 1 || turn%time.Second != 0 {
			t.Fatalf("%d clients have their turn after %v", clients, turn)
		}
	}
	left := s.decide(policy.ChargeN("someone", 0)).Limits[0].Remaining
	if left != 20-int64(len(turns)) {
		t.Fatalf("%d places are left of 20, and %d clients wait", left, len(turns))
	}
}
