// Package command is how the commands on the database that the functions use begin and end.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
)

// Exit codes besides 0. Those of a command's own begin at 3.
const (
	Failed     = 1
	WrongUsage = 2
)

// Main runs a command for so long at the most, or until the process is asked to end, and ends it with the command's exit code.
func Main(longest time.Duration, run func(context.Context) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, longest)
	code := run(ctx)
	cancel()
	stop()
	os.Exit(code)
}

// AsksForHelp says whether a command line is a question for its usage, which then is no mistake.
func AsksForHelp(args []string) bool {
	return len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help")
}

// WithDatabase opens the database that the environment names, by the settings of the database alone (app.LoadDatabase), for
// as long as do runs. Each call to it may take as long as callDeadline: STORE_DEADLINE is for requests.
func WithDatabase(lookup func(string) (string, bool), callDeadline time.Duration, do func(*database.DB) error) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	root, err := app.FindRoot(dir)
	if err != nil {
		return err
	}
	config, err := app.LoadDatabase(lookup, root)
	if err != nil {
		return err
	}
	config.Deadline = callDeadline
	db, err := database.Open(config)
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}

// WithDatabases does the same with that database and then with each of the shards, whose names it tells do; the database's own
// is "". What fails for one is done for the others all the same.
func WithDatabases(lookup func(string) (string, bool), callDeadline time.Duration, do func(name string, several bool, db *database.DB) error) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	root, err := app.FindRoot(dir)
	if err != nil {
		return err
	}
	config, now, next, err := app.LoadShards(lookup, root)
	if err != nil {
		return err
	}
	config.Deadline = callDeadline
	shards := app.ShardsBeside(config.URL, now, next)
	var errs []error
	for _, shard := range append([]app.ShardSetting{{URL: config.URL}}, shards...) {
		config.URL = shard.URL
		db, err := database.Open(config)
		if err == nil {
			err = errors.Join(do(shard.Name, len(shards) > 0, db), db.Close())
		}
		if err != nil && shard.Name != "" {
			err = fmt.Errorf("%s: %w", shard.Name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// NeedTable returns an error that says what to do if the schema is dirty, or a newer build's, or
// lacks a table.
func NeedTable(ctx context.Context, db *database.DB, name string) error {
	if _, err := migration.Check(ctx, db); err != nil {
		return err
	}
	var there bool
	if err := db.QueryRowContext(ctx, `SELECT count(*) > 0 FROM sqlite_master WHERE type = 'table' AND name = ?`, name).Scan(&there); err != nil {
		return fmt.Errorf("read the schema: %w", err)
	}
	if !there {
		return fmt.Errorf("the database has no table %s yet: run `go run ./scripts/migrate up` first", name)
	}
	return nil
}
