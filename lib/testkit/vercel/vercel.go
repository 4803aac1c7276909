//go:build unix

// Package vercel builds Weir and serves it with the real Vercel CLI, for tests of what a deployment would do.
//
// Both commands edit or litter the tree they work on, so they get a copy of it. The CLI comes from scripts/_tools; it needs
// Node, no account and no network beyond what Go needs for its modules.
package vercel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/testkit/child"
	"github.com/weirlimits/weir/lib/testkit/repo"
)

// project is what a linked project's .vercel/project.json holds; the names are only looked up when something is deployed.
const project = `{"projectId":"prj_local","orgId":"team_local","settings":{"framework":null}}`

// Require skips the test when Node or the Vercel CLI is missing. In CI the test fails instead.
func Require(t testing.TB) {
	t.Helper()
	if err := Available(); err != nil {
		child.SkipUnlessCI(t, err.Error())
	}
}

// Available returns an error that says what is missing to run the Vercel CLI, or nil.
func Available() error {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("node"); err != nil {
		return fmt.Errorf("vercel: no Node: %w", err)
	}
	if _, err := os.Stat(cli(root)); err != nil {
		return fmt.Errorf("vercel: the CLI is not installed (go run ./scripts/check installs it): %w", err)
	}
	return nil
}

func cli(root string) string {
	return filepath.Join(root, "scripts", "_tools", "node_modules", "vercel", "dist", "vc.js")
}

// workspace copies the files that list names into dir/project, gives the CLI a home of its own beside it, and returns a
// command that runs the CLI there with the extra environment env. Everything it writes stays below dir.
func workspace(dir string, list func(root string) ([]string, error), env []string, args ...string) (*exec.Cmd, error) {
	root, err := repo.Root()
	if err != nil {
		return nil, err
	}
	// A symbolic link in the path (macOS has one in its temporary folder's) would confuse the CLI's relative paths.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("vercel: %w", err)
	}
	tree, home, tmp := filepath.Join(dir, "project"), filepath.Join(dir, "home"), filepath.Join(dir, "tmp")
	for _, d := range []string{tree, home, tmp} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("vercel: %w", err)
		}
	}
	files, err := list(root)
	if err != nil {
		return nil, err
	}
	if err := repo.Copy(root, tree, files); err != nil {
		return nil, err
	}
	goEnv, err := goEnvironment()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("node", append([]string{cli(root)}, args...)...)
	cmd.Dir = tree
	// The machine's own environment is left out: a VERCEL_TOKEN or a TURSO_DATABASE_URL in it must not reach a test.
	cmd.Env = append(goEnv,
		"PATH="+os.Getenv("PATH"),
		"HOME="+home,
		"TMPDIR="+tmp,
		"VERCEL_TELEMETRY_DISABLED=1",
		"NO_UPDATE_NOTIFIER=1",
		"CGO_ENABLED=0",
	)
	cmd.Env = append(cmd.Env, env...)
	return cmd, nil
}

// Shell returns a command that runs a script in an empty folder which is linked to a project, with the CLI as vercel. What that
// asks of Vercel's API it asks of the server at the URL api; it is signed in as far as it knows itself. Where the CLI is missing,
// it does what Require does.
func Shell(t testing.TB, api, script string) *exec.Cmd {
	t.Helper()
	Require(t)
	dir := t.TempDir()
	nothing := func(string) ([]string, error) { return nil, nil }
	cmd, err := workspace(dir, nothing, nil)
	if err != nil {
		t.Fatal(err)
	}
	bin, linked := filepath.Join(dir, "bin"), filepath.Join(cmd.Dir, ".vercel")
	command := fmt.Sprintf("#!/bin/sh\nexec node '%s' --api '%s' --token NoAccountsToken \"$@\"\n", cmd.Args[1], api)
	err = errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(linked, 0o755),
		os.WriteFile(filepath.Join(bin, "vercel"), []byte(command), 0o755),
		os.WriteFile(filepath.Join(linked, "project.json"), []byte(project), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("/bin/sh", "-e", "-c", script)
	shell.Dir, shell.Env = cmd.Dir, append(cmd.Env, "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return shell
}

// goEnvironment is what Go needs to find its caches although HOME is another.
func goEnvironment() ([]string, error) {
	out, err := exec.Command("go", "env", "-json",
		"GOCACHE", "GOENV", "GOFLAGS", "GOMODCACHE", "GONOSUMDB", "GOPATH", "GOPROXY", "GOSUMDB", "GOTOOLCHAIN").Output()
	if err != nil {
		return nil, fmt.Errorf("vercel: go env: %w", err)
	}
	var vars map[string]string
	if err := json.Unmarshal(out, &vars); err != nil {
		return nil, fmt.Errorf("vercel: go env: %w", err)
	}
	var env []string
	for name, v := range vars {
		env = append(env, name+"="+v)
	}
	return env, nil
}

// Output is the outcome of vercel build.
type Output struct {
	Dir string // the folder with functions, static and config.json

	tree string // the folder it was built in
}

// BuildInto runs vercel build below dir on a copy of what a deployment would upload. dir should be empty and has to outlive
// the Output.
func BuildInto(dir string) (*Output, error) {
	return build(dir, repo.Deployed, nil)
}

// BuildFiles does the same with a project that consists of the given files, by slash-separated paths.
func BuildFiles(dir string, files map[string]string) (*Output, error) {
	nothing := func(string) ([]string, error) { return nil, nil }
	return build(dir, nothing, files)
}

func build(dir string, list func(root string) ([]string, error), files map[string]string) (*Output, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	cmd, err := workspace(dir, list, nil, "build", "--yes")
	if err != nil {
		return nil, err
	}
	for name, text := range files {
		path := filepath.Join(cmd.Dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return nil, fmt.Errorf("vercel: %w", err)
		}
	}
	linked := filepath.Join(cmd.Dir, ".vercel")
	if err := os.Mkdir(linked, 0o755); err != nil {
		return nil, fmt.Errorf("vercel: %w", err)
	}
	if err := os.WriteFile(filepath.Join(linked, "project.json"), []byte(project), 0o644); err != nil {
		return nil, fmt.Errorf("vercel: %w", err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("vercel: build: %w: %s", err, bytes.TrimSpace(out))
	}
	return open(dir)
}

// open finds the output of an earlier BuildInto the same dir.
func open(dir string) (*Output, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("vercel: %w", err)
	}
	tree := filepath.Join(dir, "project")
	out := &Output{Dir: filepath.Join(tree, ".vercel", "output"), tree: tree}
	if _, err := os.Stat(filepath.Join(out.Dir, "config.json")); err != nil {
		return nil, fmt.Errorf("vercel: no build in %s: %w", dir, err)
	}
	return out, nil
}

// Functions lists the functions' names: sign-in for api/sign-in.go.
func (o *Output) Functions() ([]string, error) {
	found, err := filepath.Glob(filepath.Join(o.Dir, "functions", "api", "*.func"))
	if err != nil {
		return nil, fmt.Errorf("vercel: %w", err)
	}
	var names []string
	for _, f := range found {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".func"))
	}
	return names, nil
}

// Bootstrap returns the path of a function's executable. The CLI leaves it in a temporary folder and notes its place,
// relative to the project, in the function's configuration.
func (o *Output) Bootstrap(name string) (string, error) {
	path := filepath.Join(o.Dir, "functions", "api", name+".func")
	config, err := os.ReadFile(filepath.Join(path, ".vc-config.json"))
	if err != nil {
		return "", fmt.Errorf("vercel: function %q: %w", name, err)
	}
	var c struct {
		Handler     string            `json:"handler"`
		FilePathMap map[string]string `json:"filePathMap"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return "", fmt.Errorf("vercel: function %q: %w", name, err)
	}
	bin := filepath.Join(path, c.Handler)
	if mapped, ok := c.FilePathMap[c.Handler]; ok {
		bin = filepath.Join(o.tree, mapped)
	}
	if _, err := os.Stat(bin); err != nil {
		return "", fmt.Errorf("vercel: function %q: %w", name, err)
	}
	return bin, nil
}
