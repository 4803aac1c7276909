package sms

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/weirlimits/weir/lib/tables"
)

// OutboxConfig says how an Outbox works. The zero value is for use.
type OutboxConfig struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Outbox is a Gateway where there is none: it keeps each message in the table that mail has too, for whoever runs the
// application to read. There a message goes as mail does: see mail.Outbox, whose Sweep takes it along. It holds no state besides db
// and may be used by many goroutines and processes.
type Outbox struct {
	db     *sql.DB
	config OutboxConfig
}

// NewOutbox makes an Outbox on db, which the caller opens, migrates and closes.
func NewOutbox(db *sql.DB, config OutboxConfig) *Outbox {
	return &Outbox{db: db, config: config}
}

// put is one INSERT. The table's trigger takes a few of the oldest messages away in the same statement.
const put = `
INSERT INTO outbox (message_id, recipient, subject, body, created_micros)
VALUES ('', ?, 'SMS', ?, coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))`

// Send implements Gateway. The only errors are ErrMessage and ErrStore.
func (o *Outbox) Send(ctx context.Context, message Message) error {
	if err := message.check(); err != nil {
		return err
	}
	if _, err := o.db.ExecContext(ctx, put, message.To, message.Text, tables.Now(o.config.Now)); err != nil {
		return fmt.Errorf("%w: put a message into the outbox: %w", ErrStore, err)
	}
	return nil
}
