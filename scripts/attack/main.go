// Command attack tells of attacks on passwords all over, and ends the one that is on, in the database that the functions use.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/stuffing"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/attack COMMAND

  list  print the newest attacks, with what was seen when each began, and whether one is on
  end   end the one that is on, and the response to it: for a false alarm, or one that is known. What was seen counts
        as normal from then on, and no attack begins for an hour

The database is TURSO_DATABASE_URL with TURSO_AUTH_TOKEN; off the platform, when the URL is unset, the file
.data/weir.db of the project. Exit codes of the built program: 0 done, 1 failed, 2 wrong usage, 3 no attack is on to
be ended. go run turns every code but 0 into 1.
`

// totalDeadline is ample for two statements.
const totalDeadline = 30 * time.Second

// noneIsOn is the exit code of an end without an attack.
const noneIsOn = 3

// listed bounds a list.
const listed = 100

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
	if len(args) != 1 || args[0] != "list" && args[0] != "end" {
		fmt.Fprint(stderr, usage)
		return command.WrongUsage
	}
	code := 0
	err := command.WithDatabase(lookup, totalDeadline, func(db *database.DB) (err error) {
		if err := command.NeedTable(ctx, db, "attacks"); err != nil {
			return err
		}
		d := stuffing.New(db.DB, stuffing.Config{})
		if args[0] == "list" {
			return list(ctx, d, stdout)
		}
		code, err = end(ctx, d, stdout, stderr)
		return err
	})
	if err != nil {
		fmt.Fprintf(stderr, "attack: %v\n", err)
		return command.Failed
	}
	return code
}

func list(ctx context.Context, d *stuffing.Detector, out io.Writer) error {
	all, err := d.List(ctx, listed)
	if err != nil {
		return err
	}
	on, err := d.Read(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NUMBER\tBEGUN\tLAST SEEN\tENDED\tFAILED\tIN MINUTES\tACCOUNTS\tADDRESSES")
	for _, a := range all {
		ended := "-"
		if !a.Ended.IsZero() {
			ended = a.Ended.Format(time.RFC3339)
		}
		f := a.Figures
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d of %d\t%d\t~%d\t~%d\n", a.ID, a.Begun.Format(time.RFC3339), a.Last.Format(time.RFC3339), ended,
			f.Failures, f.Failures+f.Successes, f.Minutes, f.Accounts, f.Addresses)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	state := "no attack is on"
	if on {
		state = "an attack is on"
	}
	_, err = fmt.Fprintln(out, state)
	return err
}

func end(ctx context.Context, d *stuffing.Detector, out, notes io.Writer) (int, error) {
	ended, err := d.End(ctx)
	if err != nil {
		return command.Failed, err
	}
	if !ended {
		fmt.Fprintln(notes, "attack: none is on")
		return noneIsOn, nil
	}
	_, err = fmt.Fprintln(out, "the attack is ended")
	return 0, err
}
