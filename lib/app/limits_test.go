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
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

const (
	limitsToken = "the-token-of-other-services-in-tests"
	cronSecret  = "the-secret-of-the-timer"
)

func withTokens(s *app.Settings) { s.LimitsToken, s.CronSecret = limitsToken, cronSecret }

func byToken(r *http.Request) { r.Header.Set("Authorization", "Bearer "+limitsToken) }

// services is a world with a policy of each algorithm for other services.
func services(t *testing.T) *world {
	return newWorld(t, withTokens, func(s *app.Settings) {
		s.Policies = `[
			{"name": "fixed", "algorithm": "fixed-window", "limit": 5, "window": "1m"},
			{"name": "sliding", "algorithm": "sliding-window", "limit": 5, "window": "1m", "subject": "address"},
			{"name": "log", "algorithm": "sliding-log", "limit": 5, "window": "1m", "subject": "account", "private": true},
			{"name": "bucket", "algorithm": "token-bucket", "limit": 60, "window": "1m", "burst": 10, "subject": "api-key"},
			{"name": "queue", "algorithm": "leaky-bucket", "limit": 2, "window": "1s", "queue": 2, "subject": "phone"},
			{"name": "attempts", "algorithm": "fixed-window", "limit": 5, "window": "1m", "count": "every-attempt"}
		]`
	})
}

func (w *world) limits(body string, change ...func(*http.Request)) reply {
	w.t.Helper()
	return w.send("", "POST", "/api/limits", body, append(change, byToken)...)
}

// ask sends a request that is answered 200 and gives the answer: "allowed retry | policy allowed remaining retry …".
func (w *world) ask(body string) (summary string, got reply) {
	w.t.Helper()
	got = w.limits(body)
	expect(w.t, got, http.StatusOK)
	fields := got.json(w.t)
	out := fmt.Sprint(fields["allowed"], " ", fields["retryAfterSeconds"])
	for _, each := range fields["limits"].([]any) {
		limit := each.(map[string]any)
		out += fmt.Sprint(" | ", limit["policy"], " ", limit["allowed"], " ", limit["remaining"], "/", limit["limit"], " ",
			limit["resetSeconds"], " ", limit["retryAfterSeconds"])
		if delay, there := limit["delayMillis"]; there {
			out += fmt.Sprint(" ", delay)
		}
	}
	return out, got
}

func (w *world) asked(want, body string) reply {
	w.t.Helper()
	got, answer := w.ask(body)
	if got != want {
		w.t.Fatalf("%s answers\n%s, want\n%s", body, got, want)
	}
	return answer
}

// Rows E11, E1, C5.
func TestAServiceDecidesSeveralLimitsAsOne(t *testing.T) {
	w := services(t)
	all := `{"limits": [
		{"policy": "queue", "subject": "+49 (30) 123-456"},
		{"policy": "bucket", "subject": "key-1", "cost": 4},
		{"policy": "fixed", "subject": "member 7", "cost": 2},
		{"policy": "log", "subject": " Someone"},
		{"policy": "sliding", "subject": "192.0.2.1"}
	]}`
	w.asked("true 0 | queue true 2/2 1 0 0 | bucket true 6/60 1 0 | fixed true 3/5 60 0 | log true 4/5 60 0 | sliding true 4/5 120 0", all)
	w.asked("true 0 | queue true 1/2 1 0 500 | bucket true 2/60 1 0 | fixed true 1/5 60 0 | log true 3/5 60 0 | sliding true 3/5 90 0", all)
	rows := w.dump("rate_limits")
	// The same subjects in other spellings, in another order. The fixed window has one unit left and two are asked for.
	w.asked("false 60 | sliding true 3/5 90 0 | log true 3/5 60 0 | fixed false 1/5 60 60 | bucket false 2/60 2 2 | queue true 1/2 1 0", `{"mode": "decide", "limits": [
		{"policy": "sliding", "subject": "::ffff:192.0.2.1"},
		{"policy": "log", "subject": "SOMEONE"},
		{"policy": "fixed", "subject": "member 7", "cost": 2},
		{"policy": "bucket", "subject": "key-1", "cost": 4},
		{"policy": "queue", "subject": "+4930123456"}
	]}`)
	if n := w.count("SELECT count(*) FROM rate_limit_audit WHERE action = 'refusal' AND policy IN ('fixed', 'bucket')"); n != 2 {
		t.Errorf("%d refusals in the audit, want 2", n)
	}
	if used := func(dump string) (lines []string) {
		for line := range strings.Lines(dump) {
			if strings.Contains(line, ".used=") {
				lines = append(lines, line)
			}
		}
		return lines
	}; !slices.Equal(used(rows), used(w.dump("rate_limits"))) {
		t.Errorf("a refusal has charged something")
	}
	w.clock.At(time.Minute) // row E11: waiting as long as told is enough
	w.asked("true 0 | queue true 2/2 1 0 0 | bucket true 6/60 1 0 | fixed true 3/5 60 0 | log true 4/5 60 0 | sliding true 2/5 30 0", all)
}

// Row E11: every-attempt limits are charged although another one refuses, and what they were charged can be given back.
func TestALimitThatCountsEveryAttemptIsChargedForAService(t *testing.T) {
	w := services(t)
	w.asked("true 0 | fixed true 0/5 60 0", `{"limits": [{"policy": "fixed", "subject": "a", "cost": 0.5e1}]}`) // a whole number
	got := w.asked("false 60 | fixed false 0/5 60 60 | attempts true 2/5 60 0",
		`{"limits": [{"policy": "fixed", "subject": "a"}, {"policy": "attempts", "subject": "a", "cost": 3}]}`)
	w.asked("true 0", fmt.Sprintf(`{"mode": "refund", "reservation": %q}`, got.field(t, "reservation")))
	w.asked("true 0 | attempts true 5/5 60 0", `{"mode": "peek", "limits": [{"policy": "attempts", "subject": "a"}]}`)
}

// Row E4.
func TestAPeekAndACostOfNothingWriteNothing(t *testing.T) {
	w := services(t)
	for _, body := range []string{
		`{"mode": "peek", "limits": [{"policy": "fixed", "subject": "a"}, {"policy": "queue", "subject": "+4930123456", "cost": 3}]}`,
		`{"limits": [{"policy": "fixed", "subject": "a", "cost": 0}, {"policy": "queue", "subject": "+4930123456", "cost": 0}]}`,
		`{"limits": [{"policy": "fixed", "subject": "a", "cost": -0.0}, {"policy": "queue", "subject": "+4930123456", "cost": 0e5}]}`,
	} {
		got := w.asked("true 0 | fixed true 5/5 60 0 | queue true 3/2 0 0", body)
		if strings.Contains(got.body, "reservation") {
			t.Errorf("there is a reservation of nothing: %s", got.body)
		}
	}
	if n := w.count("SELECT count(*) FROM rate_limits"); n != 0 {
		t.Errorf("%d rows", n)
	}
	w.asked("true 0 | fixed true 0/5 60 0", `{"limits": [{"policy": "fixed", "subject": "a", "cost": 5}]}`)
	w.asked("false 60 | fixed false 0/5 60 60", `{"mode": "peek", "limits": [{"policy": "fixed", "subject": "a"}]}`)
	if n := w.count("SELECT count(*) FROM rate_limit_audit"); n != 0 {
		t.Errorf("%d rows of the audit for a peek", n)
	}
}

// Row E4.
func TestAReservationIsGivenBackOnceAndNobodyElseIsTouched(t *testing.T) {
	w := services(t)
	body := `{"limits": [{"policy": "fixed", "subject": "a", "cost": 2}, {"policy": "bucket", "subject": "k", "cost": 5}, {"policy": "log", "subject": "s"}]}`
	got := w.asked("true 0 | fixed true 3/5 60 0 | bucket true 5/60 1 0 | log true 4/5 60 0", body)
	w.asked("true 0 | fixed true 1/5 60 0 | bucket true 0/60 1 0 | log true 3/5 60 0", body)
	refund := fmt.Sprintf(`{"mode": "refund", "reservation": %q}`, got.field(t, "reservation"))
	for range 3 {
		w.asked("true 0", refund)
		w.asked("true 0 | fixed true 3/5 60 0 | bucket true 5/60 1 0 | log true 4/5 60 0", strings.Replace(body, "{", `{"mode": "peek", `, 1))
	}
	altered := []byte(got.field(t, "reservation"))
	altered[len(altered)/2] ^= 1
	for _, text := range []string{"", "x", string(altered), strings.Repeat("A", 9000), "é"} {
		w.faulty("reservation", fmt.Sprintf(`{"mode": "refund", "reservation": %q}`, text))
	}
	if strings.Contains(got.field(t, "reservation"), "fixed") || strings.Contains(w.log.String(), got.field(t, "reservation")) {
		t.Error("the reservation shows")
	}
}

// Row E4: what an operator does is done in one request, and audited.
func TestAnOperatorResetsBansAndAllows(t *testing.T) {
	w := services(t)
	one := `{"limits": [{"policy": "log", "subject": "Someone", "cost": 5}]}`
	mode := func(mode, until string) string {
		if until != "" {
			until = fmt.Sprintf(`"until": %q, `, until)
		}
		return fmt.Sprintf(`{"mode": %q, %s"limits": [{"policy": "log", "subject": "someone"}]}`, mode, until)
	}
	at := func(d time.Duration) string { return storetest.Start.Add(d).Format(time.RFC3339Nano) }
	w.asked("true 0 | log true 0/5 60 0", one)
	w.asked("false 60 | log false 0/5 60 60", one)

	w.asked("true 0 | log true 5/5 0 0", mode("reset", ""))
	w.asked("true 0 | log true 0/5 60 0", one)

	w.asked("true 0 | log true 5/5 0 0", mode("allow", strings.ToLower(at(time.Hour)))) // RFC 3339 allows t and z
	w.asked("true 0 | log true 0/5 60 0", one)

	w.asked("false 91 | log false 0/5 91 91", mode("ban", at(90*time.Second+100*time.Millisecond)))
	w.asked("false 91 | log false 0/5 91 91", one)
	w.clock.At(90 * time.Second)
	w.asked("false 1 | log false 0/5 1 1", one)
	w.clock.At(91 * time.Second)
	w.asked("true 0 | log true 0/5 60 0", one)

	// Nobody knows this subject yet.
	w.asked("false 60 | log false 0/5 60 60", strings.Replace(mode("ban", at(151*time.Second)), "someone", "stranger", 1))
	w.asked("false 60 | log false 0/5 60 60", `{"mode": "peek", "limits": [{"policy": "log", "subject": "Stranger"}]}`)
	w.asked("true 0 | log true 5/5 0 0", strings.Replace(mode("reset", ""), "someone", "stranger", 1))
	w.asked("true 0 | log true 5/5 0 0", `{"mode": "peek", "limits": [{"policy": "log", "subject": "Stranger"}]}`)
	for action, want := range map[string]int{"reset": 2, "allow": 1, "ban": 2} {
		if n := w.count("SELECT count(*) FROM rate_limit_audit WHERE policy = 'log' AND action = '" + action + "'"); n != want {
			t.Errorf("%d times %s in the audit, want %d", n, action, want)
		}
	}
}

// faulty sends a request that is answered 400 and names the field.
func (w *world) faulty(field, body string) {
	w.t.Helper()
	got := w.limits(body)
	if got.StatusCode != http.StatusBadRequest {
		w.t.Errorf("%.100s answers %d: %s", body, got.StatusCode, got.body)
		return
	}
	if problem := got.json(w.t); problem["field"] != field && (field != "" || problem["field"] != nil) {
		w.t.Errorf("%.100s names the field %v, want %q", body, problem["field"], field)
	}
}

// Row E11.
func TestAMistakeOfAServiceIsToldByItsFieldAndChargesNothing(t *testing.T) {
	w := services(t)
	charge := `{"policy": "fixed", "subject": "a"}`
	many := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"policy": "fixed", "subject": "%d"}`, i))
		}
		return `{"limits": [` + strings.Join(all, ", ") + `]}`
	}
	third := func(fields string) string {
		return `{"limits": [{"policy": "attempts", "subject": "a"}, ` + charge + `, {` + fields + `}]}`
	}
	for _, c := range []struct{ field, body string }{
		{"", ``}, {"", `null`}, {"", `[]`}, {"", `{`},
		{"limits", `{}`},
		{"limits", `{"limits": null}`},
		{"limits", `{"limits": {}}`},
		{"limits", `{"limits": []}`},
		{"limits", many(17)},
		{"limits", `{"mode": "peek"}`},
		{"more", `{"limits": [` + charge + `], "more": 1}`},
		{"limits[0].more", `{"limits": [{"policy": "fixed", "subject": "a", "more": 1}]}`},
		{"limits[1].policy", `{"limits": [` + charge + `, {"policy": "fixed", "policy": "log", "subject": "a"}]}`},
		{"limits[2].policy", third(`"policy": "nobody", "subject": "a"`)},
		{"limits[2].policy", third(`"policy": 7, "subject": "a"`)},
		{"limits[2].policy", third(`"subject": "a"`)},
		{"limits[2].subject", third(`"policy": "sliding", "subject": "localhost"`)},
		{"limits[2].subject", third(`"policy": "queue", "subject": "030 123456"`)},
		{"limits[2].subject", third(`"policy": "log", "subject": " "`)},
		{"limits[2].subject", third(`"policy": "bucket", "subject": "a key"`)},
		{"limits[2].subject", third(`"policy": "fixed", "subject": ""`)},
		{"limits[2].subject", third(`"policy": "fixed"`)},
		{"limits[2].subject", third(`"policy": "fixed", "subject": "` + strings.Repeat("x", 1025) + `"`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": -1`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": 1.5`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": 11`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": 1e-1`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": 1e999999999`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": 1e-400`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": 1.0000000000000000000000001`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": -1e-9`)},
		{"limits[2].subject", third(`"policy": "log", "subject": "` + strings.Repeat("Ⱥ", 500) + `"`)}, // longer in lower case
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": true`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": "1"`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": null`)},
		{"limits[2].cost", third(`"policy": "bucket", "subject": "k", "cost": 99999999999999999999`)},
		{"limits[2].cost", third(`"policy": "queue", "subject": "+4930123456", "cost": 4`)},
		{"limits[2]", third(`"policy": "attempts", "subject": "a"`)},
		{"limits[1]", `{"limits": [{"policy": "log", "subject": "a"}, {"policy": "log", "subject": " A"}]}`},
		{"mode", `{"mode": "charge", "limits": [` + charge + `]}`},
		{"mode", `{"mode": "", "limits": [` + charge + `]}`},
		{"mode", `{"mode": null, "limits": [` + charge + `]}`},
		{"mode", `{"mode": 1, "limits": [` + charge + `]}`},
		{"reservation", `{"reservation": "x", "limits": [` + charge + `]}`},
		{"reservation", `{"reservation": null, "limits": [` + charge + `]}`},
		{"reservation", `{"mode": "refund"}`},
		{"limits", `{"mode": "refund", "reservation": "x", "limits": [` + charge + `]}`},
		{"until", `{"until": "2040-01-01T00:00:00Z", "limits": [` + charge + `]}`},
		{"until", `{"mode": "reset", "until": "2040-01-01T00:00:00Z", "limits": [` + charge + `]}`},
		{"until", `{"until": null, "limits": [` + charge + `]}`},
		{"until", `{"mode": "ban", "limits": [` + charge + `]}`},
		{"until", `{"mode": "ban", "until": "", "limits": [` + charge + `]}`},
		{"until", `{"mode": "ban", "until": 2000000000, "limits": [` + charge + `]}`},
		{"until", `{"mode": "ban", "until": "tomorrow", "limits": [` + charge + `]}`},
		{"until", `{"mode": "ban", "until": "2040-01-01T00:00:00,5Z", "limits": [` + charge + `]}`},
		{"until", `{"mode": "ban", "until": "2040-01-01T00:00:00+24:00", "limits": [` + charge + `]}`},
		{"until", `{"mode": "ban", "until": "2040-01-01 00:00:00Z", "limits": [` + charge + `]}`},
		{"until", `{"mode": "allow", "until": "` + storetest.Start.Format(time.RFC3339) + `", "limits": [` + charge + `]}`},
		{"until", `{"mode": "allow", "until": "2300-01-01T00:00:00Z", "limits": [` + charge + `]}`},
		{"limits", `{"mode": "reset"}`},
		{"limits", `{"mode": "reset", "limits": [` + charge + `, {"policy": "log", "subject": "a"}]}`},
		{"limits[0].cost", `{"mode": "reset", "limits": [{"policy": "fixed", "subject": "a", "cost": 1}]}`},
	} {
		w.faulty(c.field, c.body)
	}
	if n := w.count("SELECT (SELECT count(*) FROM rate_limits) + (SELECT count(*) FROM rate_limit_audit)"); n != 0 {
		t.Errorf("mistakes have left %d rows", n)
	}
	expect(t, w.limits(many(16)), http.StatusOK)
}

// Row E11; case B19: no token, no answer; and none shows anywhere.
func TestTheServiceEndpointIsForTokensOnly(t *testing.T) {
	const limit = `{"limits": [{"policy": "fixed", "subject": "a"}]}`
	w := services(t)
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	for _, token := range []string{"", "wrong", cronSecret, limitsToken + "x", strings.ToUpper(limitsToken)} {
		for _, c := range []struct{ method, path, body string }{{"POST", "/api/limits", limit}, {"POST", "/api/limits", "{"}, {"GET", "/api/limits", ""}} {
			got := w.send("203.0.113.9", c.method, c.path, c.body, bearer(token))
			expect(t, got, http.StatusUnauthorized)
			if !strings.HasPrefix(got.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("the challenge is %q", got.Header.Get("WWW-Authenticate"))
			}
		}
	}
	expect(t, w.send("", "GET", "/api/limits?op=sweep", "", bearer(limitsToken)), http.StatusUnauthorized)
	for _, query := range []string{"op=sweep&op=", "op=", "op=drop"} {
		expect(t, w.send("", "GET", "/api/limits?"+query, "", bearer("")), http.StatusUnauthorized)
		expect(t, w.send("", "GET", "/api/limits?"+query, "", byToken), http.StatusBadRequest)
	}
	if n := w.count("SELECT count(*) FROM rate_limits"); n != 0 {
		t.Errorf("%d rows are left by requests without a token", n)
	}
	for range 100 { // no limit of its own, and no address needed
		expect(t, w.limits(limit), http.StatusOK)
	}

	closed := newWorld(t)
	for _, path := range []string{"/api/limits", "/api/limits?op=sweep"} {
		expect(t, closed.send("", "GET", path, "", bearer("")), http.StatusServiceUnavailable)
		expect(t, closed.send("", "GET", path, "", byToken), http.StatusServiceUnavailable)
	}
	expect(t, closed.limits(limit), http.StatusServiceUnavailable)
	for _, name := range []string{"LIMITS_API_TOKEN is not set", "CRON_SECRET is not set"} {
		if !strings.Contains(closed.log.String(), name) {
			t.Errorf("the log doesn't say that %s", name)
		}
	}
	for _, text := range []string{w.log.String(), closed.log.String()} {
		if strings.Contains(strings.ToLower(text), limitsToken) || strings.Contains(text, cronSecret) {
			t.Error("a token is in the log")
		}
	}
}

// Rows E11, F6.
func TestTheStateTellsOfPoliciesAndOfNobody(t *testing.T) {
	w := services(t)
	for i := range 7 {
		w.limits(`{"limits": [{"policy": "log", "subject": "someone"}, {"policy": "fixed", "subject": "member-` + strconv.Itoa(i) + `"}]}`)
	}
	w.signIn("203.0.113.9", "someone", "wrong password")
	got := w.send("", "GET", "/api/limits", "", byToken)
	expect(t, got, http.StatusOK)
	if got.field(t, "version") != app.Version {
		t.Errorf("version %s", got.field(t, "version"))
	}
	for _, want := range []string{
		`{"name":"log","algorithm":"sliding-log","limit":5,"windowSeconds":60,"activeKeys":1,"refusals":1}`,
		`{"name":"fixed","algorithm":"fixed-window","limit":5,"windowSeconds":60,"activeKeys":5,"refusals":0}`,
		`{"name":"queue","algorithm":"leaky-bucket","limit":2,"windowSeconds":1,"activeKeys":0,"refusals":0}`,
		`{"name":"sign-in","algorithm":"fixed-window","limit":10,"windowSeconds":60,"activeKeys":1,"refusals":0}`,
		`{"name":"failed-sign-ins","algorithm":"fixed-window","limit":8,"windowSeconds":900,"activeKeys":1,"refusals":0}`,
	} {
		if !strings.Contains(got.body, want) {
			t.Errorf("%s lacks %s", got.body, want)
		}
	}
	if found := traces(got.body+w.log.String(), "someone", "member-1", "203.0.113.9"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	w.clock.At(25 * time.Hour)
	if got := w.send("", "GET", "/api/limits", "", byToken); strings.Contains(got.body, `"activeKeys":1`) || strings.Contains(got.body, `"refusals":1`) {
		t.Errorf("a day later: %s", got.body)
	}
}

// Row E11: the platform's timer sends exactly this.
func TestTheTimerSweepsWhatIsExpired(t *testing.T) {
	w := services(t)
	for i := range 30 {
		w.limits(fmt.Sprintf(`{"limits": [{"policy": "fixed", "subject": "%d"}]}`, i))
	}
	w.clock.At(time.Minute)
	w.limits(`{"limits": [{"policy": "fixed", "subject": "31"}]}`)
	expired := w.count("SELECT count(*) FROM rate_limits") - 1 // a decision may have swept some in passing
	sweep := func() reply {
		return w.send("", "GET", "/api/limits?op=sweep", "", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+cronSecret)
			r.Header.Set("User-Agent", "vercel-cron/1.0")
		})
	}
	for _, deleted := range []int{expired, 0} {
		if got := sweep(); got.body != fmt.Sprintf(`{"deleted":%d,"done":true}`, deleted) {
			t.Errorf("the sweep answers %s, want %d deleted", got.body, deleted)
		}
	}
	if n := w.count("SELECT count(*) FROM rate_limits"); n != 1 {
		t.Errorf("%d rows are left, want the live one", n)
	}
}

// Row B6: a bucket's algorithm is one word, and the routes follow it.
func TestAnotherAlgorithmForSignInIsOneWord(t *testing.T) {
	for algorithm, want := range map[string]struct {
		around int // how many of 20 attempts pass, ten just before a minute's edge and ten just after
		header string
		wait   int // seconds, for the next one
	}{
		"fixed-window":   {20, `"sign-in";q=10;w=60`, 60},
		"sliding-window": {10, `"sign-in";q=10;w=60`, 6},
		"sliding-log":    {10, `"sign-in";q=10;w=60`, 59},
		"token-bucket":   {10, `"sign-in";q=10;w=60`, 5},
		"leaky-bucket":   {1, `"sign-in";q=10;w=60`, 5},
	} {
		t.Run(algorithm, func(t *testing.T) {
			w := newWorld(t, func(s *app.Settings) {
				s.Policies = fmt.Sprintf(`[{"name": "sign-in", "algorithm": %q, "limit": 10, "window": "1m"}]`, algorithm)
			})
			passed := 0
			var last reply
			for i := range 40 {
				w.clock.At(time.Minute + time.Duration(i/20*2-1)*500*time.Millisecond)
				last = w.signIn("203.0.113.9", fmt.Sprintf("nobody%d", i), "wrong password")
				if last.StatusCode != http.StatusTooManyRequests {
					passed++
				}
			}
			if passed != want.around {
				t.Errorf("%d passed around the edge, want %d", passed, want.around)
			}
			expect(t, last, http.StatusTooManyRequests)
			checkHeader(t, last, map[string]string{"Ratelimit-Policy": want.header + `, "edge";q=1000;w=60`})
			checkHeader(t, last, map[string]string{"Retry-After": strconv.Itoa(want.wait), "Ratelimit-Reset": strconv.Itoa(want.wait)})
			w.clock.At(time.Minute + 500*time.Millisecond + time.Duration(want.wait)*time.Second)
			if got := w.signIn("203.0.113.9", "somebody", "wrong password"); got.StatusCode == http.StatusTooManyRequests {
				t.Errorf("refused after %d s: %s", want.wait, got.body)
			}
			if got := w.signIn("203.0.113.10", "somebody", "wrong password"); got.StatusCode == http.StatusTooManyRequests {
				t.Error("another address is refused too")
			}
		})
	}
}

// Row B6; case E09: the private limit is replaced like others, and stays private and checked before trying.
func TestAnotherAlgorithmForFailedSignInsIsOneWord(t *testing.T) {
	for _, algorithm := range []string{"sliding-window", "sliding-log", "token-bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			w := newWorld(t, func(s *app.Settings) {
				s.Policies = fmt.Sprintf(`[{"name": "failed-sign-ins", "algorithm": %q, "limit": 3, "window": "15m"}]`, algorithm)
			})
			w.member("someone")
			for i := range 5 {
				expect(t, w.signIn(fmt.Sprintf("198.51.100.%d", i), "someone", rightPassword), http.StatusOK)
			}
			for i := range 3 {
				got := w.signIn(fmt.Sprintf("203.0.113.%d", i), "someone", "wrong password")
				expect(t, got, http.StatusUnauthorized)
				if strings.Contains(fmt.Sprint(got.Header), "failed") {
					t.Errorf("it shows before it refuses: %v", got.Header)
				}
			}
			expect(t, w.signIn("203.0.113.9", "someone", rightPassword), http.StatusTooManyRequests)
		})
	}
}

// Row E11: a secret changes while the application runs on, in the steps that ratelimit.Config tells.
func TestASecretChangesAndNobodyStartsAnew(t *testing.T) {
	w := newWorld(t)
	old, fresh := storetest.Secret, []byte("another secret, which is to follow the first")
	step := func(secret, other []byte) *world {
		return newWorld(t, func(s *app.Settings) { s.DatabaseURL, s.Secret, s.OtherSecret = w.url, secret, other })
	}
	worlds := []*world{w, step(old, fresh), step(fresh, old), step(old, fresh), step(fresh, old), step(fresh, nil)}
	for i := range 12 {
		got := worlds[min(i/2, len(worlds)-1)].signIn("203.0.113.9", fmt.Sprintf("nobody%d", i), "wrong password")
		if want := map[bool]int{true: http.StatusUnauthorized, false: http.StatusTooManyRequests}[i < 10]; got.StatusCode != want {
			t.Fatalf("attempt %d answers %d, want %d: %s", i+1, got.StatusCode, want, got.body)
		}
	}
}

// Row E2, case A22: what a service was given back it may use at once: its refusals are not remembered.
func TestARefundCountsForTheNextDecisionOfAService(t *testing.T) {
	w := newWorld(t, withTokens, func(s *app.Settings) {
		s.Policies = `[{"name": "jobs", "algorithm": "fixed-window", "limit": 1, "window": "1h", "count": "every-attempt"}]`
	})
	const one = `{"limits": [{"policy": "jobs", "subject": "a"}]}`
	first := w.limits(one)
	for range 3 {
		if got := w.limits(one); got.json(t)["allowed"] != false {
			t.Fatal(got.body)
		}
	}
	expect(t, w.limits(fmt.Sprintf(`{"mode": "refund", "reservation": %q}`, first.field(t, "reservation"))), http.StatusOK)
	if got := w.limits(one); got.json(t)["allowed"] != true {
		t.Errorf("refused after the refund: %s", got.body)
	}
}

// A number as long as a body may be is no work.
func TestALongNumberIsRefusedWithoutReckoning(t *testing.T) {
	for _, text := range []string{strings.Repeat("7", 65), "1." + strings.Repeat("0", 64)} {
		if n, err := app.WholeNumber(text); err == nil {
			t.Errorf("%.20s… is %d", text, n)
		}
	}
	if n, err := app.WholeNumber("1." + strings.Repeat("0", 62)); err != nil || n != 1 {
		t.Errorf("got %d, %v", n, err)
	}
}
