package ratelimit

import (
	"context"
	"sync"
	"time"
)

// Audit tells of the first refusal of a key in a window.
type Audit struct {
	AtMicros int64
	Policy   string
	Key      int64
	Used     int64 // units that stood
}

// MemoryStore is a Store in the memory of one process: exact within it and unknown to any other. It is meant for tests
// and for programs that run as one process. It keeps every key it has seen. It may be used by many goroutines.
type MemoryStore struct {
	now func() time.Time

	mu       sync.Mutex
	states   map[int64]State
	refunded map[int64]bool
	audits   []Audit
	writes   int64
}

// NewMemoryStore makes an empty store. Its clock is now; nil means time.Now.
func NewMemoryStore(now func() time.Time) *MemoryStore {
	if now == nil {
		now = time.Now
	}
	return &MemoryStore{now: now, states: map[int64]State{}, refunded: map[int64]bool{}}
}

// Decide implements Store.
func (m *MemoryStore) Decide(ctx context.Context, entries []Entry) ([]Row, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMicro()

	steps := make([]step, len(entries))
	allowed := true
	for i, entry := range entries {
		steps[i] = entry.Policy.step(m.states[entry.Key], now, entry.Cost)
		allowed = allowed && steps[i].Fits
	}

	rows := make([]Row, len(entries))
	for i, entry := range entries {
		step, state := steps[i], m.states[entry.Key]
		switch {
		case entry.Cost == 0:
		case step.Fits && (allowed || entry.Policy.Count == EveryAttempt):
			state = state.charged(step, now, entry.Cost)
			m.states[entry.Key] = state
			m.writes++
			rows[i].Charged = true
		case !step.Fits && (step.First || step.Stepped):
			state = state.refused(step, now)
			m.states[entry.Key] = state
			m.writes++
			if step.First {
				m.writes++
				m.audits = append(m.audits, Audit{now, entry.Policy.Name, entry.Key, state.Used})
			}
		}
		rows[i].State, rows[i].NowMicros = state, now
	}
	return rows, nil
}

// GiveBack implements Store.
func (m *MemoryStore) GiveBack(ctx context.Context, refund Refund) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refunded[refund.ID] {
		return nil
	}
	m.refunded[refund.ID] = true
	m.writes++
	if state, found := m.states[refund.Key]; found {
		m.states[refund.Key] = state.givenBack(refund)
		m.writes++
	}
	return nil
}

// Audits returns what was audited so far, oldest first.
func (m *MemoryStore) Audits() []Audit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Audit(nil), m.audits...)
}

// Writes returns how many rows an SQL store would have written so far: one for each charge, mark, audit row and
// reservation given back.
func (m *MemoryStore) Writes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}
