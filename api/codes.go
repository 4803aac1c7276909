package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/codes: POST borrows an invite code, GET looks one up.
func CodesHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("codes", w, r)
}
