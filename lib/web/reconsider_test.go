package web_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

var (
	byHour = ratelimit.Policy{Name: "hour", Algorithm: ratelimit.FixedWindow, Limit: 100, Window: time.Hour, Subject: ratelimit.Address}
	spare  = ratelimit.Policy{Name: "spare", Algorithm: ratelimit.SlidingLog, Limit: 2, Window: 15 * time.Minute,
		Subject: ratelimit.Account, Private: true}
)

// reconsidered is a site that has a second word by spare, for passwords that begin with "please".
func reconsidered(t *testing.T) (s *site, asked *int) {
	s = newSite(t)
	asked = new(int)
	type key struct{}
	charges := func(call *web.Call, in credentials) ([]ratelimit.Charge, error) {
		call.Request = call.Request.WithContext(context.WithValue(call.Context(), key{}, in))
		return s.charges(call, in)
	}
	second := func(call *web.Call) ([]ratelimit.Charge, error) {
		*asked++
		in := call.Context().Value(key{}).(credentials)
		switch {
		case in.Password == "forbidden":
			return nil, web.Forbidden("No.")
		case call.Decision.Allowed:
			return nil, nil
		}
		call.Captcha = &web.Captcha{Provider: "p", SiteKey: "k"}
		if strings.HasPrefix(in.Password, "please") {
			return []ratelimit.Charge{spare.Charge(in.Username)}, nil
		}
		return nil, nil
	}
	limits := []ratelimit.Policy{byAddress, byHour}
	s.handler = s.web.Handler(route, web.Resource{"POST": web.Reconsidered(second, web.Body(limits, 0, charges, s.signIn))})
	return s, asked
}

// fields gives "name left" of each limit that an answer tells of.
func fields(t *testing.T, got reply) (told []string) {
	for _, l := range limitsOf(t, got.header) {
		told = append(told, fmt.Sprint(l.name, " ", l.r))
	}
	return told
}

// Row D2: the limits that everybody may know of count a request once, whether it was decided once or twice.
func TestARequestThatAPrivateLimitRefusesIsDecidedASecondTime(t *testing.T) {
	s, asked := reconsidered(t)
	steps := []struct {
		password string
		status   int
		told     []string
		captcha  bool
		asked    int // in all
	}{
		{"wrong", 401, []string{"sign-in 9", "hour 99"}, false, 1},
		{"wrong", 401, []string{"sign-in 8", "hour 98"}, false, 2},
		{"forbidden", 403, []string{"sign-in 7", "hour 97"}, false, 3},
		{"wrong", 429, []string{"sign-in 6", "hour 97", "failed-sign-in 0"}, true, 4},
		{"", 422, []string{"sign-in 5", "hour 96"}, false, 4}, // what is wrong with the input isn't reconsidered
		{"please", 401, []string{"sign-in 4", "hour 95"}, false, 5},
		{"please", 401, []string{"sign-in 3", "hour 94"}, false, 6},
		{"please", 429, []string{"sign-in 2", "hour 94", "spare 0"}, true, 7},
		{"forbidden", 403, []string{"sign-in 1", "hour 94", "failed-sign-in 0"}, false, 8},
		{"please", 429, []string{"sign-in 0", "hour 94", "spare 0"}, true, 9},
		{"please", 429, []string{"sign-in 0", "hour 94"}, false, 9}, // the address refuses
	}
	for i, step := range steps {
		got := s.signInAs("someone", step.password)
		if told := fields(t, got); got.status != step.status || !slices.Equal(told, step.told) || *asked != step.asked ||
			strings.Contains(got.body, `"captcha":{"provider":"p","siteKey":"k"}`) != step.captcha {
			t.Errorf("step %d: status %d, told %q, asked %d times, %s; want %+v", i+1, got.status, told, *asked, got.body, step)
		}
	}
	if s.checked != 4 {
		t.Errorf("%d passwords were looked at, want 4", s.checked)
	}
}

// The wait is that of all limits, those of the first decision included.
func TestTheWaitAfterASecondDecisionIsLongEnoughForAllLimits(t *testing.T) {
	s, _ := reconsidered(t)
	s.wait(55 * time.Second)
	for range 3 {
		s.signInAs("someone", "wrong")
	}
	for range 6 {
		s.signInAs("someone", "please")
	}
	s.wait(15*time.Minute - 5*time.Second)
	for range 9 {
		s.signInAs("someone", "please")
	}
	got := s.signInAs("someone", "please") // the tenth of this minute, which ends in ten seconds; spare has room in five
	if retry := got.header.Get("Retry-After"); got.status != 429 || retry != "10" {
		t.Errorf("status %d, Retry-After %s, %s", got.status, retry, got.body)
	}
	s.wait(10 * time.Second)
	if got := s.signInAs("someone", "please"); got.status != 401 {
		t.Errorf("refused after the wait: %d %s", got.status, got.body)
	}
}

func TestWhenTheStoreFailsBeforeTheSecondDecisionThereIsNone(t *testing.T) {
	s, _ := reconsidered(t)
	for range 3 {
		s.signInAs("someone", "wrong")
	}
	s.handler = s.web.Handler(route, web.Resource{"POST": web.Reconsidered(func(call *web.Call) ([]ratelimit.Charge, error) {
		s.outage = ratelimit.ErrStore
		return []ratelimit.Charge{spare.Charge("someone")}, nil
	}, web.Body([]ratelimit.Policy{byAddress}, 0, s.charges, s.signIn))})
	got := s.signInAs("someone", "please")
	if got.status != 503 || len(got.header.Values("RateLimit")) > 0 || s.checked != 3 {
		t.Errorf("status %d, %v, %d looked at", got.status, got.header, s.checked)
	}
	s.outage = nil
	s.handler = s.web.Handler(route, web.Resource{"POST": web.Reconsidered(func(call *web.Call) ([]ratelimit.Charge, error) {
		return nil, errors.New("a bug")
	}, web.Body([]ratelimit.Policy{byAddress}, 0, s.charges, s.signIn))})
	if got := s.signInAs("another", "right"); got.status != 500 {
		t.Errorf("status %d", got.status)
	}
}
