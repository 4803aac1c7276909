// Package stuffing tells when passwords are tried all over: it counts sign-ins and who fails by the minute, judges these
// figures by their own past, and keeps the attacks that it finds.
//
// The schema and what raises an alert are in db/migrations: a trigger, in the statement that begins an attack.
package stuffing

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirlimits/weir/lib/tables"
)

// ErrStore means that the database did not answer, or answered nonsense.
var ErrStore = errors.New("stuffing: database")

// Remember is how long a process goes by what it last read of whether an attack is on.
const Remember = 10 * time.Second

// How long figures are kept: counts for as long as they are a past, registers for longer than a window is.
const (
	countMinutes    = pastDays*dayMinutes + 2*aroundMinutes
	registerMinutes = 2 * longMinutes
)

// The bounds of deleting: a sweep's step, and what goes along with looking at a minute, which is more than any minute adds.
const (
	sweepRows   = 500
	passingRows = 2*registers + 8
)

// keyUse keeps the key apart from everything else that the secret is for.
const keyUse = "weir: figures of sign-ins"

// Config says how a Detector works. Secret is required to observe anything.
type Config struct {
	// Now replaces the database's clock, and the process's in what is remembered, for tests. Nil means these clocks.
	Now func() time.Time
	// Secret keys the HMACs that say which register somebody is in. While it changes, some may be counted twice for the hour
	// of a window; never beyond the failures.
	Secret []byte
	// Thresholds say what an attack is.
	Thresholds Thresholds
}

// Detector counts and judges. Besides what it remembers for a moment it holds no state but db, and may be used by many
// goroutines and, over one database, by many processes.
type Detector struct {
	db         *sql.DB
	config     Config
	thresholds Thresholds
	key        []byte

	mu     sync.Mutex
	on     bool
	readAt time.Time // zero: never
}

// New makes a Detector on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Detector {
	mac := hmac.New(sha256.New, config.Secret)
	mac.Write([]byte(keyUse))
	return &Detector{db: db, config: config, thresholds: config.Thresholds.withDefaults(), key: mac.Sum(nil)}
}

// Where a figure is in sign_in_figures.
const (
	countsPerMinute = 2
	successesRow    = 0
	failuresRow     = 1

	registersBegin = 1 << 40
	rowsPerMinute  = 1024
	accountsRow    = 0
	addressesRow   = registers
	markRow        = 2 * registers

	microsPerMinute = 60_000_000
)

// observe counts an attempt in the minute that it is made in. It is one upsert, under the engine's write lock from the first
// read to the last write, so that no count is lost and a register keeps the highest rank, whoever writes at once. A register
// that has a rank as high, and a mark that is there, are skipped and write nothing; the mark's id is returned to the one
// process that set it.
const observe = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO sign_in_figures (id, value)
SELECT
  now / 60000000 * json_extract(entry.value, '$[0]') + json_extract(entry.value, '$[1]'),
  json_extract(entry.value, '$[2]')
FROM json_each(?) AS entry CROSS JOIN clock
WHERE true
ON CONFLICT (id) DO UPDATE
SET value = CASE WHEN id < 1099511627776 THEN value + excluded.value ELSE excluded.value END
WHERE id < 1099511627776 OR excluded.value > value
RETURNING id`

// Observe counts an attempt to sign in: whether its password was wrong, for whom, and where from, both in the form that limits
// count by. Who is the first in a minute looks at the minutes before it; seen is true when these show an attack. An error
// matches ErrStore, and means that the attempt may not be counted, or the minutes not be looked at.
func (d *Detector) Observe(ctx context.Context, account, address string, failed bool) (seen bool, err error) {
	minute, first, err := d.count(ctx, account, address, failed)
	if err != nil {
		return false, fmt.Errorf("%w: count a sign-in: %w", ErrStore, err)
	}
	if !first {
		return false, nil
	}
	seen, err = d.look(ctx, minute)
	if err == nil {
		_, err = tables.Deleted(d.sweep(ctx, minute, passingRows))
	}
	if err != nil {
		return seen, fmt.Errorf("%w: look at the minutes before: %w", ErrStore, err)
	}
	return seen, nil
}

// count adds an attempt to the figures of its minute, and says whether this is for the caller to look at the minutes before.
func (d *Detector) count(ctx context.Context, account, address string, failed bool) (minute int64, first bool, err error) {
	mark := [3]int64{rowsPerMinute, registersBegin + markRow, 1}
	entries := [][3]int64{{countsPerMinute, successesRow, 1}, mark}
	if failed {
		register, rank := position(d.key, "account", account)
		addressRegister, addressRank := position(d.key, "address", address)
		entries = [][3]int64{
			{countsPerMinute, failuresRow, 1},
			{rowsPerMinute, registersBegin + accountsRow + register, rank},
			{rowsPerMinute, registersBegin + addressesRow + addressRegister, addressRank},
			mark,
		}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return 0, false, err
	}
	rows, err := d.db.QueryContext(ctx, observe, d.now(), string(text))
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return 0, false, err
		}
		if row := id - registersBegin; row > 0 && row%rowsPerMinute == markRow {
			minute, first = row/rowsPerMinute, true
		}
	}
	return minute, first, rows.Err()
}

// look begins an attack or has it go on if the minutes before one show it.
func (d *Detector) look(ctx context.Context, minute int64) (bool, error) {
	found, err := d.thresholds.look(minute, stored{ctx, d})
	if found == nil || err != nil {
		return false, err
	}
	return true, d.keep(ctx, *found)
}

// stored is the source of what the database has.
type stored struct {
	ctx context.Context
	d   *Detector
}

// sums adds up what was counted in some spans of time, each by its place in the primary key.
const sums = `
SELECT
  coalesce(sum(CASE WHEN figure.id % 2 = 1 THEN figure.value ELSE 0 END), 0),
  coalesce(sum(CASE WHEN figure.id % 2 = 0 THEN figure.value ELSE 0 END), 0)
FROM json_each(?) AS span
LEFT JOIN sign_in_figures AS figure
  ON figure.id >= json_extract(span.value, '$[0]') AND figure.id < json_extract(span.value, '$[1]')
GROUP BY span.key
ORDER BY span.key`

func (s stored) windows(spans []span) ([]Window, error) {
	var ids [][2]int64
	for _, span := range spans {
		ids = append(ids, [2]int64{span.from * countsPerMinute, span.to * countsPerMinute})
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	rows, err := s.d.db.QueryContext(s.ctx, sums, string(text))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var windows []Window
	for rows.Next() && len(windows) < len(spans) {
		span := spans[len(windows)]
		w := Window{Minutes: span.to - span.from}
		if err := rows.Scan(&w.Failures, &w.Successes); err != nil {
			return nil, err
		}
		windows = append(windows, w)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(windows) != len(spans) {
		return nil, fmt.Errorf("%d sums, want %d", len(windows), len(spans))
	}
	return windows, nil
}

// attackTimes are those of the attacks that count as such: not of what an operator ended, which was none, or is known.
const attackTimes = `
SELECT begun_micros, last_micros
FROM attacks
WHERE ended_micros IS NULL AND last_micros >= ?`

func (s stored) attacks(since int64) ([]span, error) {
	rows, err := s.d.db.QueryContext(s.ctx, attackTimes, since*microsPerMinute)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var attacks []span
	for rows.Next() {
		var begun, last int64
		if err := rows.Scan(&begun, &last); err != nil {
			return nil, err
		}
		attacks = append(attacks, span{begun / microsPerMinute, last/microsPerMinute + 1})
	}
	return attacks, rows.Err()
}

// unite makes one sketch of each kind of those of some minutes: the highest rank of each register.
const unite = `
SELECT kind, count(*), sum(1 << (32 - rank))
FROM (
  SELECT id % 1024 / 256 AS kind, id % 256 AS register, max(value) AS rank
  FROM sign_in_figures
  WHERE id >= ? AND id < ? AND id % 1024 < 512
  GROUP BY id % 1024 / 256, id % 256
)
GROUP BY kind`

func (s stored) distinct(w span) (accounts, addresses sketch, err error) {
	rows, err := s.d.db.QueryContext(s.ctx, unite, registersBegin+w.from*rowsPerMinute, registersBegin+w.to*rowsPerMinute)
	if err != nil {
		return sketch{}, sketch{}, err
	}
	defer rows.Close()
	var sketches [2]sketch
	for rows.Next() {
		var kind int64
		var one sketch
		if err := rows.Scan(&kind, &one.filled, &one.powers); err != nil {
			return sketch{}, sketch{}, err
		}
		if kind < 0 || kind > 1 || one.filled > registers {
			return sketch{}, sketch{}, fmt.Errorf("%d registers of the kind %d", one.filled, kind)
		}
		sketches[kind] = one
	}
	return sketches[0], sketches[1], rows.Err()
}

// goOn notes that the attack that is or was on was seen again. Times count in both directions, so that a clock that stepped back neither
// hides an attack nor keeps one on.
const goOn = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE attacks
SET last_micros = (SELECT now FROM clock)
WHERE id = (
  SELECT max(id)
  FROM attacks CROSS JOIN clock
  WHERE ended_micros IS NULL AND last_micros BETWEEN now - ? AND now + ?
)
RETURNING id`

// begin begins an attack, and by a trigger raises its alert, unless one goes on or was ended by an operator just now. It looks
// and inserts in one statement, under the write lock: of two at once the second sees what the first one began.
const begin = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO attacks (begun_micros, last_micros, figures)
SELECT now, now, ?
FROM clock
WHERE 0 = (
  SELECT count(*)
  FROM attacks CROSS JOIN clock
  WHERE ended_micros IS NULL AND last_micros BETWEEN now - ? AND now + ?
    OR ended_micros BETWEEN now - ? AND now + ?
)
RETURNING id`

// keep has an attack go on, or begins one.
func (d *Detector) keep(ctx context.Context, f Figures) error {
	var id int64
	same, peace := Same.Microseconds(), Peace.Microseconds()
	err := d.db.QueryRowContext(ctx, goOn, d.now(), same, same).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		var text []byte
		if text, err = json.Marshal(f); err != nil {
			return err
		}
		err = d.db.QueryRowContext(ctx, begin, d.now(), string(text), same, same, peace, peace).Scan(&id)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows): // an operator wants peace
		return nil
	case err != nil:
		return err
	}
	d.learn(true)
	return nil
}

const isOn = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
SELECT count(*)
FROM attacks CROSS JOIN clock
WHERE ended_micros IS NULL AND last_micros BETWEEN now - ? AND now + ?`

// Remembered says what this process knows of whether an attack is on, and whether it read that within Remember.
func (d *Detector) Remembered() (on, fresh bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	age := d.clock().Sub(d.readAt)
	return d.on, !d.readAt.IsZero() && age >= 0 && age < Remember
}

// Read asks the database whether an attack is on: until Quiet has passed since it was last seen, or an operator ended it. The
// process remembers the answer. An error matches ErrStore; then what was known counts as fresh again, so that not every request
// waits for a database that is silent.
func (d *Detector) Read(ctx context.Context) (on bool, err error) {
	var n int64
	if err := d.db.QueryRowContext(ctx, isOn, d.now(), Quiet.Microseconds(), Quiet.Microseconds()).Scan(&n); err != nil {
		on, _ := d.Remembered()
		d.learn(on)
		return on, fmt.Errorf("%w: is an attack on: %w", ErrStore, err)
	}
	d.learn(n > 0)
	return n > 0, nil
}

func (d *Detector) learn(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on, d.readAt = on, d.clock()
}

// end ends what is on.
const end = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE attacks
SET ended_micros = (SELECT now FROM clock)
WHERE id IN (
  SELECT id
  FROM attacks CROSS JOIN clock
  WHERE ended_micros IS NULL AND last_micros BETWEEN now - ? AND now + ?
)
RETURNING id`

// End ends the attack that is on, at an operator's word: the response to it ends with it, in each process within Remember. Its
// minutes count as normal from then on, and none begins within Peace. ended is false when none is on. An error matches
// ErrStore.
func (d *Detector) End(ctx context.Context) (ended bool, err error) {
	n, err := tables.Deleted(d.db.QueryContext(ctx, end, d.now(), Quiet.Microseconds(), Quiet.Microseconds()))
	if err != nil {
		return false, fmt.Errorf("%w: end an attack: %w", ErrStore, err)
	}
	d.learn(false)
	return n > 0, nil
}

// Attack is one that was found.
type Attack struct {
	ID          int64
	Begun, Last time.Time // when it was first and last seen
	Ended       time.Time // when an operator ended it; zero otherwise
	Figures     Figures
}

// list reads the newest attacks.
const list = `
SELECT id, begun_micros, last_micros, coalesce(ended_micros, 0), figures
FROM attacks
ORDER BY id DESC
LIMIT ?`

// List gives the newest attacks, at most so many, newest first. An error matches ErrStore.
func (d *Detector) List(ctx context.Context, most int) ([]Attack, error) {
	rows, err := d.db.QueryContext(ctx, list, most)
	if err != nil {
		return nil, fmt.Errorf("%w: list attacks: %w", ErrStore, err)
	}
	defer rows.Close()
	var all []Attack
	for rows.Next() {
		var a Attack
		var begun, last, ended int64
		var text string
		if err := rows.Scan(&a.ID, &begun, &last, &ended, &text); err != nil {
			return nil, fmt.Errorf("%w: list attacks: %w", ErrStore, err)
		}
		if err := json.Unmarshal([]byte(text), &a.Figures); err != nil {
			return nil, fmt.Errorf("%w: list attacks: %w", ErrStore, err)
		}
		a.Begun, a.Last = time.UnixMicro(begun).UTC(), time.UnixMicro(last).UTC()
		if ended > 0 {
			a.Ended = time.UnixMicro(ended).UTC()
		}
		all = append(all, a)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%w: list attacks: %w", ErrStore, err)
	}
	return all, nil
}

// minuteNow gives the minute that it is.
const minuteNow = `
SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) / 60000000`

// drop deletes figures whose time is over: spans of the primary key.
const drop = `
DELETE FROM sign_in_figures
WHERE id IN (
  SELECT figure.id
  FROM json_each(?) AS span
  JOIN sign_in_figures AS figure
    ON figure.id >= json_extract(span.value, '$[0]') AND figure.id < json_extract(span.value, '$[1]')
  LIMIT ?
)
RETURNING id`

func (d *Detector) sweep(ctx context.Context, minute, most int64) (*sql.Rows, error) {
	text, err := json.Marshal([][2]int64{
		{registersBegin, registersBegin + (minute-registerMinutes)*rowsPerMinute},
		{0, (minute - countMinutes) * countsPerMinute},
	})
	if err != nil {
		return nil, err
	}
	return d.db.QueryContext(ctx, drop, string(text), most)
}

// dropAttacks deletes the attacks that are no part of any past.
const dropAttacks = `
DELETE FROM attacks
WHERE last_micros < ?
RETURNING id`

// Sweep deletes what is older than any past that is looked at, as long as ctx lasts, and says how many rows, and whether none is
// left. An error matches ErrStore; what was deleted until then is gone.
func (d *Detector) Sweep(ctx context.Context) (deleted int64, done bool, err error) {
	var minute int64
	if err := d.db.QueryRowContext(ctx, minuteNow, d.now()).Scan(&minute); err != nil {
		if ctx.Err() != nil {
			return 0, false, nil
		}
		return 0, false, fmt.Errorf("%w: sweep: %w", ErrStore, err)
	}
	deleted, done, err = tables.Sweep(ctx, sweepRows, func() (*sql.Rows, error) { return d.sweep(ctx, minute, sweepRows) })
	if err == nil && done {
		var attacks int64
		attacks, err = tables.Deleted(d.db.QueryContext(ctx, dropAttacks, (minute-2*countMinutes)*microsPerMinute))
		deleted += attacks
	}
	if err != nil {
		err = fmt.Errorf("%w: sweep: %w", ErrStore, err)
	}
	return deleted, done, err
}

// now is the argument that replaces the database's clock, nil to use it.
func (d *Detector) now() any { return tables.Now(d.config.Now) }

// clock is the process's, which decides nothing but how long something is remembered.
func (d *Detector) clock() time.Time {
	if d.config.Now == nil {
		return time.Now()
	}
	return d.config.Now()
}
