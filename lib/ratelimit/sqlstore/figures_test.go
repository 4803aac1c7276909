package sqlstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// figuresProcesses are those that the exercise's figures are played in, once more.
const figuresProcesses = 8

// numberOfProcess is which of the processes this is.
func numberOfProcess() int {
	n, err := strconv.Atoi(os.Getenv(numberOfParent))
	if err != nil {
		panic(err)
	}
	return n
}

// passes counts how many of so many decisions are allowed.
func passes(limiter *ratelimit.Limiter, times int, charges func(i int) []ratelimit.Charge) (passed int, err error) {
	for i := range times {
		decision, err := limiter.Decide(context.Background(), charges(i)...)
		if err != nil {
			return 0, err
		}
		if decision.Allowed {
			passed++
		}
	}
	return passed, nil
}

// loads are what ten servers get of a client's 100 requests.
var loads = []int{30, 20, 20, 15, 5, 4, 3, 2, 1, 0}

// decideLoads is a server or two of the ten. It says how many its own limits of 10 pass, and how many the shared one does.
func decideLoads(limiter *ratelimit.Limiter) (string, error) {
	client := shared
	client.Limit = 100
	var local, all int
	for server := numberOfProcess(); server < len(loads); server += figuresProcesses {
		own, err := ratelimit.New(ratelimit.NewMemoryStore(nil), storetest.Secret, ratelimit.Config{})
		if err != nil {
			return "", err
		}
		for which, into := range map[*ratelimit.Limiter]*int{own: &local, limiter: &all} {
			policy := client
			if which == own {
				policy.Limit = 10
			}
			passed, err := passes(which, loads[server], func(int) []ratelimit.Charge { return []ratelimit.Charge{policy.Charge("client")} })
			if err != nil {
				return "", err
			}
			*into += passed
		}
	}
	return fmt.Sprint(local, all), nil
}

// So many addresses try an account, each so often, against so many that pass addresses try an account, and how often each.
const (
	guessers     = 1000
	guessesEach  = 10
	guessesLimit = 5
)

// decideGuesses is an eighth of a thousand addresses, each with ten guesses. It says how many pass a limit by address, and how many one
// by account.
func decideGuesses(limiter *ratelimit.Limiter) (string, error) {
	byAddress, byAccount := shared, account
	byAddress.Name, byAccount.Limit = "by-address", guessesLimit
	first := numberOfProcess() * guessers / figuresProcesses
	times := guessers / figuresProcesses * guessesEach
	through, err := passes(limiter, times, func(i int) []ratelimit.Charge {
		return []ratelimit.Charge{byAddress.Charge(strconv.Itoa(first + i/guessesEach))}
	})
	if err != nil {
		return "", err
	}
	caught, err := passes(limiter, times, func(int) []ratelimit.Charge { return []ratelimit.Charge{byAccount.Charge("victim")} })
	return fmt.Sprint(through, caught), err
}

// decideCodes asks for codes and guesses at them, twenty times. It says how many are sent and how many guesses are compared.
func decideCodes(limiter *ratelimit.Limiter) (string, error) {
	sends := ratelimit.Policy{Name: "sends", Algorithm: ratelimit.SlidingLog, Limit: 3, Window: time.Hour, Subject: ratelimit.Phone}
	guesses := ratelimit.Policy{Name: "guesses", Algorithm: ratelimit.SlidingLog, Limit: 5, Window: 15 * time.Minute, Subject: ratelimit.Phone}
	sent, compared := 0, 0
	for range 20 {
		for into, policy := range map[*int]ratelimit.Policy{&sent: sends, &compared: guesses} {
			passed, err := passes(limiter, 1, func(int) []ratelimit.Charge { return []ratelimit.Charge{policy.Charge("+12025550123")} })
			if err != nil {
				return "", err
			}
			*into += passed
		}
	}
	return fmt.Sprint(sent, compared), nil
}

// Rows C11, C12, D3: with each server a process of its own.
func TestTheExercisesFiguresAreTheSameInEightProcesses(t *testing.T) {
	for _, test := range []struct {
		work          string
		first, second int
	}{
		{"loads", 10 + 10 + 10 + 10 + 5 + 4 + 3 + 2 + 1 + 0, 100},
		{"guesses", guessers * guessesEach, guessesLimit},
		{"codes", 3, 5},
	} {
		play := func(t *testing.T, url string) {
			databases.Open(t, url)
			first, second := 0, 0
			for _, said := range inProcesses(t, figuresProcesses, url, test.work) {
				var a, b int
				if _, err := fmt.Sscan(said, &a, &b); err != nil {
					t.Fatalf("a process says %q", said)
				}
				first, second = first+a, second+b
			}
			if first != test.first || second != test.second {
				t.Errorf("%d and %d pass, want %d and %d", first, second, test.first, test.second)
			}
		}
		t.Run(test.work+" on one file", func(t *testing.T) { play(t, "file:"+filepath.Join(t.TempDir(), "weir.db")) })
		if test.work == "guesses" {
			continue // twenty thousand decisions, for which a server takes minutes
		}
		t.Run(test.work+" on the Turso server", func(t *testing.T) { play(t, turso.Start(t).URL) })
		t.Run(test.work+" on the libSQL server", func(t *testing.T) { play(t, turso.StartLibSQL(t).URL) })
	}
}
