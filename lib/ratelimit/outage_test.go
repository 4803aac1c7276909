package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// faulty is a store in memory that fails on demand, and counts calls.
type faulty struct {
	*ratelimit.MemoryStore
	clock *storetest.Clock

	mu     sync.Mutex
	calls  int
	silent bool   // takes the whole deadline
	err    error  // at once
	after  bool   // fails after the decision was carried out
	during func() // called in each call
}

func (f *faulty) fail() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.during != nil {
		f.during()
	}
	if f.silent {
		f.clock.Add(2 * time.Second)
		return context.DeadlineExceeded
	}
	return f.err
}

func (f *faulty) set(silent bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent, f.err, f.calls = silent, err, 0
}

func (f *faulty) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *faulty) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	if f.after {
		f.MemoryStore.Decide(ctx, entries)
	}
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.MemoryStore.Decide(ctx, entries)
}

func (f *faulty) GiveBack(ctx context.Context, refunds []ratelimit.Refund) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.MemoryStore.GiveBack(ctx, refunds)
}

func newFaulty(t *testing.T, config ratelimit.Config) (*faulty, *ratelimit.Limiter) {
	t.Helper()
	clock := storetest.NewClock()
	store := &faulty{MemoryStore: ratelimit.NewMemoryStore(clock.Now), clock: clock}
	config.Clock = clock.Now
	limiter, err := ratelimit.New(store, storetest.Secret, config)
	if err != nil {
		t.Fatal(err)
	}
	return store, limiter
}

func perMinute(name string, limit int64, failure ratelimit.Failure) ratelimit.Policy {
	return ratelimit.Policy{Name: name, Algorithm: ratelimit.FixedWindow, Limit: limit, Window: time.Minute, Failure: failure}
}

var errRefused = errors.New("connection refused")

// Row D7; case A49: while the store answers errors, each policy does what it says, and the next request after it is exact again.
func TestWithoutTheStoreEachLimitDoesWhatItsFailureSays(t *testing.T) {
	for _, c := range []struct {
		failure ratelimit.Failure
		limit   int64
		want    int // of 100 in a minute
	}{
		{ratelimit.Refuse, 1000, 0},
		{ratelimit.Strict, 10, 1}, {ratelimit.Strict, 59, 1}, {ratelimit.Strict, 60, 2}, {ratelimit.Strict, 300, 10},
		{ratelimit.Open, 10, 1}, {ratelimit.Open, 100, 7}, {ratelimit.Open, 300, 20}, {ratelimit.Open, 1000, 67},
	} {
		for _, algorithm := range []ratelimit.Algorithm{
			ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.SlidingLog, ratelimit.TokenBucket, ratelimit.LeakyBucket,
		} {
			store, limiter := newFaulty(t, ratelimit.Config{})
			policy := perMinute("p", c.limit, c.failure)
			policy.Algorithm = algorithm
			if algorithm == ratelimit.LeakyBucket {
				policy.Queue = c.limit - 1
			}
			store.set(false, errRefused)
			passed := 0
			for range 100 {
				decision, err := limiter.Decide(t.Context(), policy.Charge("someone"))
				switch {
				case err == nil && decision.Allowed && errors.Is(decision.Outage, errRefused) && errors.Is(decision.Outage, ratelimit.ErrStore):
					passed++
					if limit := decision.Limits[0]; limit.Remaining != 0 || limit.Reservation != (ratelimit.Reservation{}) {
						t.Fatalf("an outage tells figures: %+v", limit)
					}
				case !errors.Is(err, ratelimit.ErrStore) || !errors.Is(err, errRefused):
					t.Fatalf("got %+v, %v", decision, err)
				}
			}
			if passed != c.want || store.count() != 100 {
				t.Errorf("%v of %d by %v: %d passed, want %d; %d calls", c.failure, c.limit, algorithm, passed, c.want, store.count())
			}
			store.set(false, nil)
			if decision, err := limiter.Decide(t.Context(), policy.Charge("someone")); err != nil || decision.Outage != nil || decision.Limits[0].Remaining != policy.Capacity()-1 {
				t.Errorf("when the store is back: %+v, %v", decision, err)
			}
			store.set(false, errRefused) // another outage begins anew, when what the first one admitted is over
			store.clock.Add(2 * time.Minute)
			if _, err := limiter.Decide(t.Context(), policy.Charge("someone")); (err == nil) != (c.failure != ratelimit.Refuse) {
				t.Errorf("%v in the next outage: %v", c.failure, err)
			}
		}
	}
}

// Row D7: of several limits the hardest word counts, and each admits its share only.
func TestWithoutTheStoreTheHardestWordOfADecisionCounts(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{Instances: 10})
	store.set(false, errRefused)
	open, strict, refuse := perMinute("open", 50, ratelimit.Open), perMinute("strict", 30, ratelimit.Strict), perMinute("refuse", 50, ratelimit.Refuse)
	count := func(charges ...ratelimit.Charge) (passed int) {
		for range 50 {
			if decision, err := limiter.Decide(t.Context(), charges...); err == nil && decision.Allowed {
				passed++
			}
		}
		return passed
	}
	if n := count(open.Charge("a"), refuse.Charge("a")); n != 0 {
		t.Errorf("%d passed beside a limit that refuses", n)
	}
	if n := count(open.Charge("a"), strict.Charge("a")); n != 3 {
		t.Errorf("%d passed, want 3: a tenth of 30", n)
	}
	if n := count(open.Charge("a")); n != 7 {
		t.Errorf("%d passed, want the 7 that are left of 10: twice a tenth of 50", n)
	}
	if n := count(open.ChargeN("b", 20)); n != 0 {
		t.Errorf("%d passed that cost more than the share", n)
	}
}

// Row D7: two calls that wait in vain open the breaker; then one probe a second is made, and the first that succeeds ends it.
func TestTwoSilencesOpenTheBreakerAndAProbeClosesIt(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{})
	signIn := perMinute("sign-in", 1000, ratelimit.Refuse)
	store.set(true, nil)
	start := store.clock.Now()
	for i := range 1000 {
		if _, err := limiter.Decide(t.Context(), signIn.Charge(fmt.Sprint(i))); !errors.Is(err, ratelimit.ErrStore) {
			t.Fatal(err)
		}
	}
	if waited := store.clock.Now().Sub(start); store.count() != 2 || waited != 4*time.Second {
		t.Fatalf("1,000 requests made %d calls and waited for %v, want 2 and two deadlines", store.count(), waited)
	}
	if err := limiter.GiveBack(t.Context(), reservation(t)); !errors.Is(err, ratelimit.ErrBreaker) || !errors.Is(err, ratelimit.ErrStore) {
		t.Errorf("giving back goes on: %v", err)
	}
	store.clock.Add(time.Second - time.Millisecond)
	if _, err := limiter.Decide(t.Context(), signIn.Charge("early")); !errors.Is(err, ratelimit.ErrBreaker) {
		t.Errorf("a probe too early: %v", err)
	}
	for range 3 { // a probe a second that waits in vain
		store.clock.Add(time.Second)
		for range 10 {
			limiter.Decide(t.Context(), signIn.Charge("probe"))
		}
	}
	if store.count() != 5 {
		t.Errorf("%d calls, want 3 probes more", store.count()-2)
	}
	store.set(false, nil)
	if _, err := limiter.Decide(t.Context(), signIn.Charge("a")); !errors.Is(err, ratelimit.ErrBreaker) {
		t.Errorf("before the next probe: %v", err)
	}
	store.clock.Add(time.Second)
	for i := range 10 {
		decision, err := limiter.Decide(t.Context(), signIn.Charge("a"))
		if err != nil || decision.Limits[0].Remaining != 999-int64(i) {
			t.Fatalf("request %d after the probe: %+v, %v", i, decision, err)
		}
	}
}

// Row D7.
func TestOtherCallsToTheDatabaseShareTheBreaker(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{})
	policy := perMinute("a", 10, ratelimit.Refuse)
	own := errors.New("nobody is signed in")
	answer := own
	call := func() error {
		return limiter.Guard(t.Context(), func(context.Context) error {
			if err := store.fail(); err != nil {
				return err
			}
			return answer
		})
	}
	if err := call(); err != own {
		t.Errorf("error %v, want the call's own", err)
	}
	store.set(true, nil)
	if err := call(); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := limiter.Decide(t.Context(), policy.Charge("a")); !errors.Is(err, ratelimit.ErrStore) || errors.Is(err, ratelimit.ErrBreaker) {
		t.Error(err)
	}
	for range 10 { // one waited in vain, and a decision too
		if err := call(); !errors.Is(err, ratelimit.ErrBreaker) || !errors.Is(err, ratelimit.ErrStore) {
			t.Error(err)
		}
	}
	if store.count() != 2 {
		t.Errorf("%d calls, want 2", store.count())
	}
	store.set(false, nil)
	store.clock.Add(time.Second)
	if err := call(); err != own { // the probe: whatever the database says, it is there
		t.Error(err)
	}
	if _, err := limiter.Decide(t.Context(), policy.Charge("a")); err != nil {
		t.Error(err)
	}
}

// Row D7: an error at once makes nobody wait, so the breaker stays closed; neither does a caller who goes away.
func TestErrorsAtOnceLeaveTheBreakerClosed(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{})
	policy := perMinute("p", 10, ratelimit.Refuse)
	store.set(false, errRefused)
	for range 100 {
		limiter.Decide(t.Context(), policy.Charge("a"))
	}
	if store.count() != 100 {
		t.Errorf("%d calls of 100", store.count())
	}
	store.set(true, nil)
	leave := func() { // while the store is silent
		ctx, cancel := context.WithCancel(t.Context())
		store.during = cancel
		limiter.Decide(ctx, policy.Charge("a"))
		store.during = nil
	}
	for range 5 {
		leave()
	}
	if store.count() != 5 {
		t.Errorf("%d calls of 5: callers who went away opened the breaker", store.count())
	}
	limiter.Decide(t.Context(), policy.Charge("a"))
	leave() // nor did they make it forget
	limiter.Decide(t.Context(), policy.Charge("a"))
	if _, err := limiter.Decide(t.Context(), policy.Charge("a")); !errors.Is(err, ratelimit.ErrBreaker) {
		t.Errorf("two silences with a caller who went away between them: %v", err)
	}
	store.set(false, nil)
	store.clock.Add(time.Second)
	limiter.Decide(t.Context(), policy.Charge("a"))
	store.set(true, nil)
	limiter.Decide(t.Context(), policy.Charge("a"))
	store.set(false, errRefused) // between two silences: they are not in a row
	limiter.Decide(t.Context(), policy.Charge("a"))
	store.set(true, nil)
	limiter.Decide(t.Context(), policy.Charge("a"))
	limiter.Decide(t.Context(), policy.Charge("a"))
	limiter.Decide(t.Context(), policy.Charge("a"))
	if store.count() != 2 {
		t.Errorf("%d calls, want 2", store.count())
	}
}

// Cases B03, B08: a lost reply is not asked for again, so it is charged once, and opens no door.
func TestALostReplyIsChargedOnceAndAdmitsNothing(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{})
	policy := perMinute("p", 10, ratelimit.Refuse)
	store.after = true
	store.set(false, errRefused)
	for range 3 {
		if decision, err := limiter.Decide(t.Context(), policy.Charge("a")); err == nil || decision.Allowed {
			t.Fatalf("got %+v, %v", decision, err)
		}
	}
	store.after = false
	store.set(false, nil)
	if decision, err := limiter.Peek(t.Context(), policy.Charge("a")); err != nil || decision.Limits[0].Remaining != 7 {
		t.Errorf("got %+v, %v; want the 7 that 3 lost charges left", decision, err)
	}
}

// A bound on what an instance remembers of an outage: a caller with many addresses can't fill it.
func TestAnOutageIsRememberedForSoManySubjectsOnly(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{})
	policy := perMinute("p", 30, ratelimit.Strict)
	store.set(false, errRefused)
	passed := 0
	for i := range 10_500 {
		if _, err := limiter.Decide(t.Context(), policy.Charge(fmt.Sprint(i))); err == nil {
			passed++
		}
	}
	if passed != 10_000 {
		t.Errorf("%d subjects passed", passed)
	}
	store.clock.Add(time.Minute)
	if _, err := limiter.Decide(t.Context(), policy.Charge("later")); err != nil {
		t.Errorf("what has expired is still counted: %v", err)
	}
}

func TestAPolicysDeadlineIsThatOfItsDecisions(t *testing.T) {
	var got []time.Duration
	store := &deadlines{MemoryStore: ratelimit.NewMemoryStore(nil), got: &got}
	limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	short, long, none := perMinute("short", 10, 0), perMinute("long", 10, 0), perMinute("none", 10, 0)
	short.Deadline, long.Deadline = time.Minute, 2*time.Hour
	limiter.Decide(t.Context(), short.Charge("a"), long.Charge("a"), none.Charge("a"))
	limiter.Decide(t.Context(), long.Charge("a"))
	limiter.Decide(t.Context(), none.Charge("a"))
	for i, want := range []time.Duration{time.Minute, time.Hour, time.Hour} {
		if got[i] > want || got[i] < want-time.Second*30 {
			t.Errorf("call %d has %v, want %v", i, got[i], want)
		}
	}
}

type deadlines struct {
	*ratelimit.MemoryStore
	got *[]time.Duration
}

func (d *deadlines) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	deadline, _ := ctx.Deadline()
	*d.got = append(*d.got, time.Until(deadline))
	return d.MemoryStore.Decide(ctx, entries)
}

func reservation(t *testing.T) ratelimit.Reservation {
	t.Helper()
	_, limiter := newFaulty(t, ratelimit.Config{})
	decision, err := limiter.Decide(t.Context(), perMinute("other", 5, 0).Charge("a"))
	if err != nil {
		t.Fatal(err)
	}
	return decision.Limits[0].Reservation
}

// Row E2; case A23.
func TestAKnownRefusalCostsNoRequest(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{Remember: 100})
	attempts := perMinute("attempts", 2, 0)
	attempts.Count = ratelimit.EveryAttempt
	edge, other := perMinute("edge", 1000, 0), perMinute("other", 1000, 0)
	other.Count = ratelimit.EveryAttempt
	store.clock.At(59 * time.Second)
	ask := func(want int, charges ...ratelimit.Charge) ratelimit.Decision {
		t.Helper()
		before := store.count()
		decision, err := limiter.Decide(t.Context(), charges...)
		if err != nil {
			t.Fatal(err)
		}
		if n := store.count() - before; n != want {
			t.Fatalf("%d calls, want %d (%+v)", n, want, decision)
		}
		return decision
	}
	for range 3 {
		ask(1, attempts.Charge("a"), edge.Charge("a"))
	}
	store.clock.At(59*time.Second + 300*time.Millisecond)
	if got := ask(0, attempts.Charge("a"), edge.Charge("a")); got.Allowed || got.RetryAfter != 700*time.Millisecond ||
		got.Limits[0].RetryAfter != 700*time.Millisecond || got.Limits[1].Remaining != 998 || got.RetryAfterOf(func(ratelimit.Policy) bool { return true }) != 700*time.Millisecond {
		t.Errorf("got %+v", got)
	}
	ask(1, edge.Charge("a"))                                          // another question
	ask(1, attempts.Charge("b"), edge.Charge("b"))                    // another subject
	ask(1, attempts.Charge("a"), edge.Charge("a"), other.Charge("a")) // something would be charged
	ask(1, attempts.Charge("a"), edge.Charge("a"), other.Charge("a")) // so it is asked again
	raised := attempts
	raised.Limit = 3
	if got := ask(1, raised.Charge("a"), edge.Charge("a")); !got.Allowed { // another revision of the policy
		t.Errorf("got %+v", got)
	}
	store.clock.At(60 * time.Second)
	if got := ask(1, attempts.Charge("a"), edge.Charge("a")); !got.Allowed {
		t.Errorf("refused when its time is up: %+v", got)
	}

	// Where a unit can be given back, or an operator be asked, nothing is remembered for long.
	given := perMinute("given", 1, 0)
	ask(1, given.Charge("a"))
	ask(1, given.Charge("a"))
	ask(1, given.Charge("a"))
	for range 2 {
		ask(1, attempts.Charge("c"))
	}
	ask(1, attempts.Charge("c"))
	ask(0, attempts.Charge("c"))
	if err := limiter.Operate(t.Context(), ratelimit.Reset, attempts, "c", time.Time{}); err != nil {
		t.Fatal(err)
	}
	store.clock.Add(time.Second)
	if got := ask(1, attempts.Charge("c")); !got.Allowed {
		t.Errorf("refused a second after a reset: %+v", got)
	}
}

// Case A23: the memory stays within its bound.
func TestTheMemoryOfRefusalsIsBounded(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{Remember: 100})
	attempts := perMinute("attempts", 1, 0)
	attempts.Count = ratelimit.EveryAttempt
	for i := range 5000 {
		for range 2 {
			if _, err := limiter.Decide(t.Context(), attempts.Charge(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		if n := ratelimit.Remembered(limiter); n > 100 {
			t.Fatalf("%d are remembered", n)
		}
	}
	if before := store.count(); true {
		limiter.Decide(t.Context(), attempts.Charge("4999"))
		if store.count() != before {
			t.Error("the newest is not remembered")
		}
	}
}

func TestAConfigurationOutOfBoundsIsAnError(t *testing.T) {
	for _, config := range []ratelimit.Config{{Deadline: -1}, {Instances: -1}, {Instances: 1_000_001}, {Remember: -1}} {
		if _, err := ratelimit.New(ratelimit.NewMemoryStore(nil), storetest.Secret, config); !errors.Is(err, ratelimit.ErrConfig) {
			t.Errorf("%+v gives %v", config, err)
		}
	}
}

// A policy whose deadline is too short for the store has a breaker of its own: calls that may wait longer go on, and theirs say
// nothing about it.
func TestAShortDeadlineTakesNothingElseDown(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{})
	hasty, patient := perMinute("hasty", 1000, ratelimit.Open), perMinute("patient", 1000, ratelimit.Refuse)
	hasty.Deadline = 5 * time.Millisecond
	for i := range 50 {
		store.set(true, nil)
		if decision, err := limiter.Decide(t.Context(), hasty.Charge("a")); err != nil || decision.Outage == nil {
			t.Fatalf("%+v, %v", decision, err)
		}
		if i >= 2 && store.count() > 1 {
			t.Fatalf("%d calls", store.count())
		}
		store.set(false, nil)
		if _, err := limiter.Decide(t.Context(), patient.Charge("a")); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
}

// A limiter without memory shares the rest.
func TestALimiterWithoutMemoryAsksForEveryDecision(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{Remember: 100})
	attempts := perMinute("attempts", 1, 0)
	attempts.Count = ratelimit.EveryAttempt
	forgetful := limiter.WithoutMemory()
	for range 4 {
		if _, err := forgetful.Decide(t.Context(), attempts.Charge("a")); err != nil {
			t.Fatal(err)
		}
	}
	limiter.Decide(t.Context(), attempts.Charge("a"))
	limiter.Decide(t.Context(), attempts.Charge("a"))
	if store.count() != 5 {
		t.Errorf("%d calls, want 5", store.count())
	}
}
