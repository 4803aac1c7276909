package app_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
)

// signedUp makes an account with a role and gives what signs a request in as it.
func (w *world) signedUp(name, role string) func(*http.Request) {
	w.t.Helper()
	w.member(name)
	if _, err := w.db.Exec("UPDATE accounts SET role = ? WHERE username = ?", role, name); err != nil {
		w.t.Fatal(err)
	}
	return w.cookie(w.signIn("203.0.113.200", name, rightPassword))
}

// demo gives what signs a request in as the demo account of a role.
func (w *world) demo(role string) func(*http.Request) {
	w.t.Helper()
	return w.cookie(w.send("203.0.113.200", "POST", "/api/demo-sign-in", fmt.Sprintf(`{"role":%q}`, role)))
}

// cookie gives what adds the session's cookie of a sign-in to a request.
func (w *world) cookie(signIn reply) func(*http.Request) {
	w.t.Helper()
	expect(w.t, signIn, http.StatusOK)
	cookie := signIn.Cookies()[0]
	return func(r *http.Request) { r.AddCookie(cookie) }
}

type byMemberRow struct {
	row, policy          string
	limit                int
	window               time.Duration
	role                 string // that it takes
	method, route, query string
	body                 string
}

// The rows of the application's limits by member, as the requirements give them, each with a request that costs one.
var byMember = []byMemberRow{
	{"A8", "mail-invite", 6, 10 * time.Minute, "member", "POST", "invites", "", `{"email":"someone@example.org"}`},
	{"A9", "ai-log", 200, 10 * time.Minute, "member", "POST", "ai-log", "", someEntry},
	{"ai-log-read", "ai-log-read", 60, time.Minute, "member", "GET", "ai-log", "?limit=1", ""},
	{"A10", "sandbox-sql", 30, 10 * time.Minute, "admin", "POST", "sandbox-sql", "", `{"sql":"SELECT 1"}`},
	{"A11", "evaluation", 40, 10 * time.Minute, "admin", "POST", "evaluations", "", `{"entry":1,"score":3}`},
	{"evaluation-read", "evaluation-read", 60, time.Minute, "admin", "GET", "evaluations", "", ""},
}

// Rows A8, A9, A11, D8; cases A03, A05, A07, A08.
func TestEveryRouteForMembersAdmitsItsLimitAndRefusesTheNext(t *testing.T) {
	for _, row := range byMember {
		t.Run(row.row+" "+row.method+" "+row.route, func(t *testing.T) {
			w := newWorld(t)
			w.clock.At(20 * time.Second)
			someone, another := w.signedUp("someone", row.role), w.signedUp("another", row.role)
			path, wait := "/api/"+row.route+row.query, int(row.window.Seconds())-20
			fields := func(remaining, edge int) map[string]string {
				return map[string]string{
					"Ratelimit-Policy":    fmt.Sprintf(`"%s";q=%d;w=%d, "edge";q=1000;w=60`, row.policy, row.limit, int(row.window.Seconds())),
					"Ratelimit":           fmt.Sprintf(`"%s";r=%d;t=%d, "edge";r=%d;t=40`, row.policy, remaining, wait, edge),
					"Ratelimit-Limit":     strconv.Itoa(row.limit),
					"Ratelimit-Remaining": strconv.Itoa(remaining),
					"Ratelimit-Reset":     strconv.Itoa(wait),
				}
			}
			for i := range row.limit {
				body := row.body
				if body != "" && i%3 == 1 { // case A47: what can't be read counts too
					body = "{"
				}
				got := w.send("203.0.113.9", row.method, path, body, someone)
				if got.StatusCode == http.StatusTooManyRequests || got.StatusCode >= 500 || (body == "{") != (got.StatusCode == http.StatusBadRequest) {
					t.Fatalf("request %d answers %d: %s", i+1, got.StatusCode, got.body)
				}
				checkHeader(t, got, fields(row.limit-i-1, 1000-i-1))
				checkHeader(t, got, map[string]string{"Retry-After": ""})
			}
			for _, body := range []string{row.body, "{"} {
				got := w.send("203.0.113.9", row.method, path, body, someone)
				expect(t, got, http.StatusTooManyRequests)
				checkHeader(t, got, fields(0, 1000-row.limit)) // a refusal costs the edge nothing
				checkHeader(t, got, map[string]string{"Retry-After": strconv.Itoa(wait), "Content-Type": "application/problem+json"})
				problem := got.json(t)
				if problem["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" ||
					problem["limit"] != float64(row.limit) || problem["retryAfterSeconds"] != float64(wait) ||
					fmt.Sprint(problem["violated-policies"]) != "["+row.policy+"]" {
					t.Fatalf("the refusal says %s", got.body)
				}
			}
			expect(t, w.send("203.0.113.10", row.method, path, row.body, someone), http.StatusTooManyRequests) // wherever it comes from
			if got := w.send("203.0.113.9", row.method, path, row.body, another); got.StatusCode == http.StatusTooManyRequests {
				t.Fatal("another member is refused too")
			}
			if n := w.count("SELECT count(*) FROM rate_limit_audit WHERE policy = '" + row.policy + "'"); n != 1 { // row B5
				t.Fatalf("%d audit rows, want 1", n)
			}
			w.clock.At(row.window) // waiting exactly as long as told is enough
			if got := w.send("203.0.113.9", row.method, path, row.body, someone); got.StatusCode == http.StatusTooManyRequests {
				t.Fatalf("refused after the wait: %s", got.body)
			}
		})
	}
}

func TestWhoIsNotSignedInOrNoAdminCostsTheAddressAlone(t *testing.T) {
	for _, row := range byMember {
		t.Run(row.method+" "+row.route, func(t *testing.T) {
			w := newWorld(t)
			member, path := w.signedUp("someone", "member"), "/api/"+row.route+row.query
			got := w.send("203.0.113.9", row.method, path, row.body)
			expect(t, got, http.StatusUnauthorized)
			checkHeader(t, got, map[string]string{"Ratelimit-Policy": `"edge";q=1000;w=60`, "Ratelimit-Remaining": "999"})
			if row.role != "admin" {
				return
			}
			got = w.send("203.0.113.9", row.method, path, row.body, member)
			expect(t, got, http.StatusForbidden)
			checkHeader(t, got, map[string]string{"Ratelimit-Policy": `"edge";q=1000;w=60`, "Ratelimit-Remaining": "998"})
			if n := w.count("SELECT count(*) FROM rate_limits WHERE policy = '" + row.policy + "'"); n != 0 {
				t.Errorf("%d keys of %s", n, row.policy)
			}
		})
	}
}

// Cases A49, B16.
func TestADatabaseThatFailsIsAnOutageForMembersToo(t *testing.T) {
	for table, routes := range map[string][]string{
		"rate_limits":    app.Routes(),
		"sessions":       app.Routes(),
		"ai_log_entries": {"ai-log", "evaluations"},
		"outbox":         {"invites"},
	} {
		t.Run(table, func(t *testing.T) {
			w := newWorld(t)
			admin := w.demo("admin")
			if _, err := w.db.Exec("DROP TABLE " + table); err != nil {
				t.Fatal(err)
			}
			for _, row := range byMember {
				if !slices.Contains(routes, row.route) {
					continue
				}
				got := w.send("203.0.113.9", row.method, "/api/"+row.route+row.query, row.body, admin)
				expect(t, got, http.StatusServiceUnavailable)
				if got.Header.Get("Retry-After") == "" || got.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s %s: header %v", row.method, row.route, got.Header)
				}
				for _, secret := range []string{table, "SQL", "table", "file:"} {
					if strings.Contains(got.body, secret) {
						t.Errorf("%s %s tells %q: %s", row.method, row.route, secret, got.body)
					}
				}
			}
		})
	}
}

// Row B7: the edge's limit is one counter of an address over all routes, and rides along in each route's own decision.
func TestAnAddressHasAThousandRequestsAMinuteOverAllRoutes(t *testing.T) {
	w := newWorld(t, func(s *app.Settings) { // with no other limit in the way
		s.Policies = `[{"name": "username-check", "algorithm": "fixed-window", "limit": 2000, "window": "1m"},
			{"name": "code-lookup", "algorithm": "fixed-window", "limit": 2000, "window": "1m"},
			{"name": "session", "algorithm": "fixed-window", "limit": 2000, "window": "1m"}]`
	})
	w.clock.At(0)
	for i := range 1000 {
		path := []string{"/api/usernames?name=somebody", "/api/codes?code=unknown", "/api/sign-in"}[i%3]
		if got := w.send("203.0.113.9", "GET", path, ""); got.StatusCode >= 500 || got.StatusCode == http.StatusTooManyRequests {
			t.Fatalf("request %d answers %d: %s", i, got.StatusCode, got.body)
		}
	}
	got := w.send("203.0.113.9", "GET", "/api/usernames?name=somebody", "")
	expect(t, got, http.StatusTooManyRequests)
	if fmt.Sprint(got.json(t)["violated-policies"]) != "[edge]" {
		t.Fatalf("the refusal says %s", got.body)
	}
	checkHeader(t, got, map[string]string{"Ratelimit-Limit": "1000", "Ratelimit-Remaining": "0", "Retry-After": "60"})
	expect(t, w.send("203.0.113.10", "GET", "/api/usernames?name=somebody", ""), http.StatusOK)
}
