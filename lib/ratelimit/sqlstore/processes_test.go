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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// urlOfParent tells a copy of this test program that it is one of many processes, and which databases they share; workOfParent
// tells what it is to do, and numberOfParent which of them it is, from 0.
const (
	urlOfParent    = "WEIR_TEST_SHARED_DATABASE"
	workOfParent   = "WEIR_TEST_WORK"
	numberOfParent = "WEIR_TEST_NUMBER"
)

// works are what the processes do, by name. Each returns the line that it says at the end.
var works = map[string]func(*ratelimit.Limiter) (string, error){
	"once":  decideOnce,
	"mixed": decideMixed,
	"both":  decideBoth,

	"loads":   decideLoads,
	"guesses": decideGuesses,
	"codes":   decideCodes,
}

func TestMain(m *testing.M) {
	if url := os.Getenv(urlOfParent); url != "" {
		if err := workWhenTold(url); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// shared is a policy whose window no test can straddle.
var shared = ratelimit.Policy{Name: "shared", Algorithm: ratelimit.FixedWindow, Limit: 10, Window: ratelimit.MaxWindow}

// workWhenTold is what each of the processes does: it opens everything, says that it is ready, and begins when its standard
// input ends.
func workWhenTold(url string) error {
	var all []*database.DB
	for one := range strings.FieldsSeq(url) {
		db, err := database.Open(database.Config{URL: one, Deadline: patience})
		if err != nil {
			return err
		}
		all = append(all, db)
	}
	store, err := over(all, sqlstore.Config{})
	if err != nil {
		return err
	}
	limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := io.ReadAll(os.Stdin); err != nil {
		return err
	}
	said, err := works[os.Getenv(workOfParent)](limiter)
	if err != nil {
		return err
	}
	fmt.Println(said)
	return nil
}

func decideOnce(limiter *ratelimit.Limiter) (string, error) {
	decision, err := limiter.Decide(context.Background(), shared.Charge("someone"))
	return map[bool]string{true: "allowed", false: "refused"}[decision.Allowed], err
}

// Three limits of different algorithms, none of which gains anything while a test runs.
var (
	attempts = ratelimit.Policy{Name: "attempts", Algorithm: ratelimit.FixedWindow, Limit: 10_000, Window: ratelimit.MaxWindow, Count: ratelimit.EveryAttempt}
	account  = ratelimit.Policy{Name: "account", Algorithm: ratelimit.SlidingLog, Limit: 30, Window: 24 * time.Hour}
	all      = ratelimit.Policy{Name: "all", Algorithm: ratelimit.TokenBucket, Limit: 1, Window: 24 * time.Hour, Burst: 50}
)

const (
	mixedProcesses = 4
	mixedWorkers   = 16 // in each process
	mixedEach      = 6  // decisions of each worker
)

// decideMixed says how many decisions were admitted for each of two accounts.
func decideMixed(limiter *ratelimit.Limiter) (string, error) {
	var admitted [2]atomic.Int64
	failed := make(chan error, mixedWorkers)
	var group sync.WaitGroup
	for worker := range mixedWorkers {
		group.Go(func() {
			for range mixedEach {
				who := worker % 2
				decision, err := limiter.Decide(context.Background(),
					attempts.Charge("everyone"), account.Charge(fmt.Sprint(who)), all.Charge("everyone"))
				if err != nil {
					failed <- err
					return
				}
				if decision.Allowed {
					admitted[who].Add(1)
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return "", err
	default:
		return fmt.Sprint(admitted[0].Load(), admitted[1].Load()), nil
	}
}

// Rows B1, B3; cases A01, A02.
func TestTwentyProcessesAtALimitOfTenAdmitTenAndAuditOneRefusal(t *testing.T) {
	t.Run("on one file", func(t *testing.T) {
		url := "file:" + filepath.Join(t.TempDir(), "weir.db")
		twentyProcesses(t, url, databases.Open(t, url))
	})
	turso.Each(t, func(t *testing.T, server *turso.Server) {
		twentyProcesses(t, server.URL, databases.Open(t, server.URL))
	})
}

// inProcesses has so many processes do a work at once and returns what each said.
func inProcesses(t *testing.T, processes int, url, work string) (said []string) {
	t.Helper()
	type process struct {
		command *exec.Cmd
		start   io.WriteCloser
		output  *bufio.Reader
	}
	var running []process
	for number := range processes {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), urlOfParent+"="+url, workOfParent+"="+work, fmt.Sprintf("%s=%d", numberOfParent, number))
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
		running = append(running, process{command, start, bufio.NewReader(output)})
	}
	for _, p := range running {
		if line, err := p.output.ReadString('\n'); line != "ready\n" {
			t.Fatalf("a process says %q, %v", line, err)
		}
	}
	for _, p := range running {
		p.start.Close()
	}
	for _, p := range running {
		answer, _ := io.ReadAll(p.output)
		said = append(said, strings.TrimSpace(string(answer)))
		if err := p.command.Wait(); err != nil {
			t.Error(err)
		}
	}
	return said
}

func twentyProcesses(t *testing.T, url string, db *database.DB) {
	answers := map[string]int{}
	for _, answer := range inProcesses(t, 20, url, "once") {
		answers[answer]++
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

// Row E1: what is charged is what was admitted, but for the limit that counts every attempt.
func TestFourProcessesOverThreeAlgorithmsChargeExactlyWhatTheyAdmit(t *testing.T) {
	t.Run("on one file", func(t *testing.T) {
		url := "file:" + filepath.Join(t.TempDir(), "weir.db")
		mixedInProcesses(t, url, databases.Open(t, url))
	})
	turso.Each(t, func(t *testing.T, server *turso.Server) {
		mixedInProcesses(t, server.URL, databases.Open(t, server.URL))
	})
}

func mixedInProcesses(t *testing.T, url string, db *database.DB) {
	var admitted [2]int64
	for _, said := range inProcesses(t, mixedProcesses, url, "mixed") {
		var first, second int64
		if _, err := fmt.Sscan(said, &first, &second); err != nil {
			t.Fatalf("a process says %q", said)
		}
		admitted[0] += first
		admitted[1] += second
	}
	limiter, err := ratelimit.New(open(db, sqlstore.Config{}), storetest.Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	left, err := limiter.Peek(t.Context(), attempts.Charge("everyone"), account.Charge("0"), account.Charge("1"), all.Charge("everyone"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := admitted[0] + admitted[1]; sum != all.Burst || left.Limits[3].Remaining != 0 {
		t.Errorf("%d admitted and %d left of the %d that all share", sum, left.Limits[3].Remaining, all.Burst)
	}
	for who := range admitted {
		if charged := account.Limit - left.Limits[1+who].Remaining; charged != admitted[who] {
			t.Errorf("account %d: %d charged, %d admitted", who, charged, admitted[who])
		}
	}
	if made, counted := int64(mixedProcesses*mixedWorkers*mixedEach), attempts.Limit-left.Limits[0].Remaining; counted != made {
		t.Errorf("%d attempts counted, %d made", counted, made)
	}
	seen := map[int64]bool{}
	for _, audit := range audits(t, db.DB) {
		if seen[audit.Key] {
			t.Errorf("two audit rows for one key and window: %+v", audit)
		}
		seen[audit.Key] = true
	}
	if len(seen) == 0 {
		t.Error("no refusal was audited")
	}
}
