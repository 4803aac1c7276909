// Command size reckons what a limit costs before it is there: its storage, the rows that it writes in a month, and what Turso's
// plans ask for that. The storage is measured, in a table that it fills.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirlimits/weir/lib/policies"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/size [-clients N] [-algorithm NAME] [-limit N] [-queue N] [-requests N] [-visits N] [-trips N] [-refunds N] [-sample N]

prints what one limit takes and costs: the storage, by arithmetic and as measured in a table that it fills in a file of its own and
deletes, the rows written in a month, and the month's price on each of Turso's plans.

  -clients    keys that are live at once, 1000000 when left out, each with its limit used up
  -algorithm  fixed-window, sliding-window, sliding-log, token-bucket or leaky-bucket; fixed-window when left out
  -limit      units in a window, 100 when left out
  -queue      of a leaky-bucket: how many may wait, the limit less one when left out
  -requests   of a client in a month that the limit admits, 1000 when left out
  -visits     how often in a month a client comes back after its row has gone, 30 when left out: the row goes as often
  -trips      windows of a client in a month in which the limit refuses, 0 when left out
  -refunds    charges of a client in a month that are given back, 0 when left out
  -sample     keys of the table that is filled, 20000 when left out; fewer where that would be more than a gigabyte

Exit codes of the built program: 0 done, 1 the table could not be filled, 2 wrong usage. go run turns every code but 0 into 1.
`

// longest bounds the command: filling the largest table takes a minute or two.
const longest = 10 * time.Minute

func main() {
	command.Main(longest, func(ctx context.Context) int { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

// The bounds of what is asked: a thousand million is more than a database holds, and keeps each product within an int64.
const (
	maxCount      = 1_000_000_000
	minSample     = 100
	maxSampleSize = 1_000_000_000 // bytes
)

// question is what the command line asks.
type question struct {
	policy                           ratelimit.Policy
	clients, sample                  int64
	requests, visits, trips, refunds int64 // of a client in a month
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	q, err := ask(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "size: %v\n%s", err, usage)
		return command.WrongUsage
	}
	perKey, err := measure(ctx, q.policy, q.sample)
	if err != nil {
		fmt.Fprintf(stderr, "size: %v\n", err)
		return command.Failed
	}
	print(stdout, q, perKey)
	return 0
}

func ask(args []string) (question, error) {
	flags := flag.NewFlagSet("size", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var q question
	var algorithm string
	var limit, queue int64
	flags.StringVar(&algorithm, "algorithm", ratelimit.FixedWindow.String(), "")
	numbers := []struct {
		name            string
		value           *int64
		byDefault, from int64
	}{
		{"clients", &q.clients, 1_000_000, 1}, {"limit", &limit, 100, 1}, {"queue", &queue, -1, 0}, {"requests", &q.requests, 1000, 0},
		{"visits", &q.visits, 30, 0}, {"trips", &q.trips, 0, 0}, {"refunds", &q.refunds, 0, 0}, {"sample", &q.sample, 20_000, minSample},
	}
	for _, n := range numbers {
		flags.Int64Var(n.value, n.name, n.byDefault, "")
	}
	if err := flags.Parse(args); err != nil {
		return question{}, err
	}
	if flags.NArg() > 0 {
		return question{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, n := range numbers {
		if given[n.name] && (*n.value < n.from || *n.value > maxCount) {
			return question{}, fmt.Errorf("-%s is %d: allowed are %d to %d", n.name, *n.value, n.from, int64(maxCount))
		}
	}
	var err error
	q.policy, err = policyOf(algorithm, limit, queue)
	if q.refunds > q.requests {
		err = errors.Join(err, fmt.Errorf("-refunds is %d of %d requests: no more can be given back", q.refunds, q.requests))
	}
	// The last term is what a log takes; rows of others are far below 100 bytes.
	q.sample = min(q.sample, max(q.clients, minSample), max(minSample, maxSampleSize/(100+entryBytes(q.policy))))
	return q, err
}

// policyOf makes a policy whose keys outlive the filling of a table. What it may be is what RATE_LIMIT_POLICIES may say.
func policyOf(algorithm string, limit, queue int64) (ratelimit.Policy, error) {
	row := map[string]any{"name": policyName, "algorithm": algorithm, "limit": limit, "window": "720h"}
	switch {
	case queue >= 0:
		row["queue"] = queue
	case algorithm == ratelimit.LeakyBucket.String():
		row["queue"] = limit - 1
	}
	setting, err := json.Marshal([]any{row})
	if err != nil {
		return ratelimit.Policy{}, err
	}
	set, err := policies.Set{}.With(string(setting))
	if err != nil {
		return ratelimit.Policy{}, err
	}
	policy, _ := set.Named(policyName)
	return policy, nil
}

// policyName is stored with each key: as long as those of the application are.
const policyName = "partner-api"

// wordBytes is a number as arithmetic has it.
const wordBytes = 8

// entryBytes is what the algorithm has to keep of a key that is used up: a log each unit's time, the others two numbers.
func entryBytes(policy ratelimit.Policy) int64 {
	if policy.Algorithm == ratelimit.SlidingLog {
		return policy.Limit * wordBytes
	}
	return 2 * wordBytes // two counts, or a count and since when
}

// rowsWritten is what a client writes in a month, as Turso counts rows: docs/guide.md says which of them a test counts.
func (q question) rowsWritten() int64 {
	// A trip is the mark and the audit row, which goes when its retention is over; a visit ends with a row that goes.
	return q.requests + 3*q.trips + (q.refundRows()+q.refundIndexRows())*q.refunds + q.visits
}

// refundRows are those that a refund writes: its own, which goes again, and the key's, twice for a log.
func (q question) refundRows() int64 {
	if q.policy.Algorithm == ratelimit.SlidingLog {
		return 4
	}
	return 3
}

// refundIndexRows are those that the index of a bucket's refunds adds, which Turso counts as rows.
func (q question) refundIndexRows() int64 {
	if q.policy.Algorithm == ratelimit.TokenBucket || q.policy.Algorithm == ratelimit.LeakyBucket {
		return 2
	}
	return 0
}

func print(w io.Writer, q question, perKey float64) {
	clients := float64(q.clients)
	rows := clients * float64(q.rowsWritten())
	storage := clients * perKey
	fmt.Fprintf(w, "%d clients, %s of %d, used up\n\n", q.clients, q.policy.Algorithm, q.policy.Limit)
	fmt.Fprintf(w, "storage by arithmetic  %s: %d × %d bytes\n", inBytes(clients*float64(entryBytes(q.policy))), q.clients, entryBytes(q.policy))
	fmt.Fprintf(w, "storage as measured    %s: %d × %.0f bytes, a table of %d keys filled\n", inBytes(storage), q.clients, perKey, q.sample)
	fmt.Fprintf(w, "rows written a month   %s: %d × %d\n\n", count(rows), q.clients, q.rowsWritten())
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "plan\tstorage in it\trows written in it\tdollars a month\tof them for rows\tfor storage\n")
	for _, plan := range plans {
		bill, fits := plan.bill(rows, storage)
		if !fits {
			fmt.Fprintf(table, "%s\t%s\t%s\tmore than it has\t\t\n", plan.name, inBytes(plan.storage), count(plan.rows))
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%.2f\t%.2f\t%.2f\n", plan.name, inBytes(plan.storage), count(plan.rows), plan.dollars+bill.rows+bill.storage, bill.rows, bill.storage)
	}
	table.Flush()
	fmt.Fprintf(w, "\nPrices are those that Turso listed in %s; rows read, a thousandth of the price, are left out.\n", listed)
}

// inBytes and count write large numbers as people read them.
func inBytes(n float64) string { return scaled(n, "bytes", "KB", "MB", "GB", "TB", "PB") }
func count(n float64) string {
	return scaled(n, "", "thousand", "million", "billion", "trillion", "quadrillion")
}

func scaled(n float64, units ...string) string {
	i := 0
	for ; n >= 1000 && i < len(units)-1; i++ {
		n /= 1000
	}
	return strings.TrimSpace(fmt.Sprintf("%.4g %s", n, units[i]))
}
