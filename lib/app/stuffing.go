package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/stuffing"
	"github.com/weirlimits/weir/lib/web"
)

// observeTime bounds what the count of a sign-in may add to its answer: some commits of the slowest plan.
const observeTime = time.Second

// observe counts a sign-in for the detection of attacks: one that succeeded, one with a wrong
// password, and one that was turned away because too many passwords were being hashed. That one
// counts as failed, although its password wasn't compared: an attack that takes up all hashing
// would otherwise hide itself. An error here changes no answer.
func (a *App) observe(call *web.Call, name string, err error) {
	failed := errors.Is(err, accounts.ErrCredentials) || errors.Is(err, accounts.ErrBusy)
	if a.stuffing == nil || err != nil && !failed {
		return
	}
	account, err := ratelimit.CanonicalAccount(name)
	if err != nil {
		return // guess has refused it
	}
	// What is turned away has used up the time of its request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(call.Context()), observeTime)
	defer cancel()
	seen, err := a.stuffing.Observe(ctx, account, call.Address, failed)
	if err != nil {
		a.log.WarnContext(ctx, "sign-in not counted", slog.String("error", err.Error()))
	}
	if seen {
		a.alerted.Store(true)
	}
}

// underAttack says whether passwords are tried all over at the moment. A process reads it once in stuffing.Remember; a new one
// with its first request. While it can't be read it is what was last known.
func (a *App) underAttack(call *web.Call) bool {
	if a.stuffing == nil {
		return false
	}
	on, fresh := a.stuffing.Remembered()
	if fresh {
		return on
	}
	err := a.limiter.Guard(call.Context(), func(ctx context.Context) (err error) {
		on, err = a.stuffing.Read(ctx)
		return err
	})
	if err != nil {
		a.log.WarnContext(call.Context(), "whether passwords are tried all over is not known", slog.String("error", err.Error()))
	}
	return on
}

// attackText says of an attack what was seen when it began.
func attackText(f stuffing.Figures, at time.Time) string {
	return fmt.Sprintf("Passwords are tried all over since about %s: %d of %d sign-ins failed in %d minutes, of about %d accounts from about %d addresses. "+
		"Normal are %g failures a minute, and %d %% of the sign-ins.",
		at.Add(-time.Duration(f.Minutes)*time.Minute).Format(time.RFC3339), f.Failures, f.Failures+f.Successes, f.Minutes, f.Accounts, f.Addresses,
		f.NormalFailuresPerMinute, f.NormalRatioPercent)
}
