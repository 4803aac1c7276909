package ratelimit

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Audit tells of the first refusal of a key in a window, or of what an operator did to a key.
type Audit struct {
	AtMicros    int64
	Policy      string
	Key         int64
	Used        int64  // units that stood
	Action      Action // "refusal", or an operator's
	UntilMicros int64  // of Ban and Allow
}

const refusalAction Action = "refusal"

// MemoryStore is a Store in the memory of one process: exact within it and unknown to any other. It is meant for tests
// and for programs that run as one process. It keeps keys until they are
// swept, and the numbers of reservations given back for good. It may be used by many goroutines.
type MemoryStore struct {
	now func() time.Time

	mu       sync.Mutex
	states   map[int64]State
	expires  map[int64]int64 // when a state can refuse nothing any more, in microseconds
	refunded map[int64]bool
	refunds  map[int64][]given // of buckets, by key
	audits   []Audit
	writes   int64
}

// given is what was given back of one charge to a bucket, with the state's sequence at the charge and when it was given.
type given struct{ epoch, chargedAt, givenAt, amount int64 }

// NewMemoryStore makes an empty store. Its clock is now; nil means time.Now.
func NewMemoryStore(now func() time.Time) *MemoryStore {
	if now == nil {
		now = time.Now
	}
	return &MemoryStore{now: now, states: map[int64]State{}, expires: map[int64]int64{}, refunded: map[int64]bool{}, refunds: map[int64][]given{}}
}

// micros is the store's time, in whole milliseconds.
func (m *MemoryStore) micros() int64 { return m.now().UnixMilli() * 1000 }

// Decide implements Store.
func (m *MemoryStore) Decide(ctx context.Context, entries []Entry) ([]Row, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.micros()

	steps, states := make([]step, len(entries)), make([]State, len(entries))
	allowed := true
	for i, entry := range entries {
		states[i] = m.newest(entry)
		steps[i] = entry.Policy.step(states[i], now, entry.Cost)
		allowed = allowed && steps[i].fits && !entry.Refused
	}

	rows := make([]Row, len(entries))
	for i, entry := range entries {
		step, state := steps[i], states[i]
		switch {
		case entry.Cost == 0:
		case step.fits && (allowed || entry.Policy.Count == EveryAttempt):
			cost := entry.Cost
			if !step.counts {
				cost, rows[i].Uncounted = 0, true
			}
			state = m.put(entry, state, entry.Policy.after(state, step, cost))
			m.writes++
			rows[i].Charged, rows[i].NowMicros = true, step.nowMicros
		case !step.fits && (step.first || step.stepped || m.banElsewhere(entry, now)):
			state = m.put(entry, state, entry.Policy.refused(state, step))
			rows[i].NowMicros = step.nowMicros
			m.writes++
			if step.first {
				m.writes++
				m.audits = append(m.audits, Audit{AtMicros: step.nowMicros, Policy: entry.Policy.Name, Key: entry.Key, Used: state.Used, Action: refusalAction})
			}
		}
		rows[i].State = state
		if rows[i].NowMicros == 0 {
			rows[i].NowMicros = now
		}
	}
	return rows, nil
}

// put keeps the state that follows another. The epochs of another life of a key must not be those of the last one.
func (m *MemoryStore) put(entry Entry, last, state State) State {
	if last.HighMicros == 0 {
		state.Epoch = int64(rand.Int32())
	}
	m.states[entry.Key] = state
	m.expires[entry.Key] = entry.Policy.expiresMicros(state)
	return state
}

// newest gives the state that was written last of those under an entry's keys, with what an operator said last of either.
func (m *MemoryStore) newest(entry Entry) State {
	state := m.states[m.home(entry.Key, entry.OtherKey, entry.Rotating)]
	word := m.states[m.said(entry)]
	state.Override, state.UntilMicros, state.SaidMicros = word.Override, word.UntilMicros, word.SaidMicros
	return state
}

// said is the key that the last word of an operator lies under.
func (m *MemoryStore) said(entry Entry) int64 {
	if entry.Rotating && m.states[entry.OtherKey].SaidMicros > m.states[entry.Key].SaidMicros {
		return entry.OtherKey
	}
	return entry.Key
}

// banElsewhere says whether a ban is known under the other key alone. The first refusal by it is written down, so that the
// ban goes on when that key's secret is gone.
func (m *MemoryStore) banElsewhere(entry Entry, now int64) bool {
	said := m.said(entry)
	return said != entry.Key && m.states[said].Override == Banned && now < m.states[said].UntilMicros
}

// home is the key that a subject's newest state lies under.
func (m *MemoryStore) home(key, other int64, rotating bool) int64 {
	a, b := m.states[key], m.states[other]
	if rotating && (b.HighMicros > a.HighMicros || b.HighMicros == a.HighMicros && b.Sequence > a.Sequence) {
		return other
	}
	return key
}

// Peek implements Store.
func (m *MemoryStore) Peek(ctx context.Context, entries []Entry) ([]Row, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rows := make([]Row, len(entries))
	for i, entry := range entries {
		rows[i] = Row{State: m.newest(entry), NowMicros: m.micros()}
	}
	return rows, nil
}

// GiveBack implements Store.
func (m *MemoryStore) GiveBack(ctx context.Context, refunds []Refund) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, refund := range refunds {
		m.giveBack(refund)
	}
	return nil
}

func (m *MemoryStore) giveBack(refund Refund) {
	if m.refunded[refund.ID] {
		return
	}
	m.refunded[refund.ID] = true
	m.writes++

	home := m.home(refund.Key, refund.OtherKey, refund.Rotating)
	state, found := m.states[home]
	if !found || state.Algorithm != refund.Policy.Algorithm || state.Epoch != refund.Epoch {
		return
	}
	var amount int64
	if refund.Policy.bucket() {
		now := max(m.micros(), state.HighMicros-state.BehindMicros)
		var front int64 // of a token bucket
		for _, key := range []int64{refund.Key, refund.OtherKey} {
			for _, g := range m.refunds[key] {
				if g.epoch == refund.Epoch && g.chargedAt < refund.Sequence && g.givenAt >= refund.Sequence && (key == refund.Key || refund.Rotating) {
					front += g.amount
				}
			}
		}
		amount = refund.stands(now, front)
		m.refunds[home] = append(m.refunds[home], given{refund.Epoch, refund.Sequence, state.Sequence, amount})
	}
	m.states[home] = state.givenBack(refund, amount)
	m.writes++
}

// Operate implements Store.
func (m *MemoryStore) Operate(ctx context.Context, o Operation) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.micros()
	m.audits = append(m.audits, Audit{AtMicros: now, Policy: o.Policy, Key: o.Key, Action: o.Action, UntilMicros: o.UntilMicros})
	m.writes++
	keys := []int64{o.Key}
	if o.Rotating {
		keys = append(keys, o.OtherKey)
	}
	for _, key := range keys {
		state, found := m.states[key]
		if !found && o.Action == Reset {
			continue
		}
		if !found {
			state = State{Algorithm: FixedWindow, WindowMicros: 1, Per: 1}
			m.writes++
		}
		m.states[key] = state.operated(o, now)
		m.expires[key] = max(m.expires[key], o.UntilMicros)
		m.writes++
	}
	return nil
}

// Sweep implements Store.
func (m *MemoryStore) Sweep(ctx context.Context, from int64, rows int) (Swept, error) {
	if err := ctx.Err(); err != nil {
		return Swept{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var swept Swept
	keys := slices.Sorted(maps.Keys(m.states))
	first, _ := slices.BinarySearch(keys, from)
	for _, key := range keys[first:min(first+rows, len(keys))] {
		swept.Looked++
		swept.Last = key
		if m.expires[key] <= m.micros() {
			delete(m.states, key)
			delete(m.expires, key)
			delete(m.refunds, key)
			swept.Deleted++
		}
	}
	return swept, nil
}

// room says whether so many more keys fit below a bound, when what has expired is gone.
func (m *MemoryStore) room(more, most int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.states)+more <= most {
		return true
	}
	now := m.micros()
	for key, expires := range m.expires {
		if expires <= now {
			delete(m.states, key)
			delete(m.expires, key)
		}
	}
	return len(m.states)+more <= most
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
