package sqlstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/faults"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// fill adds so many refusals to the audit, by two policies in turns, a millisecond after one another up to the store's present,
// and as many live keys.
func fill(t testing.TB, db *database.DB, n int) {
	t.Helper()
	const each = 100
	digits := "[0"
	for i := range each - 1 {
		digits += fmt.Sprint(",", i+1)
	}
	digits += "]"
	for from := 0; from < n; from += each * each {
		_, err := db.ExecContext(t.Context(), `
			INSERT INTO rate_limit_audit (at_micros, policy, key, used, action, until_micros)
			SELECT ? + 1000 * (a.value * 100 + b.value), CASE WHEN (a.value * 100 + b.value) % 4 = 0 THEN 'rare' ELSE 'often' END, 1, 1, 'refusal', 0
			FROM json_each(?) AS a CROSS JOIN json_each(?) AS b
			WHERE ? + a.value * 100 + b.value < ?`,
			storetest.Start.UnixMicro()-1000*int64(n-from), digits, digits, from, n)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.ExecContext(t.Context(), `
			INSERT INTO rate_limits (
				key, policy, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, charged,
				refused_micros, override, until_micros, said_micros, expires_micros)
			SELECT (? + a.value * 100 + b.value) * ?, 'often', 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, ?
			FROM json_each(?) AS a CROSS JOIN json_each(?) AS b
			WHERE ? + a.value * 100 + b.value < ?`,
			from, (1<<63-1)/int64(n), storetest.Start.Add(time.Hour).UnixMicro(), digits, digits, from, n)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Issue 10.18: what is told of many rows is near the truth, and said to be an estimate; of few it is the truth.
func TestOperatorsFiguresOfManyRowsAreEstimates(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		store := open(db, sqlstore.Config{Now: storetest.NewClock().Now, SweepEvery: -1})
		for _, n := range []int{2_000, 50_000} {
			for _, table := range []string{"rate_limit_audit", "rate_limits"} {
				if _, err := db.Exec("DELETE FROM " + table); err != nil {
					t.Fatal(err)
				}
			}
			fill(t, db, n)
			near := func(what string, got int64, want int) {
				t.Helper()
				if off := max(got-int64(want), int64(want)-got); off > int64(want/10) || n == 2_000 && off != 0 {
					t.Errorf("%s: %d of %d rows, want %d", what, got, n, want)
				}
			}
			hourly, err := store.Refusals(t.Context())
			if err != nil || len(hourly.Policies) != 2 || hourly.Estimated != (n > 2_048) {
				t.Fatalf("%d rows: %+v, %v", n, hourly, err)
			}
			near("often refused in the last hour", hourly.Policies[0].Hours[22], n*3/4)
			near("rarely refused in the last hour", hourly.Policies[1].Hours[22], n/4)
			counts, err := store.Counts(t.Context())
			if err != nil || len(counts) != 2 || counts[0].Estimated != (n > 2_048) {
				t.Fatalf("%d rows: %+v, %v", n, counts, err)
			}
			near("active keys", counts[0].ActiveKeys, n)
			near("often refused", counts[0].Refusals, n*3/4)
			near("rarely refused", counts[1].Refusals, n/4)
		}
	})
}

// Issue 10.18: a day's refusals are found behind a month's, and only they are told.
func TestADaysRefusalsAreFoundBehindAMonths(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		store := open(db, sqlstore.Config{Now: storetest.NewClock().Now, SweepEvery: -1})
		for day := range 30 {
			plant(t, db, "old", "refusal", storetest.Start.Add(time.Duration(day-40)*24*time.Hour), 1_000)
		}
		plant(t, db, "new", "refusal", storetest.Start.Add(-time.Hour), 500)
		hourly, err := store.Refusals(t.Context())
		if err != nil || hourly.Estimated || len(hourly.Policies) != 1 || hourly.Policies[0].Policy != "new" || hourly.Policies[0].Hours[22] != 500 {
			t.Fatalf("%+v, %v", hourly, err)
		}
	})
}

// Issue 10.18: the rows that a view reads don't grow with those that are kept, as libSQL's server counts them.
func TestOperatorsViewsReadNoMoreOfMoreRows(t *testing.T) {
	proxy := faults.Start(t, turso.StartLibSQL(t).URL)
	db := databases.Open(t, proxy.URL)
	store := open(db, sqlstore.Config{Now: storetest.NewClock().Now, SweepEvery: -1})
	views := map[string]func() error{
		"refusals": func() error { _, err := store.Refusals(t.Context()); return err },
		"counts":   func() error { _, err := store.Counts(t.Context()); return err },
		"audit":    func() error { _, err := store.Audit(t.Context(), 1<<62, 100); return err },
	}
	read := map[string][]int64{}
	for _, n := range []int{10_000, 60_000} {
		fill(t, db, n)
		for name, view := range views {
			before := proxy.Rows().Read
			if err := view(); err != nil {
				t.Fatal(err)
			}
			read[name] = append(read[name], proxy.Rows().Read-before)
		}
		if _, err := db.Exec("DELETE FROM rate_limits"); err != nil {
			t.Fatal(err)
		}
	}
	for name, rows := range read {
		if rows[0] < 100 || rows[1] > rows[0]*3/2 || rows[1] > 30_000 {
			t.Errorf("%s reads %d rows of 10,000 and %d of 70,000", name, rows[0], rows[1])
		}
	}
}

// Issue 10.17: a sweep takes what was given back, too, when its time is over, however many rows it looks at in a step.
func TestASweepTakesRefundsWhoseTimeIsOver(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now, SweepEvery: -1})
		limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: patience})
		if err != nil {
			t.Fatal(err)
		}
		give := func(policy ratelimit.Policy, n int) {
			t.Helper()
			for i := range n {
				decision, err := limiter.Decide(t.Context(), policy.Charge(fmt.Sprint(i)))
				if err != nil {
					t.Fatal(err)
				}
				if err := limiter.GiveBack(t.Context(), decision.Limits[0].Reservation); err != nil {
					t.Fatal(err)
				}
			}
		}
		minute := ratelimit.Policy{Name: "minute", Algorithm: ratelimit.FixedWindow, Limit: 5, Window: time.Minute}
		day := ratelimit.Policy{Name: "day", Algorithm: ratelimit.TokenBucket, Limit: 5, Window: 24 * time.Hour}
		give(minute, 12)
		give(day, 3)
		clock.At(time.Hour)
		for from, step := int64(0), 0; step < 20; step++ { // 5 rows of each table in a step
			swept, err := store.Sweep(t.Context(), from, 5)
			if err != nil || swept.Looked > 5 {
				t.Fatalf("%+v, %v", swept, err)
			}
			if swept.Looked < 5 {
				break
			}
			from = swept.Last + 1
		}
		refunds, keys := number(t, db.DB, "SELECT count(*) FROM rate_limit_refunds"), number(t, db.DB, "SELECT count(*) FROM rate_limits")
		if refunds != 3 || keys != 3 {
			t.Errorf("%d refunds and %d keys are left, want the 3 of the day", refunds, keys)
		}
	})
}

// BenchmarkOperatorsViews reads what views show among so many rows of the audit and as many keys, on a file.
func BenchmarkOperatorsViews(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		db := databases.File(b)
		fill(b, db, n)
		store := open(db, sqlstore.Config{Now: storetest.NewClock().Now, SweepEvery: -1})
		for name, view := range map[string]func() error{
			"refusals": func() error { _, err := store.Refusals(b.Context()); return err },
			"counts":   func() error { _, err := store.Counts(b.Context()); return err },
			"audit":    func() error { _, err := store.Audit(b.Context(), 1<<62, 100); return err },
		} {
			b.Run(fmt.Sprintf("%s/rows=%d", name, n), func(b *testing.B) {
				for b.Loop() {
					if err := view(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// Issue 10.8: a charge that was made, and told, is no outage when only the read behind it finds the server busy.
func TestAChargeStandsWhenOnlyTheReadBehindItIsBusy(t *testing.T) {
	proxy := faults.Start(t, turso.StartLibSQL(t).URL)
	store := open(databases.Open(t, proxy.URL), sqlstore.Config{SweepEvery: -1})
	proxy.Refuse(faults.Busy()[0], func(sql string) bool { return strings.HasPrefix(strings.TrimSpace(sql), "SELECT") })
	rows, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "a", 3, 24*time.Hour)})
	if err != nil || !rows[0].Charged || proxy.Refused() == 0 {
		t.Fatalf("%+v, %v, %d refused", rows, err, proxy.Refused())
	}
}
