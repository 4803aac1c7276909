package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// over makes a store over databases: shards, if there are several.
func over(all []*database.DB, config sqlstore.Config) (ratelimit.Store, error) {
	if len(all) == 1 {
		return open(all[0], config), nil
	}
	var shards []ratelimit.Shard
	for i, db := range all {
		shards = append(shards, ratelimit.Shard{Name: fmt.Sprint("shard-", i), Store: open(db, config)})
	}
	return ratelimit.NewShards(shards, nil)
}

// Row D6.
func TestShardsInFiles(t *testing.T) {
	storetest.Run(t, func(t *testing.T, now func() time.Time) storetest.Harness {
		return shardsHarness(t, now, 20, databases.File(t), databases.File(t), databases.File(t))
	})
}

func shardsHarness(t *testing.T, now func() time.Time, streams int, all ...*database.DB) storetest.Harness {
	t.Helper()
	store, err := over(all, sqlstore.Config{Now: now, SweepEvery: 8})
	if err != nil {
		t.Fatal(err)
	}
	steady, err := over(all, sqlstore.Config{Now: now, SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	return storetest.Harness{
		Store:   store,
		Steady:  steady,
		Streams: streams,
		Audits: func() (audited []ratelimit.Audit) {
			for _, db := range all {
				audited = append(audited, audits(t, db.DB)...)
			}
			return audited
		},
	}
}

// What a process decides for an address and for an account, on two shards as likely as not.
var (
	fromAddress = ratelimit.Policy{Name: "address", Algorithm: ratelimit.FixedWindow, Limit: 60, Window: ratelimit.MaxWindow, Count: ratelimit.EveryAttempt}
	ofAccount   = ratelimit.Policy{Name: "account", Algorithm: ratelimit.SlidingLog, Limit: 10, Window: 24 * time.Hour}
	ofAll       = ratelimit.Policy{Name: "all", Algorithm: ratelimit.TokenBucket, Limit: 1, Window: 24 * time.Hour, Burst: 45}
)

const (
	bothProcesses = 8
	bothAccounts  = 6
	bothEach      = 3 // decisions for each pair of an address and an account, of a process
)

// decideBoth says how many decisions were admitted for each account, and how many counted for each address.
func decideBoth(limiter *ratelimit.Limiter) (string, error) {
	var admitted, counted [bothAccounts]atomic.Int64
	failed := make([]error, bothAccounts)
	var group sync.WaitGroup
	for worker := range bothAccounts {
		group.Go(func() {
			for n := range bothAccounts * bothEach {
				account, address := (worker+n)%bothAccounts, worker
				decision, err := limiter.Decide(context.Background(),
					fromAddress.Charge(fmt.Sprint("address ", address)), ofAccount.Charge(fmt.Sprint("account ", account)), ofAll.Charge("everyone"))
				if err != nil {
					failed[worker] = err
					return
				}
				if decision.Allowed {
					admitted[account].Add(1)
				}
				if (decision.Limits[0].Reservation != ratelimit.Reservation{}) {
					counted[address].Add(1)
				}
			}
		})
	}
	group.Wait()
	said := ""
	for i := range bothAccounts {
		said += fmt.Sprint(admitted[i].Load(), " ", counted[i].Load(), " ")
	}
	return said, errors.Join(failed...)
}

// Row D6: eight processes decide over three files and over two servers at once, nearly every
// decision over several shards; no limit admits more than its own, and what is charged is what was
// admitted.
func TestEightProcessesOverShardsChargeExactlyWhatTheyAdmit(t *testing.T) {
	t.Run("on three files", func(t *testing.T) {
		var urls []string
		for i := range 3 {
			urls = append(urls, "file:"+filepath.Join(t.TempDir(), fmt.Sprintf("weir-%d.db", i)))
		}
		bothInProcesses(t, urls)
	})
	t.Run("on a Turso and a libSQL server", func(t *testing.T) {
		bothInProcesses(t, []string{turso.Start(t).URL, turso.StartLibSQL(t).URL})
	})
}

func bothInProcesses(t *testing.T, urls []string) {
	var all []*database.DB
	for _, url := range urls {
		all = append(all, databases.Open(t, url))
	}
	var admitted, counted [bothAccounts]int64
	for _, said := range inProcesses(t, bothProcesses, strings.Join(urls, " "), "both") {
		numbers := strings.Fields(said)
		if len(numbers) != 2*bothAccounts {
			t.Fatalf("a process says %q", said)
		}
		for i := range bothAccounts {
			var passed, tried int64
			fmt.Sscan(numbers[2*i]+" "+numbers[2*i+1], &passed, &tried)
			admitted[i], counted[i] = admitted[i]+passed, counted[i]+tried
		}
	}
	store, err := over(all, sqlstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	used := func(policy ratelimit.Policy, subject string) int64 {
		got, err := limiter.Peek(t.Context(), policy.Charge(subject))
		if err != nil {
			t.Fatal(err)
		}
		return policy.Capacity() - got.Limits[0].Remaining
	}
	var sum int64
	for i := range bothAccounts {
		sum += admitted[i]
		if stands := used(ofAccount, fmt.Sprint("account ", i)); admitted[i] > ofAccount.Limit || stands != admitted[i] {
			t.Errorf("account %d: %d admitted, %d charged, of %d", i, admitted[i], stands, ofAccount.Limit)
		}
		if stands := used(fromAddress, fmt.Sprint("address ", i)); counted[i] > fromAddress.Limit || stands != counted[i] {
			t.Errorf("address %d: %d counted, %d charged, of %d", i, counted[i], stands, fromAddress.Limit)
		}
	}
	if stands := used(ofAll, "everyone"); sum > ofAll.Burst || stands != sum {
		t.Errorf("%d admitted in all, %d charged, of %d", sum, stands, ofAll.Burst)
	}
	if sum < ofAll.Burst/2 { // some are refused while others are about to give back, and most of them are not
		t.Errorf("%d admitted of %d", sum, ofAll.Burst)
	}
	seen := map[int64]bool{}
	for i, db := range all {
		if number(t, db.DB, "SELECT count(*) FROM rate_limits") == 0 {
			t.Errorf("shard %d has no counter", i)
		}
		for _, audit := range audits(t, db.DB) {
			if seen[audit.Key] {
				t.Errorf("two audit rows for one key and window: %+v", audit)
			}
			seen[audit.Key] = true
		}
	}
	if len(seen) == 0 {
		t.Error("no refusal was audited")
	}
}

// Row D6, E3: a decision over one shard is one request to it and none to others; over two it looks at both, and charges both.
func TestADecisionOverShardsIsOneRequestToEachThatItNeeds(t *testing.T) {
	servers := []*hrana.Server{hrana.Start(t, hrana.Config{}), hrana.Start(t, hrana.Config{})}
	store, err := over([]*database.DB{databases.Open(t, servers[0].URL), databases.Open(t, servers[1].URL)}, sqlstore.Config{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	requests := func(charges ...ratelimit.Charge) (made [2]int) {
		t.Helper()
		from := [2]int{len(servers[0].Requests()), len(servers[1].Requests())}
		if _, err := limiter.Decide(t.Context(), charges...); err != nil {
			t.Fatal(err)
		}
		for i, server := range servers {
			made[i] = len(ours(server, from[i]))
		}
		return made
	}
	var on [2]string
	for i := range 20 {
		name := fmt.Sprint("subject ", i)
		switch made := requests(shared.Charge(name), ofAccount.Charge(name), fromAddress.Charge(name)); made {
		case [2]int{1, 0}:
			on[0] = name
		case [2]int{0, 1}:
			on[1] = name
		default:
			t.Fatalf("a decision of one subject made %v requests", made)
		}
	}
	if made := requests(shared.Charge(on[0]), ofAccount.Charge(on[1])); made != [2]int{2, 2} {
		t.Errorf("a decision of two subjects made %v requests", made)
	}
}

// Row D6: on two servers, of the Turso engine and of libSQL, of which the second comes: what moves
// is charged in both and given back in both, and what was charged before the second came counts
// until the list changes.
func TestAServerIsAddedOnTurso(t *testing.T) {
	var shards []ratelimit.Shard
	for name, db := range map[string]*database.DB{"a": databases.Turso(t), "b": databases.LibSQL(t)} {
		shards = append(shards, ratelimit.Shard{Name: name, Store: open(db, sqlstore.Config{SweepEvery: -1})})
	}
	slices.SortFunc(shards, func(a, b ratelimit.Shard) int { return strings.Compare(a.Name, b.Name) })
	over := func(now, next []ratelimit.Shard) *ratelimit.Limiter {
		t.Helper()
		store, err := ratelimit.NewShards(now, next)
		if err != nil {
			t.Fatal(err)
		}
		limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: patience})
		if err != nil {
			t.Fatal(err)
		}
		return limiter
	}
	before, between, after := over(shards[:1], nil), over(shards[:1], shards), over(shards, nil)
	used := func(limiter *ratelimit.Limiter, subject string) int64 {
		t.Helper()
		got, err := limiter.Peek(t.Context(), shared.Charge(subject))
		if err != nil {
			t.Fatal(err)
		}
		return shared.Limit - got.Limits[0].Remaining
	}
	decide := func(limiter *ratelimit.Limiter, subject string) ratelimit.Decision {
		t.Helper()
		decision, err := limiter.Decide(t.Context(), shared.Charge(subject), fromAddress.Charge("address of "+subject))
		if err != nil {
			t.Fatal(err)
		}
		return decision
	}
	moved := 0
	for i := range 10 {
		name := fmt.Sprint("subject ", i)
		decide(before, name)
		first := decide(between, name)
		decide(between, name)
		if err := between.GiveBack(t.Context(), first.Limits[0].Reservation); err != nil {
			t.Fatal(err)
		}
		stays := used(before, name)
		switch comes := used(after, name); {
		case stays != 2 || comes != 1 && comes != 2: // on a server of its own it hasn't the charge from before
			t.Errorf("%s: %d used where it was, %d where it comes to", name, stays, comes)
		case comes == 1:
			moved++
		}
		passed := 0
		for range 12 {
			if decide(between, name).Allowed {
				passed++
			}
		}
		if passed != 8 || decide(before, name).Allowed {
			t.Errorf("%s: %d more passed, want 8", name, passed)
		}
	}
	if moved == 0 || moved == 10 {
		t.Errorf("%d of 10 subjects move", moved)
	}
}
