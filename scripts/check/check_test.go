package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTestsAreCountedAndFailuresAndSkipsAreShown(t *testing.T) {
	const run = `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"quiet please\n"}
{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"output","Package":"p","Test":"TestElsewhere","Output":"no Node\n"}
{"Action":"skip","Package":"p","Test":"TestElsewhere"}
{"Action":"fail","Package":"p"}
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: undefined: x\n"}
{"Action":"skip","Package":"empty"}
{"Action":"pass","Package":"r"}
not json
`
	var w strings.Builder
	got, err := readTests(strings.NewReader(run), &w)
	if want := (tally{passed: 1, failed: 1, skipped: 1}); got != want || err != nil {
		t.Errorf("counted %+v (%v), want %+v", got, err, want)
	}
	for _, want := range []string{"p TestBad\ngot 1, want 2\n", "p TestElsewhere\nno Node\n", "undefined: x", "not json"} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("printed %q, want %q in it", w.String(), want)
		}
	}
	if strings.Contains(w.String(), "quiet please") {
		t.Errorf("printed a passed test's output: %q", w.String())
	}
}

func TestASkipIsAFailureInCIOnly(t *testing.T) {
	for _, c := range []struct {
		ci     bool
		err    error
		failed int
	}{
		{false, nil, 0},
		{true, nil, 0},
		{false, skip("no Node"), 0},
		{true, skip("no Node"), 1},
		{false, errors.New("broken"), 1},
	} {
		run := &check{ci: c.ci, out: io.Discard}
		run.report("step", time.Second, c.err)
		if run.failed != c.failed {
			t.Errorf("ci %v, %v: %d failed, want %d", c.ci, c.err, run.failed, c.failed)
		}
	}
}

func TestUnknownArgumentsAreRefusedAndHelpIsGiven(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		done bool
	}{
		{nil, 0, false},
		{[]string{"-h"}, 0, true},
		{[]string{"--help"}, 0, true},
		{[]string{"-race"}, 2, true},
		{[]string{"./lib/..."}, 2, true},
		{[]string{"-h", "x"}, 2, true},
	} {
		var stdout, stderr strings.Builder
		code, done := answerArguments(c.args, &stdout, &stderr)
		if code != c.code || done != c.done {
			t.Errorf("%q: code %d, done %v; want %d and %v", c.args, code, done, c.code, c.done)
		}
		if help := c.done && c.code == 0; strings.HasPrefix(stdout.String(), "usage:") != help || (stderr.Len() > 0) != (c.code != 0) {
			t.Errorf("%q: printed %q and %q", c.args, stdout.String(), stderr.String())
		}
	}
}

func TestAStepIsAnnouncedAndNoneFollowsWhenTheRunIsStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var out strings.Builder
	run := &check{ctx: ctx, out: &out}
	run.runAll([]step{
		{"first", func(c *check) error {
			if out.String() != "first …\n" {
				t.Errorf("printed %q before the step", out.String())
			}
			stop()
			return c.ctx.Err()
		}},
		{"second", func(*check) error {
			t.Error("the second step ran")
			return nil
		}},
	})
	if run.failed != 1 || run.passed != 0 {
		t.Errorf("%d failed and %d passed, want 1 and 0", run.failed, run.passed)
	}
}

// A shell that waits for a child of its own: killing the shell alone would leave the child, which holds the output open.
func TestAProgramIsStoppedWithWhatItStarted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	run := &check{ctx: ctx, root: t.TempDir()}
	cmd := run.program("sh", "-c", "sh -c 'echo ready; read forever; echo read' <&3 & wait")
	never, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	defer never.Close()
	cmd.ExtraFiles = []*os.File{never}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, ready); err != nil {
		t.Fatal(err)
	}
	stop()
	if rest, err := io.ReadAll(out); err != nil || len(rest) != 0 {
		t.Errorf("it printed %q (%v) after it was stopped", rest, err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended well")
	}
}

func TestAnInstallationIsComparedWithTheLockFile(t *testing.T) {
	const lock = `{"packages": {"": {"version": "1"}, "a": {"version": "1", "integrity": "x"}, "b": {"version": "2", "optional": true}}}`
	for _, c := range []struct {
		record string
		want   bool
	}{
		{`{"packages": {"a": {"version": "1", "integrity": "x"}, "b": {"version": "2"}}}`, true},
		{`{"packages": {"a": {"version": "1", "integrity": "x"}}}`, true},
		{`{"packages": {"b": {"version": "2"}}}`, false},
		{`{"packages": {"a": {"version": "2", "integrity": "x"}}}`, false},
		{`{"packages": {"a": {"version": "1", "integrity": "y"}}}`, false},
		{`{"packages": {"a": {"version": "1", "integrity": "x"}, "c": {"version": "1"}}}`, false},
		{"", false}, // nothing installed
	} {
		dir := t.TempDir()
		files := map[string]string{"lock": lock, "record": c.record}
		for name, text := range files {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := installed(filepath.Join(dir, "lock"), filepath.Join(dir, "record"))
		if got != c.want || err != nil {
			t.Errorf("%s: %v and %v, want %v", c.record, got, err, c.want)
		}
	}
}

// The lock file must work with any registry, so it names none.
func TestTheLockFileHoldsNoDownloadAddress(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "_tools", "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), `"resolved"`) {
		t.Error(`the lock file has "resolved" entries; install with omit-lockfile-registry-resolved`)
	}
}
