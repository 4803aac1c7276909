package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/invites"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/web"
)

// The policies of an invite: of the member who mails it, and of whoever gets it, whoever mails.
const (
	mailInvite      = "mail-invite"
	inviteRecipient = "invite-recipient"
)

// mailRetrySeconds is how long a client is asked to wait when a mail server fails: one that is busy means minutes.
const mailRetrySeconds = 60

func (a *App) invite() web.Resource {
	type input struct {
		Email string `json:"email"`
	}
	type accepted struct {
		ID string `json:"id"`
	}
	return web.Resource{
		http.MethodPost: memberBody(a, access{accounts.Member, mailInvite}, 0, func(call *web.Call, _ accounts.Account, in input) (web.Reply, error) {
			to, err := invites.ParseRecipient(in.Email)
			if err != nil {
				return web.Reply{}, web.Unprocessable("email", sentence(mail.AddressRule))
			}
			id := mail.NewID()
			if err := a.mailInvite(call, id, to); err != nil {
				return web.Reply{}, err
			}
			return web.Reply{Status: http.StatusAccepted, Body: accepted{id}}, nil
		}),
	}
}

// mailInvite mails an invite unless its recipient has got as many as anybody may get; the caller isn't told, or else it
// would learn that others invite the same person. For that reason it is a decision of its own: a refusal in the request's
// own would leave the edge's limit uncharged, which the answer's fields show.
func (a *App) mailInvite(call *web.Call, id string, to invites.Recipient) error {
	ctx := call.Context()
	log := a.log.With(slog.String("route", "/api/invites"), slog.String("invite", id))
	decision, err := a.limiter.Decide(ctx, a.policy(inviteRecipient).Charge(to.Key()))
	if err != nil {
		return err
	}
	if decision.Outage != nil && call.Decision.Outage == nil { // or else the log tells of the same outage twice
		log.WarnContext(ctx, "store did not answer, admitted without it", slog.String("error", decision.Outage.Error()))
	}
	if !decision.Allowed {
		log.InfoContext(ctx, "invite not mailed: its recipient has enough of them")
		return nil
	}
	err = a.invites.Send(ctx, id, to)
	if err != nil && !errors.Is(err, mail.ErrUnknown) {
		// The recipient got nothing.
		kept := a.limiter.GiveBack(ctx, decision.Limits[0].Reservation)
		if kept != nil && !errors.Is(err, codes.ErrStore) { // as above
			log.WarnContext(ctx, "an invite that was not mailed stays counted", slog.String("error", kept.Error()))
		}
	}
	return mailProblem(ctx, log, err)
}

// mailProblem says to a client what became of a message, and to the log why.
func mailProblem(ctx context.Context, log *slog.Logger, err error) error {
	var detail string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mail.ErrRefused):
		log.WarnContext(ctx, "mail not sent", slog.String("error", err.Error()))
		return web.Unprocessable("email", "The mail server takes no mail for this address.")
	case errors.Is(err, mail.ErrNotSent):
		detail = "The mail server takes no mail at the moment. Nothing was sent. Please try again in a minute."
	case errors.Is(err, mail.ErrUnknown) && !errors.Is(err, mail.ErrStore):
		detail = "The mail server broke off, so the mail may have been sent or not. If it does not arrive, please try again."
	default:
		return storage(err)
	}
	log.WarnContext(ctx, "mail not sent", slog.String("error", err.Error()))
	return &web.Problem{Status: http.StatusServiceUnavailable, Detail: detail, RetryAfterSeconds: mailRetrySeconds}
}
