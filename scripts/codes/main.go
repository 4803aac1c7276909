// Command codes tops up the pool of invite codes, in the database that the functions use.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/codes N

brings the pool of invite codes to N that are not used, N from 0 to %d. Codes are never taken away.

The database is TURSO_DATABASE_URL with TURSO_AUTH_TOKEN; off the platform, when the URL is unset, the file
.data/weir.db of the project. Exit codes of the built program: 0 done, 1 failed, 2 wrong usage. go run turns
every code but 0 into 1.
`

// totalDeadline is ample for the two statements, the second of which may write codes.MaxPool rows.
const totalDeadline = 30 * time.Second

func main() {
	command.Main(totalDeadline, func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	})
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	if command.AsksForHelp(args) {
		fmt.Fprintf(stdout, usage, codes.MaxPool)
		return 0
	}
	if len(args) != 1 {
		fmt.Fprintf(stderr, usage, codes.MaxPool)
		return command.WrongUsage
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 || n > codes.MaxPool {
		fmt.Fprintf(stderr, "codes: %q is not a number of codes: allowed are 0 to %d\n", args[0], codes.MaxPool)
		return command.WrongUsage
	}
	err = command.WithDatabase(lookup, totalDeadline, func(db *database.DB) error {
		if err := command.NeedTable(ctx, db, "invite_codes"); err != nil {
			return err
		}
		return codes.New(db.DB, codes.Config{}).Fill(ctx, n)
	})
	if err != nil {
		fmt.Fprintln(stderr, err)
		return command.Failed
	}
	fmt.Fprintf(stdout, "the pool holds at least %d codes that are not used\n", n)
	return 0
}
