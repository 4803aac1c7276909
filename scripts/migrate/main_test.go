package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/lib/testkit/turso"
	"github.com/weirlimits/weir/scripts/internal/command"
)

// TestMain lets the test program be the command itself, so that tests can start several.
func TestMain(m *testing.M) {
	if os.Getenv("WEIR_TEST_MIGRATE") != "" {
		main()
	}
	os.Exit(m.Run())
}

// migrate runs the command in this process.
func migrate(t *testing.T, url string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	lookup := func(name string) (string, bool) { return url, name == "TURSO_DATABASE_URL" }
	code = run(t.Context(), args, lookup, &out, &problems)
	return code, out.String(), problems.String()
}

// Cases C06, C07: on the embedded file, on a Hrana server, and on the real servers.
func TestUpTwiceDownTwiceAndUp(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) string{
		"embedded file": func(*testing.T) string { return "" },
		"Hrana server":  func(t *testing.T) string { return hrana.Start(t, hrana.Config{}).URL },
		"Turso server":  func(t *testing.T) string { return turso.Start(t).URL },
		"libSQL server": func(t *testing.T) string { return turso.StartLibSQL(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			repo.Project(t)
			url := open(t)
			for _, step := range []struct {
				args string
				want string
			}{
				{"version", "no migration"},
				{"up", "version "},
				{"up", "no change: version "},
				{"down 1", "version "},
				{"down", "no migration"},
				{"down", "no change: no migration"},
				{"up", "version "},
				{"force 1", "version 1"},
				{"version", "version 1"},
				{"force -1", "no migration"},
			} {
				code, stdout, stderr := migrate(t, url, strings.Fields(step.args)...)
				if code != 0 || !strings.HasPrefix(stdout, step.want) || stderr != "" {
					t.Errorf("%s: got code %d, %q, %q; want 0 and %q", step.args, code, stdout, stderr, step.want)
				}
			}
		})
	}
}

func TestWhatCannotBeDoneHasACodeAndASentence(t *testing.T) {
	repo.Project(t)
	for _, args := range [][]string{nil, {"sideways"}, {"up", "1"}, {"down", "0"}, {"down", "-1"}, {"down", "all"}, {"force"}, {"force", "x"}, {"version", "1"}, {"up", "1", "2"}} {
		if code, stdout, stderr := migrate(t, "", args...); code != command.WrongUsage || stdout != "" || !strings.HasPrefix(stderr, "usage:") {
			t.Errorf("%q: got code %d, %q, %q; want %d and the usage", args, code, stdout, stderr, command.WrongUsage)
		}
	}
	if code, stdout, stderr := migrate(t, "", "-h"); code != 0 || !strings.HasPrefix(stdout, "usage:") || stderr != "" {
		t.Errorf("-h: got code %d, %q, %q; want 0 and the usage", code, stdout, stderr)
	}
	if code, _, stderr := migrate(t, "libsql://db.example.org?authToken=s3cr3t", "up"); code != command.Failed || !strings.Contains(stderr, "TURSO_DATABASE_URL") || strings.Contains(stderr, "s3cr3t") {
		t.Errorf("wrong URL: got code %d, %q", code, stderr)
	}
	if code, _, stderr := migrate(t, "", "force", "99"); code != command.Failed || !strings.Contains(stderr, "force 99") {
		t.Errorf("force 99: got code %d, %q", code, stderr)
	}
	server := hrana.Start(t, hrana.Config{Hook: func(int, hrana.Request) hrana.Action {
		return hrana.Action{Answer: &hrana.Answer{Status: 503}}
	}})
	for _, name := range []string{"up", "down", "version"} {
		if code, stdout, stderr := migrate(t, server.URL, name); code != command.Failed || stdout != "" || !strings.Contains(stderr, "503") {
			t.Errorf("%s on a failing server: got code %d, %q, %q", name, code, stdout, stderr)
		}
	}
}

func TestOnlyTheDatabasesSettingsAreRead(t *testing.T) {
	root := repo.Project(t)
	var out, problems bytes.Buffer
	lookup := func(name string) (string, bool) {
		value, found := map[string]string{"DEMO": "maybe", "STORE_DEADLINE": "soon"}[name]
		return value, found
	}
	if code := run(t.Context(), []string{"up"}, lookup, &out, &problems); code != 0 {
		t.Errorf("got code %d, %q", code, problems.String())
	}
	if _, err := os.Stat(filepath.Join(root, ".data", "secret")); err == nil {
		t.Error("a secret was made")
	}
}

func TestADirtyVersionIsReportedWithTheCommandsThatMendIt(t *testing.T) {
	root := repo.Project(t)
	if code, _, stderr := migrate(t, "", "up"); code != 0 {
		t.Fatal(stderr)
	}
	db := openLocal(t, root)
	if _, err := db.Exec(`UPDATE schema_migrations SET version = 1, dirty = 1`); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"version", "up", "down", "down 1"} {
		if code, stdout, stderr := migrate(t, "", strings.Fields(args)...); code != command.Failed || stdout != "" || !strings.Contains(stderr, "force 1") {
			t.Errorf("%s: got code %d, %q, %q; want the way out", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := migrate(t, "", "force", "2"); code != 0 || stdout != "version 2\n" {
		t.Errorf("force: got code %d, %q, %q", code, stdout, stderr)
	}
}

// Issue 10.19: every verb says the same of a schema that is dirty or that this build doesn't know,
// changes nothing, and fails.
func TestEveryVerbSaysTheSameOfASchemaThatItCannotWorkOn(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) string{
		"embedded file": func(*testing.T) string { return "" },
		"Hrana server":  func(t *testing.T) string { return hrana.Start(t, hrana.Config{}).URL },
	} {
		t.Run(name, func(t *testing.T) {
			root := repo.Project(t)
			url := open(t)
			if code, _, stderr := migrate(t, url, "up"); code != 0 {
				t.Fatal(stderr)
			}
			db := openLocal(t, root)
			if url != "" {
				db = openURL(t, url)
			}
			verbs := []string{"version", "up", "down", "down 1", "down 3", "down 99", "force 3", "force -1"}
			for _, c := range []struct {
				version, dirty int
				says           []string
				mends          bool // force
			}{
				{3, 1, []string{"version 3 is dirty", "force 3"}, true},
				{-1, 1, []string{"is dirty", "force -1"}, true},
				{99, 1, []string{"version 99 is dirty", "newer build"}, false},
				{99, 0, []string{"version 99", "newer build"}, false},
				{0, 0, []string{"version 0", "newer build"}, false},
				{20260301, 0, []string{"version 20260301", "newer build"}, false},
			} {
				mark := fmt.Sprintf(`UPDATE schema_migrations SET version = %d, dirty = %d`, c.version, c.dirty)
				if _, err := db.Exec(mark); err != nil {
					t.Fatal(err)
				}
				said := ""
				for _, verb := range verbs {
					if c.mends && strings.HasPrefix(verb, "force") {
						continue
					}
					code, stdout, stderr := migrate(t, url, strings.Fields(verb)...)
					if code != command.Failed || stdout != "" || said != "" && stderr != said {
						t.Errorf("%s at %d: got code %d, %q, %q; others said %q", verb, c.version, code, stdout, stderr, said)
					}
					said = stderr
					var version, dirty int
					if err := db.QueryRow(`SELECT version, dirty FROM schema_migrations`).Scan(&version, &dirty); err != nil || version != c.version || dirty != c.dirty {
						t.Fatalf("%s: the version is %d, %d, %v", verb, version, dirty, err)
					}
				}
				for _, words := range c.says {
					if !strings.Contains(said, words) {
						t.Errorf("at %d: %q lacks %q", c.version, said, words)
					}
				}
			}
		})
	}
}

func TestACommandThatIsStoppedEndsWithAnError(t *testing.T) {
	repo.Project(t)
	server := hrana.Start(t, hrana.Config{Hook: func(int, hrana.Request) hrana.Action {
		return hrana.Action{Hold: t.Context().Done()}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"up"}, func(name string) (string, bool) { return server.URL, name == "TURSO_DATABASE_URL" }, &stdout, &stderr)
	if code != command.Failed || stderr.Len() == 0 {
		t.Errorf("got code %d, %q", code, stderr.String())
	}
}

func openLocal(t *testing.T, root string) *database.DB {
	t.Helper()
	return openURL(t, app.LocalDatabaseURL(root))
}

func openURL(t *testing.T, url string) *database.DB {
	t.Helper()
	db, err := database.Open(database.Config{URL: url, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// schema lists all there is, and the version rows.
func schema(t *testing.T, db *database.DB) (all []string) {
	t.Helper()
	rows, err := db.Query(`
SELECT type || ' ' || name FROM sqlite_master
UNION ALL SELECT 'version ' || version || ' dirty ' || dirty FROM schema_migrations
UNION ALL SELECT 'locked' FROM schema_lock`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var item string
		if err := rows.Scan(&item); err != nil {
			t.Fatal(err)
		}
		all = append(all, item)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// Case C02: two processes at once on an empty database, twenty times.
func TestTwoProcessesAtOnceMigrateOnce(t *testing.T) {
	const rounds = 20
	twice := func(t *testing.T, url, dir string) {
		t.Helper()
		type result struct {
			out []byte
			err error
		}
		results := make(chan result, 2)
		for range 2 {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "up")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "WEIR_TEST_MIGRATE=1", "TURSO_DATABASE_URL="+url, "TURSO_AUTH_TOKEN=", "VERCEL=")
			go func() {
				out, err := cmd.CombinedOutput()
				results <- result{out, err}
			}()
		}
		changes := 0
		for range 2 {
			r := <-results
			if r.err != nil {
				t.Errorf("%v: %s", r.err, r.out)
			}
			if !strings.HasPrefix(string(r.out), "no change") {
				changes++
			}
		}
		if changes != 1 {
			t.Errorf("%d processes changed something, want 1", changes)
		}
	}
	want := func(t *testing.T, url string) []string {
		if code, _, stderr := migrate(t, url, "up"); code != 0 {
			t.Fatal(stderr)
		}
		return schema(t, openURL(t, url))
	}
	t.Run("embedded file", func(t *testing.T) {
		root := repo.Project(t)
		want := want(t, "file:"+filepath.Join(t.TempDir(), "alone.db"))
		for i := range rounds {
			url := fmt.Sprintf("file:%s/%d.db", t.TempDir(), i)
			twice(t, url, root)
			if got := schema(t, openURL(t, url)); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
	turso.Each(t, func(t *testing.T, server *turso.Server) {
		root := repo.Project(t)
		url := server.URL
		want := want(t, url)
		for range rounds {
			// The lock's table goes as well: making it is part of what happens at once.
			if code, _, stderr := migrate(t, url, "down"); code != 0 {
				t.Fatal(stderr)
			}
			if _, err := openURL(t, url).Exec(`BEGIN; DROP TABLE schema_lock; DROP TABLE schema_migrations; COMMIT`); err != nil {
				t.Fatal(err)
			}
			twice(t, url, root)
			if got := schema(t, openURL(t, url)); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// Row D6: the shards of both lists are migrated with the application's own database, each once, also when one of them fails.
func TestEveryShardIsMigrated(t *testing.T) {
	repo.Project(t)
	own, shard, next := hrana.Start(t, hrana.Config{}), hrana.Start(t, hrana.Config{}), hrana.Start(t, hrana.Config{})
	settings := map[string]string{
		"TURSO_DATABASE_URL":       own.URL,
		"TURSO_DATABASE_URLS":      "a=" + own.URL + ",b=" + shard.URL,
		"TURSO_DATABASE_URLS_NEXT": "a=" + own.URL + ",b=" + shard.URL + ",c=" + next.URL,
	}
	migrate := func(args ...string) (code int, stdout, stderr string) {
		var out, problems bytes.Buffer
		code = run(t.Context(), args, func(name string) (string, bool) { value, found := settings[name]; return value, found }, &out, &problems)
		return code, out.String(), problems.String()
	}
	lines := func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }
	shard.SetHook(func(int, hrana.Request) hrana.Action { return hrana.Action{Answer: &hrana.Answer{Status: 500}} })
	code, stdout, stderr := migrate("up")
	if said := lines(stdout); code != command.Failed || len(said) != 2 || !strings.HasPrefix(said[0], "TURSO_DATABASE_URL: version ") || !strings.HasPrefix(said[1], "c: version ") ||
		!strings.Contains(stderr, "b: ") {
		t.Errorf("with a shard that fails: code %d, %q, %q", code, stdout, stderr)
	}
	shard.SetHook(nil)
	code, stdout, stderr = migrate("up")
	if said := lines(stdout); code != 0 || len(said) != 3 || !strings.HasPrefix(said[0], "TURSO_DATABASE_URL: no change") || !strings.HasPrefix(said[1], "b: version ") ||
		!strings.HasPrefix(said[2], "c: no change") || stderr != "" {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	for i, server := range []*hrana.Server{own, shard, next} {
		var n int
		if err := server.DB().QueryRow("SELECT count(*) FROM sqlite_master WHERE name = 'rate_limits'").Scan(&n); err != nil || n != 1 {
			t.Errorf("database %d has %d tables of limits, %v", i, n, err)
		}
	}
}
