package ratelimit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Bounds of a decision.
const (
	MaxCharges     = 16 // a statement over more keys holds the store's only writer too long
	MinSecretBytes = 32 // the size of the hash's output, as RFC 2104 section 3 asks
)

// earliestMicros is 2000-01-01. A store whose clock lies before it answers nonsense.
const earliestMicros = 946_684_800_000_000

// latestMicros is 2200-01-01, an end that no ban needs.
const latestMicros = 7_258_118_400_000_000

// Config says what a Limiter does besides. The zero value is ready to use.
type Config struct {
	// OtherSecret lets a secret be changed without restarting anyone's counter: states are read under both secrets and
	// written under the first. First every instance gets the new secret as its other one, then the two change places, then
	// the old one goes, when nothing that was written under it can stand any more: two windows later, or the time in which
	// a bucket fills. An instance that does not read both counts apart from those that write the other: while such
	// instances run, up to twice the limit passes. Nil means one secret.
	OtherSecret []byte
	// Deadline bounds each call to the store, besides the caller's context and Policy.Deadline. A
	// call that takes as long is an outage; one that the caller's context ends is not. Zero means 2
	// seconds: well above one commit on Turso, up to 100 ms, since commits queue. 5 ms suits a
	// store beside the process.
	Deadline time.Duration
	// Instances is how many processes are expected to share the limits: while the store is down each admits its share of
	// what Policy.Failure lets through. Zero means 30.
	Instances int
	// Remember is how many refusals this process remembers, so that the same request again costs no request to the store,
	// for a second at the most. Only refusals by limits that count every attempt are remembered, and only when nothing else
	// would be charged. Zero means none.
	Remember int
	// Clock replaces this process's clock, for tests; its readings should be monotonic, as those of time.Now are. It decides
	// nothing while the store answers. Nil means time.Now.
	Clock func() time.Time
}

// The bounds and defaults of Config.
const (
	defaultDeadline  = 2 * time.Second
	defaultInstances = 30
	maxInstances     = 1_000_000
)

// Limiter decides whether requests may pass. It may be used by many goroutines. Its only state is what it knows of the store's
// health, what it admits by itself while that is down, and what it remembers of refusals.
type Limiter struct {
	store   Store // behind guards
	secret  []byte
	other   []byte // nil while no rotation is on
	guards  *guards
	local   *local  // decides while the store doesn't answer
	refused *memory // nil when nothing is remembered
}

// New makes a Limiter over a store. The secret, at least MinSecretBytes long, turns subjects into keys: every instance
// must have the same one, and another one means other counters, but for Config.OtherSecret. A short secret, or the same
// twice, is an error that matches ErrSecret.
func New(store Store, secret []byte, config Config) (*Limiter, error) {
	switch {
	case config.Deadline < 0:
		return nil, fmt.Errorf("%w: deadline %v: it must not be negative", ErrConfig, config.Deadline)
	case config.Instances < 0 || config.Instances > maxInstances:
		return nil, fmt.Errorf("%w: %d instances: allowed are 0, for %d, to %d", ErrConfig, config.Instances, defaultInstances, maxInstances)
	case config.Remember < 0:
		return nil, fmt.Errorf("%w: to remember %d refusals: it must not be negative", ErrConfig, config.Remember)
	}
	now := config.Clock
	if now == nil {
		now = time.Now
	}
	limiter := &Limiter{secret: bytes.Clone(secret), other: bytes.Clone(config.OtherSecret)}
	limiter.local = newLocal(now, int64(cmp.Or(config.Instances, defaultInstances)))
	newGuards := func() *guards {
		return &guards{now: now, deadline: cmp.Or(config.Deadline, defaultDeadline), local: limiter.local}
	}
	limiter.guards = newGuards()
	limiter.store = &guarded{store, limiter.guards}
	if shards, several := store.(*Shards); several {
		limiter.store = shards.guarded(newGuards)
	}
	if config.Remember > 0 {
		limiter.refused = &memory{now: now, most: config.Remember}
	}
	for _, s := range [][]byte{limiter.secret, limiter.other} {
		if len(s) < MinSecretBytes && s != nil {
			return nil, fmt.Errorf("%w: %d bytes long: at least %d are needed", ErrSecret, len(s), MinSecretBytes)
		}
	}
	switch {
	case limiter.secret == nil:
		return nil, fmt.Errorf("%w: there is none: at least %d bytes are needed", ErrSecret, MinSecretBytes)
	case bytes.Equal(limiter.secret, limiter.other):
		return nil, fmt.Errorf("%w: it is the other secret too", ErrSecret)
	}
	return limiter, nil
}

// WithoutMemory gives a Limiter that asks for every decision, whatever Config.Remember says: for charges that may be given back
// by somebody else. All else, the store's health included, both have in common.
func (l *Limiter) WithoutMemory() *Limiter {
	other := *l
	other.refused = nil
	return &other
}

// Decision is the answer to a set of charges.
type Decision struct {
	// Allowed is true when every limit admits the request; then all of them are charged. Otherwise only those are
	// that count every attempt and admit it themselves.
	Allowed bool
	// RetryAfter is 0 when allowed. Otherwise it is the time after which the same charges pass all
	// limits, this decision's own charges included, if nobody else charges them: for example 37.2s.
	// No wait of a decision, nor of one of its limits, is told as longer than a century: MaxWindow.
	RetryAfter time.Duration
	// Limits has an entry for each charge, in order.
	Limits []LimitResult
	// Outage is why the store didn't decide; nil when it did. Then the limits admitted the request
	// by themselves, because their Failure lets so much through: the figures in Limits are zero but
	// for Delay, nothing is reserved, and what was charged is known to this process alone. It
	// counts here until its window is over, also when the store has answered in between.
	Outage error
}

// LimitResult is what one limit of a decision says.
type LimitResult struct {
	Policy  Policy
	Allowed bool // by this limit alone
	// Remaining is the number of units that are left now, after what this decision charged: never negative.
	Remaining int64
	// Reset is the time until more units are to be had, 0 where nothing is used; for a fixed window it is until its end,
	// whatever is used. On a refusal it equals RetryAfter.
	Reset time.Duration
	// RetryAfter is 0 when this limit allows the charge, otherwise the time until it does.
	RetryAfter time.Duration
	// Delay is how long what a LeakyBucket admitted has to wait for its turn. The caller waits.
	Delay time.Duration
	// BannedUntil is when an operator's ban of the subject ends, by the store's clock: the limit
	// refuses until then, whatever is left. It is the zero time when there is no ban. It may lie
	// later than RetryAfter tells.
	BannedUntil time.Time
	// Reservation names what this decision charged, for Limiter.GiveBack. It is the zero value when nothing was.
	Reservation Reservation

	// The time until this limit admits the same charge once more by itself, and for how long an operator admits it anyway.
	wait, exempt time.Duration
}

// Reservation names one charge of one decision. The zero value names none.
type Reservation struct {
	refund Refund
	next   Refund // of the same charge, in the shard that is to have it; zero when there is none
}

// Decide charges all limits, or, when one of them refuses, only those that count every attempt. It is one round trip to
// the store, whatever the number of limits; Shards say what it is over several of them. The store's clock and state decide; concurrent decisions, from any number of
// processes, never admit more than a limit.
//
// An error that matches ErrStore means that no answer came, and that the limits don't admit the request without one (see
// Policy.Failure): the charges may have been made or not, and are not made again. After two calls in a row that waited in
// vain the store is asked once a second, and other calls fail at once (ErrBreaker).
//
// When ctx ends before the store has answered, the error matches the one of ctx and not ErrStore:
// it says nothing about the store, and no limit admits the request by itself. The charges may have
// been made. A server whose clients may hang up decides under context.WithoutCancel, so that what
// they asked for is counted; Config.Deadline bounds the call. Any other error (ErrPolicy,
// ErrSubject, ErrCost, ErrCharges) is a mistake in the call, and the store was not asked.
func (l *Limiter) Decide(ctx context.Context, charges ...Charge) (Decision, error) {
	entries, err := l.entries(charges)
	if err != nil {
		return Decision{}, err
	}
	if err := ended(ctx); err != nil {
		return Decision{}, err
	}
	if decision, known := l.refused.recall(entries); known {
		return decision, nil
	}
	start := l.guards.now()
	rows, err := l.ask(ctx, entries, l.store.Decide)
	if errors.Is(err, ErrStore) {
		return l.local.outage(entries, err)
	}
	if err != nil {
		return Decision{}, err
	}
	decision := conclude(entries, rows, verdict(entries, rows))
	l.refused.keep(entries, decision, start)
	return decision, nil
}

// Peek says what Decide would, and charges nothing. It reads only, so what it says may be over by the time it is heard.
// Errors are those of Decide; without the store there is no answer.
func (l *Limiter) Peek(ctx context.Context, charges ...Charge) (Decision, error) {
	entries, err := l.entries(charges)
	if err != nil {
		return Decision{}, err
	}
	rows, err := l.ask(ctx, entries, l.store.Peek)
	if err != nil {
		return Decision{}, err
	}
	allowed := true
	for i, entry := range entries {
		allowed = allowed && entry.Policy.step(rows[i].State, rows[i].NowMicros, entry.Cost).fits
	}
	return conclude(entries, rows, allowed), nil
}

// GiveBack returns reserved charges to their limits, in one round trip, or as many as there are charges of one key: each
// once, and only what still stands of it. When there is nothing left to return that is no error. A zero Reservation is ignored.
// An error matches ErrStore; then the charges may stand or not, and asking again with the same reservations is safe. That ctx
// is over stops nothing: what was reserved is owed, and Config.Deadline bounds the call.
func (l *Limiter) GiveBack(ctx context.Context, reservations ...Reservation) error {
	ctx = context.WithoutCancel(ctx)
	given := map[int64]bool{}
	var rounds [][]Refund // in each the keys differ
	type place struct {
		key   int64
		shard uint32
	}
	at := map[place]int{}
	for _, reservation := range reservations {
		for _, refund := range reservation.refunds() {
			if given[refund.ID] {
				continue
			}
			given[refund.ID] = true
			place := place{refund.Key, refund.Shard}
			round := at[place]
			at[place]++
			if round == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[round] = append(rounds[round], refund)
		}
	}
	for _, refunds := range rounds {
		if err := l.call(ctx, func(ctx context.Context) error { return l.store.GiveBack(ctx, refunds) }); err != nil {
			return err
		}
	}
	return nil
}

// Sweep deletes expired counters, as long as ctx lasts, and says how many, and whether it came to the end. Decisions sweep
// in passing as well; a job that calls Sweep once in a while keeps an application small that decides little. An error
// matches ErrStore; what was deleted until then is gone. A shard that fails doesn't keep the others from being swept.
func (l *Limiter) Sweep(ctx context.Context) (deleted int64, done bool, err error) {
	stores := []Store{l.store}
	if shards, several := l.store.(*Shards); several {
		stores = shards.inAnyOrder()
	}
	done = true
	var errs []error
	for _, store := range stores {
		n, through, err := l.sweep(ctx, store)
		deleted += n
		done = done && through
		errs = append(errs, err)
	}
	return deleted, done, errors.Join(errs...)
}

func (l *Limiter) sweep(ctx context.Context, store Store) (deleted int64, done bool, err error) {
	const rows = 1000 // few enough that no decision waits long for the writer
	for from := int64(0); ctx.Err() == nil; {
		var swept Swept
		err := l.call(ctx, func(ctx context.Context) (err error) {
			swept, err = store.Sweep(ctx, from, rows)
			return err
		})
		if err != nil {
			if ended(ctx) != nil {
				break
			}
			return deleted, false, err
		}
		deleted += swept.Deleted
		if swept.Looked < rows || swept.Last == math.MaxInt64 {
			return deleted, true, nil
		}
		from = swept.Last + 1
	}
	return deleted, false, nil
}

// Guard makes a call to the store's database that isn't the limiter's, such as what an application
// has to read before it knows whom to charge, under the same deadline and the same breaker: it is
// not made while those before it waited in vain, so that nobody waits for a store that is known to
// be silent. Over Shards it has a breaker of its own, for the database beside them. The call must
// ask the database: what it answers, if only with an error, closes the breaker. An error is the
// call's own; one that matches ErrStore and ErrBreaker when it was not made; and, when ctx has
// ended, one that matches the error of ctx, besides the call's own if it was made.
func (l *Limiter) Guard(ctx context.Context, call func(context.Context) error) error {
	err := l.guards.of(nil).call(ctx, call)
	switch gone := ended(ctx); {
	case err == nil:
		return nil
	case gone != nil && (errors.Is(err, ErrStore) || errors.Is(err, ErrBreaker)):
		return gone
	case gone != nil && !errors.Is(err, errors.Unwrap(gone)):
		return fmt.Errorf("%w: %w", gone, err)
	case errors.Is(err, ErrBreaker):
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return err
}

// ask puts entries to the store and gives what it answered, if that can be true. An error matches
// ErrStore, or the error of ctx when the caller ended that.
func (l *Limiter) ask(ctx context.Context, entries []Entry, store func(context.Context, []Entry) ([]Row, error)) (rows []Row, err error) {
	err = l.call(ctx, func(ctx context.Context) (err error) {
		rows, err = store(ctx, entries)
		return err
	})
	return rows, err
}

// call makes a call to the store. An error matches ErrStore, or the error of ctx when the caller
// ended that.
func (l *Limiter) call(ctx context.Context, call func(context.Context) error) error {
	err := call(ctx)
	if err == nil {
		return nil
	}
	if gone := ended(ctx); gone != nil {
		return gone
	}
	if errors.Is(err, ErrStore) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

func (l *Limiter) entries(charges []Charge) ([]Entry, error) {
	if len(charges) < 1 || len(charges) > MaxCharges {
		return nil, fmt.Errorf("%w: %d of them: allowed are 1 to %d", ErrCharges, len(charges), MaxCharges)
	}
	entries := make([]Entry, 0, len(charges))
	for _, charge := range charges {
		policy := charge.Policy
		if err := policy.Validate(); err != nil {
			return nil, err
		}
		if charge.Cost < 0 || charge.Cost > policy.Capacity() {
			return nil, fmt.Errorf("%w: %s: cost %d: allowed are 0 to the limit, %d",
				ErrCost, policy.Name, charge.Cost, policy.Capacity())
		}
		entry := Entry{Policy: policy, Cost: charge.Cost}
		subject, err := l.subject(policy, charge.Subject)
		if err != nil {
			return nil, err
		}
		entry.Key, entry.OtherKey, entry.Place, entry.Rotating = subject.key, subject.other, subject.place, l.other != nil
		for _, other := range entries {
			if other.Key == entry.Key {
				return nil, fmt.Errorf("%w: %s twice for one subject", ErrCharges, policy.Name)
			}
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// subject is what stores know of one.
type subject struct {
	key   int64
	other int64 // under the other secret, while there is one
	place uint64
}

func (l *Limiter) subject(policy Policy, name string) (s subject, err error) {
	canonical, err := policy.Subject.Canonical(name)
	if err != nil {
		return subject{}, fmt.Errorf("%s: %w", policy.Name, err)
	}
	if l.other != nil {
		s.other = keyOf(l.other, policy.Name, policy.Subject, canonical)
	}
	s.key, s.place = keyOf(l.secret, policy.Name, policy.Subject, canonical), placeOf(policy.Subject, canonical)
	return s, nil
}

// Operate does what an operator asks to one subject of a policy, in one round trip, and leaves an audit row: Reset forgets
// what was charged and ends a ban or an exemption; Ban refuses and Allow admits, whatever is left, until the given time by
// the store's clock. An error matches ErrPolicy, ErrSubject, ErrOperation or ErrStore.
func (l *Limiter) Operate(ctx context.Context, action Action, policy Policy, subject string, until time.Time) error {
	if err := policy.Validate(); err != nil {
		return err
	}
	known, err := l.subject(policy, subject)
	if err != nil {
		return err
	}
	operation := Operation{
		Key: known.key, OtherKey: known.other, Rotating: l.other != nil, Place: known.place, Policy: policy.Name, Action: action,
	}
	switch {
	case action != Reset && action != Ban && action != Allow:
		return fmt.Errorf("%w: %q: allowed are %s, %s and %s", ErrOperation, string(action), Reset, Ban, Allow)
	case action != Reset && (until.UnixMicro() < earliestMicros || until.UnixMicro() > latestMicros):
		return fmt.Errorf("%w: %s until %v: allowed are the years 2000 to 2199", ErrOperation, action, until)
	case action != Reset:
		operation.UntilMicros = until.UnixMilli() * 1000
	}
	return l.call(ctx, func(ctx context.Context) error { return l.store.Operate(ctx, operation) })
}

// checkRows refuses rows that no working store gives, so that nonsense is an outage and never an answer.
func checkRows(entries []Entry, rows []Row) error {
	if len(rows) != len(entries) {
		return fmt.Errorf("%w: it answered %d rows for %d limits", ErrStore, len(rows), len(entries))
	}
	for i, row := range rows {
		state := row.State
		switch {
		case row.NowMicros < earliestMicros:
			return fmt.Errorf("%w: its clock says %d µs since 1970", ErrStore, row.NowMicros)
		case state.Used < 0 || state.Rest < 0 || state.HighMicros < 0 || state.BehindMicros < 0 || state.BehindMicros > state.HighMicros ||
			state.RefusedMicros < 0:
			return fmt.Errorf("%w: it answered an impossible state: %+v", ErrStore, state)
		case row.Charged && !entries[i].chargedAs(row):
			return fmt.Errorf("%w: it charged %d to a limit of %d and answered the state %+v",
				ErrStore, entries[i].Cost, entries[i].Policy.Capacity(), state)
		}
	}
	return nil
}

// chargedAs says whether a row can be what a charge of the entry left.
func (e Entry) chargedAs(row Row) bool {
	state := row.State
	return e.Cost > 0 && state.Algorithm == e.Policy.Algorithm && row.NowMicros == state.HighMicros-state.BehindMicros &&
		(row.Uncounted && state.Override == Exempt || state.standsFor(e))
}

// standsFor reports whether a state can be what a counted charge left. In a queue the place counts: what waits behind a vacant place
// may be more than a queue that was made shorter holds.
func (s State) standsFor(e Entry) bool {
	if e.Policy.Algorithm == LeakyBucket {
		ms := e.Policy.Window.Milliseconds()
		return s.Place >= e.Cost*ms && s.Place <= e.Policy.Capacity()*ms
	}
	return s.Used >= e.Cost && s.Used <= e.Policy.Capacity()
}

// conclude turns what the store did into an answer. The verdict comes from what the store charged; the states say only what
// is left and how long to wait.
func conclude(entries []Entry, rows []Row, allowed bool) Decision {
	decision := Decision{Allowed: allowed, Limits: make([]LimitResult, len(entries))}
	blamed := allowed
	for i, entry := range entries {
		row := rows[i]
		now := entry.Policy.step(row.State, row.NowMicros, entry.Cost)
		result := LimitResult{
			Policy:    entry.Policy,
			Allowed:   decision.Allowed || row.Charged || now.fits,
			Remaining: now.remaining,
			Reset:     told(now.resetMicros),
		}
		if state := row.State; state.Override == Banned && state.UntilMicros > row.NowMicros {
			result.BannedUntil = time.UnixMicro(state.UntilMicros).UTC()
		}
		if row.Charged {
			result.Reservation = reserve(entry, row)
			if !now.exempted && !row.Uncounted {
				result.Delay = micros(entry.Policy.delayMicros(row.State, entry.Cost))
			}
		}
		if !result.Allowed {
			result.RetryAfter = told(now.retryMicros)
			result.Reset = result.RetryAfter
			blamed = true
		}
		result.wait, result.exempt = told(now.retryMicros), micros(now.exempt)
		decision.Limits[i] = result
	}
	if !blamed {
		blame(&decision, entries, rows)
	}
	decision.RetryAfter = decision.RetryAfterOf(all)
	return decision
}

func all(Policy) bool { return true }

// RetryAfterOf is RetryAfter as far as some of the limits are concerned: those that count returns true for. An answer that
// must not tell of one limit tells the wait for the others. It is 0 when allowed.
func (d Decision) RetryAfterOf(count func(Policy) bool) time.Duration {
	var wait time.Duration
	for grown := !d.Allowed; grown; {
		grown = false
		for _, limit := range d.Limits {
			// An exemption helps while it lasts, also when the wait is told in whole seconds.
			ended := limit.exempt <= (wait + time.Second - 1).Truncate(time.Second)
			if ended && limit.wait > wait && count(limit.Policy) {
				wait, grown = limit.wait, true
			}
		}
	}
	return wait
}

// verdict reports whether every charge was made. A charge of 0 is never made, and only a ban refuses it. Where a charge was
// made that depends on the others, the store has looked at that; elsewhere the states tell.
func verdict(entries []Entry, rows []Row) bool {
	decided := false
	for i, entry := range entries {
		if entry.Cost > 0 && !rows[i].Charged {
			return false
		}
		decided = decided || entry.Cost > 0 && entry.Policy.Count == Admitted
	}
	for i, entry := range entries {
		if !decided && entry.Cost == 0 && !fits(entry, rows[i]) {
			return false
		}
	}
	return true
}

// blame names who refused when, by the time that the states were read, nobody does any more: a window ended in between, or
// a charge was given back. A limit that was full when its key was last written is the cause. When there is none, a limit
// that everybody may know of stands for it rather than a private one.
func blame(decision *Decision, entries []Entry, rows []Row) {
	cause := -1
	for i, entry := range entries {
		if rows[i].Charged || entry.Cost == 0 {
			continue
		}
		state := rows[i].State
		if !entry.Policy.step(state, state.HighMicros-state.BehindMicros, entry.Cost).fits {
			cause = i
			break
		}
		if cause < 0 || entries[cause].Policy.Private && !entry.Policy.Private {
			cause = i
		}
	}
	result := &decision.Limits[cause]
	result.Allowed, result.Remaining = false, 0
	result.RetryAfter, result.Reset, result.wait = time.Second, time.Second, time.Second
}

// reserve returns what gives a charge back: nothing of what an exemption admitted uncounted.
func reserve(entry Entry, row Row) (reservation Reservation) {
	if !row.Uncounted {
		reservation.refund = refundOf(entry, row)
	}
	if row.Next != nil && !row.Next.Uncounted {
		reservation.next = refundOf(entry, *row.Next)
	}
	return reservation
}

// refunds are what is to be given back of a reservation.
func (r Reservation) refunds() []Refund {
	return slices.DeleteFunc([]Refund{r.refund, r.next}, func(refund Refund) bool { return refund == Refund{} })
}

// refundOf is what gives a charge back.
func refundOf(entry Entry, row Row) Refund {
	var id [8]byte
	rand.Read(id[:]) // never fails: crypto/rand ends the process rather than return an error
	refund := Refund{
		ID:            int64(binary.BigEndian.Uint64(id[:]) >> 1),
		Key:           entry.Key,
		OtherKey:      entry.OtherKey,
		Rotating:      entry.Rotating,
		Policy:        entry.Policy,
		Cost:          entry.Cost,
		ChargedMicros: row.NowMicros,
		Epoch:         row.State.Epoch,
		Sequence:      row.State.Sequence,
		ExpiresMicros: row.NowMicros + entry.Policy.lifeMicros(),
		Shard:         row.Shard,
	}
	switch entry.Policy.Algorithm {
	case TokenBucket:
		refund.Debt = row.State.Used*entry.Policy.Window.Milliseconds() + row.State.Rest
	case LeakyBucket:
		refund.Debt = row.State.Place
	}
	return refund
}

// micros returns n microseconds; what a Duration can't hold is its longest.
func micros(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// told returns a wait of n microseconds as a decision tells it: a century at the most, also where a
// ban lasts longer.
func told(n int64) time.Duration { return min(micros(n), MaxWindow) }
