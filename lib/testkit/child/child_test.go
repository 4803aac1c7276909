//go:build unix

package child_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/testkit/child"
)

func TestStopEndsTheProgramAndItsChildren(t *testing.T) {
	// Both the shell and its child hold the pipe's writing end; it ends when the last of them has gone.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", "sleep 30 & echo started; wait")
	cmd.ExtraFiles = []*os.File{w}
	p := child.Start(t, cmd)
	w.Close()
	err = p.Await(t.Context(), func(context.Context) error {
		if p.Output() != "started\n" {
			return errors.New("not started yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Stop()
	p.Stop() // twice is fine
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("the shell's child still runs: %v", err)
	}
}

func TestAwaitReportsAProgramThatEndsEarlyWithItsOutput(t *testing.T) {
	p := child.Start(t, exec.Command("sh", "-c", "echo out of luck; exit 3"))
	<-p.Done()
	err := p.Await(t.Context(), func(context.Context) error { return errors.New("not ready") })
	if err == nil || !strings.Contains(err.Error(), "out of luck") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v, want one with the exit status and the output", err)
	}
}
