//go:build unix

// Package browser plays scenarios on pages in headless Chromium, for tests. The scenarios are JavaScript, below scripts/_tools,
// where playwright-core is; Chromium is the machine's own.
package browser

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/testkit/child"
	"github.com/weirlimits/weir/lib/testkit/repo"
)

// patience bounds all scenarios of a script. A free machine with two cores plays those of the page in half a minute.
const patience = 8 * time.Minute

// Variable names the environment variable that says which program Chromium is, where it isn't found by its name.
const Variable = "CHROMIUM"

// programs are the names that Chromium has, with Google's build of it. Ubuntu's chromium-browser is none: it only installs one.
var programs = []string{"chromium", "google-chrome", "google-chrome-stable"}

// Scenario is how one ended.
type Scenario struct {
	Name  string
	Error string // "" when it went well
}

// Require skips the test when Node, playwright-core or Chromium is missing. In CI the test fails instead.
func Require(t testing.TB) {
	t.Helper()
	if err := Available(); err != nil {
		child.SkipUnlessCI(t, err.Error())
	}
}

// Available returns an error that says what is missing to run a browser, or nil.
func Available() error {
	if _, err := exec.LookPath("node"); err != nil {
		return fmt.Errorf("browser: no Node: %w", err)
	}
	root, err := repo.Root()
	if err != nil {
		return err
	}
	for _, module := range []string{"playwright-core", "axe-core"} {
		if _, err := os.Stat(filepath.Join(root, "scripts", "_tools", "node_modules", module)); err != nil {
			return fmt.Errorf("browser: %s is not installed (go run ./scripts/check installs it): %w", module, err)
		}
	}
	_, err = chromium()
	return err
}

func chromium() (string, error) {
	names := programs
	if name := os.Getenv(Variable); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("browser: no Chromium: looked for %s", strings.Join(names, ", "))
}

// Play runs a script below scripts/_tools with the origin to visit, Chromium's program and what args adds, and returns how its
// scenarios ended. Where something is missing, it does what Require does.
func Play(t testing.TB, script, origin string, args ...string) []Scenario {
	t.Helper()
	Require(t)
	program, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", append([]string{filepath.Join(root, "scripts", "_tools", script), origin, program}, args...)...)
	// Whatever the machine's environment says, such as a proxy, must not reach the browser.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8", "TZ=UTC"}
	process := child.Start(t, cmd)
	select {
	case <-process.Done():
	case <-time.After(patience):
		process.Stop()
	}
	scenarios, err := read(process.Output())
	if err != nil {
		t.Fatal(err)
	}
	return scenarios
}

// read reads what a script printed: a line for each scenario, and a last one that says how many there were, so that a script
// that ended early is no success.
func read(output string) (scenarios []Scenario, err error) {
	ended := -1
	for line := range strings.Lines(output) {
		var told struct {
			Name, Error string
			Ended       *int
		}
		switch {
		case json.Unmarshal([]byte(line), &told) != nil:
			// What Node or the browser prints besides.
		case told.Ended != nil:
			ended = *told.Ended
		case told.Name != "":
			scenarios = append(scenarios, Scenario{told.Name, told.Error})
		}
	}
	if ended < 0 {
		return scenarios, fmt.Errorf("browser: the script ended early:\n%s", output)
	}
	if ended != len(scenarios) {
		return scenarios, errors.New("browser: not every scenario said how it ended:\n" + output)
	}
	return scenarios, nil
}
