package ratelimit

import (
	"encoding/binary"
	"sync"
	"time"
)

// longestMemory is how old a remembered refusal may be: an operator's reset, or the end of a ban, is seen within it.
const longestMemory = time.Second

// memory keeps refusals for as long as they hold, and a second at the most. A nil memory keeps nothing.
type memory struct {
	now  func() time.Time
	most int

	mu   sync.Mutex
	kept map[string]kept
}

type kept struct {
	decision Decision
	at       time.Time // before the store was asked, so that no wait is told as longer than it is
	until    time.Time
}

// recall gives the refusal of these entries that is known, with the waits that are left.
func (m *memory) recall(entries []Entry) (Decision, bool) {
	if m == nil {
		return Decision{}, false
	}
	m.mu.Lock()
	known, found := m.kept[memoryKey(entries)]
	m.mu.Unlock()
	now := m.now()
	if !found || !now.Before(known.until) {
		return Decision{}, false
	}
	decision, passed := known.decision, now.Sub(known.at)
	left := func(d *time.Duration) {
		if *d > 0 {
			*d = max(*d-passed, 1) // it holds still, so none of its waits is over
		}
	}
	decision.Limits = append([]LimitResult(nil), decision.Limits...)
	left(&decision.RetryAfter)
	for i := range decision.Limits {
		limit := &decision.Limits[i]
		left(&limit.Reset)
		left(&limit.RetryAfter)
		left(&limit.wait)
		left(&limit.exempt)
	}
	return decision, true
}

// keep remembers a decision that will be the same again: every limit that refuses counts every attempt, so that nothing is
// given back to it, and nothing was charged.
func (m *memory) keep(entries []Entry, decision Decision, start time.Time) {
	if m == nil || decision.Allowed {
		return
	}
	holds := min(longestMemory, decision.RetryAfter)
	for i, limit := range decision.Limits {
		switch {
		case !limit.Allowed && limit.Policy.Count == EveryAttempt && !limit.Policy.Private:
			holds = min(holds, limit.RetryAfter)
		case !limit.Allowed, limit.Policy.Count == EveryAttempt && entries[i].Cost > 0:
			return
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if len(m.kept) >= m.most {
		for key, known := range m.kept {
			if !now.Before(known.until) {
				delete(m.kept, key)
			}
		}
		if len(m.kept) >= m.most {
			clear(m.kept) // all are younger than a second, and soon there again
		}
	}
	if m.kept == nil {
		m.kept = map[string]kept{}
	}
	m.kept[memoryKey(entries)] = kept{decision: decision, at: start, until: start.Add(holds)}
}

// memoryKey is all that a decision depends on: keys, costs, and the policies as they are now.
func memoryKey(entries []Entry) string {
	key := make([]byte, 0, 96*len(entries))
	for _, entry := range entries {
		p := entry.Policy
		for _, n := range [...]int64{
			entry.Key, entry.Cost, int64(p.Algorithm), p.Limit, int64(p.Window), p.Burst, p.Queue, int64(p.Count),
		} {
			key = binary.AppendVarint(key, n)
		}
	}
	return string(key)
}
