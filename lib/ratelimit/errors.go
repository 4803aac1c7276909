package ratelimit

import "errors"

// Errors that callers branch on, with errors.Is. Only ErrStore concerns the outside; the others are
// mistakes in the call, found before anything is stored. When the caller's context ends first, the
// error matches context.Canceled or context.DeadlineExceeded and none of these.
var (
	// ErrPolicy means that a policy is out of bounds.
	ErrPolicy = errors.New("ratelimit: policy not valid")
	// ErrSubject means that a subject is blank, too long or not of the policy's kind.
	ErrSubject = errors.New("ratelimit: subject not valid")
	// ErrCost means that a cost is negative or above the limit.
	ErrCost = errors.New("ratelimit: cost not valid")
	// ErrCharges means that a decision has no charge, too many, or one policy and subject twice.
	ErrCharges = errors.New("ratelimit: charges not valid")
	// ErrOperation means that an operator's action is not known, or its time out of bounds.
	ErrOperation = errors.New("ratelimit: operation not valid")
	// ErrReservation means that a text is no reservation that this limiter sealed.
	ErrReservation = errors.New("ratelimit: reservation not valid")
	// ErrSecret means that the secret is too short, or the same twice.
	ErrSecret = errors.New("ratelimit: secret not valid")
	// ErrConfig means that a field of Config is out of bounds.
	ErrConfig = errors.New("ratelimit: configuration not valid")
	// ErrStore means that the store didn't answer, or answered nonsense. Whether it charged is unknown.
	ErrStore = errors.New("ratelimit: store failed")
)
