package stuffing

import (
	"context"
	"database/sql"
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

func newDetector(db *sql.DB) (*Detector, *clock) {
	c := &clock{now: start}
	return New(db, Config{Now: c.Now, Secret: secret}), c
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
