package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/evaluations: POST scores an entry of the AI log, GET tells the results by model. Both are for admins.
func EvaluationsHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("evaluations", w, r)
}
