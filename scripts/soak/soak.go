//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

const (
	// parentDeadline bounds a call of the parent's, on a machine that is busy with its children.
	parentDeadline = 30 * time.Second
	// away is how long the store is taken away: longer than a child waits, so that some wait in vain.
	away = deadline + 300*time.Millisecond
	// sampleEvery is how often the memory of the first child is looked at, and whether it is time for something.
	sampleEvery = 100 * time.Millisecond
	// faultsEach is how often each kind of fault comes about in a run, when it is as long as that takes.
	faultsEach = 12
	// endTime is how long children have to end by themselves.
	endTime = 20 * time.Second
)

// soak runs everything and says whether all verdicts are ok.
func soak(ctx context.Context, o options, out io.Writer) (ok bool, err error) {
	dir, err := os.MkdirTemp("", "weir-soak-")
	if err != nil {
		return false, err
	}
	if o.keep {
		defer fmt.Fprintln(out, "kept in", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	store, err := openTheStore(ctx, o, dir)
	if err != nil {
		return false, err
	}
	defer store.close()
	how := o.time.String()
	if o.decisions > 0 {
		how = fmt.Sprint(o.decisions, " decisions")
	}
	fmt.Fprintf(out, "seed %d, %s, %d processes on %s\n", o.seed, how, o.processes, store.name)
	begun := time.Now()
	family := &family{o: o, dir: dir, url: store.url}
	defer family.killAll()
	if err := family.run(ctx, store); err != nil {
		return false, err
	}
	took := time.Since(begun)
	report, err := reconcile(ctx, o, store, family)
	if err != nil {
		return false, err
	}
	report.took = took
	return report.print(out), nil
}

// theStore is what all processes share, with what takes it away and brings it back.
type theStore struct {
	name, url string
	file      string
	db        *database.DB
	take      func(context.Context) error
	bring     func(context.Context) error
	close     func()
}

func openTheStore(ctx context.Context, o options, dir string) (*theStore, error) {
	s := &theStore{name: "a file", file: filepath.Join(dir, "weir.db")}
	if o.onServer() {
		if err := s.server(ctx, o); err != nil {
			return nil, err
		}
	} else {
		s.url = "file:" + s.file
	}
	db, err := database.Open(database.Config{URL: s.url, Deadline: parentDeadline})
	if err == nil {
		s.db = db
		_, err = migration.Up(ctx, db)
	}
	if err != nil {
		if s.close != nil {
			s.close()
		}
		return nil, err
	}
	if !o.onServer() {
		s.lockable()
	}
	return s, nil
}

// lockable has the file be locked by a connection of the parent's.
func (s *theStore) lockable() {
	stop := func() error { return nil }
	s.take = func(ctx context.Context) error {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			conn.Close()
			return err
		}
		stop = func() error {
			_, err := conn.ExecContext(context.Background(), "ROLLBACK")
			return errors.Join(err, conn.Close())
		}
		return nil
	}
	s.bring = func(context.Context) error { return stop() }
	s.close = func() { s.db.Close() }
}

// server starts a server, which is killed to take the store away, and started anew on the same
// database.
func (s *theStore) server(ctx context.Context, o options) error {
	name, find, arguments := "the Turso server", turso.Program, turso.Arguments
	if o.libsql {
		name, find, arguments = "the libSQL server", turso.LibSQLProgram, turso.LibSQLArguments
	}
	program, err := find()
	if err != nil {
		return fmt.Errorf("%w: go run ./scripts/check installs it when Node is present", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	listener.Close()
	s.name, s.url = name, "http://"+address
	var server *exec.Cmd
	s.bring = func(ctx context.Context) error {
		server = exec.Command(program, arguments(address, filepath.Dir(s.file))...)
		server.Env = []string{"HOME=" + filepath.Dir(s.file)}
		if err := server.Start(); err != nil {
			return err
		}
		return await(ctx, s.url)
	}
	s.take = func(context.Context) error { return kill(server) }
	s.close = func() {
		if s.db != nil {
			s.db.Close()
		}
		kill(server)
	}
	if err := s.bring(ctx); err != nil {
		kill(server)
		return err
	}
	return nil
}

// kill ends a process at once, as a crash would, and waits until it is gone.
func kill(cmd *exec.Cmd) error {
	if cmd == nil || cmd.Process == nil {
		return nil
	}
	err := cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	cmd.Wait() // an error says that it was killed
	return err
}

// await waits until a server answers.
func await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, parentDeadline)
	defer cancel()
	const question = `{"requests": [{"type": "execute", "stmt": {"sql": "SELECT 20 + 22"}}]}`
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v2/pipeline", strings.NewReader(question))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		if response, err := http.DefaultClient.Do(request); err == nil {
			answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
			response.Body.Close()
			if err == nil && bytes.Contains(answer, []byte(`"42"`)) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server doesn't answer: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// family are the processes that decide.
type family struct {
	o      options
	dir    string
	url    string
	kids   []*kid
	traces []string // of all, the dead ones included

	kills, stops int
	memory       []int64 // bytes of the first child, at even times
}

// kid is one process, and whoever takes its place.
type kid struct {
	index  int
	lives  int
	cmd    *exec.Cmd
	stdin  io.Closer
	output bytes.Buffer // of the process that lives; read after done
	done   chan error
	mine   []string // traces
}

// start starts a process, or one in the place of a dead one.
func (f *family) start(k *kid) error {
	k.lives++
	trace := filepath.Join(f.dir, fmt.Sprintf("%d-%d.trace", k.index, k.lives))
	program, err := os.Executable()
	if err != nil {
		return err
	}
	left := int64(0)
	if f.o.decisions > 0 {
		share := f.o.decisions / int64(f.o.processes)
		if k.index == 0 {
			share += f.o.decisions % int64(f.o.processes)
		}
		answered := int64(0)
		for _, trace := range k.mine {
			n, err := answers(trace)
			if err != nil {
				return err
			}
			answered += n
		}
		if left = share - answered; left <= 0 {
			k.done = make(chan error, 1)
			k.done <- nil
			return nil
		}
	}
	k.mine, f.traces = append(k.mine, trace), append(f.traces, trace)
	seed := f.o.seed*1_000_003 + uint64(k.index)*1009 + uint64(k.lives)
	k.cmd = exec.Command(program, "-child", "-url", f.url, "-trace", trace, "-seed", strconv.FormatUint(seed, 10),
		"-decisions", strconv.FormatInt(left, 10), "-total", strconv.FormatInt(f.o.decisions, 10), "-turso="+strconv.FormatBool(f.o.turso), "-libsql="+strconv.FormatBool(f.o.libsql),
		"-break", f.o.broken)
	k.output.Reset()
	k.cmd.Stderr = &k.output
	stdin, err := k.cmd.StdinPipe()
	if err != nil {
		return err
	}
	k.stdin = stdin
	if err := k.cmd.Start(); err != nil {
		return err
	}
	k.done = make(chan error, 1)
	cmd, done := k.cmd, k.done
	go func() { done <- cmd.Wait() }()
	return nil
}

func (f *family) killAll() {
	for _, k := range f.kids {
		if k.cmd != nil && k.cmd.Process != nil {
			k.cmd.Process.Kill() // it may have ended
		}
	}
}

// run has the processes decide, and does to them what a soak does.
func (f *family) run(ctx context.Context, store *theStore) error {
	for i := range f.o.processes {
		k := &kid{index: i}
		f.kids = append(f.kids, k)
		if err := f.start(k); err != nil {
			return err
		}
	}
	random := rand.New(rand.NewPCG(f.o.seed, 0))
	every := f.o.time / (2 * faultsEach)
	if f.o.decisions > 0 {
		every = time.Second
	}
	every = max(every, away)
	begun, next := time.Now(), time.Now().Add(away/4)
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for turn := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if n, err := memoryOf(f.kids[0].cmd.Process.Pid); err == nil {
			f.memory = append(f.memory, n)
		}
		over, err := f.over()
		if err != nil {
			return err
		}
		if f.o.decisions > 0 && over || f.o.decisions == 0 && time.Since(begun) >= f.o.time {
			break
		}
		if time.Now().Before(next) {
			continue
		}
		if turn++; turn%2 == 1 {
			err = f.killOne(random)
		} else {
			err = f.takeAway(ctx, store)
		}
		if err != nil {
			return err
		}
		next = time.Now().Add(every/2 + time.Duration(random.Int64N(int64(every))))
	}
	return f.end()
}

// over says whether all processes have ended by themselves. One that failed is an error.
func (f *family) over() (bool, error) {
	all := true
	for _, k := range f.kids {
		select {
		case err := <-k.done:
			if err != nil {
				return false, fmt.Errorf("a child ended: %w: %s", err, k.output.String())
			}
			k.done <- nil
		default:
			all = false
		}
	}
	return all, nil
}

func (f *family) killOne(random *rand.Rand) error {
	k := f.kids[1+random.IntN(len(f.kids)-1)]
	k.cmd.Process.Kill() // it may have ended by itself
	err := <-k.done
	if err == nil {
		k.done <- nil
		return nil
	}
	f.kills++
	return f.start(k)
}

func (f *family) takeAway(ctx context.Context, store *theStore) error {
	if err := store.take(ctx); err != nil {
		return fmt.Errorf("take the store away: %w", err)
	}
	f.stops++
	time.Sleep(away)
	if err := store.bring(ctx); err != nil {
		return fmt.Errorf("bring the store back: %w", err)
	}
	return nil
}

// end has the processes end after the calls that they are in.
func (f *family) end() error {
	for _, k := range f.kids {
		if k.stdin != nil {
			k.stdin.Close()
		}
	}
	late := time.After(endTime)
	for _, k := range f.kids {
		select {
		case err := <-k.done:
			if err != nil {
				return fmt.Errorf("a child ended: %w: %s", err, k.output.String())
			}
			k.done <- nil
		case <-late:
			return errors.New("a child doesn't end")
		}
	}
	return nil
}

// memoryOf is what a process holds, in bytes, where the system tells.
func memoryOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, errors.New("statm has no second field")
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
