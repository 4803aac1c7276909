//go:build unix

// Command bench measures how fast Weir is, each figure as a ratio of two things that one run measures in turns, and holds the
// ratios against bars. On another machine, or a busy one, both sides of a ratio are slower.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/bench [-quick] [-bars=false] [-run REGEXP] [-cpuprofile FILE]
       go run ./scripts/bench -shards [-for 1m] [-servers 1,2,4] [-commits 10ms,25ms,50ms,100ms]

measures ratios and prints a line for each: what, the figures, their ratio, the bar, and whether that is met. Each measurement
checks that what it measured was right. It takes about 5 minutes and needs Go. With Node it installs the limiters that it compares
with (npm ci in scripts/_peers/node, which compiles one), with apt-get it unpacks Debian's Redis into scripts/_peers/redis where there
is none, and nothing is installed anywhere else. What it could not measure it says, with the reason.

  -quick        a few rounds of what needs nothing but Go: shows that it works, and judges no times
  -bars=false   only report: a bar that is not met is no failure
  -run REGEXP   only what matches, of: %s
  -cpuprofile   writes a profile of this process, for go tool pprof

With -shards it measures how throughput grows with servers instead, each of which has one writer and takes as long for a commit as it is told: as
long as a plan of Turso's. For each it finds what they do at the most, holds 70 %% of that for as long as -for says, and checks that each limit was
exact. It takes 20 minutes, and says nothing of one machine's speed: the servers wait.

  -for          how long a rate is held (default 1m)
  -servers      how many servers, 1 to 16, separated by commas
  -commits      how long a commit takes; turso stands for Turso's own server, as it is

Exit codes of the built program: 0 every bar that could be measured is met, 1 one is not, or a measurement went wrong, 2 wrong usage.
go run turns every code but 0 into 1.
`

// totalDeadline is ample for a run on a machine that does much else, compiling what is compared included.
const totalDeadline = time.Hour

func main() {
	if work(os.Stdin, os.Stdout, os.Stderr) {
		return
	}
	command.Main(totalDeadline, func(ctx context.Context) int { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

// bench is one run.
type bench struct {
	ctx   context.Context
	root  string // the repository
	quick bool
	say   io.Writer // what is going on
	peers peers
}

// A measurement is what can be run by itself. To add one, add it to measurements.
type measurement struct {
	name string
	run  func(*bench, *scope) ([]row, error)
}

var measurements = []measurement{
	{"requests", (*bench).requests},
	{"cpu", (*bench).cpu},
	{"flexible", (*bench).flexible},
	{"redis", (*bench).redis},
	{"throttled", (*bench).throttled},
	{"three", (*bench).three},
	{"million", (*bench).million},
	{"start", (*bench).start},
	{"refusal", (*bench).refusal},
	{"processes", (*bench).processes},
	{"upstash", (*bench).upstash},
}

// row is a line of the report.
type row struct {
	what    string
	figures string
	ratio   float64 // 0 when there is none
	bar     float64 // what the ratio may be at the most; 0 with counts of nothing, and when hasBar is false
	hasBar  bool
	counted bool // the ratio is of counts, not of times: it is judged in a quick run too
	times   []named
}

// named is what is printed of a contender's single times.
type named struct {
	name string
	figure
}

// couldNot is the error of a measurement for which something is missing, and says what.
type couldNot string

func (c couldNot) Error() string { return string(c) }

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	quick, bars := flags.Bool("quick", false, ""), flags.Bool("bars", true, "")
	pattern, profile := flags.String("run", "", ""), flags.String("cpuprofile", "", "")
	shards, long := flags.Bool("shards", false, ""), flags.Duration("for", time.Minute, "")
	servers, commits := flags.String("servers", "1,2,4", ""), flags.String("commits", "10ms,25ms,50ms,100ms", "")
	err := flags.Parse(args)
	names := make([]string, len(measurements))
	for i, m := range measurements {
		names[i] = m.name
	}
	help := fmt.Sprintf(usage, strings.Join(names, ", "))
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, help)
		return 0
	}
	chosen, notPattern := regexp.Compile(*pattern)
	sharded, notShards := parseShards(*servers, *commits, *long)
	if err = errors.Join(err, notPattern, notShards); err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n%s", err, help)
		return command.WrongUsage
	}
	root, err := repo.Root()
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return command.Failed
	}
	if *profile != "" {
		file, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return command.Failed
		}
		defer file.Close()
		defer pprof.StopCPUProfile()
	}
	b := &bench{ctx: ctx, root: root, quick: *quick, say: stderr}
	if *shards {
		fmt.Fprintf(stdout, "%s\n`go run ./scripts/bench%s`\n\n", machine(), join(args))
		return b.shards(sharded, stdout)
	}
	r := report{out: stdout, quick: *quick}
	fmt.Fprintf(stdout, "%s\n`go run ./scripts/bench%s`\n\n", machine(), join(args))
	r.begin()
	for _, m := range measurements {
		if ctx.Err() == nil && chosen.MatchString(m.name) {
			fmt.Fprintf(stderr, "%s …\n", m.name)
			r.add(m.name, func() ([]row, error) { return within(ctx, func(s *scope) ([]row, error) { return m.run(b, s) }) })
		}
	}
	return r.end(ctx, *bars)
}

// report prints rows as they come.
type report struct {
	out   io.Writer
	quick bool
	times []named

	met, missed, missing, failed int
}

func (r *report) begin() {
	fmt.Fprintln(r.out, "| what | measured | ratio | bar | |\n|---|---|---|---|---|")
}

func (r *report) add(name string, measure func() ([]row, error)) {
	rows, err := measure()
	for _, row := range rows {
		fmt.Fprintf(r.out, "| %s | %s | %s | %s | %s |\n", row.what, row.figures, row.showRatio(), row.showBar(), r.judge(row))
		r.times = append(r.times, row.times...)
	}
	if reason, missing := errors.AsType[couldNot](err); missing {
		r.missing++
		fmt.Fprintf(r.out, "| %s | | | | could not: %s |\n", name, string(reason))
	} else if err != nil {
		r.failed++
		fmt.Fprintf(r.out, "| %s | | | | FAILED: %s |\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
	}
}

func (r *report) judge(row row) string {
	switch {
	case !row.hasBar:
		return ""
	case r.quick && !row.counted:
		return "not judged"
	case row.ratio <= row.bar:
		r.met++
		return "met"
	}
	r.missed++
	return "NOT MET"
}

func (row row) showRatio() string {
	if row.ratio == 0 && !row.hasBar {
		return ""
	}
	return fmt.Sprintf("%.2f", row.ratio)
}

func (row row) showBar() string {
	switch {
	case !row.hasBar:
		return ""
	case row.counted:
		return fmt.Sprintf("%.2f", row.bar)
	}
	return fmt.Sprintf("≤ %.1f", row.bar)
}

// end prints the single times and the sum, and gives the exit code.
func (r *report) end(ctx context.Context, bars bool) int {
	if len(r.times) > 0 {
		fmt.Fprintf(r.out, "\n| µs | fastest round | p50 | p99 | p99.9 |\n|---|---|---|---|---|\n")
	}
	for _, t := range r.times {
		fmt.Fprintf(r.out, "| %s | %s | %s | %s | %s |\n", t.name, micros(t.fastest), micros(t.quantile(0.5)), micros(t.quantile(0.99)), micros(t.quantile(0.999)))
	}
	fmt.Fprintf(r.out, "\n%d bars met, %d not met; %d measurements could not be made, %d went wrong\n", r.met, r.missed, r.missing, r.failed)
	if err := ctx.Err(); err != nil {
		fmt.Fprintf(r.out, "stopped: %v\n", err)
		return command.Failed
	}
	if r.failed > 0 || bars && r.missed > 0 {
		return command.Failed
	}
	return 0
}

func micros(nanos float64) string { return fmt.Sprintf("%.4g", nanos/1000) }

func join(args []string) (joined string) {
	for _, arg := range args {
		joined += " " + arg
	}
	return joined
}

// machine tells where the figures are from.
func machine() string {
	model, load := "processor not told", ""
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(text); m != nil {
			model = string(m[1])
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = ", load " + strings.Fields(string(text))[0]
	}
	return fmt.Sprintf("%s, %d processors, %s/%s, %s%s, %s", model, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), load,
		time.Now().UTC().Format("2006-01-02"))
}
