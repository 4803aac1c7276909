package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// stands gives the units that stand in the key now: what a policy with another algorithm finds there.
func (m *model) stands(now int64) int64 {
	opened := now - now%m.window()
	switch m.policy.Algorithm {
	case ratelimit.FixedWindow, ratelimit.SlidingWindow:
		return m.between(opened, opened+m.window())
	case ratelimit.SlidingLog:
		return m.between(now-m.window()+1, now+1)
	}
	return (m.backlog(now) + m.window() - 1) / m.window() // a part of a unit counts as a whole one
}

// Rows B6, C1 to C5: for each pair of algorithms some units are used under the first, then the policy says the second. What stood
// when the key was last written, by a charge or an audited refusal, stands under the second as if it had all been charged
// at that moment; so no more than the capacity is ever to be had at once.
func switchesCarryOver(t *testing.T, s *suite) {
	for _, from := range algorithms {
		for _, to := range algorithms {
			if from == to {
				continue
			}
			t.Run(from.String()+" to "+to.String(), func(t *testing.T) {
				s, random := s.in(t).steady(), seeded(t)
				for stream := range s.scaled(50) {
					name := fmt.Sprintf("switch-%d-%d-%d", from, to, stream)
					policy := randomPolicy(random, from, name)
					old := &model{policy: policy}
					pace := newPace(random, policy)
					last := pace.now
					for range 6 {
						now := pace.next(s.clock)
						cost := 1 + random.Int64N(policy.Capacity())
						want := decide(now, []ask{{old, cost}})
						if difference := differs(s.decide(policy.ChargeN("someone", cost)), want.Decision); difference != "" {
							t.Fatalf("before the switch: %s", difference)
						}
						if want.Allowed || len(old.audits) > 0 && old.audits[len(old.audits)-1] == now {
							last = now // the key was written, with what stood then
						}
					}
					next := randomPolicy(random, to, name)
					next.Window = policy.Window
					key := &model{policy: next, audits: old.audits}
					if old.backlogged() && key.backlogged() {
						key.owed = place{shares: old.backlog(last), at: last}
					} else {
						key.take(old.stands(last), last)
					}
					if from == ratelimit.SlidingLog && old.stands(last) < old.between(0, last+1) {
						s.carriesUpToTwice(key, old.stands(last), last)
						continue
					}
					for range 4 {
						now := pace.next(s.clock)
						cost := 1 + random.Int64N(next.Capacity())
						want := decide(now, []ask{{key, cost}})
						if difference := differs(s.decide(next.ChargeN("someone", cost)), want.Decision); difference != "" {
							t.Fatalf("stream %d, %s, last written at %d ms with %d standing, at %d ms %d units of %s: %s\nbefore: %s",
								stream, describe(policy), last, old.stands(last), now, cost, describe(next), difference, history(old))
						}
					}
				}
			})
		}
	}
}

// carriesUpToTwice looks at a key that was a log of which some units had expired: up to as many of those as stood may
// stand under the new algorithm too. The model has those that stood.
func (s *suite) carriesUpToTwice(key *model, stood, last int64) {
	s.t.Helper()
	s.clock.AtMilli(last)
	got := s.decide(key.policy.ChargeN("someone", 0)).Limits[0].Remaining
	most := key.remaining(last)
	key.take(stood, last)
	if least := key.remaining(last); got < least || got > most {
		s.t.Fatalf("%d left of %s after a log with %d standing, want %d to %d", got, describe(key.policy), stood, least, most)
	}
}

// An audited refusal writes the log down too: 8 of its 9 units have expired by then, and 1 stands.
func refusedLogCarriesOver(t *testing.T, s *suite) {
	policy := ratelimit.Policy{Name: "refused-log", Algorithm: ratelimit.SlidingLog, Limit: 9, Window: time.Minute}
	s.decide(policy.ChargeN("someone", 8))
	s.clock.At(59 * time.Second)
	s.decide(policy.Charge("someone"))
	s.clock.At(61 * time.Second)
	s.decide(policy.ChargeN("someone", 9))
	policy.Algorithm = ratelimit.FixedWindow
	if left := s.decide(policy.ChargeN("someone", 0)).Limits[0].Remaining; left < 7 || left > 8 {
		t.Fatalf("%d left after a log of 9 with 1 standing, want 8, or 7 with as many expired", left)
	}
}

// Case A20: counters hold no limit. Units stay charged, whatever the limit was when they were.
func changedLimitsHold(t *testing.T, s *suite) {
	s.steady().eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		random := seeded(t)
		for stream := range s.scaled(200) {
			policy := randomPolicy(random, algorithm, fmt.Sprintf("changed-%s-%d", algorithm, stream))
			key := &model{policy: policy}
			pace := newPace(random, policy)
			for request := range 16 {
				switch random.IntN(6) {
				case 0:
					if limit := 1 + random.Int64N(12); algorithm != ratelimit.SlidingLog || limit > policy.Limit { // see loweredLogHolds
						policy.Limit = limit
					}
				case 1:
					if algorithm == ratelimit.LeakyBucket {
						policy.Queue = random.Int64N(9)
					}
					if algorithm == ratelimit.TokenBucket {
						policy.Burst = 1 + random.Int64N(20)
					}
				}
				now := pace.next(s.clock)
				key.policy = policy
				cost := randomCost(random, policy)
				want := decide(now, []ask{{key, cost}})
				got := s.decide(policy.ChargeN("someone", cost))
				if difference := differs(got, want.Decision); difference != "" {
					t.Fatalf("stream %d, request %d at %d ms, cost %d: %s\nbefore: %s", stream, request, now, cost, difference, history(key))
				}
				if key.backlogged() && (want.charges[0] != nil || len(key.audits) > 0 && key.audits[len(key.audits)-1] == now) {
					key.settle(now) // a rate holds for all the time since the last write: nothing says when it was changed
				}
			}
		}
	})
}

// Case A20: 10 of 10, then the limit is 5 for a while, and 10 again.
func loweredLogHolds(t *testing.T, s *suite) {
	policy := ratelimit.Policy{Name: "lowered", Algorithm: ratelimit.SlidingLog, Limit: 10, Window: time.Minute}
	s.decide(policy.ChargeN("someone", 10))
	policy.Limit = 5
	s.decide(policy.Charge("someone"))
	policy.Limit = 10
	s.clock.At(time.Second)
	if got := s.countAdmitted(policy, 10); got != 0 {
		t.Fatalf("%d more passed within the window of 10", got)
	}
}

// settle replaces a bucket's history by what of it waits now.
func (m *model) settle(now int64) {
	m.owed = place{shares: m.backlog(now), at: now}
	m.history = nil
}

// Cases A13, A20: everything about one key changes at random.
func switchesAgree(t *testing.T, s *suite) {
	random, twin := seeded(t), s.twin()
	s = s.steady()
	for stream := range s.streams() {
		twin.trace = ""
		name := fmt.Sprintf("any-%d", stream)
		policy := randomPolicy(random, algorithms[random.IntN(5)], name)
		pace := newPace(random, policy)
		for range 20 {
			policy = changed(random, policy)
			if random.IntN(3) == 0 {
				pace.jump()
			}
			pace.next(s.clock)
			got, _ := s.agree(twin, policy.ChargeN("someone", randomCost(random, policy)))
			if left := got.Limits[0].Remaining; left > policy.Capacity() {
				t.Fatalf("%d left of %s", left, describe(policy))
			}
			pace.mark(pace.now + got.RetryAfter.Milliseconds())
		}
	}
	s.agreeOnAudits(twin)
}

// changed changes something of a policy now and then.
func changed(random *rand.Rand, policy ratelimit.Policy) ratelimit.Policy {
	other := randomPolicy(random, algorithms[random.IntN(5)], policy.Name)
	switch random.IntN(8) {
	case 0:
		return other
	case 1:
		other.Window = policy.Window
		return other
	case 2:
		policy.Limit = other.Limit
	case 3:
		policy.Window = max(policy.Window/2, time.Millisecond).Truncate(time.Millisecond)
	}
	return policy
}
