package app

import (
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// The limits of the application. A fixed window admits up to twice its limit around an edge: see ratelimit.FixedWindow.
var (
	signIn     = perAddress("sign-in", 10, time.Minute)
	session    = perAddress("session", 60, time.Minute)
	signUp     = perAddress("sign-up", 8, 10*time.Minute)
	demoSignIn = perAddress("demo-sign-in", 30, 10*time.Minute)
	borrowCode = perAddress("borrow-code", 12, 10*time.Minute)
	codeLookup = perAddress("code-lookup", 30, time.Minute)
	nameCheck  = perAddress("username-check", 60, time.Minute)

	// failedSignIns is checked before a password is looked at and counts when it was wrong: a sign-in reserves its
	// unit, and the right password gives it back. It counts names whether they have an account or not.
	failedSignIns = ratelimit.Policy{
		Name:      "failed-sign-ins",
		Algorithm: ratelimit.FixedWindow,
		Limit:     8,
		Window:    15 * time.Minute,
		Subject:   ratelimit.Account,
		Private:   true,
	}
)

func perAddress(name string, limit int64, window time.Duration) ratelimit.Policy {
	return ratelimit.Policy{
		Name:      name,
		Algorithm: ratelimit.FixedWindow,
		Limit:     limit,
		Window:    window,
		Subject:   ratelimit.Address,
		Count:     ratelimit.EveryAttempt,
	}
}
