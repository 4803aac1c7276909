package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/invites: POST mails an invite.
func InvitesHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("invites", w, r)
}
