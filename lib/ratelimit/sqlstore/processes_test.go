package sqlstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// urlOfParent tells a copy of this test program that it is one of many processes, and which database they share.
const urlOfParent = "WEIR_TEST_SHARED_DATABASE"

func TestMain(m *testing.M) {
	if url := os.Getenv(urlOfParent); url != "" {
		if err := decideWhenTold(url); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// shared is a policy whose window no test can straddle.
var shared = ratelimit.Policy{Name: "shared", Algorithm: ratelimit.FixedWindow, Limit: 10, Window: ratelimit.MaxWindow}

// decideWhenTold is what each of the processes does: it opens everything, says that it is ready, and takes one decision
// when its standard input ends.
func decideWhenTold(url string) error {
	db, err := database.Open(database.Config{URL: url})
	if err != nil {
		return err
	}
	limiter, err := ratelimit.New(sqlstore.New(db.DB, sqlstore.Config{ManyResults: db.ManyResults}), storetest.Secret, ratelimit.Config{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := io.ReadAll(os.Stdin); err != nil {
		return err
	}
	decision, err := limiter.Decide(context.Background(), shared.Charge("someone"))
	if err != nil {
		return err
	}
	fmt.Println(map[bool]string{true: "allowed", false: "refused"}[decision.Allowed])
	return nil
}

// Rows B1, B3; cases A01, A02.
func TestTwentyProcessesAtALimitOfTenAdmitTenAndAuditOneRefusal(t *testing.T) {
	t.Run("on one file", func(t *testing.T) {
		url := "file:" + filepath.Join(t.TempDir(), "weir.db")
		twentyProcesses(t, url, databases.Open(t, url))
	})
	t.Run("on the Turso server", func(t *testing.T) {
		url := turso.Start(t).URL
		twentyProcesses(t, url, databases.Open(t, url))
	})
}

func twentyProcesses(t *testing.T, url string, db *database.DB) {
	const processes = 20
	type process struct {
		command *exec.Cmd
		start   io.WriteCloser
		output  *bufio.Reader
	}
	var all []process
	for range processes {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), urlOfParent+"="+url)
		command.Stderr = os.Stderr
		start, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		output, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { command.Process.Kill() })
		all = append(all, process{command, start, bufio.NewReader(output)})
	}
	for _, p := range all {
		if line, err := p.output.ReadString('\n'); line != "ready\n" {
			t.Fatalf("a process says %q, %v", line, err)
		}
	}
	for _, p := range all {
		p.start.Close()
	}
	answers := map[string]int{}
	for _, p := range all {
		answer, _ := io.ReadAll(p.output)
		answers[strings.TrimSpace(string(answer))]++
		if err := p.command.Wait(); err != nil {
			t.Error(err)
		}
	}
	if answers["allowed"] != 10 || answers["refused"] != 10 {
		t.Errorf("answers %v, want 10 of each", answers)
	}
	if got := audits(t, db.DB); len(got) != 1 {
		t.Errorf("%d audit rows, want 1", len(got))
	}
	if n := number(t, db.DB, "SELECT count(*) FROM rate_limits"); n != 1 {
		t.Errorf("%d counter rows, want 1", n)
	}
}
