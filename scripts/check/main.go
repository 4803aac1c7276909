// Command check runs everything that CI checks:
//
//	go run ./scripts/check
//
// It needs only Go. With Node present it also installs the pinned tools and runs the tests that use them. It prints a line for
// each step and for everything it skipped; in CI, which the environment variable CI tells, a skip is a failure.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
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
	{"vercel build", (*check).vercelBuild},
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
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
	for _, s := range steps {
		start := time.Now()
		err := s.run(c)
		c.report(s.name, time.Since(start), err)
	}
	fmt.Fprintf(c.out, "%d passed, %d failed\n", c.passed, c.failed)
	return c.failed == 0, nil
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
