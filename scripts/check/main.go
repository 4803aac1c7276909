// Command check runs everything that CI checks:
//
//	go run ./scripts/check
//
// It needs Go and, to know which files are the project's, git and a clone. With Node present, and with Python, it also
// installs the pinned tools and runs what uses them; with Chromium present too, the page is tested in it. It prints a line when a step begins, one when it ends, and one for
// everything it skipped; in CI, which the environment variable CI tells, a skip is a failure.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weirlimits/weir/lib/testkit/repo"
)

// A step is one line of the report. To add one, add it to steps; its function returns nil, an error, or a skip.
type step struct {
	name string
	run  func(*check) error
}

// The order matters where a step prepares the next: tidying fetches what the builder needs, the tools make the build
// possible, and the tests use it.
var steps = []step{
	{"gofmt", (*check).gofmt},
	{"go vet", (*check).vet},
	{"go mod tidy", (*check).tidy},
	{"build without cgo", (*check).build},
	{"tools from npm", (*check).tools},
	{"tools for Python", (*check).pythonTools},
	{"vercel build", (*check).vercelBuild},
	{"fuzzer on openapi.json", (*check).fuzz},
	{"tests with the race detector", (*check).raceTests},
	{"tests", (*check).tests},
}

// check is one run.
type check struct {
	ctx  context.Context
	root string // the repository
	tmp  string // removed at the end
	ci   bool   // nothing may be skipped
	out  io.Writer

	passed, failed int
}

// skip is the error of a step that can't run here, and says why.
type skip string

func (s skip) Error() string { return string(s) }

const usage = `usage: go run ./scripts/check

checks everything that CI checks: format, vet, tidiness, all tests and, with Node installed, the functions as Vercel's
tools build and run them; with Python 3.11 or newer, a fuzzer on what public/openapi.json describes; with Chromium, the
page. It takes about twenty minutes on two cores. With CI set in the environment nothing may be skipped.
Exit codes of the built program: 0 all passed, 1 something failed, 2 wrong usage. go run turns every code but 0 into 1.
`

func main() {
	if code, done := answerArguments(os.Args[1:], os.Stdout, os.Stderr); done {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if !ok {
		stop()
		os.Exit(1)
	}
}

// answerArguments answers a command line that asks for anything but the one thing that check does.
func answerArguments(args []string, stdout, stderr io.Writer) (code int, done bool) {
	switch {
	case len(args) == 0:
		return 0, false
	case len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help"):
		fmt.Fprint(stdout, usage)
		return 0, true
	}
	fmt.Fprintf(stderr, "check: unexpected argument %q\n%s", args[0], usage)
	return 2, true
}

func run(ctx context.Context) (ok bool, err error) {
	root, err := repo.Root()
	if err != nil {
		return false, err
	}
	tmp, err := os.MkdirTemp("", "weir-check-")
	if err != nil {
		return false, fmt.Errorf("check: %w", err)
	}
	defer os.RemoveAll(tmp)
	c := &check{ctx: ctx, root: root, tmp: tmp, ci: os.Getenv("CI") != "", out: os.Stdout}
	c.runAll(steps)
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("check: stopped: %w", err)
	}
	fmt.Fprintf(c.out, "%d passed, %d failed\n", c.passed, c.failed)
	return c.failed == 0, nil
}

// runAll runs one step after the other, until the context ends.
func (c *check) runAll(steps []step) {
	for _, s := range steps {
		if c.ctx.Err() != nil {
			return
		}
		fmt.Fprintf(c.out, "%s …\n", s.name)
		start := time.Now()
		err := s.run(c)
		c.report(s.name, time.Since(start), err)
	}
}

// report prints a step's line and counts it.
func (c *check) report(name string, took time.Duration, err error) {
	verdict := "ok"
	if reason, skipped := errors.AsType[skip](err); skipped {
		verdict = "skipped: " + string(reason)
		if c.ci {
			c.failed++
			verdict = "FAILED: nothing may be skipped in CI: " + string(reason)
		}
	} else if err != nil {
		c.failed++
		verdict = "FAILED: " + err.Error()
	} else {
		c.passed++
	}
	fmt.Fprintf(c.out, "%-30s %7.1fs  %s\n", name, took.Seconds(), verdict)
}
