//go:build unix

package partners

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// start is when the tests' clock stands, at first.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// partnersOf makes Partners whose clock the test moves.
func partnersOf(opened *database.DB) (*Partners, *time.Time) {
	now := start
	return New(opened.DB, Config{Now: func() time.Time { return now }}), &now
}

func mustCreate(t *testing.T, p *Partners, plan Plan, label string) (int64, string) {
	t.Helper()
	id, key, err := p.Create(t.Context(), plan, label)
	if err != nil {
		t.Fatal(err)
	}
	return id, string(key)
}

func TestAKeyIsFoundWithItsPlanUntilItIsRevoked(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p, now := partnersOf(opened)
		id, key := mustCreate(t, p, Free, "first")
		another, anothers := mustCreate(t, p, Paid, "second")
		if id == another || key == anothers || !regexp.MustCompile(`^weir_[0-9a-f]{64}$`).MatchString(key) {
			t.Fatalf("keys %d %q and %d %q", id, key, another, anothers)
		}
		want := func(key string, id int64, plan Plan) {
			t.Helper()
			if got, err := p.Find(t.Context(), key); err != nil || got != (Partner{id, plan}) {
				t.Errorf("found %+v, %v; want %d of the plan %s", got, err, id, plan)
			}
		}
		want(key, id, Free)
		want(anothers, another, Paid)
		if err := p.SetPlan(t.Context(), id, Paid); err != nil {
			t.Fatal(err)
		}
		want(key, id, Paid)
		*now = start.Add(time.Hour)
		if err := p.Revoke(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got, err := p.Find(t.Context(), key); !errors.Is(err, ErrKey) || got != (Partner{}) {
			t.Errorf("after it was revoked: %+v, %v", got, err)
		}
		want(anothers, another, Paid)
		*now = start.Add(2 * time.Hour)
		for name, err := range map[string]error{
			"revoked again":        p.Revoke(t.Context(), id),
			"a plan for none":      p.SetPlan(t.Context(), id, Free),
			"revoke a number":      p.Revoke(t.Context(), 99),
			"a plan for a number":  p.SetPlan(t.Context(), 99, Free),
			"a negative number":    p.Revoke(t.Context(), -1),
			"a plan for number -1": p.SetPlan(t.Context(), -1, Paid),
		} {
			if !errors.Is(err, ErrID) {
				t.Errorf("%s: %v, want ErrID", name, err)
			}
		}
		all, err := p.List(t.Context())
		if err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		if first := (Issued{id, "first", Paid, start, start.Add(time.Hour)}); all[0] != first {
			t.Errorf("listed %+v, want %+v", all[0], first)
		}
		if second := (Issued{another, "second", Paid, start, time.Time{}}); all[1] != second {
			t.Errorf("listed %+v, want %+v", all[1], second)
		}
	})
}

func TestTheNumberOfAKeyIsNeverUsedAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p, _ := partnersOf(opened)
		id, _ := mustCreate(t, p, Free, "x")
		if _, err := opened.ExecContext(t.Context(), `DELETE FROM partner_keys`); err != nil {
			t.Fatal(err)
		}
		if next, _ := mustCreate(t, p, Free, "x"); next <= id {
			t.Errorf("%d after %d", next, id)
		}
	})
}

func TestTheKeyItselfIsNotStored(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p, _ := partnersOf(opened)
		_, key := mustCreate(t, p, Free, "x")
		var row string
		err := opened.QueryRowContext(t.Context(), `SELECT id || ' ' || key_hash || ' ' || label || ' ' || plan || ' ' || created_micros FROM partner_keys`).Scan(&row)
		if err != nil || len(row) < 43 || strings.Contains(row, key[5:21]) || strings.Contains(row, key[53:]) {
			t.Errorf("the row is %q, %v; the key %q", row, err, key)
		}
	})
}

// The database is nil, so that a read would panic.
func TestATextWithoutTheFormOfAKeyIsNoneWithoutARead(t *testing.T) {
	p := New(nil, Config{})
	good := string(newKey())
	for _, text := range []string{
		"", "weir_", good[5:], good[:len(good)-1], good + "0", " " + good, good + "\n", strings.ToUpper(good), "WEIR_" + good[5:],
		"weir-" + good[5:], good[:68] + "g", good[:68] + "\x00", strings.Replace(good, "_", "", 1) + "0", strings.Repeat("0", 69),
		"weir_" + strings.Repeat("weir_", 13)[:64], strings.Repeat("x", 1<<20),
	} {
		if _, err := p.Find(t.Context(), text); !errors.Is(err, ErrKey) || len(text) > 8 && strings.Contains(err.Error(), text[5:]) {
			t.Errorf("%.80q: %v, want ErrKey", text, err)
		}
	}
}

func TestAKeyThatWasNeverGivenOutIsNone(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p, _ := partnersOf(opened)
		mustCreate(t, p, Free, "x")
		if got, err := p.Find(t.Context(), string(newKey())); !errors.Is(err, ErrKey) {
			t.Errorf("found %+v, %v", got, err)
		}
	})
}

func TestAPlanOrALabelThatIsNoneIsRefusedAndNotTold(t *testing.T) {
	p := New(nil, Config{}) // reaching the database would panic
	for _, plan := range []Plan{"", "Free", "gold", "free "} {
		if _, _, err := p.Create(t.Context(), plan, "x"); !errors.Is(err, ErrPlan) {
			t.Errorf("create %q: %v", plan, err)
		}
		if err := p.SetPlan(t.Context(), 1, plan); !errors.Is(err, ErrPlan) {
			t.Errorf("set %q: %v", plan, err)
		}
	}
	for _, label := range []string{"", " ", "secret ", "\tsecret", "sec\nret", "sec\x00ret", "secret\xff", "secret\u202e", strings.Repeat("s", MaxLabelBytes+1)} {
		if _, _, err := p.Create(t.Context(), Free, label); !errors.Is(err, ErrLabel) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", label, err)
		}
	}
}

func TestALabelComesBackAsItWasGiven(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p, _ := partnersOf(opened)
		labels := []string{"x", "Ärger & Co. '26; --", strings.Repeat("s", MaxLabelBytes), "x"}
		for _, label := range labels {
			mustCreate(t, p, Free, label)
		}
		all, err := p.List(t.Context())
		if err != nil || len(all) != len(labels) {
			t.Fatal(all, err)
		}
		for i, label := range labels {
			if all[i].Label != label {
				t.Errorf("%q came back as %q", label, all[i].Label)
			}
		}
	})
}

func TestNoMoreKeysAreMadeThanAreKept(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p, _ := partnersOf(opened)
		for n := 0; n < MaxKeys-3; {
			var rows []string
			for ; n < MaxKeys-3 && len(rows) < 500; n++ {
				rows = append(rows, fmt.Sprintf("('hash %d', 'x', 'free', 0, 1)", n))
			}
			if _, err := opened.ExecContext(t.Context(), `INSERT INTO partner_keys (key_hash, label, plan, created_micros, revoked_micros) VALUES `+strings.Join(rows, ", ")); err != nil {
				t.Fatal(err)
			}
		}
		var made, refused atomic.Int64
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				switch _, _, err := p.Create(t.Context(), Free, "x"); {
				case err == nil:
					made.Add(1)
				case errors.Is(err, ErrTooMany):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if made.Load() != 3 || refused.Load() != 5 {
			t.Errorf("%d made and %d refused, want 3 and 5", made.Load(), refused.Load())
		}
	})
}

func TestTheDatabasesClockDatesAKey(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p := New(opened.DB, Config{})
		before := time.Now()
		id, _ := mustCreate(t, p, Free, "x")
		if err := p.Revoke(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		all, err := p.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		// The server runs on this machine, and its clock has whole milliseconds.
		for _, at := range []time.Time{all[0].Created, all[0].Revoked} {
			if at.Before(before.Add(-2*time.Millisecond)) || at.After(time.Now().Add(2*time.Millisecond)) {
				t.Errorf("dated %+v", all[0])
			}
		}
	})
}

func TestAStoreThatFailsIsNotARefusal(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		p, _ := partnersOf(opened)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, create := p.Create(gone, Free, "x")
		_, find := p.Find(gone, string(newKey()))
		_, list := p.List(gone)
		for name, err := range map[string]error{"create": create, "find": find, "list": list, "revoke": p.Revoke(gone, 1), "plan": p.SetPlan(gone, 1, Free)} {
			if !errors.Is(err, ErrStore) || !errors.Is(err, context.Canceled) || errors.Is(err, ErrKey) || errors.Is(err, ErrID) {
				t.Errorf("%s: %v: want ErrStore and the cause", name, err)
			}
		}
	})
}

func TestNoTwoKeysAreTheSame(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		key := newKey()
		hash, formed := key.hash()
		if !formed || len(hash) != 43 || seen[hash] || seen[string(key)] || !strings.Contains(Form, "weir_") || !strings.Contains(Form, "64") {
			t.Fatalf("%q hashes to %q: %s", key, hash, Form)
		}
		seen[hash], seen[string(key)] = true, true
	}
}
