package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/web"
)

// sweepTime bounds a sweep on request: less than a request has, so that there is time to say how far it came.
const sweepTime = 8 * time.Second

// limitsService decides the limits of other services, and shows operators what limits did. It has no limit of its own: who
// has the token may ask as often as the database answers. An admin's session costs the address as elsewhere.
func (a *App) limitsService() web.Resource {
	service := func(*web.Call) (web.Token, error) {
		return web.Token{Setting: "LIMITS_API_TOKEN", Value: a.settings.LimitsToken}, nil
	}
	byOperation := func(call *web.Call) (web.Token, error) {
		if op, _ := call.Query("op"); op == "sweep" {
			return web.Token{Setting: "CRON_SECRET", Value: a.settings.CronSecret}, nil
		}
		return service(call)
	}
	byToken := web.Bearer(byOperation, web.Query(nil, nil, a.state))
	byAdmin := memberQuery(a, access{role: accounts.Admin}, func(call *web.Call, admin accounts.Account) (web.Reply, error) {
		// Whoever likes is an admin of the demo, where that is on.
		return a.view(call, !admin.Name.Reserved())
	})
	return web.Resource{
		http.MethodPost: web.Bearer(service, web.Body(nil, 0, nil, a.decideForService)),
		http.MethodGet: web.Choose(func(call *web.Call) web.Operation {
			// A browser can't send a token, so that an admin sees the views by the session. Who sends a token means it.
			if call.Request.URL.Query().Has("view") && len(call.Request.Header.Values("Authorization")) == 0 {
				return byAdmin
			}
			return byToken
		}),
	}
}

// state is GET by token: how the policies are used, a view, or a sweep.
func (a *App) state(call *web.Call) (web.Reply, error) {
	query := call.Request.URL.Query()
	if query.Has("view") {
		return a.view(call, true)
	}
	if _, _, err := place(call); err != nil { // what is no place is none here either
		return web.Reply{}, err
	}
	switch op, err := call.Query("op"); {
	case err != nil:
		return web.Reply{}, err
	case op == "sweep":
		return a.sweep(call)
	case query.Has("op"):
		return web.Reply{}, web.BadRequest("op", `The operation is "sweep", or none is given.`)
	}
	return a.usage(call)
}

// The modes of a request, besides those that are an operator's actions.
const (
	modeDecide = "decide"
	modePeek   = "peek"
	modeRefund = "refund"
)

// serviceRequest is the body of POST. Values whose absence means something else than their zero value are read later.
type serviceRequest struct {
	Mode        jsontext.Value  `json:"mode"`
	Limits      *[]serviceLimit `json:"limits"`
	Reservation *string         `json:"reservation"`
	Until       *string         `json:"until"`
}

type serviceLimit struct {
	Policy  string         `json:"policy"`
	Subject string         `json:"subject"`
	Cost    jsontext.Value `json:"cost"`
}

type serviceReply struct {
	Allowed           bool          `json:"allowed"`
	RetryAfterSeconds int64         `json:"retryAfterSeconds"`
	Reservation       string        `json:"reservation,omitempty"`
	Limits            []limitStatus `json:"limits"`
	Degraded          bool          `json:"degraded,omitzero"`
}

type limitStatus struct {
	Policy            string `json:"policy"`
	Allowed           bool   `json:"allowed"`
	Limit             int64  `json:"limit"`
	Remaining         int64  `json:"remaining"`
	ResetSeconds      int64  `json:"resetSeconds"`
	RetryAfterSeconds int64  `json:"retryAfterSeconds"`
	DelayMillis       *int64 `json:"delayMillis,omitempty"`
}

func (a *App) decideForService(call *web.Call, in serviceRequest) (web.Reply, error) {
	mode := modeDecide
	if in.Mode != nil {
		if in.Mode.Kind() != '"' || json.Unmarshal(in.Mode, &mode) != nil {
			mode = ""
		}
	}
	action := ratelimit.Action(mode)
	operation := action == ratelimit.Reset || action == ratelimit.Ban || action == ratelimit.Allow
	timed := action == ratelimit.Ban || action == ratelimit.Allow
	switch {
	case !operation && mode != modeDecide && mode != modePeek && mode != modeRefund:
		return web.Reply{}, web.BadRequest("mode", "The mode is one of decide, peek, refund, reset, ban and allow.")
	case in.Reservation != nil && mode != modeRefund:
		return web.Reply{}, web.BadRequest("reservation", "Only the mode refund takes a reservation.")
	case in.Until != nil && !timed:
		return web.Reply{}, web.BadRequest("until", "Only the modes ban and allow take a time.")
	case mode == modeRefund:
		return a.refund(call, in)
	}
	charges, err := a.charges(in.Limits, operation)
	if err != nil {
		return web.Reply{}, err
	}
	switch {
	case operation:
		return a.operate(call, action, charges[0], in.Until)
	case mode == modePeek:
		decision, err := a.service.Peek(call.Context(), charges...)
		return web.Reply{Body: a.told(decision)}, err
	}
	decision, err := a.service.Decide(call.Context(), charges...)
	if decision.Outage != nil {
		a.log.WarnContext(call.Context(), "store did not answer, admitted without it",
			slog.String("route", "/api/limits"), slog.String("error", decision.Outage.Error()))
	}
	return web.Reply{Body: a.told(decision)}, err
}

// charges reads what a request names. Those of an operation name one subject and no cost.
func (a *App) charges(limits *[]serviceLimit, operation bool) ([]ratelimit.Charge, error) {
	most, rule := ratelimit.MaxCharges, fmt.Sprintf("This mode takes from 1 to %d limits.", ratelimit.MaxCharges)
	if operation { // each is a round trip of its own, and would be done or not by itself
		most, rule = 1, "This mode takes one limit."
	}
	if limits == nil || len(*limits) < 1 || len(*limits) > most {
		return nil, web.BadRequest("limits", rule)
	}
	var charges []ratelimit.Charge
	for i, limit := range *limits {
		fault := func(field, detail string) error {
			return web.BadRequest(fmt.Sprintf("limits[%d]%s", i, field), detail)
		}
		policy, found := a.policies.Named(limit.Policy)
		if !found {
			return nil, fault(".policy", "There is no policy of this name.")
		}
		subject, err := policy.Subject.Canonical(limit.Subject)
		if err != nil {
			return nil, fault(".subject", "The policy counts by another kind of subject, or the subject is blank or too long.")
		}
		charge := policy.Charge(subject)
		if limit.Cost != nil {
			if operation {
				return nil, fault(".cost", "This mode takes no cost.")
			}
			charge.Cost, err = wholeNumber(string(limit.Cost))
			if err != nil || charge.Cost < 0 || charge.Cost > policy.Capacity() {
				return nil, fault(".cost", fmt.Sprintf("The cost is a whole number from 0 to %d.", policy.Capacity()))
			}
		}
		for _, other := range charges {
			if other.Policy.Name == policy.Name && other.Subject == subject {
				return nil, fault("", "This policy and subject are there already.")
			}
		}
		charges = append(charges, charge)
	}
	return charges, nil
}

// The bounds of a number of JSON as text, and of what it is multiplied out by.
const (
	maxNumberBytes = 64
	maxExponent    = 20
)

// wholeNumber reads a number of JSON that has no fraction, however it is written: 3, 3.0 and 30e-1 are one number.
func wholeNumber(text string) (int64, error) {
	if len(text) > maxNumberBytes { // what is long takes long
		return 0, strconv.ErrRange
	}
	if _, exponent, found := strings.Cut(strings.ToLower(text), "e"); found {
		if n, err := strconv.Atoi(exponent); err != nil || n < -maxExponent || n > maxExponent {
			return 0, strconv.ErrRange
		}
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok || !n.IsInt() || !n.Num().IsInt64() {
		return 0, strconv.ErrRange
	}
	return n.Num().Int64(), nil
}

// told is the answer to a service: it is told of private limits too, since it is no stranger.
func (a *App) told(decision ratelimit.Decision) serviceReply {
	reply := serviceReply{
		Allowed:           decision.Allowed,
		RetryAfterSeconds: waitSeconds(decision.RetryAfter),
		Reservation:       a.service.Seal(decision),
		Limits:            []limitStatus{},
		Degraded:          decision.Outage != nil,
	}
	for _, limit := range decision.Limits {
		status := limitStatus{
			Policy:            limit.Policy.Name,
			Allowed:           limit.Allowed,
			Limit:             limit.Policy.Limit,
			Remaining:         limit.Remaining,
			ResetSeconds:      waitSeconds(limit.Reset),
			RetryAfterSeconds: waitSeconds(limit.RetryAfter),
		}
		charged := limit.Reservation != (ratelimit.Reservation{}) || limit.Allowed && reply.Degraded
		if limit.Policy.Algorithm == ratelimit.LeakyBucket && charged {
			millis := roundUp(limit.Delay, time.Millisecond)
			status.DelayMillis = &millis
		}
		reply.Limits = append(reply.Limits, status)
	}
	return reply
}

// waitSeconds is a wait in whole seconds, 2³¹ − 1 at the most, which is what clients' timers hold.
func waitSeconds(d time.Duration) int64 { return min(roundUp(d, time.Second), math.MaxInt32) }

// roundUp makes waiting as long as told enough.
func roundUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}

// refund gives back what an earlier decision charged. A second time it finds nothing to give back, and says no more.
func (a *App) refund(call *web.Call, in serviceRequest) (web.Reply, error) {
	switch {
	case in.Limits != nil:
		return web.Reply{}, web.BadRequest("limits", "The mode refund takes a reservation alone, which knows its limits.")
	case in.Reservation == nil:
		return web.Reply{}, web.BadRequest("reservation", "The mode refund takes the reservation that a decision answered.")
	}
	reservations, err := a.service.Open(*in.Reservation)
	if err != nil {
		return web.Reply{}, web.BadRequest("reservation", "This is no reservation that a decision answered here.")
	}
	err = a.service.GiveBack(call.Context(), reservations...)
	return web.Reply{Body: serviceReply{Allowed: true, Limits: []limitStatus{}}}, err
}

// operate does what an operator asks. The answer is what follows from it by itself, so that it costs no further round trip.
func (a *App) operate(call *web.Call, action ratelimit.Action, charge ratelimit.Charge, until *string) (web.Reply, error) {
	var end time.Time
	if action != ratelimit.Reset {
		var err error
		if until != nil {
			end, err = parseTime(*until)
		}
		if until == nil || err != nil || !end.After(a.now()) {
			return web.Reply{}, web.BadRequest("until", "This mode takes a time to come, such as 2030-01-31T00:00:00Z.")
		}
	}
	err := a.service.Operate(call.Context(), action, charge.Policy, charge.Subject, end)
	if errors.Is(err, ratelimit.ErrOperation) {
		return web.Reply{}, web.BadRequest("until", "The time is before the year 2200.")
	}
	if err != nil {
		return web.Reply{}, err
	}
	status := limitStatus{
		Policy: charge.Policy.Name, Allowed: true, Limit: charge.Policy.Limit, Remaining: charge.Policy.Capacity(),
	}
	if action == ratelimit.Ban {
		wait := waitSeconds(end.Sub(a.now()))
		status.Allowed, status.Remaining, status.ResetSeconds, status.RetryAfterSeconds = false, 0, wait, wait
	}
	return web.Reply{Body: serviceReply{
		Allowed:           status.Allowed,
		RetryAfterSeconds: status.RetryAfterSeconds,
		Limits:            []limitStatus{status},
	}}, nil
}

// dateTime is RFC 3339's, in upper case. time.Parse takes more: a comma, and an offset of any size.
var dateTime = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

func parseTime(text string) (time.Time, error) {
	text = strings.ToUpper(text)
	if !dateTime.MatchString(text) {
		return time.Time{}, errors.New("not a date and time of RFC 3339")
	}
	return time.Parse(time.RFC3339, text)
}

// usage tells how much the policies are used, and nothing of anybody.
func (a *App) usage(call *web.Call) (web.Reply, error) {
	type policy struct {
		Name          string  `json:"name"`
		Algorithm     string  `json:"algorithm"`
		Limit         int64   `json:"limit"`
		WindowSeconds float64 `json:"windowSeconds"`
		ActiveKeys    int64   `json:"activeKeys"`
		Refusals      int64   `json:"refusals"`
		Estimated     bool    `json:"estimated,omitzero"`
	}
	done, err := a.openView(call)
	if err != nil {
		return web.Reply{}, err
	}
	defer done()
	var counts []sqlstore.Count
	read := func(ctx context.Context) (err error) {
		counts, err = a.counters.counts(ctx)
		return err
	}
	if a.counters.several() { // a shard that is silent says nothing about the application's database
		err = read(call.Context())
	} else {
		err = a.limiter.Guard(call.Context(), read)
	}
	if err != nil {
		return web.Reply{}, web.Unavailable(err)
	}
	list := []policy{}
	for _, p := range a.policies.All() {
		row := policy{Name: p.Name, Algorithm: p.Algorithm.String(), Limit: p.Limit, WindowSeconds: p.Window.Seconds()}
		for _, count := range counts {
			if count.Policy == p.Name {
				row.ActiveKeys, row.Refusals, row.Estimated = count.ActiveKeys, count.Refusals, count.Estimated
			}
		}
		list = append(list, row)
	}
	return web.Reply{Body: struct {
		Version  string   `json:"version"`
		Policies []policy `json:"policies"`
	}{Version, list}}, nil
}

// sweepRows are looked at in one step of a sweep: few enough that nobody waits long for the writer.
const sweepRows = 1000

// sweep sends the alerts that are due, and then deletes what is expired as long as it may: counters, then rows of the audit,
// alerts, messages in the outbox, one-time codes, links for new passwords, figures of sign-ins, sessions and devices. What it leaves the
// next one takes. A shard that fails doesn't keep it from the rest.
func (a *App) sweep(call *web.Call) (web.Reply, error) {
	ctx, cancel := context.WithTimeout(call.Context(), sweepTime)
	defer cancel()
	a.sendAlerts(ctx, alertSweepTime)
	figures := func(ctx context.Context) (int64, bool, error) {
		if a.stuffing == nil {
			return 0, true, nil
		}
		return a.stuffing.Sweep(ctx)
	}
	people := func(ctx context.Context) (int64, bool, error) { return a.accounts.Sweep(ctx, sweepRows) }
	var deleted int64
	var failed error
	done := true
	for _, sweep := range []func(context.Context) (int64, bool, error){
		a.service.Sweep, a.counters.sweepAudit, a.counters.sweepAlerts, a.outbox.Sweep, a.otp.Sweep, a.accounts.SweepResets,
		figures, people,
	} {
		n, through, err := sweep(ctx)
		if err != nil {
			if failed = errors.Join(failed, err); a.counters.several() {
				continue
			}
			break
		}
		deleted += n
		if done = through; !done {
			break
		}
	}
	if failed != nil {
		return web.Reply{}, web.Unavailable(failed)
	}
	return web.Reply{Body: struct {
		Deleted int64 `json:"deleted"`
		Done    bool  `json:"done"`
	}{deleted, done}}, nil
}
