package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/lib/testkit/smtpserver"
	"github.com/weirlimits/weir/lib/testkit/turso"
	"github.com/weirlimits/weir/scripts/internal/command"
)

func migrated(t *testing.T, url string) *accounts.Accounts {
	t.Helper()
	db, err := database.Open(database.Config{URL: url, Deadline: time.Minute})
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

// Row F2: with the database's settings alone, on the embedded file and on the real servers.
func TestTheFirstAdminIsMadeByACommand(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, root string) string{
		"embedded file": func(_ *testing.T, root string) string { return app.LocalDatabaseURL(root) },
		"Turso server":  func(t *testing.T, _ string) string { return turso.Start(t).URL },
		"libSQL server": func(t *testing.T, _ string) string { return turso.StartLibSQL(t).URL },
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
			fail("stolen", "password1234\n", "create", "carla", "-")
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

// Row D9: the password of an account that somebody else is in ends at once, and its owner gets another one by mail, or by hand
// where there is no mail.
func TestACompromisedAccountIsResetByACommand(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, root string) string{
		"embedded file": func(_ *testing.T, root string) string { return app.LocalDatabaseURL(root) },
		"Turso server":  func(t *testing.T, _ string) string { return turso.Start(t).URL },
		"libSQL server": func(t *testing.T, _ string) string { return turso.StartLibSQL(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			url := open(t, repo.Project(t))
			a := migrated(t, url)
			db, err := database.Open(database.Config{URL: url, Deadline: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			working := smtpserver.Start(t, smtpserver.Config{})
			busy := smtpserver.Start(t, smtpserver.Config{Hook: func(string) smtpserver.Action { return smtpserver.Action{Code: 421} }})
			smtp := func(server *smtpserver.Server) string {
				return fmt.Sprintf("smtp://%s:%d?from=weir@example.org", server.Host, server.Port)
			}
			const password, another = "a long enough password", "another long password"
			for _, c := range []struct {
				name, email, smtp, site string
				code                    int
				form                    string // of what is printed; the token, if it is, in brackets
			}{
				{"anna", "", "", "", 0, `no e-mail of its owner is known: give them this token.*\n([\w-]{43})\nNobody`},
				{"berta", "", "", "https://weir.example.org", 0, `this link.*\nhttps://weir\.example\.org/#reset=([\w-]{43})\n`},
				{"carla", "carla@example.org", "", "https://weir.example.org", 0, `in the table outbox`},
				{"doris", "doris@example.org", smtp(working), "https://weir.example.org", 0, `is mailed to its owner`},
				{"erika", "erika@example.org", smtp(busy), "https://weir.example.org", command.Failed, `the mail failed: give them this link.*\n.*#reset=([\w-]{43})\n`},
			} {
				env := map[string]string{"DEMO": "maybe", "RATE_LIMIT_SECRET": "short", "TURSO_DATABASE_URL": url, "SMTP_URL": c.smtp, "SITE_URL": c.site}
				if _, err := a.CreateAdmin(t.Context(), accounts.Name(c.name), password); err != nil {
					t.Fatal(err)
				}
				if _, err := db.Exec("UPDATE accounts SET email = nullif(?, '') WHERE username = ?", c.email, c.name); err != nil {
					t.Fatal(err)
				}
				_, session, err := a.SignIn(t.Context(), c.name, password, accounts.Device{})
				if err != nil {
					t.Fatal(err)
				}
				code, stdout, stderr := admin(t, env, "", "reset", strings.ToUpper(c.name))
				found := regexp.MustCompile(c.form).FindStringSubmatch(stdout)
				if code != c.code || found == nil || (code == 0) != (stderr == "") || !strings.HasPrefix(stdout, "the password of "+c.name+" is no longer good") {
					t.Fatalf("%s: got code %d, %q, %q", c.name, code, stdout, stderr)
				}
				if strings.Contains(stdout+stderr, "@example.org") {
					t.Errorf("%s: an address is printed: %q, %q", c.name, stdout, stderr)
				}
				if _, _, _, err := a.Session(t.Context(), session.Token); err != accounts.ErrNoSession {
					t.Errorf("%s: the session goes on: %v", c.name, err)
				}
				if _, _, err := a.SignIn(t.Context(), c.name, password, accounts.Device{}); err != accounts.ErrCredentials {
					t.Errorf("%s: the password is still good: %v", c.name, err)
				}
				var token string
				switch {
				case len(found) > 1:
					token = found[1]
				case c.smtp != "":
					all := working.Messages()
					if len(all) != 1 || all[0].To != c.email {
						t.Fatalf("%s: the server took %+v", c.name, all)
					}
					text := strings.NewReplacer("=\r\n", "", "=3D", "=").Replace(all[0].Data)
					token = tokenIn(t, text)
				default:
					var recipient, text string
					if err := db.QueryRow("SELECT recipient, body FROM outbox ORDER BY id DESC").Scan(&recipient, &text); err != nil || recipient != c.email {
						t.Fatalf("%s: the newest message is for %q, %v", c.name, recipient, err)
					}
					token = tokenIn(t, text)
				}
				if strings.Contains(stdout, token) != (len(found) > 1) {
					t.Errorf("%s: the token is printed and mailed", c.name)
				}
				if err := a.ResetPassword(t.Context(), token, another); err != nil {
					t.Fatal(err)
				}
				if _, _, err := a.SignIn(t.Context(), c.name, another, accounts.Device{}); err != nil {
					t.Errorf("%s: after the reset: %v", c.name, err)
				}
			}
			env := map[string]string{"TURSO_DATABASE_URL": url}
			for _, name := range []string{"nobody", "demo-member"} {
				if code, stdout, stderr := admin(t, env, "", "reset", name); code != command.Failed || stdout != "" || !strings.Contains(stderr, "no account") {
					t.Errorf("%s: got code %d, %q, %q", name, code, stdout, stderr)
				}
			}
			env["SMTP_URL"] = "smtps://weir:s3cr3t@mail.example.org"
			code, stdout, stderr := admin(t, env, "", "reset", "anna")
			if code != command.Failed || stdout != "" || !strings.Contains(stderr, "SMTP_URL") || strings.Contains(stderr, "s3cr3t") {
				t.Errorf("a wrong setting: got code %d, %q, %q", code, stdout, stderr)
			}
			if _, _, err := a.SignIn(t.Context(), "anna", another, accounts.Device{}); err != nil {
				t.Errorf("with a wrong setting something was done: %v", err)
			}
		})
	}
}

func tokenIn(t *testing.T, text string) string {
	t.Helper()
	found := regexp.MustCompile(`#reset=([\w-]{43})`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no token in %s", text)
	}
	return found[1]
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
		{"list", "anna"}, {"reset"}, {"reset", "anna", "-"}, {"delete", "anna"}, {"create", "x"}, {"promote", "not a name"}, {"create", ""}, {"create", "a b", "-"}, {""},
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
