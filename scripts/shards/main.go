// Command shards helps to change the databases that counters are spread over.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/shards carry

  carry   copies the bans and exemptions that hold, from the databases that counters are in to those of
          TURSO_DATABASE_URLS_NEXT. Run it while that is set, after the wait that docs/operations.md tells, and lift no ban
          meanwhile. A second time it copies what is missing.

The counters are in the databases of TURSO_DATABASE_URLS or, without it, in TURSO_DATABASE_URL; all have TURSO_AUTH_TOKEN. Exit
codes of the built program: 0 done, 1 failed, 2 wrong usage. go run turns every code but 0 into 1.
`

const (
	callDeadline  = 30 * time.Second
	totalDeadline = 10 * time.Minute
	pageRows      = 1000
)

func main() {
	command.Main(totalDeadline, func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	})
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	switch {
	case command.AsksForHelp(args):
		fmt.Fprint(stdout, usage)
		return 0
	case len(args) != 1 || args[0] != "carry":
		fmt.Fprint(stderr, usage)
		return command.WrongUsage
	}
	copied, err := carry(ctx, lookup)
	if err != nil {
		fmt.Fprintln(stderr, "shards:", err)
		return command.Failed
	}
	fmt.Fprintf(stdout, "%d bans and exemptions copied\n", copied)
	return 0
}

// carry copies what operators said last and still holds. Which database a key's subject lies in can't be told from the key, so each
// of the next ones gets all of it: what is of no use there ends with its time. Of a key that several databases know, the last word
// counts, since one may be a copy of what was lifted elsewhere; then the copy ends too.
func carry(ctx context.Context, lookup func(string) (string, bool)) (copied int, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, fmt.Errorf("working directory: %w", err)
	}
	root, err := app.FindRoot(dir)
	if err != nil {
		return 0, err
	}
	now, next, end, err := app.OpenShards(ctx, lookup, root, callDeadline)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if len(next) == 0 {
		return 0, errors.New("TURSO_DATABASE_URLS_NEXT is not set: there is nothing to carry anything to")
	}
	last := map[int64]sqlstore.Word{}
	for name, store := range now {
		if err := each(ctx, store, func(word sqlstore.Word) error {
			if known, found := last[word.Key]; !found || word.Said.After(known.Said) {
				last[word.Key] = word
			}
			return nil
		}); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	for name, store := range next {
		missing := map[int64]sqlstore.Word{}
		for key, word := range last {
			if word.Action != ratelimit.Reset {
				missing[key] = word
			}
		}
		err := each(ctx, store, func(word sqlstore.Word) error {
			switch wanted, found := last[word.Key]; {
			case found && wanted.Action == word.Action && wanted.Until.Equal(word.Until):
				delete(missing, word.Key)
			case found && wanted.Action == ratelimit.Reset && wanted.Said.After(word.Said):
				// It was lifted elsewhere, and ends here when that was said. A reset would forget what is charged here, too.
				word.Until = wanted.Said
				missing[word.Key] = word
			}
			return nil
		})
		for key, word := range missing {
			if err == nil {
				err = store.Operate(ctx, ratelimit.Operation{Key: key, Policy: word.Policy, Action: word.Action, UntilMicros: word.Until.UnixMicro()})
				copied++
			}
		}
		if err != nil {
			return copied, fmt.Errorf("%s: %w", name, err)
		}
	}
	return copied, nil
}

// each goes through what operators said in one database.
func each(ctx context.Context, store *sqlstore.Store, do func(sqlstore.Word) error) error {
	for from := int64(0); ; {
		words, err := store.Words(ctx, from, pageRows)
		if err != nil {
			return err
		}
		for _, word := range words {
			if err := do(word); err != nil {
				return err
			}
		}
		if len(words) < pageRows || words[len(words)-1].Key == math.MaxInt64 {
			return nil
		}
		from = words[len(words)-1].Key + 1
	}
}
