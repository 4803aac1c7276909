// Command keys gives out and ends the API keys of partners, in the database that the functions use.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/partners"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/keys COMMAND

  create PLAN LABEL  make a key and print it, once and alone, on standard output
  list               print number, plan, times and label of all keys, and no key
  revoke NUMBER      end a key, for good and from the next request on
  plan NUMBER PLAN   change the plan of a key, from the next request on

PLAN is free or paid; LABEL tells people whose key it is, in up to %d bytes. To change a key, create another one, and revoke
the first when it is no longer used.

The database is TURSO_DATABASE_URL with TURSO_AUTH_TOKEN; off the platform, when the URL is unset, the file
.data/weir.db of the project. Exit codes of the built program: 0 done, 1 failed, 2 wrong usage. go run turns
every code but 0 into 1.
`

// totalDeadline is ample for two statements, one of which may read partners.MaxKeys rows.
const totalDeadline = 30 * time.Second

func main() {
	command.Main(totalDeadline, func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	})
}

// errUsage means that a command line is none, and is answered with the usage.
var errUsage = errors.New("wrong usage")

// action does one thing. What it says besides its result goes to notes.
type action func(ctx context.Context, p *partners.Partners, out, notes io.Writer) error

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	if command.AsksForHelp(args) {
		fmt.Fprintf(stdout, usage, partners.MaxLabelBytes)
		return 0
	}
	do, err := parse(args)
	if err != nil {
		if errors.Is(err, errUsage) {
			fmt.Fprintf(stderr, usage, partners.MaxLabelBytes)
		} else {
			fmt.Fprintf(stderr, "keys: %v\n", err)
		}
		return command.WrongUsage
	}
	err = command.WithDatabase(lookup, totalDeadline, func(db *database.DB) error {
		if err := command.NeedTable(ctx, db, "partner_keys"); err != nil {
			return err
		}
		return do(ctx, partners.New(db.DB, partners.Config{}), stdout, stderr)
	})
	switch reason, told := told(err); {
	case told:
		fmt.Fprintf(stderr, "keys: %s\n", reason)
		return command.WrongUsage
	case err != nil:
		fmt.Fprintf(stderr, "keys: %s\n", reason)
		return command.Failed
	}
	return 0
}

func parse(args []string) (action, error) {
	form := ""
	if len(args) > 0 {
		form = args[0]
	}
	switch {
	case form == "create" && len(args) == 3:
		return create(partners.Plan(args[1]), args[2]), nil
	case form == "list" && len(args) == 1:
		return list, nil
	case form == "revoke" && len(args) == 2:
		id, err := number(args[1])
		return revoke(id), err
	case form == "plan" && len(args) == 3:
		id, err := number(args[1])
		return setPlan(id, partners.Plan(args[2])), err
	}
	return nil, errUsage
}

// number reads the number of a key. The error doesn't repeat the text, which may be a key.
func number(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, errors.New("a key is named by its number, which list prints")
	}
	return id, nil
}

// told is an error in a sentence for whoever typed the command, and says whether what was typed is at fault.
func told(err error) (string, bool) {
	switch {
	case err == nil:
		return "", false
	case errors.Is(err, partners.ErrPlan):
		return partners.PlanRule, true
	case errors.Is(err, partners.ErrLabel):
		return partners.LabelRule, true
	case errors.Is(err, partners.ErrID):
		return "no key that is good has this number: list prints those that there are", false
	case errors.Is(err, partners.ErrTooMany):
		return fmt.Sprintf("there are %d keys, revoked ones included: there can be no more", partners.MaxKeys), false
	}
	return err.Error(), false
}

func create(plan partners.Plan, label string) action {
	return func(ctx context.Context, p *partners.Partners, out, notes io.Writer) error {
		id, key, err := p.Create(ctx, plan, label)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, key); err != nil {
			return fmt.Errorf("the key %d could not be printed, revoke it: %w", id, err)
		}
		fmt.Fprintf(notes, "This is the key %d, of the plan %s, for %q. Nobody can tell it again.\n", id, plan, label)
		return nil
	}
}

func list(ctx context.Context, p *partners.Partners, out, _ io.Writer) error {
	all, err := p.List(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NUMBER\tPLAN\tCREATED\tREVOKED\tLABEL")
	for _, key := range all {
		revoked := "-"
		if !key.Revoked.IsZero() {
			revoked = key.Revoked.Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", key.ID, key.Plan, key.Created.Format(time.RFC3339), revoked, key.Label)
	}
	return table.Flush()
}

func revoke(id int64) action {
	return func(ctx context.Context, p *partners.Partners, out, _ io.Writer) error {
		if err := p.Revoke(ctx, id); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "the key %d is revoked\n", id)
		return err
	}
}

func setPlan(id int64, plan partners.Plan) action {
	return func(ctx context.Context, p *partners.Partners, out, _ io.Writer) error {
		if err := p.SetPlan(ctx, id, plan); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "the plan of the key %d is %s\n", id, plan)
		return err
	}
}
