// Package sqlstore keeps the states of rate limits in an SQL database: plain SQLite, libSQL or the Turso engine. The
// schema is in db/migrations.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Store is a ratelimit.Store in a database. It holds no state besides the pool and may be used by many goroutines and,
// over one database, by many processes.
type Store struct {
	db     *sql.DB
	config Config

	preparing sync.Mutex
	prepared  *statements // nil until the first decision on a driver that runs one statement a call
}

type statements struct{ decide, read *sql.Stmt }

// New makes a Store on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Store {
	return &Store{db: db, config: config}
}

var errMissing = errors.New("sqlstore: the database answered without a row for each limit")

// decide carries out a decision. It is one INSERT, so the engine runs it under its write lock from the first read to the
// last write: no other decision sees or changes a key in between, and it happens whole or not at all.
//
//   - asked: the entries, from one JSON array.
//   - clock: the time, read once for all of them.
//   - found: each entry with its key's state, moved to the present if the clock stepped back (see ratelimit.State).
//   - step: how much stands now, by the entry's algorithm.
//   - verdict: whether every charge fits.
//
// The rows that are inserted are the charges and the first refusals of a window; a trigger turns each of those into its
// audit row inside the same statement. What is not to be written is filtered before the upsert, so a later refusal
// touches no row. Every CTE is materialized: it is used several times, and json_each and the clock must be read once.
const decide = `
WITH
  asked AS MATERIALIZED (
    SELECT
      value ->> 0 AS key,
      value ->> 1 AS policy,
      value ->> 2 AS algorithm,
      value ->> 3 AS most,
      value ->> 4 AS window,
      value ->> 5 AS cost,
      value ->> 6 AS every_attempt
    FROM json_each(?)
  ),
  clock AS MATERIALIZED (
    SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
  ),
  found AS MATERIALIZED (
    SELECT
      asked.*,
      clock.now,
      max(coalesce(r.high_micros, 0), clock.now) AS high,
      CASE
        WHEN r.key IS NULL OR clock.now < r.high_micros - r.behind_micros THEN clock.now
        WHEN clock.now >= r.high_micros THEN r.high_micros
        ELSE r.high_micros - r.behind_micros
      END AS at,
      coalesce(clock.now < r.high_micros - r.behind_micros, 0) AS stepped,
      coalesce(max(r.used, 0), 0) AS used,
      coalesce(r.refused_micros, 0) AS refused
    FROM asked CROSS JOIN clock LEFT JOIN rate_limits AS r ON r.key = asked.key
  ),
  step AS MATERIALIZED (
    SELECT *, cost <= most - used AS fits
    FROM (
      SELECT
        key, policy, algorithm, most, window, cost, every_attempt, now, high, stepped, refused,
        CASE WHEN at / window = now / window THEN used ELSE 0 END AS used,
        refused = 0 OR refused / window <> now / window AS first
      FROM found
    )
  ),
  verdict AS MATERIALIZED (
    SELECT min(fits) AS allowed FROM step
  )
INSERT INTO rate_limits (
  key, policy, algorithm, high_micros, behind_micros, used, rest, log, charged, refused_micros, expires_micros
)
SELECT
  key,
  policy,
  algorithm,
  high,
  high - now,
  CASE WHEN fits THEN used + cost ELSE used END,
  0,
  NULL,
  CASE WHEN fits THEN cost ELSE 0 END,
  CASE WHEN NOT fits AND first THEN now ELSE refused END,
  (min(high, 9000000000000000000) / window + 1) * window
FROM step CROSS JOIN verdict
WHERE cost > 0 AND CASE WHEN fits THEN allowed OR every_attempt ELSE first OR stepped END
ON CONFLICT (key) DO UPDATE SET
  policy         = excluded.policy,
  algorithm      = excluded.algorithm,
  high_micros    = excluded.high_micros,
  behind_micros  = excluded.behind_micros,
  used           = excluded.used,
  rest           = excluded.rest,
  log            = excluded.log,
  charged        = excluded.charged,
  refused_micros = excluded.refused_micros,
  expires_micros = excluded.expires_micros
RETURNING key, high_micros, behind_micros, used, rest, refused_micros, charged`

// read gives the states of the keys that decide left alone, which an upsert returns no row for. It decides nothing.
const read = `
SELECT
  asked.value ->> 0,
  coalesce(r.high_micros, 0),
  coalesce(r.behind_micros, 0),
  coalesce(r.used, 0),
  coalesce(r.rest, 0),
  coalesce(r.refused_micros, 0),
  coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
FROM json_each(?) AS asked LEFT JOIN rate_limits AS r ON r.key = asked.value ->> 0`

const decideAndRead = decide + ";" + read

// Decide implements ratelimit.Store.
func (s *Store) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	asked, now := encode(entries), s.now()
	answer := newAnswer(entries)
	if s.config.ManyResults {
		rows, err := s.db.QueryContext(ctx, decideAndRead, asked, now, now, asked)
		if err != nil {
			return nil, fmt.Errorf("sqlstore: decide: %w", err)
		}
		if err := scanBoth(rows, answer); err != nil {
			return nil, fmt.Errorf("sqlstore: decide: %w", err)
		}
		return answer.complete()
	}

	prepared, err := s.prepare(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := prepared.decide.QueryContext(ctx, asked, now)
	if err == nil {
		err = scanAll(rows, answer.written)
	}
	if err != nil {
		return nil, fmt.Errorf("sqlstore: decide: %w", err)
	}
	if answer.missing == 0 {
		return answer.complete()
	}
	rows, err = prepared.read.QueryContext(ctx, now, asked)
	if err == nil {
		err = scanAll(rows, answer.read)
	}
	if err != nil {
		return nil, fmt.Errorf("sqlstore: read after decide: %w", err)
	}
	return answer.complete()
}

// prepare compiles the statements once: that takes SQLite several times as long as to run them.
func (s *Store) prepare(ctx context.Context) (*statements, error) {
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if s.prepared != nil {
		return s.prepared, nil
	}
	decide, err := s.db.PrepareContext(ctx, decide)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: prepare: %w", err)
	}
	read, err := s.db.PrepareContext(ctx, read)
	if err != nil {
		decide.Close()
		return nil, fmt.Errorf("sqlstore: prepare: %w", err)
	}
	s.prepared = &statements{decide, read}
	return s.prepared, nil
}

// giveBack records that a reservation was given back; a trigger takes the charge out of its key, where it still stands.
// A second record of the same reservation is not inserted, so the trigger doesn't run again.
const giveBack = `
INSERT INTO rate_limit_refunds (id, key, algorithm, charged_micros, window_micros, cost, expires_micros)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING`

// GiveBack implements ratelimit.Store.
func (s *Store) GiveBack(ctx context.Context, r ratelimit.Refund) error {
	window := r.Policy.Window.Microseconds()
	expires := r.ChargedMicros + 2*window // by then the window of the charge is over, and so is a second giving back
	_, err := s.db.ExecContext(ctx, giveBack,
		r.ID, r.Key, int64(r.Policy.Algorithm), r.ChargedMicros, window, r.Cost, expires)
	if err != nil {
		return fmt.Errorf("sqlstore: give back: %w", err)
	}
	return nil
}

// now is the argument that replaces the database's clock, nil to use it.
func (s *Store) now() any {
	if s.config.Now == nil {
		return nil
	}
	return s.config.Now().UnixMicro()
}

// encode writes the entries as a JSON array of arrays, in the order that decide reads them. Policy names need no escaping.
func encode(entries []ratelimit.Entry) string {
	text := make([]byte, 0, 96*len(entries)+2)
	text = append(text, '[')
	for i, entry := range entries {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(text, '['), entry.Key, 10)
		text = append(append(append(text, `,"`...), entry.Policy.Name...), `",`...)
		text = strconv.AppendInt(text, int64(entry.Policy.Algorithm), 10)
		text = strconv.AppendInt(append(text, ','), entry.Policy.Limit, 10)
		text = strconv.AppendInt(append(text, ','), entry.Policy.Window.Microseconds(), 10)
		text = strconv.AppendInt(append(text, ','), entry.Cost, 10)
		text = strconv.AppendInt(append(text, ','), int64(entry.Policy.Count), 10)
		text = append(text, ']')
	}
	return string(append(text, ']'))
}

// answer collects the rows of a decision by key.
type answer struct {
	index   map[int64]int
	rows    []ratelimit.Row
	seen    []bool
	missing int
}

func newAnswer(entries []ratelimit.Entry) *answer {
	a := &answer{
		index:   make(map[int64]int, len(entries)),
		rows:    make([]ratelimit.Row, len(entries)),
		seen:    make([]bool, len(entries)),
		missing: len(entries),
	}
	for i, entry := range entries {
		a.index[entry.Key] = i
	}
	return a
}

// written takes a row that decide wrote: the time of the write is the time of the decision.
func (a *answer) written(rows *sql.Rows) error {
	var key, charged int64
	var row ratelimit.Row
	state := &row.State
	err := rows.Scan(&key, &state.HighMicros, &state.BehindMicros, &state.Used, &state.Rest, &state.RefusedMicros, &charged)
	if err != nil {
		return err
	}
	row.NowMicros = state.HighMicros - state.BehindMicros
	row.Charged = charged > 0
	return a.add(key, row)
}

// read takes a row that was read after the decision. What decide wrote says more and stays.
func (a *answer) read(rows *sql.Rows) error {
	var key int64
	var row ratelimit.Row
	state := &row.State
	err := rows.Scan(&key, &state.HighMicros, &state.BehindMicros, &state.Used, &state.Rest, &state.RefusedMicros, &row.NowMicros)
	if err != nil {
		return err
	}
	if i, found := a.index[key]; found && a.seen[i] {
		return nil
	}
	return a.add(key, row)
}

func (a *answer) add(key int64, row ratelimit.Row) error {
	i, found := a.index[key]
	if !found || a.seen[i] {
		return errors.New("sqlstore: the database answered a key that was not asked for, or one twice")
	}
	a.rows[i], a.seen[i] = row, true
	a.missing--
	return nil
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
