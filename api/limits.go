package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/limits: POST decides a service's limits, GET tells how they stand and sweeps.
func LimitsHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("limits", w, r)
}
