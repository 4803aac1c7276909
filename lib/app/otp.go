package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/weirlimits/weir/lib/otp"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/sms"
	"github.com/weirlimits/weir/lib/web"
)

// The policies of a phone, whoever asks, and the one of the SMS gateway, which all instances share. That has one subject.
const (
	sendToPhone = "otp-send-phone"
	wrongCodes  = "otp-attempts"
	smsOutbound = "sms-outbound"
	smsGateway  = "gateway"
)

// maxSMSWait is how long a request may wait for its turn at the gateway. Together with the gateway's own five seconds it leaves
// two of a request's ten for the database.
const maxSMSWait = 3 * time.Second

// resendSeconds is how long a client is asked to let an SMS travel before it asks for another code, which ends the first one.
const resendSeconds = 60

// smsRetrySeconds is how long a client is asked to wait when the gateway fails.
const smsRetrySeconds = 60

func (a *App) oneTimeCode() web.Resource {
	return web.Resource{
		http.MethodPost: web.Body(a.limits("otp-send"), 0, nil, a.sendCode),
		http.MethodPut:  web.Body(a.limits("otp-check"), 0, a.guessCode, a.checkCode),
	}
}

type codeRequest struct {
	Phone string `json:"phone"`
}

// sendCode sends a code unless the phone has got as many as any may get. Nobody is told that, or else a stranger would learn
// that somebody asked for the phone. For that reason the phone's limit and the gateway's are a decision of their own: in the
// request's own a refusal would leave the edge's limit uncharged, which the answer's fields show.
func (a *App) sendCode(call *web.Call, in codeRequest) (web.Reply, error) {
	phone, err := otp.ParsePhone(in.Phone)
	if err != nil {
		return web.Reply{}, noPhone()
	}
	sent := web.Reply{Status: http.StatusAccepted, Body: struct {
		RetryAfterSeconds int64 `json:"retryAfterSeconds"`
	}{resendSeconds}}

	ctx, log := call.Context(), a.log.With(slog.String("route", "/api/otp"))
	decision, err := a.limiter.Decide(ctx, a.policy(smsOutbound).Charge(smsGateway), a.policy(sendToPhone).Charge(string(phone)))
	switch {
	case err != nil:
		return web.Reply{}, err
	case decision.Outage != nil: // one of the two could be made to admit something, but a code has nowhere to be kept
		return web.Reply{}, web.Unavailable(decision.Outage)
	}
	outbound, toPhone := decision.Limits[0], decision.Limits[1]
	switch {
	case !outbound.Allowed: // whatever the phone's limit says, so that it isn't told by this either
		log.WarnContext(ctx, "SMS not sent: too many are waiting for the gateway")
		return web.Reply{}, &web.Problem{
			Status:            http.StatusServiceUnavailable,
			Detail:            "Too many messages are waiting to be sent at the moment. Nothing was sent. Please try again.",
			RetryAfterSeconds: max(roundUp(outbound.RetryAfter, time.Second), 1),
		}
	case !decision.Allowed:
		log.InfoContext(ctx, "SMS not sent: its phone has enough of them")
		return sent, nil
	}
	asked := false // the gateway
	if err = a.wait(ctx, outbound.Delay); err == nil {
		err = a.otp.Send(ctx, phone)
		asked = !errors.Is(err, otp.ErrStore)
	} else {
		err = fmt.Errorf("%w: its turn did not come in time: %w", sms.ErrNotSent, err)
	}
	if err != nil && !errors.Is(err, sms.ErrUnknown) {
		// The phone got nothing. Unless the gateway was asked, its place in the queue is free too.
		// GiveBack doesn't end with ctx: it has a deadline by itself.
		places := []ratelimit.Reservation{toPhone.Reservation}
		if !asked {
			places = append(places, outbound.Reservation)
		}
		kept := a.limiter.GiveBack(ctx, places...)
		if kept != nil && !errors.Is(err, otp.ErrStore) { // or else the log tells of the same outage twice
			log.WarnContext(ctx, "an SMS that was not sent stays counted", slog.String("error", kept.Error()))
		}
	}
	return sent, smsProblem(ctx, log, err)
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func noPhone() error { return web.Unprocessable("phone", sentence(otp.PhoneRule)) }

// smsProblem says to a client what became of a message, and to the log why.
func smsProblem(ctx context.Context, log *slog.Logger, err error) error {
	var detail string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sms.ErrRefused):
		log.WarnContext(ctx, "SMS not sent", slog.String("error", err.Error()))
		return web.Unprocessable("phone", "This number gets no SMS.")
	case errors.Is(err, sms.ErrNotSent):
		detail = "No SMS can be sent at the moment. Nothing was sent. Please try again in a minute."
	case errors.Is(err, sms.ErrUnknown) && !errors.Is(err, sms.ErrStore):
		detail = "The SMS may have been sent or not. If it does not arrive, please try again."
	default:
		return storage(err)
	}
	log.WarnContext(ctx, "SMS not sent", slog.String("error", err.Error()))
	return &web.Problem{Status: http.StatusServiceUnavailable, Detail: detail, RetryAfterSeconds: smsRetrySeconds}
}

type codeGuess struct {
	Phone string `json:"phone"`
	Code  string `json:"code"`
}

// guessCode charges a guess to the phone before the code is looked at, whatever the code and whether the phone was sent one.
func (a *App) guessCode(_ *web.Call, in codeGuess) ([]ratelimit.Charge, error) {
	phone, err := otp.ParsePhone(in.Phone)
	if err != nil {
		return nil, noPhone()
	}
	if in.Code == "" {
		return nil, web.BadRequest("code", "Please give the code.")
	}
	return []ratelimit.Charge{a.policy(wrongCodes).Charge(string(phone))}, nil
}

func (a *App) checkCode(call *web.Call, in codeGuess) (web.Reply, error) {
	phone, err := otp.ParsePhone(in.Phone)
	if err != nil {
		return web.Reply{}, noPhone()
	}
	err = a.otp.Verify(call.Context(), phone, in.Code)
	wrong := web.Unauthorized("The code is wrong, or its time is over.")
	if errors.Is(err, otp.ErrWrong) && !errors.Is(err, otp.ErrUsed) {
		return web.Reply{}, wrong
	}
	// Only a wrong code counts, and not the right one that a second click sends again. Should
	// giving back fail, the phone is left with one guess less for a while.
	kept := a.limiter.GiveBack(context.WithoutCancel(call.Context()), call.Reservation(wrongCodes))
	if kept != nil && !errors.Is(err, otp.ErrStore) { // as above
		a.log.WarnContext(call.Context(), "a code that was not wrong stays counted", slog.String("error", kept.Error()))
	}
	switch {
	case errors.Is(err, otp.ErrUsed):
		return web.Reply{}, wrong
	case err != nil:
		return web.Reply{}, storage(err)
	}
	return web.Reply{Body: struct {
		Verified bool `json:"verified"`
	}{true}}, nil
}
