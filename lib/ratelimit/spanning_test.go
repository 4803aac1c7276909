package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// call is one call to one shard.
type call struct{ shard, what string }

// watched is a shard of a test: a store in memory, whose calls a hook is told of and may keep from happening, or from being answered.
type watched struct {
	*ratelimit.MemoryStore
	name string
	hook func(call) (before, after error)
}

func (w *watched) around(what string, do func() error) error {
	before, after := w.hook(call{w.name, what})
	if before != nil {
		return before
	}
	return errors.Join(do(), after)
}

func (w *watched) Decide(ctx context.Context, entries []ratelimit.Entry) (rows []ratelimit.Row, err error) {
	what := "decide"
	if entries[0].Refused {
		what = "refuse"
	}
	err = w.around(what, func() (err error) { rows, err = w.MemoryStore.Decide(ctx, entries); return err })
	return rows, err
}

func (w *watched) Peek(ctx context.Context, entries []ratelimit.Entry) (rows []ratelimit.Row, err error) {
	err = w.around("peek", func() (err error) { rows, err = w.MemoryStore.Peek(ctx, entries); return err })
	return rows, err
}

func (w *watched) GiveBack(ctx context.Context, refunds []ratelimit.Refund) error {
	return w.around("give back", func() error { return w.MemoryStore.GiveBack(ctx, refunds) })
}

func (w *watched) Sweep(ctx context.Context, from int64, rows int) (swept ratelimit.Swept, err error) {
	err = w.around("sweep", func() (err error) { swept, err = w.MemoryStore.Sweep(ctx, from, rows); return err })
	return swept, err
}

// fleet is shards a, b, c and so on, with a limiter over them.
type fleet struct {
	t       *testing.T
	clock   *storetest.Clock
	shards  []*watched
	limiter *ratelimit.Limiter

	mu    sync.Mutex
	calls []call
	hook  func(n int, call call) (before, after error) // n counts from 1 since the calls were last forgotten
}

func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{t: t, clock: storetest.NewClock()}
	for i := range n {
		w := &watched{MemoryStore: ratelimit.NewMemoryStore(f.clock.Now), name: string(rune('a' + i))}
		w.hook = func(c call) (before, after error) {
			f.mu.Lock() // several shards are asked at once, and the hook is told one after the other
			defer f.mu.Unlock()
			f.calls = append(f.calls, c)
			if f.hook != nil {
				return f.hook(len(f.calls), c)
			}
			return nil, nil
		}
		f.shards = append(f.shards, w)
	}
	f.limiter = f.over(n, 0, storetest.Secret, nil)
	return f
}

// over makes a limiter over the first now of the shards, which are to become the first next; 0 for no change.
func (f *fleet) over(now, next int, secret, other []byte) *ratelimit.Limiter {
	f.t.Helper()
	all := shardsOf(f.shards...)
	limiter, err := ratelimit.New(newShards(f.t, all[:now], all[:next]), secret, ratelimit.Config{Clock: f.clock.Now, OtherSecret: other})
	if err != nil {
		f.t.Fatal(err)
	}
	return limiter
}

// said gives the calls since it was last asked. Peeks come at once, and are put in order.
func (f *fleet) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	for i := range calls {
		for j := i; j > 0 && calls[j].what == "peek" && calls[j-1].what == "peek" && calls[j].shard < calls[j-1].shard; j-- {
			calls[j], calls[j-1] = calls[j-1], calls[j]
		}
	}
	text := ""
	for _, c := range calls {
		text += fmt.Sprintf("%s %s, ", c.what, c.shard)
	}
	return text
}

func (f *fleet) writes() (writes int64) {
	for _, shard := range f.shards {
		writes += shard.Writes()
	}
	return writes
}

// on finds a subject whose shard among the first n is this one.
func (f *fleet) on(n int, shard string, from int) string {
	f.t.Helper()
	for i := from; i < from+1000; i++ {
		name := fmt.Sprintf("subject %d", i)
		f.said()
		if _, err := f.over(n, 0, storetest.Secret, nil).Peek(f.t.Context(), perMinute("look", 1, 0).Charge(name)); err != nil {
			f.t.Fatal(err)
		}
		if f.said() == "peek "+shard+", " {
			return name
		}
	}
	f.t.Fatalf("none of a thousand subjects is on shard %s", shard)
	return ""
}

// used is what stands of a policy for a subject, wherever that lies.
func (f *fleet) used(limiter *ratelimit.Limiter, policy ratelimit.Policy, subject string) int64 {
	f.t.Helper()
	policy.Limit, policy.Burst, policy.Queue = ratelimit.MaxLogLimit, 0, 0
	got, err := limiter.Peek(f.t.Context(), policy.Charge(subject))
	if err != nil {
		f.t.Fatal(err)
	}
	return policy.Limit - got.Limits[0].Remaining
}

func (f *fleet) decide(charges ...ratelimit.Charge) ratelimit.Decision {
	f.t.Helper()
	decision, err := f.limiter.Decide(f.t.Context(), charges...)
	if err != nil {
		f.t.Fatal(err)
	}
	return decision
}

func everyAttempt(policy ratelimit.Policy) ratelimit.Policy {
	policy.Count = ratelimit.EveryAttempt
	return policy
}

// Row D6: what a decision costs: calls to shards, and rows.
func TestADecisionOverShardsMakesAsManyCallsAsItIsTold(t *testing.T) {
	f := newFleet(t, 3)
	here, there := f.on(3, "a", 0), f.on(3, "c", 0)
	attempts, edge, account := everyAttempt(perMinute("attempts", 3, 0)), perMinute("edge", 10, 0), perMinute("account", 1, 0)
	for i, test := range []struct {
		what    string
		charges []ratelimit.Charge
		allowed bool
		calls   string
		writes  int64
	}{
		{"limits of one subject are one call", []ratelimit.Charge{attempts.Charge(here), edge.Charge(here)}, true, "decide a, ", 2},
		{"two shards are asked at once, then charged", []ratelimit.Charge{account.Charge(there), attempts.Charge(here), edge.Charge(here)}, true,
			"peek a, peek c, decide a, decide c, ", 3},
		{"a refusal is foreseen: the attempt counts, and the first is marked", []ratelimit.Charge{account.Charge(there), attempts.Charge(here), edge.Charge(here)},
			false, "peek a, peek c, refuse a, refuse c, ", 3},
		{"both refuse, and the attempts for the first time", []ratelimit.Charge{account.Charge(there), attempts.Charge(here), edge.Charge(here)},
			false, "peek a, peek c, refuse a, ", 2},
		{"a later refusal writes nothing", []ratelimit.Charge{account.Charge(there), attempts.Charge(here), edge.Charge(here)}, false, "peek a, peek c, ", 0},
		{"what costs nothing is only looked at", []ratelimit.Charge{account.ChargeN(there, 0), edge.Charge(here)}, true, "peek a, peek c, decide a, ", 1},
	} {
		f.said()
		before := f.writes()
		got := f.decide(test.charges...)
		if calls, wrote := f.said(), f.writes()-before; got.Allowed != test.allowed || calls != test.calls || wrote != test.writes {
			t.Errorf("%d, %s: allowed %t by %q with %d rows written, want %t by %q with %d", i, test.what, got.Allowed, calls, wrote, test.allowed, test.calls, test.writes)
		}
	}
}

// Row D6: asked one after the other, shards answer, write and audit what one store does, whatever lies where.
func TestOneAfterTheOtherShardsAnswerAsOneStoreDoes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	f := newFleet(t, 3)
	one := ratelimit.NewMemoryStore(f.clock.Now)
	alone := newLimiter(t, one, string(storetest.Secret))
	var spanned, refused int
	for round := range 3000 {
		f.clock.Add(time.Duration(random.IntN(4000)) * time.Millisecond)
		var charges []ratelimit.Charge
		for i := range 1 + random.IntN(4) {
			policy := ratelimit.Policy{
				Name: fmt.Sprintf("p%d", i), Algorithm: ratelimit.Algorithm(1 + (i+round%5)%5), Limit: 1 + int64(i), Window: 20 * time.Second,
				Count: ratelimit.Count(random.IntN(2)),
			}
			policy.Name += policy.Algorithm.String()
			if policy.Algorithm == ratelimit.LeakyBucket {
				policy.Queue = 3
			}
			charges = append(charges, policy.ChargeN(fmt.Sprintf("subject %d", random.IntN(6)), random.Int64N(1+policy.Capacity())))
		}
		f.said()
		got := f.decide(charges...)
		want, err := alone.Decide(t.Context(), charges...)
		if err != nil {
			t.Fatal(err)
		}
		if f.said()[:4] == "peek" {
			spanned++
			if !got.Allowed {
				refused++
			}
		}
		given := random.IntN(3) == 0
		for i := range want.Limits {
			mine, theirs := &got.Limits[i], &want.Limits[i]
			if (mine.Reservation == ratelimit.Reservation{}) != (theirs.Reservation == ratelimit.Reservation{}) {
				t.Fatalf("round %d, limit %d: %+v, want %+v", round, i, mine, theirs)
			}
			if given {
				if err := errors.Join(f.limiter.GiveBack(t.Context(), mine.Reservation), alone.GiveBack(t.Context(), theirs.Reservation)); err != nil {
					t.Fatal(err)
				}
			}
			mine.Reservation, theirs.Reservation = ratelimit.Reservation{}, ratelimit.Reservation{}
		}
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Fatalf("round %d: %+v:\n%+v, want\n%+v", round, charges, got, want)
		}
		if f.writes() != one.Writes() {
			t.Fatalf("round %d: %+v: %d rows written, want %d", round, charges, f.writes(), one.Writes())
		}
	}
	audits := 0
	for _, shard := range f.shards {
		audits += len(shard.Audits())
	}
	if audits != len(one.Audits()) || spanned < 300 || refused < 100 {
		t.Fatalf("%d audited, want %d; %d decisions over several shards, %d refused", audits, len(one.Audits()), spanned, refused)
	}
}

// Row D6: somebody who comes between the look and the charge makes a decision refuse late. It gives back, and is refused.
func TestADecisionThatIsRefusedLateGivesBackWhatItCharged(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{
		ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.SlidingLog, ratelimit.TokenBucket, ratelimit.LeakyBucket,
	} {
		t.Run(algorithm.String(), func(t *testing.T) {
			f := newFleet(t, 3)
			first, second, third := f.on(3, "a", 0), f.on(3, "b", 0), f.on(3, "c", 0)
			edge, attempts, account := perMinute("edge", 5, 0), everyAttempt(perMinute("attempts", 5, 0)), perMinute("account", 1, 0)
			edge.Algorithm = algorithm
			if algorithm == ratelimit.LeakyBucket {
				edge.Queue = 4
			}
			f.said()
			f.hook = func(n int, c call) (before, after error) {
				if n == 5 { // three peeks and the charge of a are done
					if _, err := f.shards[1].MemoryStore.Decide(t.Context(), entriesOf(t, account.Charge(second))); err != nil {
						t.Error(err)
					}
				}
				return nil, nil
			}
			got := f.decide(edge.Charge(first), attempts.Charge(first), account.Charge(second), attempts.Charge(third), edge.Charge(third))
			f.hook = nil
			if calls := f.said(); calls != "peek a, peek b, peek c, decide a, decide b, give back a, refuse c, " {
				t.Errorf("calls %q", calls)
			}
			if got.Allowed || got.Limits[2].Allowed || !got.Limits[0].Allowed || got.RetryAfter != time.Minute {
				t.Errorf("got %+v", got)
			}
			if got.Limits[0].Remaining != 5 || got.Limits[0].Reservation != (ratelimit.Reservation{}) || got.Limits[1].Remaining != 4 {
				t.Errorf("told %+v", got.Limits)
			}
			for what, c := range map[string]struct {
				policy  ratelimit.Policy
				subject string
				want    int64
			}{
				"given back": {edge, first, 0}, "an attempt before": {attempts, first, 1}, "an attempt after": {attempts, third, 1}, "not charged": {edge, third, 0},
			} {
				if used := f.used(f.limiter, c.policy, c.subject); used != c.want && algorithm != ratelimit.LeakyBucket {
					t.Errorf("%s: %d used, want %d", what, used, c.want)
				}
			}
			// What is free again is free for others, to the last unit.
			free := 0
			for range 8 {
				if f.decide(edge.Charge(first)).Allowed {
					free++
				}
			}
			if free != 5 {
				t.Errorf("%d passed afterwards, want 5", free)
			}
		})
	}
}

// Issue 10.5: what an exemption admitted uncounted is not given back, alone or by a decision that is refused late.
func TestAnUncountedChargeIsNotGivenBack(t *testing.T) {
	f := newFleet(t, 3)
	first, second := f.on(3, "a", 0), f.on(3, "b", 0)
	edge, account := perMinute("edge", 5, 0), perMinute("account", 1, 0)
	f.decide(edge.ChargeN(first, 4))
	if err := f.limiter.Operate(t.Context(), ratelimit.Allow, edge, first, storetest.Start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	alone := f.decide(edge.ChargeN(first, 3))
	if err := f.limiter.GiveBack(t.Context(), alone.Limits[0].Reservation); err != nil || !alone.Allowed {
		t.Fatalf("%+v, %v", alone, err)
	}
	f.said()
	f.hook = func(n int, c call) (before, after error) {
		if n == 4 { // two peeks and the charge of a are done
			if _, err := f.shards[1].MemoryStore.Decide(t.Context(), entriesOf(t, account.Charge(second))); err != nil {
				t.Error(err)
			}
		}
		return nil, nil
	}
	got := f.decide(edge.ChargeN(first, 3), account.Charge(second))
	f.hook = nil
	if calls := f.said(); calls != "peek a, peek b, decide a, decide b, " || got.Allowed {
		t.Errorf("calls %q, allowed %t", calls, got.Allowed)
	}
	if used := f.used(f.limiter, edge, first); used != 4 {
		t.Errorf("%d used, want the 4 that were counted", used)
	}
}

// entriesOf are what a limiter makes of charges.
func entriesOf(t *testing.T, charges ...ratelimit.Charge) []ratelimit.Entry {
	store := &recorder{}
	newLimiter(t, store, string(storetest.Secret)).Decide(t.Context(), charges...)
	return store.asked[0]
}

var errCut = errors.New("the connection was cut")

// Row D6; cases A49, B05: whichever call to whichever shard fails, before it was carried out or after, and also when nothing can be given back
// any more, nothing passes that isn't charged, and what is charged for nothing is at most that one decision.
func TestWhereverADecisionOverShardsBreaksOffNoLimitAdmitsMore(t *testing.T) {
	edge, attempts, account := perMinute("edge", 4, 0), everyAttempt(perMinute("attempts", 4, 0)), perMinute("account", 4, 0)
	for _, after := range []bool{false, true} {
		for _, dead := range []bool{false, true} { // the shard stays away for the rest of the decision
			for fail := 1; fail <= 7; fail++ {
				f := newFleet(t, 3)
				first, second, third := f.on(3, "a", 0), f.on(3, "b", 0), f.on(3, "c", 0)
				charges := []ratelimit.Charge{edge.Charge(first), attempts.Charge(first), account.Charge(second), edge.Charge(third)}
				f.said()
				broken := ""
				f.hook = func(n int, c call) (error, error) {
					if n != fail && (!dead || c.shard != broken) {
						return nil, nil
					}
					broken = c.shard
					if after {
						return nil, errCut
					}
					return errCut, nil
				}
				decision, err := f.limiter.Decide(t.Context(), charges...)
				f.hook = nil
				calls := f.said()
				passed := 0
				if err == nil && decision.Allowed {
					passed++
				}
				if broken != "" && (err == nil || !errors.Is(err, ratelimit.ErrStore) || !errors.Is(err, errCut)) {
					t.Errorf("call %d of %q failed: got %+v, %v", fail, calls, decision, err)
				}
				for _, c := range charges {
					if used := f.used(f.limiter, c.Policy, c.Subject); used < int64(passed) || used > 1 {
						t.Errorf("call %d of %q failed: %d used of %s, %d passed", fail, calls, used, c.Policy.Name, passed)
					}
				}
				if fail <= 3 && f.writes() != 0 {
					t.Errorf("call %d of %q failed, and %d rows were written", fail, calls, f.writes())
				}
				for range 6 {
					if f.decide(charges...).Allowed {
						passed++
					}
				}
				if lost := 4 - passed; lost < 0 || lost > 1 {
					t.Errorf("call %d of %q failed: %d passed a limit of 4", fail, calls, passed)
				}
				f.clock.Add(time.Minute) // what was lost is back with the next window
				passed = 0
				for range 6 {
					if f.decide(charges...).Allowed {
						passed++
					}
				}
				if passed != 4 {
					t.Errorf("%d passed in the next window, want 4", passed)
				}
			}
		}
	}
}

// Row D6: many decisions over the same and over different shards at once, with calls that fail before and after they were
// carried out. A unit that passed is charged, no key has more than its limit; without faults no unit is lost.
func TestManyDecisionsOverShardsAtOnceAreWithinEveryLimit(t *testing.T) {
	for _, faults := range []bool{false, true} {
		t.Run(map[bool]string{true: "with faults", false: "without"}[faults], func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			f := newFleet(t, 4)
			f.clock.At(time.Second)
			policies := []ratelimit.Policy{
				perMinute("edge", 30, 0), everyAttempt(perMinute("attempts", 50, 0)), perMinute("account", 12, 0),
				{Name: "log", Algorithm: ratelimit.SlidingLog, Limit: 17, Window: time.Minute},
				{Name: "bucket", Algorithm: ratelimit.TokenBucket, Limit: 1, Window: time.Minute, Burst: 21},
			}
			var random sync.Mutex
			dice := rand.New(rand.NewPCG(seed, 1))
			roll := func(n int) int {
				random.Lock()
				defer random.Unlock()
				return dice.IntN(n)
			}
			if faults {
				f.hook = func(int, call) (error, error) {
					switch roll(40) {
					case 0:
						return errCut, nil
					case 1:
						return nil, errCut
					}
					return nil, nil
				}
			}
			type key struct {
				policy  int
				subject string
			}
			var passed, attempted [5][5]atomic.Int64
			var refused, failed atomic.Int64
			together(16, func(int) {
				for range 60 {
					var charges []ratelimit.Charge
					var keys []key
					for policy := range policies {
						if roll(2) == 0 {
							k := key{policy, fmt.Sprint(roll(5))}
							keys, charges = append(keys, k), append(charges, policies[policy].Charge(k.subject))
						}
					}
					if len(charges) == 0 {
						continue
					}
					decision, err := f.limiter.Decide(t.Context(), charges...)
					switch {
					case err != nil:
						failed.Add(1)
						continue
					case !decision.Allowed:
						refused.Add(1)
					}
					for i, k := range keys {
						if decision.Allowed {
							passed[k.policy][k.subject[0]-'0'].Add(1)
						} else if (decision.Limits[i].Reservation != ratelimit.Reservation{}) {
							attempted[k.policy][k.subject[0]-'0'].Add(1)
						}
					}
				}
			})
			f.hook = nil
			spare := 0
			for p, policy := range policies {
				for subject := range 5 {
					used := f.used(f.limiter, policy, fmt.Sprint(subject))
					if policy.Algorithm == ratelimit.TokenBucket { // its capacity was not changed by used
						left, err := f.limiter.Peek(t.Context(), policy.Charge(fmt.Sprint(subject)))
						if err != nil {
							t.Fatal(err)
						}
						used = policy.Capacity() - left.Limits[0].Remaining
					}
					n, tried := passed[p][subject].Load(), attempted[p][subject].Load()
					if n+tried > policy.Capacity() || used < n+tried || used > policy.Capacity() {
						t.Errorf("%s %d: %d passed and %d attempts counted, %d stand, of %d", policy.Name, subject, n, tried, used, policy.Capacity())
					}
					if !faults && used != n+tried {
						t.Errorf("%s %d: %d passed and %d attempts counted, and %d stand without a fault", policy.Name, subject, n, tried, used)
					}
					if n < policy.Capacity() {
						spare++
					}
				}
			}
			if refused.Load() < 50 || spare == 25 || faults != (failed.Load() > 0) {
				t.Errorf("%d refused, %d failed, %d keys with units to spare", refused.Load(), failed.Load(), spare)
			}
		})
	}
}

// together does n things at once.
func together(n int, do func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { do(i) })
	}
	group.Wait()
}

// Row D6: of many at once over the same two shards exactly the limit passes: the first shard lets through as many as the second
// has room for, since nobody gives back who is not refused.
func TestFiftyAtOnceOverTheSameShardsAreExact(t *testing.T) {
	f := newFleet(t, 2)
	address, account := f.on(2, "a", 0), f.on(2, "b", 0)
	wide, narrow := perMinute("wide", 10, 0), perMinute("narrow", 10, 0)
	var passed atomic.Int64
	together(50, func(int) {
		decision, err := f.limiter.Decide(t.Context(), wide.Charge(address), narrow.Charge(account))
		if err != nil {
			t.Error(err)
		} else if decision.Allowed {
			passed.Add(1)
		}
	})
	if passed.Load() != 10 || f.used(f.limiter, wide, address) != 10 || f.used(f.limiter, narrow, account) != 10 {
		t.Errorf("%d passed, %d and %d used, want 10", passed.Load(), f.used(f.limiter, wide, address), f.used(f.limiter, narrow, account))
	}
	if n := len(slices.Concat(f.shards[0].Audits(), f.shards[1].Audits())); n < 1 || n > 2 {
		t.Errorf("%d refusals audited, want one for each limit that refused", n)
	}
}

// timed is a store that notes how much time it is given.
type timed struct {
	*ratelimit.MemoryStore
	given chan time.Duration
}

func (s *timed) Peek(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	end, _ := ctx.Deadline()
	s.given <- time.Until(end)
	return s.MemoryStore.Peek(ctx, entries)
}

// Row D7: the shortest deadline of a decision's policies bounds its calls to every shard.
func TestTheShortestDeadlineOfADecisionHoldsForAllItsShards(t *testing.T) {
	given := make(chan time.Duration, 100)
	var shards []ratelimit.Shard
	for _, name := range []string{"a", "b", "c"} {
		shards = append(shards, ratelimit.Shard{Name: name, Store: &timed{ratelimit.NewMemoryStore(nil), given}})
	}
	limiter, err := ratelimit.New(newShards(t, shards, nil), storetest.Secret, ratelimit.Config{Deadline: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	short, long := perMinute("short", 100, 0), perMinute("long", 100, 0)
	short.Deadline = 10 * time.Minute
	for _, charges := range [][]ratelimit.Charge{
		{long.Charge("1"), long.Charge("2"), long.Charge("3"), long.Charge("4")},
		{long.Charge("1"), long.Charge("2"), long.Charge("3"), short.Charge("4")},
	} {
		if _, err := limiter.Decide(t.Context(), charges...); err != nil {
			t.Fatal(err)
		}
		calls := len(given)
		for range calls {
			if d := <-given; (d <= short.Deadline) != (charges[3].Policy.Deadline > 0) {
				t.Errorf("a call was given %v", d)
			}
		}
		if calls < 2 {
			t.Errorf("%d calls", calls)
		}
	}
}
