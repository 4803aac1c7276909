// Package storetest holds the suite that every ratelimit.Store passes.
package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Secret is the limiter's secret in these tests.
var Secret = []byte("a secret of tests, 32 bytes long")

// Start is when a test's clock begins: the edge of a minute, an hour and a day.
var Start = time.Date(2031, time.March, 4, 0, 0, 0, 0, time.UTC)

// Clock is a time that tests set. It may be used by many goroutines.
type Clock struct{ micros atomic.Int64 }

// NewClock makes a Clock that shows Start.
func NewClock() *Clock {
	clock := &Clock{}
	clock.At(0)
	return clock
}

// Now gives the time that the clock shows.
func (c *Clock) Now() time.Time { return time.UnixMicro(c.micros.Load()) }

// Add moves the clock on.
func (c *Clock) Add(d time.Duration) { c.micros.Add(d.Microseconds()) }

// At sets the clock to an offset from Start.
func (c *Clock) At(offset time.Duration) { c.micros.Store(Start.Add(offset).UnixMicro()) }

// Harness is a Store with what the suite has to see of it besides its methods.
type Harness struct {
	Store  ratelimit.Store
	Audits func() []ratelimit.Audit // all of them, oldest first
	Writes func() int64             // rows written so far, audit included; only RunWrites needs it

	// Steady is the same store but for its sweep in passing, which forgets what has expired, so that a clock that steps back
	// by more than that finds nothing. Nil where Store doesn't sweep.
	Steady ratelimit.Store

	// Streams is how many random streams are played. Zero means 500; a store behind a slow server takes fewer.
	Streams int
}

// Open makes an empty store that takes its time from now.
type Open func(t *testing.T, now func() time.Time) Harness

// RunWrites tests how many rows the store that open makes writes. It is apart from Run because some databases can't tell.
func RunWrites(t *testing.T, open Open) {
	run(t, open, []test{
		{"a refusal after the first writes no row", refusalsWriteNothing},
		{"a cost of 0 writes no row", peeksWriteNothing},
	})
}

// patience is the deadline of tests: a busy machine must not fail a test of something else.
const patience = time.Minute

// Run tests the store that open makes.
func Run(t *testing.T, open Open) {
	run(t, open, []test{
		{"a limit admits exactly its units and says what is left", limitIsExact},
		{"a refusal neither counts nor extends the wait", refusalsDoNotExtend},
		{"the window's end is fixed when it begins", windowsAreAligned},
		{"both sides of an edge may be full, and never more", edgeTakesTwoWindows},
		{"a decision charges all of its limits or none", allOrNothing},
		{"an attempt counts even when another limit refuses it", everyAttempt},
		{"a limit that refuses is never charged, though it counts every attempt", refusedAttemptIsFree},
		{"a decision that is refused elsewhere charges attempts alone, and marks refusals", refusedElsewhere},
		{"a cost is charged whole or refused whole", costs},
		{"a cost of 0 tells what is left and takes nothing", peeks},
		{"a changed limit takes effect at the next decision", changedLimit},
		{"a window of a century is limited and audited like any other", longestWindow},
		{"the first refusal of a window is audited, later ones are not", auditsFirstRefusal},
		{"what is charged under one policy or subject leaves others alone", keysAreApart},
		{"a charge is given back once", givesBackOnce},
		{"a charge of a window that is over is not given back", givesBackOnlyWhatStands},
		{"a charge from before the clock stepped back is not given back", givesBackNothingAfterAStepBack},
		{"a charge from before its policy's window or rate changed is not given back", givesBackNothingOfAnotherShape},
		{"giving back leaves the charges of others", givesBackOnlyItsOwn},
		{"a clock that steps back grants nothing and locks nobody out", clockStepsBack},
		{"a clock that swings grants at most one window more", clockSwings},
		{"a sweep takes what has expired and nothing else", sweeps},
		{"a token bucket that is polled loses no part of a token", polledBucket},
		{"a decision costs the same with none and with a milliard of units used", usedUnitsCostNothing},
		{"an exemption leaves no debt, and nobody waits during it", exemptionLeavesNoDebt},
		{"a ban refuses every cost, 0 included", banRefusesEveryCost},
		{"an instance that reads one secret again shares what it charged with those that still read two", rotationEnds},
		{"a peek says what a decision would", peekForesees},
		{"sixteen limits fit one decision", manyLimits},
		{"20 at once at a limit of 10: 10 pass and one refusal is audited", concurrentExact},
		{"concurrent decisions over several limits charge exactly what they admit", concurrentMixed},
		{"50 at once give one charge back once", concurrentGiveBack},
	})
	run(t, open, algorithmTests)
}

type test struct {
	name string
	test func(*testing.T, *suite)
}

func run(t *testing.T, open Open, tests []test) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			clock := NewClock()
			harness := open(t, clock.Now)
			limiter, err := ratelimit.New(harness.Store, Secret, ratelimit.Config{Deadline: patience})
			if err != nil {
				t.Fatal(err)
			}
			test.test(t, &suite{t: t, clock: clock, limiter: limiter, Harness: harness})
		})
	}
}

type suite struct {
	t       *testing.T
	clock   *Clock
	limiter *ratelimit.Limiter
	trace   string // what was done in the present stream
	Harness
}

func fixed(name string, limit int64, window time.Duration) ratelimit.Policy {
	return ratelimit.Policy{Name: name, Algorithm: ratelimit.FixedWindow, Limit: limit, Window: window}
}

func (s *suite) decide(charges ...ratelimit.Charge) ratelimit.Decision {
	s.t.Helper()
	decision, err := s.limiter.Decide(context.Background(), charges...)
	if err != nil {
		s.t.Fatal(err)
	}
	return decision
}

// play takes one decision after another and compares each with what the script says.
func (s *suite) play(policy ratelimit.Policy, script []move) {
	s.t.Helper()
	for i, move := range script {
		s.clock.At(move.at)
		cost := move.cost
		if cost == 0 {
			cost = 1
		}
		got := s.decide(policy.ChargeN("someone", cost))
		limit := got.Limits[0]
		if got.Allowed != move.allowed || limit.Allowed != move.allowed || limit.Remaining != move.remaining {
			s.t.Fatalf("move %d at %v: allowed %t with %d left, want %t with %d",
				i, move.at, got.Allowed, limit.Remaining, move.allowed, move.remaining)
		}
		if got.RetryAfter != move.retry || limit.RetryAfter != move.retry {
			s.t.Fatalf("move %d at %v: retry after %v and %v, want %v", i, move.at, got.RetryAfter, limit.RetryAfter, move.retry)
		}
		if limit.Reset <= 0 || limit.Reset > max(policy.Window, move.retry) {
			s.t.Fatalf("move %d at %v: reset in %v, window %v", i, move.at, limit.Reset, policy.Window)
		}
	}
}

// move is one request of a script. The zero cost stands for 1.
type move struct {
	at        time.Duration
	cost      int64
	allowed   bool
	remaining int64
	retry     time.Duration
}

// Cases A03, A05.
func limitIsExact(t *testing.T, s *suite) {
	s.play(fixed("five", 5, time.Minute), []move{
		{at: 0, allowed: true, remaining: 4},
		{at: 1 * time.Second, allowed: true, remaining: 3},
		{at: 2 * time.Second, allowed: true, remaining: 2},
		{at: 3 * time.Second, allowed: true, remaining: 1},
		{at: 4 * time.Second, allowed: true, remaining: 0},
		{at: 40 * time.Second, remaining: 0, retry: 20 * time.Second},
		{at: 60*time.Second - time.Millisecond, remaining: 0, retry: time.Millisecond},
		{at: 60 * time.Second, allowed: true, remaining: 4},
	})
	s.play(fixed("one", 1, time.Minute), []move{
		{at: 60 * time.Second, allowed: true},
		{at: 61 * time.Second, retry: 59 * time.Second},
	})
}

// Cases A09, E04.
func refusalsDoNotExtend(t *testing.T, s *suite) {
	script := []move{{at: 0, allowed: true}}
	for second := 1; second <= 9; second++ {
		at := time.Duration(second) * time.Second
		script = append(script, move{at: at, retry: 10*time.Second - at})
	}
	script = append(script, move{at: 10 * time.Second, allowed: true})
	s.play(fixed("one", 1, 10*time.Second), script)
}

// Row C13; case A10.
func windowsAreAligned(t *testing.T, s *suite) {
	var script []move
	for i := range 10 {
		at := time.Duration(i) * 50 * time.Second
		remaining := int64(4)
		if i > 0 && at/time.Minute == (at-50*time.Second)/time.Minute {
			remaining = 3
		}
		script = append(script, move{at: at, allowed: true, remaining: remaining})
	}
	s.play(fixed("five", 5, time.Minute), script)
}

// Case A12.
func edgeTakesTwoWindows(t *testing.T, s *suite) {
	policy := fixed("five", 5, time.Minute)
	passed := 0
	for _, at := range []time.Duration{59500 * time.Millisecond, 60500 * time.Millisecond} {
		s.clock.At(at)
		for range 8 {
			if s.decide(policy.Charge("someone")).Allowed {
				passed++
			}
		}
	}
	if passed != 10 {
		t.Fatalf("%d passed around the edge, want 5 on each side", passed)
	}
}

func allOrNothing(t *testing.T, s *suite) {
	wide, narrow := fixed("wide", 10, time.Hour), fixed("narrow", 2, time.Minute)
	for range 2 {
		if !s.decide(wide.Charge("a"), narrow.Charge("b")).Allowed {
			t.Fatal("refused within both limits")
		}
	}
	for range 5 {
		refused := s.decide(wide.Charge("a"), narrow.Charge("b"))
		if refused.Allowed || !refused.Limits[0].Allowed || refused.Limits[1].Allowed {
			t.Fatalf("got %+v, want the second limit alone to refuse", refused)
		}
		if refused.Limits[0].Remaining != 8 || refused.Limits[1].Remaining != 0 {
			t.Fatalf("%d and %d left, want 8 and 0: a refusal charged a limit",
				refused.Limits[0].Remaining, refused.Limits[1].Remaining)
		}
		if refused.RetryAfter != time.Minute || refused.Limits[0].RetryAfter != 0 {
			t.Fatalf("retry after %v, of them %v for the limit that allows", refused.RetryAfter, refused.Limits[0].RetryAfter)
		}
	}
}

func everyAttempt(t *testing.T, s *suite) {
	attempts, locked := fixed("attempts", 4, time.Hour), fixed("locked", 1, time.Minute)
	attempts.Count = ratelimit.EveryAttempt
	s.decide(locked.Charge("account"))
	for left := int64(3); left >= 0; left-- {
		refused := s.decide(attempts.Charge("address"), locked.Charge("account"))
		if refused.Allowed || !refused.Limits[0].Allowed || refused.Limits[0].Remaining != left {
			t.Fatalf("got %+v, want a refusal that leaves %d attempts", refused, left)
		}
		// The wait covers this decision's own charges: the last attempt is used up for an hour.
		want := time.Minute
		if left == 0 {
			want = time.Hour
		}
		if refused.RetryAfter != want {
			t.Fatalf("retry after %v with %d attempts left, want %v", refused.RetryAfter, left, want)
		}
	}
	refused := s.decide(attempts.Charge("address"), locked.Charge("other account"))
	if refused.Allowed || refused.Limits[0].Allowed || refused.Limits[1].Remaining != 1 {
		t.Fatalf("got %+v, want the attempts to refuse and the account to keep its unit", refused)
	}
}

func refusedAttemptIsFree(t *testing.T, s *suite) {
	attempts := fixed("attempts", 5, time.Minute)
	attempts.Count = ratelimit.EveryAttempt
	s.decide(attempts.ChargeN("address", 4))
	if got := s.decide(attempts.ChargeN("address", 2)); got.Allowed || got.Limits[0].Remaining != 1 {
		t.Fatalf("got %+v, want a refusal that leaves 1", got)
	}
	if got := s.decide(attempts.Charge("address")); !got.Allowed {
		t.Fatal("the unit that was left is refused")
	}
}

// Row D6: a part of a decision, of which another store refuses a limit.
func refusedElsewhere(t *testing.T, s *suite) {
	for _, algorithm := range algorithms {
		attempts, edge, full := plain(algorithm, "attempts"), plain(algorithm, "edge"), plain(algorithm, "full")
		attempts.Count = ratelimit.EveryAttempt
		entries := []ratelimit.Entry{{Key: 11, Policy: attempts}, {Key: 12, Policy: edge}, {Key: 13, Policy: full}}
		for i := range entries {
			entries[i].Key += 10 * int64(algorithm)
			entries[i].Cost = 1
		}
		entries[2].Cost = full.Capacity()
		decide := func(refused bool, entries ...ratelimit.Entry) []ratelimit.Row {
			for i := range entries {
				entries[i].Refused = refused
			}
			rows, err := s.Store.Decide(context.Background(), entries)
			if err != nil {
				t.Fatal(err)
			}
			return rows
		}
		if !decide(false, entries[2])[0].Charged {
			t.Fatalf("%s: the store refuses at first", algorithm)
		}
		before := len(s.Audits())
		for n := int64(1); n <= 2; n++ { // together, and each by itself
			rows := decide(true, entries...)
			if !rows[0].Charged || rows[0].State.Used != 2*n-1 || rows[1].Charged || rows[1].State.Used != 0 || rows[2].Charged {
				t.Fatalf("%s: of an attempt, an admission and a full limit were charged %+v", algorithm, rows)
			}
			if one := decide(true, entries[0]); !one[0].Charged || one[0].State.Used != 2*n {
				t.Fatalf("%s: of an attempt alone was charged %+v", algorithm, one)
			}
			if one := decide(true, entries[1]); one[0].Charged || one[0].State.Used != 0 {
				t.Fatalf("%s: of an admission alone was charged %+v", algorithm, one)
			}
			if one := decide(true, entries[2]); one[0].Charged {
				t.Fatalf("%s: of a full limit was charged %+v", algorithm, one)
			}
		}
		if audited := len(s.Audits()) - before; audited != 1 {
			t.Fatalf("%s: %d refusals audited, want that of the full limit", algorithm, audited)
		}
	}
}

// Cases A16, A17.
func costs(t *testing.T, s *suite) {
	policy := fixed("ten", 10, time.Minute)
	s.play(policy, []move{
		{cost: 4, allowed: true, remaining: 6},
		{cost: 7, remaining: 6, retry: time.Minute},
		{cost: 6, allowed: true, remaining: 0},
		{cost: 1, remaining: 0, retry: time.Minute},
	})
}

// Case A17.
func peeks(t *testing.T, s *suite) {
	policy := fixed("two", 2, time.Minute)
	for used := range int64(3) {
		for range 3 {
			if got := s.decide(policy.ChargeN("someone", 0)); !got.Allowed || got.Limits[0].Remaining != 2-used {
				t.Fatalf("a peek with %d used answers %+v", used, got)
			}
		}
		s.decide(policy.Charge("someone"))
	}
}

// Case A17.
func peeksWriteNothing(t *testing.T, s *suite) {
	policy := fixed("two", 2, time.Minute)
	for range 3 {
		before := s.Writes()
		s.decide(policy.ChargeN("someone", 0))
		if wrote := s.Writes() - before; wrote != 0 {
			t.Fatalf("a peek wrote %d rows", wrote)
		}
		s.decide(policy.Charge("someone"))
	}
}

// Case A20.
func changedLimit(t *testing.T, s *suite) {
	policy := fixed("changing", 10, time.Minute)
	s.decide(policy.ChargeN("someone", 8))
	policy.Limit = 5
	if got := s.decide(policy.Charge("someone")); got.Allowed || got.Limits[0].Remaining != 0 || got.RetryAfter != time.Minute {
		t.Fatalf("8 used of a limit lowered to 5: %+v", got)
	}
	policy.Limit = 20
	if got := s.decide(policy.Charge("someone")); !got.Allowed || got.Limits[0].Remaining != 11 {
		t.Fatalf("8 used of a limit raised to 20: %+v", got)
	}
}

// Case A18: the window that began in 1970 is still open.
func longestWindow(t *testing.T, s *suite) {
	policy := fixed("century", 1, ratelimit.MaxWindow)
	first, second := s.decide(policy.Charge("someone")), s.decide(policy.Charge("someone"))
	s.decide(policy.Charge("someone"))
	if !first.Allowed || second.Allowed || second.RetryAfter <= 30*365*24*time.Hour || len(s.Audits()) != 1 {
		t.Fatalf("allowed %t, then %t for %v, with %d audit rows", first.Allowed, second.Allowed, second.RetryAfter, len(s.Audits()))
	}
}

// Row B5; case A50.
func auditsFirstRefusal(t *testing.T, s *suite) {
	policy := fixed("ten", 10, time.Minute)
	for window := range 3 {
		s.clock.At(time.Duration(window)*time.Minute + 5*time.Second)
		s.decide(policy.ChargeN("someone", 9))
		if got := len(s.Audits()); got != window {
			t.Fatalf("%d audit rows before the refusal, want %d", got, window)
		}
		for range 30 {
			s.decide(policy.ChargeN("someone", 3)) // jumps over the limit from below it
		}
		audits := s.Audits()
		if len(audits) != window+1 {
			t.Fatalf("%d audit rows after window %d, want %d", len(audits), window, window+1)
		}
		last := audits[window]
		if last.Policy != "ten" || last.AtMicros != s.clock.Now().UnixMicro() || last.Used != 9 {
			t.Fatalf("audited %+v", last)
		}
	}
	s.clock.At(10 * time.Minute)
	s.decide(policy.Charge("someone"))
	if got := len(s.Audits()); got != 3 {
		t.Fatalf("%d audit rows after a window without refusals, want 3", got)
	}
}

func refusalsWriteNothing(t *testing.T, s *suite) {
	first, second := fixed("first", 1, time.Minute), fixed("second", 5, time.Minute)
	for _, want := range []int64{2, 2, 0, 0, 0} { // two charges; the mark and the audit row; nothing
		before := s.Writes()
		s.decide(first.Charge("someone"), second.Charge("someone"))
		if got := s.Writes() - before; got != want {
			t.Fatalf("a decision wrote %d rows, want %d", got, want)
		}
	}
}

// Cases A44, A45.
func keysAreApart(t *testing.T, s *suite) {
	long := make([]byte, 300)
	for i := range long {
		long[i] = 'x'
	}
	charges := []ratelimit.Charge{
		fixed("p", 1, time.Minute).Charge("x.y"),
		fixed("p.x", 1, time.Minute).Charge("y"),
		fixed("p", 1, time.Minute).Charge("203.0.113.9"),
		fixed("q", 1, time.Minute).Charge("203.0.113.9"),
		fixed("p", 1, time.Minute).Charge(string(long)), // case A43: equal in all but their last byte
		fixed("p", 1, time.Minute).Charge(string(long[1:]) + "y"),
	}
	address := fixed("p", 1, time.Minute)
	address.Subject = ratelimit.Address
	charges = append(charges, address.Charge("203.0.113.9"))
	for i, charge := range charges {
		if got := s.decide(charge); !got.Allowed {
			t.Fatalf("charge %d meets the counter of another", i)
		}
		if got := s.decide(charge); got.Allowed {
			t.Fatalf("charge %d has no counter", i)
		}
	}
}

func (s *suite) giveBack(limit ratelimit.LimitResult) {
	s.t.Helper()
	if err := s.limiter.GiveBack(context.Background(), limit.Reservation); err != nil {
		s.t.Fatal(err)
	}
}

func (s *suite) remaining(policy ratelimit.Policy, want int64) {
	s.t.Helper()
	if got := s.decide(policy.ChargeN("someone", 0)).Limits[0].Remaining; got != want {
		s.t.Fatalf("%d left, want %d", got, want)
	}
}

func givesBackOnce(t *testing.T, s *suite) {
	policy := fixed("eight", 8, time.Minute)
	s.decide(policy.ChargeN("someone", 3))
	mine := s.decide(policy.ChargeN("someone", 2)).Limits[0]
	s.remaining(policy, 3)
	s.giveBack(mine)
	s.remaining(policy, 5)
	s.giveBack(mine)
	s.remaining(policy, 5)
	s.giveBack(ratelimit.LimitResult{}) // names no charge
	s.remaining(policy, 5)
}

func givesBackOnlyWhatStands(t *testing.T, s *suite) {
	policy := fixed("eight", 8, time.Minute)
	s.clock.At(59 * time.Second)
	old := s.decide(policy.ChargeN("someone", 5)).Limits[0]
	s.clock.At(61 * time.Second)
	s.decide(policy.ChargeN("someone", 4))
	s.giveBack(old)
	s.remaining(policy, 4)
	s.clock.At(59 * time.Second) // even when the clock goes back to the window of the charge
	s.giveBack(old)
	s.remaining(policy, 4)
}

// A charge that no longer stands is not taken out of a window that the clock came back to.
func givesBackNothingAfterAStepBack(t *testing.T, s *suite) {
	policy := fixed("five", 5, time.Minute)
	s.clock.At(10 * time.Second)
	old := s.decide(policy.Charge("someone")).Limits[0]
	s.clock.At(70 * time.Second)
	s.decide(policy.ChargeN("someone", 2))
	s.clock.At(50 * time.Second)
	s.decide(policy.Charge("someone"))
	s.giveBack(old)
	s.remaining(policy, 2)
}

func givesBackOnlyItsOwn(t *testing.T, s *suite) {
	policy := fixed("eight", 8, time.Minute)
	var wrong int64
	for range 4 {
		s.decide(policy.Charge("someone")) // a wrong password
		wrong++
		right := s.decide(policy.Charge("someone")).Limits[0]
		s.giveBack(right)
		s.remaining(policy, 8-wrong)
	}
}

// Case A13.
func clockStepsBack(t *testing.T, s *suite) {
	policy := fixed("five", 5, time.Minute)
	hour := -time.Hour
	s.play(policy, []move{
		{at: 30 * time.Second, allowed: true, remaining: 4},
		{at: hour + 30*time.Second, allowed: true, remaining: 3},
		{at: hour + 31*time.Second, cost: 3, allowed: true, remaining: 0},
		{at: hour + 32*time.Second, remaining: 0, retry: 28 * time.Second},
		{at: hour + 60*time.Second, allowed: true, remaining: 4},
	})
	// Exhausted, then the clock steps back: the first refusal moves the key along, so it waits for one window at most.
	policy.Name = "exhausted"
	s.play(policy, []move{
		{at: 20 * time.Second, cost: 5, allowed: true},
		{at: 21 * time.Second, retry: 39 * time.Second},
		{at: hour + 50*time.Second, retry: 10 * time.Second},
		{at: hour + 51*time.Second, retry: 9 * time.Second},
		{at: hour + 60*time.Second, allowed: true, remaining: 4},
	})
	// A small step within the window changes nothing.
	policy.Name = "small-step"
	s.play(policy, []move{
		{at: 20 * time.Second, cost: 4, allowed: true, remaining: 1},
		{at: 19 * time.Second, allowed: true, remaining: 0},
		{at: 18 * time.Second, retry: 42 * time.Second},
		{at: 17 * time.Second, retry: 43 * time.Second},
		{at: 60 * time.Second, allowed: true, remaining: 4},
	})
	// Two steps back in a row lock nobody out either.
	policy.Name = "two-steps"
	s.play(policy, []move{
		{at: 20 * time.Second, cost: 5, allowed: true},
		{at: hour + 50*time.Second, retry: 10 * time.Second},
		{at: 2*hour + 50*time.Second, retry: 10 * time.Second},
		{at: 3*hour + 30*time.Second, retry: 30 * time.Second},
		{at: 3*hour + 60*time.Second, allowed: true, remaining: 4},
	})
	// Within time that is being passed again the key's time stands still when the clock steps back once more, and the wait says so.
	policy.Name = "to-and-fro"
	s.play(policy, []move{
		{at: 20 * time.Second, cost: 5, allowed: true},
		{at: hour + 20*time.Second, retry: 40 * time.Second},
		{at: hour + 60*time.Second, cost: 5, allowed: true},
		{at: hour + 61*time.Second, retry: 59 * time.Second},
		{at: hour + 30*time.Second, retry: 90 * time.Second},
		{at: hour + 120*time.Second, allowed: true, remaining: 4},
	})
}

// Case A13.
func clockSwings(t *testing.T, s *suite) {
	for i, swing := range []struct{ first, low, high time.Duration }{
		{0, -time.Hour, 0}, // back to where the key has been
		{6*time.Minute + 54*time.Second, 5 * time.Minute, 6*time.Minute + 30*time.Second}, // to and fro before it
		{6*time.Minute + time.Second, 6*time.Minute - time.Millisecond, 6 * time.Minute},  // over an edge by a millisecond
		{time.Hour, -24 * time.Hour, 59 * time.Minute},
		{0, -time.Hour, time.Millisecond}, // beyond where it was, by a little
	} {
		policy := fixed(fmt.Sprintf("swing-%d", i), 5, time.Minute)
		passed := 0
		try := func(at time.Duration) {
			s.clock.At(at)
			for range 7 {
				if s.decide(policy.Charge("someone")).Allowed {
					passed++
				}
			}
		}
		try(swing.first)
		for range max(4, s.scaled(20)) {
			try(swing.low)
			try(swing.high)
		}
		if passed < 5 || passed > 10 {
			t.Errorf("%d passed while the clock swung 20 times between %v and %v, want 5 to 10", passed, swing.low, swing.high)
		}
	}
}

// cases A21, A22
func sweeps(t *testing.T, s *suite) {
	minute, day := fixed("minute", 1, time.Minute), fixed("day", 1, 24*time.Hour)
	for i := range 25 {
		s.decide(minute.Charge(fmt.Sprint(i)))
	}
	s.decide(day.Charge("someone"))
	for _, step := range []struct {
		at   time.Duration
		want int64
	}{{59 * time.Second, 0}, {time.Minute, 25}, {2 * time.Hour, 0}, {24*time.Hour - time.Millisecond, 0}, {24 * time.Hour, 1}} {
		s.clock.At(step.at)
		deleted, done, err := s.limiter.Sweep(context.Background())
		if err != nil || !done || deleted != step.want {
			t.Fatalf("at %v: %d deleted, done %t, %v, want %d", step.at, deleted, done, err, step.want)
		}
		if step.at < 24*time.Hour && s.decide(day.ChargeN("someone", 0)).Limits[0].Remaining != 0 {
			t.Fatalf("at %v the day's limit is forgotten", step.at)
		}
	}
}

func givesBackNothingOfAnotherShape(t *testing.T, s *suite) {
	hour := fixed("window", 10, time.Hour)
	old := s.decide(hour.ChargeN("someone", 8)).Limits[0]
	minute := hour
	minute.Window = time.Minute
	s.clock.At(30 * time.Minute)
	s.decide(minute.ChargeN("someone", 10)) // by others
	s.giveBack(old)
	s.remaining(minute, 0)

	slow := ratelimit.Policy{Name: "bucket", Algorithm: ratelimit.TokenBucket, Limit: 1, Window: time.Hour, Burst: 10}
	old = s.decide(slow.ChargeN("someone", 5)).Limits[0]
	fast := slow
	fast.Limit = 100
	s.clock.At(40 * time.Minute)
	s.decide(fast.ChargeN("someone", 10)) // by others
	s.giveBack(old)
	s.remaining(fast, 0)
}

// Case A15.
func polledBucket(t *testing.T, s *suite) {
	bucket := ratelimit.Policy{Name: "polled", Algorithm: ratelimit.TokenBucket, Limit: 1, Window: 10 * time.Second}
	var passed []int
	for second := range 62 {
		s.clock.At(time.Duration(second) * time.Second)
		if s.decide(bucket.Charge("someone")).Allowed {
			passed = append(passed, second)
		}
	}
	if want := []int{0, 10, 20, 30, 40, 50, 60}; !slices.Equal(passed, want) {
		t.Fatalf("passed at %v, want %v", passed, want)
	}
}

// A thousand units pass while an operator exempts the subject, and none of them waits. After that the subject waits no longer
// than one who has just used up the limit, and a row that still refuses is not swept.
func exemptionLeavesNoDebt(t *testing.T, s *suite) {
	for _, algorithm := range algorithms {
		policy := ratelimit.Policy{Name: "exempt-" + algorithm.String(), Algorithm: algorithm, Limit: 10, Window: 24 * time.Hour}
		if algorithm == ratelimit.LeakyBucket {
			policy.Queue = 9
		}
		s.clock.At(0)
		s.decide(policy.ChargeN("someone", 4))
		s.operate(ratelimit.Allow, policy, Start.Add(time.Hour).UnixMilli())
		var counted []ratelimit.Reservation
		for range 200 {
			got := s.decide(policy.ChargeN("someone", 5))
			if !got.Allowed || got.Limits[0].Delay != 0 {
				t.Fatalf("%s: while exempt allowed is %t, after %v", algorithm, got.Allowed, got.Limits[0].Delay)
			}
			if reservation := got.Limits[0].Reservation; reservation != (ratelimit.Reservation{}) {
				counted = append(counted, reservation)
			}
		}
		if len(counted) != 1 {
			t.Fatalf("%s: %d charges of 5 were counted beside 4 at a limit of 10, want 1", algorithm, len(counted))
		}
		s.clock.At(time.Hour)
		s.decide(policy.ChargeN("somebody else", 10))
		for _, cost := range []int64{1, 5, 10} {
			got, most := s.decide(policy.ChargeN("someone", cost)), s.decide(policy.ChargeN("somebody else", cost))
			if got.RetryAfter > most.RetryAfter || most.Allowed {
				t.Fatalf("%s: a cost of %d waits for %v, and for %v after the whole limit", algorithm, cost, got.RetryAfter, most.RetryAfter)
			}
		}
		s.sweep()
		if got := s.decide(policy.ChargeN("someone", 5)); got.Allowed {
			t.Fatalf("%s: the sweep took a row that refuses", algorithm)
		}
		s.giveBackTo(counted...)
		if got := s.decide(policy.ChargeN("someone", 5)); !got.Allowed && algorithm != ratelimit.LeakyBucket {
			t.Fatalf("%s: what was counted while exempt is not given back", algorithm)
		}
	}
}

// All algorithms in one decision, a log among them, beside limits of which up to a milliard of units are used. A store whose work
// grew with those would end here for want of memory.
func usedUnitsCostNothing(t *testing.T, s *suite) {
	for _, used := range []int64{0, 1_000, 1_000_000, MaxUsed} {
		charges, left := BesideUsed(fmt.Sprint(used))
		for i, charge := range charges {
			if charge.Cost = min(used, charge.Policy.Limit-1); charge.Cost > 0 {
				s.decide(charge)
			}
			left[i] -= charge.Cost + 1
		}
		got := s.decide(charges...)
		for i, limit := range got.Limits {
			if !got.Allowed || limit.Remaining != left[i] {
				t.Fatalf("with %d used: allowed %t, %s has %d left, want %d", used, got.Allowed, limit.Policy.Name, limit.Remaining, left[i])
			}
		}
		// A log that was a counter keeps as many entries as it has room for, whatever the counter had.
		log := ratelimit.Policy{Name: charges[0].Policy.Name, Algorithm: ratelimit.SlidingLog, Limit: 5, Window: time.Minute}
		if got := s.decide(log.ChargeN("someone", 0)).Limits[0].Remaining; got != max(4-used, 0) {
			t.Fatalf("with %d used: %d left as a log of 5", used, got)
		}
	}
}

// MaxUsed is the most units that BesideUsed's limits have used in the suite and in benchmarks.
const MaxUsed = 999_000_000

// BesideUsed makes a charge of one unit for each algorithm, and says how many units each limit admits. All limits but the log's
// admit more than MaxUsed.
func BesideUsed(name string) (charges []ratelimit.Charge, limits []int64) {
	for _, algorithm := range algorithms {
		policy := ratelimit.Policy{Name: algorithm.String() + "-" + name, Algorithm: algorithm, Limit: ratelimit.MaxLimit, Window: time.Minute}
		switch algorithm {
		case ratelimit.SlidingLog:
			policy.Limit = ratelimit.MaxLogLimit
		case ratelimit.LeakyBucket:
			policy.Queue = ratelimit.MaxLimit - 1
		}
		charges, limits = append(charges, policy.Charge("someone")), append(limits, policy.Limit)
	}
	return charges, limits
}

// A ban refuses every cost: what is computed to 0 doesn't get round it, alone or beside limits that admit.
func banRefusesEveryCost(t *testing.T, s *suite) {
	s.eachAlgorithm(t, func(t *testing.T, s *suite, algorithm ratelimit.Algorithm) {
		banned, other, attempts := plain(algorithm, "banned"), plain(algorithm, "other"), plain(algorithm, "attempts")
		attempts.Count = ratelimit.EveryAttempt
		until := s.clock.Now().Add(time.Hour)
		s.operate(ratelimit.Ban, banned, until.UnixMilli())
		for _, charges := range [][]ratelimit.Charge{
			{banned.ChargeN("someone", 0)},
			{banned.ChargeN("someone", 0), other.Charge("someone")},
			{attempts.Charge("someone"), banned.ChargeN("someone", 0)},
			{banned.ChargeN("someone", 0), other.ChargeN("someone", 0)},
		} {
			foreseen, err := s.limiter.Peek(t.Context(), charges...)
			if err != nil {
				t.Fatal(err)
			}
			got := s.decide(charges...)
			for _, decision := range []ratelimit.Decision{foreseen, got} {
				if decision.Allowed || decision.RetryAfter != time.Hour {
					t.Fatalf("%d limits: allowed %t, retry after %v, want a refusal for an hour", len(charges), decision.Allowed, decision.RetryAfter)
				}
			}
		}
		s.remaining(other, 5)
		s.remaining(attempts, 4)
		if got := s.decide(banned.ChargeN("another", 0), other.ChargeN("another", 0)); !got.Allowed {
			t.Fatal("the ban meets another subject")
		}
		s.operate(ratelimit.Reset, banned, 0)
		if got := s.decide(banned.ChargeN("someone", 0)); !got.Allowed {
			t.Fatal("refused after the ban")
		}
	})
}

// The old row under the first secret was written more often than the new one, and is older all the same.
func rotationEnds(t *testing.T, s *suite) {
	newSecret := []byte("another secret of tests, as long")
	policy := fixed("rotated", 10, time.Minute)
	first, second, third := s.rotating(Secret, newSecret), s.rotating(newSecret, Secret), s.alone(newSecret)
	for window := range 3 {
		s.clock.At(time.Duration(window) * time.Minute)
		first.countAdmitted(policy, 20)
	}
	s.clock.At(5 * time.Minute)
	if a, b := third.countAdmitted(policy, 20), second.countAdmitted(policy, 20); a != 10 || b != 0 {
		t.Fatalf("%d passed by an instance with the new secret alone, then %d by one with both, want 10 and 0", a, b)
	}
}

func peekForesees(t *testing.T, s *suite) {
	policies := []ratelimit.Policy{fixed("one", 3, time.Minute), fixed("two", 2, time.Minute)}
	for i, want := range []bool{true, true, false} {
		charges := []ratelimit.Charge{policies[0].Charge("a"), policies[1].Charge("b")}
		foreseen, err := s.limiter.Peek(context.Background(), charges...)
		if err != nil || foreseen.Allowed != want || foreseen.Limits[0].Remaining != int64(3-i) || foreseen.Limits[1].Remaining != int64(2-i) {
			t.Fatalf("peek %d: %+v, %v, want %t", i, foreseen, err, want)
		}
		decision := s.decide(charges...)
		if decision.Allowed != want || decision.RetryAfter != foreseen.RetryAfter {
			t.Fatalf("decision %d: %+v, foreseen %+v", i, decision, foreseen)
		}
	}
}

func manyLimits(t *testing.T, s *suite) {
	var charges []ratelimit.Charge
	for i := range ratelimit.MaxCharges {
		charges = append(charges, fixed(fmt.Sprintf("limit-%d", i), int64(20-i), time.Minute).Charge("someone"))
	}
	for round := range 6 {
		got := s.decide(charges...)
		if want := round < 5; got.Allowed != want {
			t.Fatalf("round %d: allowed %t; the tightest limit is 5", round, got.Allowed)
		}
		for i, limit := range got.Limits {
			if want := int64(20 - i - min(round+1, 5)); limit.Remaining != want || limit.Policy != charges[i].Policy {
				t.Fatalf("round %d: limit %d has %d left, want %d", round, i, limit.Remaining, want)
			}
		}
	}
}

// Row B3; cases A01, A02.
func concurrentExact(t *testing.T, s *suite) {
	policy := fixed("ten", 10, time.Minute)
	var passed atomic.Int64
	together(20, func(int) {
		if s.decide(policy.Charge("someone")).Allowed {
			passed.Add(1)
		}
	})
	if passed.Load() != 10 || len(s.Audits()) != 1 {
		t.Fatalf("%d passed and %d audit rows, want 10 and 1", passed.Load(), len(s.Audits()))
	}
}

func concurrentMixed(t *testing.T, s *suite) {
	address, account, total := fixed("address", 40, time.Minute), fixed("account", 30, time.Minute), fixed("total", 50, time.Minute)
	address.Count = ratelimit.EveryAttempt
	const workers, each = 16, 12
	var admitted [2]atomic.Int64 // by account
	together(workers, func(worker int) {
		who := worker % 2
		for range each {
			d := s.decide(address.Charge("a"+fmt.Sprint(worker%3)), account.Charge("b"+fmt.Sprint(who)), total.Charge("all"))
			if d.Allowed {
				admitted[who].Add(1)
			}
		}
	})
	sum := admitted[0].Load() + admitted[1].Load()
	if sum != 50 {
		t.Fatalf("%d admitted by the limit of 50 that all share", sum)
	}
	for who := range admitted {
		left := s.decide(account.ChargeN("b"+fmt.Sprint(who), 0)).Limits[0].Remaining
		if want := 30 - admitted[who].Load(); left != want {
			t.Fatalf("account %d has %d left, but %d of its 30 were admitted", who, left, admitted[who].Load())
		}
	}
	seen := map[int64]int{}
	for _, audit := range s.Audits() {
		if seen[audit.Key]++; seen[audit.Key] > 1 {
			t.Fatalf("two audit rows for one key and window: %+v", audit)
		}
	}
}

func concurrentGiveBack(t *testing.T, s *suite) {
	policy := fixed("eight", 8, time.Minute)
	s.decide(policy.ChargeN("someone", 5))
	mine := s.decide(policy.Charge("someone")).Limits[0]
	together(50, func(int) { s.giveBack(mine) })
	s.remaining(policy, 3)
}

func together(workers int, work func(worker int)) {
	start := make(chan struct{})
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			<-start
			work(worker)
		})
	}
	close(start)
	group.Wait()
}

// seeded gives a source of random numbers and prints its seed, so that a failure can be played again.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
