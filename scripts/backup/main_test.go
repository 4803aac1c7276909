package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/lib/testkit/turso"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const secret = "a secret of the tests of backups, long enough"

// backup runs the command in this process.
func backup(t *testing.T, url string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	lookup := func(name string) (string, bool) { return url, name == "TURSO_DATABASE_URL" && url != "" }
	code = run(t.Context(), args, lookup, &out, &problems)
	return code, out.String(), problems.String()
}

// world is the application on a database, at one moment.
type world struct {
	t   *testing.T
	app *app.App
}

// noon is when everything here happens: windows would end while the tests run.
var noon = time.Now().Truncate(time.Hour)

func open(t *testing.T, db *database.DB, secret string) *world {
	t.Helper()
	settings := app.Settings{Secret: []byte(secret), StoreDeadline: time.Minute, LimitsToken: strings.Repeat("t", 32)}
	a, err := app.New(db, settings, app.Config{Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, a}
}

func (w *world) ask(method, path, address, body string) *httptest.ResponseRecorder {
	w.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr = address + ":1"
	r.Header.Set("Authorization", "Bearer "+strings.Repeat("t", 32))
	answer := httptest.NewRecorder()
	w.app.Handler(strings.TrimPrefix(r.URL.Path, "/api/")).ServeHTTP(answer, r)
	return answer
}

func (w *world) want(status int, method, path, address, body string) *httptest.ResponseRecorder {
	w.t.Helper()
	answer := w.ask(method, path, address, body)
	if answer.Code != status {
		w.t.Errorf("%s %s from %s answers %d, want %d: %s", method, path, address, answer.Code, status, answer.Body)
	}
	return answer
}

const (
	member    = `{"username":"somebody","password":"correct horse battery"}`
	lookup    = "/api/usernames?name=somebody"
	used      = 17 // username checks of one address
	exhausted = "192.0.2.1"
)

// fill makes an account, a counter that is used in part, one that is used up and audited, a ban, and gives a charge back.
func (w *world) fill(db *database.DB) {
	w.t.Helper()
	pool := codes.New(db.DB, codes.Config{Now: func() time.Time { return noon }})
	if err := pool.Fill(w.t.Context(), 3); err != nil {
		w.t.Fatal(err)
	}
	code, _, err := pool.Borrow(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.want(http.StatusCreated, "POST", "/api/sign-up", "192.0.2.3", fmt.Sprintf(`{"code":"%s",%s`, code, member[1:]))
	w.want(http.StatusOK, "POST", "/api/sign-in", "192.0.2.3", member)
	for range used {
		w.want(http.StatusOK, "GET", lookup, "192.0.2.2", "")
	}
	for range 10 {
		w.want(http.StatusBadRequest, "POST", "/api/sign-in", exhausted, "{")
	}
	w.want(http.StatusTooManyRequests, "POST", "/api/sign-in", exhausted, member)
	w.want(http.StatusOK, "POST", "/api/limits", "192.0.2.9",
		`{"mode":"ban","limits":[{"policy":"code-lookup","subject":"192.0.2.4"}],"until":"`+noon.Add(time.Hour).UTC().Format(time.RFC3339)+`"}`)
}

// isAsFilled says whether what fill made is there, and whether decisions go on from it.
func (w *world) isAsFilled() {
	w.t.Helper()
	if w.want(http.StatusOK, "GET", lookup, "192.0.2.2", "").Header().Get("Ratelimit-Remaining") != strconv.Itoa(60-used-1) {
		w.t.Error("the counter of username checks doesn't go on")
	}
	w.want(http.StatusTooManyRequests, "POST", "/api/sign-in", exhausted, member)
	w.want(http.StatusTooManyRequests, "GET", "/api/codes?code=x", "192.0.2.4", "")
	w.want(http.StatusOK, "POST", "/api/sign-in", "192.0.2.3", member)
	w.want(http.StatusConflict, "POST", "/api/sign-up", "192.0.2.5", fmt.Sprintf(`{"code":"%s",%s`, w.borrow(), member[1:]))
	w.want(http.StatusUnauthorized, "POST", "/api/sign-in", "192.0.2.6", `{"username":"somebody","password":"wrong horse"}`)
}

func (w *world) borrow() string {
	w.t.Helper()
	_, code, _ := strings.Cut(w.want(http.StatusCreated, "POST", "/api/codes", "192.0.2.5", "{}").Body.String(), `"code":"`)
	code, _, _ = strings.Cut(code, `"`)
	return code
}

// Row F5: the embedded file, copied while others write to it, and put in its place in another project.
func TestTheEmbeddedFileIsBackedUpWhileItIsUsedAndRestored(t *testing.T) {
	root := repo.Project(t)
	db := databases.Open(t, app.LocalDatabaseURL(root))
	w := open(t, db, secret)
	w.fill(db)

	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	wrote := make(chan struct{}, 1)
	for i := range 4 {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				w.ask("GET", lookup, fmt.Sprintf("198.51.100.%d", 50*i+n%50), "")
				select {
				case wrote <- struct{}{}:
				default:
				}
			}
		})
	}
	<-wrote
	copied := filepath.Join(t.TempDir(), "weir copy?.db")
	code, stdout, stderr := backup(t, "", copied)
	<-wrote // and they go on
	stop()
	writers.Wait()
	if code != 0 || !strings.Contains(stdout, "at version ") || stderr != "" {
		t.Fatalf("got code %d, %q, %q", code, stdout, stderr)
	}
	if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v, %v; want mode 0600", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(copied), "*-*")); left != nil {
		t.Errorf("beside the copy are %q: it should be one file", left)
	}

	for name, c := range map[string]struct {
		secret string
		judge  func(*world)
	}{
		"with the same secret": {secret, (*world).isAsFilled},
		"with another secret": {"another " + secret, func(w *world) {
			if left := w.want(http.StatusOK, "GET", lookup, "192.0.2.2", "").Header().Get("Ratelimit-Remaining"); left != "59" {
				t.Errorf("%s left: want all counters to be new", left)
			}
			w.want(http.StatusOK, "POST", "/api/sign-in", exhausted, member) // accounts don't hang on it
		}},
	} {
		t.Run(name, func(t *testing.T) {
			restored := repo.Project(t)
			text, err := os.ReadFile(copied)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Mkdir(filepath.Join(restored, ".data"), 0o700), os.WriteFile(filepath.Join(restored, ".data", "weir.db"), text, 0o600)); err != nil {
				t.Fatal(err)
			}
			c.judge(open(t, databases.Open(t, app.LocalDatabaseURL(restored)), c.secret))
		})
	}
}

func TestWhatCannotBeCopiedIsSaidAndLeavesNoFile(t *testing.T) {
	root := repo.Project(t)
	folder := t.TempDir()
	target := filepath.Join(folder, "copy.db")
	fails := func(name, url, says string) {
		t.Helper()
		if code, stdout, stderr := backup(t, url, target); code != command.Failed || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%s: got code %d, %q, %q; want %q", name, code, stdout, stderr, says)
		}
	}
	fails("no database", "", "there is no database")
	fails("a server", "libsql://weir.example.org", "docs/operations.md")
	if _, err := os.Stat(filepath.Join(root, ".data")); err == nil {
		t.Error("a database was made")
	}
	empty := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fails("an empty file", "file:"+empty, "no schema")
	broken := filepath.Join(t.TempDir(), "broken.db")
	if err := os.WriteFile(broken, bytes.Repeat([]byte("not a database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	fails("no database's file", "file:"+broken, "not a database")
	if left, _ := filepath.Glob(filepath.Join(folder, "*")); left != nil {
		t.Errorf("left are %q", left)
	}

	databases.Open(t, app.LocalDatabaseURL(root))
	if err := os.WriteFile(target, []byte("an older backup"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails("a file is there", "", "overwrites nothing")
	if text, err := os.ReadFile(target); err != nil || string(text) != "an older backup" {
		t.Errorf("the older backup is %q, %v", text, err)
	}
	for _, args := range [][]string{nil, {""}, {"-x"}, {"a", "b"}} {
		if code, stdout, stderr := backup(t, "", args...); code != command.WrongUsage || stdout != "" || !strings.HasPrefix(stderr, "usage:") {
			t.Errorf("%q: got code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := backup(t, "", "-h"); code != 0 || !strings.HasPrefix(stdout, "usage:") || stderr != "" {
		t.Errorf("-h: got code %d, %q, %q", code, stdout, stderr)
	}
}

// Row F5: a dump, in the form of SQLite's and Turso's .dump, of each engine, loaded into a new server of each.
func TestADumpOfAServerIsRestoredOnAnother(t *testing.T) {
	turso.Require(t)
	servers := map[string]func(testing.TB) *turso.Server{"turso": turso.Start, "libsql": turso.StartLibSQL}
	for from, start := range servers {
		db := databases.Open(t, start(t).URL)
		open(t, db, secret).fill(db)
		text := dump(t, db)
		for to, start := range servers {
			t.Run("from "+from+" to "+to, func(t *testing.T) {
				restored, err := database.Open(database.Config{URL: start(t).URL, Deadline: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				defer restored.Close()
				if _, err := restored.ExecContext(t.Context(), text); err != nil {
					t.Fatal(err)
				}
				// The engines write the schema each in its own form; the rows are the same.
				if got, want := inserts(dump(t, restored)), inserts(text); !slices.Equal(got, want) || len(want) < 10 {
					t.Errorf("the restored rows are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if changed, err := migration.Up(t.Context(), restored); changed || err != nil {
					t.Errorf("migrating afterwards changed something: %t, %v", changed, err)
				}
				open(t, restored, secret).isAsFilled()
			})
		}
	}
}

// inserts are the lines of a dump that hold rows.
func inserts(dump string) (lines []string) {
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, "INSERT INTO ") && strings.HasSuffix(line, ");\n") {
			lines = append(lines, line)
		}
	}
	return lines
}

// dump writes a database as SQL: the tables with their rows, then what would act on rows that are inserted. The engines' own
// tables are left out: the Turso engine lets nobody write them.
func dump(t *testing.T, db *database.DB) string {
	t.Helper()
	texts := func(query string) (all []string) {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		defer rows.Close()
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return all
	}
	var out strings.Builder
	out.WriteString("BEGIN;\n")
	for _, sql := range texts(`SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`) {
		out.WriteString(sql + ";\n")
	}
	for _, table := range texts(`SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`) {
		columns := texts(fmt.Sprintf(`SELECT name FROM pragma_table_info('%s') ORDER BY cid`, table))
		values := "quote(" + strings.Join(columns, ") || ',' || quote(") + ")"
		for _, row := range texts(fmt.Sprintf(`SELECT %s FROM %s ORDER BY 1`, values, table)) {
			fmt.Fprintf(&out, "INSERT INTO %s (%s) VALUES (%s);\n", table, strings.Join(columns, ", "), row)
		}
	}
	for _, sql := range texts(`SELECT sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL ORDER BY type, name`) {
		out.WriteString(sql + ";\n")
	}
	out.WriteString("COMMIT;")
	return out.String()
}
