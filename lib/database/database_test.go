package database

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/hrana"
)

// Case B21: the value of the variable, and any part of it, stays out of the error; the name and what is allowed are in it.
func TestAWrongURLIsAnErrorThatNamesTheVariableAndNotItsValue(t *testing.T) {
	const token = "s3cr3t-token"
	for _, value := range []string{
		"",
		"libsql://db.example.org?authToken=" + token,
		"libsql://db.example.org?auth_token=" + token,
		"libsql://db.example.org?jwt=" + token,
		"https://user:" + token + "@db.example.org",
		"libsql://db.example.org#" + token,
		"libsql://db.example.org:port" + token,
		"http://db.example.org/%zz" + token,
		"://" + token,
		"libsql://",
		"libsql:" + token,
		"postgres://" + token + ".example.org",
		"wss://" + token + ".example.org",
		token,
		"file:" + token + ".db",
		"file:./" + token + ".db",
		"file://" + token + "/weir.db",
		"file:/" + token + "/",
		"file:/" + token + "/weir.db?mode=ro",
		"file:/" + token + "/weir.db%00",
		":memory:",
	} {
		t.Run(strings.ReplaceAll(value, "/", "|"), func(t *testing.T) {
			_, err := Open(Config{URL: value})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range []string{"TURSO_DATABASE_URL", "libsql://", "file:/"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
			for _, secret := range []string{token, "example.org", "weir.db"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q holds %q", err, secret)
				}
			}
		})
	}
}

func TestATokenIsRefusedWhereItWouldBeSeen(t *testing.T) {
	for _, cfg := range []Config{
		{URL: "http://db.example.org", AuthToken: "s3cr3t"},
		{URL: "libsql://db.example.org", AuthToken: "s3cr3t\n"},
		{URL: "libsql://db.example.org", AuthToken: "s3 cr3t"},
	} {
		if err := cfg.Validate(); err == nil || strings.Contains(err.Error(), "cr3t") || !strings.Contains(err.Error(), "TURSO_") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	for _, url := range []string{"http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost:8080", "https://db.example.org", "libsql://db.example.org"} {
		if err := (Config{URL: url, AuthToken: "s3cr3t"}).Validate(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func openTestFile(t *testing.T) *DB {
	t.Helper()
	db, err := Open(Config{URL: "file:" + filepath.Join(t.TempDir(), "weir.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestAnEmbeddedFileIsMadeWithItsFolderAndItsPragmas(t *testing.T) {
	dir := filepath.Join(t.TempDir(), ".data")
	// Signs that mean something in a URL are part of the name when they are escaped.
	db, err := Open(Config{URL: "file:" + dir + "/a%3Fb%23c%2541.db"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "1", "foreign_keys": "1", "busy_timeout": "1800"} {
		var got string
		if err := db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", pragma, got, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a?b#c%41.db")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v; want mode 0700", info.Mode(), err)
	}
}

// A text that opened a transaction and failed must leave neither its changes nor the write lock behind.
func TestAFailedTextLeavesNoTransactionOpen(t *testing.T) {
	db := openTestFile(t)
	if _, err := db.Exec(`CREATE TABLE a (x INTEGER NOT NULL) STRICT`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`BEGIN IMMEDIATE; INSERT INTO a VALUES (1); INSERT INTO a VALUES (NULL); COMMIT`); err == nil {
		t.Fatal("no error")
	}
	if _, err := db.Exec(`INSERT INTO a VALUES (2)`); err != nil {
		t.Fatal(err)
	}
	var sum int
	if err := db.QueryRow(`SELECT sum(x) FROM a`).Scan(&sum); err != nil || sum != 2 {
		t.Errorf("sum: got %d, %v; want 2", sum, err)
	}
}

// Case B14: an INTEGER comes back as the int64 it is, whatever the time zone. Case B13: a BLOB of any length keeps its bytes.
func TestIntegersAndBlobsComeBackAsTheyWereOnFileAndServer(t *testing.T) {
	for name, db := range map[string]*DB{"file": openTestFile(t), "server": openTestServer(t, nil)} {
		t.Run(name, func(t *testing.T) {
			if _, err := db.Exec(`CREATE TABLE a (at INTEGER NOT NULL, key BLOB NOT NULL) STRICT`); err != nil {
				t.Fatal(err)
			}
			for n := range 5 {
				const micros int64 = 1_893_456_000_123_456
				blob := []byte{0xff, 0, 0xfe, 1}[:n]
				var at any
				var key []byte
				err := db.QueryRow(`INSERT INTO a VALUES (?, ?) RETURNING at, key`, micros, blob).Scan(&at, &key)
				if err != nil || at != micros || string(key) != string(blob) {
					t.Errorf("got %v (%T), %x, %v; want %d, %x", at, at, key, err, micros, blob)
				}
			}
		})
	}
}

func TestAServerIsAskedWithoutTheDriverToo(t *testing.T) {
	if db := openTestFile(t); db.HTTP != nil {
		t.Error("a file is asked over HTTP")
	}
	results, err := openTestServer(t, nil).HTTP.Query(t.Context(), hrana.Statement{Text: hrana.NewText("SELECT 1")})
	if err != nil || fmt.Sprint(results) != "[{[[1]] <nil>}]" {
		t.Errorf("got %v, %v", results, err)
	}
}

// Eight processes open a new file at once, which is when its journal mode changes, and write to it.
func TestProcessesThatWriteOneFileDoNotFailAsBusy(t *testing.T) {
	const processes, writes = 8, 25
	if path := os.Getenv("WEIR_TEST_WRITE"); path != "" {
		db, err := Open(Config{URL: "file:" + path})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(`CREATE TABLE IF NOT EXISTS a (x INTEGER NOT NULL) STRICT`); err != nil {
			t.Fatal(err)
		}
		for i := range writes {
			if _, err := db.Exec(`INSERT INTO a VALUES (?)`, i); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	path := filepath.Join(t.TempDir(), "weir.db")
	failed := make(chan string, processes)
	for range processes {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "WEIR_TEST_WRITE="+path)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				failed <- err.Error() + "\n" + string(out)
				return
			}
			failed <- ""
		}()
	}
	for range processes {
		if text := <-failed; text != "" {
			t.Error(text)
		}
	}
	db, err := Open(Config{URL: "file:" + path})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var rows string
	if err := db.QueryRowContext(context.Background(), `SELECT count(*) FROM a`).Scan(&rows); err != nil || rows != strconv.Itoa(processes*writes) {
		t.Errorf("rows: got %s, %v; want %d", rows, err, processes*writes)
	}
}
