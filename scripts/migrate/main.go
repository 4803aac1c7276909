// Command migrate brings the schema of the database that the functions use up or down.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/migrate COMMAND

  up        apply every migration that is missing
  down      take back all migrations, WITH THE DATA in their tables
  down N    take back the newest N migrations, with the data in their tables
  version   print the version
  force N   set the version to N (-1 for none) without running anything

Each of them fails, and says what to do, on a schema that is dirty (but for force) or that a newer build made.

The database is TURSO_DATABASE_URL with TURSO_AUTH_TOKEN; off the platform, when the URL is unset, the file
.data/weir.db of the project. With TURSO_DATABASE_URLS or TURSO_DATABASE_URLS_NEXT it is done to each of those too. Exit codes of the built program: 0 done or "no change", 1 failed, 2 wrong usage,
3 another process is migrating. go run turns every code but 0 into 1.
`

const exitLocked = 3

const (
	// A migration may take longer than a decision, so STORE_DEADLINE does not apply. Less than the lock lasts, which
	// each migration renews.
	callDeadline = 30 * time.Second

	// Longer than the lock of a migrator that was killed.
	totalDeadline = 5 * time.Minute
)

func main() {
	command.Main(totalDeadline, func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	})
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	if command.AsksForHelp(args) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	do, ok := parse(args)
	if !ok {
		fmt.Fprint(stderr, usage)
		return command.WrongUsage
	}
	err := command.WithDatabases(lookup, callDeadline, func(name string, several bool, db *database.DB) error {
		message, err := do(ctx, db)
		switch {
		case err != nil:
			return err
		case several && name == "":
			name = "TURSO_DATABASE_URL"
			fallthrough
		case several:
			message = name + ": " + message
		}
		fmt.Fprintln(stdout, message)
		return nil
	})
	switch {
	case errors.Is(err, migration.ErrLocked):
		fmt.Fprintln(stderr, err)
		return exitLocked
	case err != nil:
		fmt.Fprintln(stderr, err)
		return command.Failed
	}
	return 0
}

// action does one thing to the database and returns what to print.
type action func(context.Context, *database.DB) (string, error)

func parse(args []string) (action, bool) {
	if len(args) == 0 || len(args) > 2 {
		return nil, false
	}
	number, err := 0, error(nil)
	if len(args) == 2 {
		number, err = strconv.Atoi(args[1])
		if err != nil {
			return nil, false
		}
	}
	switch args[0] {
	case "up":
		return func(ctx context.Context, db *database.DB) (string, error) {
			return outcome(ctx, db)(migration.Up(ctx, db))
		}, len(args) == 1
	case "down":
		return func(ctx context.Context, db *database.DB) (string, error) {
			return outcome(ctx, db)(migration.Down(ctx, db, number))
		}, len(args) == 1 || number > 0
	case "version":
		return func(ctx context.Context, db *database.DB) (string, error) { return version(ctx, db) }, len(args) == 1
	case "force":
		return func(ctx context.Context, db *database.DB) (string, error) {
			return outcome(ctx, db)(true, migration.Force(ctx, db, number))
		}, len(args) == 2
	}
	return nil, false
}

func outcome(ctx context.Context, db *database.DB) func(changed bool, err error) (string, error) {
	return func(changed bool, err error) (string, error) {
		if err != nil {
			return "", err
		}
		text, err := version(ctx, db)
		if !changed {
			text = "no change: " + text
		}
		return text, err
	}
}

func version(ctx context.Context, db *database.DB) (string, error) {
	v, err := migration.Check(ctx, db)
	switch {
	case err != nil:
		return "", err
	case v == migration.NilVersion:
		return "no migration", nil
	}
	return fmt.Sprintf("version %d", v), nil
}
