//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weirlimits/weir/lib/testkit/child"
)

// peers is what of the limiters that Weir is compared with is installed so far. They are in scripts/_peers, where neither Go nor a
// deployment sees them.
type peers struct {
	program string // of those in Go
	redis   string // the address of the server
}

// installDeadline is ample for compiling SQLite once.
const installDeadline = 15 * time.Minute

// command runs a program, and all that it starts, to its end.
func (b *bench) command(dir, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(b.ctx, installDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, lastOf(out))
	}
	return out, err
}

// lastOf cuts what a program said to its end, where the reason is.
func lastOf(out []byte) []byte {
	out = bytes.TrimSpace(out)
	return out[max(0, len(out)-500):]
}

// node makes the command of a peer in Node, and installs the peers first if that wasn't done.
func (b *bench) node(script string, args ...string) (*exec.Cmd, error) {
	if b.quick {
		return nil, couldNot("-quick leaves out the other limiters")
	}
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, couldNot("no " + name)
		}
	}
	dir := filepath.Join(b.root, "scripts", "_peers", "node")
	lock, err := os.Stat(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		return nil, err
	}
	// npm writes this file when it has installed everything.
	record, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json"))
	if err != nil || record.ModTime().Before(lock.ModTime()) {
		fmt.Fprintln(b.say, "npm ci in scripts/_peers/node …")
		if _, err := b.command(dir, "npm", "ci", "--no-audit", "--no-fund"); err != nil {
			return nil, couldNot(err.Error())
		}
	}
	return exec.CommandContext(b.ctx, "node", append([]string{filepath.Join(dir, script)}, args...)...), nil
}

// golang makes the command of a peer in Go.
func (b *bench) golang(args ...string) (*exec.Cmd, error) {
	if b.quick {
		return nil, couldNot("-quick leaves out the other limiters")
	}
	dir := filepath.Join(b.root, "scripts", "_peers", "go")
	program := filepath.Join(dir, "bin", "peers")
	if b.peers.program == "" {
		if _, err := b.command(dir, "go", "build", "-o", program, "."); err != nil {
			return nil, couldNot(err.Error())
		}
		b.peers.program = program
	}
	return exec.CommandContext(b.ctx, program, args...), nil
}

// debianPackages hold Redis and what a small Debian doesn't have of its libraries.
var debianPackages = []string{"redis-tools", "liblzf1", "libjemalloc2"}

// redisServer finds the program, or unpacks Debian's, and gives it the arguments.
func (b *bench) redisServer(args ...string) (*exec.Cmd, error) {
	if program, err := exec.LookPath("redis-server"); err == nil {
		return exec.CommandContext(b.ctx, program, args...), nil
	}
	dir := filepath.Join(b.root, "scripts", "_peers", "redis")
	program := filepath.Join(dir, "usr", "bin", "redis-check-rdb") // one program, which goes by the name that it is called by
	if _, err := os.Stat(program); err != nil {
		for _, name := range []string{"apt-get", "dpkg-deb"} {
			if _, err := exec.LookPath(name); err != nil {
				return nil, couldNot("no redis-server, and no " + name + " to unpack one with")
			}
		}
		fmt.Fprintln(b.say, "unpacking Debian's Redis into scripts/_peers/redis …")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if _, err := b.command(dir, "apt-get", append([]string{"download"}, debianPackages...)...); err != nil {
			return nil, couldNot("no redis-server: " + err.Error())
		}
		archives, err := filepath.Glob(filepath.Join(dir, "*.deb"))
		if err != nil {
			return nil, err
		}
		for _, archive := range archives {
			if _, err := b.command(dir, "dpkg-deb", "-x", archive, "."); err != nil {
				return nil, couldNot("no redis-server: " + err.Error())
			}
		}
	}
	libraries, err := filepath.Glob(filepath.Join(dir, "usr", "lib", "*"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(b.ctx, program, args...)
	cmd.Args[0] = "redis-server"
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	return cmd, nil
}

// startRedis starts a server that writes nothing to the disk, which is Redis at its fastest.
func (b *bench) startRedis(s *scope) (address, version string, err error) {
	if b.quick {
		return "", "", couldNot("-quick leaves out the other limiters")
	}
	asked, err := b.redisServer("--version")
	if err != nil {
		return "", "", err
	}
	told, err := asked.Output()
	if err != nil {
		return "", "", couldNot("redis-server: " + err.Error())
	}
	version = "Redis"
	for _, word := range strings.Fields(string(told)) {
		if v, found := strings.CutPrefix(word, "v="); found {
			version += " " + v
		}
	}
	address = child.FreeAddr(s)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", err
	}
	cmd, err := b.redisServer("--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.TempDir())
	if err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	err = child.Start(s, cmd).Await(ctx, func(ctx context.Context) error {
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return connection.Close()
	})
	return address, version, err
}

// against compares one limit on the embedded file, as a user runs it, with peers, and what is refused with what they refuse. The
// bar is that of the first peer.
func (b *bench) against(s *scope, bar float64, workers ...*worker) ([]row, error) {
	o := openFile(s, subjects)
	policy := wide("one")
	allowed := []contender{{"one limit on the embedded file", timed(o.charge(b.ctx, policy))}}
	refuse, err := o.full(b.ctx)
	if err != nil {
		return nil, err
	}
	refused := []contender{{"a refusal on the embedded file", timed(refuse)}}
	for _, w := range workers {
		if err := w.check(); err != nil {
			return nil, err
		}
		allowed = append(allowed, contender{w.ready, w.does("decide")})
		refused = append(refused, contender{w.ready + ", a refusal", w.does("refuse")})
	}
	rounds, n := b.rounds(rounds, decisionsOfRound)
	figures, err := compare(b.ctx, rounds, n, allowed...)
	if err == nil {
		err = o.check(b.ctx, policy, min(rounds*n, subjects), rounds*n)
	}
	if err != nil {
		return nil, err
	}
	refusals, err := compare(b.ctx, max(1, rounds/2), n, refused...)
	if err != nil {
		return nil, err
	}
	var rows []row
	for i := range workers {
		r := versus("one limit on the embedded file, against "+workers[i].ready, bar, allowed, []figure{figures[0], figures[i+1]})
		no := versus("the same, refused", 0, refused, []figure{refusals[0], refusals[i+1]})
		r.times = []named{{allowed[i+1].name, figures[i+1]}}
		no.times = []named{{refused[i+1].name, refusals[i+1]}}
		if i == 0 {
			r.times = append([]named{{allowed[0].name, figures[0]}}, r.times...)
			no.times = append([]named{{refused[0].name, refusals[0]}}, no.times...)
		}
		rows = append(rows, r, no)
	}
	return rows, nil
}

// flexible compares with rate-limiter-flexible on a file of the same settings.
func (b *bench) flexible(s *scope) ([]row, error) {
	cmd, err := b.node("flexible.mjs", filepath.Join(s.TempDir(), "flexible.db"))
	if err != nil {
		return nil, err
	}
	w, err := hire(s, cmd)
	if err != nil {
		return nil, err
	}
	return b.against(s, 0.5, w)
}

// redis compares with redis_rate on a Redis beside it.
func (b *bench) redis(s *scope) ([]row, error) {
	address, version, err := b.startRedis(s)
	if err != nil {
		return nil, err
	}
	cmd, err := b.golang("redis_rate", address)
	if err != nil {
		return nil, err
	}
	w, err := hire(s, cmd)
	if err != nil {
		return nil, err
	}
	w.ready += " on loopback " + version
	return b.against(s, 0.8, w)
}

// throttled compares with throttled, in memory, which is no peer of what is kept, and, where there is one, on Redis.
func (b *bench) throttled(s *scope) ([]row, error) {
	cmd, err := b.golang("throttled-memory")
	if err != nil {
		return nil, err
	}
	memory, err := hire(s, cmd)
	if err != nil {
		return nil, err
	}
	workers := []*worker{memory}
	address, version, missing := b.startRedis(s)
	var trips struct{ Trips float64 }
	if missing == nil {
		if cmd, err = b.golang("throttled-redis", address); err != nil {
			return nil, err
		}
		w, err := hire(s, cmd)
		if err == nil {
			err = w.ask("decide 1000", &trips)
		}
		if err == nil {
			err = w.ask("decide 1000", &trips) // each subject once more
		}
		if err != nil {
			return nil, err
		}
		w.ready += " on loopback " + version
		workers = append(workers, w)
	}
	rows, err := b.against(s, 0, workers...)
	if err == nil && missing == nil {
		rows = append(rows, row{what: "throttled's round trips per decision to Redis", figures: fmt.Sprint(trips.Trips)})
	}
	return rows, errors.Join(err, missing)
}

// upstash counts the HTTP requests that @upstash/ratelimit makes for a decision.
func (b *bench) upstash(*scope) ([]row, error) {
	cmd, err := b.node("upstash.mjs")
	if err != nil {
		return nil, err
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, lastOf([]byte(problems.String())))
	}
	var rows []row
	for line := range bytes.Lines(out) {
		var seen struct {
			Algorithm                   string
			First                       int
			Later                       float64
			Decisions, Allowed, Refused int
		}
		if err := json.Unmarshal(line, &seen); err != nil {
			return nil, err
		}
		if seen.Refused != 1 || seen.Allowed != seen.Decisions+3 {
			return nil, fmt.Errorf("%+v: want one refusal", seen)
		}
		rows = append(rows, row{
			what:    "@upstash/ratelimit's HTTP requests per decision, " + seen.Algorithm,
			figures: fmt.Sprintf("%d for the first on a database, then %.2f", seen.First, seen.Later),
		})
	}
	if len(rows) != 2 {
		return nil, fmt.Errorf("it said %q", out)
	}
	return rows, nil
}
