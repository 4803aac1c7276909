package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/captcha"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

// sessionCookie holds the session's token, deviceCookie what a browser shows of its earlier sign-ins.
const (
	sessionCookie = "weir_session"
	deviceCookie  = "weir_device"
)

// maxNameRunes bounds the name of a sign-in: longer than any account's, and within what a limit's subject may have.
const maxNameRunes = ratelimit.MaxSubjectBytes / utf8.UTFMax

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
	Captcha  string `json:"captcha,omitempty"` // a token of the widget's
}

func (a *App) signIn() web.Resource {
	return web.Resource{
		http.MethodPost:   web.Reconsidered(a.byCaptcha, web.Body(a.limits("sign-in"), 0, a.guess, a.checkPassword)),
		http.MethodGet:    web.Query(a.limits("session"), nil, a.whoAmI),
		http.MethodDelete: web.Query(a.limits("session"), nil, a.signOut),
		http.MethodPut:    web.Body(a.limits("session"), 0, askable, a.askForReset),
		http.MethodPatch:  web.Body(a.limits("session"), 0, a.guessToChange, a.changePassword),
	}
}

// guess charges a sign-in to the name it is for, whatever the password and whether there is such an account.
func (a *App) guess(call *web.Call, in credentials) ([]ratelimit.Charge, error) {
	if err := nameless(in.Username); err != nil {
		return nil, err
	}
	if in.Password == "" {
		return nil, web.BadRequest("password", "Please give your password.")
	}
	if in.Captcha != "" && !captcha.CanBeToken(in.Captcha) {
		return nil, web.BadRequest("captcha", "That can be no token of a CAPTCHA.")
	}
	charges, err := a.guessAt(call, in.Username)
	if err != nil {
		return nil, err
	}
	return a.orCaptcha(call, in, charges), nil
}

// nameless refuses what can't be anybody's name, by its form alone.
func nameless(name string) error {
	if utf8.RuneCountInString(name) > maxNameRunes {
		return web.BadRequest("username", "A user name is not that long.")
	}
	if _, err := ratelimit.CanonicalAccount(name); err != nil {
		return web.BadRequest("username", "Please give your user name.")
	}
	return nil
}

// guessKey is the key of a guessing in a request's context.
type guessKey struct{}

// guessing is what is known of a guess before it is decided.
type guessing struct {
	device accounts.Device
	strict bool // passwords are tried all over, and there is something to do about it: see underAttack
}

// guessAt charges a guess at the password of a name: to the device that it comes from, if that signed in to this account
// before, so that what strangers use up is no matter to it; otherwise to the name. Every operation that compares a password
// charges it by this, so that all of them share one budget.
func (a *App) guessAt(call *web.Call, name string) ([]ratelimit.Charge, error) {
	var device accounts.Device
	if cookie := call.Cookie(deviceCookie); a.accounts.ShowsDevice(cookie) {
		err := a.limiter.Guard(call.Context(), func(ctx context.Context) (err error) {
			device, err = a.accounts.Device(ctx, cookie, name)
			return err
		})
		if err != nil {
			return nil, storage(err)
		}
	}
	guess := guessing{device: device, strict: (a.settings.Hardened || a.captcha != nil) && a.underAttack(call)}
	call.Request = call.Request.WithContext(context.WithValue(call.Context(), guessKey{}, guess))
	return a.guessCharges(name, guess), nil
}

// guessed gives a guess back unless it was wrong. Only a wrong password counts: not a right one, nor one that nobody came to
// look at. Should giving back fail, the account is left with one guess less in this window, which is no reason to refuse its
// owner.
func (a *App) guessed(call *web.Call, err error) {
	if errors.Is(err, accounts.ErrCredentials) {
		return
	}
	kept := a.limiter.GiveBack(call.Context(), guessesOf(call.Decision)...)
	if kept != nil && !errors.Is(err, accounts.ErrStore) { // or else the log tells of the same outage twice
		a.log.WarnContext(call.Context(), "a guess that was not wrong stays counted", slog.String("error", kept.Error()))
	}
}

func (a *App) checkPassword(call *web.Call, in credentials) (web.Reply, error) {
	guess, _ := call.Context().Value(guessKey{}).(guessing)
	account, session, err := a.accounts.SignIn(call.Context(), in.Username, in.Password, guess.device)
	a.guessed(call, err)
	a.observe(call, in.Username, err)
	if errors.Is(err, accounts.ErrCredentials) {
		return web.Reply{}, web.Unauthorized("The user name or the password is wrong.")
	}
	if err != nil {
		return web.Reply{}, storage(err)
	}
	reply := a.signedIn(call, account, session.Token, session.Expires)
	reply.Cookies = append(reply.Cookies, a.cookie(deviceCookie, session.Device, session.DeviceExpires))
	return reply, nil
}

// signedIn answers with a session that was just started.
func (a *App) signedIn(call *web.Call, account accounts.Account, token string, expires time.Time) web.Reply {
	// The browser forgets the session that it had, so nobody could end that one any more.
	if err := a.endSessions(call); err != nil {
		a.log.WarnContext(call.Context(), "an older session of a browser goes on", slog.String("error", err.Error()))
	}
	return web.Reply{
		Body:    identity{account.Name, account.Role},
		Cookies: []*http.Cookie{a.cookie(sessionCookie, token, expires)},
	}
}

// passwordChange is the body of PATCH: who is signed in gives the current password. Token is for the other way, a link that
// was sent by mail, and has no session.
type passwordChange struct {
	Token           *string `json:"token"`
	CurrentPassword string  `json:"currentPassword"`
	NewPassword     string  `json:"newPassword"`
}

func (a *App) guessToChange(call *web.Call, in passwordChange) ([]ratelimit.Charge, error) {
	switch {
	case in.Token != nil:
		return nil, resettable(in)
	case in.CurrentPassword == "":
		return nil, web.BadRequest("currentPassword", "Please give your current password.")
	case in.NewPassword == "":
		return nil, web.BadRequest("newPassword", "Please give your new password.")
	}
	if _, err := a.identify(access{role: accounts.Member})(call); err != nil {
		return nil, err
	}
	return a.guessOwn(call)
}

// guessOwn charges a guess at the password of whoever is signed in. The demo's accounts are everybody's: nobody changes or
// deletes them.
func (a *App) guessOwn(call *web.Call) ([]ratelimit.Charge, error) {
	found, _ := call.Context().Value(memberKey{}).(member)
	if found.account.Name.Reserved() {
		return nil, web.Forbidden("This is a demo account, which all visitors share.")
	}
	return a.guessAt(call, string(found.account.Name))
}

func (a *App) changePassword(call *web.Call, in passwordChange) (web.Reply, error) {
	if in.Token != nil {
		return a.resetPassword(call, in)
	}
	return a.asMember(call, func(account accounts.Account) (web.Reply, error) {
		err := a.accounts.ChangePassword(call.Context(), account, call.Cookie(sessionCookie), in.CurrentPassword, in.NewPassword)
		a.guessed(call, err)
		if errors.Is(err, accounts.ErrCredentials) {
			return web.Reply{}, web.Unauthorized("The current password is wrong.")
		}
		return web.Reply{}, passwordProblem("newPassword", err)
	})
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
		reply.Cookies = []*http.Cookie{a.cookie(sessionCookie, token, expires)}
	}
	return reply, nil
}

// signOut ends the sessions that the browser has; with everywhere=1 all those of its account, whose devices are forgotten.
func (a *App) signOut(call *web.Call) (web.Reply, error) {
	switch everywhere, err := call.Query("everywhere"); {
	case err != nil:
		return web.Reply{}, err
	case everywhere == "1":
		if err := a.signOutEverywhere(call); err != nil {
			return web.Reply{}, err
		}
	case call.Request.URL.Query().Has("everywhere"):
		return web.Reply{}, web.BadRequest("everywhere", "Everywhere is 1, or left out.")
	}
	if err := a.endSessions(call); err != nil {
		return web.Reply{}, storage(err)
	}
	return web.Reply{Cookies: []*http.Cookie{a.noSession()}}, nil
}

// signOutEverywhere refuses where nobody is signed in, since nobody would be signed out by it anywhere else.
func (a *App) signOutEverywhere(call *web.Call) error {
	account, _, _, err := a.accounts.Session(call.Context(), call.Cookie(sessionCookie))
	switch {
	case errors.Is(err, accounts.ErrNoSession):
		return web.Unauthorized("Please sign in first.")
	case err != nil:
		return storage(err)
	case account.Name.Reserved():
		return web.Forbidden("This is a demo account, which all visitors share.")
	}
	return storage(a.accounts.EndAllSessions(call.Context(), account))
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
func (a *App) cookie(name, token string, expires time.Time) *http.Cookie {
	return &http.Cookie{
		Name:     name,
		Value:    token,
		Path:     "/",
		Expires:  expires,
		HttpOnly: true,
		Secure:   a.settings.Platform || a.settings.SessionSameSite == http.SameSiteNoneMode,
		SameSite: a.settings.SessionSameSite,
	}
}

// noSession takes the session's cookie away from a browser.
func (a *App) noSession() *http.Cookie {
	gone := a.cookie(sessionCookie, "", time.Time{})
	gone.MaxAge = -1
	return gone
}
