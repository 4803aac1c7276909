package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Failure says what a limit does while the store doesn't answer.
type Failure uint8

const (
	// Refuse lets nothing through: Decide returns the store's error. For what guards a secret.
	Refuse Failure = iota
	// Strict lets a small part through: of each subject an instance admits its share of the limit, the limit divided by the
	// expected instances, and at least one unit.
	Strict
	// Open lets some more through: twice the share, since requests are never spread evenly. For what only guards
	// capacity.
	Open
)

// openSlack is how many times its share an instance admits under Open. Ten servers that are loaded as unevenly as in the
// exercise of the guide pass 55 of 100 with even shares.
const openSlack = 2

// The breaker: after so many calls in a row that took all of their time, calls fail at once, but for a probe now and then.
const (
	breakAfter    = 2
	probeInterval = time.Second
)

// maxLocalKeys bounds what an instance remembers of an outage. When that many subjects are there, others are refused.
const maxLocalKeys = 10_000

// ErrBreaker is the error, besides ErrStore, of calls that were not made, because those before them waited in vain.
var ErrBreaker = errors.New("ratelimit: the store is given time to come back")

// guards has a guard for each deadline. A store that is too slow for one of them says nothing about calls that may wait longer.
type guards struct {
	now       func() time.Time
	deadline  time.Duration // the longest
	instances int64

	mu  sync.Mutex
	all map[time.Duration]*guard
}

// of gives the guard of decisions over these entries; none means calls that are no decisions.
func (g *guards) of(entries []Entry) *guard {
	deadline := g.deadline
	for _, entry := range entries {
		if d := entry.Policy.Deadline; d > 0 {
			deadline = min(deadline, d)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	found := g.all[deadline]
	if found == nil {
		found = &guard{now: g.now, deadline: deadline, instances: g.instances}
		if g.all == nil {
			g.all = map[time.Duration]*guard{}
		}
		g.all[deadline] = found
	}
	return found
}

// silent gives the guard that an error came through: that of decisions over these entries, or, of several stores, of the one that
// failed.
func (g *guards) silent(entries []Entry, err error) *guard {
	if failed, found := errors.AsType[*failure](err); found {
		return failed.guard
	}
	return g.of(entries)
}

// guarded is a store behind its guards.
type guarded struct {
	store  Store
	guards *guards
}

// failure is an error of a store, with the guard that stood before it.
type failure struct {
	guard *guard
	err   error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func (g *guarded) ask(ctx context.Context, entries []Entry, call func(context.Context, []Entry) ([]Row, error)) (rows []Row, err error) {
	guard := g.guards.of(entries)
	err = guard.call(ctx, func(ctx context.Context) (err error) {
		if rows, err = call(ctx, entries); err == nil {
			err = checkRows(entries, rows)
		}
		return err
	})
	if err != nil {
		return nil, &failure{guard, err}
	}
	return rows, nil
}

func (g *guarded) call(ctx context.Context, call func(context.Context) error) error {
	return g.guards.of(nil).call(ctx, call)
}

func (g *guarded) Decide(ctx context.Context, entries []Entry) ([]Row, error) {
	return g.ask(ctx, entries, g.store.Decide)
}

func (g *guarded) Peek(ctx context.Context, entries []Entry) ([]Row, error) {
	return g.ask(ctx, entries, g.store.Peek)
}

func (g *guarded) GiveBack(ctx context.Context, refunds []Refund) error {
	return g.call(ctx, func(ctx context.Context) error { return g.store.GiveBack(ctx, refunds) })
}

func (g *guarded) Operate(ctx context.Context, operation Operation) error {
	return g.call(ctx, func(ctx context.Context) error { return g.store.Operate(ctx, operation) })
}

func (g *guarded) Sweep(ctx context.Context, from int64, rows int) (swept Swept, err error) {
	err = g.call(ctx, func(ctx context.Context) (err error) {
		swept, err = g.store.Sweep(ctx, from, rows)
		return err
	})
	return swept, err
}

// guard stands between a Limiter and its store: it gives each call its time, and stops making calls that would only wait.
// What an instance admits by itself meanwhile it counts in a store in memory. It has no goroutine: the calls themselves
// notice that time has passed.
type guard struct {
	now       func() time.Time
	deadline  time.Duration
	instances int64

	mu      sync.Mutex
	waited  int       // calls in a row that took all of their time
	probed  time.Time // when the last probe ended, or the breaker opened
	probing bool
	local   *MemoryStore // nil while the store answers
}

// call makes a call, which ends by the deadline, unless the breaker is open.
func (g *guard) call(ctx context.Context, call func(context.Context) error) error {
	probe, err := g.admit()
	if err != nil {
		return err
	}
	start := g.now()
	bounded, cancel := context.WithTimeout(ctx, g.deadline)
	defer cancel()
	err = errPanic // until it has returned
	inVain, gone := false, false
	defer func() { g.done(probe, err, inVain, gone) }()
	err = call(bounded)
	gone = ctx.Err() != nil
	// An error that took most of the time is a wait in vain, whatever it is called: a file that is locked, say.
	inVain = g.now().Sub(start) >= g.deadline*3/4 || errors.Is(err, context.DeadlineExceeded)
	return err
}

var errPanic = errors.New("ratelimit: the store panicked")

// admit says whether a call may be made, and whether it is the probe.
func (g *guard) admit() (probe bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waited < breakAfter {
		return false, nil
	}
	if !g.probing && g.now().Sub(g.probed) >= probeInterval {
		g.probing = true
		return true, nil
	}
	return false, ErrBreaker
}

// done takes note of how a call ended. One that succeeds closes the breaker, whenever it was made, and ends the outage.
func (g *guard) done(probe bool, err error, inVain, gone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if probe {
		g.probing, g.probed = false, g.now()
	}
	switch {
	case err == nil:
		g.waited, g.local = 0, nil
	case gone: // the caller's time was over first, or its client went away: that says nothing about the store
	case inVain:
		if g.waited++; g.waited == breakAfter {
			g.probed = g.now()
		}
	default:
		g.waited = 0 // an error at once: nobody waits for it
	}
}

// stand decides in place of the store, as the limits ask for; it says whether they admit.
func (g *guard) stand(entries []Entry) bool {
	local := make([]Entry, len(entries))
	for i, entry := range entries {
		policy := entry.Policy
		share := int64(1)
		switch policy.Failure {
		case Refuse:
			return false
		case Open:
			share = openSlack
		}
		// The share of each number, rounded up for Open and down for Strict, and one unit at the least.
		part := func(n int64) int64 {
			if policy.Failure == Open {
				return max((n*share+g.instances-1)/g.instances, 1)
			}
			return max(n*share/g.instances, 1)
		}
		capacity := part(policy.Capacity())
		policy.Limit = part(policy.Limit)
		switch policy.Algorithm {
		case TokenBucket:
			policy.Burst = capacity
		case LeakyBucket:
			policy.Queue = capacity - 1
		}
		if entry.Cost > policy.Capacity() {
			return false
		}
		local[i] = Entry{Key: entry.Key, Policy: policy, Cost: entry.Cost}
	}
	g.mu.Lock()
	if g.local == nil {
		g.local = NewMemoryStore(g.now)
	}
	store := g.local
	g.mu.Unlock()
	if !store.room(len(local), maxLocalKeys) {
		return false
	}
	rows, err := store.Decide(context.Background(), local)
	return err == nil && verdict(local, rows)
}

// outage is the decision of the limits by themselves: to admit, as far as they do, or else the store's error.
func (g *guard) outage(entries []Entry, err error) (Decision, error) {
	if !g.stand(entries) {
		return Decision{}, err
	}
	decision := Decision{Allowed: true, Outage: err}
	for _, entry := range entries {
		decision.Limits = append(decision.Limits, LimitResult{Policy: entry.Policy, Allowed: true})
	}
	return decision, nil
}

// String gives the failure's name, for example "strict".
func (f Failure) String() string {
	switch f {
	case Refuse:
		return "refuse"
	case Strict:
		return "strict"
	case Open:
		return "open"
	}
	return fmt.Sprintf("failure %d", uint8(f))
}
