package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/demo-sign-in: POST signs in to a demo account.
func DemoSignInHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("demo-sign-in", w, r)
}
