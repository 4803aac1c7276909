package mail

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

func at(db *sql.DB, now *time.Time) *Outbox {
	return NewOutbox(db, OutboxConfig{Now: func() time.Time { return *now }})
}

func ids(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT message_id FROM outbox ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		all = append(all, id)
	}
	return all
}

func put1(t *testing.T, o *Outbox, id string) {
	t.Helper()
	message := hello()
	message.ID = id
	if err := o.Send(t.Context(), message); err != nil {
		t.Fatal(err)
	}
}

func TestAMessageInTheOutboxIsTheMessage(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		message := Message{To: "someone@example.org", Subject: "Grüße", Text: ".\nÄ 🌊 'quoted' \"twice\" \\\n\t", ID: "id-1"}
		if err := at(opened.DB, &now).Send(t.Context(), message); err != nil {
			t.Fatal(err)
		}
		var got Message
		var micros int64
		err := opened.QueryRowContext(t.Context(), `SELECT message_id, recipient, subject, body, created_micros FROM outbox`).
			Scan(&got.ID, &got.To, &got.Subject, &got.Text, &micros)
		if err != nil || got != message || micros != start.UnixMicro() {
			t.Errorf("got %+v at %d, %v", got, micros, err)
		}
		message.Subject = "Hello\r\nBcc: other@example.org"
		if err := at(opened.DB, &now).Send(t.Context(), message); !errors.Is(err, ErrMessage) {
			t.Errorf("a forged header: %v", err)
		}
		if n := len(ids(t, opened.DB)); n != 1 {
			t.Errorf("%d messages", n)
		}
	})
}

func TestAMessageGoesWithANewOneAfterTwentyFourHours(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		o := at(opened.DB, &now)
		put1(t, o, "first")
		now = start.Add(time.Hour)
		put1(t, o, "second")
		now = start.Add(Keep - time.Microsecond)
		put1(t, o, "third")
		if got := fmt.Sprint(ids(t, opened.DB)); got != "[first second third]" {
			t.Errorf("a moment before: %s", got)
		}
		now = start.Add(Keep)
		put1(t, o, "fourth")
		if got := fmt.Sprint(ids(t, opened.DB)); got != "[second third fourth]" {
			t.Errorf("at 24 hours: %s", got)
		}
	})
}

func TestANewMessageTakesAFewOldOnesAndTheSweepTakesAll(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		o := at(db, &now)
		const old = 2*sweepRows + 20
		_, err := db.ExecContext(t.Context(), `
			INSERT INTO outbox (message_id, recipient, subject, body, created_micros)
			SELECT 'old', 'someone@example.org', 'x', 'x', ? FROM json_each(?)`,
			start.UnixMicro(), "[1"+strings.Repeat(",1", old-1)+"]")
		if err != nil {
			t.Fatal(err)
		}
		before := len(ids(t, db))
		now = start.Add(Keep - time.Microsecond)
		if deleted, done, err := o.Sweep(t.Context()); deleted != 0 || !done || err != nil {
			t.Fatalf("a moment before: %d, %t, %v", deleted, done, err)
		}
		now = start.Add(Keep)
		put1(t, o, "new")
		if left := len(ids(t, db)); left != before-8+1 {
			t.Fatalf("%d of %d are left after a new one, want 8 old ones less", left, before)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if deleted, done, err := o.Sweep(ended); deleted != 0 || done || err != nil {
			t.Errorf("without time: %d, %t, %v", deleted, done, err)
		}
		if deleted, done, err := o.Sweep(t.Context()); deleted != int64(before-8) || !done || err != nil {
			t.Errorf("the sweep: %d, %t, %v; want %d", deleted, done, err, before-8)
		}
		if got := fmt.Sprint(ids(t, db)); got != "[new]" {
			t.Errorf("left are %s", got)
		}
	})
}

func TestTheOutboxWorksOnTheDatabasesOwnClock(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		o := NewOutbox(opened.DB, OutboxConfig{})
		before := time.Now().Add(-2 * time.Millisecond) // the clock has whole milliseconds
		put1(t, o, "first")
		if deleted, done, err := o.Sweep(t.Context()); deleted != 0 || !done || err != nil {
			t.Errorf("the sweep: %d, %t, %v", deleted, done, err)
		}
		var micros int64
		if err := opened.QueryRowContext(t.Context(), `SELECT created_micros FROM outbox`).Scan(&micros); err != nil {
			t.Fatal(err)
		}
		if got := time.UnixMicro(micros); got.Before(before) || got.After(time.Now().Add(2*time.Millisecond)) {
			t.Errorf("created at %v", got)
		}
	})
}

func TestAnOutboxThatFailsDoesNotSayThatNothingWasSent(t *testing.T) {
	db := databases.File(t)
	o := NewOutbox(db.DB, OutboxConfig{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Send(gone, hello()); !errors.Is(err, ErrStore) || !errors.Is(err, ErrUnknown) || !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotSent) {
		t.Errorf("send: %v", err)
	}
	if _, err := db.ExecContext(t.Context(), `DROP TABLE outbox`); err != nil {
		t.Fatal(err)
	}
	if err := o.Send(t.Context(), hello()); !errors.Is(err, ErrStore) {
		t.Errorf("send: %v", err)
	}
	if deleted, done, err := o.Sweep(t.Context()); deleted != 0 || done || !errors.Is(err, ErrStore) {
		t.Errorf("sweep: %d, %t, %v", deleted, done, err)
	}
}
