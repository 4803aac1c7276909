// Package alerts keeps what an operator should hear of, and sends it. What raises an alert is db/migrations: a trigger, in the
// statement that audits a refusal, or that begins an attack.
package alerts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirlimits/weir/lib/tables"
)

// The kinds of alerts.
const (
	// RepeatedRefusals says: the limit of one account refused in three windows within an hour. The trigger alerts_raise has the
	// figures.
	RepeatedRefusals = "repeated-refusals"
	// CredentialStuffing says: an attack on passwords all over began, see lib/stuffing.
	CredentialStuffing = "credential-stuffing"
)

// Attempts is how often an alert is offered to its receiver at the most. After the first attempt the next is due in a minute,
// after each further one in twice as long, and so the last about eight and a half hours after the first.
const Attempts = 10

const firstRetry = time.Minute

// MaxAge is how old an alert may be to be sent. What was raised before anybody wanted to hear of it is no news.
const MaxAge = 72 * time.Hour

// The bounds of one Send: alerts that are offered, and the time that has to be left to offer one, since an attempt that is
// cut short is an attempt less.
const (
	sendAlerts  = 20
	minSendTime = 500 * time.Millisecond
)

// sweepRows bounds one statement of Sweep: few enough that nobody waits long for the writer. passingRows is what goes along
// with alerts that are sent.
const (
	sweepRows   = 500
	passingRows = 8
)

// ErrStore means that the database did not answer, or answered nonsense. ErrSend means that an alert was not taken, and is
// tried again unless that was its last attempt.
var (
	ErrStore = errors.New("alerts: database")
	ErrSend  = errors.New("alerts: not sent")
)

// Alert is one of an episode: windows with refusals, of which no two that follow each other lie more than an hour apart, and
// after a day an episode that goes on raises another; or an attack, from its begin to its end.
type Alert struct {
	ID       int64 // grows with time, and is never used again
	At       time.Time
	Kind     string
	Policy   string
	Key      int64 // of the subject, as in the audit: an HMAC; or the number of an attack
	Windows  int64 // with a refusal up to now; or minutes in which an attack was seen
	Last     time.Time
	Attempts int64     // to send it, up to now
	Next     time.Time // when the next attempt is due; zero when there is none any more
	Sent     time.Time // zero until the receiver took it
	Figures  string    // of an attack, when it began: stuffing.Figures in JSON
}

// Sender offers an alert to whoever should hear of it. An error means that it may not have been
// taken: then it is offered again, so that a receiver may get it twice and tells that by Alert.ID
// and Alert.At. If the error, or one that it wraps, has a method RetryAfter() time.Duration, the
// receiver is not asked before that time is over, for no alert.
type Sender interface {
	Send(ctx context.Context, alert Alert) error
}

// Config says how Alerts work. The zero value sends nothing and keeps everything.
type Config struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
	// Sender is who alerts are sent by. Nil: they are only kept.
	Sender Sender
	// Retention is how long an alert is kept after its last window. Zero means for ever.
	Retention time.Duration
}

// Alerts may be used by many goroutines and processes. Its only state besides db is when its
// receiver may be asked again.
type Alerts struct {
	db     *sql.DB
	config Config
	asked  atomic.Int64 // not before these microseconds since 1970, by clock
}

// New makes Alerts on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Alerts {
	return &Alerts{db: db, config: config}
}

const columns = `id, at_micros, kind, policy, key, windows, last_micros, attempts, next_micros, sent_micros, figures`

const page = `
SELECT ` + columns + `
FROM alerts
WHERE id < ?
ORDER BY id DESC
LIMIT ?`

// Page reads alerts, newest first: at most limit whose ids are below one. An error matches ErrStore.
func (a *Alerts) Page(ctx context.Context, below int64, limit int) ([]Alert, error) {
	rows, err := a.db.QueryContext(ctx, page, below, limit)
	if err != nil {
		return nil, fmt.Errorf("%w: read a page: %w", ErrStore, err)
	}
	defer rows.Close()
	var all []Alert
	for rows.Next() {
		alert, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("%w: read a page: %w", ErrStore, err)
		}
		all = append(all, alert)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%w: read a page: %w", ErrStore, err)
	}
	return all, nil
}

func scan(row interface{ Scan(...any) error }) (Alert, error) {
	var a Alert
	var at, last int64
	var next, sent sql.NullInt64
	var figures sql.NullString
	err := row.Scan(&a.ID, &at, &a.Kind, &a.Policy, &a.Key, &a.Windows, &last, &a.Attempts, &next, &sent, &figures)
	a.Figures = figures.String
	a.At, a.Last = time.UnixMicro(at).UTC(), time.UnixMicro(last).UTC()
	if next.Valid {
		a.Next = time.UnixMicro(next.Int64).UTC()
	}
	if sent.Valid {
		a.Sent = time.UnixMicro(sent.Int64).UTC()
	}
	return a, err
}

// claim takes the alert that has been due for longest, and makes its next attempt due later, or never: one statement, so that
// of any number of senders at once one gets it. Should that one end before it has sent the alert, it is due again then.
//
// The term IS NOT NULL says nothing new, but without it the Turso engine doesn't use the index.
const claim = `
UPDATE alerts
SET
  attempts    = attempts + 1,
  next_micros = CASE
    WHEN attempts + 1 >= ? THEN NULL
    ELSE coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + (? << attempts)
  END
WHERE id = (
  SELECT id
  FROM alerts
  WHERE next_micros IS NOT NULL
    AND next_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
    AND at_micros > coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?
  ORDER BY next_micros
  LIMIT 1
)
RETURNING ` + columns

const sent = `
UPDATE alerts
SET
  next_micros = NULL,
  sent_micros = coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
WHERE id = ?`

// postpone makes an alert due when its receiver said, and every other not before: the receiver's
// word is about all of them.
const postpone = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE alerts
SET next_micros = (SELECT now FROM clock) + CASE id WHEN ? THEN ? ELSE ? END
WHERE next_micros IS NOT NULL
  AND (id = ? OR next_micros < (SELECT now FROM clock) + ?)`

// told takes a receiver's word of when it may be asked again; false if it gave none. The first half
// of the attempts may come sooner than they would by themselves; the others not, so that a receiver
// which says "soon" for hours doesn't use up all of them.
func (a *Alerts) told(ctx context.Context, alert Alert, err error) (bool, error) {
	var word interface{ RetryAfter() time.Duration }
	if !errors.As(err, &word) || word.RetryAfter() <= 0 {
		return false, nil
	}
	all := word.RetryAfter()
	own := all
	if alert.Attempts > Attempts/2 {
		own = max(own, firstRetry<<(alert.Attempts-1))
	}
	a.asked.Store(a.clock().Add(all).UnixMicro())
	_, err = a.db.ExecContext(context.WithoutCancel(ctx), postpone,
		a.now(), alert.ID, own.Microseconds(), all.Microseconds(), alert.ID, all.Microseconds())
	return true, err
}

// clock returns the time by which this process remembers its receiver's word.
func (a *Alerts) clock() time.Time {
	if a.config.Now != nil {
		return a.config.Now()
	}
	return time.Now()
}

// Send offers the alerts that are due to Config.Sender, one after the other, as long as ctx lasts,
// and says how many were taken. One that isn't taken doesn't keep the others back, unless the
// receiver says when it wants to be asked again. The error joins what went wrong: ErrSend for each
// of those, or ErrStore, which ends it.
func (a *Alerts) Send(ctx context.Context) (taken int, err error) {
	if a.config.Sender == nil || a.clock().UnixMicro() < a.asked.Load() {
		return 0, nil
	}
	var failures []error
	for i := range sendAlerts {
		if end, bounded := ctx.Deadline(); ctx.Err() != nil || bounded && time.Until(end) < minSendTime {
			break
		}
		alert, err := scan(a.db.QueryRowContext(ctx, claim,
			Attempts, a.now(), firstRetry.Microseconds(), a.now(), a.now(), MaxAge.Microseconds()))
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err == nil && i == 0 && a.config.Retention > 0 {
			_, err = tables.Deleted(a.db.QueryContext(ctx, sweep, passingRows, a.now(), a.config.Retention.Microseconds()))
		}
		if err != nil {
			return taken, errors.Join(append(failures, fmt.Errorf("%w: send: %w", ErrStore, err))...)
		}
		if err := a.config.Sender.Send(ctx, alert); err != nil {
			failures = append(failures, fmt.Errorf("%w: alert %d, attempt %d of %d: %w", ErrSend, alert.ID, alert.Attempts, Attempts, err))
			told, err := a.told(ctx, alert, err)
			if err != nil {
				failures = append(failures, fmt.Errorf("%w: postpone alerts: %w", ErrStore, err))
			}
			if told {
				break
			}
			continue
		}
		taken++
		// The time for sending may be over: what was sent is to be known as sent all the same.
		if _, err := a.db.ExecContext(context.WithoutCancel(ctx), sent, a.now(), alert.ID); err != nil {
			return taken, errors.Join(append(failures, fmt.Errorf("%w: mark an alert as sent: %w", ErrStore, err))...)
		}
	}
	return taken, errors.Join(failures...)
}

// sweep looks at the oldest alerts and deletes those whose time is over. Ids grow, so that they are in the order of time and
// no index is needed.
const sweep = `
DELETE FROM alerts
WHERE id IN (SELECT id FROM alerts ORDER BY id LIMIT ?)
  AND last_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?
RETURNING id`

// Sweep deletes the alerts that are older than Config.Retention, as long as ctx lasts, and says how many, and whether none is
// left. An error matches ErrStore; what was deleted until then is gone.
func (a *Alerts) Sweep(ctx context.Context) (deleted int64, done bool, err error) {
	if a.config.Retention <= 0 {
		return 0, true, nil
	}
	deleted, done, err = tables.Sweep(ctx, sweepRows, func() (*sql.Rows, error) {
		return a.db.QueryContext(ctx, sweep, sweepRows, a.now(), a.config.Retention.Microseconds())
	})
	if err != nil {
		err = fmt.Errorf("%w: sweep: %w", ErrStore, err)
	}
	return deleted, done, err
}

// now is the argument that replaces the database's clock, nil to use it.
func (a *Alerts) now() any { return tables.Now(a.config.Now) }
