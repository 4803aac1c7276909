//go:build unix

// Package child runs the programs that tests need and makes sure none outlives the test that started it.
package child

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// pollInterval is how often Await asks whether a program is ready: short against the half second most of them need.
const pollInterval = 20 * time.Millisecond

// Process is a started program. Its methods may be called from several goroutines.
type Process struct {
	cmd  *exec.Cmd
	out  string // the file that it prints to
	done chan struct{}
	err  error // valid once done is closed
}

// Start starts cmd in a process group of its own and stops that group when the test ends. What the program prints is kept
// for Output; cmd must leave Stdout and Stderr unset. It prints to a file and not through a pipe, which somebody would have to
// empty: so Output has all that the program printed before it answered.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{cmd: cmd, out: filepath.Join(t.TempDir(), "output"), done: make(chan struct{})}
	out, err := os.OpenFile(p.out, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("child: start %s: %v", cmd.Path, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.Stop)
	return p
}

// Stop kills the program and what it started in its group, and waits until the program is gone. Stopping twice is fine.
func (p *Process) Stop() {
	// ESRCH only says that nothing is left to stop.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// PID is the program's process id, which is also its process group's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Output is what the program has printed so far, standard output and error mixed as they came.
func (p *Process) Output() string {
	printed, err := os.ReadFile(p.out)
	if err != nil {
		return err.Error()
	}
	return string(printed)
}

// Await calls ready until it returns nil. It returns an error that includes the program's output when the program ends first
// or ctx does.
func (p *Process) Await(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("child: %s ended (%v) before it was ready: %s", p.cmd.Path, p.err, p.Output())
		case <-ctx.Done():
			return fmt.Errorf("child: %s not ready: %w: %s", p.cmd.Path, errors.Join(ctx.Err(), err), p.Output())
		case <-tick.C:
		}
	}
}

// FreeAddr returns an address on 127.0.0.1 on which nothing listens, for programs that can't be told to pick a port
// themselves. Another program may take it first, so whoever uses it must see that the right one answers.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}

// SkipUnlessCI skips the test for want of what reason names. In CI nothing may be skipped, so there the test fails.
func SkipUnlessCI(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s, and in CI nothing may be skipped", reason)
	}
	t.Skip(reason)
}
