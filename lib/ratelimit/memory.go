package ratelimit

import (
	"container/heap"
	"context"
	"maps"
	"math"
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

// MemoryStore is a Store in the memory of one process: exact within it and unknown to any other. It is meant for tests and for
// programs that run as one process. It may be used by many goroutines.
//
// Each call forgets a few of the keys and refunds that have expired, so that the store holds little more than what is live,
// and no call waits longer for that than for a few of them. It keeps the newest 65,536 audit rows.
type MemoryStore struct {
	now       func() time.Time
	steady    bool // forgets nothing in passing
	unaudited bool

	mu      sync.Mutex
	keys    keyed[*keptKey]
	expiry  expiring[*keptKey]
	refunds keyed[*keptRefund] // by the reservation's ID
	over    expiring[*keptRefund]
	audits  []Audit // up to twice maxMemoryAudits, oldest first
	writes  int64
}

// keptKey is one key's state.
type keptKey struct {
	key     int64
	state   State
	expires int64                 // when it can refuse nothing any more, in microseconds
	at      int                   // in the heap of those that expire
	given   map[int64]*keptRefund // of a token bucket's charges, by the reservation's ID; nil for none
}

// keptRefund is what was given back of one charge, with the state's sequence at the charge and when it was given.
type keptRefund struct {
	id, key                           int64
	epoch, chargedAt, givenAt, amount int64
	expires                           int64
	at                                int
}

const (
	// maxMemoryAudits bounds the audit: some 6 MB.
	maxMemoryAudits = 1 << 16
	// memorySweep is how many expired keys, and refunds, each call forgets: as many as two decisions of MaxCharges leave.
	memorySweep = 2 * MaxCharges
)

// NewMemoryStore makes an empty store. Its clock is now; nil means time.Now.
func NewMemoryStore(now func() time.Time) *MemoryStore {
	if now == nil {
		now = time.Now
	}
	return &MemoryStore{now: now}
}

// NewSteadyMemoryStore makes an empty store that forgets what has expired only when Sweep is called, for tests whose clock
// steps back. Its clock is now; nil means time.Now.
func NewSteadyMemoryStore(now func() time.Time) *MemoryStore {
	store := NewMemoryStore(now)
	store.steady = true
	return store
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
	m.sweepInPassing(now)

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
				m.audit(Audit{AtMicros: step.nowMicros, Policy: entry.Policy.Name, Key: entry.Key, Used: state.Used, Action: refusalAction})
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
	m.set(entry.Key, state, entry.Policy.expiresMicros(state))
	return state
}

// set keeps a key's state, which expires then.
func (m *MemoryStore) set(key int64, state State, expires int64) {
	kept, found := m.keys.get(key)
	if !found {
		kept = &keptKey{key: key}
		m.keys.set(key, kept)
	}
	kept.state, kept.expires = state, expires
	if found {
		heap.Fix(&m.expiry, kept.at)
	} else {
		heap.Push(&m.expiry, kept)
	}
}

// state returns a key's state, the zero State where there is none.
func (m *MemoryStore) state(key int64) State {
	if kept, found := m.keys.get(key); found {
		return kept.state
	}
	return State{}
}

// audit keeps an audit row, and of more than it may keep the newest.
func (m *MemoryStore) audit(row Audit) {
	if m.unaudited {
		return
	}
	if len(m.audits) == 2*maxMemoryAudits {
		m.audits = append(m.audits[:0], m.audits[maxMemoryAudits:]...)
	}
	m.audits = append(m.audits, row)
}

// newest gives the state that was written last of those under an entry's keys, with what an operator said last of either.
func (m *MemoryStore) newest(entry Entry) State {
	state := m.state(m.home(entry.Key, entry.OtherKey, entry.Rotating))
	word := m.state(m.said(entry))
	state.Override, state.UntilMicros, state.SaidMicros = word.Override, word.UntilMicros, word.SaidMicros
	return state
}

// said is the key that the last word of an operator lies under.
func (m *MemoryStore) said(entry Entry) int64 {
	if entry.Rotating && m.state(entry.OtherKey).SaidMicros > m.state(entry.Key).SaidMicros {
		return entry.OtherKey
	}
	return entry.Key
}

// banElsewhere says whether a ban is known under the other key alone. The first refusal by it is written down, so that the
// ban goes on when that key's secret is gone.
func (m *MemoryStore) banElsewhere(entry Entry, now int64) bool {
	said := m.said(entry)
	state := m.state(said)
	return said != entry.Key && state.Override == Banned && now < state.UntilMicros
}

// home is the key that a subject's newest state lies under.
func (m *MemoryStore) home(key, other int64, rotating bool) int64 {
	if !rotating {
		return key
	}
	a, b := m.state(key), m.state(other)
	if b.HighMicros > a.HighMicros || b.HighMicros == a.HighMicros && b.Sequence > a.Sequence {
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
	m.sweepInPassing(m.micros())
	for _, refund := range refunds {
		m.giveBack(refund)
	}
	return nil
}

func (m *MemoryStore) giveBack(refund Refund) {
	if _, known := m.refunds.get(refund.ID); known {
		return
	}
	home := m.home(refund.Key, refund.OtherKey, refund.Rotating)
	record := &keptRefund{id: refund.ID, key: home, epoch: refund.Epoch, chargedAt: refund.Sequence, expires: refund.ExpiresMicros}
	m.refunds.set(record.id, record)
	heap.Push(&m.over, record)
	m.writes++

	kept, found := m.keys.get(home)
	if !found || kept.state.Algorithm != refund.Policy.Algorithm || kept.state.Epoch != refund.Epoch {
		return
	}
	if refund.Policy.bucket() {
		record.givenAt = kept.state.Sequence
		record.amount = refund.stands(max(m.micros(), kept.state.HighMicros-kept.state.BehindMicros), m.front(refund))
	}
	if refund.Policy.Algorithm == TokenBucket && record.amount > 0 {
		if kept.given == nil {
			kept.given = map[int64]*keptRefund{}
		}
		kept.given[record.id] = record
	}
	kept.state = kept.state.givenBack(refund, record.amount)
	m.writes++
}

// front is what was given back, since a token bucket's charge was made, of those in front of it.
func (m *MemoryStore) front(refund Refund) (amount int64) {
	keys := []int64{refund.Key}
	if refund.Rotating {
		keys = append(keys, refund.OtherKey)
	}
	for _, key := range keys {
		kept, found := m.keys.get(key)
		if !found {
			continue
		}
		for _, g := range kept.given {
			if g.epoch == refund.Epoch && g.chargedAt < refund.Sequence && g.givenAt >= refund.Sequence {
				amount += g.amount
			}
		}
	}
	return amount
}

// Operate implements Store.
func (m *MemoryStore) Operate(ctx context.Context, o Operation) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.micros()
	m.sweepInPassing(now)
	m.audit(Audit{AtMicros: now, Policy: o.Policy, Key: o.Key, Action: o.Action, UntilMicros: o.UntilMicros})
	m.writes++
	keys := []int64{o.Key}
	if o.Rotating {
		keys = append(keys, o.OtherKey)
	}
	for _, key := range keys {
		kept, found := m.keys.get(key)
		switch {
		case found:
			m.set(key, kept.state.operated(o, now), max(kept.expires, o.UntilMicros))
		case o.Action == Reset:
			continue
		default:
			m.set(key, State{Algorithm: FixedWindow, WindowMicros: 1, Per: 1}.operated(o, now), o.UntilMicros)
			m.writes++
		}
		m.writes++
	}
	return nil
}

// Sweep implements Store. It finds what has expired without looking at anything else, keys first and then refunds, and so
// needs no place to begin at.
func (m *MemoryStore) Sweep(ctx context.Context, from int64, rows int) (Swept, error) {
	if err := ctx.Err(); err != nil {
		return Swept{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	keys, refunds := m.sweep(m.micros(), rows)
	return Swept{Looked: int64(keys + refunds), Deleted: int64(keys), Last: from}, nil
}

// sweep forgets what has expired, at most so many keys and refunds together, and says how many of each.
func (m *MemoryStore) sweep(now int64, rows int) (keys, refunds int) {
	for ; keys < rows && m.expiry.next() <= now; keys++ {
		m.keys.remove(heap.Pop(&m.expiry).(*keptKey).key)
	}
	for ; keys+refunds < rows && m.over.next() <= now; refunds++ {
		record := heap.Pop(&m.over).(*keptRefund)
		m.refunds.remove(record.id)
		if kept, found := m.keys.get(record.key); found {
			delete(kept.given, record.id)
		}
	}
	return keys, refunds
}

func (m *MemoryStore) sweepInPassing(now int64) {
	if !m.steady {
		m.sweep(now, memorySweep)
	}
}

// room reports whether the entries' keys fit below a bound when what has expired is gone.
func (m *MemoryStore) room(entries []Entry, most int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	added := 0
	for _, entry := range entries {
		if _, found := m.keys.get(entry.Key); !found {
			added++
		}
	}
	now := m.micros()
	for m.keys.len()+added > most && m.expiry.next() <= now {
		m.sweep(now, 1)
	}
	return m.keys.len()+added <= most
}

// sweepSome forgets some of what has expired, and returns how many keys are left.
func (m *MemoryStore) sweepSome() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweepInPassing(m.micros())
	return int64(m.keys.len())
}

// size returns how many keys there are.
func (m *MemoryStore) size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.keys.len())
}

// Audits returns the newest 65,536 of what was audited so far, oldest first.
func (m *MemoryStore) Audits() []Audit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.audits[max(len(m.audits)-maxMemoryAudits, 0):])
}

// Writes returns how many rows an SQL store would have written so far: one for each charge, mark, audit row and
// reservation given back.
func (m *MemoryStore) Writes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// expirer is what a heap of expiring things holds.
type expirer interface {
	expiresAt() int64
	moved(at int)
}

func (k *keptKey) expiresAt() int64    { return k.expires }
func (k *keptKey) moved(at int)        { k.at = at }
func (r *keptRefund) expiresAt() int64 { return r.expires }
func (r *keptRefund) moved(at int)     { r.at = at }

// expiring is a heap.Interface of things by their end, whose memory shrinks with its content. Its zero value is empty.
type expiring[T expirer] struct{ all []T }

// next returns when the first of them expires, the end of time when there is none.
func (e *expiring[T]) next() int64 {
	if len(e.all) == 0 {
		return math.MaxInt64
	}
	return e.all[0].expiresAt()
}

// Len implements heap.Interface.
func (e *expiring[T]) Len() int { return len(e.all) }

// Less implements heap.Interface.
func (e *expiring[T]) Less(i, j int) bool { return e.all[i].expiresAt() < e.all[j].expiresAt() }

// Swap implements heap.Interface.
func (e *expiring[T]) Swap(i, j int) {
	e.all[i], e.all[j] = e.all[j], e.all[i]
	e.all[i].moved(i)
	e.all[j].moved(j)
}

// Push implements heap.Interface.
func (e *expiring[T]) Push(one any) {
	one.(T).moved(len(e.all))
	e.all = append(e.all, one.(T))
}

// Pop implements heap.Interface.
func (e *expiring[T]) Pop() any {
	last := len(e.all) - 1
	one := e.all[last]
	var none T
	e.all[last] = none
	e.all = e.all[:last]
	if cap(e.all) > 1024 && len(e.all) < cap(e.all)/4 {
		e.all = append(make([]T, 0, cap(e.all)/2), e.all...)
	}
	return one
}

// keyed is a map whose memory shrinks with its content, which Go's maps don't: it is in parts, of which one at a time is made
// anew when three quarters of it are gone. Keys are spread evenly. Its zero value is empty.
type keyed[V any] struct {
	parts [256]struct {
		values map[int64]V
		most   int // since it was made
	}
	size int
}

func (k *keyed[V]) get(key int64) (value V, found bool) {
	value, found = k.parts[uint8(key)].values[key]
	return value, found
}

func (k *keyed[V]) set(key int64, value V) {
	part := &k.parts[uint8(key)]
	if part.values == nil {
		part.values = map[int64]V{}
	}
	k.size -= len(part.values)
	part.values[key] = value
	k.size += len(part.values)
	part.most = max(part.most, len(part.values))
}

func (k *keyed[V]) remove(key int64) {
	part := &k.parts[uint8(key)]
	k.size -= len(part.values)
	delete(part.values, key)
	k.size += len(part.values)
	if part.most > 64 && len(part.values) < part.most/4 {
		left := make(map[int64]V, len(part.values))
		maps.Copy(left, part.values)
		part.values, part.most = left, len(left)
	}
}

func (k *keyed[V]) len() int { return k.size }
