package app_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
)

// attacker tries passwords and codes from as many addresses as it likes.
type attacker struct {
	*world
	addresses int // it has used up
}

// elsewhere is an address that nobody has tried from.
func (a *attacker) elsewhere() string {
	a.addresses++
	return from(a.addresses - 1)
}

// compared says how many passwords were looked at while the attacker did something: the guesses that got through.
func (a *attacker) compared(do func()) int {
	before := a.hashes.Load()
	do()
	return int(a.hashes.Load() - before)
}

// tries guesses at a name's password, so many times, each from somewhere else.
func (a *attacker) tries(name string, times int, cookies ...*http.Cookie) {
	for range times {
		a.send(a.elsewhere(), "POST", "/api/sign-in", fmt.Sprintf(`{"username":%q,"password":"a wrong password"}`, name), with(cookies...))
	}
}

// minutes has do done in each of so many minutes, from one that is at a window's beginning.
func (a *attacker) minutes(from, to int, do func(minute int)) {
	for minute := from; minute < to; minute++ {
		a.clock.At(time.Duration(minute) * time.Minute)
		do(minute)
	}
}

// Issue 5, rows B9, C12, D2, D3, D9; cases E03, E07, E08, E11: each attack as it is made, and the guesses that get through, with the
// standard policy and with the hardened one.
func TestOfEachAttackSoManyGuessesGetThrough(t *testing.T) {
	hard := func(t *testing.T) []func(*app.Settings) {
		return []func(*app.Settings){hardened, newCaptchas(t).settings, detecting}
	}
	soft := func(*testing.T) []func(*app.Settings) { return []func(*app.Settings){detecting} }
	for _, attack := range []struct {
		name               string
		standard, hardened int
		play               func(t *testing.T, a *attacker) int
	}{
		{"a thousand addresses guess at one account for a quarter of an hour", 8, 5, func(t *testing.T, a *attacker) int {
			a.member("victim")
			return a.compared(func() {
				a.minutes(0, 15, func(int) { a.tries("victim", 67) })
				if a.addresses != 1005 {
					t.Errorf("%d addresses", a.addresses)
				}
			})
		}},
		{"a thousand addresses try a leaked password each, at accounts of their own, a hundred a minute", 1000, 101, func(t *testing.T, a *attacker) int {
			through := a.compared(func() {
				a.minutes(0, 10, func(minute int) {
					for victim := range 100 {
						a.tries(fmt.Sprintf("victim-%d", 100*minute+victim), 1)
					}
				})
			})
			if n := a.count("SELECT count(*) FROM alerts WHERE kind = 'credential-stuffing'"); n != 1 {
				t.Errorf("%d alerts of it, want 1", n)
			}
			return through
		}},
		{"one address tries a leaked password at each of two hundred accounts", 10, 50, func(t *testing.T, a *attacker) int {
			return a.compared(func() {
				for victim := range 200 {
					expectOneOf(t, a.signIn("203.0.113.77", fmt.Sprintf("victim-%d", victim), "a wrong password"), http.StatusUnauthorized, http.StatusTooManyRequests)
				}
			})
		}},
		{"a code is guessed at with a new one sent in between, from everywhere", 5, 5, func(t *testing.T, a *attacker) int {
			through := 0
			for range 3 { // as many as the phone is sent
				code := a.codeFor(a.elsewhere(), somePhone)
				for range 10 {
					if a.tryCode(a.elsewhere(), somePhone, wrongCode(code)).StatusCode == http.StatusUnauthorized {
						through++
					}
				}
			}
			expect(t, a.tryCode(a.elsewhere(), somePhone, a.newestCode()), http.StatusTooManyRequests)
			return through
		}},
		{"a stranger uses up an account, to lock its owner out", 8, 5, func(t *testing.T, a *attacker) int {
			a.member("victim")
			_, device := a.browser("203.0.113.1", "victim")
			through := a.compared(func() { a.minutes(15, 30, func(int) { a.tries("victim", 10) }) })
			a.browser("203.0.113.2", "victim", device) // who has signed in here before notices nothing
			a.clock.At(44*time.Minute + 59*time.Second)
			a.tries("victim", 1)
			a.clock.At(45 * time.Minute) // and elsewhere waits as long as was told, however long it goes on
			expect(t, a.signIn("203.0.113.3", "victim", rightPassword), http.StatusOK)
			return through
		}},
		{"the cookie of a device is stolen", 8, 5, func(t *testing.T, a *attacker) int {
			a.member("victim")
			_, device := a.browser("203.0.113.1", "victim")
			through := a.compared(func() { a.minutes(15, 30, func(int) { a.tries("victim", 10, device) }) })
			expect(t, a.signIn("203.0.113.2", "victim", rightPassword), http.StatusOK) // the owner has another device
			return through
		}},
	} {
		for _, policy := range []struct {
			name     string
			settings func(*testing.T) []func(*app.Settings)
			want     int
		}{{"standard", soft, attack.standard}, {"hardened", hard, attack.hardened}} {
			t.Run(attack.name+", "+policy.name, func(t *testing.T) {
				a := &attacker{world: newWorld(t, policy.settings(t)...)}
				if got := attack.play(t, a); got != policy.want {
					t.Errorf("%d guesses get through, want %d", got, policy.want)
				}
			})
		}
	}
}

// Row D9: an attack that is found out switches the CAPTCHA on for everybody, and off again when it is over.
func TestAnAttackHasEverybodySolveACaptchaUntilItIsOver(t *testing.T) {
	w := newWorld(t, hardened, newCaptchas(t).settings, detecting)
	w.member("someone")
	a := &attacker{world: w}
	expect(t, w.signIn("203.0.113.1", "someone", rightPassword), http.StatusOK)
	a.minutes(1, 4, func(minute int) {
		for victim := range 100 {
			a.tries(fmt.Sprintf("victim-%d-%d", minute, victim), 1)
		}
	})
	if got := w.signIn("203.0.113.2", "someone", rightPassword); got.StatusCode != http.StatusTooManyRequests || got.json(t)["captcha"] == nil {
		t.Errorf("without a CAPTCHA: %d %s", got.StatusCode, got.body)
	}
	expect(t, w.signInWith("good", "203.0.113.3", "someone", rightPassword), http.StatusOK)
	w.clock.At(2 * time.Hour)
	expect(t, w.signIn("203.0.113.4", "someone", rightPassword), http.StatusOK)
}

func expectOneOf(t *testing.T, got reply, statuses ...int) {
	t.Helper()
	if !slices.Contains(statuses, got.StatusCode) {
		t.Fatalf("status %d, want one of %v: %s", got.StatusCode, statuses, got.body)
	}
}

// Row D9: while everybody needs a CAPTCHA no guess is compared, so that an attack which goes on isn't seen. It is one all the same.
func TestAnAttackThatGoesOnBehindTheCaptchaIsOneAlert(t *testing.T) {
	a := &attacker{world: newWorld(t, hardened, newCaptchas(t).settings, detecting)}
	a.minutes(0, 70, func(minute int) {
		for victim := range 60 {
			a.tries(fmt.Sprintf("victim-%d-%d", minute, victim), 1)
		}
	})
	if alerts, attacks := a.count("SELECT count(*) FROM alerts"), a.count("SELECT count(*) FROM attacks"); alerts != 1 || attacks != 1 {
		t.Errorf("%d alerts of %d attacks, want one", alerts, attacks)
	}
}
