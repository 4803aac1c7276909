package ratelimit

import "context"

// Entry is one charge as a store sees it: a key instead of a subject. Keys are 0 to 2⁶³−1 and differ within a decision;
// Cost is between 0 and Policy.Capacity; Policy is valid.
type Entry struct {
	Key    int64
	Policy Policy
	Cost   int64
	// OtherKey is the same subject's key under the other secret. It counts while Rotating, which is the same for all
	// entries of a decision.
	OtherKey int64
	Rotating bool
	// Place is a hash of the subject alone: the same for all policies and under every secret. It is never stored. See Shards.
	Place uint64
	// Refused says that another limit of the same decision refuses, which this store doesn't know of. It is the same for all
	// entries of a decision.
	Refused bool
}

// Row is a key's state right after a decision.
type Row struct {
	State     State
	NowMicros int64 // the store's time that State was seen at, or, where the decision wrote it, the key's
	Charged   bool  // this decision admitted and charged the key
	Uncounted bool  // with Charged: an exemption admitted what didn't fit, so that nothing was counted
	// Of a Shards alone: which shard charged the key, and what was charged besides in the shard that is to have it.
	Shard uint32
	Next  *Row
}

// Refund names a charge that is to be given back.
type Refund struct {
	ID            int64 // of the reservation: random, 0 to 2⁶³−1; one ID is given back once
	Key           int64
	Policy        Policy // as it was when the charge was made
	Cost          int64
	ChargedMicros int64 // the store's time of the charge
	Debt          int64 // of a TokenBucket just after the charge; for a LeakyBucket State.Place; in units times milliseconds of the window
	Epoch         int64 // of the key when it was charged; in another one nothing of the charge stands
	Sequence      int64 // of the state that the charge left
	ExpiresMicros int64 // from here on nothing of the charge can stand
	OtherKey      int64 // see Entry
	Rotating      bool
	Shard         uint32 // see Row
}

// Action is what an operator does to a key.
type Action string

const (
	Reset Action = "reset" // forget what was charged, and end a ban or an exemption
	Ban   Action = "ban"   // refuse until a time
	Allow Action = "allow" // admit until a time, whatever is left; what fits still counts
)

// Operation is an operator's change of one key.
type Operation struct {
	Key         int64
	Policy      string
	Action      Action
	UntilMicros int64 // of Ban and Allow
	OtherKey    int64 // see Entry
	Rotating    bool
	Place       uint64
}

// Store keeps the states of keys and decides by its own clock. Its methods may be called by many goroutines, and by many
// processes when it is shared. Package storetest holds the suite that every Store passes.
//
// An error means that the outcome is unknown: the decision may have been carried out or not. A Store never carries one
// out twice, and never in part.
type Store interface {
	// Decide carries out one decision as one atomic unit, ordered with every other decision on any of its keys.
	//
	// A key whose charge fits its limit is charged when every key's charge fits and none is Refused, or when its policy counts
	// every attempt. While Rotating, a key's state is that of Key or of OtherKey, whichever was written last, with the later of
	// what operators said about either, and is written to Key. A key whose charge does not fit is never charged; when it is the first such refusal of the key in a
	// window (Policy.Window: aligned for FixedWindow and SlidingWindow, otherwise counted from the last such refusal), that is marked in its state and one audit row is written, in
	// the same unit. Nothing else is written: not for a cost of 0, and not for later refusals of the window, but for one
	// that sees the store's clock stepped back, or a ban that OtherKey alone knows of: that brings the state along.
	//
	// It returns a Row for each entry, in order. Charged comes from the unit itself. The state of a key that the
	// unit didn't write may be read just after it, and so may show later charges of others.
	Decide(ctx context.Context, entries []Entry) ([]Row, error)

	// Peek gives the Row of each entry as it is now, and writes nothing.
	Peek(ctx context.Context, entries []Entry) ([]Row, error)

	// GiveBack takes what still stands of each charge out of its key's state, once for each Refund.ID, as one atomic
	// unit. The keys differ. A charge no longer stands when its window is over, when a token bucket has been refilled by as
	// much, when its turn in a queue has come, or when an operator has reset the key. No other charge is touched: in a queue
	// all others keep their places, and the place is vacant for the next charge that fits it. While Rotating, a decision that
	// writes the first state under Key may leave vacant places alone.
	GiveBack(ctx context.Context, refunds []Refund) error

	// Operate carries out an operator's change and writes its audit row as one atomic unit. While Rotating it changes the
	// states under both keys.
	Operate(ctx context.Context, operation Operation) error

	// Sweep deletes expired keys, and looks at no more than so many rows. from is 0 at first, and then one more than Last of
	// the step before; a Store that finds what has expired in another way needs none. It is done when it looked at fewer rows
	// than it might. It never deletes a key that could still refuse something. A Store may also sweep in passing.
	Sweep(ctx context.Context, from int64, rows int) (Swept, error)
}

// Swept is what one sweep did.
type Swept struct {
	Looked  int64 // rows that it looked at; 0 when there are none from there on
	Deleted int64 // keys
	Last    int64 // the last key that it looked at, for the next step
}
