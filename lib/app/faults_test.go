package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/partners"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/faults"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// faultyStoreDeadline is generous, since a busy machine must not look like a fault. Silences take it on the test's clock.
const faultyStoreDeadline = 8 * time.Second

// cellTime lies between two requests that a fault hits: no window of the one is a window of the other.
const cellTime = 30 * time.Minute

// faulty is a world whose database is a server behind a proxy that fails.
type faulty struct {
	*world
	proxy  *faults.Proxy
	direct *database.DB // not through the proxy
	cells  int
}

// newFaulty makes one on the server at a URL, with a policy for services and, unless failure is "refuse", with that failure for every
// policy of the application.
func newFaulty(t *testing.T, server, failure string, change ...func(*app.Settings)) *faulty {
	t.Helper()
	type policy struct {
		Name      string `json:"name"`
		Algorithm string `json:"algorithm"`
		Limit     int64  `json:"limit"`
		Window    string `json:"window"`
		Failure   string `json:"failure"`
	}
	list := []policy{{"of-service", "token-bucket", 60, "1m", failure}}
	if failure != "refuse" {
		set, err := app.LoadPolicies(func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range set.All() {
			list = append(list, policy{p.Name, p.Algorithm.String(), p.Limit, p.Window.String(), failure})
		}
	}
	setting, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{proxy: faults.Start(t, server)}
	f.world = newWorld(t, append(change, withTokens, func(s *app.Settings) {
		s.Policies, s.StoreDeadline = string(setting), faultyStoreDeadline
		s.DatabaseURL = server
		if err := app.Prepare(t.Context(), *s, app.Config{}); err != nil {
			t.Fatal(err)
		}
		s.DatabaseURL, s.AuthToken = f.proxy.URL, faults.Token
	})...)
	if f.direct, err = database.Open(database.Config{URL: server, Deadline: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.direct.Close() })
	f.proxy.Silence = func() { f.clock.Add(faultyStoreDeadline) }
	return f
}

// charged is what of a policy was charged since the current cell began.
func (f *faulty) charged(policy string) (n int) {
	f.t.Helper()
	begin := storetest.Start.Add(time.Duration(f.cells) * cellTime).UnixMicro()
	const query = "SELECT coalesce(sum(used), 0) FROM rate_limits WHERE policy = ? AND high_micros >= ?"
	if err := f.direct.QueryRow(query, policy, begin).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// operation is a request, and what becomes of it when the store fails.
type operation struct {
	request string // method, route and query
	body    string // with "#" for a number that no other request has, or "####" for four digits of it
	who     string // whose cookies it has: "", "member", "device" or "demo"; or "service" or "timer" for a token
	policy  string // that a decision charges although its reply is lost; "" for none

	normal int
	// The application's policies: the store fails as a whole; only what is about limits fails.
	refused, limiter int
	// The same where policies are strict or open.
	down, degraded int
	// Only the application's own statements fail; everything fails after the limiter's first answer.
	own, after int
}

// The table: what every method of every route answers when the store fails. Members' requests read the session first, and what
// fails there costs the address alone.
var operations = []operation{
	{"POST sign-in", `{"username":"someone","password":"` + rightPassword + `"}`, "", "sign-in", 200, 503, 503, 503, 200, 503, 503},
	{"POST sign-in", `{"username":"someone","password":"` + rightPassword + `"}`, "device", "sign-in", 200, 503, 503, 503, 200, 503, 503},
	{"POST sign-in", `{"username":"nobody","password":"a wrong password"}`, "", "sign-in", 401, 503, 503, 503, 401, 503, 503},
	{"POST sign-in", `{`, "", "sign-in", 400, 503, 503, 400, 400, 400, 400},
	{"GET sign-in", "", "member", "session", 200, 503, 503, 503, 200, 503, 503},
	{"DELETE sign-in", "", "nobody", "session", 204, 503, 503, 503, 204, 503, 503},
	{"DELETE sign-in?everywhere=1", "", "demo", "session", 403, 503, 503, 503, 403, 503, 503},
	{"PATCH sign-in", `{"currentPassword":"a wrong password","newPassword":"another password"}`, "member", "session", 401, 503, 503, 503, 401, 503, 503},
	{"PATCH sign-in", `{"token":"` + someToken + `","newPassword":"another password"}`, "", "session", 401, 503, 503, 503, 401, 503, 503},
	{"PUT sign-in", `{"username":"nobody#"}`, "", "session", 202, 503, 503, 503, 202, 503, 503},
	{"PUT sign-in", `{"username":"someone"}`, "", "session", 202, 503, 503, 503, 202, 503, 503},
	{"POST sign-up", `{"code":"WEIR-0000-0000-0000","username":"another","password":"` + rightPassword + `"}`, "", "sign-up", 422, 503, 503, 503, 422, 503, 503},
	{"DELETE sign-up", `{"password":"a wrong password"}`, "member", "session", 401, 503, 503, 503, 401, 503, 503},
	{"POST demo-sign-in", `{"role":"member"}`, "", "demo-sign-in", 200, 503, 503, 503, 200, 503, 503},
	{"POST codes", `{}`, "", "borrow-code", 201, 503, 503, 503, 201, 503, 503},
	{"GET codes?code=WEIR-0000-0000-0000", "", "", "code-lookup", 404, 503, 503, 503, 404, 503, 503},
	{"GET usernames?name=another", "", "", "username-check", 200, 503, 503, 503, 200, 503, 503},
	{"POST invites", `{"email":"someone#@example.org"}`, "member", "edge", 202, 503, 503, 503, 202, 503, 503},
	{"POST ai-log", someEntry, "member", "edge", 201, 503, 503, 503, 201, 503, 503},
	{"GET ai-log?limit=1", "", "member", "edge", 200, 503, 503, 503, 200, 503, 503},
	{"POST sandbox-sql", `{"sql":"SELECT 1"}`, "member", "edge", 200, 503, 503, 503, 200, 503, 200},
	{"POST evaluations", `{"entry":1,"score":3}`, "member", "edge", 201, 503, 503, 503, 201, 503, 503},
	{"GET evaluations", "", "member", "edge", 200, 503, 503, 503, 200, 503, 503},
	{"POST otp", `{"phone":"+1202555####"}`, "", "otp-send", 202, 503, 503, 503, 503, 503, 503},
	{"PUT otp", `{"phone":"+12025550100","code":"000000"}`, "", "otp-check", 401, 503, 503, 503, 401, 503, 503},
	{"GET partner?limit=1", "", "partner", "edge", 200, 503, 200, 503, 200, 503, 503}, // a key's limit is open
	{"POST limits", `{"limits":[{"policy":"of-service","subject":"a"}]}`, "service", "of-service", 200, 503, 503, 200, 200, 200, 200},
	{"POST limits", `{"mode":"peek","limits":[{"policy":"of-service","subject":"a"}]}`, "service", "", 200, 503, 503, 503, 503, 200, 200},
	{"POST limits", `{"mode":"refund","reservation":"RESERVATION"}`, "service", "", 200, 503, 503, 503, 503, 200, 200},
	{"POST limits", `{"mode":"reset","limits":[{"policy":"of-service","subject":"b"}]}`, "service", "", 200, 503, 503, 503, 503, 200, 200},
	{"POST limits", `{"mode":"ban","until":"2100-01-01T00:00:00Z","limits":[{"policy":"of-service","subject":"b"}]}`, "service", "", 200, 503, 503, 503, 503, 200, 200},
	{"POST limits", `{"mode":"allow","until":"2100-01-01T00:00:00Z","limits":[{"policy":"of-service","subject":"b"}]}`, "service", "", 200, 503, 503, 503, 503, 200, 200},
	{"GET limits", "", "service", "", 200, 503, 503, 503, 503, 200, 200},
	{"GET limits?view=refusals", "", "service", "", 200, 503, 503, 503, 503, 200, 200},
	{"GET limits?view=audit", "", "member", "edge", 200, 503, 503, 503, 503, 503, 503},
	{"GET limits?view=alerts", "", "member", "edge", 200, 503, 200, 503, 200, 503, 503}, // the edge's limit is open
	{"GET limits?op=sweep", "", "timer", "", 200, 503, 503, 503, 503, 503, 503},
}

// Cases A49, B01, B05, B06, B16, B19; row D7: every fault on every route under every failure policy.
func TestEveryFaultOfTheStoreIsAnsweredAsTheTableSays(t *testing.T) {
	covered := map[string]bool{}
	for _, o := range operations {
		method, path, _ := strings.Cut(o.request, " ")
		route, _, _ := strings.Cut(path, "?")
		covered[method+" "+route] = true
	}
	w := newWorld(t)
	for _, route := range app.Routes() {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			status := w.send("203.0.113.9", method, "/api/"+route, "").StatusCode
			if covered[method+" "+route] == (status == http.StatusMethodNotAllowed) {
				t.Errorf("%s %s answers %d, and is in the table: %t", method, route, status, covered[method+" "+route])
			}
		}
	}
	for name, start := range map[string]func(*testing.T) string{
		"sqlite": func(t *testing.T) string { return hrana.Start(t, hrana.Config{}).URL },
		"turso":  func(t *testing.T) string { return turso.Start(t).URL },
		"libsql": func(t *testing.T) string { return turso.StartLibSQL(t).URL },
	} {
		for _, failure := range []string{"refuse", "strict", "open"} {
			t.Run(name+" "+failure, func(t *testing.T) {
				t.Parallel() // most of it waits for servers
				f := newFaulty(t, start(t), failure)
				f.play(failure, name == "sqlite" || name == "libsql" && failure == "refuse")
			})
		}
	}
}

// play meets every request with every fault; with those alone that get to the server when not all are wanted.
func (f *faulty) play(failure string, all bool) {
	who := f.people()
	f.give("someone", "someone@example.org")
	first := f.limits(`{"limits":[{"policy":"of-service","subject":"c"}]}`)
	reservation := first.field(f.t, "reservation")
	for _, o := range operations {
		o.body = strings.Replace(o.body, "RESERVATION", reservation, 1)
		for _, fault := range faults.All() {
			if !all && !fault.Applied {
				continue
			}
			whole := o.refused
			if failure != "refuse" {
				whole = o.down
			}
			f.meet(o, who[o.who], fault, "the store", nil, whole, failure != "refuse")
			switch fault.Name { // one of each kind: what else can fail is the limiter's client alone, or the driver alone
			case "silence", "dropped after applying", "500", "SQLITE_BUSY", "wrong types":
			default:
				continue
			}
			if failure == "refuse" {
				f.meet(o, who[o.who], fault, "the limiter", faults.OfLimiter, o.limiter, o.limiter != http.StatusServiceUnavailable)
				f.meet(o, who[o.who], fault, "the application", faults.OfApplication, o.own, false)
				f.meet(o, who[o.who], fault, "after the decision", faults.AfterDecision(), o.after, false)
			} else {
				f.meet(o, who[o.who], fault, "the limiter", faults.OfLimiter, o.degraded, true)
			}
		}
	}
	if n := f.proxy.Followed(); n > 0 {
		f.t.Errorf("%d requests followed a redirect", n)
	}
}

// people gives what makes a request that of each of them.
func (f *faulty) people() map[string]func(*http.Request) {
	member := f.signedUp("someone", "admin")
	f.add(member, someEntry)
	device := f.signIn("203.0.113.200", "someone", rightPassword).Cookies()[1]
	partner, _ := f.partner(partners.Free)
	return map[string]func(*http.Request){
		"":        func(*http.Request) {},
		"member":  member,
		"device":  func(r *http.Request) { r.AddCookie(device) },
		"demo":    f.demo("member"),
		"nobody":  func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "weir_session", Value: strings.Repeat("A", 43)}) },
		"partner": partner,
		"service": byToken,
		"timer":   func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) },
	}
}

// meet sends a request that a fault hits, holds its answer against what is wanted, and sends it again when the fault is over.
func (f *faulty) meet(o operation, who func(*http.Request), fault faults.Fault, where string, hits func(string) bool, want int, degrades bool) {
	f.t.Helper()
	f.cells++
	f.clock.At(time.Duration(f.cells) * cellTime)
	method, path, _ := strings.Cut(o.request, " ")
	body := strings.Replace(o.body, "####", fmt.Sprintf("%04d", f.cells%10_000), 1)
	body = strings.ReplaceAll(body, "#", fmt.Sprint(f.cells))
	address := fmt.Sprintf("2001:db8:%x::1", f.cells)
	send := func() reply { return f.send(address, method, "/api/"+path, body, who) }
	before, hit := len(f.log.String()), f.proxy.Failed()
	f.hashes.Store(0)
	limiter := where == "the store" || where == "the limiter"
	f.degraded = limiter && degrades
	f.proxy.Fail(fault, hits)
	got := send()
	f.proxy.Heal()
	f.degraded = false
	hit = f.proxy.Failed() - hit
	log := f.log.String()[before:]
	wrong := func(format string, args ...any) {
		f.t.Helper()
		f.t.Errorf("%s with %q of %s: %s (status %d, body %s, header %v, log %s)", o.request+" "+o.body, fault.Name, where, fmt.Sprintf(format, args...),
			got.StatusCode, got.body, got.Header, log)
	}

	if got.StatusCode != want {
		wrong("want %d", want)
	}
	if got.StatusCode == http.StatusServiceUnavailable {
		if got.Header.Get("Retry-After") == "" || got.Header.Get("Content-Type") != "application/problem+json" {
			wrong("want a problem with Retry-After")
		}
	}
	if limiter {
		for _, name := range []string{"Ratelimit", "Ratelimit-Policy", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"} {
			if got.Header.Get(name) != "" {
				wrong("%s of a decision that wasn't made", name)
			}
		}
	}
	if path == "limits" && strings.HasPrefix(body, `{"limits"`) && got.StatusCode == http.StatusOK && (got.json(f.t)["degraded"] == true) != limiter {
		wrong("degraded: want %t", limiter)
	}
	failed := want == http.StatusServiceUnavailable || limiter && degrades
	if warnings := strings.Count(log, `"level":"WARN"`) + strings.Count(log, `"level":"ERROR"`); (warnings == 1) != failed || warnings > 1 {
		wrong("%d warnings", warnings)
	}
	if failed && hit == 0 {
		wrong("the fault hit nothing")
	}
	if status := fault.Name[:3]; failed && strings.Trim(status, "0123456789") == "" && !strings.Contains(log, status) {
		wrong("the log doesn't tell the status") // case B06
	}
	for _, secret := range []string{faults.Token, strings.TrimPrefix(f.proxy.URL, "http://"), address, "2001:db8:", "someone"} {
		if strings.Contains(log, secret) {
			wrong("the log tells %q", secret)
		}
	}
	for _, secret := range []string{faults.Token, faults.Marker, "127.0.0.1", "hrana", "sql:", "SQLITE", "EOF", "database:", "deadline", "rate_limit"} {
		if strings.Contains(got.body, secret) {
			wrong("the body tells %q", secret)
		}
	}
	if limiter && !degrades && f.hashes.Load() > 0 {
		wrong("a password was looked at")
	}
	if want := 0; where == "the store" && o.policy != "" {
		if fault.Applied {
			want = 1
		}
		if n := f.charged(o.policy); n != want {
			wrong("%d charged to %s, want %d", n, o.policy, want)
		}
	}

	if fault.Silent {
		f.clock.Add(time.Second)
	}
	if strings.HasPrefix(o.request, "POST otp") {
		f.clock.Add(10 * time.Second) // a send whose reply was lost took its turn at the SMS gateway
	}
	if where != "the store" {
		if fault.Silent { // whatever it was, the next probe ends the outage
			f.limits(`{"mode":"peek","limits":[{"policy":"of-service","subject":"d"}]}`)
		}
		return
	}
	if got = send(); got.StatusCode != o.normal {
		wrong("want %d when the store is back", o.normal)
	}
	if limited := o.who != "service" && o.who != "timer"; limited && got.Header.Get("Ratelimit") == "" {
		wrong("no RateLimit when the store is back")
	}
}

// statements are all requests but those that close streams, which the driver sends from goroutines of its own.
func statements(request string) bool {
	return faults.OfLimiter(request) || faults.OfApplication(request)
}

// The same for hardened sign-in: each row, in the same columns.
var hardenedOperations = []operation{
	{"POST sign-in", `{"username":"someone","password":"` + rightPassword + `"}`, "", "sign-in", 200, 503, 503, 503, 200, 503, 503},
	{"POST sign-in", `{"username":"someone","password":"` + rightPassword + `"}`, "device", "sign-in", 200, 503, 503, 503, 200, 503, 503},
	{"POST sign-in", `{"username":"nobody","password":"a wrong password"}`, "", "sign-in", 401, 503, 503, 503, 401, 503, 503},
	{"PATCH sign-in", `{"currentPassword":"a wrong password","newPassword":"another password"}`, "member", "session", 401, 503, 503, 503, 401, 503, 503},
}

// Rows D2, D7: nothing is compared and nobody is let in when the store fails before a first or a second decision, and the next
// request is normal.
func TestHardenedSignInMeetsEveryFaultOfTheStore(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { meetHardened(t, hrana.Start(t, hrana.Config{}).URL) })
	turso.Each(t, func(t *testing.T, server *turso.Server) { meetHardened(t, server.URL) })
}

func meetHardened(t *testing.T, server string) {
	c := newCaptchas(t)
	f := newFaulty(t, server, "refuse", hardened, c.settings)
	who := f.people()
	for _, fault := range faults.All() {
		for _, o := range hardenedOperations {
			f.meet(o, who[o.who], fault, "the store", nil, o.refused, false)
		}
	}
	for i, fault := range faults.All() {
		f.cells++
		f.clock.At(time.Duration(f.cells) * cellTime)
		f.climb("someone")
		body := func(token string) string {
			return fmt.Sprintf(`{"username":"someone","password":%q,"captcha":"good-%s-%d"}`, rightPassword, token, i)
		}
		f.hashes.Store(0)
		f.proxy.Fail(fault, faults.AfterDecision())
		got := f.send(from(2*i), "POST", "/api/sign-in", body("first"))
		f.proxy.Heal()
		if got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Ratelimit") != "" || f.hashes.Load() > 0 || len(got.Cookies()) > 0 {
			t.Errorf("%s between the decisions: status %d, %d hashes, header %v, body %s", fault.Name, got.StatusCode, f.hashes.Load(), got.Header, got.body)
		}
		if fault.Silent {
			f.clock.Add(time.Second)
		}
		want := 0
		if fault.Applied {
			want = 1 // the reply was lost, and the charge stands
		}
		if n := f.charged("failed-sign-ins-captcha"); n != want {
			t.Errorf("%s: %d charged by the CAPTCHA, want %d", fault.Name, n, want)
		}
		expect(t, f.send(from(2*i+1), "POST", "/api/sign-in", body("second")), http.StatusOK)
	}
}

// standing starts a world of policies that refuse.
func standing(t *testing.T) *faulty {
	t.Helper()
	f := newFaulty(t, hrana.Start(t, hrana.Config{}).URL, "refuse")
	f.clock.At(time.Hour)
	return f
}

// exact fails the test unless a fresh address gets ten sign-ins and no more.
func (f *faulty) exact(address string) {
	f.t.Helper()
	for range 10 {
		expect(f.t, f.signIn(address, "someone", rightPassword), http.StatusOK)
	}
	expect(f.t, f.signIn(address, "someone", rightPassword), http.StatusTooManyRequests)
}

// Cases A49, B01; row D7: the waits are those of the test's clock, which only silences move. What reads a session or a device before
// its decision waits no longer than what doesn't.
func TestAThousandRequestsWaitForASilentStoreTwice(t *testing.T) {
	f := standing(t)
	people := f.people()
	signIn := `{"username":"someone","password":"` + rightPassword + `"}`
	for _, test := range []struct{ fault, method, route, body, who string }{
		{"silence", "POST", "sign-in", signIn, ""},
		{"silence after applying", "POST", "sign-in", signIn, ""},
		{"silence", "POST", "sign-in", signIn, "device"},
		{"silence", "GET", "ai-log", "", "member"},
		{"silence", "GET", "limits", "", "service"},
	} {
		t.Run(test.fault+" "+test.method+" "+test.route+" "+test.who, func(t *testing.T) {
			f.clock.At(f.clock.Now().Sub(storetest.Start).Truncate(time.Hour) + time.Hour)
			begun, asked := f.clock.Now(), f.proxy.Failed()
			f.hashes.Store(0)
			send := func(address string) reply {
				return f.send(address, test.method, "/api/"+test.route, test.body, people[test.who])
			}
			f.proxy.Fail(faults.Named(t, test.fault), statements)
			for i := range 1000 {
				got := send(fmt.Sprintf("2001:db8:%x::1", i))
				if got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" {
					t.Fatalf("request %d answers %d: %s", i+1, got.StatusCode, got.body)
				}
			}
			if waited := f.clock.Now().Sub(begun); waited != 2*faultyStoreDeadline {
				t.Errorf("1000 requests waited for %v, want two deadlines of %v", waited, faultyStoreDeadline)
			}
			if n := f.proxy.Failed() - asked; n != 2 {
				t.Errorf("the store was asked %d times, want 2", n)
			}
			if n := f.hashes.Load(); n != 0 {
				t.Errorf("%d passwords were looked at", n)
			}
			// Within the second nobody asks; then one does, in vain, and a second later the next one.
			f.clock.Add(time.Second)
			for range 5 {
				expect(t, send("203.0.113.9"), http.StatusServiceUnavailable)
			}
			if n := f.proxy.Failed() - asked; n != 3 {
				t.Errorf("the store was asked %d times, want 3: one probe", n)
			}
			f.proxy.Heal()
			expect(t, send("203.0.113.10"), http.StatusServiceUnavailable)
			f.clock.Add(time.Second)
			f.exact("203.0.113.11") // its first request is the probe
			if got := send("203.0.113.12"); got.StatusCode != http.StatusOK {
				t.Errorf("status %d when the store is back: %s", got.StatusCode, got.body)
			}
		})
	}
}

// Cases A49, B19; row D7.
func TestErrorsOfTheStoreAtOnceMakeNobodyWaitAndTheNextRequestIsNormal(t *testing.T) {
	f := standing(t)
	f.member("someone")
	begun, asked := f.clock.Now(), f.proxy.Failed()
	f.proxy.Fail(faults.Named(t, "500"), nil)
	for i := range 1000 {
		expect(t, f.signIn(fmt.Sprintf("2001:db8:%x::1", i), "someone", rightPassword), http.StatusServiceUnavailable)
	}
	if waited := f.clock.Now().Sub(begun); waited != 0 {
		t.Errorf("requests waited for %v", waited)
	}
	if n := f.proxy.Failed() - asked; n != 1000 {
		t.Errorf("the store was asked %d times by 1000 requests: the breaker opened", n)
	}
	f.proxy.Heal()
	f.exact("203.0.113.11")
}

// Case B01: the same with a server that holds its connections, on the deadline's own clock.
func TestAStoreThatHoldsItsConnectionsIsAskedTwice(t *testing.T) {
	server := hrana.Start(t, hrana.Config{}).URL
	proxy := faults.Start(t, server)
	w := newWorld(t, func(s *app.Settings) {
		s.DatabaseURL, s.AuthToken, s.StoreDeadline = proxy.URL, faults.Token, 50*time.Millisecond
	})
	proxy.Fail(faults.Named(t, "silence"), statements)
	for range 20 {
		expect(t, w.signIn("203.0.113.9", "someone", rightPassword), http.StatusServiceUnavailable)
	}
	if n := proxy.Failed(); n != 2 {
		t.Errorf("the store was asked %d times, want 2", n)
	}
}

// Row D7: in an outage a service is told that an answer is this process's own, and only as much as its share is admitted.
func TestAServiceGetsItsShareOfAnOutageAndExactAnswersAfterIt(t *testing.T) {
	for failure, share := range map[string]int{"strict": 2, "open": 4} {
		t.Run(failure, func(t *testing.T) {
			f := newFaulty(t, hrana.Start(t, hrana.Config{}).URL, failure)
			body := `{"limits":[{"policy":"of-service","subject":"someone"}]}`
			f.proxy.Fail(faults.Named(t, "503"), nil)
			for i := range share + 3 {
				got := f.limits(body)
				if i >= share {
					expect(t, got, http.StatusServiceUnavailable)
				} else if expect(t, got, http.StatusOK); got.json(t)["degraded"] != true || got.json(t)["allowed"] != true {
					t.Errorf("answer %d of the outage: %s", i+1, got.body)
				}
			}
			f.proxy.Heal()
			for range 60 {
				got := f.limits(body)
				if expect(t, got, http.StatusOK); got.json(t)["allowed"] != true || got.json(t)["degraded"] != nil {
					t.Fatalf("after the outage: %s", got.body)
				}
			}
			if got := f.limits(body); got.json(t)["allowed"] != false {
				t.Errorf("after the limit: %s", got.body)
			}
		})
	}
}
