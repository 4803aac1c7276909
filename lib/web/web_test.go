package web_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

func TestRemainingCountsDownToZeroAndThenRefuses(t *testing.T) { // case A03
	for _, units := range []int64{1, 5} {
		policy := byAddress
		policy.Limit = units
		s := newSite(t, policy)
		for left := units - 1; left >= 0; left-- {
			got := s.signInAs(fmt.Sprint("someone", left), "right")
			if l := limitsOf(t, got.header); got.status != 200 || len(l) != 1 || l[0].r != left {
				t.Fatalf("status %d, limits %+v, want %d left", got.status, l, left)
			}
		}
		got := s.signInAs("someone", "right")
		isProblem(t, got, 429)
		if l := limitsOf(t, got.header); l[0].r != 0 {
			t.Errorf("%d left on a refusal", l[0].r)
		}
	}
}

func TestTheFieldsAreWrittenAsTheDraftHasThem(t *testing.T) {
	s := newSite(t)
	s.wait(40 * time.Second)
	got := s.signInAs("mallory", "right")
	for name, want := range map[string]string{
		"RateLimit-Policy":    `"sign-in";q=10;w=60`,
		"RateLimit":           `"sign-in";r=9;t=20`,
		"RateLimit-Limit":     "10",
		"RateLimit-Remaining": "9",
		"RateLimit-Reset":     "20",
	} {
		if value := got.header.Get(name); value != want {
			t.Errorf("%s is %s, want %s", name, value, want)
		}
	}
}

func TestTheWaitIsWholeSecondsToTheEndOfTheWindow(t *testing.T) {
	tests := []struct {
		name    string
		elapsed time.Duration
		want    string
	}{
		{"a third is left", 40 * time.Second, "20"},                                    // case A05
		{"a fraction is rounded up", 40*time.Second + 100*time.Millisecond, "20"},      // case A07
		{"less than a second is a second", 59*time.Second + 800*time.Millisecond, "1"}, // case A04
		{"the last microsecond is a second", time.Minute - time.Microsecond, "1"},
		{"all of it is left", 0, "60"}, // case A08
	}
	once := byAddress
	once.Limit = 1
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t, once)
			s.signInAs("a", "right")
			s.wait(test.elapsed)
			got := s.signInAs("a", "right")
			isProblem(t, got, 429)
			retry := got.header.Get("Retry-After")
			if retry != test.want || !regexp.MustCompile(`^[1-9][0-9]*$`).MatchString(retry) {
				t.Errorf("Retry-After %q, want %s", retry, test.want)
			}
			if reset := got.header.Get("RateLimit-Reset"); reset != retry { // case A08
				t.Errorf("Reset %s, Retry-After %s", reset, retry)
			}
			if l := limitsOf(t, got.header); fmt.Sprint(l[0].t) != retry {
				t.Errorf("t %d, Retry-After %s", l[0].t, retry)
			}
		})
	}
}

func TestWaitingAsLongAsToldIsEnough(t *testing.T) { // case A07
	once := byAddress
	once.Limit = 1
	for i := range 200 {
		s := newSite(t, once)
		s.wait(time.Duration(i) * 299_993 * time.Microsecond)
		s.signInAs("a", "right")
		got := s.signInAs("a", "right")
		isProblem(t, got, 429)
		wait, err := strconv.Atoi(got.header.Get("Retry-After"))
		if err != nil {
			t.Fatal(err)
		}
		s.wait(time.Duration(wait) * time.Second)
		if again := s.signInAs("a", "right"); again.status != 200 {
			t.Fatalf("refused after %d seconds, at step %d", wait, i)
		}
	}
}

func TestAClientThatKeepsAskingIsLetBackInOnTime(t *testing.T) { // case A09
	once := byAddress
	once.Limit, once.Window = 1, 10*time.Second
	s := newSite(t, once)
	if got := s.signInAs("a", "right"); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	for left := 9; left >= 1; left-- {
		s.wait(time.Second)
		got := s.signInAs("a", "right")
		isProblem(t, got, 429)
		if retry := got.header.Get("Retry-After"); retry != fmt.Sprint(left) {
			t.Errorf("Retry-After %s, want %d", retry, left)
		}
	}
	s.wait(time.Second)
	if got := s.signInAs("a", "right"); got.status != 200 {
		t.Errorf("status %d when the window is over", got.status)
	}
}

func TestOtherSitesCanReadEveryAnswer(t *testing.T) { // case A24
	s := newSite(t)
	exhaust := func() {
		for range 10 {
			s.do("POST", route, "{")
		}
	}
	tests := []struct {
		name   string
		before func()
		method string
		status int
	}{
		{"200", nil, "POST", 200},
		{"405", nil, "PUT", 405},
		{"503", func() { s.outage = errors.New("gone") }, "POST", 503},
		{"429", func() { s.outage = nil; exhaust() }, "POST", 429},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.before != nil {
				test.before()
			}
			got := s.do(test.method, route, `{"username":"a","password":"right"}`, "Origin", otherSite)
			if got.status != test.status {
				t.Fatalf("status %d, want %d", got.status, test.status)
			}
			if origin := got.header.Get("Access-Control-Allow-Origin"); origin != otherSite {
				t.Errorf("allowed origin %q", origin)
			}
			if got.header.Get("Access-Control-Allow-Credentials") != "true" {
				t.Error("credentials are not allowed")
			}
			if !slices.Contains(got.header.Values("Vary"), "Origin") {
				t.Errorf("Vary %q", got.header.Values("Vary"))
			}
			exposed := strings.ToLower(got.header.Get("Access-Control-Expose-Headers"))
			for _, name := range []string{"retry-after", "location", "ratelimit", "ratelimit-policy", "ratelimit-limit",
				"ratelimit-remaining", "ratelimit-reset"} {
				if !slices.Contains(strings.Split(exposed, ", "), name) {
					t.Errorf("%s is not exposed: %s", name, exposed)
				}
			}
		})
	}
}

func TestAForeignSiteCanReadNothing(t *testing.T) {
	got := newSite(t).do("GET", route, "", "Origin", foreign)
	if got.header.Get("Access-Control-Allow-Origin") != "" || !slices.Contains(got.header.Values("Vary"), "Origin") {
		t.Errorf("header %v", got.header)
	}
}

func TestOptionsIsAnsweredAndNeverCounted(t *testing.T) { // case A25
	s := newSite(t)
	for range 100 {
		got := s.do("OPTIONS", route, "", "Origin", otherSite, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "content-type")
		if got.status != 204 || got.body != "" || got.header.Get("Access-Control-Allow-Methods") != "POST" ||
			got.header.Get("Access-Control-Allow-Origin") != otherSite || got.header.Get("Allow") != "GET, POST" {
			t.Fatalf("preflight: %d %v", got.status, got.header)
		}
	}
	if l := limitsOf(t, s.signInAs("a", "right").header); l[0].r != 9 {
		t.Errorf("%d left after preflights, want 9", l[0].r)
	}
	tests := []struct {
		name   string
		header []string
	}{
		{"a foreign site", []string{"Origin", foreign, "Access-Control-Request-Method", "POST"}},
		{"a method that isn't there", []string{"Origin", otherSite, "Access-Control-Request-Method", "DELETE"}},
		{"a header that isn't read", []string{"Origin", otherSite, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "x-forwarded-for"}},
		{"no preflight at all", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := s.do("OPTIONS", route, "", test.header...)
			if got.status != 204 || got.header.Get("Allow") != "GET, POST" || got.header.Get("Access-Control-Allow-Methods") != "" {
				t.Errorf("%d %v", got.status, got.header)
			}
		})
	}
}

func TestAWrongMethodIsRefusedAndNotCounted(t *testing.T) { // case A26
	s := newSite(t)
	for _, method := range []string{"HEAD", "PUT", "PATCH", "DELETE", "TRACE", "post", "MALLORY"} {
		for range 10 {
			got := s.do(method, route, "")
			if got.status != 405 || got.header.Get("Allow") != "GET, POST" {
				t.Fatalf("%s: %d, Allow %q", method, got.status, got.header.Get("Allow"))
			}
			if method == "HEAD" {
				if got.body != "" {
					t.Fatalf("HEAD has the body %q", got.body)
				}
				continue
			}
			isProblem(t, got, 405)
		}
	}
	if l := limitsOf(t, s.signInAs("a", "right").header); l[0].r != 9 {
		t.Errorf("%d left after wrong methods, want 9", l[0].r)
	}
	if strings.Contains(s.log.String(), "MALLORY") {
		t.Error("the log repeats a method of the client's choosing")
	}
}

func TestEveryAnswerOfALimitedRouteHasTheFields(t *testing.T) { // case A27
	tests := []struct {
		status     int
		body, from string
	}{
		{200, `{"username":"a","password":"right"}`, ""},
		{400, `{`, ""},
		{401, `{"username":"a","password":"wrong"}`, ""},
		{403, `{"username":"a","password":"right"}`, foreign},
		{413, `{"username":"` + strings.Repeat("a", web.MaxBodyBytes) + `"}`, ""},
		{422, `{"username":"a"}`, ""},
		{422, `{"username":" ","password":"right"}`, ""}, // case A39: the policy can't read the subject
		{500, `{"username":"b","password":"bug"}`, ""},
		{500, `{"username":"c","password":"panic"}`, ""},
		{500, `{"username":"d","password":"unencodable"}`, ""},
		{429, `{"username":"a","password":"right"}`, ""},
	}
	s := newSite(t)
	for i, test := range tests {
		var header []string
		if test.from != "" {
			header = []string{"Origin", test.from}
		}
		got := s.do("POST", route, test.body, header...)
		if test.status == 200 {
			if got.status != 200 || got.header.Get("Content-Type") != "application/json" {
				t.Fatalf("%d %v %s", got.status, got.header, got.body)
			}
		} else {
			isProblem(t, got, test.status)
		}
		left := max(int64(9-i), 0)
		if l := limitsOf(t, got.header); len(l) != 1 || l[0].name != "sign-in" || l[0].r != left {
			t.Errorf("%d: limits %+v, want sign-in with %d left", test.status, l, left)
		}
		if got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%d: header %v", test.status, got.header)
		}
	}
}

func TestTheLimitThatRefusesIsTheOneReported(t *testing.T) { // case A28
	for _, units := range []int64{100, 4} { // of the address: plenty left, and just used up
		wide := byAddress
		wide.Limit = units
		s := newSite(t, wide)
		for range 3 {
			isProblem(t, s.signInAs("mallory", "wrong"), 401)
		}
		got := s.signInAs("mallory", "wrong")
		p := isProblem(t, got, 429)
		if want := "3 0 900"; oldFields(got.header) != want || got.header.Get("Retry-After") != "900" {
			t.Errorf("limit, remaining, reset are %s, want %s; Retry-After %s",
				oldFields(got.header), want, got.header.Get("Retry-After"))
		}
		want := []limit{{"sign-in", units, 60, units - 4, 60}, {"failed-sign-in", 3, 900, 0, 900}}
		if l := limitsOf(t, got.header); !slices.Equal(l, want) {
			t.Errorf("limits %+v, want %+v", l, want)
		}
		if !slices.Equal(p.ViolatedPolicies, []string{"failed-sign-in"}) || p.Limit != 3 || p.RetryAfterSeconds != 900 ||
			p.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" {
			t.Errorf("problem %+v", p)
		}
	}
}

func TestOfTwoLimitsThatRefuseTheLongerWaitIsTold(t *testing.T) {
	hour := byAddress
	hour.Name, hour.Limit, hour.Window = "sign-in-hour", 9, time.Hour
	s := newSite(t, byAddress, hour)
	for range 10 {
		s.do("POST", route, "{")
	}
	got := s.signInAs("a", "right")
	p := isProblem(t, got, 429)
	if !slices.Equal(p.ViolatedPolicies, []string{"sign-in", "sign-in-hour"}) || p.Limit != 9 || p.RetryAfterSeconds != 3600 {
		t.Errorf("problem %+v", p)
	}
	if want := "9 0 3600"; oldFields(got.header) != want {
		t.Errorf("limit, remaining, reset are %s, want %s", oldFields(got.header), want)
	}
	if l := limitsOf(t, got.header); l[0].t != 60 || l[1].t != 3600 {
		t.Errorf("limits %+v", l)
	}
}

func TestAnAccountsLimitShowsOnlyWhenItRefuses(t *testing.T) { // cases E14, E01
	s := newSite(t)
	for range 2 {
		s.signInAs("victim", "wrong", "X-Vercel-Forwarded-For", "192.0.2.1")
	}
	tried := s.signInAs("victim", "wrong", "X-Vercel-Forwarded-For", "198.51.100.1")
	fresh := s.signInAs("nobody", "wrong", "X-Vercel-Forwarded-For", "198.51.100.2")
	if !reflect.DeepEqual(tried, fresh) {
		t.Errorf("an account that was tried before:\n%+v\none that wasn't:\n%+v", tried, fresh)
	}
	if l := limitsOf(t, tried.header); len(l) != 1 || l[0].name != "sign-in" {
		t.Errorf("limits %+v, want the address's alone", l)
	}
}

func TestWhileAnAccountIsLimitedThePasswordMakesNoDifference(t *testing.T) { // case E13
	s := newSite(t)
	for range 3 {
		s.signInAs("victim", "wrong", "X-Vercel-Forwarded-For", "192.0.2.1")
	}
	before := s.checked
	right := s.signInAs("victim", "right", "X-Vercel-Forwarded-For", "198.51.100.1")
	wrong := s.signInAs("victim", "wrong", "X-Vercel-Forwarded-For", "198.51.100.2")
	isProblem(t, right, 429)
	if !reflect.DeepEqual(right, wrong) {
		t.Errorf("right:\n%+v\nwrong:\n%+v", right, wrong)
	}
	if s.checked != before {
		t.Errorf("%d passwords were looked at", s.checked-before)
	}
	if right.header.Get("Set-Cookie") != "" {
		t.Error("a cookie was set")
	}
}

func TestARightPasswordCostsTheAccountNothing(t *testing.T) {
	s := newSite(t)
	for i := range 8 {
		if got := s.signInAs("mallory", "right"); got.status != 200 {
			t.Fatalf("sign-in %d: status %d", i, got.status)
		}
	}
}

func TestAddressHeadersOfTheClientMakeNoNewBucket(t *testing.T) { // cases A31, A32
	s := newSite(t)
	admitted := 0
	for i := range 50 {
		claim := fmt.Sprintf("192.0.2.%d", i)
		got := s.do("POST", route, `{`, "X-Forwarded-For", claim+", "+client, "CF-Connecting-IP", claim, "True-Client-IP", claim,
			"Forwarded", "for="+claim, "X-Client-IP", claim, "X-Cluster-Client-IP", claim, "Fastly-Client-IP", claim)
		if got.status == 400 {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("%d admitted, want 10", admitted)
	}
	if l := limitsOf(t, s.do("POST", route, "{", "X-Vercel-Forwarded-For", "192.0.2.7").header); l[0].r != 9 {
		t.Errorf("the address that was claimed has %d left, want 9", l[0].r)
	}
}

func TestANetworkOfIPv6IsOneClient(t *testing.T) { // cases A33, A36
	s := newSite(t)
	admitted := 0
	for i := range 40 {
		got := s.do("POST", route, "{", "X-Vercel-Forwarded-For", fmt.Sprintf("[2001:db8:1:2::%x]:%d", i*i, 50000+i))
		if got.status == 400 {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("%d admitted, want 10", admitted)
	}
	if got := s.do("POST", route, "{", "X-Vercel-Forwarded-For", "2001:db8:1:3::1"); got.status != 400 {
		t.Errorf("another network: %d", got.status)
	}
}

func TestWithoutAnAddressARequestIsRefusedAndNobodyElseIs(t *testing.T) { // cases A38, A35, A37
	s := newSite(t)
	for _, address := range []string{"", "abc", "fe80::1%eth0", "010.0.0.1", "999.1.1.1"} {
		for range 20 {
			got := s.signInAs("mallory", "right", "X-Vercel-Forwarded-For", address)
			isProblem(t, got, 503)
			if len(limitsOf(t, got.header)) != 0 {
				t.Fatalf("limits without a decision: %v", got.header)
			}
		}
	}
	warned := 0
	for _, line := range s.logLines() {
		if line["level"] == "WARN" && line["msg"] == "request without a client address" && line["route"] == route {
			warned++
		}
	}
	if warned != 100 || s.checked != 0 {
		t.Errorf("%d warnings, want 100; %d passwords looked at", warned, s.checked)
	}
	if got := s.signInAs("mallory", "right"); got.status != 200 {
		t.Errorf("a client with an address: %d", got.status)
	}
}

func TestLoopbackAndPrivateAddressesAreLimited(t *testing.T) { // case A52
	for _, address := range []string{"127.0.0.1", "::1", "10.0.0.1", "169.254.1.1"} {
		s := newSite(t)
		for range 10 {
			s.do("POST", route, "{", "X-Vercel-Forwarded-For", address)
		}
		isProblem(t, s.do("POST", route, "{", "X-Vercel-Forwarded-For", address), 429)
	}
}

func TestThePathDoesNotMatterToTheLimit(t *testing.T) { // case A46
	s := newSite(t)
	for i, target := range []string{"/api/sign-in", "/api/sign-in/", "/api/sign-in.go", "/api//sign-in", "/api/%73ign-in", "/api/sign-in?x=1"} {
		if l := limitsOf(t, s.do("POST", target, "{").header); l[0].r != int64(9-i) {
			t.Errorf("%s: %d left, want %d", target, l[0].r, 9-i)
		}
	}
}

func TestMalformedBodiesCountAgainstTheAddress(t *testing.T) { // case A47
	s := newSite(t)
	var statuses []int
	for range 15 {
		statuses = append(statuses, s.do("POST", route, "{").status)
	}
	want := slices.Concat(slices.Repeat([]int{400}, 10), slices.Repeat([]int{429}, 5))
	if !slices.Equal(statuses, want) {
		t.Errorf("statuses %v, want %v", statuses, want)
	}
}

func TestAFaultyRequestCostsNoAccount(t *testing.T) {
	s := newSite(t)
	for range 3 {
		isProblem(t, s.signInAs("victim", "wrong", "Origin", foreign, "Content-Type", "text/plain"), 403)
		isProblem(t, s.do("POST", route, `{"username":"victim","password":""}`), 422)
		isProblem(t, s.do("POST", route, `{"username":"victim","password":"wrong"}x`), 400)
	}
	if got := s.signInAs("victim", "right"); got.status != 200 {
		t.Errorf("status %d: the account was charged", got.status)
	}
	if s.checked != 1 {
		t.Errorf("%d passwords looked at, want 1", s.checked)
	}
}

func TestAChangeComesFromAnAllowedPageOrNone(t *testing.T) {
	tests := []struct {
		name    string
		method  string
		origins []string
		want    int
	}{
		{"no page", "POST", nil, 200},
		{"an allowed site", "POST", []string{otherSite}, 200},
		{"an allowed site in other case", "POST", []string{"HTTPS://App.Example.org"}, 200},
		{"the service's own page", "POST", []string{"https://example.com"}, 200},
		{"its own page without TLS", "POST", []string{"http://example.com"}, 200},
		{"its own host on another port", "POST", []string{"https://example.com:8443"}, 403},
		{"a foreign site", "POST", []string{foreign}, 403},
		{"a site that begins like an allowed one", "POST", []string{otherSite + ".evil.example"}, 403},
		{"an allowed host without TLS", "POST", []string{"http://app.example.org"}, 403},
		{"a page without an origin", "POST", []string{"null"}, 403},
		{"a blank origin", "POST", []string{""}, 403},
		{"every site", "POST", []string{"*"}, 403},
		{"two origins", "POST", []string{otherSite, foreign}, 403},
		{"a foreign site that only reads", "GET", []string{foreign}, 401},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := request(test.method, "http://example.com"+route, `{"username":"a","password":"right"}`)
			r.Header["Origin"] = test.origins
			if got := do(newSite(t).handler, r); got.status != test.want {
				t.Errorf("status %d, want %d: %s", got.status, test.want, got.body)
			}
		})
	}
}

func TestWithoutAnAnswerOfTheStoreNothingIsTried(t *testing.T) { // cases A49, A24
	s := newSite(t)
	s.outage = errors.New("hrana: status 503 from upstream")
	got := s.signInAs("mallory", "right")
	isProblem(t, got, 503)
	if s.checked != 0 {
		t.Error("the password was looked at")
	}
	if len(limitsOf(t, got.header)) != 0 || strings.TrimSpace(oldFields(got.header)) != "" {
		t.Errorf("numbers without a decision: %v", got.header)
	}
	if strings.Contains(got.body, "hrana") {
		t.Errorf("the client learns the driver's words: %s", got.body)
	}
	lines := s.logLines()
	if len(lines) != 2 || lines[0]["level"] != "WARN" || lines[0]["error"] != "ratelimit: store failed: hrana: status 503 from upstream" {
		t.Errorf("log %v", lines)
	}
	s.outage = nil
	if got := s.signInAs("mallory", "right"); got.status != 200 {
		t.Errorf("status %d when the store is back", got.status)
	}
}

func TestWhatBreaksInsideStaysInside(t *testing.T) {
	tests := []struct {
		password  string
		status    int
		level     string
		in, notIn string // the log
	}{
		{"bug", 500, "ERROR", "disk I/O error", ""},
		{"down", 503, "WARN", "db.example.org", ""},
		{"panic", 500, "ERROR", "signIn", "no mallory"},
		{"unencodable", 500, "ERROR", "func()", ""},
	}
	for _, test := range tests {
		t.Run(test.password, func(t *testing.T) {
			s := newSite(t)
			got := s.signInAs("mallory", test.password)
			isProblem(t, got, test.status)
			for _, secret := range []string{"SELECT", "disk", "libsql", "mallory", "func", ".go", "panic"} {
				if strings.Contains(got.body, secret) {
					t.Errorf("the client reads %q: %s", secret, got.body)
				}
			}
			lines := s.logLines()
			if len(lines) != 2 || lines[0]["level"] != test.level || lines[0]["route"] != route {
				t.Fatalf("log %v", lines)
			}
			if text := fmt.Sprint(lines[0]); !strings.Contains(text, test.in) || test.notIn != "" && strings.Contains(text, test.notIn) {
				t.Errorf("log line %s", text)
			}
			if got := s.signInAs("mallory", "right"); got.status != 200 {
				t.Errorf("the next request: %d", got.status)
			}
		})
	}
}

func TestARequestIsOneLineOfTheLog(t *testing.T) {
	s := newSite(t)
	s.do("GET", route+"?name=mallory", "", "Cookie", "session=s3cret")
	for range 10 {
		s.do("POST", route, "{")
	}
	lines := s.logLines()
	if len(lines) != 11 {
		t.Fatalf("%d lines, want 11", len(lines))
	}
	first, last := lines[0], lines[10]
	if took, ok := first["durationMicros"].(float64); !ok || took < 0 {
		t.Errorf("duration %v", first["durationMicros"])
	}
	for _, line := range lines {
		delete(line, "time")
		delete(line, "durationMicros")
	}
	want := map[string]any{"level": "INFO", "msg": "request", "route": route, "method": "GET", "status": 200.0, "version": "1.2.3"}
	if !reflect.DeepEqual(first, want) {
		t.Errorf("line %v, want %v", first, want)
	}
	want["method"], want["status"], want["violatedPolicies"] = "POST", 429.0, []any{"sign-in"}
	if !reflect.DeepEqual(last, want) {
		t.Errorf("line %v, want %v", last, want)
	}
}

func TestBothWaysOfServingGiveTheSameAnswer(t *testing.T) { // cases D11, D12
	tests := []struct {
		name         string
		method       string
		target, body string
		prime        int // malformed requests before
		status       int
	}{
		{"a sign-in", "POST", route, `{"username":"a","password":"right"}`, 0, 200},
		{"a wrong password", "POST", route, `{"username":"a","password":"wrong"}`, 0, 401},
		{"a malformed body", "POST", route, `{`, 0, 400},
		{"a body too large", "POST", route, strings.Repeat(" ", web.MaxBodyBytes+1), 0, 413},
		{"a refusal", "POST", route, `{"username":"a","password":"right"}`, 10, 429},
		{"a panic", "POST", route, `{"username":"a","password":"panic"}`, 0, 500},
		{"a wrong method", "PUT", route, ``, 0, 405},
		{"a HEAD", "HEAD", route, ``, 0, 405},
		{"a query", "GET", route + "?name=a%20b&x=1", ``, 0, 200},
		{"a query in pieces", "GET", route + "?name=%zz", ``, 0, 400},
		{"a query with a value twice", "GET", route + "?name=a&name=b", ``, 0, 400},
		{"a query that isn't UTF-8", "GET", route + "?name=%ff", ``, 0, 400},
		{"OPTIONS", "OPTIONS", route, ``, 0, 204},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []reply
			for _, serve := range []func(*testing.T, http.Handler, *http.Request) reply{viaServer, viaBridge} {
				s := newSite(t)
				for range test.prime {
					s.do("POST", route, "{")
				}
				r := request(test.method, test.target, test.body, "Cookie", "session=s3cret")
				got = append(got, serve(t, s.handler, r))
			}
			if !reflect.DeepEqual(got[0], got[1]) {
				t.Errorf("net/http:\n%+v\nbridge:\n%+v", got[0], got[1])
			}
			switch {
			case got[0].status != test.status:
				t.Errorf("status %d, want %d", got[0].status, test.status)
			case test.status == 204, test.method == "HEAD":
			case test.status == 200 && got[0].header.Get("Content-Type") != "application/json":
				t.Errorf("content type %q", got[0].header.Get("Content-Type"))
			case test.status >= 400:
				isProblem(t, got[0], test.status)
			}
			if test.name == "a sign-in" {
				want := []string{"session=s3cret", "device=d3vice"}
				if cookies := got[0].header.Values("Set-Cookie"); !slices.Equal(cookies, want) {
					t.Errorf("cookies %q, want %q", cookies, want)
				}
			}
			if test.name == "a query" && got[0].body != `{"name":"a b"}` {
				t.Errorf("body %s", got[0].body)
			}
		})
	}
}

func TestTheConnectionSurvivesABodyThatIsTooLarge(t *testing.T) { // case D13
	s := newSite(t)
	server := httptest.NewServer(s.handler)
	defer server.Close()
	send := func(body string) (status int, left string, reused bool) {
		r, err := http.NewRequest("POST", server.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Real-Ip", client)
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		response, err := server.Client().Do(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := response.Body.Read(make([]byte, 4096)); err != nil && err.Error() != "EOF" {
			t.Fatal(err)
		}
		return response.StatusCode, response.Header.Get("RateLimit-Remaining"), reused
	}
	for i, size := range []int{web.MaxBodyBytes + 1, 4 << 20} {
		status, left, reused := send(strings.Repeat(" ", size))
		if status != 413 || left != fmt.Sprint(9-i) || reused != (i > 0) {
			t.Errorf("%d bytes: status %d, %s left, reused %t", size, status, left, reused)
		}
	}
	if status, left, reused := send(`{"username":"a","password":"right"}`); status != 200 || left != "7" || !reused {
		t.Errorf("afterwards: status %d, %s left, reused %t", status, left, reused)
	}
}

func TestARouteWithoutItsSettingsSaysSo(t *testing.T) { // case D16
	s := &site{t: t}
	setting := errors.New("RATE_LIMIT_SECRET is not set: at least 32 bytes are needed")
	w := web.New(web.Config{Log: slog.New(slog.NewJSONHandler(&s.log, nil))})
	handler := w.Unconfigured(route, []string{"GET", "POST"}, setting)
	for _, method := range []string{"GET", "POST"} {
		s.log.Reset()
		got := do(handler, httptest.NewRequest(method, route, strings.NewReader("{")))
		isProblem(t, got, 503)
		if strings.Contains(got.body, "RATE_LIMIT_SECRET") {
			t.Errorf("the client reads the setting: %s", got.body)
		}
		lines := s.logLines()
		if len(lines) != 2 || lines[0]["level"] != "ERROR" || lines[0]["error"] != setting.Error() {
			t.Errorf("log %v", lines)
		}
	}
	if got := do(handler, httptest.NewRequest("PUT", route, nil)); got.status != 405 || got.header.Get("Allow") != "GET, POST" {
		t.Errorf("PUT: %d, Allow %q", got.status, got.header.Get("Allow"))
	}
	if got := do(handler, httptest.NewRequest("OPTIONS", route, nil)); got.status != 204 {
		t.Errorf("OPTIONS: %d", got.status)
	}
}

func TestAnOperationWithoutLimitsNeedsNoAddress(t *testing.T) {
	s := newSite(t)
	byKey := ratelimit.Policy{Name: "partner", Algorithm: ratelimit.FixedWindow, Limit: 10, Window: time.Minute}
	handler := s.web.Handler("/api/limits", web.Resource{
		"GET": web.Query(nil, func(call *web.Call) ([]ratelimit.Charge, error) {
			key, err := call.Query("key")
			return []ratelimit.Charge{byKey.Charge(key)}, err
		}, func(call *web.Call) (web.Reply, error) {
			if call.Reservation(byKey.Name) == (ratelimit.Reservation{}) || call.Reservation("other") != (ratelimit.Reservation{}) {
				t.Error("the reservation is not the charge's own")
			}
			return web.Reply{}, nil
		}),
		"DELETE": web.Query(nil, nil, func(*web.Call) (web.Reply, error) { return web.Reply{}, nil }),
		"POST": web.Body(nil, 0, nil, func(*web.Call, struct{}) (web.Reply, error) {
			return web.Reply{Status: 201, Body: struct{}{}, Location: "/api/limits?id=1"}, nil
		}),
		"PUT": web.Body(nil, 8, func(_ *web.Call, in credentials) ([]ratelimit.Charge, error) {
			return []ratelimit.Charge{byAccount.Charge(in.Username)}, nil
		}, func(*web.Call, credentials) (web.Reply, error) { return web.Reply{}, nil }),
	})
	got := do(handler, httptest.NewRequest("DELETE", "/", nil))
	if got.status != 204 || got.body != "" || got.header.Get("Content-Type") != "" || len(limitsOf(t, got.header)) != 0 {
		t.Errorf("DELETE: %+v", got)
	}
	got = do(handler, httptest.NewRequest("POST", "/", strings.NewReader("{}")))
	if got.status != 201 || got.body != "{}" || got.header.Get("Location") != "/api/limits?id=1" {
		t.Errorf("POST: %+v", got)
	}
	got = do(handler, httptest.NewRequest("GET", "/?key=k1", nil))
	if l := limitsOf(t, got.header); got.status != 204 || !slices.Equal(l, []limit{{"partner", 10, 60, 9, 60}}) {
		t.Errorf("GET: %+v", got)
	}
	isProblem(t, do(handler, httptest.NewRequest("PUT", "/", strings.NewReader("{}"))), 422)
	isProblem(t, do(handler, httptest.NewRequest("PUT", "/", strings.NewReader(`{       }`))), 413)
}
