package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// shardsOf makes shards of these stores, named a, b, c and so on.
func shardsOf[S ratelimit.Store](stores ...S) (shards []ratelimit.Shard) {
	for i, store := range stores {
		shards = append(shards, ratelimit.Shard{Name: string(rune('a' + i)), Store: store})
	}
	return shards
}

func newShards(t testing.TB, now, next []ratelimit.Shard) *ratelimit.Shards {
	t.Helper()
	shards, err := ratelimit.NewShards(now, next)
	if err != nil {
		t.Fatal(err)
	}
	return shards
}

func memories(n int, now func() time.Time) (all []*ratelimit.MemoryStore) {
	for range n {
		all = append(all, ratelimit.NewMemoryStore(now))
	}
	return all
}

// Row D6: the suite holds over shards, decisions over several of them included.
func TestShardsOfMemoryStores(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			open := func(t *testing.T, now func() time.Time) storetest.Harness {
				stores := memories(n, now)
				var steady []*ratelimit.MemoryStore // a test uses these or those
				for range n {
					steady = append(steady, ratelimit.NewSteadyMemoryStore(now))
				}
				sweeping := newShards(t, shardsOf(stores...), nil)
				stores = append(stores, steady...)
				return storetest.Harness{
					Streams: 150, // each of the stores plays 500 by itself
					Store:   sweeping,
					Steady:  newShards(t, shardsOf(steady...), nil),
					Audits: func() (audits []ratelimit.Audit) {
						for _, store := range stores {
							audits = append(audits, store.Audits()...)
						}
						return audits
					},
					Writes: func() (writes int64) {
						for _, store := range stores {
							writes += store.Writes()
						}
						return writes
					},
				}
			}
			storetest.Run(t, open)
			storetest.RunWrites(t, open)
		})
	}
}

// Row D6. The places are written down: another hash would move everybody to counters that know nothing of them.
func TestAShardHasItsShareAndAnotherOneTakesOnlyItsOwn(t *testing.T) {
	const subjects = 20_000
	names := []string{"weir-0.example.org", "weir-1.example.org", "weir-2.example.org", "weir-3.example.org", "weir-4.example.org"}
	var where [][]int // by number of shards, by subject
	for n := 1; n <= len(names); n++ {
		var shards []ratelimit.Shard
		var stores []*recorder
		for i := range n {
			stores = append(stores, &recorder{err: errRefused})
			shards = append(shards, ratelimit.Shard{Name: names[i], Store: stores[i]})
		}
		if n == 4 { // the order of a list says nothing
			shards[0], shards[3] = shards[3], shards[0]
		}
		limiter, err := ratelimit.New(newShards(t, shards, nil), storetest.Secret, ratelimit.Config{})
		if err != nil {
			t.Fatal(err)
		}
		found := make([]int, subjects)
		count := make([]int, n)
		for subject := range found {
			limiter.Decide(t.Context(), minute.Charge(fmt.Sprint("subject ", subject)))
			for i, store := range stores {
				if len(store.asked) > 0 {
					found[subject], store.asked = i, nil
					count[i]++
				}
			}
		}
		for i, share := range count {
			// Five standard deviations of a fair share.
			if mean, off := float64(subjects)/float64(n), float64(share)-float64(subjects)/float64(n); off*off > 25*mean {
				t.Errorf("of %d shards %s has %d of %d subjects", n, names[i], share, subjects)
			}
		}
		where = append(where, found)
	}
	for n := 1; n < len(names); n++ {
		moved := 0
		for subject := range subjects {
			if before, after := where[n-1][subject], where[n][subject]; before != after {
				moved++
				if after != n {
					t.Fatalf("with shard %d subject %d moves from %d to %d", n, subject, before, after)
				}
			}
		}
		if share := float64(moved) / subjects * float64(n+1); share < 0.9 || share > 1.1 {
			t.Errorf("shard %d takes %d of %d subjects", n, moved, subjects)
		}
	}
	if got := fmt.Sprint(where[4][:20]); got != "[3 1 3 4 0 3 3 2 2 1 0 4 2 0 4 1 1 0 2 1]" {
		t.Errorf("the first subjects lie on %s", got)
	}
}

// Row D6: all limits of one subject are in one shard, whatever the secret.
func TestTheShardOfASubjectDependsOnNoPolicyAndNoSecret(t *testing.T) {
	places := map[string]uint64{}
	for i, secret := range []string{string(storetest.Secret), "another secret of tests, 32 bytes long"} {
		store := &recorder{err: errRefused}
		limiter := newLimiter(t, store, secret)
		for _, name := range []string{"a", "b"} {
			for _, kind := range []ratelimit.SubjectKind{ratelimit.Opaque, ratelimit.Account, ratelimit.APIKey} {
				policy := minute
				policy.Name, policy.Subject = name, kind
				limiter.Decide(t.Context(), policy.Charge("someone"))
				limiter.Operate(t.Context(), ratelimit.Reset, policy, "someone", time.Time{})
				entry := store.asked[len(store.asked)-1][0]
				id := fmt.Sprint(kind)
				if i+int(name[0]-'a') > 0 && places[id] != entry.Place {
					t.Errorf("secret %d, policy %s, kind %v: another place", i, name, kind)
				}
				places[id] = entry.Place
			}
		}
	}
	if len(places) != 3 || places["0"] == places["1"] {
		t.Errorf("places %v: a name and a number are two subjects", places)
	}
}

func TestShardsThatCannotBeAreRefused(t *testing.T) {
	store := ratelimit.NewMemoryStore(nil)
	one := func(name string) []ratelimit.Shard { return []ratelimit.Shard{{Name: name, Store: store}} }
	var many []ratelimit.Shard
	for i := range ratelimit.MaxShards + 1 {
		many = append(many, ratelimit.Shard{Name: fmt.Sprint(i), Store: store})
	}
	for what, lists := range map[string][2][]ratelimit.Shard{
		"none":                 {nil, one("a")},
		"no name":              {one("a"), one("")},
		"long name":            {one(strings.Repeat("x", 256)), nil},
		"no store":             {{{Name: "a"}}, nil},
		"twice":                {append(one("a"), one("a")...), nil},
		"twice later":          {one("a"), append(one("b"), one("b")...)},
		"too many":             {many, nil},
		"one too many in both": {many[:ratelimit.MaxShards], one("another")},
	} {
		if _, err := ratelimit.NewShards(lists[0], lists[1]); !errors.Is(err, ratelimit.ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := ratelimit.NewShards(many[:ratelimit.MaxShards], one("7")); err != nil {
		t.Error(err)
	}
}

// Row D6: the secret changes while there are shards, and no counter begins anew.
func TestASecretChangesWhileThereAreShards(t *testing.T) {
	other := []byte("another secret of tests, 32 bytes long")
	f := newFleet(t, 3)
	policy := perMinute("p", 4, 0)
	steps := []*ratelimit.Limiter{
		f.limiter, f.over(3, 0, storetest.Secret, other), f.over(3, 0, other, storetest.Secret), f.over(3, 0, other, nil),
	}
	for subject := range 30 {
		name := fmt.Sprint(subject)
		var reservation ratelimit.Reservation
		for i, limiter := range steps {
			decision, err := limiter.Decide(t.Context(), policy.Charge(name))
			if err != nil || !decision.Allowed || decision.Limits[0].Remaining != 3-int64(i) {
				t.Fatalf("step %d of subject %d: %+v, %v", i, subject, decision, err)
			}
			if i == 1 {
				reservation = decision.Limits[0].Reservation
			}
		}
		if err := steps[2].GiveBack(t.Context(), reservation); err != nil {
			t.Fatal(err)
		}
		if used := f.used(steps[2], policy, name); used != 3 {
			t.Fatalf("subject %d: %d used after one of 4 was given back", subject, used)
		}
	}
}

// Row D6; case B19: each shard has a breaker of its own.
func TestASilentShardKeepsNobodyWaitingForTheOthers(t *testing.T) {
	f := newFleet(t, 3)
	dead, alive, also := f.on(3, "a", 0), f.on(3, "b", 0), f.on(3, "c", 0)
	policy := perMinute("p", 1000, 0)
	open := perMinute("open", 300, ratelimit.Open)
	f.hook = func(_ int, c call) (error, error) {
		if c.shard == "a" {
			f.clock.Add(2 * time.Second)
			return context.DeadlineExceeded, nil
		}
		return nil, nil
	}
	f.said()
	start := f.clock.Now()
	for i := range 40 {
		if _, err := f.limiter.Decide(t.Context(), policy.Charge(dead), policy.Charge(alive)); !errors.Is(err, ratelimit.ErrStore) || i > 1 && !errors.Is(err, ratelimit.ErrBreaker) {
			t.Fatalf("decision %d: %v", i, err)
		}
		if got := f.decide(policy.Charge(alive), policy.Charge(also)); !got.Allowed {
			t.Fatalf("decision %d between shards that are there: %+v", i, got)
		}
	}
	if waited := f.clock.Now().Sub(start); waited != 4*time.Second {
		t.Errorf("waited for %v", waited)
	}
	if used := f.used(f.limiter, policy, alive); used != 40 {
		t.Errorf("%d used, want 40: a decision with the silent shard charged another", used)
	}
	passed := 0
	for range 100 {
		if decision, err := f.limiter.Decide(t.Context(), open.Charge(dead)); err == nil && decision.Outage != nil {
			passed++
		}
	}
	if passed != 20 { // 300 / 30, twice
		t.Errorf("%d passed by the shard's share, want 20", passed)
	}
	if got := f.decide(open.Charge(alive)); got.Outage != nil || got.Limits[0].Remaining != 299 {
		t.Errorf("beside it: %+v", got)
	}
	// What is swept beside it is swept.
	f.clock.Add(time.Hour)
	if deleted, done, err := f.limiter.Sweep(t.Context()); deleted < 3 || done || !errors.Is(err, ratelimit.ErrStore) {
		t.Errorf("swept %d, done %t, %v", deleted, done, err)
	}
	f.hook = nil
	f.clock.Add(time.Minute)
	if got := f.decide(policy.Charge(dead), policy.Charge(alive)); !got.Allowed || got.Outage != nil {
		t.Errorf("when it is back: %+v", got)
	}
	if _, done, err := f.limiter.Sweep(t.Context()); !done || err != nil {
		t.Errorf("swept to the end: %t, %v", done, err)
	}
}

// Row D6; case A49: one shard that answers nonsense is out, and charges nobody elsewhere.
func TestNonsenseFromOneShardIsItsOutage(t *testing.T) {
	for what, rows := range map[string][]ratelimit.Row{
		"no row": {}, "no time": {{}}, "a row too many": make([]ratelimit.Row, 2), "less than nothing": {{NowMicros: 2e15, State: ratelimit.State{Used: -1}}},
	} {
		store := ratelimit.NewMemoryStore(nil)
		shards := newShards(t, []ratelimit.Shard{{Name: "a", Store: store}, {Name: "b", Store: &recorder{rows: rows}}}, nil)
		limiter := newLimiter(t, shards, string(storetest.Secret))
		var fine, out int
		for i := range 40 {
			_, err := limiter.Decide(t.Context(), minute.Charge(fmt.Sprint(i)))
			switch {
			case err == nil:
				fine++
			case errors.Is(err, ratelimit.ErrStore) && strings.Contains(err.Error(), "shard b: "):
				out++
			default:
				t.Errorf("%s: %v", what, err)
			}
			before := store.Writes()
			if _, err := limiter.Decide(t.Context(), minute.Charge(fmt.Sprint(i)), minute.Charge(fmt.Sprint(i+1))); err != nil && store.Writes() != before {
				t.Errorf("%s: a decision that failed wrote %d rows", what, store.Writes()-before)
			}
		}
		if fine < 5 || out < 5 {
			t.Errorf("%s: %d decided, %d out", what, fine, out)
		}
	}
}
