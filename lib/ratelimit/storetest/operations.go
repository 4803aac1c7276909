package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

var otherSecret = []byte("the other secret of tests, longer")

// rotating is the suite with a limiter that has two secrets.
func (s *suite) rotating(first, second []byte) *suite {
	s.t.Helper()
	limiter, err := ratelimit.New(s.Store, first, ratelimit.Config{OtherSecret: second, Deadline: patience})
	if err != nil {
		s.t.Fatal(err)
	}
	rotating := *s
	rotating.limiter = limiter
	return &rotating
}

// actions lists what was audited of a policy.
func (s *suite) actions(policy ratelimit.Policy) (actions []ratelimit.Action) {
	s.t.Helper()
	for _, audit := range s.Audits() {
		if audit.Policy == policy.Name {
			actions = append(actions, audit.Action)
		}
	}
	return actions
}

func (s *suite) wantActions(policy ratelimit.Policy, want ...ratelimit.Action) {
	s.t.Helper()
	if got := s.actions(policy); fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Fatalf("audited %v, want %v", got, want)
	}
}

// plain makes a policy of any algorithm that admits 5 at once.
func plain(algorithm ratelimit.Algorithm, name string) ratelimit.Policy {
	policy := ratelimit.Policy{Name: name + "-" + algorithm.String(), Algorithm: algorithm, Limit: 5, Window: time.Minute}
	if algorithm == ratelimit.LeakyBucket {
		policy.Queue = 4
	}
	return policy
}

// Row E4.
func bans(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		policy := plain(algorithm, "ban")
		s.clock.At(0)
		const end = time.Hour + 10*time.Second
		s.operate(ratelimit.Ban, policy, s.clock.Now().Add(end).UnixMilli()) // of a key that was never charged
		for _, at := range []time.Duration{0, 30 * time.Minute, end - time.Millisecond} {
			s.clock.At(at)
			got := s.decide(policy.Charge("someone"))
			if got.Allowed || got.RetryAfter != end-at || got.Limits[0].Remaining != 0 {
				t.Fatalf("at %v: allowed %t, retry after %v, %d left; banned until %v", at, got.Allowed, got.RetryAfter, got.Limits[0].Remaining, end)
			}
			if !s.decide(policy.Charge("somebody else")).Allowed {
				t.Fatal("the ban meets somebody else")
			}
		}
		s.clock.At(end)
		if got := s.countAdmitted(policy, 7); got != 5 {
			t.Fatalf("%d passed after the ban, want 5", got)
		}
		if got := s.actions(policy); len(got) < 2 || got[0] != ratelimit.Ban {
			t.Fatalf("audited %v", got)
		}
	})
}

// Row E4.
func exemptions(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		policy := plain(algorithm, "allow")
		s.clock.At(0)
		s.countAdmitted(policy, 3)
		s.operate(ratelimit.Allow, policy, s.clock.Now().Add(10*time.Second).UnixMilli())
		s.clock.At(10*time.Second - time.Millisecond)
		if got := s.countAdmitted(policy, 8); got != 8 {
			t.Fatalf("%d of 8 passed while exempt", got)
		}
		s.clock.At(10 * time.Second)
		if got := s.countAdmitted(policy, 2); got != 0 {
			t.Fatalf("%d passed after the exemption: what passed during it didn't count", got)
		}
		s.wantActions(policy, ratelimit.Allow, "refusal")
	})
}

// Row E4.
func resets(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		policy := plain(algorithm, "reset")
		s.clock.At(0)
		before := s.decide(policy.ChargeN("someone", 4)).Limits[0]
		s.operate(ratelimit.Reset, policy, 0)
		s.remaining(policy, 5)
		s.decide(policy.ChargeN("someone", 3))
		s.giveBack(before) // a charge that is forgotten can't be given back
		s.remaining(policy, 2)
		s.operate(ratelimit.Ban, policy, s.clock.Now().Add(time.Hour).UnixMilli())
		s.remaining(policy, 0)
		s.operate(ratelimit.Reset, policy, 0)
		s.remaining(policy, 5)
		s.wantActions(policy, ratelimit.Reset, ratelimit.Ban, ratelimit.Reset)
	})
}

// Row E4: operators at random, against the models.
func operationsAgree(t *testing.T, s *suite) {
	random := seeded(t)
	want, operations := 0, 0
	for stream := range s.streams() {
		policy := randomPolicy(random, algorithms[random.IntN(5)], fmt.Sprintf("operated-%d", stream))
		key := &model{policy: policy}
		pace := newPace(random, policy)
		for request := range 20 {
			now := pace.next(s.clock)
			if random.IntN(5) == 0 {
				action := []ratelimit.Action{ratelimit.Reset, ratelimit.Ban, ratelimit.Allow}[random.IntN(3)]
				until := now + random.Int64N(2*pace.window+1)
				s.operate(action, policy, until)
				key.operate(action, until)
				operations++
				pace.mark(until)
				continue
			}
			cost := randomCost(random, policy)
			want := decide(now, []ask{{key, cost}})
			got := s.decide(policy.ChargeN("someone", cost))
			if difference := differs(got, want.Decision); difference != "" {
				t.Fatalf("stream %d, request %d at %d ms, cost %d of %s, after %s until %d: %s\nbefore: %s",
					stream, request, now, cost, describe(policy), key.word, key.until, difference, history(key))
			}
			pace.mark(now + got.RetryAfter.Milliseconds())
		}
		want += len(key.audits)
	}
	refusals, others := 0, 0
	for _, audit := range s.Audits() {
		if audit.Action == "refusal" {
			refusals++
		} else {
			others++
		}
	}
	if refusals != want || others != operations {
		t.Fatalf("audited %d refusals and %d operations, want %d and %d", refusals, others, want, operations)
	}
}

// The limiters of a rotation take turns, then the younger secret remains: the models see one counter all along.
func rotationShares(t *testing.T, s *suite) {
	random := seeded(t)
	old, young := s.rotating(Secret, otherSecret), s.rotating(otherSecret, Secret)
	alone := s.alone(otherSecret)
	audits := 0
	for stream := range s.streams() {
		policy := randomPolicy(random, algorithms[random.IntN(5)], fmt.Sprintf("rotation-%d", stream))
		key := &model{policy: policy}
		pace := newPace(random, policy)
		var all []made
		decide := func(s *suite, cost int64) {
			t.Helper()
			now := pace.next(s.clock)
			want := decide(now, []ask{{key, cost}})
			got := s.decide(policy.ChargeN("someone", cost))
			if difference := differs(got, want.Decision); difference != "" {
				t.Fatalf("stream %d at %d ms, cost %d: %s\nbefore: %s", stream, now, cost, difference, history(key))
			}
			if want.charges[0] != nil {
				all = append(all, made{got.Limits[0].Reservation, want.charges[0]})
			}
			pace.mark(now + got.RetryAfter.Milliseconds())
		}
		for range 16 {
			who := []*suite{old, young}[random.IntN(2)]
			bucket := policy.Algorithm == ratelimit.TokenBucket || policy.Algorithm == ratelimit.LeakyBucket
			if len(all) > 0 && random.IntN(5) == 0 && !bucket { // buckets: see refundsDuringRotation
				back := all[random.IntN(len(all))]
				key.giveBack(back.charge, pace.now)
				who.giveBackTo(back.reservation)
				continue
			}
			decide(who, randomCost(random, policy))
		}
		// A charge by the younger secret, as soon as it is admitted, takes the counter along.
		for charges := len(key.history); len(key.history) == charges; pace.now += pace.window / 2 {
			decide(young, 1)
		}
		for range 5 {
			decide(alone, randomCost(random, policy))
		}
		audits += len(key.audits)
	}
	if got := len(s.Audits()); got != audits {
		t.Fatalf("%d audit rows, the models have %d", got, audits)
	}
}

// alone is the suite with a limiter that has one secret.
func (s *suite) alone(secret []byte) *suite {
	s.t.Helper()
	return s.rotating(secret, nil)
}

// Row E4: while the secret changes an operator's last word counts, whichever instance was told it, and outlives the old secret
// when a decision met it.
func operatorsDuringRotation(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		before, after := s.alone(Secret), s.alone(otherSecret)
		first, second := s.rotating(Secret, otherSecret), s.rotating(otherSecret, Secret)
		s.clock.At(0)
		until := s.clock.Now().Add(time.Hour).UnixMilli()
		refused := func(s *suite, policy ratelimit.Policy, who string) {
			t.Helper()
			if got := s.in(t).decide(policy.Charge("someone")); got.Allowed {
				t.Fatalf("a ban is not seen %s", who)
			}
		}

		// The newer counter lies under the old secret, and the ban under the new one.
		policy := plain(algorithm, "ban-by-the-newest")
		second.decide(policy.Charge("someone"))
		s.clock.At(time.Millisecond)
		first.decide(policy.Charge("someone"))
		after.operate(ratelimit.Ban, policy, until)
		refused(second, policy, "by an instance with both secrets")
		refused(after, policy, "by one with the new secret")

		// Refusals that have nothing to write take a ban along all the same.
		policy = plain(algorithm, "ban-by-the-oldest")
		before.decide(policy.Charge("someone"))
		before.operate(ratelimit.Ban, policy, until)
		refused(before, policy, "where it was made")
		refused(first, policy, "in the first step")
		refused(second, policy, "in the second step")
		refused(second, policy, "in the second step again")
		refused(after, policy, "when the old secret is gone")
		s.wantActions(policy, ratelimit.Ban, "refusal")

		// A reset ends an exemption under both secrets, also when a sweep takes one row and leaves the other.
		policy = plain(algorithm, "exemption")
		before.operate(ratelimit.Allow, policy, until)
		second.decide(policy.Charge("someone"))
		second.operate(ratelimit.Reset, policy, 0)
		s.clock.At(30 * time.Minute)
		if _, err := s.Store.Sweep(t.Context(), 0, 1<<30); err != nil {
			t.Fatal(err)
		}
		if got := second.in(t).countAdmitted(policy, 7); got != 5 {
			t.Fatalf("%d of 7 passed after the exemption was taken back, want 5", got)
		}

		// A ban before anything was charged.
		policy = plain(algorithm, "ban-of-a-stranger")
		first.operate(ratelimit.Ban, policy, until)
		refused(before, policy, "by an instance with the old secret")
		refused(after, policy, "by one with the new secret")
		refused(second, policy, "by one with both")
		second.operate(ratelimit.Reset, policy, 0)
		if got := before.in(t).countAdmitted(policy, 7); got != 5 {
			t.Fatalf("%d of 7 passed after the ban was taken back, want 5", got)
		}
	})
}

// An exemption that ends before the others admit doesn't count: the wait is until all admit.
func waitBeyondAnExemption(t *testing.T, s *suite) {
	hourly := ratelimit.Policy{Name: "hourly", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: time.Hour}
	minutely := ratelimit.Policy{Name: "minutely", Algorithm: ratelimit.SlidingLog, Limit: 1, Window: time.Minute}
	const since = 300 * time.Millisecond
	for _, c := range []struct{ exempt, want time.Duration }{
		{5 * time.Second, time.Hour - since},
		{time.Minute - since + 100*time.Millisecond, time.Hour - since}, // ends within the second in which the other begins to admit
		{time.Minute, time.Hour - since},
		{time.Minute + time.Millisecond, time.Minute - since},
	} {
		s.clock.At(0)
		hourly.Name, minutely.Name = fmt.Sprint("hourly-", c.exempt.Milliseconds()), fmt.Sprint("minutely-", c.exempt.Milliseconds())
		s.decide(hourly.Charge("someone"), minutely.Charge("someone"))
		s.clock.At(since)
		s.operate(ratelimit.Allow, hourly, s.clock.Now().Add(c.exempt).UnixMilli())
		got := s.decide(hourly.Charge("someone"), minutely.Charge("someone"))
		if got.Allowed || !got.Limits[0].Allowed || got.RetryAfter != c.want {
			t.Fatalf("exempt for %v: allowed %t, retry after %v, want %v", c.exempt, got.Allowed, got.RetryAfter, c.want)
		}
		s.clock.At(since + got.RetryAfter)
		if !s.decide(hourly.Charge("someone"), minutely.Charge("someone")).Allowed {
			t.Fatalf("exempt for %v: refused after waiting for %v", c.exempt, got.RetryAfter)
		}
	}
}

func rotationIsExact(t *testing.T, s *suite) {
	old, young := s.rotating(Secret, otherSecret), s.rotating(otherSecret, Secret)
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		policy := plain(algorithm, "rotating")
		policy.Limit = 20
		if algorithm == ratelimit.LeakyBucket {
			policy.Queue = 19
		}
		var passed atomic.Int64
		together(16, func(worker int) {
			for range 3 {
				if []*suite{old, young}[worker%2].in(t).decide(policy.Charge("someone")).Allowed {
					passed.Add(1)
				}
			}
		})
		if passed.Load() != 20 {
			t.Fatalf("%d passed, want 20", passed.Load())
		}
		s.wantActions(policy, "refusal")
	})
}

// Rows C1 to C5, E1, B3: three limits of different algorithms in one decision.
func concurrentAlgorithms(t *testing.T, s *suite) {
	for _, mix := range [][3]ratelimit.Algorithm{
		{ratelimit.FixedWindow, ratelimit.SlidingLog, ratelimit.TokenBucket},
		{ratelimit.SlidingWindow, ratelimit.LeakyBucket, ratelimit.TokenBucket},
	} {
		name := fmt.Sprint(mix)
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			var limits [3]ratelimit.Policy
			for i, algorithm := range mix {
				limits[i] = plain(algorithm, fmt.Sprintf("limit-%d-of-%d", i, mix[1]))
				limits[i].Limit = 30 + 10*int64(i)
				if algorithm == ratelimit.LeakyBucket {
					limits[i].Queue = limits[i].Limit - 1
				}
			}
			attempts := plain(ratelimit.FixedWindow, fmt.Sprintf("attempts-%d", mix[1]))
			attempts.Limit, attempts.Count = 1000, ratelimit.EveryAttempt
			var admitted, asked [2]atomic.Int64 // units, by the first limit's subject
			together(64, func(worker int) {
				who, cost := worker%2, int64(1+worker%3)
				subject := fmt.Sprint(who)
				for range 2 {
					got := s.decide(limits[0].ChargeN(subject, cost), limits[1].ChargeN("all", cost), limits[2].ChargeN(subject, cost), attempts.Charge(subject))
					asked[who].Add(1)
					if got.Allowed {
						admitted[who].Add(cost)
					}
				}
			})
			left := func(policy ratelimit.Policy, subject string) int64 {
				return s.decide(policy.ChargeN(subject, 0)).Limits[0].Remaining
			}
			sum := admitted[0].Load() + admitted[1].Load()
			if got := left(limits[1], "all"); got != 40-sum || got > 2 {
				t.Errorf("%d left of the 40 that all share, %d were admitted; want all but what is too little for a cost of 3", got, sum)
			}
			for who := range admitted {
				subject := fmt.Sprint(who)
				for _, policy := range []ratelimit.Policy{limits[0], limits[2]} {
					if got := left(policy, subject); got != policy.Limit-admitted[who].Load() {
						t.Errorf("%s has %d left, but %d were admitted", describe(policy), got, admitted[who].Load())
					}
				}
				if got := left(attempts, subject); got != 1000-asked[who].Load() {
					t.Errorf("%d attempts are left, but %d were made", got, asked[who].Load())
				}
			}
			seen := map[int64]int{}
			for _, audit := range s.Audits() {
				if seen[audit.Key]++; seen[audit.Key] > 1 {
					t.Fatalf("two audit rows for one key and window: %+v", audit)
				}
			}
		})
	}
}
