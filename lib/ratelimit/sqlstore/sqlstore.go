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

// decide carries out a decision. It is one INSERT, so the engine runs it under its write lock from the first read to the
// last write: no other decision sees or changes a key in between, and it happens whole or not at all.
//
//   - asked: the entries, from one JSON array.
//   - clock: the time, read once for all of them.
//   - home: where each key's newest state lies, and where an operator's last word about it, which during a rotation of the
//     secret may be under its other key.
//   - held: that state, with that word. A row that only holds a word has no time yet.
//   - moved, found: that state with the key's time, brought along if the clock stepped back, and with the entry's algorithm.
//   - standing: what stands now: units (and, for the sliding window, those of the previous one), or a bucket's debt in
//     fractions of a unit, one for each millisecond of the window.
//   - step: whether the charge fits.
//   - charge: what is written, and how many of a log's entries go: expired ones only, so many that fewer are kept than twice
//     those that stand, and those that have to make room.
//   - verdict: whether every charge fits.
//
// The rows that are inserted are the charges and the first refusals of a window; a trigger turns each of those into its
// audit row inside the same statement. What is not to be written is filtered before the upsert, so a later refusal
// touches no row. Every CTE is materialized: it is used several times, and json_each and the clock must be read once.
//
// The arithmetic is that of the package ratelimit's step functions, and so are its bounds: 576460752303423488 is 2⁵⁹.
func decide(lie places) string {
	return `
WITH
  asked AS MATERIALIZED (
    SELECT
      value ->> 0 AS key,
      value ->> 1 AS other_key,
      value ->> 2 AS policy,
      value ->> 3 AS algorithm,
      value ->> 4 AS most,
      value ->> 5 AS per,
      value ->> 6 AS window,
      value ->> 7 AS cost,
      value ->> 8 AS every_attempt
    FROM json_each(?)
  ),
  clock AS MATERIALIZED (
    SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
  ),
  home AS (` + lie.home + `),
  held AS MATERIALIZED (
    SELECT
      home.*, clock.now, home.window / 1000 AS ms,
      a.algorithm AS had, a.window_micros AS had_window, a.per AS had_per, nullif(a.high_micros, 0) AS high,
      a.behind_micros AS behind, a.passed_micros AS passed, a.epoch, a.sequence, a.used, a.rest, a.log, a.refused_micros AS refused,
      ` + lie.says + `.override, ` + lie.says + `.until_micros AS until, ` + lie.says + `.said_micros AS said
    FROM home CROSS JOIN clock ` + lie.states + `
  ),
  moved AS MATERIALIZED (
    SELECT
      *,
      high - behind AS written,
      CASE
        WHEN high IS NULL THEN now
        WHEN behind = 0 AND now < high THEN min(max(now, passed), high)
        ELSE high - behind
      END AS at
    FROM held
  ),
  found AS MATERIALIZED (
    SELECT
      key, policy, algorithm, most, per, window, ms, cost, every_attempt, written, at,
      max(now, at) AS now,
      max(coalesce(high, 0), now) AS high,
      CASE WHEN max(now, at) < high THEN max(now, at) WHEN behind > 0 THEN high ELSE coalesce(passed, 0) END AS passed,
      coalesce(epoch + (
        high IS NOT NULL AND (at <> written OR had <> algorithm OR had_window <> window OR algorithm >= 4 AND had_per <> per)
      ), 0) AS epoch,
      coalesce(sequence, 0) + 1 AS sequence,
      coalesce(behind = 0 AND at < high, 0) AS stepped,
      coalesce(refused, 0) AS refused,
      coalesce(override, 0) AS override,
      coalesce(until, 0) AS until,
      coalesce(said, 0) AS said,
      coalesce(now < until, 0) AS overridden,
      coalesce(now < until AND override = 1 AND word <> key, 0) AS banned_elsewhere, -- to be written, or it goes with the other secret
      coalesce(max(used, 0) + (had >= 4 AND algorithm < 4 AND rest > 0), 0) AS used, -- a part of a unit carries over as a whole one
      CASE WHEN had = algorithm OR (had >= 4 AND algorithm >= 4) THEN rest ELSE 0 END AS rest,
      CASE WHEN had = 3 THEN log END AS log
    FROM moved
  ),
  standing AS MATERIALIZED (
    SELECT
      *,
      CASE
        WHEN algorithm <= 2 THEN CASE WHEN at / window = now / window THEN used ELSE 0 END
        WHEN algorithm >= 4 THEN max(
          min(used, 576460752303423488 / ms) * ms + min(max(rest, 0), ms - 1)
            - min((now - at) / 1000, 576460752303423488 / per) * per,
          0)
        WHEN log IS NULL THEN min(used, most)
        ELSE length(log) / 8
      END AS units,
      CASE
        WHEN algorithm <> 2 THEN 0
        WHEN at / window = now / window THEN max(rest, 0)
        WHEN at / window = now / window - 1 THEN used
        ELSE 0
      END AS previous,
      CASE
        WHEN algorithm <> 3 THEN NULL
        WHEN log IS NULL THEN unhex(replace(hex(zeroblob(min(used, most))), '00', printf('%016x', at)))
        ELSE log
      END AS entries,
      CASE WHEN algorithm = 3 AND log IS NOT NULL THEN rest + at - written ELSE 0 END AS shift,
      CASE WHEN algorithm = 3 THEN unhex(printf('%016x', max(
        now - window - CASE WHEN log IS NOT NULL THEN rest + at - written ELSE 0 END, 0))) END AS expired
    FROM found
  ),
  step AS MATERIALIZED (
    SELECT
      *,
      CASE
        WHEN cost = 0 THEN 1
        WHEN overridden THEN override = 2
        ELSE CASE algorithm
          WHEN 1 THEN cost <= most - units
          WHEN 2 THEN
            min(previous, 576460752303423488 / ms) * (ms - now % window / 1000) + min(units, 576460752303423488 / ms) * ms
              <= (most - cost) * ms
          WHEN 3 THEN
            units + cost <= most
              OR substr(entries, 8 * (units + cost - most) - 7, 8) <= expired
          ELSE units <= (most - cost) * ms
        END
      END AS fits,
      refused = 0 OR CASE
        WHEN algorithm <= 2 THEN refused / window <> now / window
        ELSE now - refused >= window OR now < refused
      END AS first
    FROM standing
  ),
  verdict AS MATERIALIZED (
    SELECT min(fits) AS allowed FROM step
  ),
  charge AS MATERIALIZED (
    SELECT
      *,
      CASE WHEN fits THEN cost ELSE 0 END AS charged,
      CASE WHEN fits THEN cost WHEN first THEN 0 ELSE -1 END AS told,
      CASE
        WHEN algorithm <> 3 THEN 0
        WHEN substr(entries, 8 * units - 7, 8) <= expired THEN units
        WHEN units > 1 AND substr(entries, 8 * (units - 1) - 7, 8) <= expired THEN max(units - 1, room)
        WHEN units > 2 AND substr(entries, 8 * (units - 2) - 7, 8) <= expired THEN max(units - 2, room)
        WHEN units > 4 AND substr(entries, 8 * (units - 4) - 7, 8) <= expired THEN max(units - 4, room)
        WHEN units > 8 AND substr(entries, 8 * (units - 8) - 7, 8) <= expired THEN max(units - 8, room)
        WHEN units > 16 AND substr(entries, 8 * (units - 16) - 7, 8) <= expired THEN max(units - 16, room)
        WHEN units > 32 AND substr(entries, 8 * (units - 32) - 7, 8) <= expired THEN max(units - 32, room)
        WHEN units > 64 AND substr(entries, 8 * (units - 64) - 7, 8) <= expired THEN max(units - 64, room)
        WHEN units > 128 AND substr(entries, 8 * (units - 128) - 7, 8) <= expired THEN max(units - 128, room)
        WHEN units > 256 AND substr(entries, 8 * (units - 256) - 7, 8) <= expired THEN max(units - 256, room)
        WHEN units > 512 AND substr(entries, 8 * (units - 512) - 7, 8) <= expired THEN max(units - 512, room)
        ELSE room
      END AS dropped
    FROM (
      SELECT
        step.*,
        verdict.allowed,
        CASE WHEN fits THEN max(units + cost - CASE WHEN overridden THEN 1000 ELSE most END, 0) ELSE 0 END AS room
      FROM step CROSS JOIN verdict
    )
    WHERE cost > 0 AND CASE WHEN fits THEN allowed OR every_attempt ELSE first OR stepped OR banned_elsewhere END
  )
INSERT INTO rate_limits (
  key, policy, algorithm, window_micros, per, high_micros, behind_micros, used, rest, log, charged, refused_micros, expires_micros,
  passed_micros, epoch, sequence, override, until_micros, said_micros
)
SELECT
  key,
  policy,
  algorithm,
  window,
  per,
  high,
  high - now,
  CASE
    WHEN algorithm <= 2 THEN min(units, 4611686018427387904) + charged
    WHEN algorithm = 3 THEN units - dropped + charged
    ELSE (units + charged * ms) / ms
  END,
  CASE algorithm WHEN 1 THEN 0 WHEN 2 THEN previous WHEN 3 THEN shift ELSE (units + charged * ms) % ms END,
  CASE WHEN algorithm = 3 THEN unhex( -- joined as text, since the Turso engine joins blobs as if they were UTF-8
    hex(substr(entries, 8 * dropped + 1)) || replace(hex(zeroblob(charged)), '00', printf('%016x', now - shift)))
  END,
  told,
  CASE WHEN NOT fits AND first THEN now ELSE refused END,
  max(until, CASE
    WHEN algorithm <= 2 THEN (min(high, 8000000000000000000) / window + algorithm) * window
    WHEN algorithm = 3 THEN min(high, 8000000000000000000) + window
    ELSE min(high, 8000000000000000000) + max(window, min((units + charged * ms) / per + 1, 900000000000000) * 1000)
  END),
  passed,
  epoch,
  sequence,
  override,
  until,
  said
FROM charge
WHERE true
ON CONFLICT (key) DO UPDATE SET
  policy         = excluded.policy,
  algorithm      = excluded.algorithm,
  window_micros  = excluded.window_micros,
  per            = excluded.per,
  high_micros    = excluded.high_micros,
  behind_micros  = excluded.behind_micros,
  used           = excluded.used,
  rest           = excluded.rest,
  log            = excluded.log,
  charged        = excluded.charged,
  refused_micros = excluded.refused_micros,
  expires_micros = excluded.expires_micros,
  passed_micros  = excluded.passed_micros,
  epoch          = excluded.epoch,
  sequence       = excluded.sequence,
  override       = excluded.override,
  until_micros   = excluded.until_micros,
  said_micros    = excluded.said_micros
RETURNING
  key, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, hex(log), refused_micros, override,
  until_micros, said_micros, charged`
}

// places say where states and words of a key asked for lie.
type places struct {
	home   string // a query over asked that adds the keys home, of the newest state, and word, of an operator's last
	states string // joins those rows, as a and, where it is another, as o
	says   string // which of them has the word
}

// One secret: both lie under the key.
var atKey = places{
	home:   `SELECT *, key AS home, key AS word FROM asked`,
	states: `LEFT JOIN rate_limits AS a ON a.key = home.home`,
	says:   "a",
}

// Two secrets: the state that was written last, of those under both keys, and the word that was said last. The time decides
// before the sequence, since an instance that no longer reads the old key begins a sequence of its own.
var atEither = places{
	home: `
    SELECT
      asked.*,
      CASE
        WHEN b.key IS NOT NULL AND (a.key IS NULL OR (b.high_micros, b.sequence) > (a.high_micros, a.sequence)) THEN b.key
        ELSE asked.key
      END AS home,
      CASE WHEN coalesce(b.said_micros, 0) > coalesce(a.said_micros, 0) THEN b.key ELSE asked.key END AS word
    FROM asked LEFT JOIN rate_limits AS a ON a.key = asked.key LEFT JOIN rate_limits AS b ON b.key = asked.other_key
  `,
	states: `LEFT JOIN rate_limits AS a ON a.key = home.home LEFT JOIN rate_limits AS o ON o.key = home.word`,
	says:   "o",
}

// read gives the states of the keys that decide left alone, which an upsert returns no row for. It decides nothing.
func read(lie places) string {
	return `
WITH
  asked AS MATERIALIZED (
    SELECT value ->> 0 AS key, value ->> 1 AS other_key FROM json_each(?)
  ),
  home AS (` + lie.home + `)
SELECT
  home.key,
  coalesce(a.algorithm, 0),
  coalesce(a.window_micros, 0),
  coalesce(a.per, 0),
  coalesce(a.high_micros, 0),
  coalesce(a.behind_micros, 0),
  coalesce(a.passed_micros, 0),
  coalesce(a.epoch, 0),
  coalesce(a.sequence, 0),
  coalesce(a.used, 0),
  coalesce(a.rest, 0),
  coalesce(hex(a.log), ''),
  coalesce(a.refused_micros, 0),
  coalesce(` + lie.says + `.override, 0),
  coalesce(` + lie.says + `.until_micros, 0),
  coalesce(` + lie.says + `.said_micros, 0),
  coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
FROM home ` + lie.states
}

// statements are the texts for one secret, or for two.
type statements struct{ decide, read, both, giveBack string }

func compose(lie places) statements {
	decide, read := decide(lie), read(lie)
	return statements{decide, read, decide + ";" + read, giveBack(lie)}
}

var (
	plain    = compose(atKey)
	rotating = compose(atEither)
)

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
	if err := s.query(ctx, textFor(entries).read, answer.read, encode(entries), s.now()); err != nil {
		return nil, fmt.Errorf("sqlstore: peek: %w", err)
	}
	return answer.complete()
}

func textFor(entries []ratelimit.Entry) statements {
	if len(entries) > 0 && entries[0].Rotating {
		return rotating
	}
	return plain
}

// Decide implements ratelimit.Store.
func (s *Store) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	text := textFor(entries)
	asked, now := encode(entries), s.now()
	answer := newAnswer(entries)
	if s.config.ManyResults {
		rows, err := s.db.QueryContext(ctx, text.both, asked, now, asked, now)
		if err == nil {
			err = scanBoth(rows, answer)
		}
		if err != nil {
			return nil, fmt.Errorf("sqlstore: decide: %w", err)
		}
	} else {
		if err := s.query(ctx, text.decide, answer.written, asked, now); err != nil {
			return nil, fmt.Errorf("sqlstore: decide: %w", err)
		}
		if answer.missing > 0 {
			if err := s.query(ctx, text.read, answer.read, asked, now); err != nil {
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
func giveBack(lie places) string {
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
  home AS MATERIALIZED (` + lie.home + `),
  held AS MATERIALIZED (
    SELECT
      home.*,
      coalesce(a.sequence, 0) AS sequence,
      coalesce(a.algorithm = home.algorithm AND a.epoch = home.epoch, 0) AS stands,
      coalesce(max(a.high_micros - a.behind_micros, clock.now), clock.now) AS now
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
  held.id, home, algorithm, window, cost, charged, epoch, charged_at, sequence, now,
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

// GiveBack implements ratelimit.Store.
func (s *Store) GiveBack(ctx context.Context, refunds []ratelimit.Refund) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	var asked array
	text := plain
	for _, r := range refunds {
		if r.Rotating {
			text = rotating
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
	if _, err := s.db.ExecContext(ctx, text.giveBack, asked.String(), s.now()); err != nil {
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

// encode writes the entries in the order that decide reads them.
func encode(entries []ratelimit.Entry) string {
	var asked array
	for _, entry := range entries {
		policy := entry.Policy
		asked.open()
		asked.number(entry.Key)
		asked.other(entry.OtherKey, entry.Rotating)
		asked.name(policy.Name)
		for _, number := range [...]int64{
			int64(policy.Algorithm), policy.Capacity(), policy.Limit, policy.Window.Microseconds(), entry.Cost, int64(policy.Count),
		} {
			asked.number(number)
		}
		asked.close()
	}
	return asked.String()
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

// name writes a policy's name, which needs no escaping.
func (a *array) name(name string) {
	a.comma('[')
	a.text = append(append(append(a.text, '"'), name...), '"')
}

func (a *array) String() string { return "[" + string(a.text) + "]" }

// answer collects the rows of a decision by key.
type answer struct {
	index   map[int64]int
	rows    []ratelimit.Row
	seen    []bool
	missing int
	wrote   bool // the decision wrote something
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
	var charged int64
	key, row, err := scanRow(rows, &charged)
	if err != nil {
		return err
	}
	row.NowMicros = row.State.HighMicros - row.State.BehindMicros
	row.Charged = charged > 0
	a.wrote = true
	return a.add(key, row)
}

// read takes a row that was read after the decision. What decide wrote says more and stays.
func (a *answer) read(rows *sql.Rows) error {
	var now int64
	key, row, err := scanRow(rows, &now)
	if err != nil {
		return err
	}
	row.NowMicros = now
	if i, found := a.index[key]; found && a.seen[i] {
		return nil
	}
	return a.add(key, row)
}

func scanRow(rows *sql.Rows, last *int64) (key int64, row ratelimit.Row, err error) {
	var log string
	state := &row.State
	err = rows.Scan(&key, &state.Algorithm, &state.WindowMicros, &state.Per, &state.HighMicros, &state.BehindMicros, &state.PassedMicros, &state.Epoch, &state.Sequence, &state.Used,
		&state.Rest, &log, &state.RefusedMicros, &state.Override, &state.UntilMicros, &state.SaidMicros, last)
	if err == nil && state.Algorithm == ratelimit.SlidingLog {
		state.Log, err = decodeLog(log, state.Rest)
		state.Rest = 0
	}
	return key, row, err
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
