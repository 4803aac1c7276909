package app

import (
	"errors"
	"net/http"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

type newAccount struct {
	Code     string `json:"code"`
	Username string `json:"username"`
	Password string `json:"password"`
	Email    string `json:"email,omitempty"`
}

func (a *App) signUp() web.Resource {
	return web.Resource{
		http.MethodPost: web.Body(a.limits("sign-up"), 0, nil, func(call *web.Call, in newAccount) (web.Reply, error) {
			name, err := accounts.ParseName(in.Username)
			if err != nil {
				return web.Reply{}, web.Unprocessable("username", sentence(accounts.NameRule))
			}
			code, err := codes.Parse(in.Code)
			if err != nil {
				return web.Reply{}, signUpProblem(accounts.ErrCodeUnknown)
			}
			var email accounts.Email
			if in.Email != "" {
				if email, err = accounts.ParseEmail(in.Email); err != nil {
					return web.Reply{}, web.Unprocessable("email", sentence(mail.AddressRule))
				}
			}
			account, err := a.accounts.SignUp(call.Context(), accounts.Applicant{Code: code, Name: name, Password: in.Password, Email: email})
			if err != nil {
				return web.Reply{}, signUpProblem(err)
			}
			return web.Reply{Status: http.StatusCreated, Body: identity{account.Name, account.Role}}, nil
		}),
		http.MethodDelete: web.Identified(a.identify(access{role: accounts.Member}), web.Body(a.limits("session"), 0, a.guessToDelete, a.deleteAccount)),
	}
}

// deletion is the body of DELETE.
type deletion struct {
	Password string `json:"password"`
}

func (a *App) guessToDelete(call *web.Call, in deletion) ([]ratelimit.Charge, error) {
	if in.Password == "" {
		return nil, web.BadRequest("password", "Please give your password.")
	}
	return a.guessOwn(call)
}

func (a *App) deleteAccount(call *web.Call, in deletion) (web.Reply, error) {
	found, _ := call.Context().Value(memberKey{}).(member)
	err := a.accounts.Delete(call.Context(), found.account, in.Password)
	a.guessed(call, err)
	if errors.Is(err, accounts.ErrCredentials) {
		return web.Reply{}, web.Unauthorized("The password is wrong.")
	}
	return web.Reply{Cookies: []*http.Cookie{a.noSession()}}, storage(err)
}

func signUpProblem(err error) error {
	switch {
	case errors.Is(err, accounts.ErrNameTaken):
		return web.Conflict("username", "This user name is taken. The code is still yours.")
	case errors.Is(err, accounts.ErrCodeUnknown):
		return web.Unprocessable("code", "There is no such code.")
	case errors.Is(err, accounts.ErrCodeUsed):
		return web.Unprocessable("code", "This code has been used.")
	case errors.Is(err, accounts.ErrCode):
		return web.Unprocessable("code", "This code is not borrowed, or its time is over. Please borrow one.")
	}
	return passwordProblem("password", err)
}

func (a *App) demoSignIn() web.Resource {
	type input struct {
		Role accounts.Role `json:"role"`
	}
	return web.Resource{
		http.MethodPost: web.Body(a.limits("demo-sign-in"), 0, nil, func(call *web.Call, in input) (web.Reply, error) {
			if !a.settings.Demo {
				return web.Reply{}, web.NotFound("There are no demo accounts here.")
			}
			account, err := a.accounts.Demo(call.Context(), in.Role)
			if errors.Is(err, accounts.ErrRole) {
				return web.Reply{}, web.Unprocessable("role", `The role is "member" or "admin".`)
			}
			if err != nil {
				return web.Reply{}, storage(err)
			}
			token, expires, err := a.accounts.StartSession(call.Context(), account)
			if err != nil {
				return web.Reply{}, storage(err)
			}
			return a.signedIn(call, account, token, expires), nil
		}),
	}
}

func (a *App) codePool() web.Resource {
	type lent struct {
		Code      codes.Code `json:"code"`
		ExpiresAt time.Time  `json:"expiresAt"`
	}
	type found struct {
		Code      codes.Code  `json:"code"`
		State     codes.State `json:"state"`
		ExpiresAt time.Time   `json:"expiresAt,omitzero"`
	}
	return web.Resource{
		http.MethodPost: web.Body(a.limits("borrow-code"), 0, nil, func(call *web.Call, _ struct{}) (web.Reply, error) {
			code, expires, err := a.codes.Borrow(call.Context())
			if errors.Is(err, codes.ErrNoneLeft) {
				return web.Reply{}, web.Conflict("", "Every code is borrowed or used at the moment. One that is not used returns after half an hour.")
			}
			if err != nil {
				return web.Reply{}, storage(err)
			}
			return web.Reply{Status: http.StatusCreated, Body: lent{code, expires.UTC()}}, nil
		}),
		http.MethodGet: web.Query(a.limits("code-lookup"), nil, func(call *web.Call) (web.Reply, error) {
			text, err := call.Query("code")
			if err != nil {
				return web.Reply{}, err
			}
			code, err := codes.Parse(text)
			if err != nil {
				return web.Reply{}, web.NotFound("There is no such code: " + codes.Form + ".")
			}
			state, expires, err := a.codes.Lookup(call.Context(), code)
			if errors.Is(err, codes.ErrUnknown) {
				return web.Reply{}, web.NotFound("There is no such code.")
			}
			if err != nil {
				return web.Reply{}, storage(err)
			}
			reply := found{Code: code, State: state}
			if !expires.IsZero() {
				reply.ExpiresAt = expires.UTC()
			}
			return web.Reply{Body: reply}, nil
		}),
	}
}

func (a *App) usernames() web.Resource {
	type checked struct {
		Name accounts.Name `json:"name"`
		Free bool          `json:"free"`
	}
	return web.Resource{
		http.MethodGet: web.Query(a.limits("username-check"), nil, func(call *web.Call) (web.Reply, error) {
			text, err := call.Query("name")
			if err != nil {
				return web.Reply{}, err
			}
			name, err := accounts.ParseName(text)
			if err != nil {
				return web.Reply{}, web.Unprocessable("name", sentence(accounts.NameRule))
			}
			free, err := a.accounts.IsFree(call.Context(), name)
			if err != nil {
				return web.Reply{}, storage(err)
			}
			return web.Reply{Body: checked{name, free}}, nil
		}),
	}
}

// sentence makes a rule of a domain package one for a person.
func sentence(rule string) string {
	return string(rule[0]-'a'+'A') + rule[1:] + "."
}
