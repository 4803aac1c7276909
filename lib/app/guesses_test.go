package app_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/captcha"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/stuffing"
)

func hardened(s *app.Settings) { s.Hardened = true }

const (
	captchaSecret  = "the-secret-of-the-captcha"
	captchaSiteKey = "the-key-of-the-site"
)

// captchas is a provider of CAPTCHAs. A token that begins with "good" is good once.
type captchas struct {
	*httptest.Server
	answer func(http.ResponseWriter) // in place of the provider's own

	mu    sync.Mutex
	shown []string // tokens
}

func newCaptchas(t *testing.T) *captchas {
	c := &captchas{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := r.ParseForm(); err != nil || r.Method != "POST" || r.PostForm.Get("secret") != captchaSecret || len(r.PostForm) != 2 {
			t.Errorf("the provider is asked %s %v, %v", r.Method, r.PostForm, err)
		}
		token := r.PostForm.Get("response")
		good := strings.HasPrefix(token, "good") && !slices.Contains(c.shown, token)
		c.shown = append(c.shown, token)
		if c.answer != nil {
			c.answer(w)
			return
		}
		fmt.Fprintf(w, `{"success": %t, "error-codes": []}`, good)
	}))
	t.Cleanup(c.Close)
	return c
}

// settings has sign-in use it.
func (c *captchas) settings(s *app.Settings) {
	s.Captcha = &captcha.Config{Provider: captcha.Turnstile, SiteKey: captchaSiteKey, Secret: captchaSecret, URL: c.URL}
}

func (c *captchas) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.shown)
}

// from gives an address for each number, no two alike.
func from(i int) string { return fmt.Sprintf("198.51.%d.%d", 100+i/250, 1+i%250) }

func (w *world) signInWith(token, address, name, password string, cookies ...*http.Cookie) reply {
	w.t.Helper()
	body := fmt.Sprintf(`{"username":%q,"password":%q,"captcha":%q}`, name, password, token)
	return w.send(address, "POST", "/api/sign-in", body, with(cookies...))
}

// sameBytes fails the test unless two answers are alike.
func sameBytes(t *testing.T, what string, a, b reply) {
	t.Helper()
	if a.StatusCode != b.StatusCode || a.body != b.body || fmt.Sprint(a.Header) != fmt.Sprint(b.Header) {
		t.Errorf("%s differ:\n%d %v %s\n%d %v %s", what, a.StatusCode, a.Header, a.body, b.StatusCode, b.Header, b.body)
	}
}

// Row D2; cases A05, A07, E01, E04, E13, E14: what a client sees that guesses as often as it may, and what it is told when it asks
// once too often.
func TestEachWrongPasswordInARowWaitsLongerForTheNext(t *testing.T) {
	type step struct {
		at       int // seconds
		guesses  int // that are compared
		limit    int // of the rung that refuses the next
		window   int
		waitsFor int
	}
	steps := []step{
		{0, 3, 3, 10, 10},
		{10, 1, 4, 60, 50},
		{60, 1, 5, 900, 840},
		{900, 3, 5, 900, 10}, // the first three have left the log
		{910, 1, 5, 900, 50},
		{960, 1, 5, 900, 840},
	}
	var all []string
	for _, name := range []string{"someone", "nobody"} {
		w := newWorld(t, hardened)
		w.member("someone")
		address, seen := 0, ""
		guess := func(password string) reply {
			address++
			got := w.signIn(from(address), name, password)
			seen += fmt.Sprintln(got.StatusCode, got.Header, got.body)
			return got
		}
		for _, step := range steps {
			w.clock.At(time.Hour + time.Duration(step.at)*time.Second - time.Second)
			if step.at > 0 {
				expect(t, guess("wrong password"), http.StatusTooManyRequests) // a second too early; what is refused pushes nothing out
			}
			w.clock.At(time.Hour + time.Duration(step.at)*time.Second)
			for range step.guesses {
				got := guess("wrong password")
				expect(t, got, http.StatusUnauthorized)
				if strings.Contains(fmt.Sprint(got.Header)+got.body, "failed") {
					t.Fatalf("the account's limit shows before it refuses: %v", got.Header)
				}
			}
			w.hashes.Store(0)
			wrong, right := guess("wrong password"), guess(rightPassword)
			sameBytes(t, "a wrong password and the right one", wrong, right)
			expect(t, wrong, http.StatusTooManyRequests)
			checkHeader(t, wrong, map[string]string{
				"Retry-After": strconv.Itoa(step.waitsFor), "Ratelimit-Limit": strconv.Itoa(step.limit), "Ratelimit-Remaining": "0",
				"Ratelimit-Policy": fmt.Sprintf(`"sign-in";q=50;w=900, "edge";q=1000;w=60, "failed-sign-ins";q=%d;w=%d`, step.limit, step.window),
			})
			problem := wrong.json(t)
			if fmt.Sprint(problem["violated-policies"]) != "[failed-sign-ins]" || problem["limit"] != float64(step.limit) ||
				problem["retryAfterSeconds"] != float64(step.waitsFor) || problem["captcha"] != nil || w.hashes.Load() != 0 {
				t.Errorf("at %d s, with %d hashes: %s", step.at, w.hashes.Load(), wrong.body)
			}
		}
		w.clock.At(3 * time.Hour)
		if name == "someone" {
			expect(t, w.signIn(from(1), name, rightPassword), http.StatusOK)
		}
		all = append(all, seen)
	}
	if all[0] != all[1] {
		t.Errorf("an account that exists and one that doesn't differ:\n%s\n%s", all[0], all[1])
	}
}

// Row D2; cases E11, A05: 50 from one address in any quarter of an hour, for whatever names.
func TestHardenedSignInAdmitsFiftyOfAnAddressInAnyQuarterOfAnHour(t *testing.T) {
	w := newWorld(t, hardened)
	w.clock.At(14 * time.Minute) // a fixed window would end soon
	for i := range 50 {
		got := w.signIn("203.0.113.9", fmt.Sprint("nobody", i), "wrong password")
		expect(t, got, http.StatusUnauthorized)
		checkHeader(t, got, map[string]string{"Ratelimit-Limit": "50", "Ratelimit-Remaining": strconv.Itoa(49 - i)})
	}
	for _, at := range []time.Duration{14 * time.Minute, 15 * time.Minute, 29*time.Minute - time.Second} {
		w.clock.At(at)
		got := w.signIn("203.0.113.9", "another", "wrong password")
		expect(t, got, http.StatusTooManyRequests)
		checkHeader(t, got, map[string]string{"Retry-After": fmt.Sprint(int((29*time.Minute - at).Seconds()))})
	}
	expect(t, w.signIn("203.0.113.10", "another", "wrong password"), http.StatusUnauthorized)
	w.clock.At(29 * time.Minute)
	expect(t, w.signIn("203.0.113.9", "another", "wrong password"), http.StatusUnauthorized)
}

// Row D2; cases E05, E16: a right password gives every rung back, so that one who signs in often and in several places at once
// isn't kept waiting.
func TestARightPasswordCostsNoRung(t *testing.T) {
	w := newWorld(t, hardened)
	w.member("someone")
	for i := range 20 {
		expect(t, w.signIn(from(i), "someone", rightPassword), http.StatusOK)
	}
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() {
			if got := w.signIn(from(100+i), "someone", rightPassword); got.StatusCode != http.StatusOK {
				t.Errorf("one of three at once: %d %s", got.StatusCode, got.body)
			}
		})
	}
	group.Wait()
	expect(t, w.signIn(from(200), "someone", "wrong password"), http.StatusUnauthorized)
	expect(t, w.signIn(from(201), "someone", rightPassword), http.StatusOK)
	for _, rung := range []string{"failed-sign-ins", "failed-sign-ins-delay-1", "failed-sign-ins-delay-2"} {
		if n := w.used(rung); n != 1 {
			t.Errorf("%d units of %s stand after one wrong password", n, rung)
		}
	}
}

// Row D2; case E09.
func TestFiftyParallelGuessesCompareThreeAtMostWhenHardened(t *testing.T) {
	w := newWorld(t, hardened)
	w.member("someone")
	w.hashes.Store(0)
	answers := fiftyAtOnce(func(i int) reply { return w.signIn(from(i), "someone", theLastIsRight(i)) })
	compared, refused := answers[http.StatusUnauthorized]+answers[http.StatusOK], answers[http.StatusTooManyRequests]
	// A right password that is among the first gives its unit back to a fourth.
	if n := w.hashes.Load(); n < 3 || n > 4 || compared != n || refused != 50-n {
		t.Errorf("%d hashes, %d compared, %d refused", n, compared, refused)
	}
}

// Rows D2, F1, F3: one budget for every route that compares the same secret.
func TestEveryRouteThatComparesAPasswordIsOnTheSameLadder(t *testing.T) {
	c := newCaptchas(t)
	w := newWorld(t, hardened, c.settings)
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
	for i, at := range []time.Duration{0, 0, 0, 10 * time.Second, time.Minute} {
		w.clock.At(time.Hour + at)
		expect(t, guess[i%3](from(i), "wrong password"), http.StatusUnauthorized)
		if i > 1 {
			for _, guess := range guess {
				expect(t, guess(from(20+i), "wrong password"), http.StatusTooManyRequests)
			}
		}
		if n := w.used("failed-sign-ins"); n != i+1 {
			t.Fatalf("%d guesses count, want %d", n, i+1)
		}
	}
	for i, guess := range guess {
		wrong, right := guess(from(40+i), "wrong password"), guess(from(50+i), rightPassword)
		sameBytes(t, "a wrong password and the right one", wrong, right)
		if offered := strings.Contains(wrong.body, "captcha"); offered != (i == 0) { // the other two take no token
			t.Errorf("route %d: %s", i, wrong.body)
		}
	}
	w.clock.At(2 * time.Hour)
	expect(t, guess[1](from(60), rightPassword), http.StatusNoContent)
	expect(t, guess[2](from(61), rightPassword), http.StatusNoContent)
}

// climb uses up what strangers have of an account's guesses, and leaves the clock there.
func (w *world) climb(name string, cookies ...*http.Cookie) {
	w.t.Helper()
	for i, at := range []time.Duration{0, 0, 0, 10 * time.Second, 50 * time.Second} {
		if i > 0 && at > 0 {
			w.clock.Add(at)
		}
		got := w.send(from(900+i), "POST", "/api/sign-in", fmt.Sprintf(`{"username":%q,"password":"a wrong password"}`, name), with(cookies...))
		expect(w.t, got, http.StatusUnauthorized)
	}
}

// Rows D2, B9; cases E01, E03, E13: with a CAPTCHA the owner gets in while a stranger goes on, and what is told of it is the same
// whoever asks for whom with what.
func TestACaptchaLetsAnOwnerInWhileAStrangerHammers(t *testing.T) {
	c := newCaptchas(t)
	w := newWorld(t, hardened, c.settings)
	w.member("victim")
	session, device := w.browser("203.0.113.1", "victim")
	w.clock.At(time.Hour)
	w.climb("victim")
	w.climb("nobody")
	w.climb("victim", device)
	w.clock.At(time.Hour + 4*time.Minute)
	for i := range 100 {
		expect(t, w.signIn(from(i), "victim", "wrong password"), http.StatusTooManyRequests)
	}
	if c.asked() != 0 {
		t.Fatalf("without a token the provider is asked %d times", c.asked())
	}
	refused := w.signIn("203.0.113.20", "victim", "wrong password")
	expect(t, refused, http.StatusTooManyRequests)
	offer, _ := refused.json(t)["captcha"].(map[string]any)
	if len(offer) != 2 || offer["provider"] != "turnstile" || offer["siteKey"] != captchaSiteKey {
		t.Errorf("offered is %s", refused.body)
	}
	w.hashes.Store(0)
	// The ladders differ in when they began, and so in nothing but the wait.
	for what, got := range map[string]reply{
		"the right password":                  w.signIn("203.0.113.21", "victim", rightPassword),
		"a bad token":                         w.signInWith("bad", "203.0.113.22", "victim", "wrong password"),
		"the right password with a bad token": w.signInWith("bad", "203.0.113.23", "victim", rightPassword),
	} {
		sameBytes(t, what+" and none", got, refused)
	}
	if w.hashes.Load() != 0 || c.asked() != 2 {
		t.Errorf("%d hashes, the provider is asked %d times", w.hashes.Load(), c.asked())
	}
	but := func(got reply) string {
		return regexp.MustCompile(`in \d+ minutes|"retryAfterSeconds":\d+`).ReplaceAllString(got.body, "")
	}
	w.clock.At(time.Hour + 5*time.Minute)
	a, b, d := w.signIn("203.0.113.24", "victim", "x"), w.signIn("203.0.113.24", "nobody", "x"), w.signInWith("", "203.0.113.24", "victim", "x", device)
	if a.StatusCode != 429 || but(a) != but(b) || but(a) != but(d) {
		t.Errorf("names and devices differ:\n%s\n%s\n%s", a.body, b.body, d.body)
	}

	// The owner.
	for i := range 10 {
		got := w.signInWith(fmt.Sprint("good", i), "203.0.113.30", "victim", rightPassword)
		expect(t, got, http.StatusOK)
		checkHeader(t, got, map[string]string{
			"Ratelimit-Policy":    `"sign-in";q=50;w=900, "edge";q=1000;w=60`,
			"Ratelimit-Remaining": strconv.Itoa(49 - i), // a sign-in is one, though it was decided twice
			"Ratelimit":           fmt.Sprintf(`"sign-in";r=%d;t=900, "edge";r=%d;t=60`, 49-i, 999-i),
		})
	}
	if n := w.used("failed-sign-ins-captcha"); n != 0 {
		t.Errorf("%d units stand after right passwords only", n)
	}
	expect(t, w.signInWith("good0", "203.0.113.31", "victim", rightPassword), http.StatusTooManyRequests) // it was shown before
	expect(t, w.signInWith("good-on-the-device", "203.0.113.32", "victim", rightPassword, device), http.StatusOK)
	expect(t, w.send("203.0.113.33", "GET", "/api/sign-in", "", with(session)), http.StatusOK)

	// Guesses stay bounded: five with a CAPTCHA in any quarter of an hour, on devices and off them together.
	for i := range 5 {
		cookies := []*http.Cookie{device}[:i%2]
		got := w.signInWith(fmt.Sprint("good-guess", i), from(300+i), "victim", "wrong password", cookies...)
		expect(t, got, http.StatusUnauthorized)
		if strings.Contains(fmt.Sprint(got.Header)+got.body, "failed") {
			t.Errorf("it shows before it refuses: %v", got.Header)
		}
	}
	w.hashes.Store(0)
	wrong := w.signInWith("good-6", "203.0.113.34", "victim", "wrong password")
	right := w.signInWith("good-7", "203.0.113.35", "victim", rightPassword)
	sameBytes(t, "a wrong password and the right one", wrong, right)
	expect(t, right, http.StatusTooManyRequests)
	checkHeader(t, right, map[string]string{"Retry-After": "900", "Ratelimit-Limit": "5"})
	sameBytes(t, "a good token over its budget and a bad one", right, w.signInWith("bad", "203.0.113.37", "victim", rightPassword))
	sameBytes(t, "a good token over its budget and none", right, w.signIn("203.0.113.38", "victim", "wrong password"))
	if fmt.Sprint(right.json(t)["violated-policies"]) != "[failed-sign-ins]" || right.json(t)["captcha"] == nil || w.hashes.Load() != 0 {
		t.Errorf("with %d hashes: %s", w.hashes.Load(), right.body)
	}
	w.clock.Add(15 * time.Minute)
	expect(t, w.signIn("203.0.113.36", "victim", rightPassword), http.StatusOK)

	if found := traces(w.log.String()+w.dump("rate_limits", "rate_limit_audit"), "good0", "good-", captchaSecret, captchaSiteKey, "victim"); len(found) > 0 {
		t.Errorf("the log or the limits hold %v", found)
	}
}

// Issue 10.14: a good token over its budget, a bad one and none get the same answer, header by
// header and byte by byte, at every moment, on every rung, with an attack and without one.
func TestARefusalTellsNothingOfTheToken(t *testing.T) {
	const strangers, onDevice = "strangers", "on a device"
	for _, attacked := range []bool{false, true} {
		for _, where := range []string{strangers, onDevice} {
			t.Run(fmt.Sprintf("attacked %t, %s", attacked, where), func(t *testing.T) {
				c := newCaptchas(t)
				w := newWorld(t, hardened, detecting, c.settings)
				w.member("victim")
				_, device := w.browser("203.0.113.1", "victim")
				var cookies []*http.Cookie
				if where == onDevice {
					cookies = append(cookies, device)
				}
				w.clock.At(time.Hour)
				if attacked {
					w.attack()
				} else {
					w.climb("victim", cookies...)
				}
				n, refusals := 0, map[string]bool{}
				for range 30 {
					n++
					guess := func(kind, password string) reply {
						return w.signInWith(fmt.Sprintf("%s-%d-%d", kind, n, len(password)), from(n), "victim", password, cookies...)
					}
					// Each is the first request of its address, so that the address's limits are
					// the same.
					good := guess("good", "wrong password")
					if good.StatusCode == http.StatusTooManyRequests {
						refusals[good.Header.Get("Retry-After")] = true
						n++
						sameBytes(t, "a good token and a bad one", good, guess("bad", "wrong password"))
						n++
						sameBytes(t, "a good token and a bad one with the right password", good, guess("bad", rightPassword))
						n++
						sameBytes(t, "a wrong password and the right one", good, guess("good", rightPassword))
						n++
						none := `{"username":"victim","password":"wrong password"}`
						sameBytes(t, "a good token and none", good, w.send(from(n), "POST", "/api/sign-in", none, with(cookies...)))
					}
					w.clock.Add(15 * time.Second)
				}
				if len(refusals) < 10 {
					t.Errorf("only %d different waits were seen: %v", len(refusals), refusals)
				}
			})
		}
	}
}

// Row D2: the address bounds how often the provider is asked, and nobody has it asked without need.
func TestTheProviderIsAskedWhenTheLastRungRefusesAndTheAddressAllows(t *testing.T) {
	c := newCaptchas(t)
	w := newWorld(t, hardened, c.settings)
	w.member("someone")
	w.clock.At(time.Hour)
	expect(t, w.signInWith("good1", from(1), "someone", rightPassword), http.StatusOK)
	for range 3 {
		expect(t, w.signInWith("good2", from(1), "someone", "wrong password"), http.StatusUnauthorized)
	}
	short := w.signInWith("good3", from(1), "someone", rightPassword) // a delay is to be waited for
	expect(t, short, http.StatusTooManyRequests)
	if c.asked() != 0 || strings.Contains(short.body, "captcha") {
		t.Errorf("asked %d times, %s", c.asked(), short.body)
	}
	for i, at := range []time.Duration{10 * time.Second, time.Minute} {
		w.clock.At(time.Hour + at)
		expect(t, w.signIn(from(2+i), "someone", "wrong password"), http.StatusUnauthorized)
	}
	for i := range 60 {
		expect(t, w.signInWith("bad", "203.0.113.9", "someone", rightPassword), http.StatusTooManyRequests)
		if want := min(i+1, 50); c.asked() != want {
			t.Fatalf("asked %d times by %d sign-ins of an address, want %d", c.asked(), i+1, want)
		}
	}
	got := w.signInWith("good4", "203.0.113.9", "someone", rightPassword)
	if c.asked() != 50 || fmt.Sprint(got.json(t)["violated-policies"]) != "[sign-in]" || got.json(t)["captcha"] != nil {
		t.Errorf("asked %d times, %s", c.asked(), got.body)
	}
	for _, body := range []string{`{"username":"someone","password":"x","captcha":7}`, `{"username":"someone","password":"x","captcha":"a b"}`,
		`{"username":"someone","password":"x","captcha":"` + strings.Repeat("x", captcha.MaxTokenBytes+1) + `"}`} {
		got := w.send(from(10), "POST", "/api/sign-in", body)
		expect(t, got, http.StatusBadRequest)
		if got.field(t, "field") != "captcha" {
			t.Errorf("%s", got.body)
		}
	}
	if c.asked() != 50 {
		t.Errorf("asked %d times", c.asked())
	}
}

// Row D2: a provider that is down.
func TestAProviderThatDoesNotSayIsTakenByThePolicy(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"an error": func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"nonsense": func(w http.ResponseWriter) { fmt.Fprint(w, `{"success": "perhaps"}`) },
		"wrong secret": func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"success": false, "error-codes": ["invalid-input-secret"]}`)
		},
	} {
		for _, open := range []bool{false, true} {
			t.Run(fmt.Sprint(name, open), func(t *testing.T) {
				c := newCaptchas(t)
				c.answer = answer
				w := newWorld(t, hardened, c.settings, func(s *app.Settings) { s.CaptchaOpen = open })
				w.member("someone")
				w.climb("someone")
				refused := w.signIn("203.0.113.1", "someone", rightPassword)
				right, wrong := w.signInWith("x", "203.0.113.2", "someone", rightPassword), w.signInWith("x", "203.0.113.3", "someone", "wrong password")
				if !open {
					sameBytes(t, "without a token and with one", right, refused)
					sameBytes(t, "a wrong password and the right one", right, wrong)
				} else {
					expect(t, right, http.StatusOK)
					expect(t, wrong, http.StatusUnauthorized)
					for i := range 4 {
						expect(t, w.signInWith("x", from(i), "someone", "wrong password"), http.StatusUnauthorized)
					}
					expect(t, w.signInWith("x", from(9), "someone", rightPassword), http.StatusTooManyRequests)
				}
				if n := strings.Count(w.log.String(), `"msg":"CAPTCHA not checked"`); n != c.asked() || n == 0 {
					t.Errorf("%d lines for %d questions", n, c.asked())
				}
			})
		}
	}
}

// Row D2: which of the ladders refuses shows in nothing, and each known device has one of its own.
func TestAKnownDeviceHasALadderOfItsOwn(t *testing.T) {
	w := newWorld(t, hardened)
	w.member("victim")
	_, device := w.browser("203.0.113.1", "victim")
	play := func(cookies ...*http.Cookie) (seen string) {
		for i := range 30 {
			got := w.send(from(i), "POST", "/api/sign-in", `{"username":"victim","password":"wrong password"}`, with(cookies...))
			seen += fmt.Sprintln(got.StatusCode, got.Header, got.body)
			w.clock.Add(3 * time.Second)
		}
		return seen
	}
	w.clock.At(time.Hour)
	without := play()
	w.clock.At(2 * time.Hour)
	if on := play(device); on != without || strings.Count(on, "\n401 ") < 3 {
		t.Errorf("with a device and without one differ:\n%s\n%s", on, without)
	}
	if strings.Contains(w.log.String(), "device") || strings.Contains(w.log.String(), "delay") {
		t.Error("the log names the limits behind the one")
	}
	w.clock.At(3 * time.Hour)
	w.climb("victim")
	expect(t, w.signIn("203.0.113.2", "victim", rightPassword), http.StatusTooManyRequests)
	w.browser("203.0.113.3", "victim", device)
}

// Rows B8, D2: who hammers an account for an hour raises the alert of its limit, and the rungs below raise none.
func TestTheRungsOfALadderRaiseNoAlerts(t *testing.T) {
	w := newWorld(t, hardened, withTokens)
	w.clock.At(time.Hour)
	compared := 0
	for second := range 3600 / 3 {
		w.clock.At(time.Hour + time.Duration(second)*3*time.Second)
		if w.signIn(from(second), "victim", "a wrong password").StatusCode == http.StatusUnauthorized {
			compared++
		}
	}
	if compared != 20 { // five in each quarter
		t.Errorf("%d guesses were compared in an hour", compared)
	}
	var alerts []string
	for _, item := range w.view("alerts", byToken).items(t).Items {
		alerts = append(alerts, fmt.Sprint(item["policy"], " ", item["windows"]))
	}
	if fmt.Sprint(alerts) != "[failed-sign-ins 4]" {
		t.Errorf("alerts are %v", alerts)
	}
	for rung, most := range map[string]int{"failed-sign-ins": 4, "failed-sign-ins-delay-1": 8, "failed-sign-ins-delay-2": 8} {
		if n := w.count("SELECT count(*) FROM rate_limit_audit WHERE policy = '" + rung + "'"); n == 0 || n > most {
			t.Errorf("%d audit rows of %s, want 1 to %d", n, rung, most)
		}
	}
	// One that waits as told is refused by the delays alone, and is no matter for an alert.
	quiet := newWorld(t, hardened, withTokens)
	for i := range 16 {
		quiet.clock.At(time.Hour + time.Duration(i/4)*15*time.Minute)
		quiet.signIn(from(i), "victim", "a wrong password")
	}
	if n := quiet.count("SELECT count(*) FROM rate_limit_audit WHERE policy = 'failed-sign-ins-delay-1'"); n != 4 {
		t.Errorf("%d audit rows", n)
	}
	if n := quiet.count("SELECT count(*) FROM alerts"); n != 0 {
		t.Errorf("%d alerts by delays", n)
	}
}

// attack begins an attack, and leaves the clock in it.
func (w *world) attack() {
	w.t.Helper()
	w.clock.Add(time.Minute)
	w.stuff(60)
	w.clock.Add(time.Minute)
	w.signIn("203.0.113.199", "another", "wrong password") // the first of the next minute tells
	w.clock.Add(stuffing.Remember)
	if !app.UnderAttack(w.app) {
		w.t.Fatal("no attack is on")
	}
}

// calm ends it.
func (w *world) calm() {
	w.t.Helper()
	if ended, err := stuffing.New(w.db.DB, stuffing.Config{Now: w.clock.Now}).End(w.t.Context()); !ended || err != nil {
		w.t.Fatalf("no attack was on: %v", err)
	}
	w.clock.Add(stuffing.Remember)
}

// Row D9: while an attack is on.
func TestUnderAttackEachSignInTakesACaptchaAndHasHalfOfTheGuesses(t *testing.T) {
	c := newCaptchas(t)
	w := newWorld(t, hardened, detecting, c.settings)
	w.member("someone")
	session, _ := w.browser("203.0.113.1", "someone")
	w.attack()
	start := w.clock.Now().Sub(storetest.Start)
	guesses, attempts := w.used("failed-sign-ins"), w.used("sign-in")
	w.hashes.Store(0)
	first := w.signIn("203.0.113.2", "someone", "wrong password")
	expect(t, first, http.StatusTooManyRequests)
	checkHeader(t, first, map[string]string{"Retry-After": "60", "Ratelimit-Remaining": "49", "Ratelimit-Limit": "50"})
	if first.json(t)["captcha"] == nil || fmt.Sprint(first.json(t)["violated-policies"]) != "[failed-sign-ins]" {
		t.Errorf("it says %s", first.body)
	}
	for what, got := range map[string]reply{
		"the right password":    w.signIn("203.0.113.3", "someone", rightPassword),
		"nobody":                w.signIn("203.0.113.4", "nobody", "wrong password"),
		"a bad token":           w.signInWith("bad", "203.0.113.5", "someone", rightPassword),
		"a bad token of nobody": w.signInWith("bad", "203.0.113.6", "nobody", "wrong password"),
	} {
		sameBytes(t, what+" and someone", got, first)
	}
	if w.hashes.Load() != 0 || w.used("failed-sign-ins") != guesses || w.used("sign-in") != attempts+5 {
		t.Errorf("%d hashes, %d guesses, %d attempts", w.hashes.Load(), w.used("failed-sign-ins")-guesses, w.used("sign-in")-attempts)
	}
	expect(t, w.signInWith("good1", "203.0.113.7", "someone", rightPassword), http.StatusOK)
	// 5, 4 and 3 are 3, 2 and 2.
	n := 0
	wrong := func() reply {
		n++
		return w.signInWith(fmt.Sprint("good-wrong", n), from(n), "someone", "wrong password")
	}
	for _, step := range []struct{ at, guesses, waits int }{{0, 2, 60}, {60, 1, 840}} {
		w.clock.At(start + time.Duration(step.at)*time.Second)
		for range step.guesses {
			expect(t, wrong(), http.StatusUnauthorized)
		}
		got := wrong()
		expect(t, got, http.StatusTooManyRequests)
		checkHeader(t, got, map[string]string{"Retry-After": strconv.Itoa(step.waits)})
		if got.json(t)["captcha"] == nil {
			t.Errorf("no CAPTCHA for the next one: %s", got.body)
		}
	}
	// The other routes take no CAPTCHA, and share what is left: nothing.
	expect(t, w.send("203.0.113.8", "PATCH", "/api/sign-in", change("wrong password", rightPassword), with(session)), http.StatusTooManyRequests)
	// When it is over, what was used stays used, of the whole.
	w.calm()
	expect(t, w.signIn("203.0.113.9", "someone", "wrong password"), http.StatusUnauthorized)
}

// Rows A2, D9: what an attack changes where there is no CAPTCHA, or the policy is the standard one.
func TestAnAttackChangesNoMoreThanWasSetUp(t *testing.T) {
	guess := func(w *world) reply { return w.signIn("203.0.113.9", "someone", "wrong password") }
	w := newWorld(t, hardened, detecting)
	w.attack()
	for range 2 {
		expect(t, guess(w), http.StatusUnauthorized)
	}
	got := guess(w)
	expect(t, got, http.StatusTooManyRequests)
	checkHeader(t, got, map[string]string{"Retry-After": "60", "Ratelimit-Limit": "2"})

	c := newCaptchas(t)
	w = newWorld(t, detecting, c.settings)
	w.attack()
	expect(t, guess(w), http.StatusTooManyRequests)
	for i := range 8 {
		expect(t, w.signInWith(fmt.Sprint("good", i), from(i), "someone", "wrong password"), http.StatusUnauthorized)
	}
	expect(t, w.signInWith("good8", from(8), "someone", "wrong password"), http.StatusTooManyRequests)

	w = newWorld(t, detecting)
	w.attack()
	for range 8 {
		expect(t, guess(w), http.StatusUnauthorized)
	}
	expect(t, guess(w), http.StatusTooManyRequests)
}

// Rows A1, A2: the standard policy takes no notice of a CAPTCHA, and has no ladder.
func TestStandardSignInIsAsItWasWithACaptchaSetUp(t *testing.T) {
	c := newCaptchas(t)
	w := newWorld(t, c.settings)
	for i := range 8 {
		expect(t, w.signInWith("good", from(i), "nobody", "wrong password"), http.StatusUnauthorized)
	}
	got := w.signInWith("good", from(8), "nobody", "wrong password")
	expect(t, got, http.StatusTooManyRequests)
	if c.asked() != 0 || strings.Contains(got.body, "captcha") {
		t.Errorf("asked %d times: %s", c.asked(), got.body)
	}
	if n := w.count("SELECT count(DISTINCT policy) FROM rate_limits"); n != 3 {
		t.Errorf("%d policies were charged, want sign-in, edge and failed-sign-ins", n)
	}
}
