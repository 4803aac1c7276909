//go:build unix

package turso_test

import (
	"database/sql"
	"net/http"
	"slices"
	"testing"

	_ "github.com/tursodatabase/libsql-client-go/libsql"

	"github.com/weirlimits/weir/lib/testkit/turso"
)

func TestTheServerKeepsWhatOneClientWritesForTheNext(t *testing.T) {
	turso.Each(t, keeps)
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
		urls = append(urls, turso.Start(t).URL, turso.Start(t).URL, turso.StartLibSQL(t).URL, turso.StartLibSQL(t).URL)
	})
	if len(urls) != 4 {
		return // skipped, or reported by the subtest
	}
	if slices.Sort(urls); len(slices.Compact(slices.Clone(urls))) != 4 {
		t.Errorf("two servers are at one address: %q", urls)
	}
	for _, url := range urls {
		if resp, err := http.Get(url); err == nil {
			resp.Body.Close()
			t.Errorf("%s still answers", url)
		}
	}
}
