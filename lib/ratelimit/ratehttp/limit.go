// Package ratehttp puts rate limits in front of net/http handlers, and writes what a decision says into answers: the
// RateLimit fields of draft-ietf-httpapi-ratelimit-headers-11 and the three older ones, and refusals as problem details.
package ratehttp

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Config says how Limit works. The zero value is ready to use.
type Config struct {
	// Log takes a line for each request that could not be decided, with the error and nothing of the request. Nil: no lines.
	Log *slog.Logger
}

// Charges says what a request is charged: see Limit.
type Charges func(*http.Request) ([]ratelimit.Charge, error)

// Limit makes middleware that charges each request before its handler runs, all its limits in one round trip. Every
// answer, also the handler's own errors, carries the RateLimit fields of what was decided.
//
// A refused request is answered 429 with Retry-After; where the store doesn't answer, 503 with
// Retry-After; the handler doesn't run then. A client that hangs up has been counted all the same.
// The handler finds the decision by [Decided].
//
// A handler that a [ratelimit.LeakyBucket] admitted with a delay runs after that delay. A request
// whose context ends before, because its client went away or the server's BaseContext was
// cancelled, gives its place in the queue back, and its handler doesn't run; what other limits
// charged stands.
//
// Answers have each RateLimit field once, also where the handler sets some of its own, as a reverse
// proxy does: the tightest value of the older fields, and in the lists each policy once. Its fields
// that can't be read are dropped.
//
// Charges names what a request is charged; with no charge and no error it passes uncounted. An error that is a [Problem] is
// answered so, and one that matches ratelimit.ErrSubject with 400; any other is answered 500 and logged. Nothing is charged
// then. A subject among the charges that its policy can't read is a 400 too, and the other charges count all the same: or
// else nonsense would be a way around the limit of an address. Charges must not read the body, which is the handler's.
//
// Middleware inside other middleware of this package works: each charges its own limits, and the fields tell of all of them.
// CORS belongs outside, so that a page can read refusals and preflights aren't counted.
func Limit(limiter *ratelimit.Limiter, charges Charges, config Config) func(http.Handler) http.Handler {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return func(next http.Handler) http.Handler {
		return &limited{limiter, charges, config.Log, next, bodyTime}
	}
}

// PerAddress charges one unit of each policy to the address that RemoteAddr gives.
func PerAddress(policies ...ratelimit.Policy) Charges {
	return func(r *http.Request) ([]ratelimit.Charge, error) {
		address, err := RemoteAddr(r)
		if err != nil {
			return nil, err
		}
		var charges []ratelimit.Charge
		for _, policy := range policies {
			charges = append(charges, policy.Charge(address))
		}
		return charges, nil
	}
}

// RemoteAddr gives the address of the socket that a request came from, as limits count it: without
// the port and, of a link-local address, the zone, an IPv6 address cut to its /64. No header is
// believed, because a client can write any. Behind a proxy that is the proxy's address, and one
// counter for all: there, name the client by the header that the proxy sets itself. Where there is
// no address, as on a Unix socket, the error is a Problem with status 503: a counter shared by all
// such requests would let one caller lock out the others.
func RemoteAddr(r *http.Request) (string, error) {
	address, err := ratelimit.CanonicalAddress(withoutZone(r.RemoteAddr))
	if err != nil {
		return "", &Problem{
			Status:            http.StatusServiceUnavailable,
			Detail:            "The service cannot tell which address this request comes from, so it cannot be counted.",
			RetryAfterSeconds: unavailableSeconds,
		}
	}
	return address, nil
}

// withoutZone drops the zone of an address that a socket gave. The zone names an interface of this
// machine; text of any other origin that has one is no address.
func withoutZone(remote string) string {
	if address, err := netip.ParseAddrPort(remote); err == nil {
		return address.Addr().WithZone("").String()
	}
	if address, err := netip.ParseAddr(remote); err == nil {
		return address.WithZone("").String()
	}
	return remote
}

// decided is the key of the decision in a request's context.
type decided struct{}

// Decided gives what the middleware around a handler decided, that of the outermost first, for example to give a reservation
// back. Without any it is the zero value.
func Decided(ctx context.Context) ratelimit.Decision {
	decision, _ := ctx.Value(decided{}).(ratelimit.Decision)
	return decision
}

type limited struct {
	limiter  *ratelimit.Limiter
	charges  Charges
	log      *slog.Logger
	next     http.Handler
	bodyTime time.Duration
}

func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	own, err := l.decide(r)
	if own.Outage != nil {
		l.log.WarnContext(r.Context(), "rate limits: store did not answer, admitted without it", slog.String("error", own.Outage.Error()))
	}
	var told figures
	if len(own.Limits) > 0 {
		decision := join(Decided(r.Context()), own)
		told = figuresOf(decision)
		told.merge(w.Header())
		r = r.WithContext(context.WithValue(r.Context(), decided{}, decision))
		if err == nil && !own.Allowed {
			err = Refusal(decision)
		}
	}
	if err == nil {
		err = l.wait(r.Context(), own)
	}
	if err != nil {
		boundBody(w, r, l.bodyTime)
		l.problem(r.Context(), err).Write(w)
		return
	}
	if len(told.policies) == 0 {
		l.next.ServeHTTP(w, r)
		return
	}
	w, returned := mergeFields(w, told)
	l.next.ServeHTTP(w, r)
	returned()
}

// bodyTime is how long the rest of a body may take that no handler reads.
const bodyTime = 10 * time.Second

// boundBody gives the rest of a request's body a deadline: net/http reads it before an answer that
// it wasn't read for goes out, and would wait for ever for a client that stalls, unless its server
// has a ReadTimeout.
func boundBody(w http.ResponseWriter, r *http.Request, limit time.Duration) {
	if r.Body != nil && r.Body != http.NoBody {
		// An error means that there is no connection to wait for.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(limit))
	}
}

// decide charges a request. Besides an error it may give a decision, of the charges that could be
// read. A client that hangs up is counted like any other, so nothing here ends with its connection:
// Charges keeps a deadline that an outer handler set, and the limiter has its own.
func (l *limited) decide(r *http.Request) (ratelimit.Decision, error) {
	detached := context.WithoutCancel(r.Context())
	ctx, cancel := detached, func() {}
	if deadline, found := r.Context().Deadline(); found {
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	charges, err := l.charges(r.WithContext(ctx))
	cancel()
	if err != nil || len(charges) == 0 {
		return ratelimit.Decision{Allowed: true}, err
	}
	decision, err := l.limiter.Decide(detached, charges...)
	if !errors.Is(err, ratelimit.ErrSubject) {
		return decision, err
	}
	var readable []ratelimit.Charge
	for _, charge := range charges {
		if _, err := charge.Policy.Subject.Canonical(charge.Subject); err == nil {
			readable = append(readable, charge)
		}
	}
	if len(readable) == 0 {
		return ratelimit.Decision{}, err
	}
	decision, second := l.limiter.Decide(detached, readable...)
	if second != nil || !decision.Allowed {
		return decision, second
	}
	return decision, err
}

// join makes one decision of an outer one, which admitted the request, and an inner one.
func join(outer, inner ratelimit.Decision) ratelimit.Decision {
	if len(outer.Limits) == 0 {
		return inner
	}
	both := ratelimit.Decision{Allowed: inner.Allowed, Outage: cmp.Or(inner.Outage, outer.Outage)}
	both.Limits = append(append(both.Limits, outer.Limits...), inner.Limits...)
	both.RetryAfter = both.RetryAfterOf(func(ratelimit.Policy) bool { return true })
	return both
}

// wait lets a request wait for its turn in the queues that admitted it. One that ends before gives
// its places back; what else it was charged stands.
func (l *limited) wait(ctx context.Context, decision ratelimit.Decision) error {
	var delay time.Duration
	var places []ratelimit.Reservation
	for _, limit := range decision.Limits {
		delay = max(delay, limit.Delay)
		if limit.Policy.Algorithm == ratelimit.LeakyBucket {
			places = append(places, limit.Reservation)
		}
	}
	if delay == 0 {
		return nil
	}
	turn := time.NewTimer(delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-ctx.Done():
		// GiveBack doesn't end with ctx. Should it fail, the places are free when their turn is
		// over.
		_ = l.limiter.GiveBack(ctx, places...)
		return errGone
	}
}

// errGone means that a request ended while it waited for its turn.
var errGone = &Problem{
	Status:            http.StatusServiceUnavailable,
	Detail:            "The request ended before its turn came.",
	RetryAfterSeconds: unavailableSeconds,
}

// problem turns an error into what a client may know of it, and logs the rest.
func (l *limited) problem(ctx context.Context, err error) *Problem {
	var problem *Problem
	switch {
	case errors.As(err, &problem):
		return problem
	case errors.Is(err, ratelimit.ErrStore):
		l.log.WarnContext(ctx, "rate limits: store did not answer", slog.String("error", err.Error()))
		return &Problem{
			Status:            http.StatusServiceUnavailable,
			Detail:            "The service cannot reach its database at the moment. Please try again in a few seconds.",
			RetryAfterSeconds: unavailableSeconds,
		}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()): // Charges met the end of the request: there is nothing to mend
		return errGone
	case errors.Is(err, ratelimit.ErrSubject):
		return &Problem{
			Status: http.StatusBadRequest,
			Detail: "The request names somebody in a way that cannot be read.",
		}
	}
	l.log.ErrorContext(ctx, "rate limits: request could not be decided", slog.String("error", err.Error()))
	return &Problem{
		Status: http.StatusInternalServerError,
		Detail: "Something went wrong in the service. It was not your request's fault.",
	}
}
