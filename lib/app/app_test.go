package app_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// world is an application on an embedded file, as seen by clients at many addresses, with a clock that tests set.
type world struct {
	t       *testing.T
	app     *app.App
	handler http.Handler
	clock   *storetest.Clock
	db      *database.DB
	url     string // of the database
	log     *buffer
	hashes  atomic.Int64
	waits   waits

	degraded bool // answers are of limits that could not be asked
}

// waits are the times that requests waited for a turn, or for their time to be over. In a test they don't.
type waits struct {
	mu     sync.Mutex
	all    []time.Duration
	err    error // what waiting ends with
	really bool  // for a test in a bubble, where it takes no time
}

func (w *waits) wait(_ context.Context, d time.Duration) error {
	if w.really {
		time.Sleep(d)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, d)
	return w.err
}

// buffer is a log that may be written by many goroutines.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func newWorld(t *testing.T, change ...func(*app.Settings)) *world {
	t.Helper()
	w := &world{t: t, clock: storetest.NewClock(), log: &buffer{}}
	path := filepath.Join(t.TempDir(), "weir.db")
	if err := os.WriteFile(path, databases.Migrated(t), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := app.Settings{
		Platform:        true,
		DatabaseURL:     "file:" + path,
		Secret:          storetest.Secret,
		StoreDeadline:   time.Minute,
		SessionSameSite: http.SameSiteLaxMode,
		Demo:            true,
	}
	for _, change := range change {
		change(&settings)
	}
	application, db, err := app.Open(t.Context(), settings, app.Config{
		Now:    w.clock.Now,
		Hashed: func() { w.hashes.Add(1) },
		// What a hash costs is tested in lib/accounts; with the race detector the real one takes seconds.
		HashMemoryKiB: 64,
		Wait:          w.waits.wait,
		Log:           slog.New(slog.NewJSONHandler(w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	mux := http.NewServeMux()
	for _, route := range app.Routes() {
		mux.Handle("/api/"+route, application.Handler(route))
	}
	w.app, w.handler, w.db, w.url = application, mux, db, settings.DatabaseURL
	return w
}

// reply is an answer with its body read.
type reply struct {
	*http.Response
	body     string
	degraded bool // see world
}

func (r reply) json(t *testing.T) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(r.body), &fields); err != nil {
		t.Fatalf("status %d, body %q: %v", r.StatusCode, r.body, err)
	}
	return fields
}

func (r reply) field(t *testing.T, name string) string {
	t.Helper()
	text, _ := r.json(t)[name].(string)
	if text == "" {
		t.Fatalf("status %d without %q: %s", r.StatusCode, name, r.body)
	}
	return text
}

// send makes a request from an address. The platform's proxy states the address; the socket's is always the proxy's.
func (w *world) send(address, method, path, body string, change ...func(*http.Request)) reply {
	w.t.Helper()
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	request.Header.Set("X-Real-Ip", address)
	for _, change := range change {
		change(request)
	}
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, request)
	response := recorder.Result()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	got := reply{response, string(content), w.degraded}
	w.judge(method, path, body, got)
	return got
}

func (w *world) signIn(address, name, password string) reply {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"username": name, "password": password})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.send(address, "POST", "/api/sign-in", string(body))
}

const rightPassword = "correct horse battery"

// member signs somebody up, from an address that nothing else uses.
func (w *world) member(name string) {
	w.t.Helper()
	code := w.send("203.0.113.200", "POST", "/api/codes", "{}").field(w.t, "code")
	got := w.send("203.0.113.200", "POST", "/api/sign-up", fmt.Sprintf(`{"code":%q,"username":%q,"password":%q}`, code, name, rightPassword))
	if got.StatusCode != http.StatusCreated {
		w.t.Fatalf("sign-up answers %d: %s", got.StatusCode, got.body)
	}
}

func (w *world) count(query string) (n int) {
	w.t.Helper()
	if err := w.db.QueryRow(query).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func expect(t *testing.T, got reply, status int) {
	t.Helper()
	if got.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", got.StatusCode, status, got.body)
	}
}

type byAddressRow struct {
	row, policy          string
	limit                int
	window               time.Duration
	method, route, query string
	body                 string
}

// The rows of the application's limits by address, as the requirements give them, each with a request that costs one.
var byAddress = []byAddressRow{
	{"A1", "sign-in", 10, time.Minute, "POST", "sign-in", "", `{"username":"nobody","password":"wrong password"}`},
	{"A3", "sign-up", 8, 10 * time.Minute, "POST", "sign-up", "", `{"code":"WEIR-0000-0000-0000","username":"nobody","password":"wrong password"}`},
	{"A4", "demo-sign-in", 30, 10 * time.Minute, "POST", "demo-sign-in", "", `{"role":"member"}`},
	{"A5", "borrow-code", 12, 10 * time.Minute, "POST", "codes", "", `{}`},
	{"A6", "code-lookup", 30, time.Minute, "GET", "codes", "?code=WEIR-0000-0000-0000", ""},
	{"A7", "username-check", 60, time.Minute, "GET", "usernames", "?name=someone", ""},
	{"D3", "otp-send", 10, time.Hour, "POST", "otp", "", `{"phone":"+12025550100"}`},
	{"D3", "otp-check", 30, 15 * time.Minute, "PUT", "otp", "", `{"phone":"+12025550100","code":"000000"}`},
	{"session", "session", 60, time.Minute, "GET", "sign-in", "", ""},
	{"session", "session", 60, time.Minute, "DELETE", "sign-in", "", ""},
	{"session", "session", 60, time.Minute, "PUT", "sign-in", "", `{"username":"nobody"}`},
	{"session", "session", 60, time.Minute, "PATCH", "sign-in", "", `{"currentPassword":"wrong password","newPassword":"another password"}`},
	{"session", "session", 60, time.Minute, "DELETE", "sign-up", "", `{"password":"wrong password"}`},
}

// byTokenOnly are the operations that have no limit, since only who holds a token gets to them (case A53). An admin's session
// gets to views, at a unit of the edge's limit: see TestAViewByASessionCostsTheEdgeAndIsForAdmins.
var byTokenOnly = map[string]bool{"POST limits": true, "GET limits": true}

// Rows A1, A3, A4, A5, A6, A7, D3, D8; cases A03, A05, A08, A27, A53.
func TestEveryRouteAdmitsItsLimitAndRefusesTheNext(t *testing.T) {
	covered := map[string]bool{}
	for _, row := range byAddress {
		covered[row.route] = true
		t.Run(row.row+" "+row.method+" "+row.route, func(t *testing.T) {
			w := newWorld(t)
			w.clock.At(20 * time.Second)
			for i := range row.limit {
				name := row.query
				body := row.body
				switch row.policy { // one account or phone alone would be refused earlier
				case "sign-in":
					body = strings.Replace(body, "nobody", fmt.Sprintf("nobody%d", i), 1)
				case "otp-check":
					body = strings.Replace(body, "+12025550100", fmt.Sprintf("+120255501%02d", i), 1)
				}
				got := w.send("203.0.113.9", row.method, "/api/"+row.route+name, body)
				if got.StatusCode == http.StatusTooManyRequests || got.StatusCode >= 500 {
					t.Fatalf("request %d answers %d: %s", i+1, got.StatusCode, got.body)
				}
				want := map[string]string{
					"Ratelimit-Policy":    fmt.Sprintf(`"%s";q=%d;w=%d, "edge";q=1000;w=60`, row.policy, row.limit, int(row.window.Seconds())),
					"Ratelimit":           fmt.Sprintf(`"%s";r=%d;t=%d, "edge";r=%d;t=40`, row.policy, row.limit-i-1, int(row.window.Seconds())-20, 1000-i-1),
					"Ratelimit-Limit":     strconv.Itoa(row.limit),
					"Ratelimit-Remaining": strconv.Itoa(row.limit - i - 1),
					"Ratelimit-Reset":     strconv.Itoa(int(row.window.Seconds()) - 20),
					"Retry-After":         "",
				}
				checkHeader(t, got, want)
			}
			for range 3 {
				got := w.send("203.0.113.9", row.method, "/api/"+row.route+row.query, row.body)
				expect(t, got, http.StatusTooManyRequests)
				wait := int(row.window.Seconds()) - 20
				checkHeader(t, got, map[string]string{
					"Ratelimit":           fmt.Sprintf(`"%s";r=0;t=%d, "edge";r=%d;t=40`, row.policy, wait, 1000-row.limit), // a refusal costs the edge nothing
					"Ratelimit-Limit":     strconv.Itoa(row.limit),
					"Ratelimit-Remaining": "0",
					"Ratelimit-Reset":     strconv.Itoa(wait),
					"Retry-After":         strconv.Itoa(wait),
					"Content-Type":        "application/problem+json",
				})
				problem := got.json(t)
				if problem["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" ||
					problem["limit"] != float64(row.limit) || problem["retryAfterSeconds"] != float64(wait) ||
					fmt.Sprint(problem["violated-policies"]) != "["+row.policy+"]" {
					t.Fatalf("the refusal says %s", got.body)
				}
			}
			if got := w.send("203.0.113.10", row.method, "/api/"+row.route+row.query, row.body); got.StatusCode == http.StatusTooManyRequests {
				t.Fatal("another address is refused too")
			}
			if n := w.count("SELECT count(*) FROM rate_limit_audit WHERE policy = '" + row.policy + "'"); n != 1 { // row B5
				t.Fatalf("%d audit rows, want 1", n)
			}
			w.clock.At(row.window) // case A07: waiting exactly as long as told is enough
			if got := w.send("203.0.113.9", row.method, "/api/"+row.route+row.query, row.body); got.StatusCode == http.StatusTooManyRequests {
				t.Fatalf("refused after the wait: %s", got.body)
			}
		})
	}
	covered["limits"] = true // see byTokenOnly
	for _, row := range byMember {
		covered[row.route] = true // see TestEveryRouteForMembersAdmitsItsLimitAndRefusesTheNext
	}
	for _, row := range byKey {
		covered[row.route] = true // see TestEveryPlanAdmitsItsBucketAndRefusesTheNext
	}
	if missing := slices.DeleteFunc(app.Routes(), func(route string) bool { return covered[route] }); len(missing) > 0 {
		t.Errorf("routes without a row: %v", missing)
	}
}

func checkHeader(t *testing.T, got reply, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if value := got.Header.Get(name); value != want[name] {
			t.Fatalf("%s is %q, want %q (status %d)", name, value, want[name], got.StatusCode)
		}
		if len(got.Header.Values(name)) > 1 {
			t.Fatalf("%s is there %d times", name, len(got.Header.Values(name)))
		}
	}
}

// Row A2; cases E01, E11, E13, E14: an account that exists and one that doesn't are told apart by nothing.
func TestTheNinthGuessAtAnAccountIsRefusedWhateverItIs(t *testing.T) {
	type seen struct {
		statuses []int
		headers  []http.Header
		bodies   []string
	}
	var all []seen
	for _, name := range []string{"someone", "nobody"} {
		w := newWorld(t)
		w.member("someone")
		w.clock.At(15 * time.Minute)
		var s seen
		note := func(got reply) {
			s.statuses = append(s.statuses, got.StatusCode)
			s.headers = append(s.headers, got.Header)
			s.bodies = append(s.bodies, got.body)
		}
		for i := range 8 {
			got := w.signIn(fmt.Sprintf("203.0.113.%d", i), name, "wrong password")
			expect(t, got, http.StatusUnauthorized)
			if text := fmt.Sprint(got.Header) + got.body; strings.Contains(text, "failed") {
				t.Fatalf("the account's limit shows before it refuses: %s", text)
			}
			note(got)
		}
		w.hashes.Store(0)
		wrong := w.signIn("203.0.113.8", name, "wrong password")
		right := w.signIn("203.0.113.9", name, rightPassword)
		expect(t, wrong, http.StatusTooManyRequests)
		if wrong.body != right.body || fmt.Sprint(wrong.Header) != fmt.Sprint(right.Header) || right.StatusCode != wrong.StatusCode {
			t.Errorf("the right password and a wrong one differ:\n%v %s\n%v %s", wrong.Header, wrong.body, right.Header, right.body)
		}
		if len(right.Cookies()) > 0 || w.hashes.Load() != 0 {
			t.Errorf("%d cookies and %d hashes while limited, want none", len(right.Cookies()), w.hashes.Load())
		}
		checkHeader(t, wrong, map[string]string{"Retry-After": "900", "Ratelimit-Limit": "8", "Ratelimit-Remaining": "0"}) // case A28
		note(wrong)
		w.clock.At(30 * time.Minute)
		note(w.signIn("203.0.113.9", name, "wrong password"))
		all = append(all, s)
	}
	if fmt.Sprint(all[0]) != fmt.Sprint(all[1]) {
		t.Errorf("an account that exists and one that doesn't differ:\n%v\n%v", all[0], all[1])
	}
}

// Row A2; cases E05, E16: success gives back its own unit and no other.
func TestARightPasswordCostsTheAccountNothing(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	w.member("attacker")
	used := "SELECT coalesce(sum(used), 0) FROM rate_limits WHERE policy = 'failed-sign-ins'"
	for i := range 20 {
		got := w.signIn(fmt.Sprintf("198.51.100.%d", i), " SomeOne\t", rightPassword)
		expect(t, got, http.StatusOK)
	}
	if n := w.count(used); n != 0 {
		t.Fatalf("%d units stand after right passwords only", n)
	}
	for i := range 3 {
		expect(t, w.signIn(fmt.Sprintf("203.0.113.%d", i), "someone", "wrong password"), http.StatusUnauthorized)
		expect(t, w.signIn(fmt.Sprintf("203.0.113.%d", i), "attacker", rightPassword), http.StatusOK)
		expect(t, w.signIn(fmt.Sprintf("203.0.113.%d", i), "someone", rightPassword), http.StatusOK)
	}
	if n := w.count(used); n != 3 {
		t.Fatalf("%d units stand after 3 wrong passwords", n)
	}
	if n := w.count("SELECT max(used) FROM rate_limits WHERE policy = 'sign-in'"); n != 3 {
		t.Fatalf("an address that tried 3 times counts %d", n)
	}
}

// Case E05: signing in to one's own account doesn't clear what the address has used.
func TestSuccessDoesNotClearTheAddress(t *testing.T) {
	w := newWorld(t)
	w.member("attacker")
	wrong := 0
	for i := range 15 {
		if i%5 == 4 {
			w.signIn("203.0.113.9", "attacker", rightPassword)
		} else if w.signIn("203.0.113.9", "victim", "wrong password").StatusCode == http.StatusUnauthorized {
			wrong++
		}
	}
	if wrong != 8 {
		t.Fatalf("%d guesses were compared, want the 8 that fit beside 2 sign-ins in the limit of 10", wrong)
	}
}

// fiftyAtOnce makes fifty guesses at once and counts the answers by status.
func fiftyAtOnce(guess func(i int) reply) (answers map[int]int64) {
	var group sync.WaitGroup
	var statuses [50]int
	for i := range statuses {
		group.Go(func() { statuses[i] = guess(i).StatusCode })
	}
	group.Wait()
	answers = map[int]int64{}
	for _, status := range statuses {
		answers[status]++
	}
	return answers
}

// theLastIsRight is the password of each of fifty guesses.
func theLastIsRight(i int) string {
	if i == 49 {
		return rightPassword
	}
	return "wrong password"
}

// Row A2; case E09: the attempt is counted before the password is looked at.
func TestFiftyParallelGuessesCompareEightAtMost(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	w.clock.At(15 * time.Minute)
	w.hashes.Store(0)
	answers := fiftyAtOnce(func(i int) reply { return w.signIn(from(i), "someone", theLastIsRight(i)) })
	compared, refused := answers[http.StatusUnauthorized]+answers[http.StatusOK], answers[http.StatusTooManyRequests]
	// A right password that is among the first gives its unit back to a ninth.
	if n := w.hashes.Load(); n < 8 || n > 9 || compared != n || refused != 50-n {
		t.Fatalf("%d hashes, %d compared, %d refused", n, compared, refused)
	}
}

// Row A4.
func TestTheDemoIsNeverLocked(t *testing.T) {
	w := newWorld(t)
	for i := range 12 {
		w.signIn(fmt.Sprintf("203.0.113.%d", i), "demo-member", "wrong password")
	}
	expect(t, w.signIn("203.0.113.99", "demo-member", "wrong password"), http.StatusTooManyRequests)
	for _, role := range []string{"member", "admin"} {
		got := w.send("198.51.100.1", "POST", "/api/demo-sign-in", fmt.Sprintf(`{"role":%q}`, role))
		expect(t, got, http.StatusOK)
		if got.field(t, "role") != role || got.field(t, "username") != "demo-"+role || len(got.Cookies()) != 1 {
			t.Fatalf("demo sign-in answers %s with %d cookies", got.body, len(got.Cookies()))
		}
	}
	for _, body := range []string{`{"role":"root"}`, `{"role":""}`, `{}`} {
		expect(t, w.send("198.51.100.1", "POST", "/api/demo-sign-in", body), http.StatusUnprocessableEntity)
	}
	off := newWorld(t, func(s *app.Settings) { s.Demo = false })
	expect(t, off.send("198.51.100.1", "POST", "/api/demo-sign-in", `{"role":"member"}`), http.StatusNotFound)
}

// Case A39: blank and missing names are nobody's account.
func TestABlankNameIsABadRequestAndNoKey(t *testing.T) {
	w := newWorld(t)
	for i, body := range []string{
		`{}`, `{"username":""}`, `{"username":"   ","password":"x"}`, `{"username":"\u00a0","password":"x"}`, `{"password":"x"}`,
		`{"username":"x"}`, `{"username":"` + strings.Repeat("x", 300) + `","password":"x"}`,
		`{"username":"a","password":"b","more":1}`, `{"username":"a","username":"b","password":"c"}`, `[]`, `null`, `{`, ``,
	} {
		got := w.send(fmt.Sprintf("203.0.113.%d", i), "POST", "/api/sign-in", body)
		expect(t, got, http.StatusBadRequest)
		checkHeader(t, got, map[string]string{"Ratelimit-Remaining": "9", "Content-Type": "application/problem+json"}) // cases A27, A47
	}
	if n := w.count("SELECT count(*) FROM rate_limits WHERE policy NOT IN ('sign-in', 'edge')"); n != 0 {
		t.Fatalf("%d keys besides those of the addresses", n)
	}
	if w.hashes.Load() != 0 {
		t.Fatalf("%d passwords hashed for nobody", w.hashes.Load())
	}
}

// Case A40.
func TestSpellingsOfANameShareOneCounter(t *testing.T) {
	w := newWorld(t)
	names := []string{"victim", "VICTIM", " victim ", "Victim\t", "vIcTiM", "\nvictim", "victim\u00a0", "VICTIM "}
	for i, name := range names {
		expect(t, w.signIn(fmt.Sprintf("203.0.113.%d", i), name, "wrong password"), http.StatusUnauthorized)
	}
	expect(t, w.signIn("203.0.113.99", "victim", "wrong password"), http.StatusTooManyRequests)
	if n := w.count("SELECT count(*) FROM rate_limits WHERE policy = 'failed-sign-ins'"); n != 1 {
		t.Fatalf("%d keys for one name", n)
	}
}

// Cases D13, A43, A47: a body that is too large is refused and counted.
func TestAnOversizeBodyIsRefusedAndCounted(t *testing.T) {
	w := newWorld(t)
	for _, size := range []int{64<<10 + 1, 2 << 20} {
		got := w.send("203.0.113.9", "POST", "/api/sign-in", `{"username":"`+strings.Repeat("x", size)+`"}`)
		expect(t, got, http.StatusRequestEntityTooLarge)
	}
	checkHeader(t, w.signIn("203.0.113.9", "nobody", "wrong password"), map[string]string{"Ratelimit-Remaining": "7"})
}

func TestASessionBeginsAndEnds(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	w.clock.At(15 * time.Minute)
	got := w.signIn("203.0.113.9", "someone", rightPassword)
	expect(t, got, http.StatusOK)
	if got.body != `{"username":"someone","role":"member"}` {
		t.Errorf("sign-in answers %s", got.body)
	}
	cookie := got.Cookies()[0]
	if !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteLaxMode || cookie.Path != "/" {
		t.Errorf("cookie %v", cookie)
	}
	with := func(r *http.Request) { r.AddCookie(cookie) }
	who := w.send("203.0.113.9", "GET", "/api/sign-in", "", with)
	expect(t, who, http.StatusOK)
	if want := storetest.Start.Add(15*time.Minute + 14*24*time.Hour).Format(time.RFC3339); who.field(t, "expiresAt") != want {
		t.Errorf("expires %s, want %s", who.field(t, "expiresAt"), want)
	}
	if strings.Contains(w.dump("sessions"), cookie.Value) {
		t.Error("the token itself is stored")
	}
	w.clock.At(15*time.Minute + 25*time.Hour) // row F1: renewed in use
	who = w.send("203.0.113.9", "GET", "/api/sign-in", "", with)
	if len(who.Cookies()) != 1 || who.Cookies()[0].Value != cookie.Value {
		t.Errorf("a session used after a day is not renewed: %v", who.Cookies())
	}
	out := w.send("203.0.113.9", "DELETE", "/api/sign-in", "", with)
	expect(t, out, http.StatusNoContent)
	if len(out.Cookies()) != 1 || out.Cookies()[0].MaxAge >= 0 {
		t.Errorf("sign-out leaves the cookie: %v", out.Cookies())
	}
	expect(t, w.send("203.0.113.9", "GET", "/api/sign-in", "", with), http.StatusUnauthorized)
	expect(t, w.send("203.0.113.9", "DELETE", "/api/sign-in", "", with), http.StatusNoContent)
	expect(t, w.send("203.0.113.9", "GET", "/api/sign-in", ""), http.StatusUnauthorized)
}

func TestACodeIsBorrowedUsedOnceAndLookedUp(t *testing.T) {
	w := newWorld(t)
	lent := w.send("203.0.113.9", "POST", "/api/codes", "{}")
	expect(t, lent, http.StatusCreated)
	code := lent.field(t, "code")
	if want := storetest.Start.Add(30 * time.Minute).Format(time.RFC3339); lent.field(t, "expiresAt") != want {
		t.Errorf("held until %s, want %s", lent.field(t, "expiresAt"), want)
	}
	state := func() string {
		return w.send("203.0.113.9", "GET", "/api/codes?code="+strings.ToLower(code), "").field(t, "state")
	}
	if got := state(); got != "borrowed" {
		t.Errorf("state %s", got)
	}
	signUp := func(code, name string) reply {
		return w.send("203.0.113.9", "POST", "/api/sign-up", fmt.Sprintf(`{"code":%q,"username":%q,"password":%q}`, code, name, rightPassword))
	}
	expect(t, signUp("WEIR-0000-0000-0000", "someone"), http.StatusUnprocessableEntity)
	expect(t, signUp(code, "x"), http.StatusUnprocessableEntity)
	expect(t, signUp(code, "demo-member"), http.StatusConflict) // case E15: a taken name keeps the code
	if got := state(); got != "borrowed" {
		t.Errorf("state %s after sign-ups that failed", got)
	}
	expect(t, signUp(code, "Someone"), http.StatusCreated)
	if got := state(); got != "used" {
		t.Errorf("state %s after the sign-up", got)
	}
	expect(t, signUp(code, "another"), http.StatusUnprocessableEntity)
	taken := w.send("203.0.113.9", "GET", "/api/usernames?name=SOMEONE", "")
	if taken.body != `{"name":"someone","free":false}` {
		t.Errorf("the name check answers %s", taken.body)
	}
	expect(t, w.send("203.0.113.9", "GET", "/api/usernames?name=a%20b", ""), http.StatusUnprocessableEntity)
	expect(t, w.send("203.0.113.9", "GET", "/api/usernames", ""), http.StatusUnprocessableEntity)
	expect(t, w.send("203.0.113.9", "GET", "/api/codes?code=nonsense", ""), http.StatusNotFound)
}

// Cases E15, E17: an address is kept with the account alone, and nothing tells whether another account has it.
func TestAnEmailAddressIsOptionalAndTellsNothing(t *testing.T) {
	w := newWorld(t)
	signUp := func(name, email string) reply {
		code := w.send("203.0.113.9", "POST", "/api/codes", "{}").field(t, "code")
		return w.send("203.0.113.9", "POST", "/api/sign-up",
			fmt.Sprintf(`{"code":%q,"username":%q,"password":%q,"email":%q}`, code, name, rightPassword, email))
	}
	wrong := signUp("someone", "not an address")
	expect(t, wrong, http.StatusUnprocessableEntity)
	if wrong.field(t, "field") != "email" {
		t.Errorf("the refusal names the field %s", wrong.body)
	}
	first, second := signUp("someone", "shared@example.org"), signUp("another", "shared@example.org")
	expect(t, first, http.StatusCreated)
	expect(t, second, http.StatusCreated)
	if n := w.count("SELECT count(*) FROM accounts WHERE email = 'shared@example.org'"); n != 2 {
		t.Errorf("%d accounts have the address", n)
	}
	if found := traces(w.dump(limiterTables...)+w.log.String()+first.body, "shared@example.org"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

func TestTwoSignUpsWithOneCodeMakeOneAccount(t *testing.T) {
	w := newWorld(t)
	code := w.send("203.0.113.9", "POST", "/api/codes", "{}").field(t, "code")
	var group sync.WaitGroup
	var made, refused atomic.Int64
	for i := range 8 {
		group.Go(func() {
			body := fmt.Sprintf(`{"code":%q,"username":"someone%d","password":%q}`, code, i, rightPassword)
			switch w.send(fmt.Sprintf("203.0.113.%d", i), "POST", "/api/sign-up", body).StatusCode {
			case http.StatusCreated:
				made.Add(1)
			case http.StatusUnprocessableEntity:
				refused.Add(1)
			}
		})
	}
	group.Wait()
	if made.Load() != 1 || refused.Load() != 7 {
		t.Fatalf("%d accounts made and %d refused, want 1 and 7", made.Load(), refused.Load())
	}
}

// Cases A49, B16: a database without its tables is an outage on every route, never mended by a request (case C08).
func TestADatabaseThatFailsIsAnOutageOnEveryRoute(t *testing.T) {
	w := newWorld(t)
	if _, err := w.db.Exec("DROP TABLE rate_limits"); err != nil {
		t.Fatal(err)
	}
	for _, row := range byAddress {
		got := w.send("203.0.113.9", row.method, "/api/"+row.route+row.query, row.body)
		expect(t, got, http.StatusServiceUnavailable)
		if got.Header.Get("Retry-After") == "" || got.Header.Get("Ratelimit") != "" || got.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: header %v", row.method, row.route, got.Header)
		}
		for _, secret := range []string{"rate_limits", "SQL", "table", "file:"} {
			if strings.Contains(got.body, secret) {
				t.Errorf("%s %s tells %q: %s", row.method, row.route, secret, got.body)
			}
		}
	}
	if w.hashes.Load() != 0 {
		t.Errorf("%d passwords hashed during the outage", w.hashes.Load())
	}
	if !strings.Contains(w.log.String(), `"level":"WARN"`) {
		t.Error("the outage is not in the log")
	}
	if n := w.count("SELECT count(*) FROM sqlite_master WHERE name = 'rate_limits'"); n != 0 {
		t.Error("a request made the table again")
	}
}

// Cases A31, A32: no client chooses its address.
func TestOnlyThePlatformsHeaderNamesTheClient(t *testing.T) {
	w := newWorld(t)
	passed := 0
	for i := range 50 {
		got := w.send("203.0.113.9", "POST", "/api/sign-in", fmt.Sprintf(`{"username":"u%d","password":"wrong password"}`, i), func(r *http.Request) {
			for _, name := range []string{"X-Forwarded-For", "CF-Connecting-IP", "True-Client-IP", "Forwarded", "X-Client-IP", "X-Cluster-Client-IP", "Fastly-Client-IP", "X-Forwarded"} {
				r.Header.Set(name, fmt.Sprintf("198.51.100.%d, 203.0.113.9", i))
			}
		})
		if got.StatusCode != http.StatusTooManyRequests {
			passed++
		}
	}
	if passed != 10 {
		t.Fatalf("%d of 50 passed, want 10", passed)
	}
	if got := w.signIn("198.51.100.1", "nobody", "wrong password"); got.Header.Get("Ratelimit-Remaining") != "9" {
		t.Fatal("an address that was only claimed has been charged")
	}
}

// case E14, row A2: an address that has used up its own limit learns nothing of any account.
func TestARefusedAddressLearnsNothingOfAnAccount(t *testing.T) {
	w := newWorld(t)
	for i := range 9 {
		w.signIn(fmt.Sprintf("198.51.100.%d", i), "locked", "wrong password")
	}
	for i := range 10 {
		w.signIn("203.0.113.9", fmt.Sprintf("other%d", i), "wrong password")
	}
	locked, unused := w.signIn("203.0.113.9", "locked", "wrong password"), w.signIn("203.0.113.9", "unused", "wrong password")
	expect(t, locked, http.StatusTooManyRequests)
	if locked.body != unused.body || fmt.Sprint(locked.Header) != fmt.Sprint(unused.Header) {
		t.Errorf("a locked account and another differ:\n%v %s\n%v %s", locked.Header, locked.body, unused.Header, unused.body)
	}
	checkHeader(t, locked, map[string]string{"Retry-After": "60", "Ratelimit": `"sign-in";r=0;t=60, "edge";r=990;t=60`})
}

// rows A2, A1: a client that hangs up after sending the right password has not failed.
func TestARightPasswordWhoseClientHangsUpIsNotCounted(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	for i := range 12 {
		w.send(fmt.Sprintf("203.0.113.%d", i), "POST", "/api/sign-in", `{"username":"someone","password":"`+rightPassword+`"}`, func(r *http.Request) {
			gone, cancel := context.WithCancel(r.Context())
			cancel()
			*r = *r.WithContext(gone)
		})
	}
	expect(t, w.signIn("203.0.113.99", "someone", rightPassword), http.StatusOK)
	if n := w.count("SELECT sum(used) FROM rate_limits WHERE policy = 'failed-sign-ins'"); n != 0 {
		t.Fatalf("%d units stand", n)
	}
	if strings.Contains(w.log.String(), "store did not answer") {
		t.Error("clients that hang up look like an outage in the log")
	}
}

// case A47: a body that breaks off is malformed like others.
func TestABodyThatBreaksOffIsCountedAsMalformed(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewServer(w.handler)
	defer server.Close()
	for left := 9; left >= 0; left-- {
		connection, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(connection, "POST /api/sign-in HTTP/1.1\r\nHost: x\r\nX-Real-Ip: 203.0.113.9\r\nContent-Length: 100\r\n\r\n{\"username\"")
		connection.(*net.TCPConn).CloseWrite()
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusBadRequest || response.Header.Get("Ratelimit-Remaining") != strconv.Itoa(left) {
			t.Fatalf("status %d with %q left, want 400 with %d", response.StatusCode, response.Header.Get("Ratelimit-Remaining"), left)
		}
		connection.Close()
	}
}

func TestSignOutEndsEverySessionThatTheBrowserHasACookieOf(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	first := w.signIn("203.0.113.9", "someone", rightPassword).Cookies()[0]
	second := w.signIn("203.0.113.9", "someone", rightPassword).Cookies()[0]
	w.send("203.0.113.9", "DELETE", "/api/sign-in", "", func(r *http.Request) {
		r.Header.Set("Cookie", "weir_session=nothing; "+first.Name+"="+first.Value+"; "+second.Name+"="+second.Value)
	})
	for _, cookie := range []*http.Cookie{first, second} {
		expect(t, w.send("203.0.113.9", "GET", "/api/sign-in", "", func(r *http.Request) { r.AddCookie(cookie) }), http.StatusUnauthorized)
	}
	third := w.signIn("203.0.113.9", "someone", rightPassword).Cookies()[0]
	body := `{"username":"someone","password":"` + rightPassword + `"}`
	expect(t, w.send("203.0.113.9", "POST", "/api/sign-in", body, func(r *http.Request) { r.AddCookie(third) }), http.StatusOK)
	expect(t, w.send("203.0.113.9", "GET", "/api/sign-in", "", func(r *http.Request) { r.AddCookie(third) }), http.StatusUnauthorized)
}

// case A53: a method that is added to a route without a row in a table, here, in members_test.go or in partner_test.go, fails here.
func TestEveryMethodOfEveryRouteIsInTheTable(t *testing.T) {
	w := newWorld(t)
	for _, route := range app.Routes() {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "TRACE"} {
			status := w.send("203.0.113.9", method, "/api/"+route, "").StatusCode
			listed := byTokenOnly[method+" "+route] ||
				slices.ContainsFunc(byAddress, func(row byAddressRow) bool { return row.route == route && row.method == method }) ||
				slices.ContainsFunc(byMember, func(row byMemberRow) bool { return row.route == route && row.method == method }) ||
				slices.ContainsFunc(byKey, func(row byKeyRow) bool { return row.route == route && row.method == method })
			if listed == (status == http.StatusMethodNotAllowed) {
				t.Errorf("%s %s answers %d, and is in the table: %t", method, route, status, listed)
			}
		}
	}
}

// case A49, B01: a database that is locked by somebody else is an outage within the deadline, however many wait for it.
func TestALockedDatabaseIsAnOutageWithinTheDeadline(t *testing.T) {
	w := newWorld(t, func(s *app.Settings) { s.StoreDeadline = 3 * time.Second })
	lock, err := w.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := lock.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			if got := w.send(fmt.Sprintf("203.0.113.%d", i), "GET", "/api/usernames?name=someone", ""); got.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("status %d: %s", got.StatusCode, got.body)
			}
		})
	}
	group.Wait()
	if took := time.Since(begun); took > 12*time.Second { // 40 requests, 8 at a time, would take 15 s at the least if each waited
		t.Fatalf("40 requests took %v with a deadline of 3 s", took)
	}
}

// Row F6: the fields of a request's line are those that README's table lists, and no others.
func TestTheLogHasTheFieldsThatTheReadmeLists(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for range 11 {
		w.send("203.0.113.9", "POST", "/api/sign-in", "{")
	}
	seen := map[string]bool{}
	for line := range strings.Lines(w.log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if fields["version"] != app.Version {
			t.Errorf("a line without the version: %s", line)
		}
		for name := range fields {
			seen[name] = true
		}
	}
	want := []string{"durationMicros", "level", "method", "msg", "route", "status", "time", "version", "violatedPolicies"}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v", got, want)
	}
	for _, name := range want {
		if !strings.Contains(string(readme), "`"+name+"`") {
			t.Errorf("README doesn't list %s", name)
		}
	}
}
