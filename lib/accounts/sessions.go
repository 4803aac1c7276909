package accounts

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
)

const (
	// SessionLifetime is how long a session lasts after it was started or last renewed.
	SessionLifetime = 14 * 24 * time.Hour

	// renewAfter is how much of the lifetime must be used before a session is renewed: a session in constant use costs one
	// write a day.
	renewAfter = 24 * time.Hour

	tokenBytes = 32
)

// tokenLength is the length of a token as text.
var tokenLength = base64.RawURLEncoding.EncodedLen(tokenBytes)

// hashToken gives what the database knows of a token. A token is random, so a plain SHA-256 of it tells nothing.
func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

const startSession = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO sessions (token_hash, account, created_micros, expires_micros)
SELECT ?, ?, now, now + ?
FROM clock
RETURNING expires_micros`

// StartSession starts a session of the account. The token is 32 random bytes in base64url; the database learns only its
// SHA-256. It expires SessionLifetime from now unless it is renewed. The account's expired sessions are deleted in passing.
func (a *Accounts) StartSession(ctx context.Context, account Account) (token string, expires time.Time, err error) {
	random := make([]byte, tokenBytes)
	rand.Read(random) // never fails: it ends the program instead
	token = base64.RawURLEncoding.EncodeToString(random)
	var micros int64
	err = a.db.QueryRowContext(ctx, startSession,
		a.now(), hashToken(token), account.ID, SessionLifetime.Microseconds()).Scan(&micros)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("%w: start a session: %w", ErrStore, err)
	}
	return token, time.UnixMicro(micros).UTC(), nil
}

const readSession = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
SELECT a.id, a.username, a.role, s.expires_micros, s.expires_micros - now
FROM sessions AS s JOIN accounts AS a ON a.id = s.account CROSS JOIN clock
WHERE s.token_hash = ? AND s.expires_micros > now`

// renewSession gives a session its full lifetime again, unless it has ended since it was read.
const renewSession = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE sessions
SET expires_micros = (SELECT now FROM clock) + ?
WHERE token_hash = ? AND expires_micros > (SELECT now FROM clock)
RETURNING expires_micros`

// Session returns whose session a token is and when it expires, or ErrNoSession. If more than a day of its lifetime is used
// it gets the whole again, and renewed is true: the cookie should then be sent anew.
func (a *Accounts) Session(ctx context.Context, token string) (account Account, expires time.Time, renewed bool, err error) {
	if len(token) != tokenLength {
		return Account{}, time.Time{}, false, ErrNoSession
	}
	tokenHash := hashToken(token)
	var micros, left int64
	err = a.db.QueryRowContext(ctx, readSession, a.now(), tokenHash).
		Scan(&account.ID, &account.Name, &account.Role, &micros, &left)
	if err == nil && left < (SessionLifetime-renewAfter).Microseconds() {
		renewed = true
		err = a.db.QueryRowContext(ctx, renewSession, a.now(), SessionLifetime.Microseconds(), tokenHash).Scan(&micros)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return Account{}, time.Time{}, false, ErrNoSession
	}
	if err != nil {
		return Account{}, time.Time{}, false, fmt.Errorf("%w: read or renew a session: %w", ErrStore, err)
	}
	return account, time.UnixMicro(micros).UTC(), renewed, nil
}

const endSession = `
DELETE FROM sessions
WHERE token_hash = ?`

// EndSession ends the session of a token. A token without a session is none already, and no error.
func (a *Accounts) EndSession(ctx context.Context, token string) error {
	if len(token) != tokenLength {
		return nil
	}
	if _, err := a.db.ExecContext(ctx, endSession, hashToken(token)); err != nil {
		return fmt.Errorf("%w: end a session: %w", ErrStore, err)
	}
	return nil
}
