package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/invites"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/resets"
	"github.com/weirlimits/weir/lib/web"
)

// resetRecipient is the policy of an inbox that resets are mailed to, whoever asks.
const resetRecipient = "reset-recipient"

// How long a request for a reset takes, or twice as long, or more: longer than it needs, so that its time tells nothing. A mail
// server is given the time up to mailedBy, and what is left is for taking back.
const (
	resetTimeBySMTP = 4 * time.Second
	resetMailedBy   = 3500 * time.Millisecond
	resetTime       = time.Second // into the outbox: three commits, of a tenth of a second at most
)

type resetRequest struct {
	Username string `json:"username"`
}

// askable charges no more than the address, for whatever can be a name.
func askable(_ *web.Call, in resetRequest) ([]ratelimit.Charge, error) {
	return nil, nameless(in.Username)
}

// askForReset mails a link for a new password, if there is somebody to mail it to who hasn't got enough of them. The answer is the
// same for every name, in its bytes and in its time. Only an outage of the application's own database is told, which every name meets alike.
func (a *App) askForReset(call *web.Call, in resetRequest) (web.Reply, error) {
	started := time.Now()
	long := resetTime
	if a.settings.SMTP != nil {
		long = resetTimeBySMTP
	}
	if err := a.mailReset(call, in.Username, started.Add(resetMailedBy)); err != nil {
		return web.Reply{}, err
	}
	// An error means that the request's time is over, and its answer late anyhow.
	_ = a.wait(call.Context(), rest(time.Since(started), long))
	return web.Reply{Status: http.StatusAccepted}, nil
}

// rest is what is left of a step, or when a slow store has used that up, of the next one: so a tenth of a second more or less of work
// isn't seen in the time of an answer then either, but where it lies across the edge of a step.
func rest(spent, step time.Duration) time.Duration { return step - spent%step }

// mailReset does the same for every name up to the mail: one read, one decision, and a statement that adds a token where there is
// an account for it. What a name without a recipient is charged to stands for one, so that a store which fails to write does so
// for every name.
//
// The decision is one of its own, as that of an invite: see mailInvite.
func (a *App) mailReset(call *web.Call, name string, mailedBy time.Time) error {
	ctx := call.Context()
	account, email, err := a.accounts.Owner(ctx, name)
	if err != nil {
		return storage(err)
	}
	subject := "nobody"
	if email != "" {
		subject = invites.Recipient(email).Key()
	} else if canonical, err := accounts.ParseName(name); err == nil {
		subject = "nobody " + string(canonical)
	}
	decision, err := a.limiter.Decide(ctx, a.policy(resetRecipient).Charge(subject))
	log := a.log.With(slog.String("route", "/api/sign-in"))
	if err != nil { // of several databases that of this recipient may be the one that fails: to say so would tell who has one
		log.WarnContext(ctx, "reset not mailed", slog.String("error", err.Error()))
		decision.Allowed = false
	}
	if decision.Outage != nil && call.Decision.Outage == nil { // or else the log tells of the same outage twice
		log.WarnContext(ctx, "store did not answer, admitted without it", slog.String("error", decision.Outage.Error()))
	}
	if email != "" && !decision.Allowed {
		log.InfoContext(ctx, "reset not mailed: its recipient has enough of them")
	}
	if email == "" || !decision.Allowed {
		account = accounts.Account{} // nobody's number
	}
	reset, err := a.accounts.StartReset(ctx, account)
	switch {
	case errors.Is(err, accounts.ErrNoAccount):
		return nil
	case err != nil:
		return storage(err)
	}
	id := mail.NewID()
	log = log.With(slog.String("mail", id))
	ctx, cancel := context.WithDeadline(ctx, mailedBy)
	defer cancel()
	if err := a.resets.Send(ctx, id, resets.Asked, email, account, reset); err != nil {
		a.resetNotMailed(context.WithoutCancel(ctx), log, err, decision.Limits[0].Reservation, reset)
	}
	return nil
}

// resetNotMailed says to the log what nobody else may know.
func (a *App) resetNotMailed(ctx context.Context, log *slog.Logger, err error, reservation ratelimit.Reservation, reset accounts.Reset) {
	log.WarnContext(ctx, "reset not mailed", slog.String("error", err.Error()))
	if errors.Is(err, mail.ErrUnknown) {
		return
	}
	if err := a.limiter.GiveBack(ctx, reservation); err != nil { // its recipient got nothing
		log.WarnContext(ctx, "a reset that was not mailed stays counted", slog.String("error", err.Error()))
	}
	if err := a.accounts.UndoReset(ctx, reset); err != nil {
		log.WarnContext(ctx, "a reset that was not mailed has ended the one before", slog.String("error", err.Error()))
	}
}

// resettable refuses what can't be a new password by a link.
func resettable(in passwordChange) error {
	switch {
	case *in.Token == "":
		return web.BadRequest("token", "Please give the token of your mail.")
	case in.CurrentPassword != "":
		return web.BadRequest("currentPassword", "With a token there is no current password.")
	case in.NewPassword == "":
		return web.BadRequest("newPassword", "Please give your new password.")
	}
	return nil
}

// resetPassword changes a password by a link. Nobody guesses a token of 256 bits, so the address's limit is enough.
func (a *App) resetPassword(call *web.Call, in passwordChange) (web.Reply, error) {
	err := a.accounts.ResetPassword(call.Context(), *in.Token, in.NewPassword)
	if errors.Is(err, accounts.ErrReset) {
		return web.Reply{}, web.Unauthorized("This link is not good, or not any more: it was used or replaced, or its hour is over. Please ask for a new one.")
	}
	return web.Reply{}, passwordProblem("newPassword", err)
}
