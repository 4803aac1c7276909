package app

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

// failedSignIns is the policy of guesses at an account.
const failedSignIns = "failed-sign-ins"

// sessionCookie holds the session's token.
const sessionCookie = "weir_session"

// maxNameBytes bounds the name of a sign-in: longer than any account's, and short enough to be hashed at no cost.
const maxNameBytes = 256

type identity struct {
	Username accounts.Name `json:"username"`
	Role     accounts.Role `json:"role"`
}

type currentSession struct {
	identity
	ExpiresAt time.Time `json:"expiresAt"`
}

type credentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

func (a *App) signIn() web.Resource {
	return web.Resource{
		http.MethodPost:   web.Body(a.limits("sign-in"), 0, a.guess, a.checkPassword),
		http.MethodGet:    web.Query(a.limits("session"), nil, a.whoAmI),
		http.MethodDelete: web.Query(a.limits("session"), nil, a.signOut),
	}
}

// guess charges a sign-in to the name it is for, whatever the password and whether there is such an account.
func (a *App) guess(_ *web.Call, in credentials) ([]ratelimit.Charge, error) {
	if len(in.Username) > maxNameBytes {
		return nil, web.BadRequest("username", "A user name is not that long.")
	}
	if _, err := ratelimit.CanonicalAccount(in.Username); err != nil {
		return nil, web.BadRequest("username", "Please give your user name.")
	}
	if in.Password == "" {
		return nil, web.BadRequest("password", "Please give your password.")
	}
	return []ratelimit.Charge{a.policy(failedSignIns).Charge(in.Username)}, nil
}

func (a *App) checkPassword(call *web.Call, in credentials) (web.Reply, error) {
	account, err := a.accounts.Authenticate(call.Context(), in.Username, in.Password)
	if errors.Is(err, accounts.ErrCredentials) {
		return web.Reply{}, web.Unauthorized("The user name or the password is wrong.")
	}
	// Only a wrong password counts: not a right one, nor one that nobody came to look at. Should giving back fail, the
	// account is left with one unit less in this window, which is no reason to refuse its owner.
	if err := a.limiter.GiveBack(call.Context(), call.Reservation(failedSignIns)); err != nil {
		a.log.WarnContext(call.Context(), "a sign-in that did not fail stays counted", slog.String("error", err.Error()))
	}
	if err != nil {
		return web.Reply{}, storage(err)
	}
	return a.startSession(call, account)
}

func (a *App) startSession(call *web.Call, account accounts.Account) (web.Reply, error) {
	token, expires, err := a.accounts.StartSession(call.Context(), account)
	if err != nil {
		return web.Reply{}, storage(err)
	}
	// The browser forgets the session that it had, so nobody could end that one any more.
	if err := a.endSessions(call); err != nil {
		a.log.WarnContext(call.Context(), "an older session of a browser goes on", slog.String("error", err.Error()))
	}
	return web.Reply{
		Body:    identity{account.Name, account.Role},
		Cookies: []*http.Cookie{a.cookie(token, expires)},
	}, nil
}

func (a *App) whoAmI(call *web.Call) (web.Reply, error) {
	token := call.Cookie(sessionCookie)
	account, expires, renewed, err := a.accounts.Session(call.Context(), token)
	if errors.Is(err, accounts.ErrNoSession) {
		return web.Reply{}, web.Unauthorized("You are not signed in.")
	}
	if err != nil {
		return web.Reply{}, storage(err)
	}
	reply := web.Reply{Body: currentSession{identity{account.Name, account.Role}, expires.UTC()}}
	if renewed {
		reply.Cookies = []*http.Cookie{a.cookie(token, expires)}
	}
	return reply, nil
}

func (a *App) signOut(call *web.Call) (web.Reply, error) {
	if err := a.endSessions(call); err != nil {
		return web.Reply{}, storage(err)
	}
	gone := a.cookie("", time.Time{})
	gone.MaxAge = -1
	return web.Reply{Cookies: []*http.Cookie{gone}}, nil
}

// maxCookies bounds the session cookies that a request may have: one, or a few that were set for other paths or hosts.
const maxCookies = 4

// endSessions ends every session that a request has a cookie of: a browser sends all of that name.
func (a *App) endSessions(call *web.Call) error {
	cookies := call.Request.CookiesNamed(sessionCookie)
	for _, cookie := range cookies[:min(len(cookies), maxCookies)] {
		if err := a.accounts.EndSession(call.Context(), cookie.Value); err != nil {
			return err
		}
	}
	return nil
}

// cookie holds a token out of reach of scripts and, on the platform, of connections without TLS.
func (a *App) cookie(token string, expires time.Time) *http.Cookie {
	return &http.Cookie{
		Name:     sessionCookie,
		Value:    token,
		Path:     "/",
		Expires:  expires,
		HttpOnly: true,
		Secure:   a.settings.Platform || a.settings.SessionSameSite == http.SameSiteNoneMode,
		SameSite: a.settings.SessionSameSite,
	}
}
