// Package evaluations keeps the scores that admins give to entries of the AI log, and tells the results by model.
//
// The schema is in db/migrations. An admin of the demo is whoever likes to be: what it scores are the demo's entries, and no
// other results have a part of that.
package evaluations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirlimits/weir/lib/tables"
)

// Errors that callers branch on, with errors.Is. No error holds a note.
var (
	// ErrScore means that a score is not from MinScore to MaxScore.
	ErrScore = errors.New("evaluations: score not valid")
	// ErrNote means that a note is too long or not UTF-8, by NoteRule.
	ErrNote = errors.New("evaluations: note not valid")
	// ErrEntry means that there is no such entry, or none that the evaluator may score, or no longer such an evaluator.
	ErrEntry = errors.New("evaluations: no such entry")
	// ErrStore means that the database didn't answer, or answered nonsense. Whether it carried out what was asked is
	// unknown; scoring again does no harm.
	ErrStore = errors.New("evaluations: store failed")
)

const (
	// MinScore and MaxScore bound a score.
	MinScore, MaxScore = 1, 5
	// MaxNoteBytes is room for a paragraph or two.
	MaxNoteBytes = 2000
	// MaxResults bounds the models that Results tells of: names and numbers of some 300 KB at most.
	MaxResults = 1000
)

// The rules for an evaluation, for a person.
var (
	ScoreRule = fmt.Sprintf("the score is a whole number from %d to %d", MinScore, MaxScore)
	NoteRule  = fmt.Sprintf("a note has at most %d bytes, and no character U+0000", MaxNoteBytes)
)

// Config says how an Evaluations works. The zero value is for use.
type Config struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Evaluations are the scores in a database. It holds no state besides db and may be used by many goroutines and, over one
// database, by many processes.
type Evaluations struct {
	db     *sql.DB
	config Config
}

// New makes an Evaluations on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Evaluations {
	return &Evaluations{db: db, config: config}
}

// Evaluator is who scores.
type Evaluator struct {
	Account int64
	Demo    bool // a demo account, which scores entries of demo accounts and no others; the others score no such entries
}

// Evaluation is what an evaluator says of an entry.
type Evaluation struct {
	Entry int64  // its ID
	Score int64  // from MinScore to MaxScore
	Note  string // optional; by NoteRule
}

// score adds an evaluation or replaces the one that the evaluator gave the entry before. It is one INSERT, so the engine runs
// it under its write lock from the first read to the last write: an entry or an evaluator that has been deleted has no row to
// select from, and of two scores at once the second replaces the first.
const score = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO evaluations (entry, account, score, note, created_micros)
SELECT e.id, a.id, ?, ?, now
FROM ai_log_entries AS e CROSS JOIN accounts AS a CROSS JOIN clock
WHERE e.id = ? AND e.demo = ? AND a.id = ?
ON CONFLICT (entry, account) DO UPDATE
SET
  score = excluded.score,
  note = excluded.note,
  created_micros = excluded.created_micros
RETURNING id`

// Score keeps an evaluator's evaluation of an entry and returns its ID. There is one of each evaluator for each entry: another
// one takes its place and its ID. Refusals are ErrScore, ErrNote and ErrEntry.
func (e *Evaluations) Score(ctx context.Context, by Evaluator, given Evaluation) (id int64, err error) {
	if given.Score < MinScore || given.Score > MaxScore {
		return 0, fmt.Errorf("%w: %d: %s", ErrScore, given.Score, ScoreRule)
	}
	if len(given.Note) > MaxNoteBytes || !utf8.ValidString(given.Note) || strings.Contains(given.Note, "\x00") {
		return 0, fmt.Errorf("%w: %s", ErrNote, NoteRule)
	}
	note := sql.NullString{String: given.Note, Valid: given.Note != ""}
	err = e.db.QueryRowContext(ctx, score, e.now(), given.Score, note, given.Entry, by.Demo, by.Account).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, ErrEntry
	}
	if err != nil {
		return 0, fmt.Errorf("%w: score: %w", ErrStore, err)
	}
	return id, nil
}

// Result is what evaluators think of a model.
type Result struct {
	Model        string
	Count        int64
	Mean         float64                        // from MinScore to MaxScore
	Distribution [MaxScore - MinScore + 1]int64 // how often each score was given, the lowest first
}

// results is one statement, so its counts are those of one moment.
const results = `
SELECT
  e.model, count(*), avg(v.score),
  count(CASE v.score WHEN 1 THEN 1 END),
  count(CASE v.score WHEN 2 THEN 1 END),
  count(CASE v.score WHEN 3 THEN 1 END),
  count(CASE v.score WHEN 4 THEN 1 END),
  count(CASE v.score WHEN 5 THEN 1 END)
FROM evaluations AS v JOIN ai_log_entries AS e ON e.id = v.entry
WHERE e.demo = ?
GROUP BY e.model
ORDER BY e.model
LIMIT ?`

// Results tells the results by model, for those that have a score, sorted by the bytes of the model's name: those of the
// entries that demo accounts added, or of all others. If there are more than MaxResults models the last ones are left out,
// and more is true.
func (e *Evaluations) Results(ctx context.Context, demo bool) (all []Result, more bool, err error) {
	failed := func(err error) ([]Result, bool, error) {
		return nil, false, fmt.Errorf("%w: results: %w", ErrStore, err)
	}
	rows, err := e.db.QueryContext(ctx, results, demo, MaxResults+1)
	if err != nil {
		return failed(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r Result
		d := &r.Distribution
		if err := rows.Scan(&r.Model, &r.Count, &r.Mean, &d[0], &d[1], &d[2], &d[3], &d[4]); err != nil {
			return failed(err)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		return failed(err)
	}
	if len(all) > MaxResults {
		return all[:MaxResults], true, nil
	}
	return all, false, nil
}

// now is the argument that replaces the database's clock, nil to use it.
func (e *Evaluations) now() any { return tables.Now(e.config.Now) }
