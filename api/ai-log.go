package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/ai-log: POST adds an entry to the AI log, GET pages through one's own.
func AiLogHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("ai-log", w, r)
}
