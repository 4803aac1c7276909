//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/weirlimits/weir/lib/testkit/hrana"
)

// workVariable tells a copy of this program that it is a worker, and which; addressVariable is what it works on.
const (
	workVariable    = "WEIR_BENCH_WORK"
	addressVariable = "WEIR_BENCH_ADDRESS"
)

// self is a command that runs this program as a worker.
func (b *bench) self(work, address string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(b.ctx, program)
	cmd.Env = append(os.Environ(), workVariable+"="+work, addressVariable+"="+address)
	return cmd, nil
}

// work does what a worker does, if this process is one, until its input ends.
func work(input io.Reader, output, problems io.Writer) bool {
	works := map[string]func(*scope, *bufio.Scanner, *json.Encoder) error{"decide": decide, "serve": serve}
	name := os.Getenv(workVariable)
	if name == "" {
		return false
	}
	_, err := within(context.Background(), func(s *scope) (struct{}, error) {
		return struct{}{}, works[name](s, bufio.NewScanner(input), json.NewEncoder(output))
	})
	if err != nil {
		fmt.Fprintln(problems, "bench:", err)
		os.Exit(1)
	}
	return true
}

// decide makes as many decisions as each line says.
func decide(s *scope, lines *bufio.Scanner, say *json.Encoder) error {
	o := open(s, os.Getenv(addressVariable), subjects)
	round := timed(o.charge(s.ctx, wide("shared")))
	if err := say.Encode(map[string]string{"ready": "decide"}); err != nil {
		return err
	}
	for lines.Scan() {
		var n int
		if _, err := fmt.Sscanf(lines.Text(), "decide %d", &n); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		done, err := round(n)
		if err != nil {
			return err
		}
		if err := say.Encode(map[string][]int64{"nanos": done.nanos}); err != nil {
			return err
		}
	}
	return lines.Err()
}

// serve is a server of SQL over HTTP with SQLite behind it. It says its URL, and after each line how many requests came since the
// last one.
func serve(s *scope, lines *bufio.Scanner, say *json.Encoder) error {
	commit, err := commitTime()
	if err != nil {
		return err
	}
	server := hrana.Start(s, hrana.Config{})
	if commit > 0 {
		server.SetHook(model(commit, func() *hrana.Server { return server }))
	}
	if err := say.Encode(map[string]string{"ready": server.URL}); err != nil {
		return err
	}
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) != "requests" {
			return fmt.Errorf("%q is unknown", lines.Text())
		}
		count := len(server.Requests())
		server.Forget()
		if err := say.Encode(map[string]int{"requests": count}); err != nil {
			return err
		}
	}
	return lines.Err()
}
