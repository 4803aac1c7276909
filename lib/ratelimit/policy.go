package ratelimit

import (
	"fmt"
	"time"
)

// Algorithm says how a policy counts. Its number is stored with each key, so a number is never given a new meaning.
type Algorithm uint8

const (
	// FixedWindow admits at most Limit units in each window. Windows are aligned to 1970-01-01T00:00:00Z by the
	// store's clock: a window of a minute begins at :00. Around an edge up to twice the limit can pass within one
	// window's length: all of one window at its end and all of the next at its beginning.
	FixedWindow Algorithm = 1
)

// String gives the algorithm's name as the HTTP contract spells it, for example "fixed-window".
func (a Algorithm) String() string {
	switch a {
	case FixedWindow:
		return "fixed-window"
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// Count says which requests a limit is charged for.
type Count uint8

const (
	// Admitted charges a limit only when the whole decision admits the request. It is the zero value.
	Admitted Count = iota
	// EveryAttempt charges a limit whenever it itself admits the request, also when another limit of the same
	// decision refuses: hammering a locked account still uses up the address it comes from.
	EveryAttempt
)

// Bounds of a policy. They keep every product and sum of the arithmetic far inside 64 bits, in Go and in SQL.
const (
	MaxNameBytes = 64
	MaxLimit     = 1_000_000_000
	MinWindow    = time.Millisecond          // the resolution of the store's clock
	MaxWindow    = 36525 * 24 * time.Hour    // a century
	windowStep   = time.Microsecond          // the unit of stored times
	nameAlphabet = "a to z, 0 to 9, . and -" // they need no escaping in a header, in JSON or in a log
)

// Policy is one limit: how much of what, per whom, in which time. It is a plain value without state; a changed policy
// takes effect at the next decision, because stored counters hold no limit.
type Policy struct {
	// Name is the bucket: policies with equal names share their counters. 1 to 64 bytes of a–z, 0–9, "." and "-",
	// beginning with a letter or digit. It appears in headers and in the audit.
	Name string
	// Algorithm has no default: zero is refused.
	Algorithm Algorithm
	// Limit is the number of units admitted, 1 to MaxLimit.
	Limit int64
	// Window is the time that Limit belongs to, MinWindow to MaxWindow, in whole microseconds.
	Window time.Duration
	// Subject is the kind of name that the limit counts by. The zero value is Opaque.
	Subject SubjectKind
	// Count says which requests are charged. The zero value is Admitted.
	Count Count
	// Private hides the limit from answers until it refuses: neither its existence nor what is left of it may show,
	// because it would tell a stranger about somebody else's account.
	Private bool
}

// Validate reports the first field that is out of bounds, with its value and what is allowed. The error matches ErrPolicy.
func (p Policy) Validate() error {
	switch {
	case !validName(p.Name):
		return fmt.Errorf("%w: name %.80q: allowed are 1 to %d bytes of %s, beginning with a letter or digit",
			ErrPolicy, p.Name, MaxNameBytes, nameAlphabet)
	case p.Algorithm != FixedWindow:
		return fmt.Errorf("%w: %s: %s is not known: allowed is %s", ErrPolicy, p.Name, p.Algorithm, FixedWindow)
	case p.Limit < 1 || p.Limit > MaxLimit:
		return fmt.Errorf("%w: %s: limit %d: allowed are 1 to %d", ErrPolicy, p.Name, p.Limit, MaxLimit)
	case p.Window < MinWindow || p.Window > MaxWindow || p.Window%windowStep != 0:
		return fmt.Errorf("%w: %s: window %v: allowed are %v to %v in whole microseconds",
			ErrPolicy, p.Name, p.Window, MinWindow, MaxWindow)
	case p.Subject > Account:
		return fmt.Errorf("%w: %s: subject kind %d is not known", ErrPolicy, p.Name, p.Subject)
	case p.Count > EveryAttempt:
		return fmt.Errorf("%w: %s: count %d is not known", ErrPolicy, p.Name, p.Count)
	}
	return nil
}

func validName(name string) bool {
	if len(name) < 1 || len(name) > MaxNameBytes {
		return false
	}
	for i, c := range []byte(name) {
		alphanumeric := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || c != '-' && c != '.') {
			return false
		}
	}
	return true
}

// Charge asks for one unit of the policy on behalf of subject.
func (p Policy) Charge(subject string) Charge {
	return p.ChargeN(subject, 1)
}

// ChargeN asks for cost units. A cost of 0 peeks: it reads what is left and writes nothing. A negative cost and one
// above the limit are refused by Decide with ErrCost.
func (p Policy) ChargeN(subject string, cost int64) Charge {
	return Charge{Policy: p, Subject: subject, Cost: cost}
}

// Charge is one limit of a decision: make it with Policy.Charge or Policy.ChargeN.
type Charge struct {
	Policy  Policy
	Subject string // as the caller has it; Decide brings it into canonical form
	Cost    int64  // units
}
