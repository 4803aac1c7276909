package alerts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// refuse writes what the limiter writes for the first refusal of a key in a window.
func refuse(t *testing.T, db *sql.DB, policy string, key int64, at time.Time) {
	t.Helper()
	audit(t, db, policy, "refusal", key, at)
}

func audit(t *testing.T, db *sql.DB, policy, action string, key int64, at time.Time) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `
		INSERT INTO rate_limit_audit (at_micros, policy, key, used, action, until_micros) VALUES (?, ?, ?, 8, ?, 0)`,
		at.UnixMicro(), policy, key, action)
	if err != nil {
		t.Fatal(err)
	}
}

// trip refuses a key in three windows, the last of which begins at the time.
func trip(t *testing.T, db *sql.DB, key int64, at time.Time) {
	t.Helper()
	for _, before := range []time.Duration{30 * time.Minute, 15 * time.Minute, 0} {
		refuse(t, db, "failed-sign-ins", key, at.Add(-before))
	}
}

func all(t *testing.T, a *Alerts) []Alert {
	t.Helper()
	page, err := a.Page(t.Context(), 1<<62, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// summary tells of each alert of a key, oldest first: the minute it was raised in, its windows, and the minute of the last.
func summary(t *testing.T, db *sql.DB, key int64) string {
	t.Helper()
	var lines []string
	for _, a := range slices.Backward(all(t, New(db, Config{}))) {
		if a.Key == key {
			lines = append(lines, fmt.Sprintf("%g: %d until %g", a.At.Sub(start).Minutes(), a.Windows, a.Last.Sub(start).Minutes()))
		}
	}
	return strings.Join(lines, ", ")
}

// Row B8.
func TestThreeWindowsWithinAnHourRaiseOneAlertForTheEpisode(t *testing.T) {
	var day []float64
	for m := 0.0; m <= 1560; m += 15 {
		day = append(day, m)
	}
	cases := []struct {
		name    string
		minutes []float64
		want    string
	}{
		{"two are none", []float64{0, 15}, ""},
		{"the third raises it", []float64{0, 15, 30}, "30: 3 until 30"},
		{"in just an hour", []float64{0, 45, 60}, "60: 3 until 60"},
		{"in a little more", []float64{0, 45, 60.001}, ""},
		{"later ones belong to it", []float64{0, 15, 30, 45, 60, 119, 179}, "30: 7 until 179"},
		{"after an hour without one it is over", []float64{0, 15, 30, 90.001}, "30: 3 until 30"},
		{"and another begins with its third", []float64{0, 15, 30, 100, 130, 159, 160}, "30: 3 until 30, 159: 4 until 160"},
		{"a clock that steps back raises no second", []float64{40, 55, 70, 11, 25, 40}, "70: 6 until 40"},
		{"a clock that was far ahead hides none", []float64{6000, 6015, 6030, 0, 15, 30}, "6030: 3 until 6030, 30: 3 until 30"},
		{"what goes on for more than a day is told anew", day, "30: 99 until 1470, 1485: 10 until 1560"},
	}
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		for key, c := range cases {
			for _, minute := range c.minutes {
				refuse(t, opened.DB, "failed-sign-ins", int64(key), start.Add(time.Duration(minute*float64(time.Minute))))
			}
			if got := summary(t, opened.DB, int64(key)); got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, got, c.want)
			}
		}
	})
}

// Row B8.
func TestOnlyRefusalsOfOneAccountRaiseAnAlert(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		for i := range int64(5) {
			at := start.Add(time.Duration(i) * 15 * time.Minute)
			refuse(t, db, "sign-in", 1, at)
			refuse(t, db, "failed-sign-ins", 100+i, at) // each another account
			audit(t, db, "failed-sign-ins", "reset", 2, at)
		}
		refuse(t, db, "failed-sign-ins", 2, start)
		refuse(t, db, "failed-sign-ins", 2, start.Add(15*time.Minute))
		if got := all(t, New(db, Config{})); len(got) > 0 {
			t.Fatalf("alerts: %+v", got)
		}
		for i := range int64(3) {
			refuse(t, db, "failed-sign-ins-device", 3, start.Add(time.Duration(i)*time.Minute))
		}
		got := all(t, New(db, Config{}))
		if len(got) != 1 {
			t.Fatalf("alerts: %+v", got)
		}
		at := start.Add(2 * time.Minute)
		want := Alert{ID: 1, At: at, Kind: RepeatedRefusals, Policy: "failed-sign-ins-device", Key: 3, Windows: 3, Last: at, Next: at}
		if got[0] != want {
			t.Errorf("got  %+v\nwant %+v", got[0], want)
		}
	})
}

// Row B8: through the limiter, with as many requests at once as there may be.
func TestRefusalsAtOnceRaiseOneAlert(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		config := sqlstore.Config{Deadline: time.Minute, SweepEvery: -1, Now: func() time.Time { return now }}
		store := sqlstore.New(opened.DB, config)
		if opened.HTTP != nil {
			store = sqlstore.NewRemote(opened.HTTP, config)
		}
		limiter, err := ratelimit.New(store, []byte("a secret of tests, 32 bytes long"), ratelimit.Config{Deadline: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		policy := ratelimit.Policy{
			Name: "failed-sign-ins", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: 15 * time.Minute, Subject: ratelimit.Account, Private: true,
		}
		for window := range 4 {
			now = start.Add(time.Duration(window) * policy.Window)
			var group sync.WaitGroup
			for range 16 {
				group.Go(func() {
					if _, err := limiter.Decide(context.Background(), policy.Charge("someone")); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
		}
		got := all(t, New(opened.DB, Config{}))
		if len(got) != 1 || got[0].Windows != 4 || !got[0].At.Equal(start.Add(30*time.Minute)) || !got[0].Last.Equal(now) {
			t.Errorf("alerts: %+v", got)
		}
	})
}

// What raises an alert is in one statement with its refusal: neither is there without the other.
func TestARefusalWhoseAlertCannotBeKeptIsNotKept(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		if _, err := db.Exec(`CREATE TRIGGER broken BEFORE INSERT ON alerts BEGIN SELECT RAISE(ABORT, 'no'); END`); err != nil {
			t.Fatal(err)
		}
		refuse(t, db, "failed-sign-ins", 7, start)
		refuse(t, db, "failed-sign-ins", 7, start)
		_, err := db.Exec(`INSERT INTO rate_limit_audit (at_micros, policy, key, used, action, until_micros) VALUES (?, 'failed-sign-ins', 7, 8, 'refusal', 0)`,
			start.UnixMicro())
		var n int
		if failed := db.QueryRow(`SELECT count(*) FROM rate_limit_audit`).Scan(&n); failed != nil || err == nil || n != 2 {
			t.Errorf("%d rows of the audit, %v, %v", n, err, failed)
		}
	})
}

// receiver takes alerts, or doesn't.
type receiver struct {
	mu   sync.Mutex
	got  []Alert
	fail func(Alert) error
}

func (r *receiver) Send(_ context.Context, alert Alert) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, alert)
	if r.fail != nil {
		return r.fail(alert)
	}
	return nil
}

func send(t *testing.T, a *Alerts, taken int, failed bool) {
	t.Helper()
	n, err := a.Send(t.Context())
	if n != taken || (err != nil) != failed || err != nil && (!errors.Is(err, ErrSend) || errors.Is(err, ErrStore)) {
		t.Fatalf("taken %d, %v; want %d, failed: %t", n, err, taken, failed)
	}
}

func TestAnAlertIsSentOnceItIsTaken(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, r := start, &receiver{}
		a := New(opened.DB, Config{Now: func() time.Time { return now }, Sender: r})
		send(t, a, 0, false)
		trip(t, opened.DB, 7, start)
		trip(t, opened.DB, 8, start)
		refuse(t, opened.DB, "failed-sign-ins", 7, start.Add(time.Minute))
		now = start.Add(time.Minute)
		send(t, a, 2, false)
		send(t, a, 0, false)
		if len(r.got) != 2 || r.got[0].Key != 7 || r.got[0].Windows != 4 || r.got[0].Attempts != 1 || r.got[1].Key != 8 {
			t.Errorf("sent were %+v", r.got)
		}
		for _, alert := range all(t, a) {
			if !alert.Sent.Equal(now) || !alert.Next.IsZero() || alert.Attempts != 1 {
				t.Errorf("kept is %+v", alert)
			}
		}
		now = now.Add(time.Hour)
		send(t, a, 0, false)
	})
}

func TestAnAlertThatIsNotTakenIsSentAgainLaterAndLaterAndThenNoMore(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		r := &receiver{fail: func(alert Alert) error {
			if alert.Key == 7 {
				return errors.New("no")
			}
			return nil
		}}
		a := New(opened.DB, Config{Now: func() time.Time { return now }, Sender: r})
		trip(t, opened.DB, 7, start)
		trip(t, opened.DB, 8, start)
		wait := time.Minute
		for attempt := range Attempts {
			taken := 0
			if attempt == 0 {
				taken = 1 // the other one isn't kept back
			}
			send(t, a, taken, true)
			send(t, a, 0, false)
			now = now.Add(wait - time.Microsecond)
			send(t, a, 0, false) // not before it is due
			now = now.Add(time.Microsecond)
			wait *= 2
		}
		now = now.Add(24 * time.Hour)
		send(t, a, 0, false)
		if len(r.got) != Attempts+1 {
			t.Errorf("%d were offered, want %d", len(r.got), Attempts+1)
		}
		for _, alert := range all(t, a) {
			if alert.Key == 7 && (!alert.Sent.IsZero() || !alert.Next.IsZero() || alert.Attempts != Attempts) {
				t.Errorf("kept is %+v", alert)
			}
		}
	})
}

// Two sweeps at once, or a sweep and requests.
// later is the word of a receiver.
type later time.Duration

func (l later) Error() string             { return "later" }
func (l later) RetryAfter() time.Duration { return time.Duration(l) }

// Issue 10.21: a receiver that says "soon" for hours doesn't use up the attempts; one that says
// "much later" is not asked before, not for an alert that is raised meanwhile either.
func TestAReceiversWordIsTakenAndTheAttemptsLast(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, r := start, &receiver{fail: func(Alert) error { return fmt.Errorf("it says: %w", later(time.Second)) }}
		a := New(opened.DB, Config{Now: func() time.Time { return now }, Sender: r})
		trip(t, opened.DB, 7, start)
		for range 5 {
			send(t, a, 0, true)
			send(t, a, 0, false)
			now = now.Add(time.Second)
		}
		for _, minutes := range []time.Duration{32, 64, 128, 256} {
			send(t, a, 0, true)
			now = now.Add(minutes*time.Minute - time.Second)
			send(t, a, 0, false)
			now = now.Add(time.Second)
		}
		r.fail = func(Alert) error { return later(6 * time.Hour) }
		send(t, a, 0, true)
		if len(r.got) != Attempts || !all(t, a)[0].Next.IsZero() {
			t.Fatalf("%d attempts", len(r.got))
		}
		r.fail = nil
		said := now
		trip(t, opened.DB, 8, now)
		now = said.Add(6*time.Hour - time.Microsecond)
		send(t, a, 0, false)
		now = said.Add(6 * time.Hour)
		send(t, a, 1, false)
	})
}

func TestOfManySendersAtOnceOneOffersAnAlert(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		r := &receiver{fail: func(Alert) error { return errors.New("no") }}
		a := New(opened.DB, Config{Now: func() time.Time { return now }, Sender: r})
		for key := range int64(5) {
			trip(t, opened.DB, key, start)
		}
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() { a.Send(context.Background()) })
		}
		group.Wait()
		seen := map[int64]int{}
		for _, alert := range r.got {
			seen[alert.Key]++
		}
		if len(seen) != 5 || len(r.got) != 5 {
			t.Errorf("offered were %v", seen)
		}
	})
}

func TestWhatIsOldIsNoNewsAndWithoutAReceiverNothingIsTried(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start.Add(MaxAge - time.Microsecond)
		clock := func() time.Time { return now }
		trip(t, opened.DB, 7, start)
		send(t, New(opened.DB, Config{Now: clock}), 0, false)
		r := &receiver{fail: func(Alert) error { return errors.New("no") }}
		a := New(opened.DB, Config{Now: clock, Sender: r})
		send(t, a, 0, true)
		now = now.Add(time.Hour)
		send(t, a, 0, false)
		if got := all(t, a); len(got) != 1 || got[0].Attempts != 1 {
			t.Errorf("kept are %+v", got)
		}
	})
}

func TestWithoutTimeNothingIsClaimed(t *testing.T) {
	db := databases.File(t).DB
	r := &receiver{}
	a := New(db, Config{Now: func() time.Time { return start }, Sender: r})
	trip(t, db, 7, start)
	short, cancel := context.WithTimeout(t.Context(), minSendTime-time.Millisecond)
	defer cancel()
	ended, end := context.WithCancel(t.Context())
	end()
	for _, ctx := range []context.Context{short, ended} {
		if n, err := a.Send(ctx); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got := all(t, a); got[0].Attempts != 0 || len(r.got) > 0 {
		t.Errorf("kept is %+v", got[0])
	}
}

// The time may end while the receiver answers.
func TestWhatWasTakenIsMarkedAlthoughTheTimeIsOver(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &receiver{fail: func(Alert) error { cancel(); return nil }}
		a := New(opened.DB, Config{Now: func() time.Time { return start }, Sender: r})
		trip(t, opened.DB, 7, start)
		trip(t, opened.DB, 8, start)
		if n, err := a.Send(ctx); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if got := all(t, a); got[1].Sent.IsZero() || !got[0].Sent.IsZero() {
			t.Errorf("kept are %+v", got)
		}
	})
}

func TestAlertsComeInPagesNewestFirst(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		for key := range int64(5) {
			trip(t, opened.DB, key, start)
		}
		a := New(opened.DB, Config{})
		var ids []int64
		below := int64(1 << 62)
		for range 3 {
			page, err := a.Page(t.Context(), below, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, alert := range page {
				ids, below = append(ids, alert.ID), alert.ID
			}
		}
		if fmt.Sprint(ids) != "[5 4 3 2 1]" {
			t.Errorf("ids %v", ids)
		}
	})
}

// Row F4.
func TestAlertsGoAfterTheirTimeWithASweepAndAFewWithWhatIsSent(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db, now := opened.DB, start
		a := New(db, Config{Now: func() time.Time { return now }, Sender: &receiver{}, Retention: 48 * time.Hour})
		const old = sweepRows + 20
		_, err := db.ExecContext(t.Context(), `
			INSERT INTO alerts (at_micros, kind, policy, key, windows, last_micros, attempts)
			SELECT ?, 'x', 'x', 1, 3, ?, 1 FROM json_each(?)`,
			start.Add(-time.Hour).UnixMicro(), start.UnixMicro(), "[1"+strings.Repeat(",1", old-1)+"]")
		if err != nil {
			t.Fatal(err)
		}
		now = start.Add(48*time.Hour - time.Microsecond)
		trip(t, db, 7, now)
		send(t, a, 1, false)
		if deleted, done, err := a.Sweep(t.Context()); deleted != 0 || !done || err != nil {
			t.Fatalf("a moment before: %d, %t, %v", deleted, done, err)
		}
		now = start.Add(48 * time.Hour)
		if deleted, done, err := New(db, Config{Now: a.config.Now}).Sweep(t.Context()); deleted != 0 || !done || err != nil {
			t.Fatalf("kept for ever: %d, %t, %v", deleted, done, err)
		}
		send(t, a, 0, false) // takes none along
		trip(t, db, 8, now)
		send(t, a, 1, false)
		if left := len(all(t, a)); left != old-passingRows+2 {
			t.Fatalf("%d are left, want %d", left, old-passingRows+2)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if deleted, done, err := a.Sweep(ended); deleted != 0 || done || err != nil {
			t.Errorf("without time: %d, %t, %v", deleted, done, err)
		}
		if deleted, done, err := a.Sweep(t.Context()); deleted != old-passingRows || !done || err != nil {
			t.Errorf("the sweep: %d, %t, %v", deleted, done, err)
		}
		if left := len(all(t, a)); left != 2 {
			t.Errorf("%d are left", left)
		}
	})
}

func TestAlertsWorkOnTheDatabasesOwnClock(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		r := &receiver{fail: func(Alert) error { return errors.New("no") }}
		a := New(opened.DB, Config{Sender: r, Retention: time.Hour})
		now := time.Now()
		trip(t, opened.DB, 7, now.Add(-time.Second))
		trip(t, opened.DB, 8, now.Add(-100*time.Hour))
		send(t, a, 0, true)
		if deleted, done, err := a.Sweep(t.Context()); deleted > 1 || !done || err != nil { // the send may have taken it
			t.Errorf("the sweep: %d, %t, %v", deleted, done, err)
		}
		got := all(t, a)
		if len(got) != 1 || got[0].Key != 7 || got[0].Next.Sub(now) < 50*time.Second || got[0].Next.Sub(now) > 2*time.Hour {
			t.Errorf("kept are %+v at %v", got, now)
		}
	})
}

func TestADatabaseThatFailsIsAnErrorOfTheStore(t *testing.T) {
	db := databases.File(t).DB
	r := &receiver{fail: func(Alert) error {
		_, err := db.Exec(`DROP TABLE alerts`)
		return err
	}}
	a := New(db, Config{Now: func() time.Time { return start }, Sender: r, Retention: time.Hour})
	trip(t, db, 7, start)
	if n, err := a.Send(t.Context()); n != 1 || !errors.Is(err, ErrStore) { // it can't be marked
		t.Errorf("send: %d, %v", n, err)
	}
	if n, err := a.Send(t.Context()); n != 0 || !errors.Is(err, ErrStore) {
		t.Errorf("send: %d, %v", n, err)
	}
	if _, err := a.Page(t.Context(), 5, 5); !errors.Is(err, ErrStore) {
		t.Errorf("page: %v", err)
	}
	if _, done, err := a.Sweep(t.Context()); done || !errors.Is(err, ErrStore) {
		t.Errorf("sweep: %t, %v", done, err)
	}
}

// What a refusal and a request in passing look for is found in as many steps however long the tables are.
func TestWhatIsLookedForIsFoundByAnIndex(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		for query, index := range map[string]string{
			`SELECT count(*) FROM rate_limit_audit WHERE action = 'refusal' AND policy IN ('failed-sign-ins', 'failed-sign-ins-device')
				AND key = 7 AND at_micros BETWEEN 1 AND 2`: "rate_limit_audit_alerting",
			`SELECT 1 FROM alerts WHERE key = 7 AND at_micros BETWEEN 1 AND 2 AND last_micros BETWEEN 1 AND 2`:      "alerts_key",
			`SELECT id FROM alerts WHERE next_micros IS NOT NULL AND next_micros <= 1 ORDER BY next_micros LIMIT 1`: "alerts_due",
		} {
			rows, err := opened.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query)
			if err != nil {
				t.Fatal(err)
			}
			var plan string
			for rows.Next() {
				var a, b, c any
				var step string
				if err := rows.Scan(&a, &b, &c, &step); err != nil {
					t.Fatal(err)
				}
				plan += step + "\n"
			}
			if err := rows.Close(); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(plan, index) || strings.Contains(plan, "SCAN") {
				t.Errorf("%s\nis done by %s", query, plan)
			}
		}
	})
}
