package web

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

func TestSecondsAreRoundedUpAndNeverLessThanOne(t *testing.T) { // A04, A05, A06
	tests := []struct {
		wait time.Duration
		want int64
	}{
		{-time.Hour, 1}, {0, 1}, {1, 1}, {200 * time.Millisecond, 1}, {time.Second, 1}, {time.Second + 1, 2},
		{37*time.Second + 200*time.Millisecond, 38}, {time.Minute, 60},
		{math.MaxInt64, math.MaxInt64/int64(time.Second) + 1},
	}
	for _, test := range tests {
		if got := seconds(test.wait); got != test.want {
			t.Errorf("%v is %d seconds, want %d", test.wait, got, test.want)
		}
	}
}

func TestARefusalIsASentenceForAPerson(t *testing.T) {
	tests := []struct {
		limit        int64
		window, wait time.Duration
		want         string
	}{
		{10, time.Minute, 36200 * time.Millisecond, "is limited to 10 a minute. Please try again in 37 seconds."},
		{1, time.Second, 300 * time.Millisecond, "is limited to 1 a second. Please try again in 1 second."},
		{8, 15 * time.Minute, 11*time.Minute + 1, "is limited to 8 in 15 minutes. Please try again in 12 minutes."},
		{3, time.Hour, 90 * time.Second, "is limited to 3 an hour. Please try again in 90 seconds."},
		{5, 24 * time.Hour, 5*time.Hour + time.Minute, "is limited to 5 a day. Please try again in 6 hours."},
		{5, 150 * time.Minute, time.Minute, "is limited to 5 in 150 minutes. Please try again in 60 seconds."},
		{5, 90 * time.Second, time.Minute, "is limited to 5 in 90 seconds. Please try again in 60 seconds."},
		{5, 500 * time.Millisecond, time.Millisecond, "is limited to 5 in 500ms. Please try again in 1 second."},
	}
	for _, test := range tests {
		problem := refusal(ratelimit.Decision{RetryAfter: test.wait, Limits: []ratelimit.LimitResult{{
			Policy:     ratelimit.Policy{Name: "sign-in", Limit: test.limit, Window: test.window},
			RetryAfter: test.wait,
		}}})
		if want := "Too many requests: sign in " + test.want; problem.Detail != want {
			t.Errorf("got  %q\nwant %q", problem.Detail, want)
		}
		if strings.Contains(problem.Detail, "%!") {
			t.Errorf("a format is wrong: %q", problem.Detail)
		}
	}
}
