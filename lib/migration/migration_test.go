package migration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	migratedb "github.com/golang-migrate/migrate/v4/database"
	suite "github.com/golang-migrate/migrate/v4/database/testing"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

func openURL(t *testing.T, url string) *database.DB {
	t.Helper()
	db, err := database.Open(database.Config{URL: url, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func openFile(t *testing.T) *database.DB {
	return openURL(t, "file:"+filepath.Join(t.TempDir(), "weir.db"))
}

// onEach runs a test on an embedded file, on a Hrana server with SQLite behind it, and on the real
// servers.
func onEach(t *testing.T, test func(t *testing.T, db *database.DB)) {
	t.Run("embedded file", func(t *testing.T) { test(t, openFile(t)) })
	t.Run("Hrana server", func(t *testing.T) { test(t, openURL(t, hrana.Start(t, hrana.Config{}).URL)) })
	turso.Each(t, func(t *testing.T, server *turso.Server) { test(t, openURL(t, server.URL)) })
}

// files makes a tree of migrations: each argument is an up and a down file with "|" between them.
func files(migrations ...string) fs.FS {
	tree := fstest.MapFS{}
	for i, m := range migrations {
		up, down, _ := strings.Cut(m, "|")
		tree[fmt.Sprintf("%06d_test.up.sql", i+1)] = &fstest.MapFile{Data: []byte(up)}
		tree[fmt.Sprintf("%06d_test.down.sql", i+1)] = &fstest.MapFile{Data: []byte(down)}
	}
	return tree
}

var three = []string{
	"CREATE TABLE a (x INTEGER) STRICT;|DROP TABLE a;",
	"CREATE TABLE b (x INTEGER) STRICT; -- the last|DROP TABLE b;",
	"CREATE TABLE c (x INTEGER) STRICT;\n|DROP TABLE c;",
}

func wantVersion(t *testing.T, db *database.DB, want int) {
	t.Helper()
	got, dirty, err := Version(t.Context(), db)
	if err != nil || got != want || dirty {
		t.Errorf("version: got %d, dirty %v, %v; want %d", got, dirty, err, want)
	}
}

func tables(t *testing.T, db *database.DB) string {
	t.Helper()
	rows, err := db.Query(`SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'schema%' ORDER BY name`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

// Cases C06, C07.
func TestUpAndDownAndUpAgain(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		step := func(name string, do func() (bool, error), wantChanged bool, version int, wantTables string) {
			t.Helper()
			changed, err := do()
			if err != nil || changed != wantChanged {
				t.Errorf("%s: got changed %v, %v; want %v", name, changed, err, wantChanged)
			}
			wantVersion(t, db, version)
			if got := tables(t, db); got != wantTables {
				t.Errorf("%s: tables %q, want %q", name, got, wantTables)
			}
		}
		ctx := t.Context()
		upTo := func(n int) func() (bool, error) {
			return func() (bool, error) { return up(ctx, db, files(three[:n]...)) }
		}
		downBy := func(n int) func() (bool, error) {
			return func() (bool, error) { return down(ctx, db, files(three...), n) }
		}
		step("down on nothing", downBy(0), false, NilVersion, "")
		step("one down on nothing", downBy(1), false, NilVersion, "")
		step("up to 2", upTo(2), true, 2, "a b")
		step("up again", upTo(2), false, 2, "a b")
		step("up to 3", upTo(3), true, 3, "a b c")
		step("one down", downBy(1), true, 2, "a b")
		step("all down", downBy(0), true, NilVersion, "")
		step("up", upTo(3), true, 3, "a b c")
		step("more down than there are", downBy(9), true, NilVersion, "")
	})
}

func TestNothingOfAFailedMigrationStays(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		bad := files(three[0], "CREATE TABLE b (x INTEGER) STRICT; INSERT INTO b VALUES (1); INSERT INTO nosuch VALUES (1); CREATE TABLE c (x INTEGER) STRICT;|", three[2])
		if _, err := up(t.Context(), db, bad); err == nil || !strings.Contains(err.Error(), "version 2") {
			t.Errorf("got %v, want an error that names version 2", err)
		}
		wantVersion(t, db, 1)
		if got := tables(t, db); got != "a" {
			t.Errorf("tables: got %q, want a", got)
		}
		// The mended file needs nothing else.
		if changed, err := up(t.Context(), db, files(three...)); err != nil || !changed {
			t.Errorf("mended: got %v, %v", changed, err)
		}
		wantVersion(t, db, 3)
	})
}

// Case B09: a trigger's inner semicolons and its CASE … END don't end it.
func TestATriggerWithCaseAndTwoStatementsIsOneStatement(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		_, err := up(t.Context(), db, files(`
CREATE TABLE a (x INTEGER) STRICT;
CREATE TABLE log (x INTEGER, big INTEGER) STRICT;
CREATE TRIGGER a_log AFTER INSERT ON a
BEGIN
  INSERT INTO log (x, big) VALUES (NEW.x, CASE WHEN NEW.x > 9 THEN 1 ELSE 0 END);
  UPDATE a SET x = 0 WHERE x = NEW.x;
END;
CREATE TABLE z (x INTEGER) STRICT;
|DROP TABLE a; DROP TABLE log; DROP TABLE z;`))
		if err != nil {
			t.Fatal(err)
		}
		if got := tables(t, db); got != "a log z" {
			t.Errorf("tables: got %q, want a log z", got)
		}
		if _, err := db.Exec(`INSERT INTO a VALUES (10)`); err != nil {
			t.Fatal(err)
		}
		var x, big, zero int
		if err := db.QueryRow(`SELECT log.x, big, a.x FROM log, a`).Scan(&x, &big, &zero); err != nil || x != 10 || big != 1 || zero != 0 {
			t.Errorf("got %d %d %d, %v; want 10 1 0", x, big, zero, err)
		}
	})
}

// Case C01: only the version's own query fails.
func TestAFailedVersionQueryIsNotAnEmptyDatabase(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := openURL(t, server.URL)
	if _, err := up(t.Context(), db, files(three...)); err != nil {
		t.Fatal(err)
	}
	server.SetHook(func(_ int, req hrana.Request) hrana.Action {
		for _, s := range req.Statements() {
			if strings.Contains(s.SQL, "FROM schema_migrations") && strings.HasPrefix(s.SQL, "SELECT") {
				return hrana.Action{Answer: &hrana.Answer{Status: 503}}
			}
		}
		return hrana.Action{}
	})
	server.Forget()
	for name, do := range map[string]func() (bool, error){
		"up":   func() (bool, error) { return up(t.Context(), db, files(three...)) },
		"down": func() (bool, error) { return down(t.Context(), db, files(three...), 0) },
	} {
		if changed, err := do(); err == nil || changed || !strings.Contains(err.Error(), "503") {
			t.Errorf("%s: got %v, %v; want the server's error", name, changed, err)
		}
	}
	for _, req := range server.Requests() {
		for _, s := range req.Statements() {
			if strings.Contains(s.SQL, "TABLE a ") || strings.HasPrefix(s.SQL, "DROP") {
				t.Errorf("the schema was changed: %s", s.SQL)
			}
		}
	}
	server.SetHook(nil)
	wantVersion(t, db, 3)
}

// The version table was made between the read of it, which failed, and the lookup.
func TestAVersionTableMadeInTheMeantimeIsReadAgain(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := openURL(t, server.URL)
	if _, err := up(t.Context(), db, files(three...)); err != nil {
		t.Fatal(err)
	}
	var failed atomic.Bool
	server.SetHook(func(_ int, req hrana.Request) hrana.Action {
		if len(req.Statements()) > 0 && failed.CompareAndSwap(false, true) {
			return hrana.Action{Answer: &hrana.Answer{Body: `{"baton":null,"results":[{"type":"error","error":{"message":"no such table: schema_migrations"}}]}`}}
		}
		return hrana.Action{}
	})
	wantVersion(t, db, 3)
	if !failed.Load() {
		t.Error("no read failed")
	}
}

// Case C09: a statement of setting the version fails; nothing stays locked, the pool stays open, and a second run works.
func TestAFailedVersionWriteLeavesNothingBehind(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := openURL(t, server.URL)
	server.SetHook(func(_ int, req hrana.Request) hrana.Action {
		for _, s := range req.Statements() {
			if strings.HasPrefix(s.SQL, "DELETE FROM schema_migrations") {
				return hrana.Action{Answer: &hrana.Answer{Status: 503}}
			}
		}
		return hrana.Action{}
	})
	if _, err := up(t.Context(), db, files(three...)); err == nil {
		t.Fatal("no error")
	}
	server.SetHook(nil)
	if _, err := up(t.Context(), db, files(three...)); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, db, 3)
}

// The reply of a migration is lost: whether it was carried out is read, not guessed.
func TestALostReplyIsNoDirtyVersion(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := openURL(t, server.URL)
	server.SetHook(func(_ int, req hrana.Request) hrana.Action {
		for _, s := range req.Statements() {
			if strings.HasPrefix(s.SQL, "CREATE TABLE b") {
				return hrana.Action{DropReply: true}
			}
		}
		return hrana.Action{}
	})
	if _, err := up(t.Context(), db, files(three...)); err == nil {
		t.Fatal("no error")
	}
	server.SetHook(nil)
	wantVersion(t, db, 2)
	if _, err := up(t.Context(), db, files(three...)); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, db, 3)
}

func TestUpWithNothingToDoIsOneRequestWithOneRead(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := openURL(t, server.URL)
	if _, err := up(t.Context(), db, files(three...)); err != nil {
		t.Fatal(err)
	}
	server.Forget()
	if changed, err := up(t.Context(), openURL(t, server.URL), files(three...)); err != nil || changed {
		t.Fatal(changed, err)
	}
	var sent []string
	for _, req := range server.Requests() {
		for _, s := range req.Statements() {
			sent = append(sent, s.SQL)
		}
	}
	if len(sent) != 1 || !strings.HasPrefix(sent[0], "SELECT") {
		t.Errorf("sent %q, want one SELECT", sent)
	}
}

func TestADirtyVersionStopsEverythingAndTheErrorTellsTheWayOut(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		ctx := t.Context()
		if _, err := up(ctx, db, files(three...)); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(`UPDATE schema_migrations SET dirty = 1`); err != nil {
			t.Fatal(err)
		}
		if v, dirty, err := Version(ctx, db); v != 3 || !dirty || err != nil {
			t.Errorf("version: got %d, %v, %v; want 3, dirty", v, dirty, err)
		}
		for name, do := range map[string]func() (bool, error){
			"up":   func() (bool, error) { return up(ctx, db, files(three...)) },
			"down": func() (bool, error) { return down(ctx, db, files(three...), 0) },
		} {
			_, err := do()
			if dirty := (DirtyError{}); !errors.As(err, &dirty) || dirty.Version != 3 || !strings.Contains(err.Error(), "go run ./scripts/migrate force 3") {
				t.Errorf("%s: got %v, want a dirty error with the command", name, err)
			}
		}
		if err := force(ctx, db, files(three...), 4); err == nil {
			t.Error("forced to a version there is no file for")
		}
		if err := force(ctx, db, files(three...), 3); err != nil {
			t.Error(err)
		}
		wantVersion(t, db, 3)
		if err := force(ctx, db, files(three...), NilVersion); err != nil {
			t.Error(err)
		}
		wantVersion(t, db, NilVersion)
	})
}

func TestANewerDatabaseIsNotTouched(t *testing.T) {
	db := openFile(t)
	if _, err := up(t.Context(), db, files(three...)); err != nil {
		t.Fatal(err)
	}
	if _, err := up(t.Context(), db, files(three[:2]...)); err == nil || !strings.Contains(err.Error(), "version 3") {
		t.Errorf("got %v, want an error that names version 3", err)
	}
	if _, err := up(t.Context(), db, fstest.MapFS{}); err == nil {
		t.Error("no files: no error")
	}
}

func TestTwoVersionRowsAreAnError(t *testing.T) {
	db := openFile(t)
	if _, err := up(t.Context(), db, files(three...)); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`INSERT INTO schema_migrations (version, dirty) VALUES (1, 0)`); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Version(t.Context(), db); err == nil || !strings.Contains(err.Error(), "2 rows") {
		t.Errorf("got %v, want an error about 2 rows", err)
	}
}

// Case C02: all at once on one database; scripts/migrate does the same with processes.
func TestManyMigratorsAtOnceAreAsOne(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		const migrators = 8
		var wg sync.WaitGroup
		var mu sync.Mutex
		changes := 0
		for range migrators {
			wg.Go(func() {
				changed, err := up(t.Context(), db, files(three...))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if changed {
					changes++
				}
			})
		}
		wg.Wait()
		if changes != 1 {
			t.Errorf("%d migrators changed something, want 1", changes)
		}
		wantVersion(t, db, 3)
		if got := tables(t, db); got != "a b c" {
			t.Errorf("tables: got %q, want a b c", got)
		}
	})
}

func TestALockIsWaitedForUntilTheContextEnds(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		holder := &store{ctx: t.Context(), db: db.DB}
		if err := holder.Lock(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := up(ctx, db, files(three...)); !errors.Is(err, ErrLocked) {
			t.Errorf("got %v, want %v", err, ErrLocked)
		}
		if got := tables(t, db); got != "" {
			t.Errorf("tables: got %q, want none", got)
		}
		if err := holder.Unlock(); err != nil {
			t.Fatal(err)
		}
		if _, err := up(t.Context(), db, files(three...)); err != nil {
			t.Error(err)
		}
	})
}

// A migrator was killed, or was stopped for so long that another took its place.
func TestALockThatRanOutIsTakenAndItsOldHolderChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		stopped := &store{ctx: t.Context(), db: db.DB}
		if err := stopped.Lock(); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(`UPDATE schema_lock SET expires_micros = CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 - 1`); err != nil {
			t.Fatal(err)
		}
		next := &store{ctx: t.Context(), db: db.DB}
		if err := next.Lock(); err != nil {
			t.Fatal(err)
		}
		stopped.SetVersion(1, true)
		if err := stopped.Run(strings.NewReader("CREATE TABLE a (x INTEGER) STRICT;")); err == nil {
			t.Error("the old holder ran a migration")
		}
		if err := stopped.SetVersion(7, false); err == nil {
			t.Error("the old holder set the version")
		}
		if got := tables(t, db); got != "" {
			t.Errorf("tables: got %q, want none", got)
		}
		wantVersion(t, db, NilVersion)
		if err := stopped.Unlock(); err != nil {
			t.Error(err)
		}
		if err := next.SetVersion(1, false); err != nil {
			t.Errorf("the new holder lost the lock: %v", err)
		}
		if err := next.Unlock(); err != nil {
			t.Fatal(err)
		}
		stopped = &store{ctx: t.Context(), db: db.DB, owner: "stopped"}
		if err := stopped.SetVersion(7, false); err == nil {
			t.Error("the old holder set the version when nobody had the lock")
		}
		wantVersion(t, db, 1)
	})
}

func TestTheLockIsGivenBackWhenTheContextHasEnded(t *testing.T) {
	db := openFile(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := &store{ctx: ctx, db: db.DB}
	if err := s.Lock(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := s.Unlock(); err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := db.QueryRow(`SELECT count(*) FROM schema_lock`).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("lock rows: got %d, %v; want 0", rows, err)
	}
}

// golang-migrate's own tests for drivers, but for Drop, which is refused.
func TestTheDriverPassesGolangMigratesSuite(t *testing.T) {
	onEach(t, func(t *testing.T, db *database.DB) {
		s := &store{ctx: t.Context(), db: db.DB}
		suite.TestNilVersion(t, s)
		suite.TestLockAndUnlock(t, s)
		if err := s.Lock(); err != nil {
			t.Fatal(err)
		}
		if err := s.SetVersion(1, true); err != nil {
			t.Fatal(err)
		}
		suite.TestRun(t, s, strings.NewReader("CREATE TABLE a (x INTEGER) STRICT;"))
		suite.TestSetVersion(t, s)
		if err := s.Drop(); err == nil {
			t.Error("Drop: no error")
		}
		if err := s.Unlock(); err != nil {
			t.Error(err)
		}
		if err := s.Unlock(); !errors.Is(err, migratedb.ErrNotLocked) {
			t.Errorf("second Unlock: got %v, want %v", err, migratedb.ErrNotLocked)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := db.Ping(); err != nil {
			t.Errorf("the pool after Close: %v", err)
		}
	})
}
