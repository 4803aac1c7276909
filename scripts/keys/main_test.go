package main

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/partners"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/scripts/internal/command"
)

// migrated makes a project with a database of the newest schema.
func migrated(t *testing.T) *partners.Partners {
	t.Helper()
	db, err := database.Open(database.Config{URL: app.LocalDatabaseURL(repo.Project(t)), Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := migration.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return partners.New(db.DB, partners.Config{})
}

// keys runs the command in this process.
func keys(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(t.Context(), args, func(string) (string, bool) { return "", false }, &out, &problems)
	return code, out.String(), problems.String()
}

// Row D1.
func TestKeysAreMadeListedChangedAndEnded(t *testing.T) {
	p := migrated(t)
	code, first, notes := keys(t, "create", "free", "Example Ltd.")
	if code != 0 || !regexp.MustCompile(`^weir_[0-9a-f]{64}\n$`).MatchString(first) {
		t.Fatalf("got code %d, %q, %q", code, first, notes)
	}
	if want := "This is the key 1, of the plan free, for \"Example Ltd.\". Nobody can tell it again.\n"; notes != want || strings.Contains(notes, first[:12]) {
		t.Errorf("the notes are %q, want %q", notes, want)
	}
	_, second, _ := keys(t, "create", "paid", "another")
	plan := func(key string) partners.Plan {
		found, err := p.Find(t.Context(), strings.TrimSpace(key))
		if err != nil && !errors.Is(err, partners.ErrKey) {
			t.Fatal(err)
		}
		return found.Plan
	}
	if plan(first) != partners.Free || plan(second) != partners.Paid {
		t.Errorf("the plans are %q and %q", plan(first), plan(second))
	}
	if code, stdout, stderr := keys(t, "plan", "1", "paid"); code != 0 || stdout != "the plan of the key 1 is paid\n" || stderr != "" || plan(first) != partners.Paid {
		t.Errorf("got code %d, %q, %q; the plan is %q", code, stdout, stderr, plan(first))
	}
	if code, stdout, stderr := keys(t, "revoke", "1"); code != 0 || stdout != "the key 1 is revoked\n" || stderr != "" || plan(first) != "" {
		t.Errorf("got code %d, %q, %q; the plan is %q", code, stdout, stderr, plan(first))
	}
	code, stdout, stderr := keys(t, "list")
	lines := strings.Split(stdout, "\n")
	const at = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`
	if code != 0 || stderr != "" || len(lines) != 4 || !regexp.MustCompile(`^1 +paid +`+at+` +`+at+` +Example Ltd\.$`).MatchString(lines[1]) ||
		!regexp.MustCompile(`^2 +paid +`+at+` +- +another$`).MatchString(lines[2]) || strings.Contains(stdout, "weir_") {
		t.Errorf("got code %d, %q, %q", code, stdout, stderr)
	}
	for _, args := range [][]string{{"revoke", "1"}, {"plan", "1", "free"}, {"revoke", "99"}} {
		if code, stdout, stderr := keys(t, args...); code != command.Failed || stdout != "" || !strings.Contains(stderr, "no key that is good has this number") {
			t.Errorf("%q: got code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

func TestADatabaseThatIsNotMigratedIsAnsweredWithTheCommandThatMendsIt(t *testing.T) {
	repo.Project(t)
	code, stdout, stderr := keys(t, "list")
	if code != command.Failed || stdout != "" || !strings.Contains(stderr, "go run ./scripts/migrate up") {
		t.Errorf("got code %d, %q, %q", code, stdout, stderr)
	}
}

func TestAKeyThatCannotBePrintedIsToldByItsNumber(t *testing.T) {
	migrated(t)
	reader, writer := io.Pipe()
	reader.Close()
	var problems bytes.Buffer
	code := run(t.Context(), []string{"create", "free", "x"}, func(string) (string, bool) { return "", false }, writer, &problems)
	if code != command.Failed || !strings.Contains(problems.String(), "the key 1 could not be printed, revoke it") || strings.Contains(problems.String(), "weir_") {
		t.Errorf("got code %d, %q", code, problems.String())
	}
}

func TestWrongUsageHasACodeOfItsOwnAndHelpHasNone(t *testing.T) {
	migrated(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "usage:"},
		{[]string{"create"}, "usage:"},
		{[]string{"create", "free"}, "usage:"},
		{[]string{"create", "free", "x", "y"}, "usage:"},
		{[]string{"list", "1"}, "usage:"},
		{[]string{"revoke"}, "usage:"},
		{[]string{"plan", "1"}, "usage:"},
		{[]string{"delete", "1"}, "usage:"},
		{[]string{"create", "gold", "x"}, "a plan is free or paid"},
		{[]string{"create", "free", " x"}, "a label has 1 to 100 bytes"},
		{[]string{"plan", "1", "gold"}, "a plan is free or paid"},
		{[]string{"plan", "x", "free"}, "a key is named by its number"},
		{[]string{"revoke", "0"}, "a key is named by its number"},
		{[]string{"revoke", "weir_00"}, "a key is named by its number"},
	} {
		if code, stdout, stderr := keys(t, c.args...); code != command.WrongUsage || stdout != "" || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "weir_") {
			t.Errorf("%q: got code %d, %q, %q; want %d and %q", c.args, code, stdout, stderr, command.WrongUsage, c.says)
		}
	}
	for _, help := range []string{"-h", "-help", "--help"} {
		if code, stdout, stderr := keys(t, help); code != 0 || !strings.HasPrefix(stdout, "usage:") || strings.Contains(stdout, "%") || stderr != "" {
			t.Errorf("%s: got code %d, %q, %q; want 0 and the usage", help, code, stdout, stderr)
		}
	}
}
