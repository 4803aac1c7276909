package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/otp: POST sends a one-time code to a phone, PUT checks one.
func OtpHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("otp", w, r)
}
