package app_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/webhook"
)

var webhookSecret = []byte("the secret of alerts in the tests")

// hook is a receiver of alerts, as its operator might write it.
type hook struct {
	*httptest.Server
	answer func(http.ResponseWriter, *http.Request)

	mu     sync.Mutex
	got    []map[string]any
	faults []string
}

func newHook(t *testing.T, answer func(http.ResponseWriter, *http.Request)) *hook {
	h := &hook{answer: answer}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	mac := hmac.New(sha256.New, webhookSecret)
	mac.Write([]byte(r.Header.Get("Webhook-Id") + "." + r.Header.Get("Webhook-Timestamp") + "." + string(body)))
	var message map[string]any
	h.mu.Lock()
	if err != nil || json.Unmarshal(body, &message) != nil || message["id"] != r.Header.Get("Webhook-Id") ||
		r.Header.Get("Webhook-Signature") != "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
		h.faults = append(h.faults, fmt.Sprint(err, r.Header, string(body)))
	}
	h.got = append(h.got, message)
	answer := h.answer
	h.mu.Unlock()
	if answer != nil {
		answer(w, r)
	}
}

// received gives the messages that came, all of which have to be signed.
func (h *hook) received(t *testing.T) []map[string]any {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fault := range h.faults {
		t.Errorf("a message that is not signed or no JSON: %s", fault)
	}
	return h.got
}

// hooked is a world whose alerts go to a hook, with a deadline that a test can wait for.
func hooked(t *testing.T, h *hook, change ...func(*app.Settings)) *world {
	return newWorld(t, append(change, withTokens, func(s *app.Settings) {
		u, err := webhook.ParseURL(h.URL)
		if err != nil {
			t.Fatal(err)
		}
		s.Webhook = &webhook.Config{URL: u, Secret: webhookSecret, Deadline: 700 * time.Millisecond}
	})...)
}

// beside is another process on the database of a world.
func beside(t *testing.T, h *hook, w *world, change ...func(*app.Settings)) *world {
	other := hooked(t, h, append(change, func(s *app.Settings) { s.DatabaseURL = w.url })...)
	other.clock.At(w.clock.Now().Sub(storetest.Start))
	return other
}

func (w *world) sweep() reply {
	w.t.Helper()
	got := w.send("", "GET", "/api/limits?op=sweep", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) })
	expect(w.t, got, http.StatusOK)
	return got
}

// Row B8.
func TestAnAlertIsRaisedOnceAndSentByTheTimer(t *testing.T) {
	h := newHook(t, nil)
	w := hooked(t, h)
	w.siege("someone", 2)
	if n := w.count("SELECT count(*) FROM alerts"); n != 0 {
		t.Fatalf("%d alerts after two windows", n)
	}
	w.siege("someone", 1)
	w.siege("someone", 1)
	w.guess("nobody", 30)
	if got := h.received(t); len(got) != 0 {
		t.Fatalf("a request that guesses has sent %v", got)
	}
	timer := beside(t, h, w)
	timer.sweep()
	timer.sweep()
	got := h.received(t)
	if len(got) != 1 {
		t.Fatalf("received were %v", got)
	}
	raised := storetest.Start.Truncate(15 * time.Minute).Add(45 * time.Minute).UTC()
	id := fmt.Sprintf("alert-1-%d", raised.UnixMicro())
	if got[0]["id"] != id || got[0]["kind"] != "repeated-refusals" || got[0]["policy"] != "failed-sign-ins" || got[0]["windows"] != 4.0 ||
		got[0]["at"] != raised.Format(time.RFC3339) || got[0]["lastAt"] != raised.Add(15*time.Minute).Format(time.RFC3339) || got[0]["attempt"] != 1.0 {
		t.Errorf("received was %v", got[0])
	}
	shown := w.view("alerts", byToken).items(t).Items
	if len(shown) != 1 || shown[0]["key"] != got[0]["key"] || shown[0]["attempts"] != 1.0 || shown[0]["sentAt"] == nil || shown[0]["nextAttemptAt"] != nil {
		t.Errorf("shown are %v", shown)
	}
	if found := traces(fmt.Sprint(got, shown)+w.dump("alerts")+w.log.String(), "someone", "nobody", "198.51.100.1"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// Row B8: a receiver that is slow or gone is no matter to a guess; any GET in the same process takes the alert along.
func TestAnAlertGoesWithALaterRequestThatGuessesNothing(t *testing.T) {
	h := newHook(t, nil)
	w := hooked(t, h)
	w.siege("someone", 3)
	w.send("203.0.113.9", "OPTIONS", "/api/sign-in", "")
	w.send("203.0.113.9", "POST", "/api/codes", "{}")
	if got := h.received(t); len(got) != 0 {
		t.Fatalf("received were %v", got)
	}
	for range 2 {
		w.send("203.0.113.9", "GET", "/api/sign-in", "")
		if got := h.received(t); len(got) != 1 {
			t.Fatalf("received were %v", got)
		}
	}
	// A process that has refused nothing of the kind asks the database nothing.
	w.siege("another", 3)
	other := beside(t, h, w)
	for range 13 {
		other.send("203.0.113.9", "POST", "/api/codes", "{}")
	}
	other.send("203.0.113.9", "GET", "/api/sign-in", "")
	if got := h.received(t); len(got) != 1 {
		t.Errorf("received were %v", got)
	}
}

// Row B8: whatever the receiver does, the requests go on and the alert is sent again later.
func TestAReceiverThatFailsIsTriedAgainAndNothingElseIsHeldUp(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"nothing": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"nonsense": func(w http.ResponseWriter, _ *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				conn.Write([]byte("what?\r\n\r\n"))
				conn.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHook(t, answer)
			w := hooked(t, h)
			w.siege("someone", 3)
			expect(t, w.send("203.0.113.9", "GET", "/api/usernames?name=somebody", ""), http.StatusOK)
			if got := w.sweep(); !strings.HasSuffix(got.body, `"done":true}`) {
				t.Errorf("the sweep answers %s", got.body)
			}
			if got := h.received(t); len(got) != 1 {
				t.Fatalf("received were %v", got)
			}
			shown := w.view("alerts", byToken).items(t).Items
			if shown[0]["attempts"] != 1.0 || shown[0]["sentAt"] != nil || shown[0]["nextAttemptAt"] == nil {
				t.Errorf("shown are %v", shown)
			}
			if text := w.log.String(); !strings.Contains(text, "alert not sent") || strings.Contains(text, "127.0.0.1") || strings.Contains(text, string(webhookSecret)) {
				t.Errorf("the log says %s", text)
			}
			h.mu.Lock()
			h.answer = nil
			h.mu.Unlock()
			w.clock.At(w.clock.Now().Sub(storetest.Start) + time.Minute)
			w.sweep()
			got := h.received(t)
			if len(got) != 2 || got[0]["id"] != got[1]["id"] || got[1]["attempt"] != 2.0 {
				t.Fatalf("received were %v", got)
			}
		})
	}
}

// Issue 10.21: a receiver that says when to ask again is asked then and not before, for no alert,
// and by no process.
func TestAReceiverThatSaysWhenIsAskedAgainThen(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		for said, wait := range map[string]time.Duration{
			"300": 5 * time.Minute,
			"20":  20 * time.Second,
			time.Now().Add(2 * time.Hour).UTC().Format(http.TimeFormat): 2 * time.Hour,
			"10000000": webhook.MaxRetryAfter,
		} {
			t.Run(fmt.Sprint(status, " ", said), func(t *testing.T) {
				h := newHook(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", said)
					w.WriteHeader(status)
				})
				w := hooked(t, h)
				w.siege("someone", 3)
				w.siege("another", 3) // a second alert
				w.sweep()
				if got := h.received(t); len(got) != 1 {
					t.Fatalf("received were %v", got)
				}
				at := w.clock.Now().Sub(storetest.Start)
				slack := time.Duration(0)
				if strings.HasSuffix(said, "GMT") {
					slack = time.Minute // of the process's own clock, which goes on
				}
				w.clock.At(at + wait - slack - time.Second)
				w.sweep()
				beside(t, h, w).sweep()
				w.send("203.0.113.9", "GET", "/api/sign-in", "")
				if got := h.received(t); len(got) != 1 {
					t.Fatalf("asked too early: %v", got)
				}
				h.mu.Lock()
				h.answer = nil
				h.mu.Unlock()
				w.clock.At(at + wait + slack)
				w.sweep()
				if got := h.received(t); len(got) != 3 || w.count("SELECT count(*) FROM alerts WHERE sent_micros IS NULL") != 0 {
					t.Fatalf("received were %v", got)
				}
			})
		}
	}
}

func TestAHugeAnswerOfAReceiverIsNotRead(t *testing.T) {
	h := newHook(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	w := hooked(t, h)
	w.siege("someone", 3)
	w.sweep()
	if shown := w.view("alerts", byToken).items(t).Items; shown[0]["sentAt"] == nil {
		t.Errorf("shown are %v", shown)
	}
}

func TestWithoutAWebhookAlertsAreShownAllTheSame(t *testing.T) {
	w := newWorld(t, withTokens)
	w.siege("someone", 3)
	w.sweep()
	shown := w.view("alerts", byToken).items(t).Items
	if len(shown) != 1 || shown[0]["attempts"] != 0.0 || shown[0]["nextAttemptAt"] != nil || shown[0]["sentAt"] != nil {
		t.Errorf("shown are %v", shown)
	}
}

// Row B8: the trigger has names of its own, which have to be those of the policies that count guesses at an account's
// password, from devices that it knows and from others.
func TestExactlyTheLimitsOfOnePasswordRaiseAlerts(t *testing.T) {
	names := map[string]bool{"failed-sign-ins": true, "failed-sign-ins-device": true}
	for _, row := range byAddress {
		names[row.policy] = true
	}
	for _, row := range byMember {
		names[row.policy] = true
	}
	w := newWorld(t, withTokens, func(s *app.Settings) {
		var all []string
		for name := range names {
			all = append(all, fmt.Sprintf(`{"name": %q, "algorithm": "fixed-window", "limit": 1, "window": "15m"}`, name))
		}
		s.Policies = "[" + strings.Join(all, ", ") + "]"
	})
	admin := w.signedUp("someone", "admin")
	_, device := w.browser("203.0.113.1", "someone")
	for window := range 4 {
		w.clock.At(time.Duration(window+1) * 15 * time.Minute)
		w.guess("someone", 2)
		for i := range 2 {
			w.send(fmt.Sprintf("198.51.100.%d", 100+i), "POST", "/api/sign-in", `{"username":"someone","password":"a wrong password"}`, with(device))
			for _, row := range byAddress {
				w.send("203.0.113.77", row.method, "/api/"+row.route+row.query, row.body)
			}
			for _, row := range byMember {
				w.send("203.0.113.78", row.method, "/api/"+row.route+row.query, row.body, admin)
			}
		}
	}
	alerts := map[string]int{}
	for _, item := range w.view("alerts&limit=100", byToken).items(t).Items {
		alerts[fmt.Sprint(item["policy"], " ", item["windows"])]++
	}
	if fmt.Sprint(alerts) != "map[failed-sign-ins 4:2 failed-sign-ins-device 4:1]" { // of someone, and of the name in byAddress
		t.Errorf("alerts are of %v", alerts)
	}
	names["invite-recipient"] = true // a fourth invite in a day
	names["otp-send-phone"] = true   // a fourth code in an hour
	if n := w.count("SELECT count(DISTINCT policy) FROM rate_limit_audit"); n != len(names) {
		t.Errorf("%d policies have refused anything, want %d", n, len(names))
	}
}

// Row F4.
func TestTheTimerSweepsTheAuditAndAlertsAfterTheirTime(t *testing.T) {
	w := newWorld(t, withTokens, func(s *app.Settings) { s.AuditRetention = 24 * time.Hour })
	w.siege("someone", 3)
	last := w.clock.Now().Sub(storetest.Start)
	w.clock.At(last + 24*time.Hour - time.Second)
	w.sweep()
	if n := w.count("SELECT count(*) FROM alerts"); n != 1 {
		t.Errorf("%d alerts before their time is over", n)
	}
	if n := w.count("SELECT count(*) FROM rate_limit_audit"); n != 1 {
		t.Errorf("%d rows of the audit, want the last one", n)
	}
	w.clock.At(last + 24*time.Hour)
	if got := w.sweep(); got.body != `{"deleted":2,"done":true}` {
		t.Errorf("the sweep answers %s", got.body)
	}
	if n := w.count("SELECT (SELECT count(*) FROM alerts) + (SELECT count(*) FROM rate_limit_audit)"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
