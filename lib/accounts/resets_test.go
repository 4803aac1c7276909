//go:build unix

package accounts

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

func (f *fixture) mustReset(t *testing.T, account Account) Reset {
	t.Helper()
	reset, err := f.StartReset(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	return reset
}

// Row F1: a token makes one new password, and ends what the old one began.
func TestATokenMakesOneNewPasswordAndEndsEverySession(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		anna, berta := f.mustSignUp(t, "anna"), f.mustSignUp(t, "berta")
		annas, bertas := mustSignIn(t, f, "anna", ""), mustSignIn(t, f, "berta", "")
		reset := f.mustReset(t, anna)
		if !reset.Expires.Equal(start.Add(ResetLifetime)) {
			t.Errorf("it expires %v", reset.Expires)
		}
		f.hashed.Store(0)
		for _, step := range []struct {
			token, password string
			want            error
		}{
			{"", another, ErrReset},
			{strings.Repeat("A", len(reset.Token)), another, ErrReset},
			{reset.Token[1:] + "A", "short", ErrReset}, // before anything is said of the password
			{hashToken(reset.Token), another, ErrReset},
			{reset.Token, "short", ErrPassword},
		} {
			if err := f.ResetPassword(t.Context(), step.token, step.password); !errors.Is(err, step.want) {
				t.Errorf("%q to %q: %v, want %v", step.token, step.password, err, step.want)
			}
		}
		if n := f.hashed.Load(); n != 0 {
			t.Errorf("%d hashes for refusals", n)
		}
		f.wantSession(t, annas.Token, nil)
		if err := f.ResetPassword(t.Context(), " "+reset.Token+"\n", another); err != nil {
			t.Fatal(err)
		}
		f.wantSession(t, annas.Token, ErrNoSession)
		f.wantSession(t, bertas.Token, nil)
		if deviceID(t, f, annas.Device, "anna") != "" || deviceID(t, f, bertas.Device, "berta") == "" {
			t.Error("the wrong devices are forgotten")
		}
		if _, err := f.Authenticate(t.Context(), "anna", password); err != ErrCredentials {
			t.Errorf("the old password: %v", err)
		}
		if _, err := f.Authenticate(t.Context(), "anna", another); err != nil {
			t.Errorf("the new password: %v", err)
		}
		if err := f.ResetPassword(t.Context(), reset.Token, password); err != ErrReset {
			t.Errorf("the token a second time: %v", err)
		}
		if _, err := f.Authenticate(t.Context(), "berta", password); err != nil || berta.ID == anna.ID {
			t.Errorf("the other account: %v", err)
		}
	})
}

func TestATokenEndsByItsTimeANewerOneANewPasswordAndItsAccount(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		for name, end := range map[string]func(f *fixture, account Account) error{
			"its time": func(f *fixture, _ Account) error {
				f.now = start.Add(ResetLifetime)
				return nil
			},
			"a newer one": func(f *fixture, account Account) error {
				_, err := f.StartReset(t.Context(), account)
				return err
			},
			"a new password": func(f *fixture, account Account) error {
				return f.ChangePassword(t.Context(), account, "", password, password)
			},
			"a revoked password": func(f *fixture, account Account) error {
				_, _, err := f.RevokePassword(t.Context(), account.Name)
				return err
			},
			"its account": func(f *fixture, account Account) error { return f.Delete(t.Context(), account, password) },
		} {
			f := newFixture(t, opened.DB, unused(t, opened)+1)
			account := f.mustSignUp(t, Name(strings.ReplaceAll(name, " ", "-")))
			token := f.mustReset(t, account).Token
			f.now = start.Add(ResetLifetime - time.Microsecond)
			if err := f.ResetPassword(t.Context(), token, "short"); !errors.Is(err, ErrPassword) {
				t.Fatalf("%s: the token is not good before: %v", name, err)
			}
			if err := end(f, account); err != nil {
				t.Fatal(err)
			}
			if err := f.ResetPassword(t.Context(), token, another); err != ErrReset {
				t.Errorf("%s: afterwards it answers %v", name, err)
			}
		}
	})
}

// What ends a token while the new password is hashed ends it in time.
func TestATokenThatEndsWhileAPasswordIsHashedChangesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		for name, end := range map[Name]func(Account){
			"time":  func(Account) { f.now = f.now.Add(ResetLifetime) },
			"newer": func(account Account) { f.mustReset(t, account) },
		} {
			account := f.mustSignUp(t, name)
			token := f.mustReset(t, account).Token
			f.config.Hashed = func() { end(account) }
			if err := f.ResetPassword(t.Context(), token, another); err != ErrReset {
				t.Errorf("%s: %v", name, err)
			}
			f.config.Hashed = nil
			if _, err := f.Authenticate(t.Context(), string(name), password); err != nil {
				t.Errorf("%s: the password is another: %v", name, err)
			}
		}
	})
}

// unused is how many codes a database has that nobody has signed up with.
func unused(t *testing.T, opened *database.DB) (n int) {
	t.Helper()
	if err := opened.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM invite_codes WHERE used_micros IS NULL`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Case E09.
func TestOfTwentyResetsAtOnceWithOneTokenOneIsDone(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 1)
		token := f.mustReset(t, f.mustSignUp(t, "anna")).Token
		var group sync.WaitGroup
		var done, refused atomic.Int64
		for range 20 {
			group.Go(func() {
				switch err := f.ResetPassword(t.Context(), token, another); err {
				case nil:
					done.Add(1)
				case ErrReset:
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if done.Load() != 1 || refused.Load() != 19 {
			t.Errorf("%d are done and %d refused", done.Load(), refused.Load())
		}
	})
}

// Row D9: whoever knows a revoked password gets what a wrong one gets, at the same cost.
func TestARevokedPasswordIsAWrongOneUntilAReset(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 1)
		anna := f.mustSignUp(t, "anna")
		session := mustSignIn(t, f, "anna", "")
		if got, email, err := f.RevokePassword(t.Context(), "anna"); got != anna || email != "" || err != nil {
			t.Fatalf("revoked %+v, %q, %v", got, email, err)
		}
		f.wantSession(t, session.Token, ErrNoSession)
		if deviceID(t, f, session.Device, "anna") != "" {
			t.Error("the device is still known")
		}
		for _, guess := range []string{password, wrong, ""} {
			f.hashed.Store(0)
			if _, err := f.Authenticate(t.Context(), "anna", guess); err != ErrCredentials || f.hashed.Load() != 1 {
				t.Errorf("%q: %v with %d hashes", guess, err, f.hashed.Load())
			}
		}
		if err := f.ResetPassword(t.Context(), f.mustReset(t, anna).Token, another); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Authenticate(t.Context(), "anna", another); err != nil {
			t.Errorf("after the reset: %v", err)
		}
		for _, name := range []Name{"nobody", "demo-member"} {
			if _, _, err := f.RevokePassword(t.Context(), name); err != ErrNoAccount {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := f.StartReset(t.Context(), Account{}); err != ErrNoAccount {
			t.Errorf("a token of nobody: %v", err)
		}
	})
}

func TestAnOwnerIsFoundByAnySpellingWithTheEmail(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		f.mustSignUp(t, "anna")
		if _, err := f.SignUp(t.Context(), Applicant{Code: f.borrow(t), Name: "berta", Password: password, Email: "Berta@example.org"}); err != nil {
			t.Fatal(err)
		}
		for spelling, want := range map[string]struct {
			name  Name
			email Email
		}{"anna": {"anna", ""}, " BERTA ": {"berta", "Berta@example.org"}, "nobody": {}, "": {}, "a b": {}} {
			account, email, err := f.Owner(t.Context(), spelling)
			if err != nil || account.Name != want.name || email != want.email || (account.ID > 0) != (want.name != "") {
				t.Errorf("%q: %+v, %q, %v", spelling, account, email, err)
			}
		}
	})
}

// Case A21.
func TestExpiredTokensGoInPassingAndWithASweep(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 3)
		anna, berta, carla := f.mustSignUp(t, "anna"), f.mustSignUp(t, "berta"), f.mustSignUp(t, "carla")
		f.mustReset(t, anna)
		f.now = start.Add(time.Minute)
		f.mustReset(t, berta)
		f.now = start.Add(ResetLifetime)
		f.mustReset(t, carla) // takes anna's along
		if n := f.count(t, "password_resets"); n != 2 {
			t.Errorf("%d tokens are left, want berta's and carla's", n)
		}
		for _, step := range []struct {
			at            time.Duration
			deleted, left int64
		}{{ResetLifetime + time.Minute - time.Microsecond, 0, 2}, {ResetLifetime + time.Minute, 1, 1}, {2 * ResetLifetime, 1, 0}} {
			f.now = start.Add(step.at)
			deleted, done, err := f.SweepResets(t.Context())
			if n := f.count(t, "password_resets"); deleted != step.deleted || !done || err != nil || int64(n) != step.left {
				t.Errorf("after %v: deleted %d, done %t, %v, and %d are left", step.at, deleted, done, err, n)
			}
		}
	})
}

func TestTheDatabaseKnowsNoToken(t *testing.T) {
	db := databases.File(t)
	f := newFixture(t, db.DB, 1)
	token := f.mustReset(t, f.mustSignUp(t, "anna")).Token
	var stored string
	if err := db.QueryRowContext(t.Context(), `SELECT token_hash FROM password_resets`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if stored == token || stored != hashToken(token) || len(token) != 43 {
		t.Errorf("stored is %q for %q", stored, token)
	}
}
