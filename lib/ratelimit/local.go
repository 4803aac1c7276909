package ratelimit

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// maxLocalKeys bounds what an instance remembers of outages. When that many keys are there, others
// are refused.
const maxLocalKeys = 10_000

// evictedAtOnce is how many expired keys one decision or one answer of the store removes at most:
// more than a decision adds, so that memory shrinks, and few enough that nobody waits for it.
const evictedAtOnce = 2 * MaxCharges

// local is what an instance decides and counts by itself while the store doesn't answer. All guards
// of a Limiter share it: a key has one share, whichever deadline or shard its calls fail at. What
// an outage admitted stands until its own window is over, however often the store comes and goes.
// It may be used by many goroutines.
type local struct {
	now       func() time.Time
	instances int64
	kept      atomic.Int64 // len(states), to be read without the lock

	mu     sync.Mutex
	states map[int64]localState
	queue  expiries // each key of states once
}

type localState struct {
	state         State
	expiresMicros int64
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

// decide charges all entries, or, when one of them doesn't fit, those that count every attempt. It
// returns how long each has to wait for its turn, in microseconds.
func (l *local) decide(entries []Entry) (delays []int64, allowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now().UnixMilli() * 1000
	l.evict(now, evictedAtOnce)
	steps := make([]step, len(entries))
	allowed = true
	added := 0
	for i, entry := range entries {
		kept, found := l.states[entry.Key]
		steps[i] = entry.Policy.step(kept.state, now, entry.Cost)
		allowed = allowed && steps[i].fits
		if !found && entry.Cost > 0 {
			added++
		}
	}
	if len(l.states)+added > maxLocalKeys {
		if l.evict(now, len(l.queue)); len(l.states)+added > maxLocalKeys {
			return nil, false
		}
	}
	delays = make([]int64, len(entries))
	for i, entry := range entries {
		if entry.Cost == 0 || !steps[i].fits || !allowed && entry.Policy.Count != EveryAttempt {
			continue
		}
		kept, found := l.states[entry.Key]
		kept.state = entry.Policy.after(kept.state, steps[i], entry.Cost)
		kept.expiresMicros = entry.Policy.expiresMicros(kept.state)
		l.put(entry.Key, kept, !found)
		delays[i] = entry.Policy.delayMicros(kept.state, entry.Cost)
	}
	return delays, allowed
}

func (l *local) put(key int64, kept localState, isNew bool) {
	if l.states == nil {
		l.states = map[int64]localState{}
	}
	l.states[key] = kept
	if isNew {
		heap.Push(&l.queue, expiry{key, kept.expiresMicros})
	}
	l.kept.Store(int64(len(l.states)))
}

// forget removes some of what has expired. It is called when the store answers, so that nothing of
// an outage stays for good.
func (l *local) forget() {
	if l.kept.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evict(l.now().UnixMilli()*1000, evictedAtOnce)
}

// evict looks at so many keys at most, those first whose time is over. A key that was charged since
// it was queued is queued again, by its newer time: so each look removes a key, or is paid for by a
// charge.
func (l *local) evict(now int64, most int) {
	for range most {
		if len(l.queue) == 0 || l.queue[0].micros > now {
			break
		}
		key := l.queue[0].key
		if expires := l.states[key].expiresMicros; expires > now {
			l.queue[0].micros = expires
			heap.Fix(&l.queue, 0)
			continue
		}
		heap.Pop(&l.queue)
		delete(l.states, key)
	}
	if len(l.queue) == 0 {
		l.states, l.queue = nil, nil // a map never shrinks
	}
	l.kept.Store(int64(len(l.states)))
}

// expiries is a heap of keys, the one that expires first at its top.
type expiries []expiry

type expiry struct{ key, micros int64 }

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].micros < e[j].micros }
func (e expiries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *expiries) Push(x any)        { *e = append(*e, x.(expiry)) }
func (e *expiries) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}
