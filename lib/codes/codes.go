// Package codes keeps the pool of invite codes: it lends a code to one person at a time and takes it back unless an account
// was made with it. The code of an invite is made for its recipient.
//
// The schema is in db/migrations. Using a code up is the business of lib/accounts: it happens in the statement that makes
// the account.
package codes

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirlimits/weir/lib/tables"
)

// Errors that callers branch on, with errors.Is.
var (
	// ErrNoneLeft means that every code is borrowed or used.
	ErrNoneLeft = errors.New("codes: none left")
	// ErrUnknown means that there is no such code.
	ErrUnknown = errors.New("codes: unknown code")
	// ErrFill means that Fill was asked for fewer than 0 codes or more than MaxPool.
	ErrFill = errors.New("codes: pool size not valid")
	// ErrStore means that the database didn't answer, or answered nonsense. Whether it carried out what was asked is
	// unknown; a code borrowed in vain returns to the pool by itself.
	ErrStore = errors.New("codes: store failed")
)

// Hold is how long a borrowed code is kept for its borrower.
const Hold = 30 * time.Minute

// InviteHold is how long the code of an invite is kept for its recipient: mail is slow, and so are people.
const InviteHold = 7 * 24 * time.Hour

// MaxPool bounds Fill, which sends all its codes in one statement: 220 KB at most.
const MaxPool = 10_000

// State is what a code can be used for.
type State string

// The states of a code, as the API spells them.
const (
	Free     State = "free"     // may be lent
	Borrowed State = "borrowed" // may be used to sign up
	Used     State = "used"     // an account was made with it
)

// Config says how a Pool works. The zero value is for use.
type Config struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Pool is the pool of codes in a database. It holds no state besides db and may be used by many goroutines and, over one
// database, by many processes.
type Pool struct {
	db     *sql.DB
	config Config
}

// New makes a Pool on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Pool {
	return &Pool{db: db, config: config}
}

// borrow lends the code that has been free longest. It is one UPDATE: the engine runs it under its write lock from the
// first read to the last write. So of two at once the second looks for a free code only after the first one's is
// borrowed, and a sign-up, which needs free_from_micros to lie ahead, can't use the code in between.
const borrow = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE invite_codes
SET free_from_micros = (SELECT now FROM clock) + ?
WHERE code = (
  SELECT code
  FROM invite_codes
  WHERE used_micros IS NULL AND free_from_micros <= (SELECT now FROM clock)
  ORDER BY free_from_micros
  LIMIT 1
)
RETURNING code, free_from_micros`

// Borrow lends a free code until the time it returns, Hold from now. If no account was made with it by then it is free
// again. ErrNoneLeft means that there is no free code now.
func (p *Pool) Borrow(ctx context.Context) (Code, time.Time, error) {
	var code Code
	var until int64
	err := p.db.QueryRowContext(ctx, borrow, p.now(), Hold.Microseconds()).Scan(&code, &until)
	if errors.Is(err, sql.ErrNoRows) {
		return "", time.Time{}, ErrNoneLeft
	}
	if err != nil {
		return "", time.Time{}, fmt.Errorf("%w: borrow: %w", ErrStore, err)
	}
	return code, time.UnixMicro(until).UTC(), nil
}

// reserve adds a code that is borrowed from its first moment on: nobody else can be lent it in between. Two codes of 60 random
// bits are never the same; if they were, the statement would fail.
const reserve = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO invite_codes (code, free_from_micros)
SELECT ?, now + ?
FROM clock
RETURNING free_from_micros`

// Reserve makes a fresh code, borrowed until the time it returns, InviteHold from now. If no account was made with it by then it
// is free, and belongs to the pool like any other. It takes nothing from the pool, so that mail can't empty it.
func (p *Pool) Reserve(ctx context.Context) (Code, time.Time, error) {
	code := newCode()
	var until int64
	err := p.db.QueryRowContext(ctx, reserve, p.now(), string(code), InviteHold.Microseconds()).Scan(&until)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("%w: reserve: %w", ErrStore, err)
	}
	return code, time.UnixMicro(until).UTC(), nil
}

// withdraw takes a code away unless an account was made with it, in one statement: of a sign-up at the same time one finds
// what the other did.
const withdraw = `
DELETE FROM invite_codes
WHERE code = ? AND used_micros IS NULL`

// Withdraw takes back a code that Reserve made and nobody got to see, as if it had never been. A code that is used, or isn't
// there, is left as it is.
func (p *Pool) Withdraw(ctx context.Context, code Code) error {
	if _, err := p.db.ExecContext(ctx, withdraw, string(code)); err != nil {
		return fmt.Errorf("%w: withdraw: %w", ErrStore, err)
	}
	return nil
}

const lookUp = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
SELECT
  CASE
    WHEN used_micros IS NOT NULL THEN 'used'
    WHEN free_from_micros > now THEN 'borrowed'
    ELSE 'free'
  END,
  free_from_micros
FROM invite_codes CROSS JOIN clock
WHERE code = ?`

// Lookup tells the state of a code. The time is when its borrowing ends, and zero if it isn't borrowed. ErrUnknown means
// that the pool never held it.
func (p *Pool) Lookup(ctx context.Context, code Code) (State, time.Time, error) {
	var state State
	var freeFrom int64
	err := p.db.QueryRowContext(ctx, lookUp, p.now(), string(code)).Scan(&state, &freeFrom)
	if errors.Is(err, sql.ErrNoRows) {
		return "", time.Time{}, ErrUnknown
	}
	if err != nil {
		return "", time.Time{}, fmt.Errorf("%w: look up: %w", ErrStore, err)
	}
	if state != Borrowed {
		return state, time.Time{}, nil
	}
	return state, time.UnixMicro(freeFrom).UTC(), nil
}

// fill adds as many of the fresh codes as the pool lacks. It counts and inserts in one statement, under the write lock: of
// two at once the second one counts what the first one added.
const fill = `
WITH
  clock AS MATERIALIZED (
    SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
  ),
  pool AS MATERIALIZED (
    SELECT count(*) AS size
    FROM invite_codes CROSS JOIN clock
    WHERE used_micros IS NULL AND free_from_micros <= now + ?
  )
INSERT INTO invite_codes (code, free_from_micros)
SELECT fresh.value, clock.now
FROM json_each(?) AS fresh CROSS JOIN clock CROSS JOIN pool
WHERE fresh.key < ? - pool.size
ON CONFLICT (code) DO NOTHING`

// Fill tops the pool up with random codes, so that it holds at least n that are not used, borrowed ones included and
// those that are reserved for longer not. Filling twice, or two at once, is like filling once. n is 0 to MaxPool; anything else is ErrFill.
func (p *Pool) Fill(ctx context.Context, n int) error {
	if n < 0 || n > MaxPool {
		return fmt.Errorf("%w: %d: allowed are 0 to %d", ErrFill, n, MaxPool)
	}
	fresh := make([]Code, n)
	for i := range fresh {
		fresh[i] = newCode()
	}
	text, err := json.Marshal(fresh)
	if err != nil {
		return fmt.Errorf("codes: fill: %w", err)
	}
	if _, err := p.db.ExecContext(ctx, fill, p.now(), Hold.Microseconds(), string(text), n); err != nil {
		return fmt.Errorf("%w: fill: %w", ErrStore, err)
	}
	return nil
}

// now is the argument that replaces the database's clock, nil to use it.
func (p *Pool) now() any { return tables.Now(p.config.Now) }
