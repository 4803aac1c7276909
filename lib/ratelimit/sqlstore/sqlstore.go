// Package sqlstore keeps the states of rate limits in an SQL database: plain SQLite, libSQL or the Turso engine. The
// schema is in db/migrations.
package sqlstore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Config says how a Store uses its database. The zero value suits a driver that runs one statement a call, on the
// database's own clock.
type Config struct {
	// ManyResults says that the driver sends a text of two statements in one request and returns both results, as
	// libsql-client-go does over HTTP.
	ManyResults bool
	// Deadline bounds a call, waiting for a connection included, besides the caller's context. Zero means 2 seconds.
	Deadline time.Duration
	// SweepEvery is how many decisions share one sweep: one in so many of those that wrote something, by chance, deletes
	// some expired rows afterwards, in a call of its own. Zero means 64, or 1,024 with ManyResults, where a call is a request;
	// a negative number means that decisions never sweep.
	SweepEvery int
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Store is a ratelimit.Store in a database. It holds no state besides the pool and may be used by many goroutines and,
// over one database, by many processes.
type Store struct {
	db     *sql.DB
	config Config

	sweepRows int // of a sweep in passing

	preparing sync.Mutex
	prepared  map[string]*sql.Stmt // by text, on a driver that runs one statement a call
}

// defaultDeadline is well above one commit on Turso, up to 100 ms, since commits queue, and below what a person waits for.
const defaultDeadline = 2 * time.Second

// With one sweep of 256 rows in 64 decisions, or of 4,096 in 1,024, each decision visits four rows and leaves one at the most:
// a table whose every decision is for a new key holds a third more rows than live ones.
const (
	defaultSweepEvery = 64
	defaultSweepRows  = 256
	remoteSweepFactor = 16
)

// New makes a Store on db, which the caller opens, migrates and closes. An SQLite file that several connections write needs
// a busy timeout and write-ahead logging, or else all but one of them fail at once.
func New(db *sql.DB, config Config) *Store {
	if config.Deadline == 0 {
		config.Deadline = defaultDeadline
	}
	sweepRows := defaultSweepRows
	if config.SweepEvery == 0 {
		config.SweepEvery = defaultSweepEvery
		if config.ManyResults {
			config.SweepEvery *= remoteSweepFactor
			sweepRows *= remoteSweepFactor
		}
	}
	return &Store{db: db, config: config, sweepRows: sweepRows}
}

var errMissing = errors.New("sqlstore: the database answered without a row for each limit")

// sweep deletes the expired of the rows that follow a key. It is bounded by the number of rows that it looks at, not of those
// that it deletes, and finds them by their primary key: an index on the expiry would double every write.
const sweep = `
DELETE FROM rate_limits
WHERE key IN (SELECT key FROM rate_limits WHERE key >= ? ORDER BY key LIMIT ?)
  AND expires_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
RETURNING key`

// Sweep implements ratelimit.Store.
func (s *Store) Sweep(ctx context.Context, from int64, rows int) (ratelimit.Swept, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	var swept ratelimit.Swept
	var last sql.NullInt64
	if err := s.db.QueryRowContext(ctx, lastOf, from, rows).Scan(&last, &swept.Looked); err != nil {
		return ratelimit.Swept{}, fmt.Errorf("sqlstore: sweep: %w", err)
	}
	if swept.Looked == 0 {
		return swept, nil
	}
	var err error
	if swept.Deleted, err = s.sweep(ctx, from, rows); err != nil {
		return ratelimit.Swept{}, fmt.Errorf("sqlstore: sweep: %w", err)
	}
	swept.Last = last.Int64
	return swept, nil
}

// lastOf tells where a sweep of so many rows ends.
const lastOf = `
SELECT max(key), count(*) FROM (SELECT key FROM rate_limits WHERE key >= ? ORDER BY key LIMIT ?)`

// sweep counts the rows that are returned: the Turso server says of every DELETE that it affected none.
func (s *Store) sweep(ctx context.Context, from int64, rows int) (deleted int64, err error) {
	gone, err := s.db.QueryContext(ctx, sweep, from, rows, s.now())
	if err != nil {
		return 0, err
	}
	err = scanAll(gone, func(*sql.Rows) error {
		deleted++
		return nil
	})
	return deleted, err
}

// Peek implements ratelimit.Store.
func (s *Store) Peek(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	answer := newAnswer(entries)
	shape := shapeOf(entries)
	_, read := shape.arguments(entries, s.now())
	if err := s.query(ctx, shape.statements().read, answer.read, read...); err != nil {
		return nil, fmt.Errorf("sqlstore: peek: %w", err)
	}
	return answer.complete()
}

// Decide implements ratelimit.Store.
func (s *Store) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	shape := shapeOf(entries)
	text := shape.statements()
	decide, read := shape.arguments(entries, s.now())
	answer := newAnswer(entries)
	if s.config.ManyResults {
		rows, err := s.db.QueryContext(ctx, text.both, append(decide, read...)...)
		if err == nil {
			err = scanBoth(rows, answer)
		}
		if err != nil {
			return nil, fmt.Errorf("sqlstore: decide: %w", err)
		}
	} else {
		if err := s.query(ctx, text.decide, answer.written, decide...); err != nil {
			return nil, fmt.Errorf("sqlstore: decide: %w", err)
		}
		if answer.missing > 0 {
			if err := s.query(ctx, text.read, answer.read, read...); err != nil {
				return nil, fmt.Errorf("sqlstore: read after decide: %w", err)
			}
		}
	}
	if answer.wrote && s.config.SweepEvery > 0 && rand.IntN(s.config.SweepEvery) == 0 {
		// A fresh process has no memory of where the last sweep was: it starts anywhere. A sweep that fails is no failure
		// of the decision, and what it leaves another one takes.
		_, _ = s.sweep(ctx, rand.Int64(), s.sweepRows)
	}
	return answer.complete()
}

// query runs a statement that is compiled once: that takes SQLite several times as long as to run it.
func (s *Store) query(ctx context.Context, text string, scan func(*sql.Rows) error, args ...any) error {
	statement, err := s.prepare(ctx, text)
	if err != nil {
		return err
	}
	rows, err := statement.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	return scanAll(rows, scan)
}

func (s *Store) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if statement, found := s.prepared[text]; found {
		return statement, nil
	}
	statement, err := s.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	if s.prepared == nil {
		s.prepared = map[string]*sql.Stmt{}
	}
	s.prepared[text] = statement
	return statement, nil
}

// giveBack records that reservations were given back; a trigger takes each out of its key in the same statement. A second
// record of the same reservation is not inserted, so the trigger doesn't run again. Of a bucket's charge there stands its
// own part of the queue, less what has been refilled since, less what was given back since of the charges in front of it.
//
//   - home: where each subject's state lies.
//   - held: whether that is still the state that was charged: of the same algorithm and epoch.
//   - front: what was given back, after each charge, of those in front of it.
func giveBack(rotating bool) string {
	return `
WITH
  asked AS MATERIALIZED (
    SELECT
      value ->> 0 AS key,
      value ->> 1 AS other_key,
      value ->> 2 AS id,
      value ->> 3 AS algorithm,
      value ->> 4 AS window,
      value ->> 5 AS per,
      value ->> 6 AS cost,
      value ->> 7 AS charged,
      value ->> 8 AS epoch,
      value ->> 9 AS charged_at,
      value ->> 10 AS debt,
      value ->> 11 AS expires
    FROM json_each(?)
  ),
  clock AS MATERIALIZED (
    SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
  ),
  home AS MATERIALIZED (` + homes(rotating, "asked") + `),
  held AS MATERIALIZED (
    SELECT
      home.*,
      coalesce(a.sequence, 0) AS sequence,
      coalesce(a.algorithm = home.algorithm AND a.epoch = home.epoch, 0) AS stands,
      coalesce(max(a.high_micros - a.behind_micros, clock.now), clock.now) AS now,
      clock.now AS clock
    FROM home CROSS JOIN clock LEFT JOIN rate_limits AS a ON a.key = home.home
  ),
  front AS MATERIALIZED (
    SELECT held.id, coalesce(sum(r.given), 0) AS given
    FROM held LEFT JOIN rate_limit_refunds AS r
      ON (r.key = held.key OR r.key = held.other_key)
      AND r.algorithm >= 4
      AND r.epoch = held.epoch
      AND r.charged_at < held.charged_at
      AND r.given_at >= held.charged_at
    GROUP BY held.id
  )
INSERT INTO rate_limit_refunds (
  id, key, algorithm, window_micros, cost, charged_micros, epoch, charged_at, given_at, at_micros, given, expires_micros
)
SELECT
  held.id, home, algorithm, window, cost, charged, epoch, charged_at, sequence, clock,
  CASE
    WHEN algorithm < 4 OR NOT stands THEN 0
    ELSE max(min(
      cost * (window / 1000),
      debt - front.given - min((now - charged) / 1000, 576460752303423488 / per) * per), 0)
  END,
  expires
FROM held JOIN front ON front.id = held.id
WHERE true
ON CONFLICT (id) DO NOTHING`
}

var giveBackPlain, giveBackRotating = giveBack(false), giveBack(true)

// GiveBack implements ratelimit.Store.
func (s *Store) GiveBack(ctx context.Context, refunds []ratelimit.Refund) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	var asked array
	text := giveBackPlain
	for _, r := range refunds {
		if r.Rotating {
			text = giveBackRotating
		}
		asked.open()
		asked.number(r.Key)
		asked.other(r.OtherKey, r.Rotating)
		for _, number := range [...]int64{
			r.ID, int64(r.Policy.Algorithm), r.Policy.Window.Microseconds(), r.Policy.Limit, r.Cost, r.ChargedMicros, r.Epoch,
			r.Sequence, r.Debt, r.ExpiresMicros,
		} {
			asked.number(number)
		}
		asked.close()
	}
	if _, err := s.db.ExecContext(ctx, text, asked.String(), s.now()); err != nil {
		return fmt.Errorf("sqlstore: give back: %w", err)
	}
	return nil
}

// operate records what an operator does; a trigger does it, in the same statement.
const operate = `
INSERT INTO rate_limit_audit (at_micros, policy, key, other_key, used, action, until_micros)
VALUES (coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000), ?, ?, ?, 0, ?, ?)`

// Operate implements ratelimit.Store.
func (s *Store) Operate(ctx context.Context, o ratelimit.Operation) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	other := sql.NullInt64{Int64: o.OtherKey, Valid: o.Rotating}
	_, err := s.db.ExecContext(ctx, operate, s.now(), o.Policy, o.Key, other, string(o.Action), o.UntilMicros)
	if err != nil {
		return fmt.Errorf("sqlstore: %s: %w", o.Action, err)
	}
	return nil
}

// now is the argument that replaces the database's clock, nil to use it.
func (s *Store) now() any {
	if s.config.Now == nil {
		return nil
	}
	return s.config.Now().UnixMilli() * 1000
}

// array is a JSON array of arrays in the making. Its zero value is empty.
type array struct{ text []byte }

func (a *array) comma(after byte) {
	if n := len(a.text); n > 0 && a.text[n-1] != after {
		a.text = append(a.text, ',')
	}
}

func (a *array) open()  { a.comma(0); a.text = append(a.text, '[') }
func (a *array) close() { a.text = append(a.text, ']') }

func (a *array) number(n int64) {
	a.comma('[')
	a.text = strconv.AppendInt(a.text, n, 10)
}

func (a *array) other(key int64, rotating bool) {
	if rotating {
		a.number(key)
		return
	}
	a.comma('[')
	a.text = append(a.text, "null"...)
}

func (a *array) String() string { return "[" + string(a.text) + "]" }

// answer collects the rows of a decision by key.
type answer struct {
	entries []ratelimit.Entry
	rows    []ratelimit.Row
	seen    []bool
	missing int
	wrote   bool // the decision wrote something
}

func newAnswer(entries []ratelimit.Entry) *answer {
	return &answer{
		entries: entries,
		rows:    make([]ratelimit.Row, len(entries)),
		seen:    make([]bool, len(entries)),
		missing: len(entries),
	}
}

// index finds the entry of a key; -1 if there is none. There are 16 at the most.
func (a *answer) index(key int64) int {
	return slices.IndexFunc(a.entries, func(entry ratelimit.Entry) bool { return entry.Key == key })
}

// written takes a row that decide wrote: the time of the write is the time of the decision. What the policy says needs no
// way back.
func (a *answer) written(rows *sql.Rows) error {
	var key, charged int64
	var log string
	var row ratelimit.Row
	state := &row.State
	err := rows.Scan(&key, &state.HighMicros, &state.BehindMicros, &state.Epoch, &state.Sequence, &state.Used, &state.Rest, &log,
		&state.Override, &state.UntilMicros, &charged)
	if err != nil {
		return err
	}
	i := a.index(key)
	if i < 0 {
		return errStranger
	}
	policy := a.entries[i].Policy
	state.Algorithm, state.WindowMicros, state.Per = policy.Algorithm, policy.Window.Microseconds(), policy.Limit
	row.NowMicros = state.HighMicros - state.BehindMicros
	row.Charged = charged > 0
	a.wrote = true
	return a.add(i, row, log)
}

// read takes a row that was read after the decision. What decide wrote says more and stays.
func (a *answer) read(rows *sql.Rows) error {
	var key int64
	var log string
	var row ratelimit.Row
	state := &row.State
	err := rows.Scan(&key, &state.Algorithm, &state.WindowMicros, &state.Per, &state.HighMicros, &state.BehindMicros, &state.PassedMicros,
		&state.Epoch, &state.Sequence, &state.Used, &state.Rest, &log, &state.RefusedMicros, &state.Override, &state.UntilMicros,
		&state.SaidMicros, &row.NowMicros)
	if err != nil {
		return err
	}
	i := a.index(key)
	switch {
	case i < 0:
		return errStranger
	case a.seen[i]:
		return nil
	}
	return a.add(i, row, log)
}

// decodeLog reads a log's entries, 8 bytes each in hexadecimal. An entry counts from shift, so that the whole log moves
// with one number when the clock steps back.
func decodeLog(text string, shift int64) ([]int64, error) {
	bytes, err := hex.DecodeString(text)
	if err != nil || len(bytes)%8 != 0 {
		return nil, errors.New("sqlstore: a log that is no sequence of times")
	}
	log := make([]int64, 0, len(bytes)/8)
	for ; len(bytes) > 0; bytes = bytes[8:] {
		log = append(log, int64(binary.BigEndian.Uint64(bytes))+shift)
	}
	return log, nil
}

var errStranger = errors.New("sqlstore: the database answered a key that was not asked for, or one twice")

func (a *answer) add(i int, row ratelimit.Row, log string) (err error) {
	if a.seen[i] {
		return errStranger
	}
	if row.State.Algorithm == ratelimit.SlidingLog {
		row.State.Log, err = decodeLog(log, row.State.Rest)
		row.State.Rest = 0
	}
	a.rows[i], a.seen[i] = row, true
	a.missing--
	return err
}

func (a *answer) complete() ([]ratelimit.Row, error) {
	if a.missing > 0 {
		return nil, errMissing
	}
	return a.rows, nil
}

// scanAll reads one result to its end. The end matters: the statement is only then carried out and committed.
func scanAll(rows *sql.Rows, scan func(*sql.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}

// scanBoth reads the results of decide and read, which came in one reply.
func scanBoth(rows *sql.Rows, a *answer) error {
	defer rows.Close()
	for rows.Next() {
		if err := a.written(rows); err != nil {
			return err
		}
	}
	if !rows.NextResultSet() {
		if err := rows.Err(); err != nil {
			return err
		}
		return errMissing
	}
	return scanAll(rows, a.read)
}
