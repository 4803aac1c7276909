//go:build unix

package codes

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// start is when the tests' clock starts: with microseconds, as a database's clock never has, to see that none are lost.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// poolAt makes a pool of n codes whose clock shows what *now says.
func poolAt(t *testing.T, db *sql.DB, now *time.Time, n int) *Pool {
	t.Helper()
	p := New(db, Config{Now: func() time.Time { return *now }})
	if err := p.Fill(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	return p
}

func mustBorrow(t *testing.T, p *Pool) Code {
	t.Helper()
	code, _, err := p.Borrow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func TestABorrowedCodeIsHeldForThirtyMinutesAndThenFree(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		p := poolAt(t, db, &now, 1)
		code, until, err := p.Borrow(t.Context())
		if err != nil || !until.Equal(start.Add(30*time.Minute)) {
			t.Fatalf("borrow: until %v, %v", until, err)
		}
		for _, step := range []struct {
			at      time.Duration
			state   State
			expires time.Time
			err     error // of another Borrow
		}{
			{at: 0, state: Borrowed, expires: until, err: ErrNoneLeft},
			{at: 30*time.Minute - time.Microsecond, state: Borrowed, expires: until, err: ErrNoneLeft},
			{at: 30 * time.Minute, state: Free, err: nil},
		} {
			now = start.Add(step.at)
			state, expires, err := p.Lookup(t.Context(), code)
			if state != step.state || !expires.Equal(step.expires) || err != nil {
				t.Errorf("at %v: %v, %v, %v", step.at, state, expires, err)
			}
			if _, _, err := p.Borrow(t.Context()); !errors.Is(err, step.err) {
				t.Errorf("at %v: another borrow: %v, want %v", step.at, err, step.err)
			}
		}
	})
}

func TestTheCodeThatHasBeenFreeLongestIsLentFirst(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		p := poolAt(t, db, &now, 1)
		first := mustBorrow(t, p) // free again at 30 minutes
		now = start.Add(10 * time.Minute)
		poolAt(t, db, &now, 2)
		second := mustBorrow(t, p) // made at 10 minutes, free again at 40
		now = start.Add(50 * time.Minute)
		poolAt(t, db, &now, 3) // the third is made at 50 minutes
		if got := mustBorrow(t, p); got != first {
			t.Errorf("lent %v, want %v", got, first)
		}
		if got := mustBorrow(t, p); got != second {
			t.Errorf("lent %v, want %v", got, second)
		}
		if got := mustBorrow(t, p); got == first || got == second {
			t.Errorf("lent %v twice", got)
		}
	})
}

func TestAUsedCodeIsNeverLent(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		p := poolAt(t, db, &now, 1)
		code := mustBorrow(t, p)
		if _, err := db.ExecContext(t.Context(), `UPDATE invite_codes SET used_micros = 1`); err != nil {
			t.Fatal(err)
		}
		now = start.Add(time.Hour)
		if state, expires, err := p.Lookup(t.Context(), code); state != Used || !expires.IsZero() || err != nil {
			t.Errorf("look-up: %v, %v, %v", state, expires, err)
		}
		if _, _, err := p.Borrow(t.Context()); err != ErrNoneLeft {
			t.Errorf("borrow: %v, want ErrNoneLeft", err)
		}
		if err := p.Fill(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if again := mustBorrow(t, p); again == code {
			t.Errorf("lent the used code %v", code)
		}
	})
}

func TestFiftyBorrowersOfTenCodesGetTenDifferentOnes(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		p := New(db, Config{}) // on the database's own clock
		if err := p.Fill(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		lent, errs := make([]Code, 50), make([]error, 50)
		var group sync.WaitGroup
		for i := range lent {
			group.Go(func() { lent[i], _, errs[i] = p.Borrow(t.Context()) })
		}
		group.Wait()
		distinct, refused := map[Code]bool{}, 0
		for i, err := range errs {
			switch {
			case err == nil:
				distinct[lent[i]] = true
			case err == ErrNoneLeft:
				refused++
			default:
				t.Error(err)
			}
		}
		if len(distinct) != 10 || refused != 40 {
			t.Errorf("%d different codes and %d refusals, want 10 and 40", len(distinct), refused)
		}
	})
}

func TestLendingFindsItsCodeThroughTheIndexOfUnusedOnes(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+borrow, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var plan []string
		for rows.Next() {
			var id, parent, unused any
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, step)
		}
		text := strings.Join(plan, "\n")
		if !strings.Contains(text, "INDEX invite_codes_unused (free_from_micros<") || strings.Contains(text, "SCAN invite_codes") {
			t.Errorf("the plan is\n%s", text)
		}
	})
}

func TestTheDatabasesClockEndsABorrowing(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		p := New(db, Config{})
		if err := p.Fill(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		code, until, err := p.Borrow(t.Context())
		after := time.Now()
		// The server runs on this machine, and its clock has whole milliseconds.
		if earliest := before.Add(Hold - 2*time.Millisecond); err != nil || until.Before(earliest) || until.After(after.Add(Hold+2*time.Millisecond)) {
			t.Errorf("borrowed at %v until %v, %v", before, until, err)
		}
		if state, expires, err := p.Lookup(t.Context(), code); state != Borrowed || !expires.Equal(until) || err != nil {
			t.Errorf("look-up: %v, %v, %v", state, expires, err)
		}
	})
}

func TestFillTopsThePoolUpOnceHoweverManyFillIt(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		p := poolAt(t, db, &now, 3)
		mustBorrow(t, p) // a borrowed code is not used
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if err := p.Fill(t.Context(), 20); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := count(t, db); n != 20 {
			t.Errorf("%d codes, want 20", n)
		}
		poolAt(t, db, &now, 5)
		if n := count(t, db); n != 20 {
			t.Errorf("%d codes after a smaller fill, want 20", n)
		}
	})
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM invite_codes`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFillRefusesSizesOutOfBounds(t *testing.T) {
	p := New(nil, Config{}) // reaching the database would panic
	for _, n := range []int{-1, MaxPool + 1} {
		if err := p.Fill(t.Context(), n); !errors.Is(err, ErrFill) {
			t.Errorf("%d: %v, want ErrFill", n, err)
		}
	}
}

func TestAnUnknownCodeIsUnknown(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		p := poolAt(t, db, &now, 1)
		for _, code := range []Code{"", "WEIR-0000-0000-0000", "' OR 1=1 --"} {
			if state, _, err := p.Lookup(t.Context(), code); err != ErrUnknown {
				t.Errorf("%q: %v, %v, want ErrUnknown", code, state, err)
			}
		}
	})
}

func TestAStoreThatFailsIsNotARefusal(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		p := poolAt(t, db, &now, 1)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, borrowErr := p.Borrow(gone)
		_, _, lookupErr := p.Lookup(gone, "WEIR-0000-0000-0000")
		_, _, reserveErr := p.Reserve(gone)
		for _, err := range []error{borrowErr, lookupErr, reserveErr, p.Withdraw(gone, "WEIR-0000-0000-0000"), p.Fill(gone, 2)} {
			if !errors.Is(err, ErrStore) || !errors.Is(err, context.Canceled) {
				t.Errorf("%v: want ErrStore and the cause", err)
			}
			if errors.Is(err, ErrNoneLeft) || errors.Is(err, ErrUnknown) {
				t.Errorf("%v looks like a refusal", err)
			}
		}
	})
}

func TestAReservedCodeIsItsRecipientsForSevenDaysAndThenThePools(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		now := start
		p := poolAt(t, db, &now, 0)
		code, until, err := p.Reserve(t.Context())
		if err != nil || !until.Equal(start.Add(7*24*time.Hour)) {
			t.Fatalf("until %v, %v", until, err)
		}
		if parsed, err := Parse(string(code)); parsed != code || err != nil {
			t.Errorf("%q is no code: %v", code, err)
		}
		now = until.Add(-time.Microsecond)
		if state, expires, err := p.Lookup(t.Context(), code); state != Borrowed || !expires.Equal(until) || err != nil {
			t.Errorf("a moment before: %v, %v, %v", state, expires, err)
		}
		if lent, _, err := p.Borrow(t.Context()); err != ErrNoneLeft {
			t.Errorf("a moment before it is lent: %v, %v", lent, err)
		}
		now = until
		if got := mustBorrow(t, p); got != code {
			t.Errorf("lent %v, want %v", got, code)
		}
	})
}

func TestReservedCodesAreApartFromThePool(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		p := poolAt(t, opened.DB, &now, 3)
		first, _, err := p.Reserve(t.Context())
		second, _, err2 := p.Reserve(t.Context())
		if err != nil || err2 != nil || first == second {
			t.Fatalf("%v, %v; %v, %v", first, err, second, err2)
		}
		if err := p.Fill(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		if n := count(t, opened.DB); n != 5 {
			t.Errorf("%d codes after filling a full pool, want 3 and the 2 reserved", n)
		}
		for range 2 {
			mustBorrow(t, p)
		}
		if err := p.Fill(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		if n := count(t, opened.DB); n != 6 {
			t.Errorf("%d codes after asking for one more, want 4 and the 2 reserved", n)
		}
		for range 2 {
			if got := mustBorrow(t, p); got == first || got == second {
				t.Errorf("lent the reserved %v", got)
			}
		}
	})
}

func TestAWithdrawnCodeIsGoneUnlessItIsUsed(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		p := poolAt(t, opened.DB, &now, 1)
		code, _, err := p.Reserve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second time is like once
			if err := p.Withdraw(t.Context(), code); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := p.Lookup(t.Context(), code); err != ErrUnknown {
			t.Errorf("withdrawn: %v, want ErrUnknown", err)
		}
		if n := count(t, opened.DB); n != 1 {
			t.Errorf("%d codes, want the pool's", n)
		}
		used, _, err := p.Reserve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opened.ExecContext(t.Context(), `UPDATE invite_codes SET used_micros = 1 WHERE code = ?`, string(used)); err != nil {
			t.Fatal(err)
		}
		if err := p.Withdraw(t.Context(), used); err != nil {
			t.Fatal(err)
		}
		if state, _, err := p.Lookup(t.Context(), used); state != Used || err != nil {
			t.Errorf("a used one: %v, %v", state, err)
		}
	})
}
