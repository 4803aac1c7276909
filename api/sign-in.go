package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/sign-in: POST signs in, GET tells who is signed in, DELETE signs out.
func SignInHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("sign-in", w, r)
}
