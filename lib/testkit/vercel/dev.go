//go:build unix

package vercel

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/testkit/child"
	"github.com/weirlimits/weir/lib/testkit/repo"
)

// devTimeout is generous: the server is up in two seconds on an idle machine.
const devTimeout = 60 * time.Second

// DevServer is a running vercel dev. Each request to a function compiles and starts a fresh process, about half a second.
type DevServer struct {
	URL string // http://127.0.0.1:port
	Dir string // the copy of the tree that is served

	process *child.Process
}

// Output is what the server and the functions have logged.
func (d *DevServer) Output() string { return d.process.Output() }

// Dev serves a copy of the tree with vercel dev, with env added to the functions' environment, and ends the server and all it
// started with the test. Where the CLI is missing, it does what Require does.
func Dev(t testing.TB, env []string) *DevServer {
	t.Helper()
	Require(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	addr := child.FreeAddr(t)
	cmd, err := workspace(dir, repo.Files, env, "dev", "--local", "--yes", "--listen", addr)
	if err != nil {
		t.Fatal(err)
	}
	// The last to run: when the server has gone, so has whatever might start another function.
	t.Cleanup(func() { killBelow(dir) })
	d := &DevServer{URL: "http://" + addr, Dir: cmd.Dir, process: child.Start(t, cmd)}

	ctx, cancel := context.WithTimeout(t.Context(), devTimeout)
	defer cancel()
	if err := d.process.Await(ctx, d.ping); err != nil {
		t.Fatal(err)
	}
	return d
}

// ping returns nil once this server answers; another's answer would not say that it is Vercel's.
func (d *DevServer) ping(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL+"/", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.Header.Get("Server") != "Vercel" {
		return fmt.Errorf("vercel: dev answered %s without its name", resp.Status)
	}
	return nil
}

// killBelow kills the processes whose working directory is in dir, functions that outlived the server although it was
// killed with its group, and waits until they are gone. It finds them on Linux; elsewhere there is no /proc and the group
// has to do.
func killBelow(dir string) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 500 {
		pids := below(dir)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
		<-tick.C
	}
}

// below lists the processes whose working directory is in dir.
func below(dir string) []int {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil
	}
	var pids []int
	for _, link := range links {
		// The folder may be deleted already, which the kernel notes after its name.
		wd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(wd, dir+string(filepath.Separator)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
