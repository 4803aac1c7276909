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

	"github.com/weirlimits/weir/lib/tables"
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

// startSession starts a session while the account is there and has the password that was compared, if one was. The trigger
// sessions_device makes the device known in the same statement: the one that was shown while it is not revoked, otherwise
// the fresh one, so that what was revoked meanwhile stays so.
const startSession = `
WITH
  clock AS MATERIALIZED (
    SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
  ),
  known AS MATERIALIZED (
    SELECT id_hash
    FROM devices CROSS JOIN clock
    WHERE id_hash = ? AND account = ? AND expires_micros > now
  )
INSERT INTO sessions (token_hash, account, created_micros, expires_micros, device)
SELECT ?, id, now, now + ?, coalesce((SELECT id_hash FROM known), ?)
FROM accounts CROSS JOIN clock
WHERE id = ? AND coalesce(?, password_hash, '') = coalesce(password_hash, '')
RETURNING created_micros, expires_micros, coalesce(device, '')`

// Session is one that was just started.
type Session struct {
	Token   string // 32 random bytes in base64url; the database learns only their SHA-256
	Expires time.Time
	// Device is for the browser to show when it signs in again, until DeviceExpires: see Accounts.Device. Empty: no device is
	// known.
	Device        string
	DeviceExpires time.Time
}

// StartSession starts a session of the account without asking for a password. No device is known by it. It expires
// SessionLifetime from now unless it is renewed. The account's expired sessions are deleted in passing. ErrNoAccount means
// that the account has gone.
func (a *Accounts) StartSession(ctx context.Context, account Account) (token string, expires time.Time, err error) {
	session, err := a.insertSession(ctx, account, nil, Device{}, nil)
	return session.Token, session.Expires, err
}

// start starts a session on a device, while the account has this password.
func (a *Accounts) start(ctx context.Context, account Account, passwordHash string, device Device) (Session, error) {
	if len(a.deviceKeys) == 0 {
		return a.insertSession(ctx, account, passwordHash, Device{}, nil)
	}
	fresh := shownDevice{account: account.ID}
	rand.Read(fresh.id[:]) // never fails: it ends the program instead
	return a.insertSession(ctx, account, passwordHash, device, &fresh)
}

// insertSession takes nil for a password that wasn't asked for, and for no device.
func (a *Accounts) insertSession(ctx context.Context, account Account, passwordHash any, device Device, fresh *shownDevice) (Session, error) {
	random := make([]byte, tokenBytes)
	rand.Read(random) // never fails: it ends the program instead
	session := Session{Token: base64.RawURLEncoding.EncodeToString(random)}
	var freshHash any
	if fresh != nil {
		freshHash = fresh.hash()
	}
	var created, expires int64
	var idHash string
	err := a.db.QueryRowContext(ctx, startSession,
		a.now(), device.ID, account.ID, hashToken(session.Token), SessionLifetime.Microseconds(), freshHash, account.ID, passwordHash).
		Scan(&created, &expires, &idHash)
	if errors.Is(err, sql.ErrNoRows) {
		return Session{}, ErrNoAccount
	}
	if err != nil {
		return Session{}, fmt.Errorf("%w: start a session: %w", ErrStore, err)
	}
	session.Expires = time.UnixMicro(expires).UTC()
	if fresh != nil {
		used := *fresh
		for _, d := range device.shown {
			if d.hash() == idHash {
				used = d
			}
		}
		used.issuedMicros = created
		session.Device = a.remember(used, device)
		session.DeviceExpires = time.UnixMicro(created).Add(DeviceLifetime).UTC()
	}
	return session, nil
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

// IsToken says whether a text may be a session's token, so that Session asks the database.
func IsToken(text string) bool { return len(text) == tokenLength }

// Session returns whose session a token is and when it expires, or ErrNoSession. If more than a day of its lifetime is used
// it gets the whole again, and renewed is true: the cookie should then be sent anew.
func (a *Accounts) Session(ctx context.Context, token string) (account Account, expires time.Time, renewed bool, err error) {
	if !IsToken(token) {
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

// endAllSessions is one UPDATE, in which the trigger accounts_sign_out ends the sessions and forgets the devices.
const endAllSessions = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE accounts
SET
  signed_out_micros = (SELECT now FROM clock),
  kept_session      = NULL
WHERE id = ?`

// EndAllSessions ends every session of the account and forgets its devices.
func (a *Accounts) EndAllSessions(ctx context.Context, account Account) error {
	if _, err := a.db.ExecContext(ctx, endAllSessions, a.now(), account.ID); err != nil {
		return fmt.Errorf("%w: end all sessions: %w", ErrStore, err)
	}
	return nil
}

// The sweep goes through a table in the order of its keys. lastSession and lastDevice tell where a step of so many rows ends.
const lastSession = `
SELECT coalesce(max(token_hash), ''), count(*)
FROM (SELECT token_hash FROM sessions WHERE token_hash > ? ORDER BY token_hash LIMIT ?)`

const sweepSessions = `
DELETE FROM sessions
WHERE token_hash > ?
  AND token_hash <= ?
  AND expires_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
RETURNING token_hash`

const lastDevice = `
SELECT coalesce(max(id_hash), ''), count(*)
FROM (SELECT id_hash FROM devices WHERE id_hash > ? ORDER BY id_hash LIMIT ?)`

const sweepDevices = `
DELETE FROM devices
WHERE id_hash > ?
  AND id_hash <= ?
  AND expires_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
RETURNING id_hash`

// Sweep deletes expired sessions and devices, as long as ctx lasts, and says how many, and whether it came to the end. It
// looks at so many rows in one step, for which others wait to write. An error matches ErrStore; what was deleted until then
// is gone.
func (a *Accounts) Sweep(ctx context.Context, rows int) (deleted int64, done bool, err error) {
	sessions := func(after string) (last string, looked int, gone *sql.Rows, err error) {
		if err = a.db.QueryRowContext(ctx, lastSession, after, rows).Scan(&last, &looked); err == nil && looked > 0 {
			gone, err = a.db.QueryContext(ctx, sweepSessions, after, last, a.now())
		}
		return last, looked, gone, err
	}
	devices := func(after string) (last string, looked int, gone *sql.Rows, err error) {
		if err = a.db.QueryRowContext(ctx, lastDevice, after, rows).Scan(&last, &looked); err == nil && looked > 0 {
			gone, err = a.db.QueryContext(ctx, sweepDevices, after, last, a.now())
		}
		return last, looked, gone, err
	}
	for _, step := range []func(string) (string, int, *sql.Rows, error){sessions, devices} {
		after, looked := "", rows
		for looked == rows {
			var gone *sql.Rows
			if after, looked, gone, err = step(after); err == nil && gone != nil {
				var n int64
				n, err = tables.Deleted(gone, nil)
				deleted += n
			}
			if ctx.Err() != nil {
				return deleted, false, nil
			}
			if err != nil {
				return deleted, false, fmt.Errorf("%w: sweep: %w", ErrStore, err)
			}
		}
	}
	return deleted, true, nil
}
