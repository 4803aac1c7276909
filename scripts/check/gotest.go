package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// testTimeout bounds one package's tests. The slowest, those of sqlstore on four databases, take about four minutes on two cores,
// and twice as long where another program keeps one of them busy.
const testTimeout = "20m"

// slowUnderRace are the packages whose tests mostly wait for other programs, where the race detector would find nothing, and those
// that ask an SQLite that is compiled to Go, which takes ten times as long under it.
var slowUnderRace = []string{
	"/api", "/db", "/scripts", "/lib/accounts", "/lib/ailog", "/lib/alerts", "/lib/app", "/lib/codes", "/lib/evaluations", "/lib/invites",
	"/lib/migration", "/lib/otp", "/lib/partners", "/lib/ratelimit/sqlstore", "/lib/stuffing", "/lib/testkit/vercel", "/lib/testkit/turso",
}

// racedInSqlstore are the tests in which sqlstore's own memory is shared between goroutines. The suite of all stores runs under
// the race detector on the store in memory.
const racedInSqlstore = "TestStoreInAFile/at_once|TestDecisionsSweep|TestTheDatabasesClock"

// racedElsewhere are the tests of other packages among those in which several goroutines work at once; all others do one thing after
// the other. Each name says so.
const racedElsewhere = "AtOnce|Parallel|Fifty|OfTwenty|OfTwelve|TwoSignUps|OfMany|ManyClicks|ALockedDatabase|FillTops|NoMoreKeys|DemoAccountsAreMade|CostsNoRung"

// packagesRacedElsewhere are the packages that they are in.
var packagesRacedElsewhere = []string{
	"./lib/accounts", "./lib/ailog", "./lib/alerts", "./lib/app", "./lib/codes", "./lib/evaluations", "./lib/migration", "./lib/otp",
	"./lib/partners", "./lib/stuffing",
}

// raceTests runs the tests of the packages that share memory between goroutines under the race detector, which needs cgo.
func (c *check) raceTests() error {
	raced, _, err := c.packages()
	if err != nil {
		return err
	}
	if reason := c.withoutRace(); reason != "" {
		if err := c.goTest(raced...); err != nil {
			return err
		}
		return skip(reason + ": the tests ran without the race detector")
	}
	if err := c.goTest(append([]string{"-race"}, raced...)...); err != nil {
		return err
	}
	if err := c.goTest(append([]string{"-race", "-run", racedElsewhere}, packagesRacedElsewhere...)...); err != nil {
		return err
	}
	return c.goTest("-race", "-run", racedInSqlstore, "./lib/ratelimit/sqlstore")
}

// tests runs the other packages' tests.
func (c *check) tests() error {
	_, rest, err := c.packages()
	if err != nil {
		return err
	}
	return c.goTest(rest...)
}

// packages lists the packages to test with and without the race detector.
func (c *check) packages() (raced, rest []string, err error) {
	out, err := c.command(nil, "go", "list", "./...")
	if err != nil {
		return nil, nil, err
	}
	module, err := c.command(nil, "go", "list", "-m")
	if err != nil {
		return nil, nil, err
	}
	for _, path := range strings.Fields(out) {
		slow := false
		for _, prefix := range slowUnderRace {
			slow = slow || strings.HasPrefix(path+"/", module+prefix+"/")
		}
		if slow {
			rest = append(rest, path)
		} else {
			raced = append(raced, path)
		}
	}
	return raced, rest, nil
}

// withoutRace says why the race detector can't be used, or "".
func (c *check) withoutRace() string {
	out, err := c.command(nil, "go", "env", "CGO_ENABLED", "CC")
	cgo, cc, _ := strings.Cut(out, "\n")
	if err != nil || cgo != "1" {
		return "cgo is off"
	}
	if _, err := exec.LookPath(cc); err != nil {
		return "no C compiler"
	}
	return ""
}

// goTest runs go test, prints what failed and what was skipped, and counts the tests.
func (c *check) goTest(args ...string) error {
	cmd := c.program("go", append([]string{"test", "-json", "-timeout", testTimeout}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t, err := readTests(out, c.out)
	err = errors.Join(err, cmd.Wait())
	c.passed += t.passed
	c.failed += t.failed
	if err != nil {
		return err
	}
	if t.skipped > 0 {
		return skip(fmt.Sprintf("%d tests, named above", t.skipped))
	}
	return nil
}

// tally counts the tests of a run. A test with subtests counts beside them.
type tally struct{ passed, failed, skipped int }

// readTests reads what go test -json prints (go doc test2json) and writes the output of failed packages and tests and the
// reasons of skipped ones to w.
func readTests(r io.Reader, w io.Writer) (tally, error) {
	var t tally
	output := make(map[string]*strings.Builder)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20) // a test's line of output may be long
	for lines.Scan() {
		var e struct{ Action, Package, ImportPath, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(w, lines.Text()) // go itself, about something before the tests
			continue
		}
		name := e.Package + " " + e.Test
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "output":
			if output[name] == nil {
				output[name] = new(strings.Builder)
			}
			output[name].WriteString(e.Output)
		case "pass", "fail", "skip":
			said := ""
			if o := output[name]; o != nil {
				said = o.String()
			}
			delete(output, name)
			t.count(w, e.Action, e.Test, name, said)
		}
	}
	return t, lines.Err()
}

// count counts one test's or, with no test, one package's end.
func (t *tally) count(w io.Writer, action, test, name, said string) {
	switch {
	case action == "fail":
		// A package that failed without a test having failed did not build or ended early.
		fmt.Fprintf(w, "failed: %s\n%s", name, said)
		if test != "" {
			t.failed++
		}
	case test == "":
		// A package that passed, or has no tests.
	case action == "skip":
		t.skipped++
		fmt.Fprintf(w, "skipped: %s\n%s", name, said)
	default:
		t.passed++
	}
}
