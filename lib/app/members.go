package app

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

// access says who may use an operation, and what it costs them.
type access struct {
	role   accounts.Role // Admin: admins only; Member: everybody who is signed in
	policy string        // charged to the account for every attempt; "" for none but the edge's
}

// memberBody is web.Body for people who are signed in. Without a session the answer is 401, with one of too low a role 403;
// both cost the address alone. Whatever else the request is, it costs the account too, in the same decision.
func memberBody[T any](a *App, who access, maxBytes int64, run func(*web.Call, accounts.Account, T) (web.Reply, error)) web.Operation {
	return web.Identified(a.identify(who), web.Body([]ratelimit.Policy{a.policy(edge)}, maxBytes, nil,
		func(call *web.Call, in T) (web.Reply, error) {
			return a.asMember(call, func(account accounts.Account) (web.Reply, error) { return run(call, account, in) })
		}))
}

// memberQuery is web.Query for people who are signed in. See memberBody.
func memberQuery(a *App, who access, run func(*web.Call, accounts.Account) (web.Reply, error)) web.Operation {
	return web.Identified(a.identify(who), web.Query([]ratelimit.Policy{a.policy(edge)}, nil,
		func(call *web.Call) (web.Reply, error) {
			return a.asMember(call, func(account accounts.Account) (web.Reply, error) { return run(call, account) })
		}))
}

// member is who asks, as identify found out.
type member struct {
	account accounts.Account
	cookie  *http.Cookie // the session's, when it was renewed
}

// memberKey is the key of a member in a request's context.
type memberKey struct{}

func (a *App) identify(who access) func(*web.Call) ([]ratelimit.Charge, error) {
	return func(call *web.Call) ([]ratelimit.Charge, error) {
		token := call.Cookie(sessionCookie)
		if !accounts.IsToken(token) { // the store isn't asked, which would say nothing about it
			return nil, web.Unauthorized("Please sign in first.")
		}
		var account accounts.Account
		var expires time.Time
		var renewed bool
		err := a.limiter.Guard(call.Context(), func(ctx context.Context) (err error) {
			account, expires, renewed, err = a.accounts.Session(ctx, token)
			return err
		})
		switch {
		case errors.Is(err, accounts.ErrNoSession):
			return nil, web.Unauthorized("Please sign in first.")
		case err != nil:
			return nil, storage(err)
		case who.role == accounts.Admin && account.Role != accounts.Admin:
			return nil, web.Forbidden("This is for admins.")
		}
		found := member{account: account}
		if renewed {
			found.cookie = a.cookie(sessionCookie, token, expires)
		}
		call.Request = call.Request.WithContext(context.WithValue(call.Context(), memberKey{}, found))
		if who.policy == "" {
			return nil, nil
		}
		return []ratelimit.Charge{a.policy(who.policy).Charge(strconv.FormatInt(account.ID, 10))}, nil
	}
}

// asMember runs an operation as the one who was identified.
func (a *App) asMember(call *web.Call, run func(accounts.Account) (web.Reply, error)) (web.Reply, error) {
	found, _ := call.Context().Value(memberKey{}).(member)
	reply, err := run(found.account)
	if found.cookie != nil {
		reply.Cookies = append(reply.Cookies, found.cookie)
	}
	return reply, err
}
