package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/sign-up: POST makes an account with a borrowed code.
func SignUpHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("sign-up", w, r)
}
