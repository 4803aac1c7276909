// Command admin makes admins, and ends the password of an account that somebody else may be in, in the database that the
// functions use.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/resets"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/admin COMMAND

  create NAME     make an admin with a random password, which is printed once
  create NAME -   the same with a password that is read from the terminal, or from standard input up to the end of a line
  promote NAME    make an admin of a member, from the next request on
  demote NAME     make a member of an admin, from the next request on
  list            print the names of the admins
  reset NAME      end the password of an account that somebody else may know, with all its sessions, and mail its owner a link
                  for a new one, by SMTP_URL and SITE_URL; where no e-mail is known, or the mail fails, print the link

The database is TURSO_DATABASE_URL with TURSO_AUTH_TOKEN; off the platform, when the URL is unset, the file
.data/weir.db of the project. Exit codes of the built program: 0 done, 1 failed, 2 wrong usage. go run turns
every code but 0 into 1.
`

const (
	callDeadline = 30 * time.Second // ample for a statement, and STORE_DEADLINE is for requests

	// totalDeadline is ample for somebody who types a password twice.
	totalDeadline = 5 * time.Minute

	// maxLineBytes bounds what is read of a password; longer than any can be.
	maxLineBytes = 4096
)

// terminal is what the command reads from and writes to.
type terminal struct {
	in       io.Reader
	out, err io.Writer
}

func main() {
	command.Main(totalDeadline, func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.LookupEnv, terminal{os.Stdin, os.Stdout, os.Stderr})
	})
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), t terminal) int {
	if command.AsksForHelp(args) {
		fmt.Fprint(t.out, usage)
		return 0
	}
	do := parse(args)
	if do == nil {
		fmt.Fprint(t.err, usage)
		return command.WrongUsage
	}
	var name accounts.Name
	if len(args) > 1 {
		var err error
		if name, err = accounts.ParseName(args[1]); err != nil {
			fmt.Fprintf(t.err, "admin: %q is no user name: %s\n", args[1], accounts.NameRule)
			return command.WrongUsage
		}
	}
	err := command.WithDatabase(lookup, callDeadline, func(db *database.DB) error {
		if err := command.NeedTable(ctx, db, "accounts"); err != nil {
			return err
		}
		return do(ctx, parts{accounts.New(db.DB, accounts.Config{}), db, lookup}, name, t)
	})
	if err != nil {
		fmt.Fprintf(t.err, "admin: %s\n", reason(err))
		return command.Failed
	}
	return 0
}

// parts are what an action works with.
type parts struct {
	*accounts.Accounts
	db     *database.DB
	lookup func(string) (string, bool) // of the environment
}

// action does one thing, to the account of a name where the command takes one.
type action func(context.Context, parts, accounts.Name, terminal) error

func parse(args []string) action {
	form := strings.Join(args[:min(1, len(args))], "")
	if len(args) == 3 && args[2] == "-" {
		form += " -"
	} else if len(args) > 2 {
		return nil
	}
	if wantsName := form != "list"; wantsName != (len(args) > 1) {
		return nil
	}
	return map[string]action{
		"create":   createAtRandom,
		"create -": createByInput,
		"promote":  setRole(accounts.Admin),
		"demote":   setRole(accounts.Member),
		"list":     list,
		"reset":    reset,
	}[form]
}

func createAtRandom(ctx context.Context, a parts, name accounts.Name, t terminal) error {
	password := rand.Text()
	if _, err := a.CreateAdmin(ctx, name, password); err != nil {
		return err
	}
	_, err := fmt.Fprintf(t.out, "%s is an admin, with the password\n%s\nNobody can tell it again.\n", name, password)
	return err
}

func createByInput(ctx context.Context, a parts, name accounts.Name, t terminal) error {
	password, err := readPassword(ctx, t)
	if err != nil {
		return err
	}
	if _, err := a.CreateAdmin(ctx, name, password); err != nil {
		return err
	}
	_, err = fmt.Fprintf(t.out, "%s is an admin\n", name)
	return err
}

func setRole(role accounts.Role) action {
	return func(ctx context.Context, a parts, name accounts.Name, t terminal) error {
		if err := a.SetRole(ctx, name, role); err != nil {
			return err
		}
		_, err := fmt.Fprintf(t.out, "the role of %s is %s\n", name, role)
		return err
	}
}

func list(ctx context.Context, a parts, _ accounts.Name, t terminal) error {
	admins, err := a.Admins(ctx)
	for _, admin := range admins {
		fmt.Fprintln(t.out, admin.Name)
	}
	return err
}

// reset ends a password first and sees to a new one then: what fails in between can be done again.
func reset(ctx context.Context, a parts, name accounts.Name, t terminal) error {
	settings, err := app.LoadMail(a.lookup) // before anything is done
	if err != nil {
		return err
	}
	account, email, err := a.RevokePassword(ctx, name)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(t.out, "the password of %s is no longer good, and %[1]s is signed out everywhere\n", name); err != nil {
		return err
	}
	token, err := a.StartReset(ctx, account)
	if err != nil {
		return err
	}
	if email == "" {
		return printWay(t, "no e-mail of its owner is known", settings.Site, token)
	}
	var sender mail.Sender = mail.NewOutbox(a.db.DB, mail.OutboxConfig{})
	how := "a link for a new one is in the table outbox, since SMTP_URL is not set"
	if settings.SMTP != nil {
		sender = mail.NewSMTP(*settings.SMTP)
		how = "a link for a new one is mailed to its owner"
	}
	if err := resets.New(sender, settings.Site).Send(ctx, "", resets.Revoked, email, account, token); err != nil {
		return errors.Join(err, printWay(t, "the mail failed", settings.Site, token))
	}
	_, err = fmt.Fprintln(t.out, how)
	return err
}

// printWay prints what its owner needs, for whoever runs the command to hand over.
func printWay(t terminal, why, site string, token accounts.Reset) error {
	what := "this link"
	if site == "" {
		what = "this token for the page"
	}
	_, err := fmt.Fprintf(t.out, "%s: give them %s, good once until %s\n%s\nNobody can tell it again.\n",
		why, what, token.Expires.Format("2 January 2006, 15:04 UTC"), resets.Way(site, token))
	return err
}

// reason is an error in a sentence for whoever typed the command.
func reason(err error) string {
	switch {
	case errors.Is(err, accounts.ErrNameTaken):
		return "the name is taken, or kept for the demo"
	case errors.Is(err, accounts.ErrNoAccount):
		return "there is no account of this name, or it is the demo's"
	case errors.Is(err, accounts.ErrPassword):
		return accounts.PasswordRule
	case errors.Is(err, accounts.ErrBreached):
		return "this password is in lists of stolen ones, or is made of the name"
	}
	return err.Error()
}

// readPassword reads a line. On a terminal it asks twice and shows nothing of what is typed.
func readPassword(ctx context.Context, t terminal) (string, error) {
	file, isFile := t.in.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		line, err := bufio.NewReader(io.LimitReader(t.in, maxLineBytes)).ReadString('\n')
		if err != nil && err != io.EOF {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	first, err := askHidden(ctx, file, t.err, "Password: ")
	if err != nil {
		return "", err
	}
	second, err := askHidden(ctx, file, t.err, "The same again: ")
	if err == nil && first != second {
		err = errors.New("the two passwords differ")
	}
	return first, err
}

// askHidden reads a line without showing it. When ctx ends first the terminal shows again what is typed.
func askHidden(ctx context.Context, file *os.File, prompt io.Writer, question string) (string, error) {
	terminal := int(file.Fd())
	before, err := term.GetState(terminal)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	fmt.Fprint(prompt, question)
	defer fmt.Fprintln(prompt)
	type line struct {
		text []byte
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := term.ReadPassword(terminal)
		read <- line{text, err}
	}()
	select {
	case got := <-read:
		return string(got.text), got.err
	case <-ctx.Done():
		return "", errors.Join(ctx.Err(), term.Restore(terminal, before))
	}
}
