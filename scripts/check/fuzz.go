package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// fuzzedCodes is the size of the pool of invite codes, so that borrowing one goes on succeeding.
const fuzzedCodes = 5000

// fuzzToken is both bearer tokens, because the fuzzer sends either where a route takes the one or the other by its query.
const fuzzToken = "fuzzed-fuzzed-fuzzed-fuzzed-fuzzed"

// fuzzSettings are what the application runs with while it is fuzzed. They keep nothing from anybody: it listens on the
// loopback address, on a database that is deleted afterwards.
var fuzzSettings = map[string]string{
	"RATE_LIMIT_SECRET": "secret-fuzzed-fuzzed-fuzzed-fuzzed",
	"LIMITS_API_TOKEN":  fuzzToken,
	"CRON_SECRET":       fuzzToken,
	"STORE_DEADLINE":    "10s", // a busy machine is no outage
}

// fuzzedPolicies are small limits of each algorithm, for /api/limits to admit and refuse by.
const fuzzedPolicies = `[
	{"name": "fuzzed-fixed-window", "algorithm": "fixed-window", "limit": 5, "window": "10s", "subject": "opaque"},
	{"name": "fuzzed-sliding-window", "algorithm": "sliding-window", "limit": 5, "window": "10s", "subject": "opaque"},
	{"name": "fuzzed-sliding-log", "algorithm": "sliding-log", "limit": 5, "window": "10s", "subject": "opaque"},
	{"name": "fuzzed-token-bucket", "algorithm": "token-bucket", "limit": 5, "window": "10s", "burst": 9, "subject": "opaque"},
	{"name": "fuzzed-leaky-bucket", "algorithm": "leaky-bucket", "limit": 5, "window": "10s", "queue": 3, "subject": "opaque"}
]`

// pythonTools installs what scripts/_tools/requirements.txt names into an environment of its own, unless it is there.
func (c *check) pythonTools() error {
	const probe = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
	if _, err := c.command(nil, "python3", "-c", probe); err != nil {
		return skip("no Python of 3.11 or newer with venv: the fuzzer is left out")
	}
	wanted, err := os.ReadFile(filepath.Join(c.root, "scripts", "_tools", "requirements.txt"))
	if err != nil {
		return err
	}
	dir := filepath.Join(c.root, "scripts", "_tools", "venv")
	record := filepath.Join(dir, "requirements.txt")
	there, err := os.ReadFile(record)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.Equal(there, wanted) && c.fuzzerRuns() == nil { // it doesn't when the folder or its Python has moved
		return nil
	}
	if _, err := c.command(nil, "python3", "-m", "venv", "--clear", dir); err != nil {
		return err
	}
	_, err = c.command(nil, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
		"--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", filepath.Join(c.root, "scripts", "_tools", "requirements.txt"))
	if err != nil {
		return err
	}
	if err := c.fuzzerRuns(); err != nil {
		return err
	}
	return os.WriteFile(record, wanted, 0o644)
}

// fuzzer makes the command of schemathesis.
func (c *check) fuzzer(args ...string) *exec.Cmd {
	python := filepath.Join(c.root, "scripts", "_tools", "venv", "bin", "python")
	return c.program(python, append([]string{"-m", "schemathesis.cli"}, args...)...)
}

func (c *check) fuzzerRuns() error {
	if out, err := c.fuzzer("--version").CombinedOutput(); err != nil {
		return fmt.Errorf("schemathesis --version: %w\n%s", err, out)
	}
	return nil
}

// fuzz runs the application as a user would and holds all its answers against the description that it serves.
func (c *check) fuzz() error {
	if err := c.fuzzerRuns(); err != nil {
		return skip("schemathesis is not installed in scripts/_tools")
	}
	a, err := c.fuzzedApplication()
	if err != nil {
		return err
	}
	defer a.stop()
	if err := c.fuzzAt(a.url, a); err != nil {
		return err
	}
	return c.fuzzLimited(a)
}

// limitedPaths are routes that anyone may ask and that have small limits: there a short run comes
// to real refusals.
const limitedPaths = `^/api/(usernames|codes|sign-up|otp)$`

// limitedExamples is the number of requests to each operation of a limitedPaths: more than its
// limit admits.
const limitedExamples = "70"

// fuzzLimited does a short run with the limits that a user would meet, on a database of its own.
// Its refusals are held against the description as all answers are, and some must be seen.
func (c *check) fuzzLimited(raised *application) error {
	work, err := os.MkdirTemp(c.tmp, "limited-")
	if err != nil {
		return err
	}
	if err := os.Link(filepath.Join(raised.dir, "dev"), filepath.Join(work, "dev")); err != nil {
		return err
	}
	a, err := c.startApplication(work, fuzzSettings)
	if err != nil {
		return err
	}
	defer a.stop()
	if a.policies, err = a.policyNames(); err != nil {
		return err
	}
	a.limited = true
	if err := c.fuzzAt(a.url, a, "--max-examples", limitedExamples, "--include-path-regex", limitedPaths); err != nil {
		return err
	}
	return a.refused("/api/usernames", "/api/codes", "/api/sign-up", "/api/otp")
}

// refused returns an error unless the log has a refusal of each route.
func (a *application) refused(routes ...string) error {
	text, err := os.ReadFile(a.log)
	if err != nil {
		return err
	}
	refused := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		var request struct {
			Route  string
			Status int
		}
		if json.Unmarshal([]byte(line), &request) == nil && request.Status == http.StatusTooManyRequests {
			refused[request.Route] = true
		}
	}
	for _, route := range routes {
		if !refused[route] {
			return fmt.Errorf("the run with the real limits was never refused at %s: raise limitedExamples", route)
		}
	}
	return nil
}

// withRefusals is the fuzzer's configuration for a run in which limits refuse: 429 is as good an
// answer as others, to whatever was sent. A run of some routes uses neither all of the
// authentications nor all of the dictionaries.
func withRefusals(config string) string {
	config = strings.ReplaceAll(config, "413, 422]", "413, 422, 429]")
	config = strings.ReplaceAll(config, `"rate_limited", `, "")
	for _, partial := range []string{"missing_auth", "unused_openapi_auth", "dictionary_mismatch", "unmatched_filter"} {
		config = strings.ReplaceAll(config, fmt.Sprintf("%q, ", partial), "")
	}
	return config
}

// fuzzAt sends what the fuzzer makes of the description of a to base, which is a's own address or leads there. Args are
// more arguments of the fuzzer.
func (c *check) fuzzAt(base string, a *application, args ...string) error {
	work, err := os.MkdirTemp(c.tmp, "fuzz-")
	if err != nil {
		return err
	}
	config, err := os.ReadFile(filepath.Join(c.root, "scripts", "_tools", "schemathesis.toml"))
	if err != nil {
		return err
	}
	if a.limited {
		config = []byte(withRefusals(string(config)))
	}
	var policies strings.Builder
	for _, name := range a.policies {
		fmt.Fprintf(&policies, "%q\n", name)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(work, "schemathesis.toml"), config, 0o644),
		os.WriteFile(filepath.Join(work, "policies.dict"), []byte(policies.String()), 0o644)); err != nil {
		return err
	}
	cmd := c.fuzzer(append([]string{"--config-file", "schemathesis.toml", "run", base + "/openapi.json"}, args...)...)
	cmd.Dir = work // for what it keeps
	settings := maps.Clone(fuzzSettings)
	settings["PARTNER_KEY"] = a.partnerKey
	cmd.Env = bareEnvironment(settings)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("schemathesis: %w\n%s\nThe application ran as\n%s\nand complained in its log:\n%s", err, out, a.line, a.complaints())
	}
	return nil
}

// bareEnvironment holds settings and nothing of this process that could be another setting, or a proxy.
func bareEnvironment(settings map[string]string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		env = append(env, name+"="+settings[name])
	}
	return env
}

// application is scripts/dev, running on a database of its own.
type application struct {
	url        string
	policies   []string // the names of all
	partnerKey string
	line       string // starts it again by hand
	log        string // the file that it logs to
	dir        string // of its program, its database and its log
	limited    bool   // its limits are those that a user meets
	stop       func()
}

// complaints gives what the application logged that is no common request, the last of it.
func (a *application) complaints() string {
	const most = 8000
	text, _ := os.ReadFile(a.log) // it is there, and no reason to fail otherwise
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, `"level":"INFO"`) {
			kept.WriteString(line)
		}
	}
	return kept.String()[max(0, kept.Len()-most):]
}

// fuzzedApplication starts the application with limits so high that it refuses nobody. Which there are it says itself, so
// they are asked for first.
func (c *check) fuzzedApplication() (*application, error) {
	work, err := os.MkdirTemp(c.tmp, "application-")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"dev", "codes", "keys"} {
		if _, err := c.command(nil, "go", "build", "-o", filepath.Join(work, name), "./scripts/"+name); err != nil {
			return nil, err
		}
	}
	settings := maps.Clone(fuzzSettings)
	first, err := c.startApplication(work, settings)
	if err != nil {
		return nil, err
	}
	names, err := first.policyNames()
	first.stop()
	if err != nil {
		return nil, err
	}
	if settings["RATE_LIMIT_POLICIES"], err = raised(names); err != nil {
		return nil, err
	}
	second, err := c.startApplication(work, settings)
	if err != nil {
		return nil, err
	}
	if second.policies, err = second.policyNames(); err != nil {
		second.stop()
		return nil, err
	}
	command := func(name string, args ...string) (string, error) {
		cmd := c.program(filepath.Join(work, name), args...)
		cmd.Env = bareEnvironment(map[string]string{"TURSO_DATABASE_URL": databaseIn(work)})
		var problems strings.Builder
		cmd.Stderr = &problems
		out, err := cmd.Output()
		if err != nil {
			second.stop()
			return "", fmt.Errorf("%s: %w\n%s", name, err, problems.String())
		}
		return strings.TrimSpace(string(out)), nil
	}
	if _, err := command("codes", fmt.Sprint(fuzzedCodes)); err != nil {
		return nil, err
	}
	if second.partnerKey, err = command("keys", "create", "paid", "the fuzzer"); err != nil {
		return nil, err
	}
	return second, nil
}

// raised gives a setting of RATE_LIMIT_POLICIES that puts a limit of a thousand million in the place of each, and adds
// fuzzedPolicies.
func raised(names []string) (string, error) {
	var policies []any
	if err := json.Unmarshal([]byte(fuzzedPolicies), &policies); err != nil {
		return "", err
	}
	for _, name := range names {
		policies = append(policies, map[string]any{"name": name, "algorithm": "fixed-window", "limit": 1_000_000_000, "window": "1m"})
	}
	text, err := json.Marshal(policies)
	return string(text), err
}

func databaseIn(dir string) string { return "file:" + filepath.ToSlash(filepath.Join(dir, "weir.db")) }

// startApplication starts the program dev of a folder on a database there and waits until it listens.
func (c *check) startApplication(dir string, settings map[string]string) (*application, error) {
	a := &application{log: filepath.Join(dir, "log"), dir: dir}
	log, err := os.Create(a.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := c.program(filepath.Join(dir, "dev"), "-listen", "127.0.0.1:0", "-db", databaseIn(dir))
	cmd.Env = bareEnvironment(settings)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	a.stop = func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait() // the signal is what ends it, so its error tells nothing
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	said, found := strings.CutPrefix(strings.TrimSpace(said), "Weir is at ")
	if err != nil || !found {
		a.stop()
		return nil, fmt.Errorf("dev said %q (%v) and logged\n%s", said, err, a.complaints())
	}
	a.url = said
	var line strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&line, "%s='%s' ", name, settings[name])
	}
	a.line = line.String() + "go run ./scripts/dev -db file:/tmp/NEW.db -listen " + strings.TrimPrefix(a.url, "http://")
	return a, nil
}

// policyNames asks the application which policies it has.
func (a *application) policyNames() ([]string, error) {
	request, err := http.NewRequest(http.MethodGet, a.url+"/api/limits", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+fuzzToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var usage struct{ Policies []struct{ Name string } }
	if err := json.Unmarshal(text, &usage); err != nil || len(usage.Policies) == 0 {
		return nil, fmt.Errorf("GET /api/limits answers %d (%v): %s\n%s", response.StatusCode, err, text, a.complaints())
	}
	var names []string
	for _, policy := range usage.Policies {
		names = append(names, policy.Name)
	}
	return names, nil
}
