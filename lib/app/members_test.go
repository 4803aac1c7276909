package app_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/weirlimits/weir/lib/app"
)

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
