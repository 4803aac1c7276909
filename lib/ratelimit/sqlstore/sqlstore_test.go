package sqlstore_test

import (
	"database/sql"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/faults"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// patience is the deadline of tests: a busy machine must not fail a test of something else.
const patience = time.Minute

// open makes a store on a database of any kind.
func open(db *database.DB, config sqlstore.Config) *sqlstore.Store {
	config.Deadline = patience
	if db.HTTP != nil {
		return sqlstore.NewRemote(db.HTTP, config)
	}
	return sqlstore.New(db.DB, config)
}

func harness(t *testing.T, db *database.DB, now func() time.Time) storetest.Harness {
	return storetest.Harness{
		Store:  open(db, sqlstore.Config{Now: now, SweepEvery: 8}),
		Steady: open(db, sqlstore.Config{Now: now, SweepEvery: -1}),
		Audits: func() []ratelimit.Audit { return audits(t, db.DB) },
		Writes: func() int64 { return number(t, db.DB, "SELECT total_changes()") },
	}
}

func audits(t *testing.T, db *sql.DB) (all []ratelimit.Audit) {
	t.Helper()
	rows, err := db.Query("SELECT at_micros, policy, key, used, action, until_micros FROM rate_limit_audit ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var audit ratelimit.Audit
		if err := rows.Scan(&audit.AtMicros, &audit.Policy, &audit.Key, &audit.Used, &audit.Action, &audit.UntilMicros); err != nil {
			t.Fatal(err)
		}
		all = append(all, audit)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func number(t testing.TB, db *sql.DB, query string) (n int64) {
	t.Helper()
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStoreInAFile(t *testing.T) {
	storetest.Run(t, func(t *testing.T, now func() time.Time) storetest.Harness {
		return harness(t, databases.File(t), now)
	})
	storetest.RunWrites(t, func(t *testing.T, now func() time.Time) storetest.Harness {
		db := databases.File(t)
		db.SetMaxOpenConns(1) // total_changes() counts for one connection
		h := harness(t, db, now)
		h.Store = sqlstore.New(db.DB, sqlstore.Config{Deadline: patience, Now: now, SweepEvery: -1})
		return h
	})
}

func TestStoreOverHrana(t *testing.T) {
	storetest.Run(t, func(t *testing.T, now func() time.Time) storetest.Harness {
		h := harness(t, databases.Hrana(t), now)
		h.Streams = 5
		return h
	})
}

func TestStoreOnTurso(t *testing.T) {
	open := func(t *testing.T, now func() time.Time) storetest.Harness {
		h := harness(t, databases.Turso(t), now)
		h.Streams = 5
		return h
	}
	storetest.Run(t, open)
	storetest.RunWrites(t, open)
}

func TestStoreOnLibSQL(t *testing.T) {
	storetest.Run(t, func(t *testing.T, now func() time.Time) storetest.Harness {
		h := harness(t, databases.LibSQL(t), now)
		h.Streams = 5
		return h
	})
	// Issue 10, point 0: the server itself counts the rows that are written, and bills them.
	storetest.RunWrites(t, func(t *testing.T, now func() time.Time) storetest.Harness {
		proxy := faults.Start(t, turso.StartLibSQL(t).URL)
		h := harness(t, databases.Open(t, proxy.URL), now)
		// The first row of a new table counts as two.
		if _, err := h.Store.Decide(t.Context(), []ratelimit.Entry{entry(1<<62, "first", 1, time.Hour)}); err != nil {
			t.Fatal(err)
		}
		h.Writes = func() int64 { return proxy.Rows().Written }
		return h
	})
}

// Row B1; case A14: without an injected clock it is the database's that decides, in whole milliseconds.
func TestTheDatabasesClockDecides(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		store := open(db, sqlstore.Config{})
		before := number(t, db.DB, "SELECT unixepoch()")
		rows, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "a", 5, time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		after := number(t, db.DB, "SELECT unixepoch()")
		now := rows[0].NowMicros
		if now/1_000_000 < before || now/1_000_000 > after || now%1000 != 0 {
			t.Fatalf("decided at %d µs, the database's clock went from %d s to %d s", now, before, after)
		}
		if rows[0].State.HighMicros != now || rows[0].State.BehindMicros != 0 || !rows[0].Charged {
			t.Fatalf("got %+v", rows[0])
		}
	})
}

func entry(key int64, policy string, limit int64, window time.Duration) ratelimit.Entry {
	return ratelimit.Entry{
		Key:    key,
		Policy: ratelimit.Policy{Name: policy, Algorithm: ratelimit.FixedWindow, Limit: limit, Window: window},
		Cost:   1,
	}
}

// ours are the requests of the limiter's own client, from one on.
func ours(server *hrana.Server, from int) []hrana.Request {
	return slices.DeleteFunc(server.Requests()[from:], func(request hrana.Request) bool { return request.Header.Get("User-Agent") != "weir" })
}

// Row E3; cases B07, B20: a decision is one request that closes its stream. What decides is the writing statement, the read
// after it decides nothing.
func TestADecisionIsOneRequestOfOneDecidingStatementAndOneRead(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := databases.Open(t, server.URL)
	store := open(db, sqlstore.Config{SweepEvery: -1})
	entries := []ratelimit.Entry{entry(1, "a", 2, time.Hour), entry(2, "b", 5, time.Hour), entry(3, "c", 9, time.Hour)}
	for round := range 4 { // two admitted, the first refusal, a later one
		before := len(server.Requests())
		if _, err := store.Decide(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
		requests := ours(server, before)
		if len(requests) != 1 {
			t.Fatalf("round %d took %d requests, want 1", round, len(requests))
		}
		if steps := requests[0].Steps; steps[len(steps)-1].Kind != "close" {
			t.Errorf("round %d leaves its stream open", round)
		}
		statements := requests[0].Statements()
		if len(statements) != 2 || !strings.Contains(statements[0].SQL, "INSERT INTO rate_limits") || !strings.HasPrefix(statements[1].SQL, "SELECT") {
			t.Errorf("round %d: unexpected statements %v", round, statements)
		}
	}
	before := len(server.Requests())
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(int64(i), "at-once", 2, time.Hour)}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(ours(server, before)); n != 32 {
		t.Errorf("%d requests for 32 decisions at once", n)
	}
}

// Case B04: 30 decisions at once over a slow network are 30 requests under way at once, and none waits for another one's: held back
// until all of them have arrived, they admit exactly the limit, in one round trip each.
func TestDecisionsOverASlowNetworkTakeOneRoundTripEach(t *testing.T) {
	const callers, limit = 30, 10
	var arrived atomic.Int64
	all := make(chan struct{})
	server := hrana.Start(t, hrana.Config{Hook: func(_ int, request hrana.Request) hrana.Action {
		if request.Header.Get("User-Agent") != "weir" { // the migration's driver
			return hrana.Action{}
		}
		if arrived.Add(1) == callers {
			close(all)
		}
		return hrana.Action{Hold: all}
	}})
	store := open(databases.Open(t, server.URL), sqlstore.Config{SweepEvery: -1})
	var admitted atomic.Int64
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			rows, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "slow", limit, time.Hour)})
			if err != nil {
				t.Error(err)
			} else if rows[0].Charged {
				admitted.Add(1)
			}
		})
	}
	group.Wait()
	if admitted.Load() != limit || arrived.Load() != callers {
		t.Errorf("%d of %d were admitted in %d requests, want %d in %d", admitted.Load(), callers, arrived.Load(), limit, callers)
	}
}

// Case A22: a sweep rides along in the request of a decision, and does nothing when that wrote nothing, or when it fails itself.
func TestASweepRidesAlongInADecisionsRequest(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := databases.Open(t, server.URL)
	clock := storetest.NewClock()
	store := open(db, sqlstore.Config{SweepEvery: 1, Now: clock.Now})
	decide := func(key int64) {
		t.Helper()
		if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(key, "a", 1, time.Minute)}); err != nil {
			t.Fatal(err)
		}
	}
	const rows = "SELECT count(*) FROM rate_limits"
	for key := range int64(50) {
		decide(1<<62 + key)
	}
	clock.At(time.Minute)
	decide(1)
	for key := range int64(20) { // each begins at a random key, half of them before those
		before := len(server.Requests())
		decide(2 + key)
		if n := len(ours(server, before)); n != 1 {
			t.Fatalf("%d requests", n)
		}
	}
	if n := number(t, db.DB, rows); n != 21 {
		t.Fatalf("%d rows are left of 21 live and 50 expired ones", n)
	}
	decide(1) // the first refusal is written
	clock.At(2*time.Minute - time.Millisecond)
	if _, err := db.Exec("UPDATE rate_limits SET expires_micros = 0 WHERE key <> 1"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		decide(1) // refusals that write nothing
	}
	if n := number(t, db.DB, rows); n != 21 {
		t.Fatalf("refusals have swept %d rows", 21-n)
	}
	if _, err := db.Exec("CREATE TRIGGER no BEFORE DELETE ON rate_limits BEGIN SELECT RAISE(ABORT, 'no'); END"); err != nil {
		t.Fatal(err)
	}
	for key := range int64(20) {
		decide(100 + key)
	}
}

// Cases B03, B08: a statement whose audit can't be written leaves no trace of itself.
func TestAMarkWithoutItsAuditRowIsNotKept(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		store := open(db, sqlstore.Config{})
		full, attempts := entry(1, "full", 1, time.Hour), entry(2, "attempts", 9, time.Hour)
		attempts.Policy.Count = ratelimit.EveryAttempt
		if _, err := store.Decide(t.Context(), []ratelimit.Entry{full, attempts}); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("ALTER TABLE rate_limit_audit RENAME COLUMN used TO unused"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("DROP TRIGGER rate_limits_first_refusal"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(`CREATE TRIGGER refuse AFTER UPDATE OF refused_micros ON rate_limits
				WHEN NEW.refused_micros <> OLD.refused_micros
				BEGIN INSERT INTO rate_limit_audit (at_micros, policy, key, unused, action, until_micros) VALUES (NULL, NEW.policy, NEW.key, 1, '', 0); END`); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if _, err := store.Decide(t.Context(), []ratelimit.Entry{full, attempts}); err == nil {
				t.Fatal("the audit row can't be written, and the decision succeeded")
			}
		}
		if n := number(t, db.DB, "SELECT sum(refused_micros) FROM rate_limits"); n != 0 {
			t.Error("the mark stayed without its audit row")
		}
		if n := number(t, db.DB, "SELECT used FROM rate_limits WHERE key = 2"); n != 1 {
			t.Errorf("the attempts count %d, want the 1 from before: a failed decision charged", n)
		}
	})
}

// Case B12: the only column that may be NULL is one that nothing reads yet.
func TestANullInEveryColumnThatAllowsItChangesNothing(t *testing.T) {
	db := databases.File(t)
	store := sqlstore.New(db.DB, sqlstore.Config{Deadline: patience})
	if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "a", 1, time.Hour)}); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(`SELECT name FROM pragma_table_info('rate_limits') WHERE "notnull" = 0 AND pk = 0`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var nullable []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		nullable = append(nullable, name)
	}
	if !reflect.DeepEqual(nullable, []string{"log", "place", "vacancy"}) {
		t.Fatalf("nullable columns: %v", nullable)
	}
	if _, err := db.Exec("UPDATE rate_limits SET log = NULL, place = NULL, vacancy = NULL"); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1, "a", 1, time.Hour)}); err != nil || got[0].Charged {
		t.Fatalf("got %+v, %v", got, err)
	}
}

// Cases A13, A20: rows that no version of Weir writes neither stop a decision nor admit more than a limit.
func TestOddRowsNeitherStopADecisionNorOpenAHole(t *testing.T) {
	const huge = 1<<63 - 1
	now := time.Now().UnixMicro()
	databases.Each(t, func(t *testing.T, db *database.DB) {
		for i, row := range [][5]int64{ // algorithm, high, behind, used, refused
			{1, now, 0, huge, 0}, {9, now, 0, 3, 0}, {1, now, 0, -5, 0}, {1, huge, 0, 3, huge}, {1, 0, 0, 0, 0}, {1, now, now, 3, now},
			{1, now + 1e15, 1e15, 3, 0},
		} {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				key := int64(100 + i)
				_, err := db.Exec(`INSERT INTO rate_limits (key, policy, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, charged, refused_micros, override, until_micros, said_micros, expires_micros)
					VALUES (?, 'a', ?, 1, 1, ?, ?, 0, 0, 1, ?, 0, 0, ?, 0, 0, 0, 0)`, key, row[0], row[1], row[2], row[3], row[4])
				if err != nil {
					t.Fatal(err)
				}
				store := open(db, sqlstore.Config{})
				admitted := 0
				for range 12 {
					rows, err := store.Decide(t.Context(), []ratelimit.Entry{entry(key, "a", 5, 10*365*24*time.Hour)})
					if err != nil {
						t.Fatal(err)
					}
					if rows[0].Charged {
						admitted++
					}
				}
				if admitted > 5 {
					t.Fatalf("%d admitted by a limit of 5", admitted)
				}
			})
		}
	})
}

// Case B15: each placeholder has its argument, and none is numbered.
func TestEveryStatementHasAsManyPlaceholdersAsArguments(t *testing.T) {
	db := databases.File(t)
	for statement, arguments := range sqlstore.Statements() {
		if got := len(regexp.MustCompile(`\?`).FindAllString(statement, -1)); got != arguments {
			t.Errorf("%d placeholders, %d arguments: %s", got, arguments, statement)
		}
		if regexp.MustCompile(`\?[0-9]`).MatchString(statement) {
			t.Errorf("a numbered placeholder: %s", statement)
		}
		prepared, err := db.Prepare(statement)
		if err != nil {
			t.Errorf("%v: %s", err, statement)
			continue
		}
		prepared.Close()
	}
}

// Design: no index besides the primary key, because each one would double what a decision writes.
func TestTheCountersHaveNoSecondIndex(t *testing.T) {
	db := databases.File(t)
	if n := number(t, db.DB, "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND tbl_name = 'rate_limits'"); n != 0 {
		t.Fatalf("%d indexes", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, limits := range []int{1, 2, 3} {
		b.Run(fmt.Sprintf("limits=%d", limits), func(b *testing.B) {
			store := sqlstore.New(databases.File(b).DB, sqlstore.Config{})
			var charged, key int64
			for b.Loop() {
				key++
				var entries []ratelimit.Entry
				for i := range limits {
					entries = append(entries, entry(int64(i)<<32|key%1000, fmt.Sprintf("p%d", i), 1_000_000, time.Hour))
				}
				rows, err := store.Decide(b.Context(), entries)
				if err != nil {
					b.Fatal(err)
				}
				for _, row := range rows {
					if row.Charged {
						charged++
					}
				}
			}
			if charged != key*int64(limits) {
				b.Fatalf("%d of %d charged: the benchmark measures refusals", charged, key*int64(limits))
			}
		})
	}
	b.Run("refused", func(b *testing.B) {
		store := sqlstore.New(databases.File(b).DB, sqlstore.Config{})
		var admitted int
		for b.Loop() {
			rows, err := store.Decide(b.Context(), []ratelimit.Entry{entry(1, "p", 1, 100*365*24*time.Hour)})
			if err != nil {
				b.Fatal(err)
			}
			if rows[0].Charged {
				admitted++
			}
		}
		if admitted != 1 {
			b.Fatalf("%d admitted", admitted)
		}
	})
	b.Run("plain-upsert", func(b *testing.B) {
		db := databases.File(b)
		insert, err := db.Prepare(`INSERT INTO rate_limits (key, policy, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, charged, refused_micros, override, until_micros, said_micros, expires_micros)
			VALUES (?, 'p', 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1) ON CONFLICT (key) DO UPDATE SET used = used + 1`)
		if err != nil {
			b.Fatal(err)
		}
		var key int64
		for b.Loop() {
			key++
			if _, err := insert.Exec(key % 1000); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDecideBesideUsedUnits decides over all five algorithms at once, a log among them, where so many units of the other
// limits are used. The figures of one database should be alike.
func BenchmarkDecideBesideUsedUnits(b *testing.B) {
	for _, kind := range []struct {
		name string
		open func(testing.TB) *database.DB
	}{{"file", databases.File}, {"turso", databases.Turso}, {"libsql", databases.LibSQL}} {
		b.Run(kind.name, func(b *testing.B) {
			db := kind.open(b)
			limiter, err := ratelimit.New(open(db, sqlstore.Config{SweepEvery: -1}), storetest.Secret, ratelimit.Config{Deadline: patience})
			if err != nil {
				b.Fatal(err)
			}
			for _, used := range []int64{0, 1_000, 1_000_000, storetest.MaxUsed} {
				b.Run(fmt.Sprintf("used=%d", used), func(b *testing.B) {
					charges, _ := storetest.BesideUsed(fmt.Sprint(used))
					for i := range charges {
						charges[i].Policy.Window = 5 * 24 * time.Hour // so that what is used stays
						if charges[i].Cost = min(used, charges[i].Policy.Limit-1); used > 0 && charges[i].Policy.Algorithm != ratelimit.SlidingLog {
							if _, err := limiter.Decide(b.Context(), charges[i]); err != nil {
								b.Fatal(err)
							}
						}
						charges[i].Cost = 1
					}
					admitted, asked := 0, 0
					for b.Loop() {
						asked++
						for i := range charges {
							if charges[i].Policy.Algorithm == ratelimit.SlidingLog {
								charges[i].Subject = fmt.Sprint(asked) // or it would be full after 1,000
							}
						}
						decision, err := limiter.Decide(b.Context(), charges...)
						if err != nil {
							b.Fatal(err)
						}
						if decision.Allowed {
							admitted++
						}
					}
					if admitted != asked {
						b.Fatalf("%d of %d admitted: the benchmark measures refusals", admitted, asked)
					}
				})
			}
		})
	}
}

// cases A21, A22: what has expired goes in passing, and what could still refuse stays.
func TestDecisionsSweepInPassing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now, SweepEvery: 1})
		decide := func(entry ratelimit.Entry) ratelimit.Row {
			t.Helper()
			rows, err := store.Decide(t.Context(), []ratelimit.Entry{entry})
			if err != nil {
				t.Fatal(err)
			}
			return rows[0]
		}
		for key := range int64(40) {
			decide(entry(key<<57, "minute", 1, time.Minute))
			decide(entry(key<<57+1, "day", 1, 24*time.Hour))
		}
		clock.At(2 * time.Hour)
		for range 60 { // each sweeps from a random key on; that none begins below the 10th row has odds of 1 in 25,000
			decide(entry(1<<62+12345, "often", 1000, time.Hour))
		}
		if n := number(t, db.DB, "SELECT count(*) FROM rate_limits WHERE policy = 'minute'"); n > 10 {
			t.Errorf("%d of 40 expired rows are left", n)
		}
		for key := range int64(40) {
			if decide(entry(key<<57+1, "day", 1, 24*time.Hour)).Charged {
				t.Fatalf("the day's limit of key %d was forgotten", key)
			}
		}
	})
}

// case A22: a sweep that fails changes no answer.
func TestASweepThatFailsChangesNoAnswer(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		if _, err := db.Exec("CREATE TRIGGER no_sweep BEFORE DELETE ON rate_limits BEGIN SELECT RAISE(ABORT, 'no'); END"); err != nil {
			t.Fatal(err)
		}
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now, SweepEvery: 1})
		for i := range int64(20) {
			clock.At(time.Duration(i) * time.Hour)
			rows, err := store.Decide(t.Context(), []ratelimit.Entry{entry(i<<58, "minute", 1, time.Minute)})
			if err != nil || !rows[0].Charged {
				t.Fatalf("decision %d: %+v, %v", i, rows, err)
			}
		}
		if n := number(t, db.DB, "SELECT count(*) FROM rate_limits"); n != 20 {
			t.Fatalf("%d rows: the sweep did not fail", n)
		}
	})
}

// Issue 10, point 0: what a decision writes by the server's own count, which is what is billed, for
// each algorithm: a row for each limit, then the mark and the audit row, then nothing. A refusal
// that writes nothing reads the same each time.
func TestWhatADecisionWritesByTheServersOwnCount(t *testing.T) {
	proxy := faults.Start(t, turso.StartLibSQL(t).URL)
	store := open(databases.Open(t, proxy.URL), sqlstore.Config{SweepEvery: -1, Now: storetest.NewClock().Now})
	if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(1<<62, "first", 1, time.Hour)}); err != nil {
		t.Fatal(err)
	}
	algorithms := []ratelimit.Algorithm{
		ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.SlidingLog, ratelimit.TokenBucket, ratelimit.LeakyBucket,
	}
	for _, algorithm := range algorithms {
		for limits := range int64(4) {
			var entries []ratelimit.Entry
			for i := range limits + 1 {
				e := entry(int64(algorithm)*100+limits*10+i, "p", 1+9*min(i, 1), 24*time.Hour)
				switch e.Policy.Algorithm = algorithm; algorithm {
				case ratelimit.TokenBucket:
					e.Policy.Burst = e.Policy.Limit
				case ratelimit.LeakyBucket:
					e.Policy.Queue = e.Policy.Limit - 1
				}
				entries = append(entries, e)
			}
			var read int64
			for i, want := range []int64{limits + 1, 2, 0, 0, 0, 0} {
				before := proxy.Rows()
				if _, err := store.Decide(t.Context(), entries); err != nil {
					t.Fatal(err)
				}
				after := proxy.Rows()
				if n := after.Written - before.Written; n != want {
					t.Errorf("%v, %d limits, decision %d: %d rows written, want %d", algorithm, limits+1, i+1, n, want)
				}
				if n := after.Read - before.Read; i > 2 && n != read {
					t.Errorf("%v, %d limits, decision %d: %d rows read, want %d", algorithm, limits+1, i+1, n, read)
				} else {
					read = n
				}
			}
		}
	}
}

// Issue 10, points 0 and 8: of sixteen clients of one process, on the real libSQL server, exactly
// the limit passes, and none hears that the server was busy.
func TestSixteenClientsOfABusyServerAreAllAnswered(t *testing.T) {
	const clients, each, limit = 16, 60, 100
	db := databases.LibSQL(t)
	store := open(db, sqlstore.Config{})
	var admitted atomic.Int64
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for i := range each {
				entries := []ratelimit.Entry{entry(1, "shared", limit, ratelimit.MaxWindow), entry(int64(100+client), "own", each, ratelimit.MaxWindow)}
				entries[1].Policy.Count = ratelimit.EveryAttempt
				rows, err := store.Decide(t.Context(), entries)
				switch {
				case err != nil:
					t.Errorf("client %d, decision %d: %v", client, i, err)
				case rows[0].Charged && rows[1].Charged:
					admitted.Add(1)
				}
			}
		})
	}
	group.Wait()
	if n := admitted.Load(); n != limit {
		t.Errorf("%d admitted, want %d", n, limit)
	}
	// What was asked again was charged once.
	if n := number(t, db.DB, "SELECT sum(used) FROM rate_limits WHERE key >= 100"); n != clients*each {
		t.Errorf("%d attempts counted, want %d", n, clients*each)
	}
}
