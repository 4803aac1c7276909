package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/scripts/internal/command"
)

// topUp runs the command in this process.
func topUp(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	lookup := func(name string) (string, bool) {
		value, found := env[name]
		return value, found
	}
	code = run(t.Context(), args, lookup, &out, &problems)
	return code, out.String(), problems.String()
}

func TestThePoolIsToppedUpOnceWithTheDatabasesSettingsAlone(t *testing.T) {
	root := repo.Project(t)
	db, err := database.Open(database.Config{URL: app.LocalDatabaseURL(root), Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := migration.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		code, stdout, stderr := topUp(t, map[string]string{"DEMO": "maybe", "RATE_LIMIT_SECRET": "short"}, "7")
		if code != 0 || stdout != "the pool holds at least 7 codes that are not used\n" || stderr != "" {
			t.Errorf("got code %d, %q, %q", code, stdout, stderr)
		}
	}
	var n int
	if err := db.QueryRow(`SELECT count(*) FROM invite_codes`).Scan(&n); err != nil || n != 7 {
		t.Errorf("%d codes (%v), want 7", n, err)
	}
	if _, err := os.Stat(filepath.Join(root, ".data", "secret")); err == nil {
		t.Error("a secret was made")
	}
}

func TestADatabaseThatIsNotMigratedIsAnsweredWithTheCommandThatMendsIt(t *testing.T) {
	repo.Project(t)
	code, stdout, stderr := topUp(t, nil, "7")
	if code != command.Failed || stdout != "" || !strings.Contains(stderr, "go run ./scripts/migrate up") {
		t.Errorf("got code %d, %q, %q", code, stdout, stderr)
	}
}

func TestWrongUsageHasACodeOfItsOwnAndHelpHasNone(t *testing.T) {
	repo.Project(t)
	for _, args := range [][]string{nil, {"1", "2"}, {"x"}, {"-1"}, {"10001"}, {"1e2"}, {""}} {
		if code, stdout, stderr := topUp(t, nil, args...); code != command.WrongUsage || stdout != "" || !strings.Contains(stderr, "0 to 10000") {
			t.Errorf("%q: got code %d, %q, %q; want %d and what is allowed", args, code, stdout, stderr, command.WrongUsage)
		}
	}
	for _, help := range []string{"-h", "-help", "--help"} {
		if code, stdout, stderr := topUp(t, nil, help); code != 0 || !strings.HasPrefix(stdout, "usage:") || stderr != "" {
			t.Errorf("%s: got code %d, %q, %q; want 0 and the usage", help, code, stdout, stderr)
		}
	}
	if code, _, stderr := topUp(t, map[string]string{"TURSO_DATABASE_URL": "libsql://db.example.org?authToken=s3cr3t"}, "1"); code != command.Failed || !strings.Contains(stderr, "TURSO_DATABASE_URL") || strings.Contains(stderr, "s3cr3t") {
		t.Errorf("wrong URL: got code %d, %q", code, stderr)
	}
}
