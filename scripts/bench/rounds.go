//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// contender is one of the things that are compared. Its round does n of it and says how long each took, in nanoseconds, and what
// all took together where that isn't the sum.
type contender struct {
	name  string
	round func(n int) (outcome, error)
}

type outcome struct {
	nanos []int64
	total time.Duration // 0: the sum
}

// figure is what became of a contender's rounds.
type figure struct {
	fastest float64 // of one in the fastest round, in nanoseconds
	nanos   []int64 // all, in order of size
}

// quantile is the time within which so many of all were done.
func (f figure) quantile(q float64) float64 {
	return float64(f.nanos[max(0, int(math.Ceil(q*float64(len(f.nanos))))-1)])
}

// compare has the contenders do rounds of n in turns. What else the machine does hits all of them, and the fastest round of
// each least.
func compare(ctx context.Context, rounds, n int, contenders ...contender) ([]figure, error) {
	figures := make([]figure, len(contenders))
	for i := range figures {
		figures[i].fastest = math.Inf(1)
	}
	for round := range rounds {
		for turn := range contenders {
			i := turn
			if round%2 == 1 { // nobody always comes after the same one
				i = len(contenders) - 1 - turn
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			done, err := contenders[i].round(n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", contenders[i].name, err)
			}
			if len(done.nanos) != n {
				return nil, fmt.Errorf("%s: %d done, want %d", contenders[i].name, len(done.nanos), n)
			}
			if done.total == 0 {
				for _, one := range done.nanos {
					done.total += time.Duration(one)
				}
			}
			figures[i].fastest = min(figures[i].fastest, float64(done.total)/float64(n))
			figures[i].nanos = append(figures[i].nanos, done.nanos...)
		}
	}
	for _, f := range figures {
		slices.Sort(f.nanos)
	}
	return figures, nil
}

// timed does n of something, one after the other.
func timed(one func() error) func(n int) (outcome, error) {
	return func(n int) (outcome, error) {
		nanos := make([]int64, n)
		for i := range nanos {
			start := time.Now()
			if err := one(); err != nil {
				return outcome{}, err
			}
			nanos[i] = time.Since(start).Nanoseconds()
		}
		return outcome{nanos: nanos}, nil
	}
}

// versus is the row of a comparison: the first contender against the second.
func versus(what string, bar float64, contenders []contender, figures []figure) row {
	r := row{
		what:    what,
		figures: fmt.Sprintf("%s against %s µs", micros(figures[0].fastest), micros(figures[1].fastest)),
		ratio:   figures[0].fastest / figures[1].fastest,
		bar:     bar,
		hasBar:  bar > 0,
	}
	for i, f := range figures {
		r.times = append(r.times, named{contenders[i].name, f})
	}
	return r
}

// scope stands in for a test where lib/testkit wants one.
type scope struct {
	testing.TB // nil: what is not below is not called
	ctx        context.Context
	cleanups   []func()
}

// stopped is what a Fatal or Skip panics with.
type stopped struct{ error }

// within runs something in a scope, and cleans up behind it.
func within[T any](ctx context.Context, do func(*scope) (T, error)) (result T, err error) {
	s := &scope{ctx: ctx}
	defer func() {
		reason := recover()
		for _, cleanup := range slices.Backward(s.cleanups) {
			cleanup()
		}
		if stop, ok := reason.(stopped); ok {
			err = stop.error
		} else if reason != nil {
			panic(reason)
		}
	}()
	return do(s)
}

func (s *scope) Helper()                      {}
func (s *scope) Context() context.Context     { return s.ctx }
func (s *scope) Cleanup(do func())            { s.cleanups = append(s.cleanups, do) }
func (s *scope) Fatal(args ...any)            { panic(stopped{errors.New(fmt.Sprint(args...))}) }
func (s *scope) Fatalf(f string, args ...any) { panic(stopped{fmt.Errorf(f, args...)}) }
func (s *scope) Skip(args ...any)             { panic(stopped{couldNot(fmt.Sprint(args...))}) }

func (s *scope) TempDir() string {
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// worker is another process that does what it is told, a line for each thing: see scripts/_peers/node/protocol.mjs.
type worker struct {
	ready string // what it said of itself
	cmd   *exec.Cmd
	lines *bufio.Reader
	input io.WriteCloser
	error *strings.Builder
}

// hire starts a worker, which ends with the scope, and waits until it is ready.
func hire(s *scope, cmd *exec.Cmd) (*worker, error) {
	w := &worker{cmd: cmd, error: &strings.Builder{}}
	cmd.Stderr = w.error
	cmd.WaitDelay = time.Second
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.input, w.lines = input, bufio.NewReader(output)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.Cleanup(func() {
		input.Close()
		cmd.Wait()
	})
	var said struct{ Ready string }
	err = w.answer(&said)
	w.ready = said.Ready
	return w, err
}

func (w *worker) tell(what string) error {
	_, err := io.WriteString(w.input, what+"\n")
	return err
}

func (w *worker) answer(into any) error {
	line, err := w.lines.ReadBytes('\n')
	if err != nil { // it has ended, and said why
		w.input.Close()
		err = errors.Join(w.cmd.Wait(), err)
		return fmt.Errorf("%s ended: %w: %s", w.cmd.Path, err, strings.TrimSpace(w.error.String()))
	}
	return json.Unmarshal(line, into)
}

func (w *worker) ask(what string, into any) error {
	if err := w.tell(what); err != nil {
		return err
	}
	return w.answer(into)
}

// does is a round of what the worker is told to do.
func (w *worker) does(what string) func(n int) (outcome, error) {
	return func(n int) (outcome, error) {
		var done struct{ Nanos []int64 }
		err := w.ask(fmt.Sprintf("%s %d", what, n), &done)
		return outcome{nanos: done.Nanos}, err
	}
}

// check has a peer decide four times at a limit of three.
func (w *worker) check() error {
	var seen struct{ Allowed, Refused int }
	if err := w.ask("check", &seen); err != nil {
		return err
	}
	if seen.Allowed != 3 || seen.Refused != 1 {
		return fmt.Errorf("%s: %d allowed and %d refused of four at a limit of three", w.ready, seen.Allowed, seen.Refused)
	}
	return nil
}
