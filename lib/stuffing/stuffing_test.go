package stuffing

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

var start = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

var secret = []byte("a secret of tests, 32 bytes long")

// clock is a time that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) at(after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = start.Add(after)
}

// newDetector makes one that a rush is enough for.
func newDetector(db *sql.DB) (*Detector, *clock) {
	c := &clock{now: start}
	return New(db, Config{Now: c.Now, Secret: secret, Thresholds: Thresholds{MinFailures: 10}}), c
}

func observeAll(t *testing.T, d *Detector, n int, account, address string, failed bool) (seen bool) {
	t.Helper()
	for i := range n {
		s, err := d.Observe(t.Context(), strings.ReplaceAll(account, "#", fmt.Sprint(i)), strings.ReplaceAll(address, "#", fmt.Sprint(i)), failed)
		if err != nil {
			t.Fatal(err)
		}
		seen = seen || s
	}
	return seen
}

func count(t *testing.T, db *sql.DB, query string) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOfManyProcessesAtOnceNoCountIsLostAndOneLooks(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		const processes, failures, successes = 8, 12, 5
		one, _ := newDetector(opened.DB)
		var group sync.WaitGroup
		var mu sync.Mutex
		looks := 0
		alone := map[string][2][2]int64{} // positions of accounts and addresses
		for p := range processes {
			d, _ := newDetector(opened.DB)
			for i := range failures + successes {
				account, address := fmt.Sprint("account", p*failures+i), fmt.Sprint("address", i)
				if i < failures {
					r, rank := position(one.key, "account", account)
					s, rank2 := position(one.key, "address", address)
					alone[account] = [2][2]int64{{r, rank}, {s, rank2}}
				}
			}
			group.Go(func() {
				for i := range failures + successes {
					_, first, err := d.count(context.Background(), fmt.Sprint("account", p*failures+i), fmt.Sprint("address", i), i < failures)
					if err != nil {
						t.Error(err)
					}
					if first {
						mu.Lock()
						looks++
						mu.Unlock()
					}
				}
			})
		}
		group.Wait()
		minute := start.Unix() / 60
		windows, err := stored{t.Context(), one}.windows([]span{{minute, minute + 1}, {minute + 1, minute + 2}})
		if err != nil {
			t.Fatal(err)
		}
		if w := windows[0]; w.Failures != processes*failures || w.Successes != processes*successes || windows[1].Failures != 0 {
			t.Errorf("counted were %+v", windows)
		}
		if looks != 1 {
			t.Errorf("%d processes look at the minutes before", looks)
		}
		// The registers are those that one process would have written.
		want := map[int64]int64{}
		for _, positions := range alone {
			for kind, p := range positions {
				id := registersBegin + minute*rowsPerMinute + int64(kind)*registers + p[0]
				want[id] = max(want[id], p[1])
			}
		}
		rows, err := opened.QueryContext(t.Context(), `SELECT id, value FROM sign_in_figures WHERE id >= 1099511627776 AND id % 1024 < 512`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		n := 0
		for rows.Next() {
			var id, value int64
			if err := rows.Scan(&id, &value); err != nil {
				t.Fatal(err)
			}
			if n++; want[id] != value {
				t.Errorf("the row %d has the rank %d, want %d", id, value, want[id])
			}
		}
		if n != len(want) {
			t.Errorf("%d registers, want %d", n, len(want))
		}
	})
}

// play observes traffic, whose first minute begins at start, and gives the minutes in which an attack was seen.
func play(t *testing.T, d *Detector, c *clock, traffic *traffic) (seen []int) {
	t.Helper()
	for minute, attempts := range traffic.minutes {
		c.at(time.Duration(minute) * time.Minute)
		for _, a := range attempts {
			found, err := d.Observe(t.Context(), fmt.Sprint(a.account), fmt.Sprint(a.address), a.failed)
			if err != nil {
				t.Fatal(err)
			}
			if found && !slices.Contains(seen, minute) {
				seen = append(seen, minute)
			}
		}
	}
	return seen
}

// Row D9: what the detector finds in the database is what it finds in a day of the tests, to the figure.
func TestTheDatabaseTellsWhatTheDayDoes(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		minutes := 150
		if opened.HTTP != nil {
			minutes = 60 // a request each
		}
		days := newTraffic(site{visits: 1_500, days: 1, forgets: 0.15}, 1)
		days.attack(20*60+30, 20, 5, 50)
		days.minutes = days.minutes[20*60 : 20*60+minutes]
		c := &clock{now: start}
		d := New(opened.DB, Config{Now: c.Now, Secret: secret})
		seen := play(t, d, c, days)
		episodes := watch(t, days, d.key)
		if len(episodes) != 1 || len(seen) == 0 || seen[0] != episodes[0].minute {
			t.Fatalf("seen in the minutes %v, want %+v", seen, episodes)
		}
		want, err := json.Marshal(episodes[0].figures)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := opened.QueryRowContext(t.Context(), `SELECT figures FROM alerts`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("the alert tells %s, want %s", got, want)
		}
		if n := count(t, opened.DB, `SELECT count(*) FROM alerts`); n != 1 {
			t.Errorf("%d alerts", n)
		}
	})
}

// rush has an attack seen in each of some minutes from one on.
func rush(t *testing.T, d *Detector, c *clock, from, minutes int) (seen int) {
	t.Helper()
	for minute := from; minute <= from+minutes; minute++ {
		c.at(time.Duration(minute) * time.Minute)
		if observeAll(t, d, 12, "account#", "address#", true) {
			seen++
		}
	}
	return seen
}

func reads(t *testing.T, d *Detector) bool {
	t.Helper()
	on, err := d.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return on
}

// Row D9.
func TestAnAttackIsOnWhileItIsSeenAndAQuietTimeAfter(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		d, c := newDetector(opened.DB)
		other := New(opened.DB, Config{Now: c.Now, Secret: secret})
		if reads(t, d) {
			t.Error("an attack is on in an empty database")
		}
		if seen := rush(t, d, c, 0, 2); seen != 2 {
			t.Errorf("seen in %d minutes", seen)
		}
		c.at(2*time.Minute + Quiet)
		if !reads(t, other) {
			t.Error("it is over too early")
		}
		c.at(2*time.Minute + Quiet + time.Microsecond)
		if reads(t, other) {
			t.Error("it goes on for ever")
		}
		const row = `SELECT windows * 1000000 + (last_micros - at_micros) / 60000000 FROM alerts ORDER BY id DESC LIMIT 1`
		if n := count(t, opened.DB, row); n != 2_000_001 {
			t.Errorf("the alert has %d minutes, the last one after %d", n/1_000_000, n%1_000_000)
		}
		// What comes within a day is the same one, on again; what comes later is another.
		if seen := rush(t, d, c, 40, 1); seen != 1 || !reads(t, other) || count(t, opened.DB, `SELECT count(*) FROM alerts`) != 1 {
			t.Error("what is seen again is not the same attack, or not on")
		}
		if seen := rush(t, d, c, 40+int(Same/time.Minute)+2, 1); seen != 1 || count(t, opened.DB, `SELECT count(*) FROM alerts`) != 2 {
			t.Error("a second attack is not told")
		}
	})
}

// Row D9.
func TestAnOperatorEndsAnAttackAndHasPeaceForAnHour(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		d, c := newDetector(opened.DB)
		other := New(opened.DB, Config{Now: c.Now, Secret: secret})
		if ended, err := d.End(t.Context()); ended || err != nil {
			t.Errorf("ended what is not on: %t, %v", ended, err)
		}
		rush(t, d, c, 0, 1)
		if !reads(t, other) {
			t.Fatal("no attack is on")
		}
		if ended, err := other.End(t.Context()); !ended || err != nil {
			t.Errorf("ended: %t, %v", ended, err)
		}
		if on, fresh := other.Remembered(); on || !fresh || reads(t, d) {
			t.Error("it is still on")
		}
		rush(t, d, c, 5, 2)
		if reads(t, d) || count(t, opened.DB, `SELECT count(*) FROM alerts`) != 1 {
			t.Error("it began again within the hour")
		}
		if got, err := (stored{t.Context(), d}).attacks(0); len(got) > 0 || err != nil {
			t.Errorf("what was ended is no attack for the past: %v, %v", got, err)
		}
		rush(t, d, c, 63, 1)
		if !reads(t, d) {
			t.Error("nothing begins ever again")
		}
	})
}

// A clock that ran ahead for a while neither hides an attack nor keeps one on, and one that steps back doubles none.
func TestAClockThatStepsBackNeitherHidesNorDoublesAnAttack(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		d, c := newDetector(opened.DB)
		rush(t, d, c, 30, 1) // at 31 minutes
		rush(t, d, c, 20, 2)
		if n := count(t, opened.DB, `SELECT count(*) FROM attacks`); n != 1 {
			t.Errorf("%d attacks after a step back", n)
		}
		c.at(100 * 24 * time.Hour)
		rush(t, d, c, 100*24*60, 1)
		c.at(70 * time.Minute)
		if reads(t, d) {
			t.Error("an attack of the days ahead is on")
		}
		rush(t, d, c, 70, 1)
		if n := count(t, opened.DB, `SELECT count(*) FROM attacks`); n != 2 || !reads(t, d) {
			t.Errorf("%d attacks", n)
		}
	})
}

func TestOfManyAtOnceOneBeginsAnAttack(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		d, _ := newDetector(opened.DB)
		quiet, peace := Quiet.Microseconds(), Peace.Microseconds()
		var group sync.WaitGroup
		var mu sync.Mutex
		begun := 0
		for range 8 {
			group.Go(func() {
				// Each has found that none is on.
				var id int64
				err := opened.QueryRowContext(context.Background(), begin, d.now(), "{}", quiet, quiet, peace, peace).Scan(&id)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					begun++
				case !errors.Is(err, sql.ErrNoRows):
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := count(t, opened.DB, `SELECT (SELECT count(*) FROM attacks) * 10 + (SELECT count(*) FROM alerts)`); n != 11 || begun != 1 {
			t.Errorf("%d attacks and alerts, %d begun", n, begun)
		}
	})
}

// What a sign-in costs, in rows written.
func TestWhatACountedSignInWrites(t *testing.T) {
	db := databases.File(t).DB
	db.SetMaxOpenConns(1) // total_changes() is the connection's
	d, c := newDetector(db)
	written := func(account, address string, failed bool) int64 {
		before := count(t, db, `SELECT total_changes()`)
		observeAll(t, d, 1, account, address, failed)
		return count(t, db, `SELECT total_changes()`) - before
	}
	if n := written("a", "b", false); n != 2 {
		t.Errorf("the first of a minute writes %d rows, want the count and the mark", n)
	}
	if n := written("a", "b", false); n != 1 {
		t.Errorf("a right password writes %d rows", n)
	}
	if n := written("a", "b", true); n != 3 {
		t.Errorf("a wrong one writes %d rows, want the count and two registers", n)
	}
	if n := written("a", "b", true); n != 1 {
		t.Errorf("another one of the same account and address writes %d rows", n)
	}
	before := count(t, db, `SELECT total_changes()`)
	const guesses = 2000
	observeAll(t, d, guesses, "account#", "address#", true)
	n := count(t, db, `SELECT total_changes()`) - before
	t.Logf("%d guesses in a minute, each at another account from another address, write %.2f rows each", guesses, float64(n)/guesses)
	if n > guesses*2 {
		t.Errorf("%d guesses write %d rows", guesses, n)
	}
	c.at(time.Minute)
	if n := written("a", "b", false); n != 4 {
		t.Errorf("the first of a minute with an attack before it writes %d rows, want the count, the mark, the attack and its alert", n)
	}
}

// Row F4.
func TestFiguresGoInPassingAndWithASweep(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		d, c := newDetector(opened.DB)
		observeAll(t, d, 40, "account#", "address#", true)
		observeAll(t, d, 3, "account#", "address#", false)
		const all, counts = `SELECT count(*) FROM sign_in_figures`, `SELECT count(*) FROM sign_in_figures WHERE id < 1099511627776`
		whole := count(t, opened.DB, all)
		c.at(registerMinutes * time.Minute)
		if n, done, err := d.Sweep(t.Context()); n != 0 || !done || err != nil {
			t.Errorf("a moment before: %d, %t, %v", n, done, err)
		}
		c.at((registerMinutes + 1) * time.Minute)
		observeAll(t, d, 1, "account", "address", false) // looks, and takes them along
		if n := count(t, opened.DB, all); n != 2+2 {
			t.Errorf("%d of %d rows are left, want the counts and two of the last minute", n, whole)
		}
		rush(t, d, c, 300, 1)
		c.at(time.Hour + (countMinutes+300)*time.Minute)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if n, done, err := d.Sweep(ended); n != 0 || done || err != nil {
			t.Errorf("without time: %d, %t, %v", n, done, err)
		}
		if n, done, err := d.Sweep(t.Context()); n == 0 || !done || err != nil {
			t.Errorf("the sweep: %d, %t, %v", n, done, err)
		}
		if n := count(t, opened.DB, all); n != 0 {
			t.Errorf("%d rows are left, %d of them counts", n, count(t, opened.DB, counts))
		}
		if n := count(t, opened.DB, `SELECT count(*) FROM attacks`); n != 1 {
			t.Errorf("%d attacks are left", n)
		}
		c.at((2*countMinutes + 302) * time.Minute)
		if n, done, err := d.Sweep(t.Context()); n != 1 || !done || err != nil {
			t.Errorf("the sweep of attacks: %d, %t, %v", n, done, err)
		}
	})
}

func TestADatabaseThatFailsIsAnErrorAndWhatWasKnownCounts(t *testing.T) {
	db := databases.File(t).DB
	d, c := newDetector(db)
	rush(t, d, c, 0, 1)
	for _, table := range []string{"attacks", "sign_in_figures"} {
		if _, err := db.Exec(`DROP TABLE ` + table); err != nil {
			t.Fatal(err)
		}
		if table == "attacks" { // the minutes are to be looked at, and nothing can be kept
			c.at(2 * time.Minute)
			if seen, err := d.Observe(t.Context(), "a", "b", true); !errors.Is(err, ErrStore) || seen {
				t.Errorf("looking: %t, %v", seen, err)
			}
		}
	}
	c.at(time.Hour)
	if _, fresh := d.Remembered(); fresh {
		t.Error("what is old is fresh")
	}
	if on, err := d.Read(t.Context()); !on || !errors.Is(err, ErrStore) {
		t.Errorf("%t, %v", on, err)
	}
	if on, fresh := d.Remembered(); !on || !fresh {
		t.Errorf("remembered is %t, %t", on, fresh)
	}
	if _, err := d.Observe(t.Context(), "a", "b", true); !errors.Is(err, ErrStore) {
		t.Error(err)
	}
	if _, err := d.End(t.Context()); !errors.Is(err, ErrStore) {
		t.Error(err)
	}
	if _, _, err := d.Sweep(t.Context()); !errors.Is(err, ErrStore) {
		t.Error(err)
	}
}

func TestTheDatabasesOwnClockCounts(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		d := New(opened.DB, Config{Secret: secret})
		before := time.Now().Unix() / 60
		minute, first, err := d.count(t.Context(), "a", "b", true)
		if err != nil || !first || minute < before || minute > before+1 {
			t.Errorf("the minute %d, %t, %v, want %d", minute, first, err, before)
		}
		if err := d.keep(t.Context(), Figures{}); err != nil || !reads(t, d) {
			t.Errorf("kept: %v", err)
		}
		if ended, err := d.End(t.Context()); !ended || err != nil {
			t.Errorf("ended: %t, %v", ended, err)
		}
	})
}

func TestSpansOfFiguresAreFoundByTheirKey(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		for _, query := range []string{sums, unite, drop} {
			query = strings.Replace(query, "json_each(?)", "json_each('[[1,2],[3,4]]')", 1)
			rows, err := opened.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+strings.ReplaceAll(query, "?", "7"))
			if err != nil {
				t.Fatal(err)
			}
			var plan []string
			for rows.Next() {
				var a, b, c any
				var step string
				if err := rows.Scan(&a, &b, &c, &step); err != nil {
					t.Fatal(err)
				}
				plan = append(plan, step)
			}
			if err := rows.Close(); err != nil {
				t.Fatal(err)
			}
			searched := slices.ContainsFunc(plan, func(step string) bool {
				return strings.Contains(step, "SEARCH") && (strings.Contains(step, "figure") || strings.Contains(step, "sign_in_figures"))
			})
			if !searched {
				t.Errorf("%s\nis done by %q", query, plan)
			}
		}
	})
}
