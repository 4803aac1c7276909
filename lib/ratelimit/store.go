package ratelimit

import "context"

// Entry is one charge as a store sees it: a key instead of a subject. Keys are 0 to 2⁶³−1 and differ within a decision;
// Cost is between 0 and Policy.Limit; Policy is valid.
type Entry struct {
	Key    int64
	Policy Policy
	Cost   int64
}

// Row is a key's state right after a decision.
type Row struct {
	State     State
	NowMicros int64 // the store's time that State was seen at
	Charged   bool  // this decision charged the key
}

// Refund names a charge that is to be given back.
type Refund struct {
	ID            int64 // of the reservation: random, 0 to 2⁶³−1; one ID is given back once
	Key           int64
	Policy        Policy // as it was when the charge was made
	Cost          int64
	ChargedMicros int64 // the store's time of the charge
}

// Store keeps the states of keys and decides by its own clock. Its methods may be called by many goroutines, and by many
// processes when it is shared. Package storetest holds the suite that every Store passes.
//
// An error means that the outcome is unknown: the decision may have been carried out or not. A Store never carries one
// out twice, and never in part.
type Store interface {
	// Decide carries out one decision as one atomic unit, ordered with every other decision on any of its keys.
	//
	// A key whose charge fits its limit is charged when every key's charge fits, or when its policy counts every
	// attempt. A key whose charge does not fit is never charged; when it is the first such refusal of the key in a
	// window (Policy.Window, aligned for FixedWindow), that is marked in its state and one audit row is written, in
	// the same unit. Nothing else is written: not for a cost of 0, and not for later refusals of the window.
	//
	// It returns a Row for each entry, in order. Charged comes from the unit itself. The state of a key that the
	// unit didn't write may be read just after it, and so may show later charges of others.
	Decide(ctx context.Context, entries []Entry) ([]Row, error)

	// GiveBack takes what still stands of a charge out of its key's state, once for each refund.ID, as one atomic
	// unit. A charge no longer stands when its window is over. Nobody else's charge is touched.
	GiveBack(ctx context.Context, refund Refund) error
}
