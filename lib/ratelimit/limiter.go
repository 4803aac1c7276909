package ratelimit

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

// Bounds of a decision.
const (
	MaxCharges     = 16 // a statement over more keys holds the store's only writer too long
	MinSecretBytes = 32 // the size of the hash's output, as RFC 2104 section 3 asks
)

// earliestMicros is 2000-01-01. A store whose clock lies before it answers nonsense.
const earliestMicros = 946_684_800_000_000

// Limiter decides whether requests may pass. It has no state of its own and may be used by many goroutines.
type Limiter struct {
	store  Store
	secret []byte
}

// New makes a Limiter over a store. The secret, at least MinSecretBytes long, turns subjects into keys: every instance
// must have the same one, and another one means other counters. A short secret is an error that matches ErrSecret.
func New(store Store, secret []byte) (*Limiter, error) {
	if len(secret) < MinSecretBytes {
		return nil, fmt.Errorf("%w: %d bytes long: at least %d are needed", ErrSecret, len(secret), MinSecretBytes)
	}
	return &Limiter{store: store, secret: append([]byte(nil), secret...)}, nil
}

// Decision is the answer to a set of charges.
type Decision struct {
	// Allowed is true when every limit admits the request; then all of them are charged. Otherwise only those are
	// that count every attempt and admit it themselves.
	Allowed bool
	// RetryAfter is 0 when allowed. Otherwise it is the time after which the same charges pass all limits, this
	// decision's own charges included, if nobody else charges them: for example 37.2s.
	RetryAfter time.Duration
	// Limits has an entry for each charge, in order.
	Limits []LimitResult
}

// LimitResult is what one limit of a decision says.
type LimitResult struct {
	Policy  Policy
	Allowed bool // by this limit alone
	// Remaining is the number of units that are left now, after what this decision charged: never negative.
	Remaining int64
	// Reset is the time until more units are to be had, always positive: for a fixed window, until its end.
	Reset time.Duration
	// RetryAfter is 0 when this limit allows the charge, otherwise the time until it does.
	RetryAfter time.Duration
	// Reservation names what this decision charged, for Limiter.GiveBack. It is the zero value when nothing was.
	Reservation Reservation
}

// Reservation names one charge of one decision. The zero value names none.
type Reservation struct {
	refund Refund
}

// Decide charges all limits, or, when one of them refuses, only those that count every attempt. It is one round trip to
// the store, whatever the number of limits. The store's clock and state decide; concurrent decisions, from any number of
// processes, never admit more than a limit.
//
// An error that matches ErrStore means that no answer came: the charges may have been made or not. Any other error
// (ErrPolicy, ErrSubject, ErrCost, ErrCharges) is a mistake in the call, and the store was not asked.
func (l *Limiter) Decide(ctx context.Context, charges ...Charge) (Decision, error) {
	entries, err := l.entries(charges)
	if err != nil {
		return Decision{}, err
	}
	rows, err := l.store.Decide(ctx, entries)
	if err != nil {
		return Decision{}, fmt.Errorf("%w: %w", ErrStore, err)
	}
	if err := checkRows(entries, rows); err != nil {
		return Decision{}, err
	}
	return conclude(entries, rows), nil
}

// GiveBack returns a reserved charge to its limit: once, and only what still stands of it. When the window of the charge
// is over there is nothing left to return, and that is no error. The zero Reservation is ignored. An error matches
// ErrStore; then the charge may stand or not, and asking again with the same reservation is safe.
func (l *Limiter) GiveBack(ctx context.Context, reservation Reservation) error {
	if reservation == (Reservation{}) {
		return nil
	}
	if err := l.store.GiveBack(ctx, reservation.refund); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return nil
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
		if charge.Cost < 0 || charge.Cost > policy.Limit {
			return nil, fmt.Errorf("%w: %s: cost %d: allowed are 0 to the limit, %d",
				ErrCost, policy.Name, charge.Cost, policy.Limit)
		}
		canonical, err := policy.Subject.Canonical(charge.Subject)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", policy.Name, err)
		}
		key := keyOf(l.secret, policy.Name, policy.Subject, canonical)
		for _, other := range entries {
			if other.Key == key {
				return nil, fmt.Errorf("%w: %s twice for one subject", ErrCharges, policy.Name)
			}
		}
		entries = append(entries, Entry{Key: key, Policy: policy, Cost: charge.Cost})
	}
	return entries, nil
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
		case state.Used < 0 || state.HighMicros < 0 || state.BehindMicros < 0 || state.BehindMicros > state.HighMicros ||
			state.RefusedMicros < 0:
			return fmt.Errorf("%w: it answered an impossible state: %+v", ErrStore, state)
		case row.Charged && (entries[i].Cost == 0 || state.Used < entries[i].Cost):
			return fmt.Errorf("%w: it charged %d and says that %d stand", ErrStore, entries[i].Cost, state.Used)
		}
	}
	return nil
}

// conclude turns what the store did into an answer. The verdict is what the store charged; the states say only what is
// left and how long to wait.
func conclude(entries []Entry, rows []Row) Decision {
	decision := Decision{Allowed: verdict(entries, rows), Limits: make([]LimitResult, len(entries))}
	for i, entry := range entries {
		row := rows[i]
		now := entry.Policy.step(row.State, row.NowMicros, entry.Cost)
		result := LimitResult{
			Policy:    entry.Policy,
			Allowed:   decision.Allowed || row.Charged || now.Fits,
			Remaining: max(entry.Policy.Limit-now.Used, 0),
			Reset:     time.Duration(now.ResetMicros) * time.Microsecond,
		}
		if row.Charged {
			result.Reservation = reserve(entry, row)
		}
		if !result.Allowed {
			result.RetryAfter = result.Reset
		}
		if !decision.Allowed && !now.Fits {
			decision.RetryAfter = max(decision.RetryAfter, result.Reset)
		}
		decision.Limits[i] = result
	}
	if !decision.Allowed && decision.RetryAfter == 0 {
		blameTightest(&decision)
	}
	return decision
}

// verdict is true when every charge was made. Charges of 0 are never made; alone, they are allowed when they fit.
func verdict(entries []Entry, rows []Row) bool {
	peeking := true
	for i, entry := range entries {
		if entry.Cost > 0 {
			peeking = false
			if !rows[i].Charged {
				return false
			}
		}
	}
	if !peeking {
		return true
	}
	for i, entry := range entries {
		if !entry.Policy.step(rows[i].State, rows[i].NowMicros, entry.Cost).Fits {
			return false
		}
	}
	return true
}

// blameTightest answers for a refusal whose cause was over by the time that the states were read: a window ended, or a
// charge was given back. The limit with the least left, of those not charged, stands for it.
func blameTightest(decision *Decision) {
	var tightest *LimitResult
	for i := range decision.Limits {
		result := &decision.Limits[i]
		charged := result.Reservation != (Reservation{})
		if !charged && (tightest == nil || result.Remaining < tightest.Remaining) {
			tightest = result
		}
	}
	tightest.Allowed = false
	tightest.RetryAfter = time.Second
	tightest.Reset = time.Second
	tightest.Remaining = 0
	decision.RetryAfter = time.Second
}

func reserve(entry Entry, row Row) Reservation {
	var id [8]byte
	rand.Read(id[:]) // never fails: crypto/rand ends the process rather than return an error
	return Reservation{Refund{
		ID:            int64(binary.BigEndian.Uint64(id[:]) >> 1),
		Key:           entry.Key,
		Policy:        entry.Policy,
		Cost:          entry.Cost,
		ChargedMicros: row.NowMicros,
	}}
}
