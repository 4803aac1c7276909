package ratelimit_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

func TestASealedReservationIsGivenBackOnceByWhoeverHasIt(t *testing.T) {
	clock := storetest.NewClock()
	store := ratelimit.NewMemoryStore(clock.Now)
	limiter := newLimiter(t, store, string(storetest.Secret))
	bucket := with(func(p *ratelimit.Policy) { p.Name, p.Algorithm, p.Burst = "bucket", ratelimit.TokenBucket, 9 })
	leaky := with(func(p *ratelimit.Policy) { p.Name, p.Algorithm, p.Queue = "leaky", ratelimit.LeakyBucket, 4 })
	charges := []ratelimit.Charge{minute.ChargeN("a", 3), bucket.ChargeN("a", 7), leaky.ChargeN("a", 5)}
	decision, err := limiter.Decide(t.Context(), charges...)
	if err != nil || !decision.Allowed {
		t.Fatalf("%+v, %v", decision, err)
	}
	text := limiter.Seal(decision)
	if strings.ContainsAny(text, "+/= \n") {
		t.Errorf("%q is not fit for a URL", text)
	}
	another := newLimiter(t, store, string(storetest.Secret)) // another instance
	for range 2 {
		reservations, err := another.Open(text)
		if err != nil || len(reservations) != 3 {
			t.Fatalf("%d reservations, %v", len(reservations), err)
		}
		if err := another.GiveBack(t.Context(), reservations...); err != nil {
			t.Fatal(err)
		}
		now, err := limiter.Decide(t.Context(), minute.ChargeN("a", 0), bucket.ChargeN("a", 0), leaky.ChargeN("a", 0))
		if err != nil || now.Limits[0].Remaining != 5 || now.Limits[1].Remaining != 9 || now.Limits[2].Remaining != 5 {
			t.Fatalf("%+v, %v", now, err)
		}
	}
	rotated, err := ratelimit.New(store, []byte(strings.Repeat("n", 32)), ratelimit.Config{OtherSecret: storetest.Secret})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rotated.Open(text); err != nil {
		t.Errorf("a reservation from before the rotation: %v", err)
	}
	if got := limiter.Seal(ratelimit.Decision{}); got != "" {
		t.Errorf("nothing is sealed as %q", got)
	}
}

func TestWhatWasNotSealedHereIsNoReservation(t *testing.T) {
	clock := storetest.NewClock()
	limiter := newLimiter(t, ratelimit.NewMemoryStore(clock.Now), string(storetest.Secret))
	decision, err := limiter.Decide(t.Context(), with(func(p *ratelimit.Policy) { p.Window = time.Hour }).Charge("a"))
	if err != nil {
		t.Fatal(err)
	}
	good := limiter.Seal(decision)
	changed := []byte(good)
	changed[len(changed)-3] ^= 1
	foreign := newLimiter(t, ratelimit.NewMemoryStore(clock.Now), strings.Repeat("f", 32)).Seal(decision)
	for _, text := range []string{"", "x", good[1:], good[:len(good)-4], string(changed), foreign, good + "AAAA", good + " ",
		base64.RawURLEncoding.EncodeToString(make([]byte, 40)), strings.Repeat("A", 1<<20)} {
		if got, err := limiter.Open(text); !errors.Is(err, ratelimit.ErrReservation) || got != nil {
			t.Errorf("%.40q is opened: %v, %v", text, got, err)
		}
	}
	if _, err := limiter.Open(good); err != nil {
		t.Errorf("the text that the others were made from: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(nil), storetest.Secret, ratelimit.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("")
	f.Add(strings.Repeat("A", 60))
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := limiter.Open(text); err == nil {
			t.Fatalf("%q is opened: %v", text, got)
		}
	})
}
