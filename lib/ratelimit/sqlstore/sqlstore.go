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
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/hrana"
	"github.com/weirlimits/weir/lib/ratelimit"
)

// Config says how a Store uses its database. The zero value is for use, on the database's own clock.
type Config struct {
	// Deadline bounds a call, waiting for a connection included, besides the caller's context. Zero means 2 seconds.
	Deadline time.Duration
	// SweepEvery is how many decisions share one sweep: one in so many of those that wrote something, by chance, deletes
	// some expired rows: over HTTP in the same request, on a file in a call of its own afterwards. Zero means 64, a negative
	// number that decisions never sweep.
	SweepEvery int
	// AuditRetention is how long a row of the audit is kept. As many other decisions take some of the older ones along, and
	// SweepAudit takes all of them. Zero means for ever.
	AuditRetention time.Duration
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Store is a ratelimit.Store in a database. It holds no state besides its connections and may be used by many goroutines
// and, over one database, by many processes.
type Store struct {
	db     runner
	config Config
}

// defaultDeadline is well above one commit on Turso, up to 100 ms, since commits queue, and below what a person waits for.
const defaultDeadline = 2 * time.Second

// With one sweep of 256 rows in 64 decisions each visits four rows and leaves one at the most: a table whose every decision is
// for a new key holds a third more rows than live ones.
const (
	defaultSweepEvery = 64
	sweepRows         = 256
)

// New makes a Store on a file, or on whatever database/sql opens, which the caller opens, migrates and closes. An SQLite file
// that several connections write needs a busy timeout and write-ahead logging, or else all but one of them fail at once.
func New(db *sql.DB, config Config) *Store { return newStore(&pool{db: db}, config) }

// NewRemote makes a Store on a server of Turso or libSQL, which the caller migrates: each decision is one HTTP request.
func NewRemote(client *hrana.Client, config Config) *Store { return newStore(server{client}, config) }

func newStore(db runner, config Config) *Store {
	if config.Deadline == 0 {
		config.Deadline = defaultDeadline
	}
	if config.SweepEvery == 0 {
		config.SweepEvery = defaultSweepEvery
	}
	return &Store{db: db, config: config}
}

// run carries out calls within the deadline. The error is the first one's.
func (s *Store) run(ctx context.Context, calls ...call) ([]outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	return s.all(ctx, calls...)
}

// all carries out calls that all have to succeed.
func (s *Store) all(ctx context.Context, calls ...call) ([]outcome, error) {
	outcomes, err := s.db.run(ctx, calls...)
	for _, outcome := range outcomes {
		if err == nil {
			err = outcome.err
		}
	}
	return outcomes, err
}

var errMissing = errors.New("sqlstore: the database answered without a row for each limit")

// sweep deletes the expired of the rows that follow a key. It is bounded by the number of rows that it looks at, not of those
// that it deletes, and finds them by their primary key: an index on the expiry would double every write.
const sweep = `
DELETE FROM rate_limits
WHERE key IN (SELECT key FROM rate_limits WHERE key >= ? ORDER BY key LIMIT ?)
  AND expires_micros <= ` + clock

var (
	// The rows are counted as they are returned: the Turso server says of every DELETE that it affected none.
	sweepText = newText(sweep + "\nRETURNING key")
	// Behind a decision in the same request: one that wrote nothing sweeps nothing.
	sweepInPassing = newBestEffort(sweep + "\n  AND changes() > 0")

	// A step of Sweep goes through a stretch of keys, and of the refunds' ids, which are as random: so one number says how far
	// it came in both tables. Where so many rows end:
	lastKey = newText(`
SELECT coalesce(max(key), 0), count(*) FROM (SELECT key FROM rate_limits WHERE key >= ? ORDER BY key LIMIT ?)`)
	lastRefund = newText(`
SELECT coalesce(max(id), 0), count(*) FROM (SELECT id FROM rate_limit_refunds WHERE id >= ? ORDER BY id LIMIT ?)`)
	sweepKeys = newText(`
DELETE FROM rate_limits
WHERE key BETWEEN ? AND ?
  AND expires_micros <= ` + clock + `
RETURNING key`)
	sweepRefunds = newText(`
DELETE FROM rate_limit_refunds
WHERE id BETWEEN ? AND ?
  AND expires_micros <= ` + clock + `
RETURNING id`)
)

// Sweep implements ratelimit.Store. It takes the refunds along whose time is over, and looks at so many rows of each table.
func (s *Store) Sweep(ctx context.Context, from int64, rows int) (ratelimit.Swept, error) {
	ends, err := s.run(ctx, call{lastKey, []any{from, int64(rows)}}, call{lastRefund, []any{from, int64(rows)}})
	if err != nil {
		return ratelimit.Swept{}, wrap("sweep", err)
	}
	swept := ratelimit.Swept{Last: math.MaxInt64}
	for _, end := range ends {
		var last, looked int64
		if err := scan(end.rows, &last, &looked); err != nil {
			return ratelimit.Swept{}, wrap("sweep", err)
		}
		if looked == int64(rows) {
			swept.Last = min(swept.Last, last)
		}
		swept.Looked = max(swept.Looked, looked)
	}
	if swept.Looked == 0 {
		return ratelimit.Swept{}, nil
	}
	args := []any{from, swept.Last, s.now()}
	gone, err := s.run(ctx, call{sweepKeys, args}, call{sweepRefunds, args})
	if err != nil {
		return ratelimit.Swept{}, wrap("sweep", err)
	}
	swept.Deleted = int64(len(gone[0].rows))
	return swept, nil
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("sqlstore: %s: %w", what, err)
	}
	return nil
}

// scan reads the integers of a result of one row.
func scan(rows [][]string, into ...*int64) error {
	if len(rows) != 1 || len(rows[0]) != len(into) {
		return errNonsense
	}
	for i, text := range rows[0] {
		var err error
		if *into[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return errNonsense
		}
	}
	return nil
}

// Peek implements ratelimit.Store.
func (s *Store) Peek(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	shape := shapeOf(entries)
	outcomes, err := s.run(ctx, call{shape.statements().read, shape.readArguments(entries, s.now())})
	if err != nil {
		return nil, wrap("peek", err)
	}
	answer := newAnswer(entries)
	if err := answer.read(outcomes[0].rows); err != nil {
		return nil, err
	}
	return answer.complete()
}

// Decide implements ratelimit.Store.
func (s *Store) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	shape := shapeOf(entries)
	text := shape.statements()
	now := s.now()
	decide := call{text.decide, shape.decideArguments(entries, now)}
	answer := newAnswer(entries)
	// A fresh process has no memory of where the last sweep was: it starts anywhere. A sweep that fails is no failure of the
	// decision, and what it leaves another one takes.
	sweep, args := s.inPassing()
	if s.db.together() {
		calls := []call{decide, {text.read, shape.readArguments(entries, now)}}
		if sweep != nil {
			calls = append(calls, call{sweep.behind, args})
		}
		outcomes, err := s.db.run(ctx, calls...)
		if err != nil {
			return nil, wrap("decide", err)
		}
		if outcomes[0].err != nil {
			return nil, wrap("decide", outcomes[0].err)
		}
		if err := answer.written(outcomes[0].rows); err != nil {
			return nil, err
		}
		if outcomes[1].err != nil {
			if answer.missing == 0 && !shape.has(ratelimit.LeakyBucket) { // all was written, and has been told
				return answer.complete()
			}
			return nil, wrap("read after decide", outcomes[1].err)
		}
		if err := answer.read(outcomes[1].rows); err != nil {
			return nil, err
		}
		return answer.complete()
	}
	outcomes, err := s.all(ctx, decide)
	if err != nil {
		return nil, wrap("decide", err)
	}
	if err := answer.written(outcomes[0].rows); err != nil {
		return nil, err
	}
	wrote := answer.missing < len(entries)
	if answer.missing > 0 || shape.has(ratelimit.LeakyBucket) {
		if outcomes, err = s.all(ctx, call{text.read, shape.readArguments(entries, now)}); err != nil {
			return nil, wrap("read after decide", err)
		}
		if err := answer.read(outcomes[0].rows); err != nil {
			return nil, err
		}
	}
	if sweep != nil && wrote {
		_, _ = s.all(ctx, call{sweep.alone, args})
	}
	return answer.complete()
}

// passing is a sweep that goes along with a decision: behind it in the same request, or alone afterwards.
type passing struct{ behind, alone *text }

var (
	countersInPassing = &passing{sweepInPassing, sweepText}
	auditInPassing    = &passing{sweepAuditInPassing, sweepAuditText}
)

// inPassing says by chance what a decision sweeps, and with which arguments; nil for nothing.
func (s *Store) inPassing() (texts *passing, args []any) {
	if s.config.SweepEvery <= 0 {
		return nil, nil
	}
	switch rand.IntN(s.config.SweepEvery) {
	case 0:
		return countersInPassing, []any{rand.Int64(), int64(sweepRows), s.now()}
	case 1:
		if s.config.AuditRetention > 0 {
			return auditInPassing, s.sweepAuditArgs(sweepRows)
		}
	}
	return nil, nil
}

// giveBack records that reservations were given back; a trigger takes each out of its key in the same statement. A second
// record of the same reservation is not inserted, so the trigger doesn't run again. Of a bucket's charge there stands its
// own part of the queue, less what has been refilled since, less what was given back since of the charges in front of it.
//
//   - home: where each subject's state lies.
//   - held: whether that is still the state that was charged: of the same algorithm and epoch.
//   - front: what was given back, after each charge, of those in front of it; of a queue, how many places are vacant.
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
    SELECT ` + clock + ` AS now
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
    SELECT
      held.id,
      coalesce(sum(CASE WHEN r.charged_at < held.charged_at AND r.given_at >= held.charged_at THEN r.given END), 0) AS given,
      count(CASE
        WHEN r.given > 0 AND r.debt > min((held.now - r.charged_micros) / 1000, 576460752303423488 / held.per) * held.per THEN 1
      END) AS places
    FROM held LEFT JOIN rate_limit_refunds AS r
      ON (r.key = held.key OR r.key = held.other_key)
      AND r.algorithm >= 4
      AND r.given > 0
      AND r.algorithm = held.algorithm
      AND r.epoch = held.epoch
    GROUP BY held.id
  )
INSERT INTO rate_limit_refunds (
  id, key, algorithm, window_micros, cost, charged_micros, epoch, charged_at, given_at, at_micros, debt, given, expires_micros
)
SELECT
  held.id, home, algorithm, window, cost, charged, epoch, charged_at, sequence, clock, debt,
  CASE
    WHEN algorithm < 4 OR NOT stands THEN 0
    WHEN algorithm = 5 THEN CASE
      WHEN debt - cost * (window / 1000) >= min((now - charged) / 1000, 576460752303423488 / per) * per
        AND front.places < 1000 -- ratelimit's maxVacancies
      THEN cost
      ELSE 0
    END
    ELSE max(min(
      cost * (window / 1000),
      debt - front.given - min((now - charged) / 1000, 576460752303423488 / per) * per), 0)
  END,
  expires
FROM held JOIN front ON front.id = held.id
WHERE true
ON CONFLICT (id) DO NOTHING`
}

var giveBackPlain, giveBackRotating = newText(giveBack(false)), newText(giveBack(true))

// GiveBack implements ratelimit.Store.
func (s *Store) GiveBack(ctx context.Context, refunds []ratelimit.Refund) error {
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
	_, err := s.run(ctx, call{text, []any{asked.String(), s.now()}})
	return wrap("give back", err)
}

// operate records what an operator does; a trigger does it, in the same statement.
var operate = newText(`
INSERT INTO rate_limit_audit (at_micros, policy, key, other_key, used, action, until_micros)
VALUES (` + clock + `, ?, ?, ?, 0, ?, ?)`)

// Operate implements ratelimit.Store.
func (s *Store) Operate(ctx context.Context, o ratelimit.Operation) error {
	var other any
	if o.Rotating {
		other = o.OtherKey
	}
	_, err := s.run(ctx, call{operate, []any{s.now(), o.Policy, o.Key, other, string(o.Action), o.UntilMicros}})
	return wrap(string(o.Action), err)
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
}

func newAnswer(entries []ratelimit.Entry) *answer {
	return &answer{
		entries: entries,
		rows:    make([]ratelimit.Row, len(entries)),
		seen:    make([]bool, len(entries)),
		missing: len(entries),
	}
}

// uncounted marks, in the column charged, what an exemption admitted and nothing counted.
const uncounted = -2

// written takes the rows that decide wrote: the time of the write is the time of the decision. What the policy says needs no
// way back.
func (a *answer) written(rows [][]string) error {
	for _, row := range rows {
		f, err := unpack(row, 11)
		if err != nil {
			return err
		}
		i := a.index(f.integer())
		if i < 0 {
			return errNonsense
		}
		policy := a.entries[i].Policy
		state := ratelimit.State{
			Algorithm: policy.Algorithm, WindowMicros: policy.Window.Microseconds(), Per: policy.Limit,
			HighMicros: f.integer(), BehindMicros: f.integer(), Epoch: f.integer(), Sequence: f.integer(), Used: f.integer(), Rest: f.integer(),
			Override: ratelimit.Override(f.integer()), UntilMicros: f.integer(),
		}
		charged := f.integer()
		state.Place = f.integer()
		written := ratelimit.Row{
			State: state, NowMicros: state.HighMicros - state.BehindMicros, Charged: charged > 0 || charged == uncounted, Uncounted: charged == uncounted,
		}
		if err := a.add(i, written, f); err != nil {
			return err
		}
	}
	return nil
}

// read takes the rows that were read after the decision. What decide wrote says more and stays.
func (a *answer) read(rows [][]string) error {
	for _, row := range rows {
		f, err := unpack(row, 17)
		if err != nil {
			return err
		}
		i := a.index(f.integer())
		if i < 0 {
			return errNonsense
		}
		if a.seen[i] {
			if a.rows[i].State.Vacant, err = f.vacancies(); err != nil {
				return err
			}
			continue
		}
		state := ratelimit.State{
			Algorithm: ratelimit.Algorithm(f.integer()), WindowMicros: f.integer(), Per: f.integer(), HighMicros: f.integer(), BehindMicros: f.integer(),
			PassedMicros: f.integer(), Epoch: f.integer(), Sequence: f.integer(), Used: f.integer(), Rest: f.integer(), RefusedMicros: f.integer(),
			Override: ratelimit.Override(f.integer()), UntilMicros: f.integer(), SaidMicros: f.integer(),
		}
		now := f.integer()
		if state.Vacant, err = f.vacancies(); err != nil {
			return err
		}
		if err := a.add(i, ratelimit.Row{State: state, NowMicros: now}, f); err != nil {
			return err
		}
	}
	return nil
}

// index finds the entry of a key; -1 if there is none. There are 16 at the most.
func (a *answer) index(key int64) int {
	return slices.IndexFunc(a.entries, func(entry ratelimit.Entry) bool { return entry.Key == key })
}

func (a *answer) add(i int, row ratelimit.Row, f *fields) (err error) {
	if f.err != nil || a.seen[i] {
		return errNonsense
	}
	if row.State.Algorithm == ratelimit.SlidingLog {
		row.State.Log, err = decodeLog(f.log, row.State.Rest)
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

// errNonsense is the error of a result that the statement can't have.
var errNonsense = errors.New("sqlstore: the database answered what was not asked for")

// fields are the integers of a packed row, and the log behind them.
type fields struct {
	rest string
	log  string
	err  error
}

// unpack reads a row of so many integers and a log.
func unpack(row []string, integers int) (*fields, error) {
	if len(row) != 1 || strings.Count(row[0], " ") != integers {
		return nil, errNonsense
	}
	end := strings.LastIndexByte(row[0], ' ')
	return &fields{rest: row[0][:end], log: row[0][end+1:]}, nil
}

// integer gives the next one; what is none is kept as the error.
func (f *fields) integer() int64 {
	text, rest, _ := strings.Cut(f.rest, " ")
	f.rest = rest
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f.err = err
	}
	return n
}

// vacancies reads the last field before the log: a queue's vacant places.
func (f *fields) vacancies() (all []ratelimit.Vacancy, err error) {
	text := f.rest[strings.LastIndexByte(f.rest, ' ')+1:]
	if text == "" {
		return nil, nil
	}
	for vacancy := range strings.SplitSeq(text, ",") {
		var v ratelimit.Vacancy
		for i, part := range strings.Split(vacancy, ":") {
			if i > 2 {
				return nil, errNonsense
			}
			if *[...]*int64{&v.ChargedMicros, &v.End, &v.Units}[i], err = strconv.ParseInt(part, 10, 64); err != nil {
				return nil, errNonsense
			}
		}
		all = append(all, v)
	}
	return all, nil
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
