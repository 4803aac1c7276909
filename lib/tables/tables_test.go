package tables_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/tables"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

func TestNowIsTheClockThatIsGivenOrTheDatabases(t *testing.T) {
	if got := tables.Now(nil); got != nil {
		t.Errorf("without a clock: %v", got)
	}
	if got := tables.Now(func() time.Time { return time.UnixMicro(1_234_567_891) }); got != int64(1_234_567_891) {
		t.Errorf("got %v", got)
	}
}

// Case A21: a sweep goes on until a step finds less than it may take.
func TestASweepTakesWhatIsOverStepByStep(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		if _, err := db.Exec("CREATE TABLE t (a INTEGER PRIMARY KEY) STRICT"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("INSERT INTO t VALUES (1), (2), (3), (4), (5), (6), (7)"); err != nil {
			t.Fatal(err)
		}
		steps := 0
		step := func() (*sql.Rows, error) {
			steps++
			return db.QueryContext(t.Context(), "DELETE FROM t WHERE a IN (SELECT a FROM t ORDER BY a LIMIT 3) AND a < 7 RETURNING a")
		}
		if deleted, done, err := tables.Sweep(t.Context(), 3, step); deleted != 6 || !done || err != nil || steps != 3 {
			t.Errorf("%d deleted in %d steps, done %t, %v; want 6 in 3, true", deleted, steps, done, err)
		}
	})
}

func TestASweepTellsHowFarItCame(t *testing.T) {
	db := databases.File(t)
	broken := errors.New("broken")
	one := func() (*sql.Rows, error) { return db.QueryContext(t.Context(), "SELECT 1") }
	ctx, cancel := context.WithCancel(t.Context())
	steps := 0
	ending := func() (*sql.Rows, error) {
		if steps++; steps == 3 {
			cancel()
			return nil, context.Canceled
		}
		return one()
	}
	if deleted, done, err := tables.Sweep(ctx, 1, ending); deleted != 2 || done || err != nil {
		t.Errorf("when its time is over: %d, %t, %v; want 2, false, no error", deleted, done, err)
	}
	steps = 0
	failing := func() (*sql.Rows, error) {
		if steps++; steps == 3 {
			return nil, broken
		}
		return one()
	}
	if deleted, done, err := tables.Sweep(t.Context(), 1, failing); deleted != 2 || done || !errors.Is(err, broken) {
		t.Errorf("after an error: %d, %t, %v; want 2, false, %v", deleted, done, err, broken)
	}
}
