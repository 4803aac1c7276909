package ratehttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// page describes a page and its copies in caches, as a handler outside the middleware may have
// done.
var page = map[string]string{
	"Accept-Ranges": "bytes", "Age": "7", "Content-Disposition": "attachment", "Content-Encoding": "gzip", "Content-Language": "de",
	"Content-Length": "5", "Content-Location": "/page.de.html", "Content-Range": "bytes 0-4/9", "Content-Type": "text/html",
	"Content-MD5": "x", "Content-Digest": "sha-256=:eA==:", "Repr-Digest": "sha-256=:eA==:", "Digest": "sha-256=x",
	"ETag": `"v1"`, "Expires": "Thu, 01 Dec 2033 16:00:00 GMT", "Last-Modified": "Thu, 01 Dec 2022 16:00:00 GMT",
	"Link": "</style.css>; rel=preload", "Location": "/elsewhere", "Refresh": "0; url=/", "Retry-After": "86400", "Trailer": "Server-Timing",
	"Memento-Datetime": "Thu, 01 Dec 2022 16:00:00 GMT", "SourceMap": "/a.map",
	"Cache-Control": "public, max-age=3600", "CDN-Cache-Control": "max-age=3600", "Cloudflare-CDN-Cache-Control": "max-age=3600",
	"Vercel-CDN-Cache-Control": "max-age=3600", "Example-Cache-Control": "max-age=3600", "Surrogate-Control": "max-age=3600",
	"Edge-Control": "max-age=3600", "X-Accel-Expires": "3600", "X-Accel-Redirect": "/secret", "X-Sendfile": "/secret",
	"etag": `"not canonical"`,
}

// others say nothing of a page, and stay.
var others = map[string]string{
	"Access-Control-Allow-Origin": "https://app.example.org", "Access-Control-Expose-Headers": "Retry-After", "Vary": "Origin",
	"Content-Security-Policy": "default-src 'none'", "Content-Security-Policy-Report-Only": "default-src 'none'",
	"Set-Cookie": "a=b", "Strict-Transport-Security": "max-age=1", "X-Request-Id": "1", "Allow": "GET", "Server-Timing": "a;dur=1",
}

// Issue 10, point 10: a problem has no field of the representation that it replaces, and no cache
// keeps it.
func TestAProblemInheritsNothingOfThePageItReplaces(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 413, 429, 500, 503} {
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, fields := range []map[string]string{page, others} {
				for name, value := range fields {
					w.Header()[name] = []string{value}
				}
			}
			(&ratehttp.Problem{Status: status, Detail: "No."}).Write(w)
		})
		server := httptest.NewServer(outer)
		response, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		problem(t, response, status)
		for name := range page {
			values := response.Header.Values(name)
			want := map[string]string{"Content-Type": "application/problem+json", "Cache-Control": "no-store"}[name]
			if name != "Content-Length" && strings.Join(values, "|") != want {
				t.Errorf("%d: %s: %q, want %q", status, name, values, want)
			}
		}
		for name, value := range others {
			if got := response.Header.Values(name); len(got) != 1 || got[0] != value {
				t.Errorf("%d: %s: %q, want %q", status, name, got, value)
			}
		}
		response.Body.Close()
		server.Close()
	}
}

// Issue 10, point 10: the middleware's refusals and outages, whatever an outer handler set.
func TestARefusalInheritsNothingEither(t *testing.T) {
	for _, test := range []struct {
		limiter *ratelimit.Limiter
		status  int
	}{{memory(t), 429}, {newLimiter(t, failing{}), 503}} {
		inner := ratehttp.Limit(test.limiter, ratehttp.PerAddress(perAddress), ratehttp.Config{})(new(handled))
		var got *http.Response
		for range 4 {
			got = get(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for name, value := range page {
					w.Header().Set(name, value)
				}
				inner.ServeHTTP(w, r)
			}), "/", client)
		}
		problem(t, got, test.status)
		for _, name := range []string{"Content-Encoding", "ETag", "Last-Modified", "Expires", "CDN-Cache-Control", "Link"} {
			if got.Header.Get(name) != "" {
				t.Errorf("%d has %s: %s", test.status, name, got.Header.Get(name))
			}
		}
		if retry := got.Header.Get("Retry-After"); retry != map[int]string{429: "60", 503: "5"}[test.status] {
			t.Errorf("%d: Retry-After %s", test.status, retry)
		}
	}
}

// Issue 10, point 11: a banned client is told so, until when, and to wait no longer than its timers
// hold. What is told is the same for every subject.
func TestABannedClientReadsThatItIsBlockedAndUntilWhen(t *testing.T) {
	limiter := memory(t)
	for _, policy := range []ratelimit.Policy{perAddress, perAccount} {
		policy.Limit = 1000
		for _, test := range []struct {
			until          time.Time
			said, retry    string
			inWords        string
			retryAfterBody int64
		}{
			{noon().Add(36 * time.Hour), "2026-01-03T00:00:00Z", "129600", "36 hours", 129600},
			{noon().Add(time.Hour + 300*time.Millisecond), "2026-01-01T13:00:01Z", "3601", "61 minutes", 3601},
			{time.Date(2199, 12, 31, 23, 0, 0, 0, time.FixedZone("", 3600)), "2199-12-31T22:00:00Z", "2147483647", "24856 days", 2147483647},
		} {
			var answers []string
			for _, subject := range []string{"192.0.2.1", "192.0.2.2"} {
				if err := limiter.Operate(t.Context(), ratelimit.Ban, policy, subject, test.until); err != nil {
					t.Fatal(err)
				}
				charges := func(*http.Request) ([]ratelimit.Charge, error) {
					return []ratelimit.Charge{policy.Charge(subject)}, nil
				}
				got := get(ratehttp.Limit(limiter, charges, ratehttp.Config{})(new(handled)), "/", client)
				answers = append(answers, fmt.Sprint(got.Header))
				p := problem(t, got, 429)
				for _, want := range []string{"blocked until " + test.said, "Please try again in " + test.inWords + "."} {
					if !strings.Contains(p.Detail, want) || strings.Contains(p.Detail, "1000") {
						t.Errorf("%s until %v: %s, want %q", policy.Name, test.until, p.Detail, want)
					}
				}
				answers[len(answers)-1] += p.Detail
				if got.Header.Get("Retry-After") != test.retry || got.Header.Get("RateLimit-Reset") != test.retry ||
					p.RetryAfterSeconds != test.retryAfterBody || !strings.Contains(got.Header.Get("RateLimit"), ";t="+test.retry) {
					t.Errorf("%s until %v: %v %+v, want %s seconds", policy.Name, test.until, got.Header, p, test.retry)
				}
			}
			if answers[0] != answers[1] {
				t.Errorf("two subjects are told apart: %q", answers)
			}
		}
	}
}

// Issue 10, point 11: the ban that ends last is told, and a private one not beside a limit that
// everybody may know of.
func TestOfABanAndALimitTheBanIsTold(t *testing.T) {
	until := noon().Add(time.Hour)
	limit := func(name string, wait time.Duration, banned time.Time, private bool) ratelimit.LimitResult {
		return ratelimit.LimitResult{Policy: ratelimit.Policy{Name: name, Limit: 5, Window: time.Minute, Private: private}, RetryAfter: wait, BannedUntil: banned}
	}
	for _, test := range []struct {
		limits []ratelimit.LimitResult
		want   string
	}{
		{[]ratelimit.LimitResult{limit("a", 2*time.Hour, time.Time{}, false), limit("b", time.Hour, until, false)}, `blocked until 2026-01-01T13:00:00Z`},
		{[]ratelimit.LimitResult{limit("a", time.Hour, until, false), limit("b", time.Hour, until.Add(time.Hour), false)}, `blocked until 2026-01-01T14:00:00Z`},
		{[]ratelimit.LimitResult{limit("a", time.Hour, until, true), limit("b", time.Minute, time.Time{}, false)}, `The limit "b" allows 5`},
		{[]ratelimit.LimitResult{limit("a", time.Hour, until, true), limit("b", time.Minute, until, false)}, `the limit "b" allows`},
	} {
		got := ratehttp.Refusal(ratelimit.Decision{RetryAfter: time.Hour, Limits: test.limits})
		if !strings.Contains(got.Detail, test.want) {
			t.Errorf("%s, want %s", got.Detail, test.want)
		}
	}
	twice := ratehttp.Refusal(ratelimit.Decision{Limits: []ratelimit.LimitResult{limit("a", 1, time.Time{}, false), limit("a", 2, time.Time{}, false)}})
	if !slices.Equal(twice.ViolatedPolicies, []string{"a"}) {
		t.Errorf("one policy for two subjects is named %q", twice.ViolatedPolicies)
	}
}

// Issue 10, point 12; case A35: the zone of the socket's address goes, and nothing else of a
// request has one.
func TestALinkLocalClientIsCountedByItsAddress(t *testing.T) {
	for remote, want := range map[string]string{
		"[fe80::1%eth0]:4000": "fe80::", "[fe80::2%25eth1]:4000": "fe80::", "fe80::1%eth0": "fe80::", "[fe80::1]:4000": "fe80::",
		"[2001:db8:1:2::9%wlan0]:1": "2001:db8:1:2::", "[::ffff:192.0.2.7%eth0]:1": "192.0.2.7", "192.0.2.7:1": "192.0.2.7",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = remote
		if got, err := ratehttp.RemoteAddr(r); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %s", remote, got, err, want)
		}
	}
	for _, remote := range []string{"", "@", "%eth0", "[%eth0]:1", "192.0.2.7%eth0", "fe80::1%"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = remote
		if got, err := ratehttp.RemoteAddr(r); err == nil {
			t.Errorf("%q is taken for %s", remote, got)
		}
	}
	handler := ratehttp.Limit(memory(t), ratehttp.PerAddress(perAddress), ratehttp.Config{})(new(handled))
	for i, remote := range []string{"[fe80::1%eth0]:4000", "[fe80::1%eth0]:4001", "[fe80::1%eth1]:1", "[fe80::1]:1"} {
		if got := get(handler, "/", remote); (got.StatusCode == 200) != (i < 3) {
			t.Errorf("%s: status %d", remote, got.StatusCode)
		}
	}
}
