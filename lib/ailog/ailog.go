// Package ailog keeps what members had language models answer, pages through it, newest first, and searches it.
//
// The schema is in db/migrations. What demo accounts add is kept apart: everybody may sign in to those, so no page of All
// holds entries of both kinds.
package ailog

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

// Errors that callers branch on, with errors.Is. No error holds a text of an entry.
var (
	// ErrModel means that a text can't be a model's name, by ModelRule.
	ErrModel = errors.New("ailog: model not valid")
	// ErrPrompt means that a prompt is empty, too long or not UTF-8, by PromptRule.
	ErrPrompt = errors.New("ailog: prompt not valid")
	// ErrResponse means that a response is too long or not UTF-8, by ResponseRule.
	ErrResponse = errors.New("ailog: response not valid")
	// ErrTokens means that a number of tokens is out of bounds, by TokensRule.
	ErrTokens = errors.New("ailog: number of tokens not valid")
	// ErrCursor means that a text is no cursor of these pages.
	ErrCursor = errors.New("ailog: cursor not valid")
	// ErrLimit means that a page was asked for with fewer than 1 or more than MaxPageEntries entries.
	ErrLimit = errors.New("ailog: page limit not valid")
	// ErrAccount means that there is no such account, or no longer.
	ErrAccount = errors.New("ailog: no such account")
	// ErrStore means that the database didn't answer, or answered nonsense. Whether it carried out what was asked is
	// unknown.
	ErrStore = errors.New("ailog: store failed")
)

// What an entry may hold. The rules below say the same to a person.
const (
	// MaxModelBytes is room for the longest names in use, an owner, a version and a variant included.
	MaxModelBytes = 100
	// MaxPromptBytes is some 8,000 tokens of English: a long question with a few pages of context, not a book.
	MaxPromptBytes = 32 << 10
	// MaxResponseBytes is as much, which is the most that many models answer.
	MaxResponseBytes = 32 << 10
	// MaxTokens is more than any model takes at once.
	MaxTokens = 10_000_000
)

// The rules for an entry, for a person.
var (
	ModelRule    = fmt.Sprintf("a model's name has 1 to %d bytes of printable characters, and no white space around it", MaxModelBytes)
	PromptRule   = fmt.Sprintf("a prompt has 1 to %d bytes, and no character U+0000", MaxPromptBytes)
	ResponseRule = fmt.Sprintf("a response has at most %d bytes, and no character U+0000", MaxResponseBytes)
	TokensRule   = fmt.Sprintf("the tokens are a whole number from 0 to %d", MaxTokens)
)

const (
	// MaxEntries is how many entries an account keeps: adding one more takes the oldest away, with its evaluations. So an
	// account takes up 320 MiB at most. The trigger ai_log_entries_keep_newest has the number too.
	MaxEntries = 5000
	// DefaultPageEntries is for callers that aren't told how many entries a page shall have.
	DefaultPageEntries = 20
	// MaxPageEntries bounds the entries of a page.
	MaxPageEntries = 100
	// MaxPageBytes bounds the texts of a page, which ends before the entry that would go beyond. JSON needs at most 6 bytes
	// for one, so a page stays below the 4.5 MB that the platform lets through. The longest entry has an eighth of it.
	MaxPageBytes = 512 << 10
)

// Config says how a Log works. The zero value is for use.
type Config struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Log is the entries in a database. It holds no state besides db and may be used by many goroutines and, over one database,
// by many processes.
type Log struct {
	db     *sql.DB
	config Config
}

// New makes a Log on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Log {
	return &Log{db: db, config: config}
}

// Author is who adds an entry.
type Author struct {
	Account int64
	Demo    bool // a demo account
}

// Text is what an author says of one answer of a model.
type Text struct {
	Model    string // by ModelRule
	Prompt   string // by PromptRule
	Response string // by ResponseRule
	Tokens   int64  // by TokensRule
}

// check returns what is wrong with the text.
func (t Text) check() error {
	switch {
	case t.Model == "" || len(t.Model) > MaxModelBytes || !utf8.ValidString(t.Model) ||
		strings.TrimSpace(t.Model) != t.Model || strings.ContainsFunc(t.Model, notPrintable):
		return fmt.Errorf("%w: %s", ErrModel, ModelRule)
	case t.Prompt == "" || !storable(t.Prompt, MaxPromptBytes):
		return fmt.Errorf("%w: %s", ErrPrompt, PromptRule)
	case !storable(t.Response, MaxResponseBytes):
		return fmt.Errorf("%w: %s", ErrResponse, ResponseRule)
	case t.Tokens < 0 || t.Tokens > MaxTokens:
		return fmt.Errorf("%w: %d: %s", ErrTokens, t.Tokens, TokensRule)
	}
	return nil
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

// storable says whether every engine gives a text back as it was. In SQL text ends at the character U+0000 for some
// functions and drivers and not for others.
func storable(text string, maxBytes int) bool {
	return len(text) <= maxBytes && utf8.ValidString(text) && !strings.Contains(text, "\x00")
}

// Entry is a text as it was added.
type Entry struct {
	ID int64 // of all accounts' entries; never used again
	Text
	Created time.Time
}

// add adds an entry. It is one INSERT, so the engine runs it under its write lock from the first read to the last write: of
// two at once the second finds the number that the first one took. An account that has been deleted has no row to select
// from, so no entry outlives it. The trigger ai_log_entries_keep_newest takes the oldest away in the same statement.
const add = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO ai_log_entries (account, number, demo, created_micros, tokens, bytes, model, prompt, response)
SELECT
  a.id,
  1 + coalesce((SELECT max(e.number) FROM ai_log_entries AS e WHERE e.account = a.id), 0),
  ?, now, ?, ?, ?, ?, ?
FROM accounts AS a CROSS JOIN clock
WHERE a.id = ?
RETURNING id, created_micros`

// Add adds an entry for its author and returns it. Refusals are ErrModel, ErrPrompt, ErrResponse, ErrTokens and ErrAccount.
// After ErrStore the entry may have been added.
func (l *Log) Add(ctx context.Context, author Author, text Text) (Entry, error) {
	if err := text.check(); err != nil {
		return Entry{}, err
	}
	entry := Entry{Text: text}
	var created int64
	err := l.db.QueryRowContext(ctx, add,
		l.now(), author.Demo, text.Tokens, len(text.Model)+len(text.Prompt)+len(text.Response),
		text.Model, text.Prompt, text.Response, author.Account).Scan(&entry.ID, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return Entry{}, ErrAccount
	}
	if err != nil {
		return Entry{}, fmt.Errorf("%w: add an entry: %w", ErrStore, err)
	}
	entry.Created = time.UnixMicro(created).UTC()
	return entry, nil
}

// Page is a part of a list of entries.
type Page struct {
	Entries []Entry // newest first
	Next    string  // the cursor of the entries after these, "" if there are none
}

// own reads a page of an account's entries, and one more, whose place in the list is below those of the page. Its texts
// are read only as far as they fit, so that no answer of the database is large; the newest always fits.
const own = `
WITH page AS MATERIALIZED (
  SELECT id, number AS place, bytes
  FROM ai_log_entries
  WHERE account = ? AND number < ?
  ORDER BY number DESC
  LIMIT ?
)
SELECT
  page.place, (SELECT min(place) FROM page),
  e.id, e.created_micros, e.tokens, e.model, e.prompt, e.response
FROM page CROSS JOIN ai_log_entries AS e
WHERE e.id = page.id
  AND (SELECT sum(newer.bytes) FROM page AS newer WHERE newer.place >= page.place) <= ?
ORDER BY page.place DESC`

// Own pages through an account's entries, newest first, from a page's Next on or, with an empty cursor, from the newest. A
// page has limit entries, or fewer if it ends by MaxPageBytes or the list ends. Entries that are added meanwhile come before
// the first page, so none is skipped and none appears twice. ErrCursor means that the cursor is malformed or another
// account's or list's, ErrLimit that the limit isn't from 1 to MaxPageEntries.
func (l *Log) Own(ctx context.Context, account int64, cursor string, limit int) (Page, error) {
	from := list{owner: account}
	below, err := from.start(cursor, limit)
	if err != nil {
		return Page{}, err
	}
	rows, err := l.db.QueryContext(ctx, own, account, below, limit+1, MaxPageBytes)
	return from.read(rows, err, limit)
}

// all is as own is, of all accounts.
const all = `
WITH page AS MATERIALIZED (
  SELECT id, id AS place, bytes
  FROM ai_log_entries
  WHERE demo = ? AND id < ?
  ORDER BY id DESC
  LIMIT ?
)
SELECT
  page.place, (SELECT min(place) FROM page),
  e.id, e.created_micros, e.tokens, e.model, e.prompt, e.response
FROM page CROSS JOIN ai_log_entries AS e
WHERE e.id = page.id
  AND (SELECT sum(newer.bytes) FROM page AS newer WHERE newer.place >= page.place) <= ?
ORDER BY page.place DESC`

// All pages through the entries of all accounts as Own does through those of one: either those that demo accounts added, or
// those that others did.
func (l *Log) All(ctx context.Context, demo bool, cursor string, limit int) (Page, error) {
	from := list{all: true, demo: demo}
	below, err := from.start(cursor, limit)
	if err != nil {
		return Page{}, err
	}
	rows, err := l.db.QueryContext(ctx, all, demo, below, limit+1, MaxPageBytes)
	return from.read(rows, err, limit)
}

// read makes a page of the rows that own or all gave.
func (l list) read(rows *sql.Rows, err error, limit int) (Page, error) {
	failed := func(err error) (Page, error) {
		return Page{}, fmt.Errorf("%w: read a page: %w", ErrStore, err)
	}
	if err != nil {
		return failed(err)
	}
	defer rows.Close()
	var page Page
	var last, lowest int64 // places
	for rows.Next() {
		var place, created int64
		var e Entry
		if err := rows.Scan(&place, &lowest, &e.ID, &created, &e.Tokens, &e.Model, &e.Prompt, &e.Response); err != nil {
			return failed(err)
		}
		if len(page.Entries) < limit {
			e.Created = time.UnixMicro(created).UTC()
			page.Entries, last = append(page.Entries, e), place
		}
	}
	if err := rows.Err(); err != nil {
		return failed(err)
	}
	if last > lowest {
		page.Next = l.cursor(last)
	}
	return page, nil
}

// now is the argument that replaces the database's clock, nil to use it.
func (l *Log) now() any { return tables.Now(l.config.Now) }
