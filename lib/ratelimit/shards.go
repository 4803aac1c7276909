package ratelimit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// MaxShards bounds the shards of one Shards, those to come included. An operator's views ask all of them.
const MaxShards = 256

// Shard is one of the stores that share the subjects of a Shards.
type Shard struct {
	// Name decides, with the names of the others, which subjects are the shard's: another name is another share. It is 1 to 255
	// bytes, and stays when the store moves.
	Name  string
	Store Store
}

// Shards is a Store over several, each of which has its share of the subjects: by rendezvous hashing (Thaler and
// Ravishankar, 1998), so that one shard more takes only its own share from the others. All limits of one subject are in one
// shard, under every secret. It may be used by many goroutines.
//
// A decision whose limits are in one shard is one call to it, and as exact as that. One over several is not one atomic unit:
//
//   - First all of its shards are asked what would be, at once; that writes nothing. When a limit refuses, nothing is charged but
//     what counts every attempt, and first refusals are marked as always: a refusal writes as much as in one store. When a
//     shard doesn't answer, nothing is charged at all.
//   - Otherwise the shards charge their parts one after the other, in the order of their names. Should one refuse after all,
//     because of somebody who came in between, what the others charged is given back, but for what counts every attempt.
//
// So no limit ever admits more than its own, whatever runs at once and wherever it breaks off. What is weaker than in one store:
// a decision may be refused while another holds a unit that it is about to give back; and one that breaks off between the charge
// and its end leaves units charged, until their window is over, for a request that was not admitted. A shard's own clock decides
// for its limits.
//
// While there is a second list of shards, the next one, a subject whose shard would be another in it is decided by its shard
// now, and what that charged is charged by the other one too, or nothing is. Once everything that counts has been charged so, the
// next list can take the place of the first, and no limit admits more than its own.
//
// In a Limiter each shard has a breaker of its own: one that is silent keeps nobody waiting for the others.
type Shards struct {
	all       []shard // of both lists, in the order of names
	now, next []int   // places in all; next is empty when nothing is to change
}

type shard struct {
	Shard
	hash [sha256.Size]byte // of the name
}

// id names a shard in what is given back: 32 bits of its name's hash, never 0.
func (s shard) id() uint32 { return max(binary.BigEndian.Uint32(s.hash[:4]), 1) }

// NewShards makes a Store over those of now. Those of next, which may be empty, are the list that is to come; a name in both
// lists is one shard, whose Store is that of now. An error matches ErrConfig.
func NewShards(now, next []Shard) (*Shards, error) {
	s := &Shards{}
	at := map[string]int{}
	ids := map[uint32]string{}
	for _, list := range [][]Shard{now, next} {
		listed := map[string]bool{}
		for _, one := range list {
			made := shard{one, sha256.Sum256([]byte(one.Name))}
			switch _, known := at[one.Name]; {
			case one.Name == "" || len(one.Name) > 255:
				return nil, fmt.Errorf("%w: a shard's name of %d bytes: allowed are 1 to 255", ErrConfig, len(one.Name))
			case one.Store == nil:
				return nil, fmt.Errorf("%w: shard %q has no store", ErrConfig, one.Name)
			case listed[one.Name]:
				return nil, fmt.Errorf("%w: shard %q is there twice", ErrConfig, one.Name)
			case known:
			case ids[made.id()] != "":
				return nil, fmt.Errorf("%w: shards %q and %q can't be told apart by their hash: one of them needs another name", ErrConfig, ids[made.id()], one.Name)
			default:
				at[one.Name], ids[made.id()] = 0, one.Name
				s.all = append(s.all, made)
			}
			listed[one.Name] = true
		}
	}
	if len(now) == 0 || len(s.all) > MaxShards {
		return nil, fmt.Errorf("%w: %d shards, %d in both lists: allowed are 1 to %d", ErrConfig, len(now), len(s.all), MaxShards)
	}
	slices.SortFunc(s.all, func(a, b shard) int { return cmp.Compare(a.Name, b.Name) })
	for i, one := range s.all {
		at[one.Name] = i
	}
	for _, one := range now {
		s.now = append(s.now, at[one.Name])
	}
	for _, one := range next {
		s.next = append(s.next, at[one.Name])
	}
	return s, nil
}

// guarded is the same with each store behind guards of its own.
func (s *Shards) guarded(guards func() *guards) *Shards {
	other := &Shards{now: s.now, next: s.next}
	for _, one := range s.all {
		one.Store = &guarded{one.Store, guards()}
		other.all = append(other.all, one)
	}
	return other
}

// inAnyOrder are the stores, beginning with a random one: what has little time for all comes to each of them some day.
func (s *Shards) inAnyOrder() (stores []Store) {
	first := rand.IntN(len(s.all))
	for i := range s.all {
		stores = append(stores, s.all[(first+i)%len(s.all)].Store)
	}
	return stores
}

// placeOf gives a subject's place: it doesn't depend on a secret, so that it stays when the secret changes. Nobody can tell the
// shard from it who doesn't know their names.
func placeOf(kind SubjectKind, canonical string) uint64 {
	sum := sha256.Sum256(append([]byte{byte(kind)}, canonical...))
	return binary.BigEndian.Uint64(sum[:8])
}

// home gives which shard of a list has a place: the one whose weight for it is the greatest. The others' weights don't change when
// one comes or goes.
func (s *Shards) home(list []int, place uint64) int {
	best, most := list[0], uint64(0)
	if len(list) == 1 {
		return best
	}
	var message [sha256.Size + 8]byte
	binary.BigEndian.PutUint64(message[sha256.Size:], place)
	for _, i := range list {
		copy(message[:], s.all[i].hash[:])
		sum := sha256.Sum256(message[:])
		// Of equal weights, which nobody will live to see, the first name's counts, whatever the order of the list.
		if weight := binary.BigEndian.Uint64(sum[:8]); weight > most || weight == most && i < best {
			best, most = i, weight
		}
	}
	return best
}

// homes gives the shard of a place, and the one that is to have it: -1 when it stays.
func (s *Shards) homes(place uint64) (now, next int) {
	now, next = s.home(s.now, place), -1
	if len(s.next) > 0 {
		if next = s.home(s.next, place); next == now {
			next = -1
		}
	}
	return now, next
}

// part is what one shard has of a decision.
type part struct {
	shard   int
	follows bool // it charges what another shard has charged
	entries []Entry
	at      []int // the places of the entries in the decision
}

// parts are those that decide, in the order of the shards' names, and after them those that follow.
func (s *Shards) parts(entries []Entry) []part {
	var shortest time.Duration
	for _, entry := range entries {
		if d := entry.Policy.Deadline; d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	var parts []part
	add := func(shard int, follows bool, i int) {
		at := slices.IndexFunc(parts, func(p part) bool { return p.shard == shard && p.follows == follows })
		if at < 0 {
			at = len(parts)
			parts = append(parts, part{shard: shard, follows: follows})
		}
		entry := entries[i]
		entry.Policy.Deadline = shortest // the decision's, in each of its parts
		parts[at].entries = append(parts[at].entries, entry)
		parts[at].at = append(parts[at].at, i)
	}
	for i, entry := range entries {
		now, next := s.homes(entry.Place)
		add(now, false, i)
		if next >= 0 {
			add(next, true, i)
		}
	}
	slices.SortFunc(parts, func(a, b part) int {
		if a.follows != b.follows {
			return map[bool]int{true: 1, false: -1}[a.follows]
		}
		return a.shard - b.shard
	})
	return parts
}

// Decide implements Store, but for what the type says of decisions over several shards.
func (s *Shards) Decide(ctx context.Context, entries []Entry) ([]Row, error) {
	parts := s.parts(entries)
	if len(parts) == 1 {
		rows, err := s.ask(ctx, parts[0], Store.Decide)
		return s.marked(parts[0], rows), err
	}
	d := &spanning{shards: s, entries: entries, parts: parts}
	var err error
	if d.seen, err = s.peek(ctx, parts); err != nil {
		return nil, err
	}
	d.rows = foreseen(len(entries), parts, d.seen)
	allowed := true
	for i, entry := range entries {
		allowed = allowed && !entry.Refused && fits(entry, d.rows[i])
	}
	if !allowed {
		return d.rows, d.refuse(ctx, 0)
	}
	return d.rows, d.charge(ctx)
}

// spanning is a decision over several shards.
type spanning struct {
	shards  *Shards
	entries []Entry
	parts   []part
	seen    [][]Row // of each part, before
	rows    []Row   // the answer
	held    []held  // what has been charged and may be given back
}

type held struct {
	part int
	at   int
	row  Row
}

// charge has the parts charge, one after the other.
func (d *spanning) charge(ctx context.Context) error {
	for i := range d.parts {
		asked := d.parts[i].only(func(_ int, entry Entry) bool { return entry.Cost > 0 })
		if len(asked.entries) == 0 {
			continue // what was seen stands
		}
		allowed, err := d.ask(ctx, i, asked)
		if err != nil || !allowed {
			d.giveBack(ctx)
		}
		if err != nil {
			return err
		}
		if !allowed {
			return d.refuse(ctx, i+1)
		}
	}
	return nil
}

// refuse has the parts from one on charge what counts every attempt, and mark first refusals.
func (d *spanning) refuse(ctx context.Context, from int) error {
	for i := from; i < len(d.parts); i++ {
		part := d.parts[i]
		asked := part.only(func(j int, entry Entry) bool {
			if part.follows {
				return d.rows[part.at[j]].Charged && entry.Policy.Count == EveryAttempt
			}
			return writes(entry, d.seen[i][j])
		})
		for j := range asked.entries {
			asked.entries[j].Refused = true
		}
		if len(asked.entries) == 0 {
			continue
		}
		if _, err := d.ask(ctx, i, asked); err != nil {
			return err
		}
	}
	return nil
}

// ask has a part of the decision, or some entries of it, carried out, and says whether all of those were charged.
func (d *spanning) ask(ctx context.Context, i int, asked part) (allowed bool, err error) {
	rows, err := d.shards.ask(ctx, asked, Store.Decide)
	if err != nil {
		return false, err
	}
	rows = d.shards.marked(asked, rows)
	for j, row := range rows {
		at := asked.at[j]
		if row.Charged && asked.entries[j].Policy.Count == Admitted {
			d.held = append(d.held, held{i, at, row})
		}
		switch {
		case !asked.follows:
			d.rows[at] = row
		case row.Charged:
			d.rows[at].Next = &row
		default:
			d.rows[at] = row // the one that refuses
		}
	}
	return verdict(asked.entries, rows), nil
}

// giveBack gives back what has been charged by limits that count what is admitted. When a shard fails to, its units stay
// charged; the decision is the same.
func (d *spanning) giveBack(ctx context.Context) {
	ctx = context.WithoutCancel(ctx) // it is owed
	refunds := make([]Refund, len(d.held))
	for i, held := range d.held {
		if held.row.Uncounted {
			d.rows[held.at].Charged = false // there is nothing to give back
			continue
		}
		refunds[i] = refundOf(d.entries[held.at], held.row)
	}
	for _, group := range d.shards.groups(refunds) {
		err := group.store.GiveBack(ctx, group.refunds)
		if err != nil && !errors.Is(err, ErrBreaker) {
			err = group.store.GiveBack(ctx, group.refunds) // that is once at the most
		}
		for i, held := range d.held {
			if row := &d.rows[held.at]; refunds[i].Shard == group.id && row.Shard == group.id {
				row.Charged, row.Next = false, nil
				if err == nil {
					row.State = row.State.givenBack(refunds[i], refunds[i].stands(row.NowMicros, 0))
				}
			}
		}
	}
	d.held = nil
}

// only gives the part with some of its entries.
func (p part) only(keep func(j int, entry Entry) bool) part {
	some := part{shard: p.shard, follows: p.follows}
	for j, entry := range p.entries {
		if keep(j, entry) {
			some.entries, some.at = append(some.entries, entry), append(some.at, p.at[j])
		}
	}
	return some
}

func fits(entry Entry, row Row) bool {
	return entry.Policy.step(row.State, row.NowMicros, entry.Cost).fits
}

// writes says whether a decision that is refused would write a key's state, as far as a look at it tells.
func writes(entry Entry, row Row) bool {
	step := entry.Policy.step(row.State, row.NowMicros, entry.Cost)
	if step.fits {
		return entry.Cost > 0 && entry.Policy.Count == EveryAttempt
	}
	return step.first || step.stepped || entry.Rotating // which may bring a ban along
}

// foreseen gives a row for each of n entries, of those that were seen: where a subject has two shards the tighter one.
func foreseen(n int, parts []part, seen [][]Row) []Row {
	rows := make([]Row, n)
	for i, part := range parts {
		for j, at := range part.at {
			row, entry := seen[i][j], part.entries[j]
			if part.follows {
				a, b := entry.Policy.step(rows[at].State, rows[at].NowMicros, entry.Cost), entry.Policy.step(row.State, row.NowMicros, entry.Cost)
				if !a.fits || b.fits && a.remaining <= b.remaining {
					continue
				}
			}
			rows[at] = row
		}
	}
	return rows
}

// ask has one shard carry out its part.
func (s *Shards) ask(ctx context.Context, p part, call func(Store, context.Context, []Entry) ([]Row, error)) ([]Row, error) {
	rows, err := call(s.all[p.shard].Store, ctx, p.entries)
	if err == nil {
		err = checkRows(p.entries, rows)
	}
	if err != nil {
		return nil, s.all[p.shard].named(err)
	}
	return rows, nil
}

func (s shard) named(err error) error {
	if err != nil {
		return fmt.Errorf("shard %s: %w", s.Name, err)
	}
	return nil
}

// marked says of each row whose it is.
func (s *Shards) marked(p part, rows []Row) []Row {
	for i := range rows {
		rows[i].Shard = s.all[p.shard].id()
	}
	return rows
}

// Peek implements Store. It asks all shards at once.
func (s *Shards) Peek(ctx context.Context, entries []Entry) ([]Row, error) {
	parts := s.parts(entries)
	seen, err := s.peek(ctx, parts)
	if err != nil {
		return nil, err
	}
	return foreseen(len(entries), parts, seen), nil
}

func (s *Shards) peek(ctx context.Context, parts []part) ([][]Row, error) {
	seen, errs := make([][]Row, len(parts)), make([]error, len(parts))
	together(len(parts), func(i int) {
		seen[i], errs[i] = s.ask(ctx, parts[i], Store.Peek)
		seen[i] = s.marked(parts[i], seen[i])
	})
	return seen, errors.Join(errs...)
}

// together does n things at once, and waits for all of them.
func together(n int, do func(i int)) {
	var group sync.WaitGroup
	for i := range n - 1 {
		group.Go(func() { do(i) })
	}
	if n > 0 {
		do(n - 1)
	}
	group.Wait()
}

// group is what one shard is to give back.
type group struct {
	id      uint32
	store   Store
	refunds []Refund
}

// groups are those of the shards that there are.
func (s *Shards) groups(refunds []Refund) (groups []group) {
	for _, shard := range s.all {
		g := group{id: shard.id(), store: shard.Store}
		for _, refund := range refunds {
			if refund.Shard == g.id {
				g.refunds = append(g.refunds, refund)
			}
		}
		if len(g.refunds) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// GiveBack implements Store, as one atomic unit for each shard. What was charged by a shard that isn't there any more, or
// before there were shards, is not given back.
func (s *Shards) GiveBack(ctx context.Context, refunds []Refund) error {
	groups := s.groups(refunds)
	errs := make([]error, len(groups))
	together(len(groups), func(i int) { errs[i] = groups[i].store.GiveBack(ctx, groups[i].refunds) })
	return errors.Join(errs...)
}

// Operate implements Store. Where a subject has two shards, it changes the state in both, one after the other; after an error the
// first may be changed, and to ask again is right.
func (s *Shards) Operate(ctx context.Context, operation Operation) error {
	now, next := s.homes(operation.Place)
	err := s.all[now].named(s.all[now].Store.Operate(ctx, operation))
	if err == nil && next >= 0 {
		err = s.all[next].named(s.all[next].Store.Operate(ctx, operation))
	}
	return err
}

// Sweep implements Store: it looks at so many rows of each shard.
func (s *Shards) Sweep(ctx context.Context, from int64, rows int) (Swept, error) {
	var all Swept
	ended := true
	for _, shard := range s.all {
		swept, err := shard.Store.Sweep(ctx, from, rows)
		if err != nil {
			return Swept{}, shard.named(err)
		}
		all.Looked += swept.Looked
		all.Deleted += swept.Deleted
		switch through := swept.Looked < int64(rows); {
		case ended && through:
			all.Last = max(all.Last, swept.Last)
		case !through && (ended || swept.Last < all.Last):
			all.Last, ended = swept.Last, false // the others are looked at from there once more
		}
	}
	return all, nil
}
