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
	// SlidingWindow keeps the counts of the current and the previous aligned window, and takes the previous one to have
	// been spread evenly: previous × (1 − elapsed) + current must not go above Limit. Fewer than twice the limit pass in
	// any stretch of one window, and near the limit where traffic is even.
	SlidingWindow Algorithm = 2
	// SlidingLog keeps the time of each unit: at most Limit units pass in any stretch of one window, wherever it begins.
	// It takes 8 bytes a unit, so Limit is at most MaxLogLimit.
	SlidingLog Algorithm = 3
	// TokenBucket holds Burst tokens at first and gains Limit tokens in each window, continuously: at most
	// Burst + Limit × t / Window units pass in any stretch of t.
	TokenBucket Algorithm = 4
	// LeakyBucket is a queue that is served at Limit units in each window. What comes when Queue units wait is refused;
	// what is admitted is told how long to wait, and then leaves at an even rate: see LimitResult.Delay.
	LeakyBucket Algorithm = 5
)

var algorithmNames = map[Algorithm]string{
	FixedWindow:   "fixed-window",
	SlidingWindow: "sliding-window",
	SlidingLog:    "sliding-log",
	TokenBucket:   "token-bucket",
	LeakyBucket:   "leaky-bucket",
}

// String gives the algorithm's name as the HTTP contract spells it, for example "fixed-window".
func (a Algorithm) String() string {
	if name, found := algorithmNames[a]; found {
		return name
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
	MaxLogLimit  = 1000                      // a log of 8 KB is read and written with every charge
	MinWindow    = time.Millisecond          // the resolution of the store's clock, and the unit of windows
	MaxWindow    = 36525 * 24 * time.Hour    // a century
	maxProduct   = 1 << 59                   // of units and milliseconds, so that sums of a few of them fit 64 bits
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
	// Limit is the number of units that Window admits, 1 to MaxLimit, or to MaxLogLimit for SlidingLog. For SlidingWindow,
	// TokenBucket and LeakyBucket Limit × Window may be up to 2⁵⁹ ms: a million a month, for example.
	Limit int64
	// Window is the time that Limit belongs to, MinWindow to MaxWindow, in whole milliseconds.
	Window time.Duration
	// Burst is how many tokens a TokenBucket holds when it is full. The zero value means Limit; others must leave it 0.
	Burst int64
	// Queue is how many units may wait in a LeakyBucket besides the one that is served. The zero value means none;
	// others must leave it 0.
	Queue int64
	// Subject is the kind of name that the limit counts by. The zero value is Opaque.
	Subject SubjectKind
	// Count says which requests are charged. The zero value is Admitted.
	Count Count
	// Private hides the limit from answers until it refuses: neither its existence nor what is left of it may show,
	// because it would tell a stranger about somebody else's account.
	Private bool
	// Failure says what holds while the store doesn't answer. The zero value is Refuse. Of several limits in a decision the
	// hardest word counts.
	Failure Failure
	// Deadline bounds a decision that this limit takes part in, besides Config.Deadline. Zero means that one alone.
	Deadline time.Duration
}

// Capacity is the most units that can pass at one moment, and so the largest cost: Limit, for a TokenBucket Burst, for a
// LeakyBucket the one that is served and those that may wait.
func (p Policy) Capacity() int64 {
	switch {
	case p.Algorithm == LeakyBucket:
		return p.Queue + 1
	case p.Algorithm == TokenBucket && p.Burst != 0:
		return p.Burst
	}
	return p.Limit
}

// Validate reports the first field that is out of bounds, with its value and what is allowed. The error matches ErrPolicy.
func (p Policy) Validate() error {
	_, known := algorithmNames[p.Algorithm]
	mostLimit := int64(MaxLimit)
	if p.Algorithm == SlidingLog {
		mostLimit = MaxLogLimit
	}
	switch {
	case !validName(p.Name):
		return fmt.Errorf("%w: name %.80q: allowed are 1 to %d bytes of %s, beginning with a letter or digit",
			ErrPolicy, p.Name, MaxNameBytes, nameAlphabet)
	case !known:
		return fmt.Errorf("%w: %s: %s is not known", ErrPolicy, p.Name, p.Algorithm)
	case p.Limit < 1 || p.Limit > mostLimit:
		return fmt.Errorf("%w: %s: limit %d: allowed are 1 to %d", ErrPolicy, p.Name, p.Limit, mostLimit)
	case p.Window < MinWindow || p.Window > MaxWindow || p.Window%MinWindow != 0:
		return fmt.Errorf("%w: %s: window %v: allowed are %v to %v in whole milliseconds",
			ErrPolicy, p.Name, p.Window, MinWindow, MaxWindow)
	case p.Failure > Open:
		return fmt.Errorf("%w: %s: %v: allowed are refuse, strict and open", ErrPolicy, p.Name, p.Failure)
	case p.Deadline < 0:
		return fmt.Errorf("%w: %s: deadline %v: it must not be negative", ErrPolicy, p.Name, p.Deadline)
	case p.Burst < 0 || p.Burst > MaxLimit || p.Burst != 0 && p.Algorithm != TokenBucket:
		return fmt.Errorf("%w: %s: burst %d: allowed are 0 to %d for a %s and 0 for others",
			ErrPolicy, p.Name, p.Burst, MaxLimit, TokenBucket)
	case p.Queue < 0 || p.Queue >= MaxLimit || p.Queue != 0 && p.Algorithm != LeakyBucket:
		return fmt.Errorf("%w: %s: queue %d: allowed are 0 to %d for a %s and 0 for others",
			ErrPolicy, p.Name, p.Queue, MaxLimit-1, LeakyBucket)
	case p.divides() && max(p.Limit, p.Capacity()) > maxProduct/p.Window.Milliseconds():
		return fmt.Errorf("%w: %s: %d units and a window of %v: for a %s allowed are %d in that time",
			ErrPolicy, p.Name, max(p.Limit, p.Capacity()), p.Window, p.Algorithm, maxProduct/p.Window.Milliseconds())
	case p.bucket() && p.Capacity() > p.Limit*(MaxWindow.Milliseconds()/p.Window.Milliseconds()):
		return fmt.Errorf("%w: %s: a capacity of %d takes more than a century to come back at %d in %v",
			ErrPolicy, p.Name, p.Capacity(), p.Limit, p.Window)
	case p.Subject > APIKey:
		return fmt.Errorf("%w: %s: subject kind %d is not known", ErrPolicy, p.Name, p.Subject)
	case p.Count > EveryAttempt:
		return fmt.Errorf("%w: %s: count %d is not known", ErrPolicy, p.Name, p.Count)
	}
	return nil
}

// divides says whether the algorithm counts in fractions of a unit, one for each millisecond of the window.
func (p Policy) divides() bool {
	return p.Algorithm == SlidingWindow || p.Algorithm == TokenBucket || p.Algorithm == LeakyBucket
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
// above Capacity are refused by Decide with ErrCost.
func (p Policy) ChargeN(subject string, cost int64) Charge {
	return Charge{Policy: p, Subject: subject, Cost: cost}
}

// Charge is one limit of a decision: make it with Policy.Charge or Policy.ChargeN.
type Charge struct {
	Policy  Policy
	Subject string // as the caller has it; Decide brings it into canonical form
	Cost    int64  // units
}
