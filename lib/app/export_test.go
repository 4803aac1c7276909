package app

import (
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weirlimits/weir/lib/web"
)

// WholeNumber is wholeNumber.
func WholeNumber(text string) (int64, error) { return wholeNumber(text) }

// UnderAttack is App.underAttack, for a request that shows nothing.
func UnderAttack(a *App) bool {
	return a.underAttack(&web.Call{Request: httptest.NewRequest(http.MethodPost, "/api/sign-in", nil)})
}

// Rest is rest.
func Rest(spent, step time.Duration) time.Duration { return rest(spent, step) }
