package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// stalling is a store that, while it is silent, fails when its context has ended or the deadline
// has passed, whichever it notices first, as drivers do.
type stalling struct {
	*ratelimit.MemoryStore
	mu     sync.Mutex
	silent bool
	calls  int
}

func (s *stalling) stall(ctx context.Context) error {
	s.mu.Lock()
	s.calls++
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		return nil
	}
	deadline, _ := ctx.Deadline()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-timer.C:
		return fmt.Errorf("driver: %w", context.DeadlineExceeded)
	case <-ctx.Done():
		return fmt.Errorf("driver: %w", ctx.Err())
	}
}

func (s *stalling) set(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.calls = silent, 0
}

func (s *stalling) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	if err := s.stall(ctx); err != nil {
		return nil, err
	}
	return s.MemoryStore.Decide(ctx, entries)
}

func (s *stalling) Peek(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	if err := s.stall(ctx); err != nil {
		return nil, err
	}
	return s.MemoryStore.Peek(ctx, entries)
}

func (s *stalling) Operate(ctx context.Context, operation ratelimit.Operation) error {
	if err := s.stall(ctx); err != nil {
		return err
	}
	return s.MemoryStore.Operate(ctx, operation)
}

// isCallers checks that an error is the context's and no outage.
func isCallers(t *testing.T, what string, decision ratelimit.Decision, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || errors.Is(err, ratelimit.ErrStore) || errors.Is(err, ratelimit.ErrBreaker) ||
		decision.Allowed || decision.Outage != nil || len(decision.Limits) > 0 {
		t.Errorf("%s: %+v, %v; want %v and no decision", what, decision, err, want)
	}
}

// calls are all calls of a Limiter that an ended context fails.
func calls(limiter *ratelimit.Limiter, charges ...ratelimit.Charge) map[string]func(context.Context) (ratelimit.Decision, error) {
	return map[string]func(context.Context) (ratelimit.Decision, error){
		"Decide": func(ctx context.Context) (ratelimit.Decision, error) { return limiter.Decide(ctx, charges...) },
		"Peek":   func(ctx context.Context) (ratelimit.Decision, error) { return limiter.Peek(ctx, charges...) },
		"Operate": func(ctx context.Context) (ratelimit.Decision, error) {
			return ratelimit.Decision{}, limiter.Operate(ctx, ratelimit.Reset, charges[0].Policy, charges[0].Subject, time.Time{})
		},
		"Guard": func(ctx context.Context) (ratelimit.Decision, error) {
			return ratelimit.Decision{}, limiter.Guard(ctx, func(ctx context.Context) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				<-ctx.Done()
				return fmt.Errorf("sql: %w", ctx.Err())
			})
		},
	}
}

// Issue 10, point 2: a caller's context that has ended is the caller's error, whatever the failure,
// before the call and during it, cancelled or by a deadline of the caller's own; over shards too.
func TestAnEndedContextIsTheCallersErrorAndNeverAnAdmission(t *testing.T) {
	for _, failure := range []ratelimit.Failure{ratelimit.Refuse, ratelimit.Strict, ratelimit.Open} {
		for _, shards := range []int{1, 5} {
			t.Run(fmt.Sprintf("%v, %d stores", failure, shards), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var stores []*stalling
					for range shards {
						stores = append(stores, &stalling{MemoryStore: ratelimit.NewMemoryStore(nil)})
					}
					var store ratelimit.Store = stores[0]
					if shards > 1 {
						store = newShards(t, shardsOf(stores...), nil)
					}
					limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					set := func(silent bool) {
						for _, one := range stores {
							one.set(silent)
						}
					}
					charges := []ratelimit.Charge{
						perMinute("one", 1, failure).Charge("a"), perMinute("two", 1, failure).Charge("b"), perMinute("three", 1, failure).Charge("c"),
					}
					over, cancel := context.WithCancel(t.Context())
					cancel()
					past, cancel := context.WithDeadline(t.Context(), time.Now())
					defer cancel()
					for range 100 {
						for what, call := range calls(limiter, charges...) {
							decision, err := call(over)
							isCallers(t, what+", cancelled before", decision, err, context.Canceled)
							decision, err = call(past)
							isCallers(t, what+", over before", decision, err, context.DeadlineExceeded)
						}
					}
					set(true)
					for range 10 {
						for what, call := range calls(limiter, charges...) {
							ctx, cancel := context.WithCancel(t.Context())
							time.AfterFunc(time.Second, cancel)
							decision, err := call(ctx)
							isCallers(t, what+", cancelled meanwhile", decision, err, context.Canceled)
							ctx, cancel = context.WithTimeout(t.Context(), time.Second)
							decision, err = call(ctx)
							cancel()
							isCallers(t, what+", over meanwhile", decision, err, context.DeadlineExceeded)
						}
					}
					// Nothing of it opened the breaker or was counted: the store answers, and then
					// an outage has its whole share.
					set(false)
					if decision, err := limiter.Peek(t.Context(), charges...); err != nil || decision.Limits[0].Remaining != 1 {
						t.Errorf("afterwards: %+v, %v", decision, err)
					}
					set(true)
					decision, err := limiter.Decide(t.Context(), charges...)
					if (err == nil) != (failure != ratelimit.Refuse) || err == nil && decision.Outage == nil {
						t.Errorf("in an outage: %+v, %v", decision, err)
					}
				})
			})
		}
	}
}

// Issue 10, point 2: a caller with no more time than the store has, and one that leaves while the
// breaker is open.
func TestTheCallersTimeAndTheStoresAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &stalling{MemoryStore: ratelimit.NewMemoryStore(nil), silent: true}
		limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		policy := perMinute("p", 1000, ratelimit.Open)
		hasty := perMinute("hasty", 1000, ratelimit.Open)
		hasty.Deadline = time.Second

		// A deadline of ours that is shorter than the caller's is an outage.
		for _, charge := range []ratelimit.Charge{policy.Charge("a"), hasty.Charge("a")} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if decision, err := limiter.Decide(ctx, charge); err != nil || !errors.Is(decision.Outage, context.DeadlineExceeded) {
				t.Errorf("%s: %+v, %v", charge.Policy.Name, decision, err)
			}
			cancel()
		}
		// Both at one moment: the caller's error, and no admission, whatever it says of the store.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		decision, err := limiter.Decide(ctx, policy.Charge("a"))
		cancel()
		isCallers(t, "both deadlines at once", decision, err, context.DeadlineExceeded)

		// Two silences open the breaker. An ended context comes first all the same.
		limiter.Decide(t.Context(), policy.Charge("a"))
		limiter.Decide(t.Context(), policy.Charge("a"))
		if decision, err := limiter.Decide(t.Context(), policy.Charge("a")); err != nil || !errors.Is(decision.Outage, ratelimit.ErrBreaker) {
			t.Fatalf("the breaker is not open: %+v, %v", decision, err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for what, call := range calls(limiter, policy.Charge("a")) {
			decision, err := call(gone)
			isCallers(t, what+" with an open breaker", decision, err, context.Canceled)
		}

		// A probe that its caller breaks off is none: the next caller makes one at once.
		time.Sleep(time.Second)
		leaving, cancel := context.WithTimeout(t.Context(), time.Second)
		decision, err = limiter.Decide(leaving, policy.Charge("a"))
		cancel()
		isCallers(t, "a probe that is broken off", decision, err, context.DeadlineExceeded)
		store.set(false)
		if decision, err := limiter.Decide(t.Context(), policy.Charge("a")); err != nil || decision.Outage != nil {
			t.Errorf("the next probe: %+v, %v", decision, err)
		}
	})
}

// Issue 10, point 2: a remembered refusal is no answer for a caller who has gone, and a decision
// that the store made stands.
func TestARememberedRefusalAndAnAnswerThatIsThere(t *testing.T) {
	store, limiter := newFaulty(t, ratelimit.Config{Remember: 10})
	policy := perMinute("p", 1, ratelimit.Strict)
	policy.Count = ratelimit.EveryAttempt
	ctx, cancel := context.WithCancel(t.Context())
	answered := &answering{store, cancel}
	late, err := ratelimit.New(answered, storetest.Secret, ratelimit.Config{Clock: store.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	if decision, err := late.Decide(ctx, policy.Charge("a")); err != nil || !decision.Allowed ||
		decision.Limits[0].Reservation == (ratelimit.Reservation{}) {
		t.Errorf("the store answered while the caller left: %+v, %v", decision, err)
	}
	for range 2 {
		if decision, err := limiter.Decide(t.Context(), policy.Charge("a")); err != nil || decision.Allowed {
			t.Fatalf("%+v, %v", decision, err)
		}
	}
	decision, err := limiter.Decide(ctx, policy.Charge("a"))
	isCallers(t, "a remembered refusal", decision, err, context.Canceled)
}

// answering cancels its caller's context once it has decided.
type answering struct {
	*faulty
	cancel func()
}

func (a *answering) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	defer a.cancel()
	return a.faulty.Decide(ctx, entries)
}

// Issue 10, point 2: what a call of Guard found out is kept beside the caller's error.
func TestGuardKeepsTheErrorOfACallWhoseCallerHasGone(t *testing.T) {
	_, limiter := newFaulty(t, ratelimit.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	own := errors.New("nobody is signed in")
	err := limiter.Guard(ctx, func(context.Context) error {
		cancel()
		return own
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, own) {
		t.Errorf("got %v", err)
	}
	made := false
	err = limiter.Guard(ctx, func(context.Context) error {
		made = true
		return nil
	})
	if made || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; made: %v", err, made)
	}
}
