package accounts

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/tables"
)

// A reset lets whoever has its token choose a new password for one account, once. How the token gets to the account's owner is
// up to the caller.

// ResetLifetime is how long a token is good for: as long as the limit of its inbox looks back. So whoever uses that up leaves the
// owner a link that is good, and can't keep everybody out of a mailbox for a while of each hour. The trigger password_resets_sweep has it too.
const ResetLifetime = time.Hour

// sweepResetRows bounds one statement of a sweep: few enough that nobody waits long for the writer.
const sweepResetRows = 500

// ErrReset means that a token is not, or no longer, good for a new password: unknown, used, replaced or expired. Which of
// them it is nobody is told.
var ErrReset = errors.New("accounts: reset token not valid")

// Reset is one that was just started.
type Reset struct {
	Token   string // 32 random bytes in base64url; the database learns only their SHA-256
	Expires time.Time

	account      int64
	older        string // the hash of the token that it took the place of; "" for none
	olderExpires int64  // microseconds since 1970
}

const findOwner = `
SELECT id, username, role, coalesce(email, '')
FROM accounts
WHERE username = ?`

// Owner returns the account of a name, in any spelling, and the e-mail that its owner gave, if any. Where there is no account
// it is the zero Account, and no error. The database is read once in any case.
func (a *Accounts) Owner(ctx context.Context, name string) (account Account, email Email, err error) {
	canonical, _ := ParseName(name) // "", which is nobody's, where it can't be a name
	err = a.db.QueryRowContext(ctx, findOwner, string(canonical)).Scan(&account.ID, &account.Name, &account.Role, &email)
	if errors.Is(err, sql.ErrNoRows) {
		return Account{}, "", nil
	}
	if err != nil {
		return Account{}, "", fmt.Errorf("%w: find an owner: %w", ErrStore, err)
	}
	return account, email, nil
}

// startReset puts a token in the place of the account's older one, or adds it, while the account is there. It is one
// statement: of two at once one takes the other's place.
const startReset = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO password_resets (account, token_hash, expires_micros)
SELECT id, ?, now + ?
FROM accounts CROSS JOIN clock
WHERE id = ?
ON CONFLICT (account) DO UPDATE SET
  token_hash = excluded.token_hash,
  expires_micros = excluded.expires_micros
RETURNING expires_micros`

// StartReset makes a token for a new password of the account, good for ResetLifetime. The account's older one ends; its
// password goes on. ErrNoAccount means that there is no such account.
func (a *Accounts) StartReset(ctx context.Context, account Account) (Reset, error) {
	random := make([]byte, tokenBytes)
	rand.Read(random) // never fails: it ends the program instead
	reset := Reset{Token: base64.RawURLEncoding.EncodeToString(random), account: account.ID}
	err := a.db.QueryRowContext(ctx, olderReset, account.ID).Scan(&reset.older, &reset.olderExpires)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return Reset{}, fmt.Errorf("%w: read a reset: %w", ErrStore, err)
	}
	var expires int64
	err = a.db.QueryRowContext(ctx, startReset,
		a.now(), hashToken(reset.Token), ResetLifetime.Microseconds(), account.ID).Scan(&expires)
	if errors.Is(err, sql.ErrNoRows) {
		return Reset{}, ErrNoAccount
	}
	if err != nil {
		return Reset{}, fmt.Errorf("%w: start a reset: %w", ErrStore, err)
	}
	reset.Expires = time.UnixMicro(expires).UTC()
	return reset, nil
}

const olderReset = `
SELECT token_hash, expires_micros
FROM password_resets
WHERE account = ?`

const dropReset = `
DELETE FROM password_resets
WHERE account = ?
  AND token_hash = ?`

const restoreReset = `
UPDATE password_resets
SET
  token_hash     = ?,
  expires_micros = ?
WHERE account = ?
  AND token_hash = ?`

// UndoReset ends a token that nobody got. The one that it took the place of is good again, for the rest of its time. A token that
// was used or replaced since stays as it is.
func (a *Accounts) UndoReset(ctx context.Context, reset Reset) error {
	var err error
	if hash := hashToken(reset.Token); reset.older == "" {
		_, err = a.db.ExecContext(ctx, dropReset, reset.account, hash)
	} else {
		_, err = a.db.ExecContext(ctx, restoreReset, reset.older, reset.olderExpires, reset.account, hash)
	}
	if err != nil {
		return fmt.Errorf("%w: undo a reset: %w", ErrStore, err)
	}
	return nil
}

const readReset = `
SELECT a.username
FROM password_resets AS r JOIN accounts AS a ON a.id = r.account
WHERE r.token_hash = ?
  AND r.expires_micros > coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)`

// useReset gives the token's account another password, in one UPDATE under the engine's write lock. Its trigger
// accounts_end_resets deletes the token in the same statement, so of two at once the second finds none; accounts_sign_out
// ends all sessions and forgets the devices.
const useReset = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE accounts
SET
  password_hash     = ?,
  signed_out_micros = (SELECT now FROM clock),
  kept_session      = NULL
WHERE id = (
  SELECT account
  FROM password_resets CROSS JOIN clock
  WHERE token_hash = ? AND expires_micros > now
)
RETURNING id`

// ResetPassword gives the account of a token another password and uses the token up. All sessions of the account end, and its
// devices are forgotten. ErrReset is the first refusal, for which nothing is hashed and nobody else asked; after ErrPassword and ErrBreached the token is
// still good.
func (a *Accounts) ResetPassword(ctx context.Context, token, password string) error {
	token = strings.TrimSpace(token) // it may have been pasted
	if len(token) != tokenLength {
		return ErrReset
	}
	tokenHash := hashToken(token)
	var name Name
	err := a.db.QueryRowContext(ctx, readReset, tokenHash, a.now()).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrReset
	}
	if err != nil {
		return fmt.Errorf("%w: read a reset: %w", ErrStore, err)
	}
	if err := checkPassword(password, name); err != nil {
		return err
	}
	h, err := a.hashNew(ctx, password)
	if err != nil {
		return err
	}
	var id int64
	err = a.db.QueryRowContext(ctx, useReset, a.now(), h.String(), tokenHash).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrReset
	}
	if err != nil {
		return fmt.Errorf("%w: use a reset: %w", ErrStore, err)
	}
	return nil
}

// revokePassword is one UPDATE, in which triggers end the account's sessions and its token, and forget its devices.
const revokePassword = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE accounts
SET
  password_hash     = NULL,
  signed_out_micros = (SELECT now FROM clock),
  kept_session      = NULL
WHERE username = ?
RETURNING id, username, role, coalesce(email, '')`

// RevokePassword ends an account's password, as one that somebody else knows, with all its sessions, devices and tokens. Until
// a reset gives it another one, every password is a wrong one there, at the usual cost. ErrNoAccount means that there is none
// of the name, and that demo accounts, which have no password, are not to be had by this.
func (a *Accounts) RevokePassword(ctx context.Context, name Name) (account Account, email Email, err error) {
	if name.Reserved() {
		return Account{}, "", ErrNoAccount
	}
	err = a.db.QueryRowContext(ctx, revokePassword, a.now(), string(name)).Scan(&account.ID, &account.Name, &account.Role, &email)
	if errors.Is(err, sql.ErrNoRows) {
		return Account{}, "", ErrNoAccount
	}
	if err != nil {
		return Account{}, "", fmt.Errorf("%w: revoke a password: %w", ErrStore, err)
	}
	return account, email, nil
}

// sweepResets looks at the tokens that expire first and deletes those whose time is over.
const sweepResets = `
DELETE FROM password_resets
WHERE account IN (SELECT account FROM password_resets ORDER BY expires_micros LIMIT ?)
  AND expires_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
RETURNING account`

// SweepResets deletes the tokens whose time is over, as long as ctx lasts, and says how many, and whether none is left. An
// error matches ErrStore; what was deleted until then is gone.
func (a *Accounts) SweepResets(ctx context.Context) (deleted int64, done bool, err error) {
	deleted, done, err = tables.Sweep(ctx, sweepResetRows, func() (*sql.Rows, error) {
		return a.db.QueryContext(ctx, sweepResets, sweepResetRows, a.now())
	})
	if err != nil {
		err = fmt.Errorf("%w: sweep the resets: %w", ErrStore, err)
	}
	return deleted, done, err
}
