package ratelimit

import (
	"context"
	"sync/atomic"
	"time"
)

// maxLocalKeys bounds what an instance remembers of outages. When that many keys are there, others
// are refused.
const maxLocalKeys = 10_000

// local is what an instance decides and counts by itself while the store doesn't answer. All guards
// of a Limiter share it: a key has one share, whichever deadline or shard its calls fail at. What
// an outage admitted stands until its own window is over, however often the store comes and goes.
// It may be used by many goroutines.
type local struct {
	instances int64
	kept      atomic.Int64 // keys in the store, to be read without its lock
	store     *MemoryStore
}

func newLocal(now func() time.Time, instances int64) *local {
	return &local{instances: instances, store: &MemoryStore{now: now, unaudited: true}}
}

// outage returns the decision of the limits by themselves: to admit, as far as they do, or else the
// store's error.
func (l *local) outage(entries []Entry, err error) (Decision, error) {
	shares := make([]Entry, len(entries))
	for i, entry := range entries {
		policy, some := l.share(entry.Policy)
		if !some || entry.Cost > policy.Capacity() {
			return Decision{}, err
		}
		shares[i] = Entry{Key: entry.Key, Policy: policy, Cost: entry.Cost}
	}
	delays, allowed := l.decide(shares)
	if !allowed {
		return Decision{}, err
	}
	decision := Decision{Allowed: true, Outage: err}
	for i, entry := range entries {
		decision.Limits = append(decision.Limits, LimitResult{Policy: entry.Policy, Allowed: true, Delay: micros(delays[i])})
	}
	return decision, nil
}

// share returns the policy that this instance applies by itself, if any.
func (l *local) share(policy Policy) (_ Policy, some bool) {
	factor := int64(1)
	switch policy.Failure {
	case Refuse:
		return policy, false
	case Open:
		factor = openSlack
	}
	// The share of each number, rounded up for Open and down for Strict, and one unit at the least.
	part := func(n int64) int64 {
		if policy.Failure == Open {
			return max((n*factor+l.instances-1)/l.instances, 1)
		}
		return max(n*factor/l.instances, 1)
	}
	capacity := part(policy.Capacity())
	policy.Limit = part(policy.Limit)
	switch policy.Algorithm {
	case TokenBucket:
		policy.Burst = capacity
	case LeakyBucket:
		policy.Queue = capacity - 1
	}
	return policy, true
}

// decide charges all entries, or, when one of them doesn't fit, those that count every attempt. It returns how long each has
// to wait for its turn, in microseconds.
func (l *local) decide(entries []Entry) (delays []int64, allowed bool) {
	if !l.store.room(entries, maxLocalKeys) {
		return nil, false
	}
	rows, err := l.store.Decide(context.Background(), entries)
	l.kept.Store(l.store.size())
	if err != nil || !verdict(entries, rows) {
		return nil, false
	}
	delays = make([]int64, len(entries))
	for i, entry := range entries {
		if rows[i].Charged {
			delays[i] = entry.Policy.delayMicros(rows[i].State, entry.Cost)
		}
	}
	return delays, true
}

// forget removes some of what has expired. It is called when the store answers, so that nothing of an outage stays for good.
func (l *local) forget() {
	if l.kept.Load() > 0 {
		l.kept.Store(l.store.sweepSome())
	}
}
