package hrana

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// MaxPause bounds the pause before a statement is asked again. A commit, which is what a writer
// waits for, takes some milliseconds. libSQL's server has waited by itself, for 0.1 to 1.4 seconds,
// before it says that it is busy.
const MaxPause = 50 * time.Millisecond

// busyCodes say that a statement was not carried out because others were in the way, or because the
// server let it begin nothing. SQLite's have extensions, such as SQLITE_BUSY_SNAPSHOT and
// SQLITE_LOCKED_SHAREDCACHE.
var busyCodes = []string{"SQLITE_BUSY", "SQLITE_LOCKED", "TRANSACTION_BUSY", "BLOCKED"}

// busyMessages are what the databases say with these codes, in lower case.
var busyMessages = []string{
	"database is locked", "database table is locked", "database schema is locked", // SQLite, libSQL
	"database is busy", // the Turso engine
	"server cannot handle additional transactions", // TRANSACTION_BUSY
	"operation was blocked",                        // BLOCKED
}

// Busy reports whether the error proves that the statement was not carried out and may be next
// time. Only the result of a statement proves that: an HTTP status other than 200 speaks of the
// whole request, of which a part may be done.
func (e *ServerError) Busy() bool {
	if e.Status != http.StatusOK {
		return false
	}
	for _, code := range busyCodes {
		if rest, found := strings.CutPrefix(e.Code, code); found && (rest == "" || rest[0] == '_') {
			return true
		}
	}
	return BusyMessage(e.Message)
}

// BusyMessage does the same for a database's message whose code is lost. The message has to begin
// with the database's words, so that a name or a text of a user's in it proves nothing.
func BusyMessage(message string) bool {
	message = strings.ToLower(message)
	for _, prefix := range []string{"sqlite_busy: ", "sqlite_locked: ", "sqlite error: "} {
		message = strings.TrimPrefix(message, prefix)
	}
	for _, words := range busyMessages {
		rest, found := strings.CutPrefix(message, words)
		if found && (rest == "" || rest[0] == ':' || strings.HasPrefix(rest, " (")) {
			return true
		}
	}
	return false
}

// Pause waits for a random time before a statement is asked again, and reports whether ctx still
// lasts. The time is at most MaxPause, and at most a quarter of what is left of ctx.
func Pause(ctx context.Context) bool {
	longest := MaxPause
	if end, bounded := ctx.Deadline(); bounded {
		longest = min(longest, time.Until(end)/4)
	}
	if longest <= 0 {
		return false
	}
	timer := time.NewTimer(longest/4 + rand.N(longest*3/4+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
