package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weirlimits/weir/lib/testkit/vercel"
)

// stopTime is how long a program that was told to stop may take before its output is no longer waited for.
const stopTime = 5 * time.Second

// program makes a command that runs in the repository. When the context ends it is killed with all it started: go and npm
// would leave their children running.
func (c *check) program(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.ctx, name, args...)
	cmd.Dir = c.root
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = stopTime
	return cmd
}

// command runs a program in the repository and returns what it printed. The error holds that too.
func (c *check) command(env []string, name string, args ...string) (string, error) {
	cmd := c.program(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	text := string(bytes.TrimSpace(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, text)
	}
	return text, nil
}

func (c *check) gofmt() error {
	var unformatted []error
	err := filepath.WalkDir(c.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != c.root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(c.root, path)
		if err != nil {
			return err
		}
		if formatted, err := format.Source(src); err != nil {
			unformatted = append(unformatted, fmt.Errorf("%s: %w", name, err))
		} else if !bytes.Equal(src, formatted) {
			unformatted = append(unformatted, fmt.Errorf("%s is not formatted", name))
		}
		return nil
	})
	return errors.Join(append(unformatted, err)...)
}

func (c *check) vet() error {
	_, err := c.command(nil, "go", "vet", "./...")
	return err
}

func (c *check) tidy() error {
	_, err := c.command(nil, "go", "mod", "tidy", "-diff")
	return err
}

// build compiles as Vercel's builder does.
func (c *check) build() error {
	_, err := c.command([]string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64"}, "go", "build", "./...")
	return err
}

// tools installs what scripts/_tools/package-lock.json names, unless it is there. npm ci would refuse that lock file for want
// of the optional packages of other platforms, so this is npm install, and what it installed is compared.
func (c *check) tools() error {
	if _, err := exec.LookPath("npm"); err != nil {
		return skip("no npm: the tests on vercel build, vercel dev, the Turso server and of the page are left out")
	}
	dir := filepath.Join(c.root, "scripts", "_tools")
	lock, record := filepath.Join(dir, "package-lock.json"), filepath.Join(dir, "node_modules", ".package-lock.json")
	same, err := installed(lock, record)
	if err != nil || same {
		return err
	}
	_, err = c.command(nil, "npm", "--prefix", dir, "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts")
	if err != nil {
		return err
	}
	same, err = installed(lock, record)
	if err == nil && !same {
		return errors.New("npm installed something else than package-lock.json names")
	}
	return err
}

// installed says whether npm's record of what it installed agrees with the lock file. Packages for other machines are in the
// lock file only.
func installed(lock, record string) (bool, error) {
	want, err := lockedPackages(lock)
	if err != nil {
		return false, err
	}
	got, err := lockedPackages(record)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	delete(want, "") // the folder itself
	for name, w := range want {
		g, there := got[name]
		if !there && w.Optional {
			continue
		}
		if g.Version != w.Version || g.Integrity != w.Integrity {
			return false, nil
		}
	}
	for name := range got {
		if _, wanted := want[name]; !wanted {
			return false, nil
		}
	}
	return true, nil
}

type lockedPackage struct {
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
	Optional  bool   `json:"optional"`
}

func lockedPackages(path string) (map[string]lockedPackage, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lock struct {
		Packages map[string]lockedPackage `json:"packages"`
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return lock.Packages, nil
}

// vercelBuild makes the one build that all tests share.
func (c *check) vercelBuild() error {
	if err := vercel.Available(); err != nil {
		return skip(err.Error())
	}
	dir := filepath.Join(c.tmp, "build")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	out, err := vercel.BuildInto(dir)
	if err != nil {
		return err
	}
	names, err := out.Functions()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("no function came out of it")
	}
	return os.Setenv(vercel.BuildVariable, dir)
}
