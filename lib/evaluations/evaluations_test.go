//go:build unix

package evaluations

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

	"github.com/weirlimits/weir/lib/ailog"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// Accounts of the tests.
const (
	member     = 1
	demoMember = 2
	admin      = 11
	otherAdmin = 12
	demoAdmin  = 13
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// on makes an Evaluations whose clock shows *now, and the accounts of the tests.
func on(t *testing.T, db *sql.DB, now *time.Time) *Evaluations {
	t.Helper()
	for _, id := range []int{member, demoMember, admin, otherAdmin, demoAdmin} {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO accounts (id, username, role, created_micros) VALUES (?, ?, 'member', 0)`, id, fmt.Sprint("account-", id)); err != nil {
			t.Fatal(err)
		}
	}
	return New(db, Config{Now: func() time.Time { return *now }})
}

// entry adds an entry to the log and returns its ID.
func entry(t *testing.T, db *sql.DB, account int64, model string) int64 {
	t.Helper()
	e, err := ailog.New(db, ailog.Config{}).Add(t.Context(), ailog.Author{Account: account, Demo: account == demoMember}, ailog.Text{Model: model, Prompt: "p"})
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}

func mustScore(t *testing.T, e *Evaluations, account, entry, score int64) int64 {
	t.Helper()
	id, err := e.Score(t.Context(), Evaluator{account, account == demoAdmin}, Evaluation{Entry: entry, Score: score})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func mustResults(t *testing.T, e *Evaluations, demo bool) []Result {
	t.Helper()
	all, more, err := e.Results(t.Context(), demo)
	if err != nil || more {
		t.Fatalf("more %t, %v", more, err)
	}
	return all
}

func count(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestResultsAreCountedByModel(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		e := on(t, db, &start)
		if all := mustResults(t, e, false); len(all) != 0 {
			t.Errorf("of nothing: %+v", all)
		}
		first, second := entry(t, db, member, "model-b"), entry(t, db, member, "model-b")
		third, fourth := entry(t, db, admin, "model-a"), entry(t, db, member, "Model-c")
		entry(t, db, member, "model-without-a-score")
		mustScore(t, e, admin, first, 5)
		mustScore(t, e, otherAdmin, first, 5)
		mustScore(t, e, admin, second, 1)
		mustScore(t, e, admin, third, 3)
		mustScore(t, e, admin, fourth, 2)
		mustScore(t, e, otherAdmin, fourth, 4)
		want := []Result{
			{"Model-c", 2, 3, [5]int64{0, 1, 0, 1, 0}},
			{"model-a", 1, 3, [5]int64{0, 0, 1, 0, 0}},
			{"model-b", 3, 11.0 / 3, [5]int64{1, 0, 0, 0, 2}},
		}
		if all := mustResults(t, e, false); !slices.Equal(all, want) {
			t.Errorf("got %+v, want %+v", all, want)
		}
	})
}

func TestAnotherScoreOfTheSameAdminTakesTheFirstOnesPlace(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db, now := opened.DB, start
		e := on(t, db, &now)
		id := entry(t, db, member, "m")
		first, err := e.Score(t.Context(), Evaluator{Account: admin}, Evaluation{id, 1, "a note"})
		if err != nil {
			t.Fatal(err)
		}
		now = start.Add(time.Hour)
		if second := mustScore(t, e, admin, id, 4); second != first {
			t.Errorf("the ID was %d, and is %d", first, second)
		}
		var score, created int64
		var note sql.NullString
		if err := db.QueryRowContext(t.Context(), `SELECT score, note, created_micros FROM evaluations`).Scan(&score, &note, &created); err != nil || score != 4 || note.Valid || created != now.UnixMicro() {
			t.Errorf("left are the score %d, the note %v and the time %d, %v", score, note, created, err)
		}
		if third := mustScore(t, e, otherAdmin, id, 2); third == first {
			t.Errorf("another admin's has the same ID %d", third)
		}
		if want := []Result{{"m", 2, 3, [5]int64{0, 1, 0, 1, 0}}}; !slices.Equal(mustResults(t, e, false), want) {
			t.Errorf("got %+v, want %+v", mustResults(t, e, false), want)
		}
	})
}

func TestScoresAtOnceAreOneForEachAdminAndEntry(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		e := New(db, Config{}) // on the database's own clock
		on(t, db, &start)
		id := entry(t, db, member, "m")
		var group sync.WaitGroup
		for i := range int64(20) {
			group.Go(func() {
				if _, err := e.Score(t.Context(), Evaluator{Account: []int64{admin, otherAdmin}[i%2]}, Evaluation{Entry: id, Score: 1 + i%5}); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if all := mustResults(t, e, false); len(all) != 1 || all[0].Count != 2 {
			t.Errorf("got %+v, want 2 scores", all)
		}
	})
}

func TestTheDemoScoresItsOwnEntriesOnly(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		e := on(t, db, &start)
		theirs, demos := entry(t, db, member, "m"), entry(t, db, demoMember, "m")
		mustScore(t, e, admin, theirs, 5)
		mustScore(t, e, demoAdmin, demos, 1)
		for by, id := range map[Evaluator]int64{{admin, false}: demos, {demoAdmin, true}: theirs} {
			if _, err := e.Score(t.Context(), by, Evaluation{Entry: id, Score: 3}); !errors.Is(err, ErrEntry) {
				t.Errorf("%+v: %v, want ErrEntry", by, err)
			}
		}
		for demo, want := range map[bool]Result{false: {"m", 1, 5, [5]int64{0, 0, 0, 0, 1}}, true: {"m", 1, 1, [5]int64{1, 0, 0, 0, 0}}} {
			if all := mustResults(t, e, demo); !slices.Equal(all, []Result{want}) {
				t.Errorf("demo %t: got %+v, want %+v", demo, all, want)
			}
		}
	})
}

func TestAnEvaluationGoesWithItsEntryAndWithEitherAccount(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		e := on(t, db, &start)
		gone, left := entry(t, db, member, "m"), entry(t, db, otherAdmin, "m")
		for _, by := range []int64{admin, otherAdmin} {
			mustScore(t, e, by, gone, 5)
			mustScore(t, e, by, left, 1)
		}
		for _, step := range []struct {
			do          string
			entries     int
			evaluations int
		}{
			{`DELETE FROM accounts WHERE id = 11`, 2, 2}, // the admin's own scores
			{`DELETE FROM accounts WHERE id = 1`, 1, 1},  // the member's entry and the other admin's score of it
			{`DELETE FROM ai_log_entries`, 0, 0},
		} {
			if _, err := db.ExecContext(t.Context(), step.do); err != nil {
				t.Fatal(err)
			}
			if entries, evaluations := count(t, db, "ai_log_entries"), count(t, db, "evaluations"); entries != step.entries || evaluations != step.evaluations {
				t.Errorf("%s leaves %d entries and %d evaluations, want %d and %d", step.do, entries, evaluations, step.entries, step.evaluations)
			}
		}
		if _, err := e.Score(t.Context(), Evaluator{Account: otherAdmin}, Evaluation{Entry: left, Score: 1}); !errors.Is(err, ErrEntry) {
			t.Errorf("an entry that is gone: %v, want ErrEntry", err)
		}
		again := entry(t, db, otherAdmin, "m")
		if _, err := e.Score(t.Context(), Evaluator{Account: admin}, Evaluation{Entry: again, Score: 1}); !errors.Is(err, ErrEntry) || again == left {
			t.Errorf("an admin that is gone: %v, want ErrEntry", err)
		}
	})
}

// The oldest entry is taken away by a trigger, which fires another one.
func TestAnEvaluationGoesWithTheOldestEntry(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		e := on(t, db, &start)
		oldest, next := entry(t, db, member, "old"), entry(t, db, member, "new")
		mustScore(t, e, admin, oldest, 5)
		mustScore(t, e, admin, next, 5)
		if _, err := db.ExecContext(t.Context(), `UPDATE ai_log_entries SET number = ? WHERE id = ?`, ailog.MaxEntries, next); err != nil {
			t.Fatal(err)
		}
		entry(t, db, member, "newest")
		if all := mustResults(t, e, false); len(all) != 1 || all[0].Model != "new" || count(t, db, "evaluations") != 1 {
			t.Errorf("left are %+v and %d evaluations", all, count(t, db, "evaluations"))
		}
	})
}

func TestAnEvaluationOutOfBoundsIsRefused(t *testing.T) {
	e := New(nil, Config{}) // reaching the database would panic
	for _, c := range []struct {
		given Evaluation
		want  error
	}{
		{Evaluation{1, 0, ""}, ErrScore},
		{Evaluation{1, -3, ""}, ErrScore},
		{Evaluation{1, 6, ""}, ErrScore},
		{Evaluation{1, 3, strings.Repeat("s", MaxNoteBytes+1)}, ErrNote},
		{Evaluation{1, 3, "sec\x00ret"}, ErrNote},
		{Evaluation{1, 3, "secret\xff"}, ErrNote},
	} {
		if _, err := e.Score(t.Context(), Evaluator{Account: admin}, c.given); !errors.Is(err, c.want) || strings.Contains(err.Error(), "sec") {
			t.Errorf("%.50v: %v, want %v", c.given, err, c.want)
		}
	}
}

func TestTheLongestNoteIsKept(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		e := on(t, db, &start)
		note := strings.Repeat("é", MaxNoteBytes/2)
		if _, err := e.Score(t.Context(), Evaluator{Account: admin}, Evaluation{entry(t, db, member, "m"), 5, note}); err != nil {
			t.Fatal(err)
		}
		var kept string
		if err := db.QueryRowContext(t.Context(), `SELECT note FROM evaluations`).Scan(&kept); err != nil || kept != note {
			t.Errorf("kept are %d bytes, %v", len(kept), err)
		}
	})
}

func TestResultsEndAtAThousandModelsAndSaySo(t *testing.T) {
	db := databases.File(t).DB
	e := on(t, db, &start)
	add := func(from, to int) {
		t.Helper()
		for _, statement := range []string{
			`INSERT INTO ai_log_entries (account, number, demo, created_micros, tokens, bytes, model, prompt, response)
			 SELECT 1, value, 0, 0, 0, 0, printf('%04d', value), 'p', '' FROM ` + numbers,
			`INSERT INTO evaluations (entry, account, score, created_micros)
			 SELECT id, 11, 3, 0 FROM ai_log_entries WHERE number BETWEEN ? AND ?`,
		} {
			if _, err := db.ExecContext(t.Context(), statement, from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(1, MaxResults)
	if all := mustResults(t, e, false); len(all) != MaxResults {
		t.Errorf("%d results", len(all))
	}
	add(MaxResults+1, MaxResults+1)
	all, more, err := e.Results(t.Context(), false)
	if err != nil || !more || len(all) != MaxResults || all[MaxResults-1].Model != "1000" {
		t.Errorf("%d results, more %t, %v", len(all), more, err)
	}
}

// numbers stands for a table of the numbers from the first argument to the second.
const numbers = `(WITH RECURSIVE n(value) AS (VALUES (?) UNION ALL SELECT value + 1 FROM n WHERE value < ?) SELECT value FROM n)`

func TestTheDatabasesClockDatesAnEvaluation(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		on(t, db, &start)
		before := time.Now()
		mustScore(t, New(db, Config{}), admin, entry(t, db, member, "m"), 3)
		after := time.Now()
		var micros int64
		err := db.QueryRowContext(t.Context(), `SELECT created_micros FROM evaluations`).Scan(&micros)
		// The server runs on this machine, and its clock has whole milliseconds.
		if at := time.UnixMicro(micros); err != nil || at.Before(before.Add(-2*time.Millisecond)) || at.After(after.Add(2*time.Millisecond)) {
			t.Errorf("scored at %v, %v", at, err)
		}
	})
}

func TestAStoreThatFailsIsNotARefusal(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		e := on(t, opened.DB, &start)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, scoreErr := e.Score(gone, Evaluator{Account: admin}, Evaluation{Entry: 1, Score: 3})
		_, _, resultsErr := e.Results(gone, false)
		for _, err := range []error{scoreErr, resultsErr} {
			if !errors.Is(err, ErrStore) || !errors.Is(err, context.Canceled) || errors.Is(err, ErrEntry) {
				t.Errorf("%v: want ErrStore and the cause", err)
			}
		}
	})
}
