package ratehttp

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

func TestSecondsAreRoundedUpAndNeverLessThanOne(t *testing.T) { // cases A04, A05, A06
	tests := []struct {
		wait time.Duration
		want int64
	}{
		{-time.Hour, 1}, {0, 1}, {1, 1}, {200 * time.Millisecond, 1}, {time.Second, 1}, {time.Second + 1, 2},
		{37*time.Second + 200*time.Millisecond, 38}, {time.Minute, 60},
		{math.MaxInt64, 1<<31 - 1}, {ratelimit.MaxWindow, 1<<31 - 1}, {(1<<31 - 2) * time.Second, 1<<31 - 2},
	}
	for _, test := range tests {
		if got := seconds(test.wait); got != test.want {
			t.Errorf("%v is %d seconds, want %d", test.wait, got, test.want)
		}
	}
}

func TestARefusalIsASentenceForAPersonWhateverTheLimit(t *testing.T) {
	tests := []struct {
		name         string
		limit        int64
		window, wait time.Duration
		want         string
	}{
		{"sign-in", 10, time.Minute, 36200 * time.Millisecond, `The limit "sign-in" allows 10 in 1 minute. Please try again in 37 seconds.`},
		{"failed-sign-ins", 8, 15 * time.Minute, 11*time.Minute + 1, `The limit "failed-sign-ins" allows 8 in 15 minutes. Please try again in 12 minutes.`},
		{"partner.search", 1, time.Second, 300 * time.Millisecond, `The limit "partner.search" allows 1 in 1 second. Please try again in 1 second.`},
		{"otp", 3, time.Hour, 90 * time.Second, `The limit "otp" allows 3 in 1 hour. Please try again in 90 seconds.`},
		{"mail", 5, 24 * time.Hour, 5*time.Hour + time.Minute, `The limit "mail" allows 5 in 1 day. Please try again in 6 hours.`},
		{"x", 5, 150 * time.Minute, time.Minute, `The limit "x" allows 5 in 150 minutes. Please try again in 60 seconds.`},
		{"x", 5, 90 * time.Second, 48*time.Hour + 1, `The limit "x" allows 5 in 90 seconds. Please try again in 3 days.`},
		{"x", 5, 1500 * time.Millisecond, 1, `The limit "x" allows 5 in 1500 milliseconds. Please try again in 1 second.`},
		{"x", 5, time.Millisecond, 1, `The limit "x" allows 5 in 1 millisecond. Please try again in 1 second.`},
		{"x", ratelimit.MaxLimit, 7 * 24 * time.Hour, 2 * time.Second,
			`The limit "x" allows ` + strconv.FormatInt(ratelimit.MaxLimit, 10) + ` in 7 days. Please try again in 2 seconds.`},
	}
	for _, test := range tests {
		problem := Refusal(ratelimit.Decision{RetryAfter: test.wait, Limits: []ratelimit.LimitResult{{
			Policy:     ratelimit.Policy{Name: test.name, Limit: test.limit, Window: test.window},
			RetryAfter: test.wait,
		}}})
		if want := "Too many requests. " + test.want; problem.Detail != want {
			t.Errorf("got  %s\nwant %s", problem.Detail, want)
		}
	}
}
