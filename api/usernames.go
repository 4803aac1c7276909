package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/usernames: GET tells whether a name is free.
func UsernamesHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("usernames", w, r)
}
