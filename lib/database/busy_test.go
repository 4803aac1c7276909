package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tursodatabase/libsql-client-go/libsql"

	"github.com/weirlimits/weir/lib/hrana"
	"github.com/weirlimits/weir/lib/testkit/faults"
	testserver "github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

const transaction = `
BEGIN IMMEDIATE;
INSERT INTO a VALUES (1);
CREATE TRIGGER IF NOT EXISTS t AFTER DELETE ON a BEGIN SELECT CASE WHEN 1 THEN 2 END; END;
INSERT INTO a VALUES (2);
COMMIT`

// Issue 10, point 8: what a busy server did not carry out is asked again once, through
// libsql-client-go, which drops codes.
func TestAStatementThatABusyServerDidNotCarryOutIsAskedAgainOnce(t *testing.T) {
	test := func(t *testing.T, url string) {
		proxy := faults.Start(t, url)
		db := openTestURL(t, proxy.URL, time.Minute)
		if _, err := db.Exec("CREATE TABLE a (x INTEGER NOT NULL) STRICT"); err != nil {
			t.Fatal(err)
		}
		prepared, err := db.Prepare("INSERT INTO a VALUES (?) RETURNING x")
		if err != nil {
			t.Fatal(err)
		}
		defer prepared.Close()
		exec := func(text string) func() error {
			return func() error { _, err := db.Exec(text); return err }
		}
		calls := []struct {
			name string
			call func() error
			rows int
		}{
			{"Exec", exec("INSERT INTO a VALUES (1)"), 1},
			{"QueryRow", func() error { var x int; return db.QueryRow("INSERT INTO a VALUES (?) RETURNING x", 1).Scan(&x) }, 1},
			{"prepared", func() error { var x int; return prepared.QueryRow(1).Scan(&x) }, 1},
			{"a transaction", exec(transaction), 2},
		}
		for i, busy := range faults.Busy() {
			for _, call := range calls {
				if call.rows == 2 && i > 0 && busy.Code != "" {
					continue // of the longer call the first and the last, whose code is lost anyway
				}
				for _, where := range []string{"BEGIN IMMEDIATE", "INSERT", "VALUES (2)", "COMMIT"} {
					if call.rows == 1 && where != "INSERT" {
						continue
					}
					hits := func(sql string) bool { return strings.Contains(sql, where) }
					for _, once := range []bool{true, false} {
						name := fmt.Sprintf("%s %s: %s, %s, once %t", busy.Code, busy.Message, call.name, where, once)
						if _, err := db.Exec("DELETE FROM a"); err != nil {
							t.Fatal(err)
						}
						before := proxy.Refused()
						want, rows, refused := "", call.rows, 1
						if once {
							proxy.Refuse(busy, first(hits))
						} else {
							proxy.Refuse(busy, hits)
							want, rows, refused = busy.Message, 0, 2
						}
						err := call.call()
						proxy.Refuse(busy, nil)
						if (err == nil) != once || err != nil && !strings.Contains(err.Error(), want) {
							t.Errorf("%s: %v", name, err)
						}
						var n int
						if err := db.QueryRow("SELECT count(*) FROM a").Scan(&n); err != nil || n != rows {
							t.Errorf("%s: %d rows, %v, want %d", name, n, err, rows)
						}
						if n := proxy.Refused() - before; n < refused || where != "INSERT" && n > refused {
							t.Errorf("%s: %d refused, want %d", name, n, refused)
						}
					}
				}
			}
			// A text that is no transaction: its first statement was carried out.
			if _, err := db.Exec("DELETE FROM a"); err != nil {
				t.Fatal(err)
			}
			proxy.Refuse(busy, first(func(sql string) bool { return strings.Contains(sql, "(2)") }))
			_, err := db.Exec("INSERT INTO a VALUES (1); INSERT INTO a VALUES (2)")
			proxy.Refuse(busy, nil)
			var n int
			if scan := db.QueryRow("SELECT count(*) FROM a").Scan(&n); err == nil || scan != nil || n != 1 {
				t.Errorf("%s: a text without a transaction: %v, %v, %d rows, want an error and 1 row", busy.Code, err, scan, n)
			}
		}
	}
	t.Run("sqlite", func(t *testing.T) { test(t, testserver.Start(t, testserver.Config{}).URL) })
	turso.Each(t, func(t *testing.T, server *turso.Server) { test(t, server.URL) })
}

// first hits once.
func first(hits func(string) bool) func(string) bool {
	done := false
	return func(sql string) bool {
		hit := !done && hits(sql)
		done = done || hit
		return hit
	}
}

// Issue 10, point 8: what an HTTP status says of a whole request is never a reason to ask again.
func TestABusyStatusOfAWholeRequestIsNotAskedAgain(t *testing.T) {
	for _, answer := range []testserver.Answer{
		{Status: 503, Body: `{"message":"database is locked","code":"SQLITE_BUSY"}`},
		{Status: 500, Body: `{"error":"database is locked"}`},
		{Status: 429, Body: `{"error":"Server cannot handle additional transactions"}`},
		{Status: 403, Body: `{"error":"BLOCKED"}`},
	} {
		asked := 0
		db := openTestServer(t, func(_ int, req testserver.Request) testserver.Action {
			if len(req.Statements()) == 0 {
				return testserver.Action{}
			}
			asked++
			return testserver.Action{Answer: &answer}
		})
		if _, err := db.Exec("SELECT 1"); err == nil || asked != 1 {
			t.Errorf("%s: %v after %d requests", answer.Body, err, asked)
		}
	}
}

// coded is an error of the file's driver.
type coded int

func (coded) Error() string { return "something" }
func (c coded) Code() int   { return int(c) }

// Issue 10, point 8: the same on a file, whose driver gives SQLite's extended codes. It has waited
// for a lock by itself.
func TestAStatementThatABusyFileDidNotCarryOutIsAskedAgainOnce(t *testing.T) {
	const busy, locked, snapshot, full = 5, 6, 5 | 2<<8, 13
	for _, c := range []struct {
		err   coded
		takes time.Duration // until the error
		text  string
		asked int // when it always comes
	}{
		{busy, 0, "x", 2}, {locked, 0, "x", 2}, {snapshot, 0, "x", 2}, {full, 0, "x", 1},
		{busy, 0, "BEGIN; x; COMMIT", 2}, {busy, 0, "x; y", 1}, {busy, 0, "BEGIN; x; COMMIT; y", 1},
		{busy, 0, "BEGIN; x; COMMIT; y; COMMIT", 1}, {busy, 0, "BEGIN; x; ROLLBACK", 1}, {busy, 0, "x; BEGIN; COMMIT", 1},
		{busy, 0, "BEGIN; x; y", 1},
		{busy, 900 * time.Millisecond, "x", 1}, // SQLite's own wait took its time
	} {
		for _, always := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				f := &fake{hook: func(_ context.Context, m string) error {
					if m != "Exec" {
						return nil
					}
					if asked++; !always && asked > 1 {
						return nil
					}
					time.Sleep(c.takes)
					return c.err
				}}
				db := sql.OpenDB(&guard{inner: f, deadline: time.Second})
				defer db.Close()
				begun := time.Now()
				_, err := db.Exec(c.text)
				if want := always || c.asked == 1; (err != nil) != want || err != nil && !errors.Is(err, c.err) || asked != c.asked {
					t.Errorf("%d %q always %t: %v after %d calls, want %d", c.err, c.text, always, err, asked, c.asked)
				}
				if took := time.Since(begun); took > c.takes+hrana.MaxPause {
					t.Errorf("%d %q: it took %v", c.err, c.text, took)
				}
				// A transaction may be open on the connection that failed: the second call has
				// another one.
				if want := map[bool]int{true: 2, false: 1}[strings.Contains(c.text, ";") && c.asked == 2]; f.made != want {
					t.Errorf("%q: %d connections, want %d", c.text, f.made, want)
				}
			})
		}
	}
}

// Issue 10, point 8: a writer that a real file turned away, here without a wait of its own, gets
// through the second time.
func TestAWriterThatAFileTurnedAwayGetsThroughTheSecondTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.db")
	db := openTestURL(t, "file:"+path, time.Minute)
	if _, err := db.Exec("CREATE TABLE a (x INTEGER NOT NULL) STRICT"); err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetMaxOpenConns(1)
	for _, text := range []string{"INSERT INTO a VALUES (1)", "BEGIN; INSERT INTO a VALUES (1); COMMIT"} {
		if _, err := other.Exec("BEGIN IMMEDIATE"); err != nil {
			t.Fatal(err)
		}
		pauses := 0
		inner, err := libsql.NewConnector("file:" + path) // without a busy timeout
		if err != nil {
			t.Fatal(err)
		}
		connector := &guard{inner: inner, deadline: time.Minute, pause: func(context.Context) bool {
			pauses++
			_, err := other.Exec("ROLLBACK")
			return err == nil
		}}
		impatient := sql.OpenDB(connector)
		if _, err := impatient.Exec(text); err != nil || pauses != 1 {
			t.Errorf("%s: %v after %d pauses", text, err, pauses)
		}
		impatient.Close()
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM a").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows, %v; want 2", n, err)
	}
}

// Issue 10, point 0: the wait for a place at the server is part of a call, for the driver's calls
// and the client's together.
func TestAServersPlacesAreSharedAndTheWaitForOneIsPartOfACall(t *testing.T) {
	hold := make(chan struct{})
	arrived := make(chan struct{}, 2*hrana.MaxOpen)
	server := testserver.Start(t, testserver.Config{Hook: func(_ int, req testserver.Request) testserver.Action {
		if slices.ContainsFunc(req.Statements(), func(s testserver.Statement) bool { return s.SQL == "SELECT 1" }) {
			arrived <- struct{}{}
			return testserver.Action{Hold: hold}
		}
		return testserver.Action{}
	}})
	db := openTestURL(t, server.URL, time.Minute)
	done := make(chan error, hrana.MaxOpen)
	for i := range hrana.MaxOpen {
		go func() {
			var err error
			if i%2 == 0 {
				_, err = db.Exec("SELECT 1")
			} else {
				_, err = db.HTTP.Query(t.Context(), hrana.Statement{Text: hrana.NewText("SELECT 1")})
			}
			done <- err
		}()
	}
	for range hrana.MaxOpen {
		<-arrived
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	server.Forget()
	_, viaDriver := db.ExecContext(ctx, "SELECT 2")
	_, viaClient := db.HTTP.Query(ctx, hrana.Statement{Text: hrana.NewText("SELECT 2")})
	if !errors.Is(viaDriver, context.DeadlineExceeded) || !errors.Is(viaClient, context.DeadlineExceeded) || len(server.Requests()) != 0 {
		t.Errorf("without a place: %v, %v, %d requests", viaDriver, viaClient, len(server.Requests()))
	}
	close(hold)
	for range hrana.MaxOpen {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := db.Exec("SELECT 2"); err != nil {
		t.Error(err)
	}
}
