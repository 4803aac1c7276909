// Command codes tops up the pool of invite codes, in the database that the functions use.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
)

const usage = `usage: go run ./scripts/codes N

brings the pool of invite codes to N that are not used, N from 0 to %d. Codes are never taken away.

The database is TURSO_DATABASE_URL with TURSO_AUTH_TOKEN; off the platform, when the URL is unset, the file
.data/weir.db of the project. Exit codes of the built program: 0 done, 1 failed, 2 wrong usage. go run turns
every code but 0 into 1.
`

const (
	exitFailed = 1
	exitUsage  = 2
)

// totalDeadline is ample for the two statements, the second of which may write codes.MaxPool rows.
const totalDeadline = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, totalDeadline)
	code := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	cancel()
	stop()
	os.Exit(code)
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		fmt.Fprintf(stdout, usage, codes.MaxPool)
		return 0
	}
	if len(args) != 1 {
		fmt.Fprintf(stderr, usage, codes.MaxPool)
		return exitUsage
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 || n > codes.MaxPool {
		fmt.Fprintf(stderr, "codes: %q is not a number of codes: allowed are 0 to %d\n", args[0], codes.MaxPool)
		return exitUsage
	}
	if err := fill(ctx, lookup, n); err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	fmt.Fprintf(stdout, "the pool holds at least %d codes that are not used\n", n)
	return 0
}

func fill(ctx context.Context, lookup func(string) (string, bool), n int) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("codes: %w", err)
	}
	root, err := app.FindRoot(dir)
	if err != nil {
		return err
	}
	config, err := app.LoadDatabase(lookup, root)
	if err != nil {
		return err
	}
	config.Deadline = totalDeadline
	db, err := database.Open(config)
	if err != nil {
		return err
	}
	defer db.Close()
	var migrated bool
	if err := db.QueryRowContext(ctx, `SELECT count(*) > 0 FROM sqlite_master WHERE name = 'invite_codes'`).Scan(&migrated); err != nil {
		return fmt.Errorf("codes: read the schema: %w", err)
	}
	if !migrated {
		return errors.New("codes: the database has no pool of codes yet: run `go run ./scripts/migrate up` first")
	}
	return codes.New(db.DB, codes.Config{}).Fill(ctx, n)
}
