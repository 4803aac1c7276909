//go:build unix

package accounts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

const (
	password = "a long enough password"
	wrong    = "a long but wrong password"
)

// start is when the tests' clock starts: with microseconds, as a database's clock never has, to see that none are lost.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// fixture is an Accounts on a database with some codes, a clock and a count of hashes.
type fixture struct {
	*Accounts
	db     *sql.DB
	now    time.Time
	hashed atomic.Int64
}

func newFixture(t *testing.T, db *sql.DB, codeCount int) *fixture {
	t.Helper()
	f := &fixture{db: db, now: start}
	f.Accounts = New(db, Config{
		Now:    func() time.Time { return f.now },
		Hashed: func() { f.hashed.Add(1) },
		Secret: []byte("a secret of the accounts' tests, long enough"),
		// What a hash is and costs is for the tests of password.go. They take the real one, which is minutes with the race detector.
		HashMemoryKiB: 64,
	})
	if err := f.codes.Fill(t.Context(), codeCount); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) borrow(t *testing.T) codes.Code {
	t.Helper()
	code, _, err := f.codes.Borrow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func (f *fixture) mustSignUp(t *testing.T, name Name) Account {
	t.Helper()
	account, err := f.SignUp(t.Context(), Applicant{Code: f.borrow(t), Name: name, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	return account
}

// Authenticate is what SignIn does before it starts a session.
func (f *fixture) Authenticate(ctx context.Context, name, password string) (Account, error) {
	account, _, err := f.authenticate(ctx, name, password)
	return account, err
}

func (f *fixture) wantState(t *testing.T, code codes.Code, want codes.State) {
	t.Helper()
	if got, _, err := f.codes.Lookup(t.Context(), code); got != want || err != nil {
		t.Errorf("the code is %q, %v, want %q", got, err, want)
	}
}

func (f *fixture) count(t *testing.T, table string) (n int) {
	t.Helper()
	if err := f.db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestABorrowedCodeMakesOneMember(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 2)
		code := f.borrow(t)
		account, err := f.SignUp(t.Context(), Applicant{Code: code, Name: "anna", Password: password})
		if err != nil || account.ID < 1 || account.Name != "anna" || account.Role != Member {
			t.Fatalf("sign-up: %+v, %v", account, err)
		}
		f.wantState(t, code, codes.Used)
		if _, err := f.SignUp(t.Context(), Applicant{Code: code, Name: "berta", Password: password}); err != ErrCodeUsed || !errors.Is(err, ErrCode) {
			t.Errorf("second sign-up with the code: %v, want ErrCodeUsed", err)
		}
		if n := f.count(t, "accounts"); n != 1 {
			t.Errorf("%d accounts, want 1", n)
		}
		// Case A40: any spelling signs in.
		for _, spelling := range []string{"anna", " ANNA\t"} {
			if got, err := f.Authenticate(t.Context(), spelling, password); got != account || err != nil {
				t.Errorf("%q: %+v, %v", spelling, got, err)
			}
		}
	})
}

func TestACodeMakesAnAccountOnlyWhileItIsBorrowed(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		code := f.borrow(t)
		for _, step := range []struct {
			at   time.Duration
			code codes.Code
			want error
		}{
			{-time.Hour, "WEIR-0000-0000-0000", ErrCodeUnknown},
			{0, "", ErrCodeUnknown},
			{codes.Hold, code, ErrCodeNotBorrowed},
			{codes.Hold + time.Hour, code, ErrCodeNotBorrowed},
			{codes.Hold - time.Microsecond, code, nil}, // the refusals didn't use it up
		} {
			f.now = start.Add(step.at)
			_, err := f.SignUp(t.Context(), Applicant{Code: step.code, Name: "anna", Password: password})
			if err != step.want || err != nil && !errors.Is(err, ErrCode) {
				t.Errorf("%q at %v: %v, want %v", step.code, step.at, err, step.want)
			}
		}
	})
}

// Case E15: names are public, and a taken one keeps the code.
func TestATakenOrReservedNameKeepsTheCode(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 2)
		f.mustSignUp(t, "anna")
		code := f.borrow(t)
		for _, name := range []Name{"anna", "demo-anna"} {
			if _, err := f.SignUp(t.Context(), Applicant{Code: code, Name: name, Password: password}); err != ErrNameTaken {
				t.Errorf("%q: %v, want ErrNameTaken", name, err)
			}
			f.wantState(t, code, codes.Borrowed)
		}
		if _, err := f.SignUp(t.Context(), Applicant{Code: code, Name: "berta", Password: password}); err != nil {
			t.Errorf("the kept code: %v", err)
		}
	})
}

func TestAWeakPasswordKeepsTheCodeAndCostsNoHash(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		code := f.borrow(t)
		for _, weak := range []string{"", "eleven char", strings.Repeat("a", 201), strings.Repeat("a", 1<<20)} {
			_, err := f.SignUp(t.Context(), Applicant{Code: code, Name: "anna", Password: weak})
			if !errors.Is(err, ErrPassword) || !strings.Contains(err.Error(), PasswordRule) {
				t.Errorf("%.20q: %v, want ErrPassword with its rule", weak, err)
			}
		}
		f.wantState(t, code, codes.Borrowed)
		if n := f.hashed.Load(); n != 0 {
			t.Errorf("%d hashes were computed", n)
		}
	})
}

func TestOfTwentySignUpsWithOneCodeExactlyOneSucceeds(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		code := f.borrow(t)
		errs := make([]error, 20)
		var group sync.WaitGroup
		for i := range errs {
			name := Name(fmt.Sprintf("user-%d", i))
			group.Go(func() { _, errs[i] = f.SignUp(t.Context(), Applicant{Code: code, Name: name, Password: password}) })
		}
		group.Wait()
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
			} else if err != ErrCodeUsed {
				t.Errorf("%v, want ErrCodeUsed", err)
			}
		}
		if n := f.count(t, "accounts"); made != 1 || n != 1 {
			t.Errorf("%d sign-ups succeeded and %d accounts are there, want 1", made, n)
		}
	})
}

func TestOfTwelveSignUpsWithOneNameOneSucceedsAndElevenCodesAreKept(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 12)
		errs, lent := make([]error, 12), make([]codes.Code, 12)
		for i := range lent {
			lent[i] = f.borrow(t)
		}
		var group sync.WaitGroup
		for i := range errs {
			group.Go(func() { _, errs[i] = f.SignUp(t.Context(), Applicant{Code: lent[i], Name: "anna", Password: password}) })
		}
		group.Wait()
		made := 0
		for i, err := range errs {
			if err == nil {
				made++
				f.wantState(t, lent[i], codes.Used)
				continue
			}
			if err != ErrNameTaken {
				t.Errorf("%v, want ErrNameTaken", err)
			}
			f.wantState(t, lent[i], codes.Borrowed)
		}
		if made != 1 {
			t.Errorf("%d sign-ups succeeded, want 1", made)
		}
	})
}

// Case E02: one hash of one cost, whoever asks for whom. Counting the hashes shows it without a clock.
func TestEverySignInCostsOneHashWhetherOrNotTheAccountExists(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		anna := f.mustSignUp(t, "anna")
		if _, err := f.Demo(t.Context(), Admin); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			name, password string
			want           error
		}{
			{"anna", password, nil},
			{"anna", wrong, ErrCredentials},
			{"anna", "short", ErrCredentials},
			{"anna", "", ErrCredentials},
			{"berta", password, ErrCredentials},
			{"demo-admin", password, ErrCredentials},
			{"demo-admin", "", ErrCredentials},
			{"demo-member", password, ErrCredentials},
			{"not a possible name", password, ErrCredentials},
			{"", "", ErrCredentials},
			{"anna\xff", password, ErrCredentials},
		} {
			f.hashed.Store(0)
			got, err := f.Authenticate(t.Context(), test.name, test.password)
			if err != test.want || err == nil && got != anna || err != nil && got != (Account{}) {
				t.Errorf("%q with %q: %+v, %v, want %v", test.name, test.password, got, err, test.want)
			}
			if n := f.hashed.Load(); n != 1 {
				t.Errorf("%q with %q: %d hashes, want 1", test.name, test.password, n)
			}
		}

		var stored string
		if err := db.QueryRowContext(t.Context(), `SELECT password_hash FROM accounts WHERE username = 'anna'`).Scan(&stored); err != nil {
			t.Fatal(err)
		}
		h, err := parseHash(stored)
		if err != nil {
			t.Fatal(err)
		}
		cost := func(h hash) [5]int {
			return [5]int{int(h.memoryKiB), int(h.passes), int(h.lanes), len(h.salt), len(h.key)}
		}
		if cost(h) != cost(f.standIn) {
			t.Errorf("a stored hash costs %v, that of a missing account %v", cost(h), cost(f.standIn))
		}
	})
}

func TestNoPasswordSignsInToAMissingAccountNotEvenOneThatMatchesTheStandIn(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 0)
		if _, err := f.Demo(t.Context(), Admin); err != nil {
			t.Fatal(err)
		}
		var err error
		if f.standIn, err = f.hashPassword(t.Context(), password); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"anna", "demo-admin", "?"} {
			if account, err := f.Authenticate(t.Context(), name, password); err != ErrCredentials {
				t.Errorf("%q: %+v, %v, want ErrCredentials", name, account, err)
			}
		}
	})
}

// Case E02: also the passwords that cost no hash are the same for accounts that exist and those that don't.
func TestAnImpossiblyLongPasswordIsRefusedUnhashedForEveryName(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		f.mustSignUp(t, "anna")
		f.hashed.Store(0)
		for _, name := range []string{"anna", "berta", "demo-admin", "?"} {
			if _, err := f.Authenticate(t.Context(), name, strings.Repeat("a", maxPasswordBytes+1)); err != ErrCredentials {
				t.Errorf("%q: %v, want ErrCredentials", name, err)
			}
		}
		if n := f.hashed.Load(); n != 0 {
			t.Errorf("%d hashes were computed", n)
		}
	})
}

func TestADamagedHashIsAFailureOfTheStoreAndNotAWrongPassword(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		f.mustSignUp(t, "anna")
		if _, err := db.ExecContext(t.Context(), `UPDATE accounts SET password_hash = 'plain'`); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Authenticate(t.Context(), "anna", "plain"); !errors.Is(err, ErrStore) {
			t.Errorf("got %v, want ErrStore", err)
		}
	})
}

func TestDemoAccountsAreMadeOnceAndKeepTheirRole(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 0)
		var group sync.WaitGroup
		for i := range 10 {
			role := []Role{Member, Admin}[i%2]
			group.Go(func() {
				account, err := f.Demo(t.Context(), role)
				if err != nil || account.Name != Name("demo-"+role) || account.Role != role || account.ID < 1 {
					t.Errorf("%q: %+v, %v", role, account, err)
				}
			})
		}
		group.Wait()
		// What an instance does that looked for the account just before another one made it.
		if _, err := db.ExecContext(t.Context(), addDemo, "demo-admin", "admin", 0); err != nil {
			t.Errorf("made again: %v", err)
		}
		if n := f.count(t, "accounts"); n != 2 {
			t.Errorf("%d accounts, want 2", n)
		}
		for _, role := range []Role{"", "owner", "ADMIN"} {
			if account, err := f.Demo(t.Context(), role); !errors.Is(err, ErrRole) {
				t.Errorf("%q: %+v, %v, want ErrRole", role, account, err)
			}
		}
	})
}

func TestOnlyNamesThatCanBeHadAreFree(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		f.mustSignUp(t, "anna")
		for name, want := range map[Name]bool{"anna": false, "berta": true, "demo-member": false, "demo-x": false, "demo": true} {
			if free, err := f.IsFree(t.Context(), name); free != want || err != nil {
				t.Errorf("%q: %v, %v, want %v", name, free, err, want)
			}
		}
	})
}

func TestAStoreThatFailsIsNotARefusal(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		code := f.borrow(t)
		account, err := f.Demo(t.Context(), Member)
		if err != nil {
			t.Fatal(err)
		}
		token, _, err := f.StartSession(t.Context(), account)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), `DROP TABLE sessions`); err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), `DROP TABLE accounts`); err != nil {
			t.Fatal(err)
		}
		known := f.seal(shownDevice{account: 1})
		if _, err := db.ExecContext(t.Context(), `DROP TABLE devices`); err != nil {
			t.Fatal(err)
		}
		errs := map[string]error{
			"EndSession":     f.EndSession(t.Context(), token),
			"EndAllSessions": f.EndAllSessions(t.Context(), account),
			"ChangePassword": f.ChangePassword(t.Context(), account, token, password, password),
			"Delete":         f.Delete(t.Context(), account, password),
			"SetRole":        f.SetRole(t.Context(), "anna", Admin),
		}
		_, _, errs["SignIn"] = f.SignIn(t.Context(), "anna", password, Device{})
		_, errs["Device"] = f.Device(t.Context(), known, "anna")
		_, errs["CreateAdmin"] = f.CreateAdmin(t.Context(), "anna", password)
		_, errs["Admins"] = f.Admins(t.Context())
		_, _, errs["Sweep"] = f.Sweep(t.Context(), 10)
		_, errs["SignUp"] = f.SignUp(t.Context(), Applicant{Code: code, Name: "anna", Password: password})
		_, errs["Authenticate"] = f.Authenticate(t.Context(), "anna", password)
		_, errs["Demo"] = f.Demo(t.Context(), Member)
		_, errs["IsFree"] = f.IsFree(t.Context(), "anna")
		_, _, errs["StartSession"] = f.StartSession(t.Context(), account)
		_, _, _, errs["Session"] = f.Session(t.Context(), token)
		for call, err := range errs {
			if !errors.Is(err, ErrStore) || strings.Count(err.Error(), ErrStore.Error()) != 1 {
				t.Errorf("%s: %v: want ErrStore, once", call, err)
			}
			for _, refusal := range []error{ErrCode, ErrNameTaken, ErrCredentials, ErrNoSession, ErrBusy} {
				if errors.Is(err, refusal) {
					t.Errorf("%s: %v looks like a refusal", call, err)
				}
			}
		}
	})
}

func TestTheContextEndsACall(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 0)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.IsFree(gone, "anna"); !errors.Is(err, ErrStore) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want ErrStore and the cause", err)
		}
	})
}
