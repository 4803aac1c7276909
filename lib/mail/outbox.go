package mail

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/weirlimits/weir/lib/tables"
)

// Keep is how long a message stays in the outbox. The trigger outbox_sweep has the same figure.
const Keep = 24 * time.Hour

// sweepRows bounds one statement of Sweep: few enough that nobody waits long for the writer.
const sweepRows = 500

// OutboxConfig says how an Outbox works. The zero value is for use.
type OutboxConfig struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Outbox is a Sender where there is no mail server: it keeps each message in a table, for whoever runs the application to
// read, and lets it go after Keep. It holds no state besides db and may be used by many goroutines and processes.
type Outbox struct {
	db     *sql.DB
	config OutboxConfig
}

// NewOutbox makes an Outbox on db, which the caller opens, migrates and closes.
func NewOutbox(db *sql.DB, config OutboxConfig) *Outbox {
	return &Outbox{db: db, config: config}
}

// put is one INSERT. The trigger outbox_sweep takes a few of the oldest messages away in the same statement, if their time is
// over.
const put = `
INSERT INTO outbox (message_id, recipient, subject, body, created_micros)
VALUES (?, ?, ?, ?, coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))`

// Send implements Sender. The only errors are ErrMessage and ErrStore.
func (o *Outbox) Send(ctx context.Context, message Message) error {
	message, err := message.checked()
	if err != nil {
		return err
	}
	if _, err := o.db.ExecContext(ctx, put, message.ID, message.To, message.Subject, message.Text, o.now()); err != nil {
		return fmt.Errorf("%w: put a message into the outbox: %w", ErrStore, err)
	}
	return nil
}

// sweep looks at the oldest messages and deletes those whose time is over. Ids grow, so that they are in the order of time and
// no index is needed.
const sweep = `
DELETE FROM outbox
WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT ?)
  AND created_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - ?
RETURNING id`

// Sweep deletes the messages whose time is over, as long as ctx lasts, and says how many, and whether none is left. An error
// matches ErrStore; what was deleted until then is gone.
func (o *Outbox) Sweep(ctx context.Context) (deleted int64, done bool, err error) {
	deleted, done, err = tables.Sweep(ctx, sweepRows, func() (*sql.Rows, error) {
		return o.db.QueryContext(ctx, sweep, sweepRows, o.now(), Keep.Microseconds())
	})
	if err != nil {
		err = fmt.Errorf("%w: sweep the outbox: %w", ErrStore, err)
	}
	return deleted, done, err
}

// now is the argument that replaces the database's clock, nil to use it.
func (o *Outbox) now() any { return tables.Now(o.config.Now) }
