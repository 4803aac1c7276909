package app_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

const newPassword = "another battery, staple"

// change is the body of a change of the password.
func change(current, password string) string {
	return fmt.Sprintf(`{"currentPassword":%q,"newPassword":%q}`, current, password)
}

// with sends some cookies along, as a browser would.
func with(cookies ...*http.Cookie) func(*http.Request) {
	return func(r *http.Request) {
		for _, cookie := range cookies {
			r.AddCookie(cookie)
		}
	}
}

// used is how many units of a policy stand.
func (w *world) used(policy string) int {
	return w.count("SELECT coalesce(sum(used), 0) FROM rate_limits WHERE policy = '" + policy + "'")
}

// browser signs somebody in and gives the session's cookie and the device's.
func (w *world) browser(address, name string, shown ...*http.Cookie) (session, device *http.Cookie) {
	w.t.Helper()
	got := w.send(address, "POST", "/api/sign-in", fmt.Sprintf(`{"username":%q,"password":%q}`, name, rightPassword), with(shown...))
	expect(w.t, got, http.StatusOK)
	cookies := got.Cookies()
	if len(cookies) != 2 || cookies[0].Name != "weir_session" || cookies[1].Name != "weir_device" {
		w.t.Fatalf("signing in sets %v", cookies)
	}
	return cookies[0], cookies[1]
}

// Row F1.
func TestANewPasswordEndsTheOtherSessions(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	own, _ := w.browser("203.0.113.1", "someone")
	other, _ := w.browser("203.0.113.2", "someone")
	w.clock.At(25 * time.Hour) // so that the session is renewed by what follows
	got := w.send("203.0.113.1", "PATCH", "/api/sign-in", change(rightPassword, newPassword), with(own))
	expect(t, got, http.StatusNoContent)
	if cookies := got.Cookies(); len(cookies) != 1 || cookies[0].Value != own.Value {
		t.Errorf("cookies %v, want the session's, renewed", cookies)
	}
	expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", with(own)), http.StatusOK)
	expect(t, w.send("203.0.113.2", "GET", "/api/sign-in", "", with(other)), http.StatusUnauthorized)
	expect(t, w.signIn("203.0.113.3", "someone", rightPassword), http.StatusUnauthorized)
	expect(t, w.signIn("203.0.113.3", "someone", newPassword), http.StatusOK)
}

// Rows A2, F1, F3; cases E05, E13: a password is guessed at on three routes, and all share one budget.
func TestEveryRouteThatComparesAPasswordSharesTheAccountsGuesses(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	session, _ := w.browser("203.0.113.1", "someone")
	guess := []func(address, password string) reply{
		func(address, password string) reply { return w.signIn(address, "SomeOne", password) },
		func(address, password string) reply {
			return w.send(address, "PATCH", "/api/sign-in", change(password, rightPassword), with(session))
		},
		func(address, password string) reply {
			return w.send(address, "DELETE", "/api/sign-up", fmt.Sprintf(`{"password":%q}`, password), with(session))
		},
	}
	for i := range 8 {
		got := guess[i%3](fmt.Sprintf("203.0.113.%d", i+10), "wrong password")
		expect(t, got, http.StatusUnauthorized)
		if text := fmt.Sprint(got.Header) + got.body; strings.Contains(text, "failed") || len(got.Cookies()) > 0 {
			t.Errorf("a wrong password is answered %s", text)
		}
		if w.used("failed-sign-ins") != i+1 {
			t.Fatalf("%d guesses count, want %d", w.used("failed-sign-ins"), i+1)
		}
		// A right one, and one that nobody compares, cost nothing.
		if i < 7 {
			expect(t, w.send("203.0.113.30", "PATCH", "/api/sign-in", change(rightPassword, rightPassword), with(session)), http.StatusNoContent)
			expect(t, w.send("203.0.113.30", "PATCH", "/api/sign-in", change("wrong password", "short"), with(session)), http.StatusUnprocessableEntity)
		}
	}
	w.hashes.Store(0)
	for i, guess := range guess {
		wrong, right := guess(fmt.Sprintf("203.0.113.%d", i+40), "wrong password"), guess(fmt.Sprintf("203.0.113.%d", i+50), rightPassword)
		expect(t, right, http.StatusTooManyRequests)
		if wrong.body != right.body || fmt.Sprint(wrong.Header) != fmt.Sprint(right.Header) || len(right.Cookies()) > 0 {
			t.Errorf("the right password and a wrong one differ:\n%v %s\n%v %s", wrong.Header, wrong.body, right.Header, right.body)
		}
		if !strings.Contains(right.body, `"violated-policies":["failed-sign-ins"]`) {
			t.Errorf("the refusal says %s", right.body)
		}
	}
	if n := w.hashes.Load(); n != 0 {
		t.Errorf("%d hashes while limited", n)
	}
	w.clock.At(15 * time.Minute)
	expect(t, guess[1]("203.0.113.60", rightPassword), http.StatusNoContent)
	expect(t, guess[2]("203.0.113.61", rightPassword), http.StatusNoContent)
}

// Rows F1, F3; case E09: also with a session, the attempt is counted before the password is looked at.
func TestFiftyParallelGuessesWithASessionCompareEightAtMost(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	session, _ := w.browser("203.0.113.1", "someone")
	w.hashes.Store(0)
	answers := fiftyAtOnce(func(i int) reply {
		method, path, body := "PATCH", "/api/sign-in", change("wrong password", newPassword)
		if i%2 == 0 {
			method, path, body = "DELETE", "/api/sign-up", `{"password":"wrong password"}`
		}
		return w.send(fmt.Sprintf("203.0.113.%d", i), method, path, body, with(session))
	})
	compared, refused := answers[http.StatusUnauthorized], answers[http.StatusTooManyRequests]
	if n := w.hashes.Load(); n != 8 || compared != 8 || refused != 42 {
		t.Errorf("%d hashes, %d compared, %d refused", n, compared, refused)
	}
}

// Row F3.
func TestAMemberDeletesTheAccountWithAllThatBelongsToIt(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	w.member("another")
	own, device := w.browser("203.0.113.1", "someone")
	other, _ := w.browser("203.0.113.2", "someone")
	anothers, _ := w.browser("203.0.113.3", "another")
	for _, session := range []*http.Cookie{own, anothers} {
		expect(t, w.send("203.0.113.1", "POST", "/api/ai-log", `{"model":"a-model","prompt":"p","response":"r","tokens":1}`, with(session)), http.StatusCreated)
	}
	for body, want := range map[string]int{`{}`: 400, `{"password":""}`: 400, `{"password":"wrong password"}`: 401, `{"password":1}`: 400} {
		expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-up", body, with(own)), want)
	}
	expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-up", `{"password":"`+rightPassword+`"}`), http.StatusUnauthorized)
	expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", with(own)), http.StatusOK)
	got := w.send("203.0.113.1", "DELETE", "/api/sign-up", `{"password":"`+rightPassword+`"}`, with(own))
	expect(t, got, http.StatusNoContent)
	if cookies := got.Cookies(); len(cookies) != 1 || cookies[0].Name != "weir_session" || cookies[0].MaxAge >= 0 {
		t.Errorf("the cookie stays: %v", cookies)
	}
	for _, session := range []*http.Cookie{own, other} {
		expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", with(session)), http.StatusUnauthorized)
		expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-up", `{"password":"`+rightPassword+`"}`, with(session)), http.StatusUnauthorized)
	}
	expect(t, w.send("203.0.113.3", "GET", "/api/sign-in", "", with(anothers)), http.StatusOK)
	if text := w.dump("accounts", "sessions", "devices"); strings.Contains(text, "someone") || strings.Count(text, "token_hash") != 1 || strings.Count(text, "id_hash") != 1 {
		t.Errorf("left are %s", text)
	}
	if n := w.count("SELECT count(*) FROM ai_log_entries"); n != 1 {
		t.Errorf("%d entries are left, want the other member's", n)
	}
	// The name is free again, and the old account's device is none of the new one's.
	w.member("someone")
	used := w.used("failed-sign-ins")
	expect(t, w.send("203.0.113.4", "POST", "/api/sign-in", `{"username":"someone","password":"wrong password"}`, with(device)), http.StatusUnauthorized)
	if w.used("failed-sign-ins") != used+1 || w.used("failed-sign-ins-device") != 0 {
		t.Error("the deleted account's device is known for the new one")
	}
}

// Row F1.
func TestSigningOutEverywhereEndsAllSessionsAndForgetsTheDevices(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	own, device := w.browser("203.0.113.1", "someone")
	other, _ := w.browser("203.0.113.2", "someone")
	expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-in?everywhere=1", ""), http.StatusUnauthorized)
	for _, query := range []string{"everywhere=", "everywhere=0", "everywhere=1&everywhere=1", "everywhere=true"} {
		expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-in?"+query, "", with(own)), http.StatusBadRequest)
	}
	expect(t, w.send("203.0.113.2", "GET", "/api/sign-in", "", with(other)), http.StatusOK)
	got := w.send("203.0.113.1", "DELETE", "/api/sign-in?everywhere=1", "", with(own))
	expect(t, got, http.StatusNoContent)
	if cookies := got.Cookies(); len(cookies) != 1 || cookies[0].Name != "weir_session" || cookies[0].MaxAge >= 0 {
		t.Errorf("the cookie stays: %v", cookies)
	}
	for _, session := range []*http.Cookie{own, other} {
		expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", with(session)), http.StatusUnauthorized)
	}
	w.send("203.0.113.1", "POST", "/api/sign-in", `{"username":"someone","password":"wrong password"}`, with(device))
	if w.used("failed-sign-ins") != 1 {
		t.Error("the device is still known")
	}
}

// Rows A4, F2, F3: the demo's accounts are everybody's.
func TestNobodyChangesDeletesOrSignsOutADemoAccountForOthers(t *testing.T) {
	w := newWorld(t)
	demo := w.send("203.0.113.1", "POST", "/api/demo-sign-in", `{"role":"admin"}`)
	expect(t, demo, http.StatusOK)
	if len(demo.Cookies()) != 1 {
		t.Fatalf("the demo sets %v, want a session alone", demo.Cookies())
	}
	session := with(demo.Cookies()[0])
	expect(t, w.send("203.0.113.1", "PATCH", "/api/sign-in", change("wrong password", newPassword), session), http.StatusForbidden)
	expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-up", `{"password":"wrong password"}`, session), http.StatusForbidden)
	expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-in?everywhere=1", "", session), http.StatusForbidden)
	expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", session), http.StatusOK)
	if w.used("failed-sign-ins") != 0 || w.hashes.Load() != 0 {
		t.Error("guesses at the demo count")
	}
}

// Row B9; cases E03, E04.
func TestAStrangerCannotLockAnOwnerOut(t *testing.T) {
	w := newWorld(t)
	w.member("victim")
	_, device := w.browser("203.0.113.1", "victim")
	w.clock.At(15 * time.Minute)
	stranger := func(i int) reply { return w.signIn(fmt.Sprintf("198.51.100.%d", i), "victim", "wrong password") }
	compared := 0
	for i := range 100 {
		if stranger(i).StatusCode == http.StatusUnauthorized {
			compared++
		}
	}
	if compared != 8 {
		t.Fatalf("%d of the stranger's guesses were compared, want 8", compared)
	}
	// On a known device the owner signs in at once, as often as anybody.
	_, device = w.browser("203.0.113.1", "victim", device)
	w.browser("203.0.113.1", "victim", device)
	// On a new one after the stated wait, however long the stranger goes on.
	owner := func() reply { return w.signIn("203.0.113.2", "victim", rightPassword) }
	for minutes := 0; minutes < 15; minutes++ {
		w.clock.At(time.Duration(15+minutes) * time.Minute)
		for i := range 10 {
			expect(t, stranger(100+i), http.StatusTooManyRequests)
		}
		got := owner()
		expect(t, got, http.StatusTooManyRequests)
		checkHeader(t, got, map[string]string{"Retry-After": fmt.Sprint(60 * (15 - minutes))})
	}
	w.clock.At(30 * time.Minute)
	expect(t, owner(), http.StatusOK)
	if n := w.used("failed-sign-ins-device"); n != 0 {
		t.Errorf("%d units of the device's stand after right passwords only", n)
	}
}

// Row B9; cases E05, E13, E14: who has somebody's device has the guesses of one, and they are told of like any others.
func TestAStolenDeviceHasEightGuessesOfItsOwn(t *testing.T) {
	w := newWorld(t)
	w.member("victim")
	_, device := w.browser("203.0.113.1", "victim")
	w.clock.At(15 * time.Minute)
	address := 0
	guess := func(password string, cookies ...*http.Cookie) reply {
		address++
		return w.send(fmt.Sprintf("198.51.100.%d", address), "POST", "/api/sign-in", fmt.Sprintf(`{"username":"victim","password":%q}`, password), with(cookies...))
	}
	type seen struct {
		statuses []int
		headers  []http.Header
		bodies   []string
	}
	play := func(cookies ...*http.Cookie) (s seen) {
		for range 12 {
			got := guess("wrong password", cookies...)
			s.statuses, s.headers, s.bodies = append(s.statuses, got.StatusCode), append(s.headers, got.Header), append(s.bodies, got.body)
		}
		return s
	}
	onDevice := play(device)
	if want := slices.Concat(slices.Repeat([]int{401}, 8), slices.Repeat([]int{429}, 4)); !slices.Equal(onDevice.statuses, want) {
		t.Fatalf("on a stolen device: %v", onDevice.statuses)
	}
	if w.used("failed-sign-ins") != 0 || w.used("failed-sign-ins-device") != 8 {
		t.Errorf("%d units of the account's stand and %d of the device's, want 0 and 8", w.used("failed-sign-ins"), w.used("failed-sign-ins-device"))
	}
	w.hashes.Store(0)
	expect(t, guess(rightPassword, device), http.StatusTooManyRequests)
	if w.hashes.Load() != 0 {
		t.Error("a password is hashed while the device is limited")
	}
	if without := play(); fmt.Sprint(without) != fmt.Sprint(onDevice) {
		t.Errorf("with a device and without one differ:\n%v\n%v", onDevice, without)
	}
	if strings.Contains(fmt.Sprint(onDevice)+w.log.String(), "device") {
		t.Error("the answers or the log name the device's limit")
	}
	w.clock.At(30 * time.Minute)
	expect(t, guess(rightPassword, device), http.StatusOK)
}

// Row B9; case E01: a cookie that isn't good for the account is as none, in every byte and every unit.
func TestADeviceThatIsNotTheAccountsIsNone(t *testing.T) {
	w := newWorld(t)
	w.member("victim")
	w.member("another")
	revoked, revokedDevice := w.browser("203.0.113.1", "victim")
	expect(t, w.send("203.0.113.1", "DELETE", "/api/sign-in?everywhere=1", "", with(revoked)), http.StatusNoContent)
	_, expired := w.browser("203.0.113.2", "victim")
	w.clock.At(180*24*time.Hour + 15*time.Minute)
	_, anothers := w.browser("203.0.113.3", "another")
	elsewhere := newWorld(t, func(s *app.Settings) { s.Secret = []byte("the secret of another deployment, long enough") })
	elsewhere.member("victim")
	_, forged := elsewhere.browser("203.0.113.4", "victim")

	cookies := map[string][]*http.Cookie{
		"none": nil, "another account's": {anothers}, "revoked": {revokedDevice}, "expired": {expired}, "forged": {forged},
		"nonsense": {{Name: "weir_device", Value: "....x"}},
	}
	answers := map[string]bool{}
	n := 0
	for kind, shown := range cookies {
		before := w.used("failed-sign-ins")
		for _, name := range []string{"victim", "nobody"} {
			n++
			got := w.send(fmt.Sprintf("198.51.100.%d", n), "POST", "/api/sign-in", fmt.Sprintf(`{"username":%q,"password":"wrong password"}`, name), with(shown...))
			expect(t, got, http.StatusUnauthorized)
			answers[fmt.Sprint(got.Header)+got.body] = true
		}
		if w.used("failed-sign-ins") != before+2 || w.used("failed-sign-ins-device") != 0 {
			t.Errorf("%s: it is counted apart", kind)
		}
	}
	if len(answers) != 1 {
		t.Errorf("the cookies are told apart: %v", answers)
	}
}

// Row B9.
func TestOneBrowserIsKnownForSeveralAccounts(t *testing.T) {
	w := newWorld(t)
	w.member("first")
	w.member("second")
	_, device := w.browser("203.0.113.1", "first")
	_, device = w.browser("203.0.113.1", "second", device)
	for _, name := range []string{"first", "second"} {
		before := w.used("failed-sign-ins-device")
		w.send("203.0.113.1", "POST", "/api/sign-in", fmt.Sprintf(`{"username":%q,"password":"wrong password"}`, name), with(device))
		if w.used("failed-sign-ins-device") != before+1 {
			t.Errorf("the browser is not known for %s", name)
		}
	}
	if keys := w.count("SELECT count(*) FROM rate_limits WHERE policy = 'failed-sign-ins-device'"); keys != 2 {
		t.Errorf("%d counters for two accounts", keys)
	}
}

// Row B9: a known device stays known while the secret changes, in the steps that ratelimit.Config tells.
func TestASecretChangesAndNoDeviceIsForgotten(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	_, device := w.browser("203.0.113.1", "someone")
	old, fresh := storetest.Secret, []byte("another secret, which is to follow the first")
	for i, secrets := range [][2][]byte{{old, fresh}, {fresh, old}, {fresh, nil}} {
		w := newWorld(t, func(s *app.Settings) { s.DatabaseURL, s.Secret, s.OtherSecret = w.url, secrets[0], secrets[1] })
		w.send("203.0.113.2", "POST", "/api/sign-in", `{"username":"someone","password":"wrong password"}`, with(device))
		if w.used("failed-sign-ins-device") == 0 || w.used("failed-sign-ins") != 0 {
			t.Fatalf("step %d: the device is not known", i)
		}
		_, device = w.browser("203.0.113.1", "someone", device)
	}
}

// Row B9; case D12: two cookies are two lines, each out of reach of scripts and of connections without TLS.
func TestSigningInSetsTwoCookies(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	got := w.signIn("203.0.113.1", "someone", rightPassword)
	if lines := got.Header.Values("Set-Cookie"); len(lines) != 2 {
		t.Fatalf("lines %q", lines)
	}
	for i, lifetime := range []time.Duration{14 * 24 * time.Hour, 180 * 24 * time.Hour} {
		cookie := got.Cookies()[i]
		if !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteLaxMode || cookie.Path != "/" || !cookie.Expires.Equal(w.clock.Now().Add(lifetime)) {
			t.Errorf("cookie %v", cookie)
		}
		if strings.Contains(w.dump("sessions", "devices")+w.log.String(), cookie.Value) {
			t.Errorf("the value of %s is stored or logged", cookie.Name)
		}
	}
	// The device alone is no session.
	expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", with(got.Cookies()[1])), http.StatusUnauthorized)
}

// Row F1: the platform's timer takes what is expired, besides the counters.
func TestTheTimerSweepsSessionsAndDevicesToo(t *testing.T) {
	w := services(t)
	w.member("someone")
	w.browser("203.0.113.1", "someone")
	w.clock.At(180 * 24 * time.Hour)
	expect(t, w.send("", "GET", "/api/limits?op=sweep", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) }), http.StatusOK)
	if n := w.count("SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM devices)"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
