package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// /api/sandbox-sql: POST runs an admin's statement on a sample database.
func SandboxSQLHandler(w http.ResponseWriter, r *http.Request) {
	app.Serve("sandbox-sql", w, r)
}
