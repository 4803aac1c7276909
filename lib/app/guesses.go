package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/weirlimits/weir/lib/captcha"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

// The policies of guesses at an account: those of strangers together, and those of each device that signed in to it before; and
// those of whoever solved a CAPTCHA when one of the former had refused. With the hardened ones, the first two are at the top of
// ladders, see delays. Answers tell of all of them under the first name, since which of them refuses is nobody's business.
const (
	failedSignIns          = "failed-sign-ins"
	failedSignInsOnDevice  = "failed-sign-ins-device"
	failedSignInsByCaptcha = "failed-sign-ins-captcha"
)

// shownAs are the names that answers have for these policies: see web.Config.
func shownAs() map[string]string {
	names := map[string]string{failedSignInsOnDevice: failedSignIns, failedSignInsByCaptcha: failedSignIns}
	for _, rungs := range delays {
		for _, rung := range rungs {
			names[rung] = failedSignIns
		}
	}
	return names
}

// attackWait is what a sign-in without a CAPTCHA is told to wait for while every one needs it. How long that lasts nobody knows.
const attackWait = time.Minute

// guessCharges is what a guess at the password of a name is charged to, whichever route it came by.
func (a *App) guessCharges(name string, guess guessing) []ratelimit.Charge {
	top, subject := failedSignIns, name
	if guess.device.ID != "" {
		top, subject = failedSignInsOnDevice, guess.device.ID
	}
	rungs := []string{top}
	if a.settings.Hardened {
		rungs = append(rungs, delays[top]...)
	}
	var charges []ratelimit.Charge
	for _, rung := range rungs {
		policy := a.policy(rung)
		if guess.strict && a.settings.Hardened { // the state holds no limit, so that what was charged before counts
			policy.Limit, policy.Burst = (policy.Limit+1)/2, (policy.Burst+1)/2
		}
		charges = append(charges, policy.Charge(subject))
	}
	return charges
}

// guessesOf gives what a decision has reserved for a guess, whichever policies it was charged to.
func guessesOf(decision ratelimit.Decision) []ratelimit.Reservation {
	var reserved []ratelimit.Reservation
	names := shownAs()
	for _, limit := range decision.Limits {
		if name := limit.Policy.Name; name == failedSignIns || names[name] == failedSignIns {
			reserved = append(reserved, limit.Reservation)
		}
	}
	return reserved
}

// appealKey is the key of an appeal in a request's context.
type appealKey struct{}

// appeal is what a sign-in may do by a CAPTCHA.
type appeal struct {
	token    string
	charges  []ratelimit.Charge // with a good one, instead
	demanded bool               // without a good one nothing
}

// orCaptcha gives what a sign-in is charged to at first, and keeps what it may be charged to with a good token: while an attack
// is on all of its guess, otherwise a budget of its own for when the ladder has no more. So a stranger who has used up the one
// doesn't keep the owner out, and the guesses at an account are bounded all the same.
func (a *App) orCaptcha(call *web.Call, in credentials, charges []ratelimit.Charge) []ratelimit.Charge {
	if a.captcha == nil {
		return charges
	}
	kept := appeal{token: in.Captcha}
	guess, _ := call.Context().Value(guessKey{}).(guessing)
	switch {
	case guess.strict:
		kept.charges, kept.demanded, charges = charges, true, nil
	case a.settings.Hardened:
		kept.charges = []ratelimit.Charge{a.policy(failedSignInsByCaptcha).Charge(in.Username)}
	default:
		return charges
	}
	call.Request = call.Request.WithContext(context.WithValue(call.Context(), appealKey{}, kept))
	return charges
}

// byCaptcha decides whether a sign-in goes on by its CAPTCHA. The address has been counted by then, so that it bounds how often
// the provider is asked. What the answer says is the same whatever the name and the password.
func (a *App) byCaptcha(call *web.Call) ([]ratelimit.Charge, error) {
	kept, possible := call.Context().Value(appealKey{}).(appeal)
	top := func(limit ratelimit.LimitResult) bool {
		return !limit.Allowed && (limit.Policy.Name == failedSignIns || limit.Policy.Name == failedSignInsOnDevice)
	}
	if !possible || !kept.demanded && !slices.ContainsFunc(call.Decision.Limits, top) {
		return nil, nil
	}
	call.Captcha = &web.Captcha{Provider: string(a.settings.Captcha.Provider), SiteKey: a.settings.Captcha.SiteKey}
	if kept.token != "" && a.isGood(call, kept.token) {
		return kept.charges, nil
	}
	if a.spent(call, kept.charges) || !kept.demanded {
		return nil, nil
	}
	problem := web.TooManyRequests(a.policy(failedSignIns), attackWait, "Too many sign-ins are being tried here. For the time being each takes a CAPTCHA.")
	problem.Captcha = call.Captcha
	return nil, problem
}

// spent reports whether the guesses that a good token gives are used up. If so, it changes the
// call's decision to the one that a good token would get, so that the answer doesn't tell whether
// the token was good. It charges nothing: a client without a good token must not use up the guesses
// of those who have one.
func (a *App) spent(call *web.Call, charges []ratelimit.Charge) bool {
	peeked, err := a.limiter.Peek(call.Context(), charges...)
	if err != nil {
		a.log.WarnContext(call.Context(), "guesses by CAPTCHA not read", slog.String("error", err.Error()))
		return false
	}
	if peeked.Allowed {
		return false
	}
	limits := slices.DeleteFunc(slices.Clone(call.Decision.Limits), func(limit ratelimit.LimitResult) bool { return limit.Policy.Private })
	call.Decision.Limits = append(limits, peeked.Limits...)
	call.Decision.Allowed = false
	call.Decision.RetryAfter = call.Decision.RetryAfterOf(func(ratelimit.Policy) bool { return true })
	return true
}

// isGood says whether a token is good, or may be taken for it because nobody knows.
func (a *App) isGood(call *web.Call, token string) bool {
	err := a.captcha.Verify(call.Context(), token)
	switch {
	case err == nil:
		return true
	case errors.Is(err, captcha.ErrUnavailable):
		a.log.WarnContext(call.Context(), "CAPTCHA not checked", slog.String("error", err.Error()), slog.Bool("admitted", a.settings.CaptchaOpen))
		return a.settings.CaptchaOpen
	}
	a.log.InfoContext(call.Context(), "CAPTCHA refused", slog.String("error", err.Error()))
	return false
}
