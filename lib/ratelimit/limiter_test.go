package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// recorder is a Store that keeps what it is asked and answers as it is told.
type recorder struct {
	asked [][]ratelimit.Entry
	rows  []ratelimit.Row
	err   error
}

func (r *recorder) Decide(_ context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	r.asked = append(r.asked, entries)
	return r.rows, r.err
}

func (r *recorder) Operate(context.Context, ratelimit.Operation) error { return r.err }

func (r *recorder) GiveBack(context.Context, []ratelimit.Refund) error { return r.err }

func (r *recorder) Peek(context.Context, []ratelimit.Entry) ([]ratelimit.Row, error) {
	return r.rows, r.err
}

func (r *recorder) Sweep(context.Context, int64, int) (ratelimit.Swept, error) {
	return ratelimit.Swept{}, r.err
}

func newLimiter(t *testing.T, store ratelimit.Store, secret string) *ratelimit.Limiter {
	t.Helper()
	limiter, err := ratelimit.New(store, []byte(secret), ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

var minute = ratelimit.Policy{Name: "minute", Algorithm: ratelimit.FixedWindow, Limit: 5, Window: time.Minute}

// with changes a valid policy, so that a test names only what is wrong.
func with(change func(*ratelimit.Policy)) ratelimit.Policy {
	policy := minute
	change(&policy)
	return policy
}

// Cases A16, A17, A18, A19, A39.
func TestMistakesInACallAreNamedAndNeverReachTheStore(t *testing.T) {
	many := make([]ratelimit.Charge, ratelimit.MaxCharges+1)
	for i := range many {
		many[i] = minute.Charge(strings.Repeat("x", i+1))
	}
	address := with(func(p *ratelimit.Policy) { p.Subject = ratelimit.Address })
	tests := []struct {
		name    string
		charges []ratelimit.Charge
		want    error
		text    string
	}{
		{"no charge", nil, ratelimit.ErrCharges, "0 of them"},
		{"too many charges", many, ratelimit.ErrCharges, "17 of them"},
		{"one pair twice", []ratelimit.Charge{minute.Charge("a"), minute.Charge("b"), minute.Charge("a")}, ratelimit.ErrCharges, "minute twice"},
		{"one address in two spellings", []ratelimit.Charge{address.Charge("203.0.113.9"), address.Charge("::ffff:203.0.113.9")}, ratelimit.ErrCharges, "twice"},
		{"a negative cost", []ratelimit.Charge{minute.ChargeN("a", -1)}, ratelimit.ErrCost, "cost -1"},
		{"the smallest cost", []ratelimit.Charge{minute.ChargeN("a", math.MinInt64)}, ratelimit.ErrCost, "cost -9223372036854775808"},
		{"a cost above the limit", []ratelimit.Charge{minute.ChargeN("a", 6)}, ratelimit.ErrCost, "cost 6: allowed are 0 to the limit, 5"},
		{"the largest cost", []ratelimit.Charge{minute.ChargeN("a", math.MaxInt64)}, ratelimit.ErrCost, "9223372036854775807"},
		{"a blank subject", []ratelimit.Charge{minute.Charge("  ")}, ratelimit.ErrSubject, "minute"},
		{"no algorithm", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Algorithm = 0 }).Charge("a")}, ratelimit.ErrPolicy, "algorithm 0"},
		{"an unknown algorithm", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Algorithm = 99 }).Charge("a")}, ratelimit.ErrPolicy, "algorithm 99"},
		{"no limit", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Limit = 0 }).Charge("a")}, ratelimit.ErrPolicy, "limit 0"},
		{"a negative limit", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Limit = -1 }).Charge("a")}, ratelimit.ErrPolicy, "limit -1"},
		{"the largest limit", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Limit = math.MaxInt64 }).Charge("a")}, ratelimit.ErrPolicy, "limit 9223372036854775807"},
		{"no window", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Window = 0 }).Charge("a")}, ratelimit.ErrPolicy, "window 0s"},
		{"a negative window", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Window = -time.Minute }).Charge("a")}, ratelimit.ErrPolicy, "window -1m0s"},
		{"a window of more than a century", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Window = math.MaxInt64 }).Charge("a")}, ratelimit.ErrPolicy, "allowed are 1ms to 876600h0m0s"},
		{"a window with a fraction of a millisecond", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Window = time.Second + 1 }).Charge("a")}, ratelimit.ErrPolicy, "milliseconds"},
		{"no name", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Name = "" }).Charge("a")}, ratelimit.ErrPolicy, `name ""`},
		{"a name that breaks a header", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Name = "a\"b\r\n" }).Charge("a")}, ratelimit.ErrPolicy, `name "a\"b\r\n"`},
		{"an over-long name", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Name = strings.Repeat("a", 65) }).Charge("a")}, ratelimit.ErrPolicy, "1 to 64 bytes"},
		{"an unknown kind of subject", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Subject = 77 }).Charge("a")}, ratelimit.ErrPolicy, "subject kind 77"},
		{"an unknown count", []ratelimit.Charge{with(func(p *ratelimit.Policy) { p.Count = 7 }).Charge("a")}, ratelimit.ErrPolicy, "count 7"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store := &recorder{}
			_, err := newLimiter(t, store, string(storetest.Secret)).Decide(t.Context(), test.charges...)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got error %v, want %v with %q", err, test.want, test.text)
			}
			if len(store.asked) > 0 {
				t.Error("the store was asked")
			}
		})
	}
}

// Case A18.
func TestTheLargestPolicyDecidesWithoutOverflow(t *testing.T) {
	policy := with(func(p *ratelimit.Policy) { p.Limit, p.Window = ratelimit.MaxLimit, ratelimit.MaxWindow })
	limiter := newLimiter(t, ratelimit.NewMemoryStore(nil), string(storetest.Secret))
	for i, want := range []bool{true, false} {
		decision, err := limiter.Decide(t.Context(), policy.ChargeN("a", ratelimit.MaxLimit))
		if err != nil || decision.Allowed != want || decision.Limits[0].Remaining != 0 || decision.Limits[0].Reset <= 0 {
			t.Fatalf("decision %d: %+v, %v", i, decision, err)
		}
	}
}

// Case D16.
func TestAShortSecretIsRefused(t *testing.T) {
	for _, secret := range []string{"", strings.Repeat("x", ratelimit.MinSecretBytes-1)} {
		if _, err := ratelimit.New(&recorder{}, []byte(secret), ratelimit.Config{}); !errors.Is(err, ratelimit.ErrSecret) {
			t.Errorf("a secret of %d bytes: error %v", len(secret), err)
		}
	}
}

// Case E17.
func TestTheSecretChangesEveryKey(t *testing.T) {
	keys := map[int64]string{}
	for _, secret := range []string{strings.Repeat("a", 32), strings.Repeat("b", 32)} {
		for _, subject := range []string{"203.0.113.9", "someone", "198.51.100.7"} {
			store := &recorder{err: errors.New("asked")}
			newLimiter(t, store, secret).Decide(t.Context(), minute.Charge(subject))
			key := store.asked[0][0].Key
			if other, found := keys[key]; found || key < 0 {
				t.Errorf("key %d of %s with secret %.1s…: also of %q", key, subject, secret, other)
			}
			keys[key] = subject
		}
	}
}

// Cases A06, A49, B11, B16: an impossible answer is an outage, never an answer.
func TestNonsenseFromTheStoreIsAnErrorOfTheStore(t *testing.T) {
	now := storetest.Start.UnixMicro()
	good := ratelimit.Row{State: ratelimit.State{Algorithm: ratelimit.FixedWindow, HighMicros: now, Used: 1}, NowMicros: now, Charged: true}
	change := func(change func(*ratelimit.Row)) []ratelimit.Row {
		row := good
		change(&row)
		return []ratelimit.Row{row}
	}
	tests := []struct {
		name string
		rows []ratelimit.Row
		err  error
	}{
		{"no rows", nil, nil},
		{"too many rows", []ratelimit.Row{good, good}, nil},
		{"an error", nil, errors.New("gone")},
		{"a clock at zero", change(func(r *ratelimit.Row) { r.NowMicros = 0 }), nil},
		{"a clock in milliseconds", change(func(r *ratelimit.Row) { r.NowMicros /= 1000 }), nil},
		{"negative units", change(func(r *ratelimit.Row) { r.State.Used = -1 }), nil},
		{"a negative time", change(func(r *ratelimit.Row) { r.State.HighMicros = -1 }), nil},
		{"a step back before 1970", change(func(r *ratelimit.Row) { r.State.BehindMicros = now + 1 }), nil},
		{"more units than the limit", change(func(r *ratelimit.Row) { r.State.Used = 6 }), nil},
		{"a charge at another time than its row's", change(func(r *ratelimit.Row) { r.NowMicros = math.MaxInt64 }), nil},
		{"a charge by another algorithm", change(func(r *ratelimit.Row) { r.State.Algorithm = ratelimit.SlidingLog }), nil},
		{"a charge that doesn't stand", change(func(r *ratelimit.Row) { r.State.Used = 0 }), nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store := &recorder{rows: test.rows, err: test.err}
			decision, err := newLimiter(t, store, string(storetest.Secret)).Decide(t.Context(), minute.Charge("a"))
			if !errors.Is(err, ratelimit.ErrStore) || decision.Allowed {
				t.Fatalf("got %+v, %v", decision, err)
			}
		})
	}
	store := &recorder{rows: []ratelimit.Row{good}}
	if decision, err := newLimiter(t, store, string(storetest.Secret)).Decide(t.Context(), minute.Charge("a")); err != nil || !decision.Allowed {
		t.Fatalf("the answer that the others were made from is refused: %+v, %v", decision, err)
	}
}

// Case A06: the state is read after the window in which the store refused is over.
func TestARefusalWhoseCauseIsOverWaitsForASecond(t *testing.T) {
	now := storetest.Start.UnixMicro()
	store := &recorder{rows: []ratelimit.Row{{State: ratelimit.State{HighMicros: now - 1000, Used: 5}, NowMicros: now}}}
	decision, err := newLimiter(t, store, string(storetest.Secret)).Decide(t.Context(), minute.Charge("a"))
	if err != nil {
		t.Fatal(err)
	}
	limit := decision.Limits[0]
	if decision.Allowed || decision.RetryAfter != time.Second || limit.Allowed || limit.RetryAfter != time.Second || limit.Remaining != 0 {
		t.Fatalf("got %+v", decision)
	}
}

// The deciding statement saw the end of a window in which one limit was full; the read after it saw the next one.
func TestARefusalIsBlamedOnTheLimitThatWasFull(t *testing.T) {
	edge := storetest.Start.UnixMicro()
	address := with(func(p *ratelimit.Policy) { p.Name, p.Limit, p.Count = "address", 10, ratelimit.EveryAttempt })
	private := with(func(p *ratelimit.Policy) { p.Name, p.Limit, p.Private = "private", 8, true })
	full := ratelimit.Row{State: ratelimit.State{Algorithm: ratelimit.FixedWindow, HighMicros: edge - 30_000_000, Used: 10}, NowMicros: edge + 1000}
	unused := ratelimit.Row{NowMicros: edge + 1000}
	for _, test := range []struct {
		name string
		rows []ratelimit.Row
		want int
	}{
		{"the one that was full", []ratelimit.Row{full, unused}, 0},
		{"a public one when none was", []ratelimit.Row{unused, unused}, 0},
	} {
		for _, turned := range []bool{false, true} {
			charges, rows, want := []ratelimit.Charge{address.Charge("a"), private.Charge("b")}, slices.Clone(test.rows), test.want
			if turned {
				slices.Reverse(charges)
				slices.Reverse(rows)
				want = 1 - want
			}
			decision, err := newLimiter(t, &recorder{rows: rows}, string(storetest.Secret)).Decide(t.Context(), charges...)
			if err != nil {
				t.Fatal(err)
			}
			if decision.Allowed || decision.Limits[want].Allowed || !decision.Limits[1-want].Allowed || decision.RetryAfter != time.Second {
				t.Errorf("%s, turned %t: got %+v", test.name, turned, decision)
			}
		}
	}
}

// case A17: a cost of 0 is no reason to refuse the rest.
func TestAPeekRefusesNothing(t *testing.T) {
	store := ratelimit.NewMemoryStore(nil)
	limiter := newLimiter(t, store, string(storetest.Secret))
	century := with(func(p *ratelimit.Policy) { p.Window = ratelimit.MaxWindow })
	lowered, other := century, with(func(p *ratelimit.Policy) { p.Name, p.Window = "other", ratelimit.MaxWindow })
	lowered.Limit = 3
	if _, err := limiter.Decide(t.Context(), century.ChargeN("a", 5)); err != nil {
		t.Fatal(err)
	}
	for _, count := range []ratelimit.Count{ratelimit.Admitted, ratelimit.EveryAttempt} {
		other.Count = count
		decision, err := limiter.Decide(t.Context(), other.Charge("a"), lowered.ChargeN("a", 0))
		if err != nil || !decision.Allowed || decision.Limits[1].Remaining != 0 {
			t.Errorf("count %d: %+v, %v", count, decision, err)
		}
	}
}

// Row A2: what was reserved is owed, also when the request's time is over.
func TestGivingBackGoesOnWhenTheCallersTimeIsOver(t *testing.T) {
	store := ratelimit.NewMemoryStore(nil)
	limiter := newLimiter(t, store, string(storetest.Secret))
	policy := ratelimit.Policy{Name: "p", Algorithm: ratelimit.TokenBucket, Limit: 1, Window: 24 * time.Hour}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		decision, err := limiter.Decide(t.Context(), policy.Charge("a"))
		if err != nil || !decision.Allowed {
			t.Fatalf("%+v, %v", decision, err)
		}
		if err := limiter.GiveBack(over, decision.Limits[0].Reservation); err != nil {
			t.Fatal(err)
		}
	}
}
