package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"unicode/utf8"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Operation is one method of a resource: made by Body or Query.
//
// Its limits are decided in one round trip before it runs: the policies by address always, and what the input adds. A
// request whose input is malformed, too large or sent from another site's page costs the address as much as any other,
// and nothing else.
type Operation struct {
	check    func(*Call) error // before the input is looked at; nil: none
	identify func(*Call) ([]ratelimit.Charge, error)
	keyed    bool // whoever is identified costs the address nothing
	second   func(*Call) ([]ratelimit.Charge, error)
	limits   []ratelimit.Policy
	maxBytes int64 // of the body; 0: it is not read
	prepare  func(call *Call, body []byte) (prepared, error)
	choose   func(*Call) Operation // the operation that is meant instead; nil: this one
}

// Choose makes an operation that is one of several, by what a request looks like: how it says who asks, say. Choose reads
// neither a body nor a database; the operation that it gives does all the rest.
func Choose(choose func(*Call) Operation) Operation {
	return Operation{choose: choose}
}

// prepared is what the input of one request asks for.
type prepared struct {
	charges []ratelimit.Charge
	run     func() (Reply, error)
}

// Body makes an operation whose input is a JSON object that fits T: no unknown fields, none twice, nothing behind it. Its
// Content-Type doesn't matter.
//
// Limits are charged to the client's address; with none of them the address isn't needed. maxBytes bounds the body;
// 0 means MaxBodyBytes. Charges names what the input is charged to besides, and may refuse the input with an error; nil
// means no more charges. A subject that its policy can't read refuses the input too. Run does the work. Of an error that
// is no Problem the client learns nothing; the log gets its text, which must name nobody.
func Body[T any](limits []ratelimit.Policy, maxBytes int64, charges func(*Call, T) ([]ratelimit.Charge, error),
	run func(*Call, T) (Reply, error)) Operation {
	if maxBytes == 0 {
		maxBytes = MaxBodyBytes
	}
	prepare := func(call *Call, body []byte) (prepared, error) {
		var in T
		if err := decode(body, &in); err != nil {
			return prepared{}, err
		}
		out := prepared{run: func() (Reply, error) { return run(call, in) }}
		if charges == nil {
			return out, nil
		}
		var err error
		out.charges, err = charges(call, in)
		return out, err
	}
	return Operation{limits: limits, maxBytes: maxBytes, prepare: prepare}
}

// Query makes an operation whose input is in the URL, the header or nowhere; a body is not read. See Body.
func Query(limits []ratelimit.Policy, charges func(*Call) ([]ratelimit.Charge, error),
	run func(*Call) (Reply, error)) Operation {
	prepare := func(call *Call, _ []byte) (prepared, error) {
		out := prepared{run: func() (Reply, error) { return run(call) }}
		if charges == nil {
			return out, nil
		}
		var err error
		out.charges, err = charges(call)
		return out, err
	}
	return Operation{limits: limits, prepare: prepare}
}

// Identified makes an operation that first finds out who asks, from a cookie, say. What identify charges is counted whatever the
// input is, in the same decision as everything else. Its error refuses the request, which then costs the address alone.
func Identified(identify func(*Call) ([]ratelimit.Charge, error), operation Operation) Operation {
	operation.identify = identify
	return operation
}

// Keyed is Identified for those whose limits are in the place of the address's: clients that share one, or have many. The address
// pays for requests that identify refuses, and for no other.
func Keyed(identify func(*Call) ([]ratelimit.Charge, error), operation Operation) Operation {
	operation.identify, operation.keyed = identify, true
	return operation
}

// Reconsidered makes an operation whose requests may be decided a second time: when only limits that are private refuse, which
// say nothing of whoever asks, or when none does. Second looks at Call.Decision and names what is to be decided then: in the place
// of the private limits that refused, or in addition to what was admitted. The limits by address count the request once. With no
// charges the first decision stands; an error is the answer.
func Reconsidered(second func(*Call) ([]ratelimit.Charge, error), operation Operation) Operation {
	operation.second = second
	return operation
}

// Call is one request on its way through an operation. It belongs to one goroutine.
type Call struct {
	Request *http.Request
	// Address is the client's address as limits count it, for example "203.0.113.9" or, standing for its whole /64,
	// "2001:db8:1:2::". It is empty when the operation has no limits by address.
	Address string
	// Decision is what the limiter said, first of those limits that count whatever the input is. Without any it is
	// allowed and has no entries.
	// It is the zero value while charges are being named.
	Decision ratelimit.Decision
	// Captcha, where an operation sets it, is told in the answer if private limits refuse the request.
	Captcha *Captcha
}

// Context is the request's. It has no deadline of its own.
func (c *Call) Context() context.Context {
	return c.Request.Context()
}

// Cookie gives the value of the first cookie of that name, or "" when there is none.
func (c *Call) Cookie(name string) string {
	cookie, err := c.Request.Cookie(name)
	if err != nil {
		return ""
	}
	return cookie.Value
}

// Query gives the value of a query parameter, or "" when it is missing. A query that can't be read and a parameter that
// is there twice are problems: a guess which one was meant could be wrong.
func (c *Call) Query(name string) (string, error) {
	values, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		return "", BadRequest("", "The query of the URL is malformed.")
	}
	if len(values[name]) > 1 {
		return "", BadRequest(name, "The query has this parameter more than once.")
	}
	value := values.Get(name)
	if !utf8.ValidString(value) {
		return "", BadRequest(name, "The value of this parameter is not UTF-8.")
	}
	return value, nil
}

// Reservation gives what this request was charged under a policy, for Limiter.GiveBack: the zero value, which gives
// nothing back, when nothing was.
func (c *Call) Reservation(policy string) ratelimit.Reservation {
	for _, limit := range c.Decision.Limits {
		if limit.Policy.Name == policy {
			return limit.Reservation
		}
	}
	return ratelimit.Reservation{}
}

// Reply is the answer of an operation that succeeded.
type Reply struct {
	// Status 0 means 200 with a body and 204 without one.
	Status int
	// Body is encoded as JSON; nil means an empty answer. Times come out in RFC 3339, UTC.
	Body any
	// Cookies are set in order, each in a field of its own.
	Cookies []*http.Cookie
	// Location is the URL of what a 201 made; empty means none is told.
	Location string
}

// answer is what goes out.
type answer struct {
	status   int
	body     []byte
	violated []string // the policies that refused
}

// answer carries a request out and adds to the header what belongs to its answer.
func (e *endpoint) answer(header http.Header, r *http.Request) answer {
	operation, found := e.resource[r.Method]
	if !found {
		header.Set("Allow", e.allow)
		return problemAnswer(header, &Problem{
			Status: http.StatusMethodNotAllowed,
			Detail: "This address does not take this method. It takes: " + e.allow + ".",
		})
	}
	call := &Call{Request: r}
	reply, body, err := e.attempt(call, operation)
	setRateLimit(header, e.web.shown(call.Decision))
	if call.Decision.Outage != nil && !isOutage(err) { // or else problem tells of it
		e.web.cfg.Log.WarnContext(r.Context(), "store did not answer, admitted without it",
			slog.String("route", e.route), slog.String("error", call.Decision.Outage.Error()))
	}
	if err != nil {
		return problemAnswer(header, e.problem(r.Context(), err))
	}
	for _, cookie := range reply.Cookies {
		if text := cookie.String(); text != "" { // it is when the name is not one
			header.Add("Set-Cookie", text)
		}
	}
	if reply.Location != "" {
		header.Set("Location", reply.Location)
	}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	return answer{status: reply.Status, body: body}
}

// attempt carries an operation out up to the encoded body, so that nothing that can fail is left when the answer is
// written. On the platform a panic would end the process: here it is an error like others.
func (e *endpoint) attempt(call *Call, operation Operation) (reply Reply, body []byte, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicked{fmt.Sprintf("%T", value), string(debug.Stack())}
		}
	}()
	for operation.choose != nil {
		operation = operation.choose(call)
	}
	// However slowly a client sends the body, the time of a request is for what is done with it.
	foreign := e.origin(call, operation)
	var sent []byte
	var unread error
	if foreign == nil && operation.maxBytes > 0 {
		sent, unread = readBody(call.Request.Body, operation.maxBytes)
	}
	if limit := e.web.cfg.RequestTime; limit > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(call.Context()), limit)
		defer cancel()
		call.Request = call.Request.WithContext(ctx)
	}
	run, err := e.admit(call, operation, foreign, sent, unread)
	if err != nil {
		return Reply{}, nil, err
	}
	reply, err = run()
	if err != nil {
		return Reply{}, nil, err
	}
	if reply.Body != nil {
		body, err = encode(reply.Body)
	}
	if reply.Status == 0 {
		reply.Status = http.StatusOK
		if body == nil {
			reply.Status = http.StatusNoContent
		}
	}
	return reply, body, err
}

// admit counts a request, whatever its input, and gives what it may run. The origin is looked at before the input: or
// else a page could have its visitors use up the limits of an account that it names. Foreign and unread say what was wrong with
// where the request came from, and with its body.
func (e *endpoint) admit(call *Call, operation Operation, foreign error, body []byte, unread error) (run func() (Reply, error), err error) {
	var byAddress []ratelimit.Charge
	if len(operation.limits) > 0 {
		if call.Address, err = clientAddress(call.Request, e.web.cfg.Platform); err != nil {
			return nil, err
		}
		for _, policy := range operation.limits {
			byAddress = append(byAddress, policy.Charge(call.Address))
		}
	}

	always := byAddress
	fault := foreign
	if fault == nil && operation.identify != nil {
		var who []ratelimit.Charge
		switch who, fault = operation.identify(call); {
		case fault == nil && operation.keyed:
			always = who
		case fault == nil:
			always = append(who, byAddress...)
		}
	}
	var input prepared
	if fault == nil {
		fault = unread
	}
	if fault == nil {
		input, fault = operation.prepare(call, body)
	}
	charges := always
	if fault == nil {
		charges = slices.Concat(always, input.charges)
	}
	call.Decision, err = e.web.decide(call.Context(), charges)
	if errors.Is(err, ratelimit.ErrSubject) { // of the input, since the others were read; the store was not asked
		fault = Unprocessable("", "The request names somebody in a way that cannot be read.")
		call.Decision, err = e.web.decide(call.Context(), always)
	}
	if err == nil && fault == nil && operation.second != nil && !refusedInPublic(call.Decision) {
		err = e.reconsider(call, operation, charges)
	}
	switch {
	case err != nil:
		return nil, err
	case !call.Decision.Allowed:
		refusal := e.web.refusal(e.web.shown(call.Decision))
		if !refusedInPublic(call.Decision) {
			refusal.Captcha = call.Captcha
		}
		return nil, refusal
	case fault != nil:
		return nil, fault
	}
	return input.run, nil
}

// refusedInPublic says whether a limit refused that everybody may know of.
func refusedInPublic(decision ratelimit.Decision) bool {
	return slices.ContainsFunc(decision.Limits, func(limit ratelimit.LimitResult) bool { return !limit.Allowed && !limit.Policy.Private })
}

// reconsider decides a request a second time, if the operation wants it to be. The decision is then that of both: the limits that
// everybody may know of, each as it was decided last, and the private ones of the second.
func (e *endpoint) reconsider(call *Call, operation Operation, charges []ratelimit.Charge) error {
	again, err := operation.second(call)
	if err != nil || len(again) == 0 {
		return err
	}
	first := call.Decision
	both := ratelimit.Decision{Outage: first.Outage}
	var at []int // where in both the results of the second decision belong
	for i, limit := range first.Limits {
		if limit.Policy.Private && !first.Allowed {
			continue
		}
		// What a refusal left uncharged is charged now, unless it costs nothing.
		if !first.Allowed && limit.Reservation == (ratelimit.Reservation{}) {
			again = append(again, charges[i])
			at = append(at, len(both.Limits))
		}
		both.Limits = append(both.Limits, limit)
	}
	second, err := e.web.decide(call.Context(), again)
	if err != nil {
		call.Decision = ratelimit.Decision{} // there is none, whatever the first one said
		return err
	}
	fresh := len(again) - len(at)
	for i, place := range at {
		both.Limits[place] = second.Limits[fresh+i]
	}
	both.Limits = append(both.Limits, second.Limits[:fresh]...)
	both.Allowed, both.Outage = second.Allowed, cmp.Or(second.Outage, first.Outage)
	both.RetryAfter = both.RetryAfterOf(func(ratelimit.Policy) bool { return true })
	call.Decision = both
	return nil
}

// decide asks the limiter, unless there is nothing to charge. A client that hangs up is counted
// like any other, so the decision doesn't end with its connection.
func (w *Web) decide(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if len(charges) == 0 {
		return ratelimit.Decision{Allowed: true}, nil
	}
	if w.cfg.RequestTime == 0 {
		ctx = context.WithoutCancel(ctx)
	}
	return w.cfg.Limiter.Decide(ctx, charges...)
}

// shown is a decision as answers tell of it. Of several limits with one name it has the one that refuses longest, or else the
// one with the fewest units left: they are told of as one.
func (w *Web) shown(decision ratelimit.Decision) ratelimit.Decision {
	var limits []ratelimit.LimitResult
	for _, limit := range decision.Limits {
		name, found := w.cfg.ShownAs[limit.Policy.Name]
		if found {
			limit.Policy.Name = name
		}
		same := slices.IndexFunc(limits, func(other ratelimit.LimitResult) bool { return other.Policy.Name == limit.Policy.Name })
		switch {
		case same < 0:
			limits = append(limits, limit)
		case limit.RetryAfter > limits[same].RetryAfter:
			limits[same] = limit
		case limit.Allowed && limits[same].Allowed && limit.Remaining < limits[same].Remaining:
			limits[same] = limit
		}
	}
	decision.Limits = limits
	return decision
}

// origin looks at what a request brings along before anything is done for it.
func (e *endpoint) origin(call *Call, operation Operation) error {
	if err := e.web.checkOrigin(call.Request); err != nil || operation.check == nil {
		return err
	}
	return operation.check(call)
}

// outOfTime is the problem of a request whose time was over before its answer was there.
var outOfTime = &Problem{
	Status: http.StatusServiceUnavailable,
	Detail: "The service took too long to answer. Please try again in a few seconds.",
}

// isOutage says whether an error is that of a database which did not answer.
func isOutage(err error) bool {
	var outage *unavailable
	return errors.Is(err, ratelimit.ErrStore) || errors.As(err, &outage)
}

// problem turns an error into what a client may know of it, and logs the rest. It is the only place that does.
func (e *endpoint) problem(ctx context.Context, err error) *Problem {
	log := e.web.cfg.Log.With(slog.String("route", e.route))
	var (
		setup *unconfigured
		crash *panicked
		told  *Problem
	)
	switch {
	case isOutage(err):
		log.WarnContext(ctx, "store did not answer", slog.String("error", err.Error()))
		return &Problem{
			Status: http.StatusServiceUnavailable,
			Detail: "The service cannot reach its database at the moment. Please try again in a few seconds.",
		}
	case errors.Is(err, errNoAddress):
		log.WarnContext(ctx, "request without a client address")
		return &Problem{
			Status: http.StatusServiceUnavailable,
			Detail: "The service cannot tell which address this request comes from, so it cannot be counted.",
		}
	case errors.As(err, &setup):
		log.ErrorContext(ctx, "setting missing or wrong", slog.String("error", err.Error()))
		return &Problem{
			Status: http.StatusServiceUnavailable,
			Detail: "The service is not completely set up yet. Its operator finds the reason in the log.",
		}
	case errors.As(err, &crash):
		// The value itself may hold anything, a name included.
		log.ErrorContext(ctx, "panic", slog.String("type", crash.kind), slog.String("stack", crash.stack))
	case errors.As(err, &told):
		return told
	case ctx.Err() != nil && errors.Is(err, ctx.Err()): // the client has gone, and reads nothing
		return outOfTime
	case errors.Is(err, context.DeadlineExceeded):
		log.WarnContext(ctx, "request took too long", slog.String("error", err.Error()))
		return outOfTime
	default:
		log.ErrorContext(ctx, "request failed", slog.String("error", err.Error()))
	}
	return &Problem{
		Status: http.StatusInternalServerError,
		Detail: "Something went wrong in the service. It was not your request's fault.",
	}
}
