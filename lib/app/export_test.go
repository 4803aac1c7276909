package app

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/web"
)

// WholeNumber is wholeNumber.
func WholeNumber(text string) (int64, error) { return wholeNumber(text) }

// UnderAttack is App.underAttack, for a request that shows nothing.
func UnderAttack(a *App) bool {
	return a.underAttack(&web.Call{Request: httptest.NewRequest(http.MethodPost, "/api/sign-in", nil)})
}

// TurnedAway has the detection of attacks see a sign-in whose time was over while its password
// waited to be hashed.
func TurnedAway(a *App, name, address string) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	request := httptest.NewRequest(http.MethodPost, "/api/sign-in", nil).WithContext(ctx)
	a.observe(&web.Call{Request: request, Address: address}, name, fmt.Errorf("%w: %w", accounts.ErrBusy, ctx.Err()))
}

// Rest is rest.
func Rest(spent, step time.Duration) time.Duration { return rest(spent, step) }
