package sqlstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

func TestTheAuditIsReadInPagesNewestFirst(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now, SweepEvery: -1})
		for range 3 {
			if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "minute", 1, time.Minute)}); err != nil {
				t.Fatal(err)
			}
		}
		until := storetest.Start.Add(time.Hour)
		for i, o := range []ratelimit.Operation{
			{Key: 2, Policy: "minute", Action: ratelimit.Ban, UntilMicros: until.UnixMicro()},
			{Key: 1, Policy: "minute", Action: ratelimit.Reset},
			{Key: 3, Policy: "day", Action: ratelimit.Allow, UntilMicros: until.UnixMicro()},
		} {
			clock.At(time.Duration(i+1) * time.Second)
			if err := store.Operate(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		at := func(seconds int) time.Time { return storetest.Start.Add(time.Duration(seconds) * time.Second).UTC() }
		want := []sqlstore.AuditRow{
			{ID: 4, At: at(3), Policy: "day", Key: 3, Action: "allow", Until: until.UTC()},
			{ID: 3, At: at(2), Policy: "minute", Key: 1, Action: "reset"},
			{ID: 2, At: at(1), Policy: "minute", Key: 2, Action: "ban", Until: until.UTC()},
			{ID: 1, At: at(0), Policy: "minute", Key: 1, Used: 1, Action: "refusal"},
		}
		first, err := store.Audit(t.Context(), 1<<62, 3)
		if err != nil || !slices.Equal(first, want[:3]) {
			t.Errorf("got %+v, %v", first, err)
		}
		rest, err := store.Audit(t.Context(), first[2].ID, 3)
		if err != nil || !slices.Equal(rest, want[3:]) {
			t.Errorf("then %+v, %v", rest, err)
		}
	})
}

// plant puts rows into the audit.
func plant(t *testing.T, db *database.DB, policy, action string, at time.Time, n int) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `
		INSERT INTO rate_limit_audit (at_micros, policy, key, used, action, until_micros)
		SELECT ?, ?, 1, 1, ?, 0 FROM json_each(?)`,
		at.UnixMicro(), policy, action, "[1"+strings.Repeat(",1", n-1)+"]")
	if err != nil {
		t.Fatal(err)
	}
}

func TestRefusalsAreCountedByPolicyAndHour(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now})
		begin := storetest.Start.Truncate(time.Hour)
		expect := func(want string) {
			t.Helper()
			got, err := store.Refusals(t.Context())
			var lines []string
			for _, policy := range got.Policies {
				for hour, n := range policy.Hours {
					if n > 0 {
						lines = append(lines, fmt.Sprint(policy.Policy, " ", hour, ": ", n))
					}
				}
			}
			if from := clock.Now().Truncate(time.Hour).Add(-23 * time.Hour); err != nil || !got.From.Equal(from) || strings.Join(lines, ", ") != want {
				t.Errorf("got %q from %v, %v; want %q from %v", lines, got.From, err, want, from)
			}
		}
		expect("")
		plant(t, db, "b", "refusal", begin, 3)
		plant(t, db, "b", "refusal", begin.Add(-time.Microsecond), 2)
		plant(t, db, "b", "ban", begin, 1)
		plant(t, db, "a", "refusal", begin.Add(-23*time.Hour), 1)
		plant(t, db, "a", "refusal", begin.Add(-23*time.Hour-time.Microsecond), 1) // too long ago
		plant(t, db, "c", "refusal", begin.Add(time.Hour), 1)                      // not yet
		expect("a 0: 1, b 22: 2, b 23: 3")
		clock.At(begin.Add(time.Hour).Sub(storetest.Start))
		expect("b 21: 2, b 22: 3, c 23: 1")
		clock.At(begin.Add(100 * time.Hour).Sub(storetest.Start))
		expect("")
	})
}

func TestRefusalsAreOfTheDatabasesOwnClock(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		plant(t, db, "a", "refusal", time.Now(), 1)
		got, err := open(db, sqlstore.Config{}).Refusals(t.Context())
		if err != nil || len(got.Policies) != 1 || got.Policies[0].Hours[22]+got.Policies[0].Hours[23] != 1 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// Row F4; case A21.
func TestTheAuditIsKeptForItsTimeAndSweptThen(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		clock := storetest.NewClock()
		config := sqlstore.Config{Now: clock.Now, SweepEvery: -1, AuditRetention: 24 * time.Hour}
		store := open(db, config)
		const old = 2020 // more than two steps
		plant(t, db, "a", "refusal", storetest.Start.Add(-time.Hour), old/2)
		plant(t, db, "a", "ban", storetest.Start, old/2)
		plant(t, db, "a", "refusal", storetest.Start.Add(time.Hour), 1)
		sweep := func(store *sqlstore.Store, want int64) {
			t.Helper()
			if deleted, done, err := store.SweepAudit(t.Context()); deleted != want || !done || err != nil {
				t.Errorf("deleted %d, done %t, %v; want %d", deleted, done, err, want)
			}
		}
		clock.At(23*time.Hour - time.Millisecond)
		sweep(store, 0)
		clock.At(24 * time.Hour)
		forEver := config
		forEver.AuditRetention, forEver.SweepEvery = 0, 2
		sweep(open(db, forEver), 0)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if deleted, done, err := store.SweepAudit(ended); deleted != 0 || done || err != nil {
			t.Errorf("without time: %d, %t, %v", deleted, done, err)
		}
		left := func() int64 { return number(t, db.DB, "SELECT count(*) FROM rate_limit_audit") }
		decide := func(config sqlstore.Config) {
			t.Helper()
			store := open(db, config)
			for range 40 { // each sweeps the counters or the audit; that all sweep the counters has odds of 1 in 10¹²
				if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "b", 1000, time.Minute)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		decide(forEver)
		if n := left(); n != old+1 {
			t.Errorf("%d rows are left of those that are kept for ever", n)
		}
		config.SweepEvery = 2
		decide(config)
		taken := old + 1 - left() // in passing
		if taken < 256 || taken%256 != 0 && taken != old {
			t.Errorf("decisions took %d rows along, want 256 or a multiple of it", taken)
		}
		sweep(store, old-taken)
		if n := left(); n != 1 {
			t.Errorf("%d rows are left, want the one whose time is not over", n)
		}
		clock.At(25 * time.Hour)
		sweep(store, 1)
	})
}

func TestAnAuditSweepThatFailsIsToldAndChangesNoDecision(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		if _, err := db.Exec("CREATE TRIGGER no_sweep BEFORE DELETE ON rate_limit_audit BEGIN SELECT RAISE(ABORT, 'no'); END"); err != nil {
			t.Fatal(err)
		}
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now, SweepEvery: 2, AuditRetention: time.Hour})
		plant(t, db, "a", "refusal", storetest.Start.Add(-2*time.Hour), 3)
		for range 20 {
			rows, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "b", 20, time.Minute)})
			if err != nil || !rows[0].Charged {
				t.Errorf("%+v, %v", rows, err)
			}
		}
		if deleted, done, err := store.SweepAudit(t.Context()); deleted != 0 || done || err == nil {
			t.Errorf("the sweep: %d, %t, %v", deleted, done, err)
		}
	})
}
