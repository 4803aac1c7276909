package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/partner: GET pages through the AI log, or searches it, for whoever shows an API key.
func PartnerHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("partner", w, r)
}
