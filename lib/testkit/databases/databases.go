// Package databases opens migrated databases for tests: the embedded file, a Hrana server with
// SQLite behind it, and the real servers of the Turso engine and of libSQL.
package databases

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// deadline of a call: a busy machine that also compiles must not fail a test of something else.
const deadline = time.Minute

// Open opens a database, brings it to the newest schema and closes it with the test.
func Open(t testing.TB, url string) *database.DB {
	t.Helper()
	db := opened(t, url)
	if _, err := migration.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

func opened(t testing.TB, url string) *database.DB {
	t.Helper()
	db, err := database.Open(database.Config{URL: url, Deadline: deadline})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// Migrated is the content of an SQLite file of the newest schema, which is made once for all tests of a package.
func Migrated(t testing.TB) []byte {
	t.Helper()
	content, err := migrated()
	if err != nil {
		t.Fatal(err)
	}
	return content
}

var migrated = sync.OnceValues(func() (content []byte, err error) {
	dir, err := os.MkdirTemp("", "weir-migrated-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "weir.db")
	db, err := database.Open(database.Config{URL: "file:" + path, Deadline: deadline})
	if err != nil {
		return nil, err
	}
	_, err = migration.Up(context.Background(), db)
	if err = errors.Join(err, db.Close()); err != nil { // the last one to close it empties the log into the file
		return nil, err
	}
	return os.ReadFile(path)
})

// File opens a new file.
func File(t testing.TB) *database.DB {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.db")
	if err := os.WriteFile(path, Migrated(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return opened(t, "file:"+path)
}

// Hrana opens a new database behind a healthy Hrana server.
func Hrana(t testing.TB) *database.DB {
	t.Helper()
	return opened(t, hrana.Start(t, hrana.Config{Database: Migrated(t)}).URL)
}

// Turso opens a new database on the Turso server. Where the server is missing it does what turso.Require does.
func Turso(t testing.TB) *database.DB {
	t.Helper()
	return Open(t, turso.Start(t).URL)
}

// LibSQL opens a new database on the libSQL server. Where the server is missing it does what
// turso.Require does.
func LibSQL(t testing.TB) *database.DB {
	t.Helper()
	return Open(t, turso.StartLibSQL(t).URL)
}

// Each runs a test on a new database of each kind.
func Each(t *testing.T, test func(t *testing.T, db *database.DB)) {
	t.Run("file", func(t *testing.T) { test(t, File(t)) })
	t.Run("hrana", func(t *testing.T) { test(t, Hrana(t)) })
	t.Run("turso", func(t *testing.T) { test(t, Turso(t)) })
	t.Run("libsql", func(t *testing.T) { test(t, LibSQL(t)) })
}
