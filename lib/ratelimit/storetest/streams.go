package storetest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// algorithmTests hold each algorithm against its model, its promise and the figures that it is known by. Run plays them.
var algorithmTests = []test{
	{"random streams of each algorithm agree with its model", eachAlgorithmAgrees},
	{"random decisions over several algorithms agree with their models", mixedDecisionsAgree},
	{"while the clock jumps back, the store agrees with the one in memory", jumpingClocksAgree},
	{"a clock that jumps back grants at most the time that it passes again", jumpingClocksGrantOnce},
	{"after one step back nobody waits for the clock to come back", steppedBackLocksNobodyOut},
	{"after one step back waiting exactly as told is enough", steppedBackWaits},
	{"a greedy client gets all that an algorithm promises and no more", greedyClients},
	{"waiting exactly as told is enough for every algorithm, and 1 ms less is not", everyRetryAfterIsExact},

	{"a token bucket of 100 a minute: 100 of 150 at once, the next 0.6 s later, full after 60 s", tokenBucketFigures},
	{"a leaky bucket of 2 a second delays by 0, 0.5 and 1 s, then refuses", leakyBucketFigures},
	{"around a minute's edge a fixed window lets 200 through, the others 100", boundaryFigures},
	{"60 in the previous window and 40 in half of this one are estimated as 70", estimateFigures},
	{"reading before writing lets 20 of 20 through where 5 are left, a decision 5", readThenWriteFigures},
	{"ten local limits of 10 pass 55 of 100, a shared one all", localLimitFigures},
	{"limits by address alone let 10,000 guesses through, one by account 5", stuffingFigures},
	{"the end of a window is fixed when it opens", windowEndFigures},

	{"switching the algorithm carries over what stood", switchesCarryOver},
	{"switching from a log that was refused carries over no more than twice what stood", refusedLogCarriesOver},
	{"a limit raised or lowered holds from the next decision on", changedLimitsHold},
	{"a log whose limit is lowered for a while still holds what was charged before", loweredLogHolds},
	{"random switches and changes agree with the store in memory, whatever the clock does", switchesAgree},

	{"random refunds agree with the models", refundsAgree},
	{"random refunds under a jumping clock and an operator agree with the store in memory", disturbedRefundsAgree},
	{"giving back never leaves more than if the charge had not been made", refundsTouchNobodyElse},
	{"a bucket's charge is given back whole, though another was given back before it in its millisecond", refundsWithinOneMillisecond},
	{"a refund from before a reset takes nothing from the refunds after it", refundsAcrossAReset},
	{"a place in a queue that is given back is the next client's, and all others keep theirs", queueKeepsItsPace},
	{"clients that join and leave at once keep a queue's pace", queuesAtOnceKeepTheirPace},
	{"refunds by two limiters during a rotation touch nobody else", refundsDuringRotation},
	{"a refund from before a rotation doesn't bring the older counter back", refundsFromBeforeARotation},
	{"a refund from before a sweep touches nothing of the key's next life", refundsAcrossASweep},
	{"no refund is lost and none is minted, whatever is swept before, during and after a rotation", refundsAmongSweeps},
	{"what one call gives back twice is given back once", refundsOfOneCall},
	{"a refund of a charge from the future forgets no other refund", refundsWhenTheClockWasAhead},

	{"a ban refuses until its end and then lets in", bans},
	{"an exemption admits beyond the limit and counts", exemptions},
	{"a reset forgets the charges and ends a ban", resets},
	{"random operations agree with the models", operationsAgree},
	{"a wait is for the time when no exemption helps any more", waitBeyondAnExemption},
	{"an operator's last word counts while the secret changes, and after", operatorsDuringRotation},
	{"two limiters with their secrets in turn share every counter", rotationShares},
	{"two limiters with their secrets in turn admit the limit together, also at once", rotationIsExact},

	{"64 at once over three algorithms are charged exactly what is admitted", concurrentAlgorithms},
	{"what is told to many at once could have been told one after the other", linearizable},
}

// streams is how many random streams a test plays.
func (s *suite) streams() int { return cmp.Or(s.Streams, 500) }

// scaled cuts a number of rounds for a slow store.
func (s *suite) scaled(n int) int { return max(1, n*s.streams()/500) }

var algorithms = []ratelimit.Algorithm{
	ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.SlidingLog, ratelimit.TokenBucket, ratelimit.LeakyBucket,
}

// eachAlgorithm runs a test of the suite once for each algorithm.
func (s *suite) eachAlgorithm(t *testing.T, test func(t *testing.T, s *suite, algorithm ratelimit.Algorithm)) {
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) { test(t, s.in(t), algorithm) })
	}
}

// in is the suite as a subtest uses it.
func (s *suite) in(t *testing.T) *suite {
	inner := *s
	inner.t = t
	return &inner
}

// randomPolicy makes limits small and windows of any length, so that a stream of a few requests meets every edge.
func randomPolicy(random *rand.Rand, algorithm ratelimit.Algorithm, name string) ratelimit.Policy {
	policy := ratelimit.Policy{Name: name, Algorithm: algorithm, Limit: 1 + random.Int64N(12)}
	switch random.IntN(4) {
	case 0:
		policy.Window = time.Duration(1+random.Int64N(90)) * time.Second
	case 1:
		policy.Window = milliseconds(1 + random.Int64N(20))
	default:
		policy.Window = milliseconds(1 + random.Int64N(90_000))
	}
	switch {
	case algorithm == ratelimit.TokenBucket && random.IntN(3) > 0:
		policy.Burst = 1 + random.Int64N(20)
	case algorithm == ratelimit.LeakyBucket:
		policy.Queue = random.Int64N(9)
	}
	return policy
}

// randomCost is mostly 1; sometimes it peeks, and sometimes it asks for up to all.
func randomCost(random *rand.Rand, policy ratelimit.Policy) int64 {
	switch random.IntN(8) {
	case 0:
		return 0
	case 1, 2, 3:
		return 1 + random.Int64N(policy.Capacity())
	}
	return 1
}

// pace makes the times of a stream: the same instant, the edges of windows, of charges and of waits and 1 ms beside them,
// long idling, and anything between. Times are milliseconds since 1970.
type pace struct {
	random *rand.Rand
	window int64
	now    int64
	marks  []int64 // moments to come at which something changes
}

func newPace(random *rand.Rand, policy ratelimit.Policy) *pace {
	return &pace{random: random, window: policy.Window.Milliseconds(), now: Start.UnixMilli() + random.Int64N(int64(time.Hour/time.Millisecond))}
}

// next moves on and sets the clock.
func (p *pace) next(clock *Clock) int64 {
	near := p.random.Int64N(3) - 1
	switch p.random.IntN(8) {
	case 0, 1:
	case 2:
		p.now = max(p.now, p.now-p.now%p.window+p.window+near)
	case 3, 4:
		if len(p.marks) > 0 {
			p.now = max(p.now, p.marks[p.random.IntN(len(p.marks))]+near)
		}
	case 5:
		if p.random.IntN(4) == 0 {
			p.now += p.random.Int64N(4*p.window + 1)
		}
	default:
		p.now += p.random.Int64N(p.window/3 + 1)
	}
	clock.AtMilli(p.now)
	return p.now
}

// mark remembers a moment that is to be met.
func (p *pace) mark(at int64) {
	if p.marks = append(p.marks, at); len(p.marks) > 4 {
		p.marks = p.marks[1:]
	}
}

// AtMilli sets the clock to a time in milliseconds since 1970.
func (c *Clock) AtMilli(milli int64) { c.micros.Store(milli * 1000) }

// Rows B4, C1 to C5: verdict, what is left, waits and delays of each request, and the audit; and the algorithm's promise on the
// admitted times alone.
func eachAlgorithmAgrees(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		random := seeded(t)
		seen := map[bool]int{}
		wantAudits := len(s.Audits())
		for stream := range s.streams() {
			policy := randomPolicy(random, algorithm, fmt.Sprintf("%s-%d", algorithm, stream))
			key := &model{policy: policy}
			pace := newPace(random, policy)
			var passed []passage
			for request := range 25 {
				now := pace.next(s.clock)
				cost := randomCost(random, policy)
				want := decide(now, []ask{{key, cost}})
				got := s.decide(policy.ChargeN("someone", cost))
				if difference := differs(got, want.Decision); difference != "" {
					t.Fatalf("stream %d, request %d at %d ms, cost %d: %s\nbefore: %s", stream, request, now, cost, difference, history(key))
				}
				pace.mark(now + policy.Window.Milliseconds())
				pace.mark(now + got.RetryAfter.Milliseconds())
				if got.Allowed && cost > 0 {
					passed = append(passed, passage{at: now, cost: cost, delay: got.Limits[0].Delay.Milliseconds()})
				}
				if cost > 0 {
					seen[got.Allowed]++
				}
			}
			if broken := breaks(policy, passed); broken != "" {
				t.Fatalf("stream %d, %s: %s", stream, describe(policy), broken)
			}
			wantAudits += len(key.audits)
		}
		if got := len(s.Audits()); got != wantAudits {
			t.Fatalf("%d audit rows, the models have %d", got, wantAudits)
		}
		if requests := s.streams() * 25; seen[true] < requests/10 || seen[false] < requests/20 {
			t.Fatalf("%d admitted and %d refused: the streams don't test both", seen[true], seen[false])
		}
	})
}

// history describes what happened to a model's key.
func history(m *model) string {
	text := ""
	for _, e := range m.history {
		verb := "charged"
		if e.isBack {
			verb = "gave back"
		}
		text += fmt.Sprintf("\n\t%d ms: %s %d of %d ms", e.at, verb, e.charge.cost, e.charge.at)
	}
	return text
}

// Rows C1 to C5, E1: 2 to 4 limits of different algorithms, some counting every attempt, in one decision.
func mixedDecisionsAgree(t *testing.T, s *suite) {
	random := seeded(t)
	partly := 0
	wantAudits := 0
	for stream := range s.streams() {
		var keys []*model
		for i, algorithm := range random.Perm(len(algorithms))[:2+random.IntN(3)] {
			policy := randomPolicy(random, algorithms[algorithm], fmt.Sprintf("mixed-%d-%d", stream, i))
			if random.IntN(3) == 0 {
				policy.Count = ratelimit.EveryAttempt
			}
			keys = append(keys, &model{policy: policy})
		}
		pace := newPace(random, keys[0].policy)
		passed := make([][]passage, len(keys))
		for request := range 25 {
			now := pace.next(s.clock)
			order := random.Perm(len(keys))[:1+random.IntN(len(keys))]
			var asks []ask
			var charges []ratelimit.Charge
			for _, i := range order {
				cost := randomCost(random, keys[i].policy)
				asks = append(asks, ask{keys[i], cost})
				charges = append(charges, keys[i].policy.ChargeN("someone", cost))
			}
			want := decide(now, asks)
			got := s.decide(charges...)
			if difference := differs(got, want.Decision); difference != "" {
				t.Fatalf("stream %d, request %d at %d ms: %s", stream, request, now, difference)
			}
			for i, limit := range got.Limits {
				charged := limit.Reservation != ratelimit.Reservation{}
				if charged != (want.charges[i] != nil) {
					t.Fatalf("stream %d, request %d: limit %d charged %t, the model says %t", stream, request, i, charged, !charged)
				}
				if charged && !got.Allowed {
					partly++
				}
				if charged {
					passed[order[i]] = append(passed[order[i]], passage{at: now, cost: charges[i].Cost, delay: limit.Delay.Milliseconds()})
				}
				pace.mark(now + limit.Reset.Milliseconds())
			}
		}
		for i, key := range keys {
			if broken := breaks(key.policy, passed[i]); broken != "" {
				t.Fatalf("stream %d, %s: %s", stream, describe(key.policy), broken)
			}
			wantAudits += len(key.audits)
		}
	}
	if got := len(s.Audits()); got != wantAudits {
		t.Fatalf("%d audit rows, the models have %d", got, wantAudits)
	}
	if partly == 0 && s.streams() >= 100 {
		t.Fatal("no attempt was counted by one limit and refused by another")
	}
}

// twin is a store in memory on the suite's clock, to be asked the same.
func (s *suite) twin() *suite {
	s.t.Helper()
	store := ratelimit.NewSteadyMemoryStore(s.clock.Now)
	limiter, err := ratelimit.New(store, Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		s.t.Fatal(err)
	}
	return &suite{t: s.t, clock: s.clock, limiter: limiter, Harness: Harness{Store: store, Audits: store.Audits, Writes: store.Writes}}
}

// steady is the suite on a store that forgets nothing in passing, for clocks that jump back.
func (s *suite) steady() *suite {
	s.t.Helper()
	if s.Steady == nil {
		return s
	}
	limiter, err := ratelimit.New(s.Steady, Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		s.t.Fatal(err)
	}
	steady := *s
	steady.limiter = limiter
	return &steady
}

// agree asks both the same and returns what both say.
func (s *suite) agree(twin *suite, charges ...ratelimit.Charge) (got, same ratelimit.Decision) {
	s.t.Helper()
	for _, charge := range charges {
		twin.note("%d units of %s, %s", charge.Cost, charge.Policy.Name, describe(charge.Policy))
	}
	got, same = s.decide(charges...), twin.decide(charges...)
	twin.note("allowed %t", got.Allowed)
	if difference := differs(got, same); difference != "" {
		s.t.Fatalf("%s, as in memory; before, in the stream:%s", difference, twin.trace)
	}
	return got, same
}

// note keeps what was done in a stream, to tell it when the stores disagree.
func (s *suite) note(format string, args ...any) {
	s.trace += fmt.Sprintf("\n\t%d ms: ", s.clock.Now().UnixMilli()) + fmt.Sprintf(format, args...)
}

// agreeOnAudits compares what both audited, in order within each key.
func (s *suite) agreeOnAudits(twin *suite) {
	s.t.Helper()
	byKey := func(all []ratelimit.Audit) map[int64][]ratelimit.Audit {
		keys := map[int64][]ratelimit.Audit{}
		for _, audit := range all {
			keys[audit.Key] = append(keys[audit.Key], audit)
		}
		return keys
	}
	got, want := byKey(s.Audits()), byKey(twin.Audits())
	if len(got) != len(want) {
		s.t.Fatalf("%d keys were audited, in memory %d", len(got), len(want))
	}
	for key := range want {
		if fmt.Sprint(got[key]) != fmt.Sprint(want[key]) {
			s.t.Fatalf("audited for one key\n%+v, in memory\n%+v", got[key], want[key])
		}
	}
}

// jump moves the pace's clock back now and then, by a little or by many windows.
func (p *pace) jump() {
	switch p.random.IntN(8) {
	case 0:
		p.now -= p.random.Int64N(p.window + 1)
	case 1:
		p.now -= p.random.Int64N(10*p.window + 1)
	case 2:
		p.now -= 1
	case 3:
		p.now += p.random.Int64N(10*p.window + 1)
	}
}

// Case A13: what the models don't know, the two stores must say alike.
func jumpingClocksAgree(t *testing.T, s *suite) {
	random, twin := seeded(t), s.twin()
	s = s.steady()
	for stream := range s.streams() {
		twin.trace = ""
		var policies []ratelimit.Policy
		for i, algorithm := range random.Perm(len(algorithms))[:1+random.IntN(3)] {
			policies = append(policies, randomPolicy(random, algorithms[algorithm], fmt.Sprintf("jumping-%d-%d", stream, i)))
		}
		pace := newPace(random, policies[0])
		for range 25 {
			pace.jump()
			pace.next(s.clock)
			var charges []ratelimit.Charge
			for _, policy := range policies {
				charges = append(charges, policy.ChargeN("someone", randomCost(random, policy)))
			}
			got, _ := s.agree(twin, charges...)
			pace.mark(pace.now + got.RetryAfter.Milliseconds())
		}
	}
	s.agreeOnAudits(twin)
}

// Case A13, on what State promises: time that is passed again is credited once more, however often the clock swings.
func jumpingClocksGrantOnce(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		s = s.steady()
		random := seeded(t)
		for stream := range s.scaled(60) {
			policy := randomPolicy(random, algorithm, fmt.Sprintf("swing-%s-%d", algorithm, stream))
			window := policy.Window.Milliseconds()
			stretch := random.Int64N(window)
			if stream%2 == 1 {
				stretch = random.Int64N(4 * window)
			}
			first := Start.UnixMilli() + random.Int64N(1_000_000)
			var passed int64
			for range 60 {
				s.clock.AtMilli(first + random.Int64N(stretch+1))
				cost := 1 + random.Int64N(policy.Capacity())
				if s.decide(policy.ChargeN("someone", cost)).Allowed {
					passed += cost
				}
			}
			if most := mostInTwice(policy, first, stretch); passed > most {
				t.Fatalf("stream %d, %s: %d passed within %d ms from %d, want at most %d", stream, describe(policy), passed, stretch, first, most)
			}
		}
	})
}

// mostInTwice is the most that may pass from first on within a stretch, both ends included, when the stretch is passed
// twice. Within less than a window that is one capacity more than when it is passed once, or, for a bucket, what is
// refilled in that time.
func mostInTwice(policy ratelimit.Policy, first, stretch int64) int64 {
	window, once := policy.Window.Milliseconds(), int64(0)
	switch policy.Algorithm {
	case ratelimit.TokenBucket, ratelimit.LeakyBucket:
		return policy.Capacity() + 2*policy.Limit*stretch/window
	case ratelimit.FixedWindow, ratelimit.SlidingWindow:
		once = policy.Limit * ((first+stretch)/window - first/window + 1)
	case ratelimit.SlidingLog:
		once = policy.Limit * (stretch/window + 1)
	}
	if stretch < window {
		return once + policy.Capacity()
	}
	return 2 * once
}

// steppedBack uses a random policy up, steps the clock back once, by any amount, and asks again.
func (s *suite) steppedBack(random *rand.Rand, algorithm ratelimit.Algorithm, name string) (charge ratelimit.Charge, high, back int64, refused ratelimit.Decision) {
	policy := randomPolicy(random, algorithm, name)
	high = newPace(random, policy).now
	s.clock.AtMilli(high)
	s.decide(policy.ChargeN("someone", policy.Capacity()))
	back = high - 1 - random.Int64N(10*policy.Window.Milliseconds())
	s.clock.AtMilli(back)
	charge = policy.ChargeN("someone", 1+random.Int64N(policy.Capacity()))
	return charge, high, back, s.decide(charge)
}

// longestWait is the longest that a client can be told to wait while the clock goes forward.
func longestWait(policy ratelimit.Policy) int64 {
	window := policy.Window.Milliseconds()
	switch policy.Algorithm {
	case ratelimit.SlidingWindow: // the units fade during the next window
		return 2 * window
	case ratelimit.TokenBucket, ratelimit.LeakyBucket:
		return (policy.Capacity()*window + policy.Limit - 1) / policy.Limit
	}
	return window
}

// Case A13: nobody waits for the clock to come back to where it was. Time that lies between the two when it is there again
// isn't credited, so that a client that is caught by that waits from there once more.
func steppedBackLocksNobodyOut(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		s = s.steady()
		random := seeded(t)
		for stream := range s.scaled(200) {
			charge, high, back, got := s.steppedBack(random, algorithm, fmt.Sprintf("locked-%s-%d", algorithm, stream))
			latest := back + longestWait(charge.Policy)
			if latest >= high {
				latest = high + longestWait(charge.Policy)
			}
			now := back
			for !got.Allowed {
				now += max(got.RetryAfter.Milliseconds(), 1)
				if now > latest {
					t.Fatalf("stream %d, %s: stepped back from %d to %d ms, and to wait until %d, later than %d",
						stream, describe(charge.Policy), high, back, now, latest)
				}
				s.clock.AtMilli(now)
				got = s.decide(charge)
			}
			if now == back {
				t.Fatalf("stream %d, %s: the step back let %d more units in", stream, describe(charge.Policy), charge.Cost)
			}
		}
	})
}

// Cases A07, A13
func steppedBackWaits(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		s = s.steady()
		random := seeded(t)
		for stream := range s.scaled(200) {
			charge, high, back, refused := s.steppedBack(random, algorithm, fmt.Sprintf("back-%s-%d", algorithm, stream))
			s.clock.AtMilli(back + refused.RetryAfter.Milliseconds())
			if !s.decide(charge).Allowed {
				t.Fatalf("stream %d, %s: %d units used up at %d ms, %d asked for after a step back by %d ms: refused after the whole wait of %v",
					stream, describe(charge.Policy), charge.Policy.Capacity(), high, charge.Cost, high-back, refused.RetryAfter)
			}
		}
	})
}

// Case A07, for every algorithm, alone and several in one decision.
func everyRetryAfterIsExact(t *testing.T, s *suite) {
	random := seeded(t)
	refusals := 0
	for stream := range s.scaled(300) {
		var charges []ratelimit.Charge
		for i, algorithm := range random.Perm(len(algorithms))[:1+random.IntN(3)] {
			policy := randomPolicy(random, algorithms[algorithm], fmt.Sprintf("wait-%d-%d", stream, i))
			charges = append(charges, policy.ChargeN("someone", 1+random.Int64N(policy.Capacity())))
		}
		pace := newPace(random, charges[0].Policy)
		for request := range 12 {
			pace.next(s.clock)
			refused := s.decide(charges...)
			if refused.Allowed {
				continue
			}
			refusals++
			if refused.RetryAfter < time.Millisecond {
				t.Fatalf("stream %d, request %d: refused for %v", stream, request, refused.RetryAfter)
			}
			s.clock.AtMilli(pace.now + refused.RetryAfter.Milliseconds() - 1)
			if s.decide(charges...).Allowed {
				t.Fatalf("stream %d, request %d: passed 1 ms before the wait of %v was over: %+v", stream, request, refused.RetryAfter, charges)
			}
			pace.now += refused.RetryAfter.Milliseconds()
			s.clock.AtMilli(pace.now)
			if !s.decide(charges...).Allowed {
				t.Fatalf("stream %d, request %d: refused after the whole wait of %v: %+v", stream, request, refused.RetryAfter, charges)
			}
		}
	}
	if refusals < s.scaled(300) {
		t.Fatalf("only %d refusals: the streams don't test the wait", refusals)
	}
}

func (s *suite) giveBackTo(reservations ...ratelimit.Reservation) {
	s.t.Helper()
	if err := s.limiter.GiveBack(context.Background(), reservations...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *suite) operate(action ratelimit.Action, policy ratelimit.Policy, until int64) {
	s.t.Helper()
	if err := s.limiter.Operate(context.Background(), action, policy, "someone", time.UnixMilli(until)); err != nil {
		s.t.Fatal(err)
	}
}
