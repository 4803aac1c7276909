package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/scripts/internal/command"
)

// attack runs the command in this process.
func attack(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(t.Context(), args, func(string) (string, bool) { return "", false }, &out, &problems)
	return code, out.String(), problems.String()
}

// Row D9.
func TestAnAttackIsListedAndEnded(t *testing.T) {
	db, err := database.Open(database.Config{URL: app.LocalDatabaseURL(repo.Project(t)), Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if code, _, stderr := attack(t, "list"); code != command.Failed || !strings.Contains(stderr, "scripts/migrate up") {
		t.Errorf("without a table: code %d, %q", code, stderr)
	}
	if _, err := migration.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if code, stdout, _ := attack(t, "list"); code != 0 || !strings.HasSuffix(stdout, "no attack is on\n") {
		t.Errorf("code %d, %q", code, stdout)
	}
	if code, stdout, stderr := attack(t, "end"); code != noneIsOn || stdout != "" || stderr != "attack: none is on\n" {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	_, err = db.Exec(`INSERT INTO attacks (begun_micros, last_micros, figures)
		SELECT now, now, '{"minutes":5,"failures":60,"successes":1,"accounts":58,"addresses":57}' FROM (SELECT unixepoch() * 1000000 AS now)`)
	if err != nil {
		t.Fatal(err)
	}
	const at = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`
	shown := func(ended, state string) {
		t.Helper()
		code, stdout, stderr := attack(t, "list")
		if form := fmt.Sprintf(`\n1 +%s +%s +%s +60 of 61 +5 +~58 +~57\n%s\n$`, at, at, ended, state); code != 0 || stderr != "" || !regexp.MustCompile(form).MatchString(stdout) {
			t.Errorf("code %d, %q, %q", code, stdout, stderr)
		}
	}
	shown("-", "an attack is on")
	if code, stdout, stderr := attack(t, "end"); code != 0 || stdout != "the attack is ended\n" || stderr != "" {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	shown(at, "no attack is on")
}

func TestAWrongCommandLineGetsTheUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"stop"}, {"end", "1"}, {"list", "all"}} {
		if code, stdout, stderr := attack(t, args...); code != command.WrongUsage || stdout != "" || stderr != usage {
			t.Errorf("%q: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := attack(t, "-h"); code != 0 || stdout != usage || stderr != "" {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
}
