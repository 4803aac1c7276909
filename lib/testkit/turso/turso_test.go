//go:build unix

package turso_test

import (
	"database/sql"
	"net/http"
	"testing"

	_ "github.com/tursodatabase/libsql-client-go/libsql"

	"github.com/weirlimits/weir/lib/testkit/turso"
)

func TestTheServerKeepsWhatOneClientWritesForTheNext(t *testing.T) {
	t.Run("Turso", func(t *testing.T) { keeps(t, turso.Start(t)) })
	t.Run("libSQL", func(t *testing.T) { keeps(t, turso.StartLibSQL(t)) })
}

func keeps(t *testing.T, s *turso.Server) {
	for i, text := range []string{`CREATE TABLE c (n INTEGER) STRICT`, `INSERT INTO c VALUES (7)`} {
		db, err := sql.Open("libsql", s.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(text); err != nil {
			t.Fatalf("statement %d: %v\n%s", i, err, s.Output())
		}
	}
	db, err := sql.Open("libsql", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRow(`SELECT n FROM c`).Scan(&n); err != nil || n != 7 {
		t.Errorf("got %d and %v, want 7", n, err)
	}
}

func TestServersAreApartAndEndWithTheirTest(t *testing.T) {
	var urls []string
	t.Run("running", func(t *testing.T) {
		urls = append(urls, turso.Start(t).URL, turso.Start(t).URL)
	})
	if len(urls) != 2 {
		return // skipped, or reported by the subtest
	}
	if urls[0] == urls[1] {
		t.Errorf("both servers are at %s", urls[0])
	}
	for _, url := range urls {
		if resp, err := http.Get(url); err == nil {
			resp.Body.Close()
			t.Errorf("%s still answers", url)
		}
	}
}
