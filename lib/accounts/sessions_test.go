//go:build unix

package accounts

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

const day = 24 * time.Hour

func mustStart(t *testing.T, f *fixture, account Account) string {
	t.Helper()
	token, expires, err := f.StartSession(t.Context(), account)
	if err != nil || len(token) != 43 || !expires.Equal(f.now.Add(14*day)) {
		t.Fatalf("session of %+v: token of %d, until %v, %v", account, len(token), expires, err)
	}
	return token
}

func TestASessionLastsFourteenDaysAndIsRenewedInUse(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		anna := f.mustSignUp(t, "anna")
		token := mustStart(t, f, anna)
		for _, step := range []struct {
			at      time.Duration
			expires time.Duration // zero if the session is over
			renewed bool
		}{
			{at: 0, expires: 14 * day},
			{at: day, expires: 14 * day},
			{at: day + time.Microsecond, expires: 15*day + time.Microsecond, renewed: true},
			{at: day + time.Hour, expires: 15*day + time.Microsecond},
			{at: 15 * day, expires: 29 * day, renewed: true},
			{at: 29*day - time.Microsecond, expires: 43*day - time.Microsecond, renewed: true},
			{at: 43*day - time.Microsecond},
			{at: 60 * day},
		} {
			f.now = start.Add(step.at)
			account, expires, renewed, err := f.Session(t.Context(), token)
			if step.expires == 0 {
				if err != ErrNoSession || account != (Account{}) {
					t.Errorf("at %v: %+v, %v, want ErrNoSession", step.at, account, err)
				}
				continue
			}
			if account != anna || !expires.Equal(start.Add(step.expires)) || renewed != step.renewed || err != nil {
				t.Errorf("at %v: %+v, %v later, renewed %v, %v", step.at, account, expires.Sub(start), renewed, err)
			}
		}
	})
}

func TestAnEndedSessionStaysEndedAndOthersGoOn(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		anna := f.mustSignUp(t, "anna")
		ended, other := mustStart(t, f, anna), mustStart(t, f, anna)
		if ended == other {
			t.Fatal("two sessions have one token")
		}
		for range 2 {
			if err := f.EndSession(t.Context(), ended); err != nil {
				t.Fatal(err)
			}
			if _, _, _, err := f.Session(t.Context(), ended); err != ErrNoSession {
				t.Errorf("the ended session: %v", err)
			}
		}
		if account, _, _, err := f.Session(t.Context(), other); account != anna || err != nil {
			t.Errorf("the other session: %+v, %v", account, err)
		}
	})
}

func TestWhatIsNoTokenHasNoSessionAndEndsWithoutError(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		token := mustStart(t, f, f.mustSignUp(t, "anna"))
		for _, text := range []string{
			"", "x", token[1:], token + "=", strings.ToUpper(token[:1]) + strings.ToLower(token[1:]),
			strings.Repeat("A", 43), strings.Repeat("A", 1<<20), hashToken(token), "' OR 1=1 --", "\x00\xff",
		} {
			if _, _, _, err := f.Session(t.Context(), text); err != ErrNoSession {
				t.Errorf("%.50q: %v, want ErrNoSession", text, err)
			}
			if err := f.EndSession(t.Context(), text); err != nil {
				t.Errorf("%.50q: %v", text, err)
			}
		}
		if _, _, _, err := f.Session(t.Context(), token); err != nil {
			t.Errorf("the real token: %v", err)
		}
	})
}

func TestTheDatabaseKnowsTokensOnlyByTheirHash(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 1)
		token := mustStart(t, f, f.mustSignUp(t, "anna"))
		var stored string
		if err := db.QueryRowContext(t.Context(), `SELECT token_hash FROM sessions`).Scan(&stored); err != nil {
			t.Fatal(err)
		}
		if stored != hashToken(token) || stored == token {
			t.Errorf("stored %q for %q", stored, token)
		}
	})
}

func TestASessionNeedsItsAccount(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 2)
		token := mustStart(t, f, f.mustSignUp(t, "anna"))
		if _, err := db.ExecContext(t.Context(), `DELETE FROM accounts`); err != nil {
			t.Fatal(err)
		}
		f.mustSignUp(t, "berta") // gets a number of her own
		if account, _, _, err := f.Session(t.Context(), token); err != ErrNoSession {
			t.Errorf("got %+v, %v, want ErrNoSession", account, err)
		}
	})
}

func TestANewSessionSweepsTheAccountsExpiredOnesOnly(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		f := newFixture(t, db, 2)
		anna, berta := f.mustSignUp(t, "anna"), f.mustSignUp(t, "berta")
		mustStart(t, f, anna)
		mustStart(t, f, berta)
		f.now = start.Add(time.Microsecond)
		live := mustStart(t, f, anna)
		f.now = start.Add(14 * day)
		mustStart(t, f, anna)
		if n := f.count(t, "sessions"); n != 3 { // two of anna's, and berta's, which is hers to sweep
			t.Errorf("%d sessions, want 3", n)
		}
		if _, _, _, err := f.Session(t.Context(), live); err != nil {
			t.Errorf("the session with a microsecond left: %v", err)
		}
	})
}

// The real clocks lie far from the tests' one: case B11 shows only there.
func TestSessionsWorkOnTheDatabasesOwnClock(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		db := opened.DB
		a := New(db, Config{})
		demo, err := a.Demo(t.Context(), Member)
		if err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		token, expires, err := a.StartSession(t.Context(), demo)
		after := time.Now()
		// The server runs on this machine, and its clock has whole milliseconds.
		if err != nil || expires.Before(before.Add(14*day-2*time.Millisecond)) || expires.After(after.Add(14*day+2*time.Millisecond)) {
			t.Fatalf("started at %v until %v, %v", before, expires, err)
		}
		account, until, renewed, err := a.Session(t.Context(), token)
		if account != demo || !until.Equal(expires) || renewed || err != nil {
			t.Errorf("got %+v, %v, %v, %v", account, until, renewed, err)
		}
		if _, err := db.ExecContext(t.Context(), `UPDATE sessions SET expires_micros = expires_micros - ?`, (2 * day).Microseconds()); err != nil {
			t.Fatal(err)
		}
		if _, until, renewed, err = a.Session(t.Context(), token); !renewed || until.Before(expires) || err != nil {
			t.Errorf("two days later: %v, %v, %v", until, renewed, err)
		}
		if err := a.EndSession(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := a.Session(t.Context(), token); !errors.Is(err, ErrNoSession) {
			t.Errorf("ended: %v", err)
		}
	})
}
