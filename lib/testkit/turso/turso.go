//go:build unix

// Package turso runs the two engines that Turso has in service, for tests that must hold on both: the Turso engine, by its real
// server from the npm package turso, and libSQL, by the npm package libsql behind a small server of our own.
//
// Each server shares one connection among all its clients: single statements are exact, but an open transaction of one client
// leaks into the others. It answers execute and batch, returns no batons, and a few statements end the Turso server's
// process; Start's caller learns of that from Server.Output.
package turso

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/testkit/child"
	"github.com/weirlimits/weir/lib/testkit/repo"
)

// startTimeout is generous: the server needs about 50 ms, a machine busy with compiling a few seconds.
const startTimeout = 30 * time.Second

// attempts bounds the starts: each fails only when another program takes the free port first.
const attempts = 3

// Server is a running server with a database of its own.
type Server struct {
	URL string // http://127.0.0.1:port

	process *child.Process
}

// Output is what the server has printed; worth showing when a test fails because the server has gone.
func (s *Server) Output() string { return s.process.Output() }

// Require skips the test when the server's program is not installed. In CI the test fails instead.
func Require(t testing.TB) {
	t.Helper()
	if _, err := binary(); err != nil {
		child.SkipUnlessCI(t, err.Error()+" (go run ./scripts/check installs it when Node is present)")
	}
}

// Start starts a Turso server with an empty database and stops it when the test ends. Where its program is missing, it does
// what Require does.
func Start(t testing.TB) *Server {
	t.Helper()
	Require(t)
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, func(addr, file string) *exec.Cmd {
		return exec.Command(bin, "--sync-server", addr, file, "-q")
	})
}

// StartLibSQL does the same with the libSQL engine.
func StartLibSQL(t testing.TB) *Server {
	t.Helper()
	Require(t)
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		child.SkipUnlessCI(t, "turso: no Node to run the libSQL engine in")
	}
	return serve(t, func(addr, file string) *exec.Cmd {
		_, port, _ := strings.Cut(addr, ":")
		return exec.Command(node, filepath.Join(root, "scripts", "_tools", "libsql-server.mjs"), port, file)
	})
}

func serve(t testing.TB, command func(addr, file string) *exec.Cmd) *Server {
	t.Helper()
	var err error
	for range attempts {
		addr := child.FreeAddr(t)
		cmd := command(addr, filepath.Join(t.TempDir(), "turso.db"))
		cmd.Env = []string{"HOME=" + t.TempDir()}
		s := &Server{URL: "http://" + addr, process: child.Start(t, cmd)}
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		err = s.process.Await(ctx, s.ping)
		cancel()
		if err == nil {
			return s
		}
		s.process.Stop()
	}
	t.Fatalf("turso: %v", err)
	return nil
}

// ping asks the server for a number that only a database would know.
func (s *Server) ping(ctx context.Context) error {
	body := `{"requests": [{"type": "execute", "stmt": {"sql": "SELECT 20 + 22"}}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v2/pipeline", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var reply strings.Builder
	if err := resp.Write(&reply); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || !strings.Contains(reply.String(), `"42"`) {
		return fmt.Errorf("turso: unexpected answer: %s", reply.String())
	}
	return nil
}

// binary finds the program for this machine below scripts/_tools.
func binary() (string, error) {
	root, err := repo.Root()
	if err != nil {
		return "", err
	}
	pattern := filepath.Join(root, "scripts", "_tools", "node_modules", "@tursodatabase", "cli-*", "tursodb")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", fmt.Errorf("turso: %w", err)
	}
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("turso: no tursodb for %s/%s below scripts/_tools/node_modules", runtime.GOOS, runtime.GOARCH)
}
