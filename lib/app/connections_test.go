package app_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// Issue 10, point 13: on the application itself, on the embedded file, a body that stalls is
// answered as the log tells, counted, and its connection ends, on every route. The server has no
// timeouts.
func TestOnEveryRouteAStalledBodyIsAnsweredAndItsConnectionEnds(t *testing.T) {
	w := newWorld(t, withTokens)
	log := &buffer{}
	application, db, err := app.Open(t.Context(), app.Settings{
		DatabaseURL: w.url, Secret: storetest.Secret, StoreDeadline: time.Minute, LimitsToken: limitsToken, CronSecret: cronSecret,
	}, app.Config{HashMemoryKiB: 64, BodyTime: 50 * time.Millisecond, Log: slog.New(slog.NewJSONHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for _, route := range app.Routes() {
		server := httptest.NewServer(application.Handler(route))
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conn.SetDeadline(time.Now().Add(time.Minute))
			before := len(log.String())
			fmt.Fprintf(conn, "%s /api/%s HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{", method, route)
			reader := bufio.NewReader(conn)
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatalf("%s %s: %v", method, route, err)
			}
			if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode >= 500 {
				t.Errorf("%s %s: %d %s, %v", method, route, response.StatusCode, body, err)
			}
			if n, err := io.Copy(io.Discard, reader); n > 0 || err != nil {
				t.Errorf("%s %s: %d bytes behind the answer, %v", method, route, n, err)
			}
			if lines := log.String()[before:]; !strings.Contains(lines, fmt.Sprintf(`"status":%d`, response.StatusCode)) {
				t.Errorf("%s %s: answered %d, log %s", method, route, response.StatusCode, lines)
			}
			conn.Close()
		}
		server.Close()
	}
}

// Issue 10, point 11: a banned client reads so, on a real route; what is told fits the timers of 32
// bits, also at /api/limits.
func TestABanIsToldInWordsAndInSecondsThatTimersHold(t *testing.T) {
	const forLong, most, asFloat = "2199-12-31T00:00:00Z", "2147483647", "2.147483647e+09"
	w := newWorld(t, withTokens)
	ban := func(policy, subject, until string) reply {
		return w.limits(fmt.Sprintf(`{"mode": "ban", "until": %q, "limits": [{"policy": %q, "subject": %q}]}`, until, policy, subject))
	}
	w.asked("false "+asFloat+" | edge false 0/1000 "+asFloat+" "+asFloat,
		`{"mode": "ban", "until": "`+forLong+`", "limits": [{"policy": "edge", "subject": "192.0.2.1"}]}`)
	for _, mode := range []string{"decide", "peek"} {
		w.asked("false "+asFloat+" | edge false 0/1000 "+asFloat+" "+asFloat, `{"mode": "`+mode+`", "limits": [{"policy": "edge", "subject": "192.0.2.1"}]}`)
	}
	got := w.send("192.0.2.1", "POST", "/api/codes", "{}")
	expect(t, got, http.StatusTooManyRequests)
	checkHeader(t, got, map[string]string{"Retry-After": most, "RateLimit-Reset": most, "RateLimit-Remaining": "0", "Cache-Control": "no-store"})
	if detail := got.field(t, "detail"); !strings.Contains(detail, "blocked until "+forLong) || strings.Contains(detail, "1000") {
		t.Errorf("detail %s", detail)
	}

	// An account's ban is told the same way whether there is such an account or not.
	w.member("known")
	var answers []string
	for i, name := range []string{"known", "unknown"} {
		expect(t, ban("failed-sign-ins", name, forLong), http.StatusOK)
		for _, password := range []string{rightPassword, "a wrong password"} {
			got := w.signIn(address(i), name, password)
			expect(t, got, http.StatusTooManyRequests)
			if !strings.Contains(got.field(t, "detail"), "blocked until "+forLong) {
				t.Errorf("%s: %s", name, got.body)
			}
			answers = append(answers, strings.ReplaceAll(fmt.Sprint(got.Header, got.body), name, "NAME"))
		}
	}
	if answers[0] != answers[2] || answers[1] != answers[3] || strings.Contains(fmt.Sprint(answers), "NAME") {
		t.Errorf("a name that is known is told apart:\n%s", strings.Join(answers, "\n"))
	}
}

// Issue 10, point 4: in an outage /api/limits tells a caller the delay of its share of a queue.
func TestInAnOutageAServiceIsToldTheDelay(t *testing.T) {
	w := newWorld(t, withTokens, func(s *app.Settings) {
		s.Instances = 2
		s.Policies = `[{"name": "queue", "algorithm": "leaky-bucket", "limit": 4, "window": "1s", "queue": 7, "failure": "strict"}]`
	})
	if err := w.db.Close(); err != nil {
		t.Fatal(err)
	}
	w.degraded = true
	for _, delay := range []float64{0, 500, 1000, 1500} {
		got := w.limits(`{"limits": [{"policy": "queue", "subject": "a"}]}`)
		expect(t, got, http.StatusOK)
		fields := got.json(t)
		if limit := fields["limits"].([]any)[0].(map[string]any); fields["degraded"] != true || limit["delayMillis"] != delay {
			t.Errorf("%s, want %v", got.body, delay)
		}
	}
	expect(t, w.limits(`{"limits": [{"policy": "queue", "subject": "a"}]}`), http.StatusServiceUnavailable)
}
