// Package partners keeps the keys that partners call the API with, and the plan of each. It knows nothing of HTTP and of limits.
//
// The schema is in db/migrations.
package partners

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weirlimits/weir/lib/tables"
)

// Errors that callers branch on, with errors.Is. No error holds a key or a label.
var (
	// ErrKey means that a text is no key, was never given out, or was revoked: which of them isn't told.
	ErrKey = errors.New("partners: no such key")
	// ErrID means that no key that is good has this number.
	ErrID = errors.New("partners: no good key has this number")
	// ErrPlan means that there is no such plan.
	ErrPlan = errors.New("partners: no such plan")
	// ErrLabel means that a text can't be a label, by LabelRule.
	ErrLabel = errors.New("partners: label not valid")
	// ErrTooMany means that MaxKeys keys are there.
	ErrTooMany = errors.New("partners: too many keys")
	// ErrStore means that the database didn't answer, or answered nonsense. Whether it carried out what was asked is
	// unknown.
	ErrStore = errors.New("partners: store failed")
)

// Plan is what a partner has agreed on. What it allows is for the limits to say.
type Plan string

// The plans, as the API and the command spell them.
const (
	Free Plan = "free"
	Paid Plan = "paid"
)

// PlanRule is the rule for a plan, for a person.
const PlanRule = "a plan is free or paid"

const (
	// MaxLabelBytes is room for a company, a purpose and a year.
	MaxLabelBytes = 100
	// MaxKeys bounds the keys that are kept, revoked ones included, and so what a list of all of them takes: 2 MB.
	MaxKeys = 10_000
)

// LabelRule is the rule for a label, for a person.
var LabelRule = fmt.Sprintf("a label has 1 to %d bytes of printable characters, and no white space around it", MaxLabelBytes)

// Config says how Partners works. The zero value is for use.
type Config struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Partners is the keys in a database. It holds no state besides db and may be used by many goroutines and, over one
// database, by many processes.
type Partners struct {
	db     *sql.DB
	config Config
}

// New makes Partners on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Partners {
	return &Partners{db: db, config: config}
}

// create adds a key unless there are too many. It counts and inserts in one statement, under the write lock: of two at once the
// second one counts what the first one added.
const create = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO partner_keys (key_hash, label, plan, created_micros)
SELECT ?, ?, ?, now
FROM clock
WHERE (SELECT count(*) FROM partner_keys) < ?
RETURNING id`

// Create makes a key and gives it, which nothing can do again, with its number. Refusals are ErrPlan, ErrLabel and ErrTooMany.
// After ErrStore there may be a key that nobody has.
func (p *Partners) Create(ctx context.Context, plan Plan, label string) (id int64, key Key, err error) {
	switch {
	case !plan.valid():
		return 0, "", fmt.Errorf("%w: %s", ErrPlan, PlanRule)
	case label == "" || len(label) > MaxLabelBytes || !utf8.ValidString(label) || strings.TrimSpace(label) != label || strings.ContainsFunc(label, notPrintable):
		return 0, "", fmt.Errorf("%w: %s", ErrLabel, LabelRule)
	}
	key = newKey()
	hash, _ := key.hash()
	err = p.db.QueryRowContext(ctx, create, p.now(), hash, label, string(plan), MaxKeys).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", fmt.Errorf("%w: allowed are %d", ErrTooMany, MaxKeys)
	}
	if err != nil {
		return 0, "", fmt.Errorf("%w: create: %w", ErrStore, err)
	}
	return id, key, nil
}

func (p Plan) valid() bool { return p == Free || p == Paid }

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

// Partner is whoever shows a good key.
type Partner struct {
	ID   int64 // the key's number
	Plan Plan
}

const find = `
SELECT id, plan
FROM partner_keys
WHERE key_hash = ?
  AND revoked_micros IS NULL`

// Find gives the partner of a key, as things stand: a key that was revoked is none from then on, and a changed plan is there at
// once. ErrKey means that there is none. A text that doesn't have the form costs no read. Nothing is written: when a key was last used
// would be one more write for each request.
func (p *Partners) Find(ctx context.Context, key string) (Partner, error) {
	hash, formed := Key(key).hash()
	if !formed {
		return Partner{}, ErrKey
	}
	var found Partner
	err := p.db.QueryRowContext(ctx, find, hash).Scan(&found.ID, &found.Plan)
	if errors.Is(err, sql.ErrNoRows) {
		return Partner{}, ErrKey
	}
	if err == nil && !found.Plan.valid() {
		err = ErrPlan
	}
	if err != nil {
		return Partner{}, fmt.Errorf("%w: find: %w", ErrStore, err)
	}
	return found, nil
}

// revoke ends a key. One that was revoked before keeps its time.
const revoke = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE partner_keys
SET revoked_micros = (SELECT now FROM clock)
WHERE id = ?
  AND revoked_micros IS NULL
RETURNING id`

// Revoke ends a key, for good. ErrID means that there is none to end.
func (p *Partners) Revoke(ctx context.Context, id int64) error {
	return changed("revoke", p.db.QueryRowContext(ctx, revoke, p.now(), id))
}

const setPlan = `
UPDATE partner_keys
SET plan = ?
WHERE id = ?
  AND revoked_micros IS NULL
RETURNING id`

// SetPlan changes the plan of a key, from its next request on. Refusals are ErrPlan and ErrID.
func (p *Partners) SetPlan(ctx context.Context, id int64, plan Plan) error {
	if !plan.valid() {
		return fmt.Errorf("%w: %s", ErrPlan, PlanRule)
	}
	return changed("set the plan", p.db.QueryRowContext(ctx, setPlan, string(plan), id))
}

// changed reads the row that a statement changed.
func changed(what string, row *sql.Row) error {
	var id int64
	switch err := row.Scan(&id); {
	case errors.Is(err, sql.ErrNoRows):
		return ErrID
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrStore, what, err)
	}
	return nil
}

// Issued is what is known of a key that was given out.
type Issued struct {
	ID      int64
	Label   string
	Plan    Plan
	Created time.Time
	Revoked time.Time // zero while the key is good
}

const list = `
SELECT id, label, plan, created_micros, coalesce(revoked_micros, 0)
FROM partner_keys
ORDER BY id`

// List gives all keys in the order in which they were made, revoked ones too: MaxKeys at the most.
func (p *Partners) List(ctx context.Context) ([]Issued, error) {
	failed := func(err error) ([]Issued, error) {
		return nil, fmt.Errorf("%w: list: %w", ErrStore, err)
	}
	rows, err := p.db.QueryContext(ctx, list)
	if err != nil {
		return failed(err)
	}
	defer rows.Close()
	var all []Issued
	for rows.Next() {
		var key Issued
		var created, revoked int64
		if err := rows.Scan(&key.ID, &key.Label, &key.Plan, &created, &revoked); err != nil {
			return failed(err)
		}
		key.Created = time.UnixMicro(created).UTC()
		if revoked != 0 {
			key.Revoked = time.UnixMicro(revoked).UTC()
		}
		all = append(all, key)
	}
	if err := rows.Err(); err != nil {
		return failed(err)
	}
	return all, nil
}

// now is the argument that replaces the database's clock, nil to use it.
func (p *Partners) now() any { return tables.Now(p.config.Now) }
