//go:build unix

package accounts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

const another = "another long password"

func (f *fixture) wantSession(t *testing.T, token string, want error) {
	t.Helper()
	if _, _, _, err := f.Session(t.Context(), token); err != want {
		t.Errorf("the session: %v, want %v", err, want)
	}
}

// Row F1.
func TestANewPasswordEndsEverySessionAndDeviceButTheOnesThatAsk(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		anna := f.mustSignUp(t, "anna")
		f.mustSignUp(t, "berta")
		bertas := mustSignIn(t, f, "berta", "")
		own, other, third := mustSignIn(t, f, "anna", ""), mustSignIn(t, f, "anna", ""), mustStart(t, f, anna)
		for _, step := range []struct {
			current, password string
			want              error
			hashes            int64
		}{
			{wrong, another, ErrCredentials, 1},
			{"", another, ErrCredentials, 1},
			{password, "short", ErrPassword, 0},
			{wrong, "short", ErrPassword, 0},
		} {
			f.hashed.Store(0)
			err := f.ChangePassword(t.Context(), anna, own.Token, step.current, step.password)
			if !errors.Is(err, step.want) || f.hashed.Load() != step.hashes {
				t.Errorf("%q to %q: %v with %d hashes", step.current, step.password, err, f.hashed.Load())
			}
			f.wantSession(t, other.Token, nil)
		}
		if err := f.ChangePassword(t.Context(), anna, own.Token, password, another); err != nil {
			t.Fatal(err)
		}
		f.wantSession(t, own.Token, nil)
		f.wantSession(t, bertas.Token, nil)
		f.wantSession(t, other.Token, ErrNoSession)
		f.wantSession(t, third, ErrNoSession)
		if deviceID(t, f, own.Device, "anna") == "" || deviceID(t, f, bertas.Device, "berta") == "" || deviceID(t, f, other.Device, "anna") != "" {
			t.Error("the wrong devices are forgotten")
		}
		if _, err := f.Authenticate(t.Context(), "anna", password); err != ErrCredentials {
			t.Errorf("the old password: %v", err)
		}
		if _, err := f.Authenticate(t.Context(), "anna", another); err != nil {
			t.Errorf("the new password: %v", err)
		}
		// A session that knows no device keeps none.
		if err := f.ChangePassword(t.Context(), anna, mustStart(t, f, anna), another, password); err != nil {
			t.Fatal(err)
		}
		if n := f.count(t, "devices"); n != 1 {
			t.Errorf("%d devices are left, want berta's", n)
		}
	})
}

// Row D9: also after a refusal the code and the token are good, and nobody is told of a password that isn't to be taken anyhow.
func TestAPasswordThatIsKnownToOthersIsRefusedEverywhere(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		const stolen = "a stolen password"
		var asked []string
		f.config.Breached = func(_ context.Context, password string) bool {
			asked = append(asked, password)
			return password == stolen
		}
		code := f.borrow(t)
		signUp := func(password string) error {
			_, err := f.SignUp(t.Context(), Applicant{Code: code, Name: "anna", Password: password})
			return err
		}
		createAdmin := func(password string) error {
			_, err := f.CreateAdmin(t.Context(), "carla", password)
			return err
		}
		berta := f.mustSignUp(t, "berta")
		token := f.mustReset(t, berta).Token
		changed := func(current string) func(string) error {
			return func(password string) error { return f.ChangePassword(t.Context(), berta, "", current, password) }
		}
		reset := func(token string) func(string) error {
			return func(password string) error { return f.ResetPassword(t.Context(), token, password) }
		}
		for _, step := range []struct {
			name     string
			try      func(string) error
			password string
			want     error
			asked    int
			hashes   int64
		}{
			{"sign-up", signUp, "password1234", ErrBreached, 0, 0},
			{"sign-up", signUp, "annaannaanna", ErrBreached, 0, 0},
			{"sign-up", signUp, "short", ErrPassword, 0, 0},
			{"sign-up", signUp, stolen, ErrBreached, 1, 0},
			{"sign-up", signUp, password, nil, 1, 1},
			{"admin", createAdmin, "password1234", ErrBreached, 0, 0},
			{"admin", createAdmin, stolen, ErrBreached, 1, 0},
			{"change", changed(password), "bertabertaberta", ErrBreached, 0, 0},
			{"change with a wrong password", changed(wrong), stolen, ErrCredentials, 0, 1},
			{"change", changed(password), stolen, ErrBreached, 1, 1},
			{"reset without a token", reset("x"), stolen, ErrReset, 0, 0},
			{"reset", reset(token), "password1234", ErrBreached, 0, 0},
			{"reset", reset(token), "bertabertaberta", ErrBreached, 0, 0},
			{"reset", reset(token), stolen, ErrBreached, 1, 0},
			{"reset", reset(token), another, nil, 1, 1},
		} {
			asked = nil
			f.hashed.Store(0)
			err := step.try(step.password)
			if !errors.Is(err, step.want) || len(asked) != step.asked || f.hashed.Load() != step.hashes {
				t.Errorf("%s with %q: %v, asked for %q, %d hashes; want %v", step.name, step.password, err, asked, f.hashed.Load(), step.want)
			}
		}
	})
}

func TestOfTwoNewPasswordsAtOnceOneIsTaken(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 1)
		anna := f.mustSignUp(t, "anna")
		tokens := []string{mustStart(t, f, anna), mustStart(t, f, anna)}
		errs := make([]error, 2)
		// Both have compared the old password before either changes it.
		var compared, group sync.WaitGroup
		compared.Add(2)
		for i := range errs {
			hashes := 0
			both := New(f.db, Config{Now: f.config.Now, Hashed: func() {
				if hashes++; hashes == 2 { // the new password's
					compared.Done()
					compared.Wait()
				}
			}})
			group.Go(func() {
				errs[i] = both.ChangePassword(t.Context(), anna, tokens[i], password, fmt.Sprintf("new password %d", i))
			})
		}
		group.Wait()
		if slices.Contains(errs, nil) != slices.Contains(errs, ErrCredentials) || errs[0] == errs[1] {
			t.Fatalf("got %v, want one success", errs)
		}
		taken := slices.Index(errs, nil)
		f.wantSession(t, tokens[taken], nil)
		f.wantSession(t, tokens[1-taken], ErrNoSession)
		if _, err := f.Authenticate(t.Context(), "anna", fmt.Sprintf("new password %d", taken)); err != nil {
			t.Errorf("the password that was taken: %v", err)
		}
	})
}

// A thief who knows the old password must not be signed in by a request that was on its way when it was changed.
func TestAPasswordThatIsChangedWhileItIsComparedSignsNobodyIn(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 1)
		anna := f.mustSignUp(t, "anna")
		own := mustStart(t, f, anna)
		for _, meanwhile := range []func() error{
			func() error { return f.ChangePassword(t.Context(), anna, own, password, another) },
			func() error { return f.Delete(t.Context(), anna, another) },
		} {
			current := password
			if _, err := f.Authenticate(t.Context(), "anna", another); err == nil {
				current = another
			}
			late := New(f.db, Config{Now: f.config.Now, Secret: f.config.Secret, Hashed: func() {
				if err := meanwhile(); err != nil {
					t.Error(err)
				}
			}})
			if _, session, err := late.SignIn(t.Context(), "anna", current, Device{}); err != ErrCredentials || session != (Session{}) {
				t.Errorf("got %+v, %v, want ErrCredentials", session, err)
			}
		}
		if n := f.count(t, "sessions"); n != 0 {
			t.Errorf("%d sessions", n)
		}
	})
}

// Row F3.
func TestAnAccountGoesWithAllThatBelongsToIt(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 3)
		code := f.borrow(t)
		anna, err := f.SignUp(t.Context(), Applicant{Code: code, Name: "anna", Password: password})
		if err != nil {
			t.Fatal(err)
		}
		f.mustSignUp(t, "berta")
		annas, bertas := mustSignIn(t, f, "anna", ""), mustSignIn(t, f, "berta", "")
		if err := f.Delete(t.Context(), anna, wrong); err != ErrCredentials {
			t.Errorf("with a wrong password: %v", err)
		}
		f.wantSession(t, annas.Token, nil)
		if err := f.Delete(t.Context(), anna, password); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"accounts", "sessions", "devices"} {
			if n := f.count(t, table); n != 1 {
				t.Errorf("%d rows of %s are left, want berta's", n, table)
			}
		}
		f.wantSession(t, annas.Token, ErrNoSession)
		f.wantSession(t, bertas.Token, nil)
		f.wantState(t, code, codes.Used)
		if err := f.Delete(t.Context(), anna, password); err != ErrCredentials {
			t.Errorf("a second time: %v", err)
		}

		// The name is free; nothing of the old account is the new one's, and nobody who was signed in to the old one harms it.
		again := f.mustSignUp(t, "anna")
		if again.ID == anna.ID || deviceID(t, f, annas.Device, "anna") != "" {
			t.Errorf("the new account is %d, the old one was %d", again.ID, anna.ID)
		}
		f.hashed.Store(0)
		if err := f.Delete(t.Context(), anna, password); err != ErrCredentials || f.hashed.Load() != 1 {
			t.Errorf("the old account's: %v with %d hashes", err, f.hashed.Load())
		}
		if err := f.ChangePassword(t.Context(), anna, annas.Token, password, another); err != ErrCredentials {
			t.Errorf("the old account's: %v", err)
		}
		if _, err := f.Authenticate(t.Context(), "anna", password); err != nil {
			t.Errorf("the new account: %v", err)
		}
	})
}

// Row F1.
func TestSigningOutEverywhereEndsEverySessionOfTheAccount(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		anna, berta := f.mustSignUp(t, "anna"), f.mustSignUp(t, "berta")
		for range 2 {
			first, second, bertas := mustStart(t, f, anna), mustStart(t, f, anna), mustStart(t, f, berta)
			if err := f.EndAllSessions(t.Context(), anna); err != nil {
				t.Fatal(err)
			}
			f.wantSession(t, first, ErrNoSession)
			f.wantSession(t, second, ErrNoSession)
			f.wantSession(t, bertas, nil)
			// Not even the session that a change of the password kept.
			own := mustStart(t, f, anna)
			if err := f.ChangePassword(t.Context(), anna, own, password, password); err != nil {
				t.Fatal(err)
			}
			if err := f.EndAllSessions(t.Context(), anna); err != nil {
				t.Fatal(err)
			}
			f.wantSession(t, own, ErrNoSession)
		}
	})
}

func TestASweepTakesExpiredSessionsAndDevicesStepByStep(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 3)
		for _, name := range []Name{"anna", "berta", "carla"} {
			account := f.mustSignUp(t, name)
			mustSignIn(t, f, string(name), "")
			mustStart(t, f, account)
		}
		f.now = start.Add(day)
		live := mustSignIn(t, f, "anna", "")
		for _, step := range []struct {
			at      time.Duration
			deleted int64
		}{{14*day - time.Microsecond, 0}, {14 * day, 6}, {15 * day, 1}, {180*day - time.Microsecond, 0}, {180 * day, 3}, {180 * day, 0}} {
			f.now = start.Add(step.at)
			deleted, done, err := f.Sweep(t.Context(), 2)
			if deleted != step.deleted || !done || err != nil {
				t.Errorf("after %v: %d deleted, done %t, %v; want %d", step.at, deleted, done, err, step.deleted)
			}
		}
		if n := f.count(t, "sessions") + f.count(t, "devices"); n != 1 || deviceID(t, f, live.Device, "anna") == "" {
			t.Errorf("%d rows are left, want the live device", n)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if deleted, done, err := f.Sweep(over, 2); deleted != 0 || done || err != nil {
			t.Errorf("without time: %d, %t, %v", deleted, done, err)
		}
	})
}

// Row F2.
func TestAdminsAreMadeAndUnmadeByName(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 1)
		session := mustStart(t, f, f.mustSignUp(t, "anna"))
		berta, err := f.CreateAdmin(t.Context(), "berta", password)
		if err != nil || berta.Role != Admin {
			t.Fatalf("got %+v, %v", berta, err)
		}
		if got, err := f.Authenticate(t.Context(), "berta", password); got != berta || err != nil {
			t.Errorf("the new admin is %+v, %v", got, err)
		}
		for name, want := range map[Name]error{"anna": ErrNameTaken, "berta": ErrNameTaken, "demo-admin": ErrNameTaken} {
			if _, err := f.CreateAdmin(t.Context(), name, another); err != want {
				t.Errorf("%q: %v, want %v", name, err, want)
			}
		}
		if _, err := f.CreateAdmin(t.Context(), "carla", "short"); !errors.Is(err, ErrPassword) {
			t.Errorf("a short password: %v", err)
		}
		if _, err := f.Demo(t.Context(), Admin); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			name Name
			role Role
			want error
		}{{"anna", Admin, nil}, {"berta", Member, nil}, {"berta", Member, nil}, {"carla", Admin, ErrNoAccount}, {"demo-admin", Member, ErrNoAccount}, {"anna", "root", ErrRole}} {
			if err := f.SetRole(t.Context(), step.name, step.role); !errors.Is(err, step.want) {
				t.Errorf("%q to %q: %v, want %v", step.name, step.role, err, step.want)
			}
		}
		if account, _, _, err := f.Session(t.Context(), session); account.Role != Admin || err != nil {
			t.Errorf("a session that goes on is of %+v, %v", account, err)
		}
		admins, err := f.Admins(t.Context())
		var names []Name
		for _, admin := range admins {
			names = append(names, admin.Name)
		}
		if !slices.Equal(names, []Name{"anna", "demo-admin"}) || err != nil {
			t.Errorf("admins %v, %v", names, err)
		}
	})
}
