package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/lib/testkit/turso"
	"github.com/weirlimits/weir/scripts/internal/command"
)

func migrated(t *testing.T, url string) *accounts.Accounts {
	t.Helper()
	db, err := database.Open(database.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := migration.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return accounts.New(db.DB, accounts.Config{})
}

// admin runs the command in this process, with an environment and a standard input.
func admin(t *testing.T, env map[string]string, input string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	lookup := func(name string) (string, bool) {
		value, found := env[name]
		return value, found
	}
	code = run(t.Context(), args, lookup, terminal{strings.NewReader(input), &out, &problems})
	return code, out.String(), problems.String()
}

// Row F2: with the database's settings alone, on the embedded file and on the real Turso server.
func TestTheFirstAdminIsMadeByACommand(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, root string) string{
		"embedded file": func(_ *testing.T, root string) string { return app.LocalDatabaseURL(root) },
		"Turso server":  func(t *testing.T, _ string) string { return turso.Start(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			root := repo.Project(t)
			url := open(t, root)
			a := migrated(t, url)
			env := map[string]string{"DEMO": "maybe", "RATE_LIMIT_SECRET": "short", "TURSO_DATABASE_URL": url}
			succeed := func(want, input string, args ...string) string {
				t.Helper()
				code, stdout, stderr := admin(t, env, input, args...)
				if code != 0 || !regexp.MustCompile(want).MatchString(stdout) || stderr != "" {
					t.Fatalf("%q: got code %d, %q, %q; want 0 and %q", args, code, stdout, stderr, want)
				}
				return stdout
			}
			fail := func(want, input string, args ...string) {
				t.Helper()
				code, stdout, stderr := admin(t, env, input, args...)
				if code != command.Failed || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
					t.Errorf("%q: got code %d, %q, %q; want %d and %q", args, code, stdout, stderr, command.Failed, want)
				}
			}
			signsIn := func(name, password string, want accounts.Role) {
				t.Helper()
				account, _, err := a.SignIn(t.Context(), name, password, accounts.Device{})
				if err != nil || account.Role != want {
					t.Errorf("%s signs in as %+v, %v; want %s", name, account, err, want)
				}
			}

			succeed(`^$`, "", "list")
			password := strings.Split(succeed(`^anna is an admin, with the password\n[A-Z2-7]{26}\n`, "", "create", " Anna"), "\n")[1]
			signsIn("anna", password, accounts.Admin)
			const typed = "a password from a file"
			for _, end := range []string{"", "\n", "\r\n", "\nmore"} {
				name := "berta" + string(rune('a'+len(end)))
				succeed("^"+name+" is an admin\n$", typed+end, "create", name, "-")
				signsIn(name, typed, accounts.Admin)
			}
			fail("taken", "", "create", "anna")
			fail("taken", "", "create", "demo-admin")
			fail("12 to 200", "short\n", "create", "carla", "-")
			fail("12 to 200", "", "create", "carla", "-")
			succeed("^the role of anna is member\n$", "", "demote", "ANNA")
			signsIn("anna", password, accounts.Member)
			succeed("^bertaa\nbertab\nbertac\nbertaf\n$", "", "list")
			succeed("^the role of anna is admin\n$", "", "promote", "anna")
			signsIn("anna", password, accounts.Admin)
			fail("no account", "", "promote", "carla")
			fail("no account", "", "demote", "demo-admin")
			if _, err := os.Stat(filepath.Join(root, ".data", "secret")); err == nil {
				t.Error("a secret was made")
			}
		})
	}
}

func TestADatabaseThatIsNotMigratedIsAnsweredWithTheCommandThatMendsIt(t *testing.T) {
	repo.Project(t)
	code, stdout, stderr := admin(t, nil, "", "create", "anna")
	if code != command.Failed || stdout != "" || !strings.Contains(stderr, "go run ./scripts/migrate up") || strings.Count(stderr, "admin: ") != 1 {
		t.Errorf("got code %d, %q, %q", code, stdout, stderr)
	}
}

func TestWrongUsageHasACodeOfItsOwnAndHelpHasNone(t *testing.T) {
	repo.Project(t)
	for _, args := range [][]string{
		nil, {"create"}, {"create", "anna", "a password in argv"}, {"create", "-"}, {"promote"}, {"promote", "anna", "-"}, {"demote", "a", "b", "c"},
		{"list", "anna"}, {"delete", "anna"}, {"create", "x"}, {"promote", "not a name"}, {"create", ""}, {"create", "a b", "-"}, {""},
	} {
		code, stdout, stderr := admin(t, nil, "", args...)
		if code != command.WrongUsage || stdout != "" || !strings.HasPrefix(stderr, "usage:") && !strings.Contains(stderr, accounts.NameRule) {
			t.Errorf("%q: got code %d, %q, %q; want %d and what is allowed", args, code, stdout, stderr, command.WrongUsage)
		}
	}
	for _, help := range []string{"-h", "-help", "--help"} {
		if code, stdout, stderr := admin(t, nil, "", help); code != 0 || !strings.HasPrefix(stdout, "usage:") || stderr != "" {
			t.Errorf("%s: got code %d, %q, %q; want 0 and the usage", help, code, stdout, stderr)
		}
	}
	wrong := map[string]string{"TURSO_DATABASE_URL": "libsql://db.example.org?authToken=s3cr3t"}
	if code, _, stderr := admin(t, wrong, "", "list"); code != command.Failed || !strings.Contains(stderr, "TURSO_DATABASE_URL") || strings.Contains(stderr, "s3cr3t") {
		t.Errorf("wrong URL: got code %d, %q", code, stderr)
	}
}
