package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/sms"
)

// The numbers of tests are those that the North American plan sets aside for fiction.
const (
	somePhone    = "+12025550123"
	anotherPhone = "+12025550124"
)

var sixDigits = regexp.MustCompile(`\b\d{6}\b`)

func (w *world) sendCode(address, phone string) reply {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"phone": phone})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.send(address, "POST", "/api/otp", string(body))
}

func (w *world) tryCode(address, phone, code string) reply {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"phone": phone, "code": code})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.send(address, "PUT", "/api/otp", string(body))
}

// newestCode is the one of the newest SMS in the outbox.
func (w *world) newestCode() string {
	w.t.Helper()
	var text string
	if err := w.db.QueryRow("SELECT body FROM outbox WHERE subject = 'SMS' ORDER BY id DESC").Scan(&text); err != nil {
		w.t.Fatal(err)
	}
	return sixDigits.FindString(text)
}

// codeFor has a phone sent a code.
func (w *world) codeFor(address, phone string) string {
	w.t.Helper()
	expect(w.t, w.sendCode(address, phone), http.StatusAccepted)
	return w.newestCode()
}

// sent is how many SMS a phone got.
func (w *world) sent(phone string) int {
	return w.count("SELECT count(*) FROM outbox WHERE recipient = '" + phone + "'")
}

// wrongCode is one that isn't code.
func wrongCode(code string) string {
	if code == "000000" {
		return "000001"
	}
	return "000000"
}

// address gives clients addresses of their own.
func address(i int) string { return fmt.Sprintf("203.0.113.%d", i) }

// Row D3.
func TestACodeBySMSIsVerifiedOnceWithinTenMinutes(t *testing.T) {
	w := newWorld(t)
	got := w.sendCode(address(1), " +1 (202) 555-0123")
	expect(t, got, http.StatusAccepted)
	if got.body != `{"retryAfterSeconds":60}` {
		t.Errorf("body %s", got.body)
	}
	code := w.newestCode()
	if w.sent(somePhone) != 1 || len(code) != 6 {
		t.Fatalf("%d SMS, code %q", w.sent(somePhone), code)
	}
	expect(t, w.tryCode(address(2), somePhone, wrongCode(code)), http.StatusUnauthorized)
	expect(t, w.tryCode(address(2), anotherPhone, code), http.StatusUnauthorized)
	got = w.tryCode(address(2), "+1-202-555-0123", " "+code[:3]+" "+code[3:])
	expect(t, got, http.StatusOK)
	if got.body != `{"verified":true}` {
		t.Errorf("body %s", got.body)
	}
	again := w.tryCode(address(2), somePhone, code)
	expect(t, again, http.StatusUnauthorized)

	code = w.codeFor(address(1), somePhone)
	w.clock.At(10 * time.Minute)
	late := w.tryCode(address(2), somePhone, code)
	if late.body != again.body || late.StatusCode != again.StatusCode {
		t.Errorf("a code that is used and one that is expired are told apart: %s, %s", again.body, late.body)
	}
}

// Row D3; case E07: the budget is the phone's and not the code's.
func TestANewCodeBringsNoNewGuesses(t *testing.T) {
	w := newWorld(t)
	guess := func(code string, want int) reply {
		t.Helper()
		got := w.tryCode(address(1), somePhone, code)
		expect(t, got, want)
		return got
	}
	code := w.codeFor(address(2), somePhone)
	guess(wrongCode(code), http.StatusUnauthorized)
	guess(wrongCode(code), http.StatusUnauthorized)
	code = w.codeFor(address(2), somePhone)
	for range 3 {
		guess(wrongCode(code), http.StatusUnauthorized)
	}
	code = w.codeFor(address(2), somePhone)
	guess(code, http.StatusTooManyRequests)
	right, wrong := w.tryCode(address(3), somePhone, code), w.tryCode(address(4), somePhone, wrongCode(code))
	if right.body != wrong.body || fmt.Sprint(right.Header) != fmt.Sprint(wrong.Header) {
		t.Errorf("the right code and a wrong one differ:\n%v %s\n%v %s", right.Header, right.body, wrong.Header, wrong.body)
	}
	checkHeader(t, right, map[string]string{"Retry-After": "900", "Ratelimit-Limit": "5", "Ratelimit-Remaining": "0"})
	if !strings.Contains(right.body, `"violated-policies":["otp-attempts"]`) {
		t.Errorf("the refusal says %s", right.body)
	}
	w.clock.At(15 * time.Minute) // exactly as long as told
	guess(code, http.StatusUnauthorized)
	w.clock.At(time.Hour) // when three more may be sent
	guess(w.codeFor(address(2), somePhone), http.StatusOK)
}

// Row D3: a code lives across the edge of a quarter of an hour, and still has five guesses in all.
func TestNoEdgeOfAWindowDoublesTheGuessesAtACode(t *testing.T) {
	w := newWorld(t)
	w.clock.At(14 * time.Minute)
	code := w.codeFor(address(1), somePhone)
	for i := range 10 {
		w.clock.At(14*time.Minute + time.Duration(i)*50*time.Second)
		want := http.StatusUnauthorized
		if i >= 5 {
			want = http.StatusTooManyRequests
		}
		expect(t, w.tryCode(address(2), somePhone, wrongCode(code)), want)
	}
}

// Row D3; case E08: many addresses have five guesses together, and another phone is no matter.
func TestTenAddressesHaveFiveGuessesTogether(t *testing.T) {
	w := newWorld(t)
	code := w.codeFor(address(100), somePhone)
	for i := range 10 {
		got := w.tryCode(address(i), somePhone, wrongCode(code))
		want := http.StatusUnauthorized
		if i >= 5 {
			want = http.StatusTooManyRequests
		}
		expect(t, got, want)
		if text := fmt.Sprint(got.Header) + got.body; i < 5 && strings.Contains(text, "attempts") { // case E14
			t.Fatalf("the phone's limit shows before it refuses: %s", text)
		}
	}
	expect(t, w.tryCode(address(50), anotherPhone, "000000"), http.StatusUnauthorized)
	if n := w.count("SELECT count(*) FROM rate_limit_audit"); n != 1 {
		t.Errorf("%d audit rows, want 1", n)
	}
}

// Row D3; case E09: the guess is counted before the code is looked at.
func TestOfFiftyParallelGuessesFiveAreCompared(t *testing.T) {
	w := newWorld(t)
	code := w.codeFor(address(100), somePhone)
	answers := fiftyAtOnce(func(i int) reply {
		guess := wrongCode(code)
		if i == 49 {
			guess = code
		}
		return w.tryCode(address(i), somePhone, guess)
	})
	wrong, right, refused := answers[http.StatusUnauthorized], answers[http.StatusOK], answers[http.StatusTooManyRequests]
	// The right one, if it is among the five, gives its unit back and so makes room for another wrong one, or comes too late for that.
	if wrong > 5 || right > 1 || wrong+right < 5 || wrong+right+refused != 50 {
		t.Errorf("%d compared and wrong, %d right, %d refused", wrong, right, refused)
	}
}

// Row D3: the right code costs the phone nothing, and clears nothing.
func TestARightCodeGivesBackItsOwnGuessAlone(t *testing.T) {
	w := newWorld(t)
	code := w.codeFor(address(1), somePhone)
	expect(t, w.tryCode(address(2), somePhone, wrongCode(code)), http.StatusUnauthorized)
	expect(t, w.tryCode(address(2), somePhone, code), http.StatusOK)
	if n := w.used("otp-attempts"); n != 1 {
		t.Errorf("%d guesses stand, want 1", n)
	}
}

// Issue 10.15: the right code sent again and again is refused and not counted, and brings no free
// guesses.
func TestClicksOnACodeThatIsUsedAreRefusedAndNotCounted(t *testing.T) {
	w := newWorld(t)
	used := func(want int) {
		t.Helper()
		if n := w.used("otp-attempts"); n != want {
			t.Fatalf("%d guesses count, want %d", n, want)
		}
	}
	replaced := w.codeFor(address(1), somePhone)
	code := w.codeFor(address(1), somePhone)
	expect(t, w.tryCode(address(2), somePhone, code), http.StatusOK)
	var wrong reply
	for i := range 20 {
		again := w.tryCode(address(10+i), somePhone, code[:3]+" "+code[3:])
		expect(t, again, http.StatusUnauthorized)
		if i == 0 {
			wrong = w.tryCode(address(40), somePhone, wrongCode(code))
		}
		sameBytes(t, "a used code and a wrong one", again, wrong)
	}
	used(1)
	second := w.codeFor(address(1), somePhone)
	expect(t, w.tryCode(address(2), somePhone, code), http.StatusUnauthorized)
	used(1)
	expect(t, w.tryCode(address(2), somePhone, second), http.StatusOK)
	expect(t, w.tryCode(address(2), somePhone, code), http.StatusUnauthorized)
	expect(t, w.tryCode(address(2), anotherPhone, code), http.StatusUnauthorized)
	used(2) // another phone's
	expect(t, w.tryCode(address(2), somePhone, replaced), http.StatusUnauthorized)
	used(3)
	for i := range 3 {
		expect(t, w.tryCode(address(50+i), somePhone, wrongCode(code)), http.StatusUnauthorized)
	}
	// Case E13: at the limit the used code and a wrong one are alike.
	sameBytes(t, "at the limit", w.tryCode(address(60), somePhone, code), w.tryCode(address(61), somePhone, wrongCode(code)))
	expect(t, w.tryCode(address(62), somePhone, second), http.StatusTooManyRequests)
}

// Issue 10.15: many clicks at once are one success, and the phone has all its guesses afterwards.
// At most five are looked at at the same time; the others are refused.
func TestManyClicksOnARightCodeVerifyItOnceAndCostNothing(t *testing.T) {
	w := newWorld(t)
	code := w.codeFor(address(100), somePhone)
	answers := fiftyAtOnce(func(i int) reply { return w.tryCode(address(i), somePhone, code) })
	if answers[http.StatusOK] != 1 || answers[http.StatusOK]+answers[http.StatusUnauthorized]+answers[http.StatusTooManyRequests] != 50 {
		t.Errorf("answers are %v", answers)
	}
	if n := w.used("otp-attempts"); n != 0 {
		t.Errorf("%d guesses count, want none", n)
	}
}

// Issue 10.15: a link and an invite code that are used and sent again cost the address what every
// request costs, and nobody else anything.
func TestALinkAndAnInviteThatAreSentAgainLockNobodyOut(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	for i := range 30 {
		reset := w.send(from(i), "PATCH", "/api/sign-in", `{"token":"`+strings.Repeat("a", 43)+`","newPassword":"another right password"}`)
		expect(t, reset, http.StatusUnauthorized)
	}
	code := w.send("203.0.113.1", "POST", "/api/codes", "{}").field(t, "code")
	body := func(name string) string {
		return fmt.Sprintf(`{"code":%q,"username":%q,"password":%q}`, code, name, rightPassword)
	}
	expect(t, w.send("203.0.113.2", "POST", "/api/sign-up", body("newcomer")), http.StatusCreated)
	for i := range 20 {
		expect(t, w.send(from(100+i), "POST", "/api/sign-up", body("another")), http.StatusUnprocessableEntity)
	}
	if n := w.used("failed-sign-ins"); n != 0 {
		t.Errorf("%d guesses count", n)
	}
	expect(t, w.signIn("203.0.113.3", "newcomer", rightPassword), http.StatusOK)
	expect(t, w.signIn("203.0.113.3", "someone", rightPassword), http.StatusOK)
}

// Row D3: of many right ones at once one is verified.
func TestOfManyRightCodesAtOnceOneIsVerified(t *testing.T) {
	w := newWorld(t)
	code := w.codeFor(address(100), somePhone)
	var group sync.WaitGroup
	var verified atomic.Int64
	for i := range 20 {
		group.Go(func() {
			if w.tryCode(address(i), somePhone, code).StatusCode == http.StatusOK {
				verified.Add(1)
			}
		})
	}
	group.Wait()
	if verified.Load() != 1 {
		t.Errorf("%d verified, want 1", verified.Load())
	}
}

// Row D3; cases E02, E10, E14: no phone is registered, so there are none that are known. Many callers send three SMS an hour to
// one, and all get the same answer, as if they were the first.
func TestAPhoneGetsThreeSMSAnHourAndNobodyIsTold(t *testing.T) {
	w := newWorld(t)
	var answers []string
	for i := range 20 {
		phone := []string{somePhone, "+1 202 555 0123", "+1 (202) 555-0123", "+1-202-555-0123"}[i%4]
		got := w.sendCode(address(i), phone)
		expect(t, got, http.StatusAccepted)
		answers = append(answers, fmt.Sprint(got.Header)+got.body)
	}
	fresh := w.sendCode(address(20), anotherPhone)
	answers = append(answers, fmt.Sprint(fresh.Header)+fresh.body)
	// The edge's limit is each address's own, so that it is the same too.
	if different := slices.Compact(answers); len(different) != 1 {
		t.Errorf("the answers differ: %q", different)
	}
	if w.sent(somePhone) != 3 || w.sent(anotherPhone) != 1 {
		t.Errorf("%d and %d SMS, want 3 and 1", w.sent(somePhone), w.sent(anotherPhone))
	}
	if n := w.used("sms-outbound"); n != 4 {
		t.Errorf("%d units of the gateway, want 4: what is not sent takes no turn", n)
	}
	if found := traces(w.log.String(), "202555"); len(found) > 0 || !strings.Contains(w.log.String(), "its phone has enough of them") {
		t.Errorf("the log holds %v", found)
	}
	// The newest of the three is good.
	expect(t, w.tryCode(address(30), anotherPhone, w.newestCode()), http.StatusOK)

	w.clock.At(time.Hour - time.Second) // a log: an hour after the first
	w.sendCode(address(31), somePhone)
	if w.sent(somePhone) != 3 {
		t.Fatal("sent before the hour was over")
	}
	w.clock.At(time.Hour)
	w.sendCode(address(32), somePhone)
	if w.sent(somePhone) != 4 {
		t.Error("not sent after the hour")
	}
}

// Case E10: also when all come at once.
func TestThirtyRequestsAtOnceSendThreeSMS(t *testing.T) {
	w := newWorld(t)
	var group sync.WaitGroup
	for i := range 30 {
		group.Go(func() { expect(t, w.sendCode(address(i), somePhone), http.StatusAccepted) })
	}
	group.Wait()
	if w.sent(somePhone) != 3 {
		t.Errorf("%d SMS, want 3", w.sent(somePhone))
	}
}

// Rows D3, D8; cases A27, A47: what is refused counts against the address and nobody else.
func TestWhatIsNoPhoneOrNoCodeIsRefusedAndCounted(t *testing.T) {
	w := newWorld(t)
	for i, c := range []struct {
		body   string
		status int
		field  string
	}{
		{`{"phone":"2025550123"}`, 422, "phone"},
		{`{"phone":"+49 (0) 30 123456"}`, 422, "phone"},
		{`{"phone":""}`, 422, "phone"},
		{`{}`, 422, "phone"},
		{`{"phone":null}`, 400, ""},
		{`{"phone":12025550123}`, 400, ""},
		{`{"phone":["+12025550123"]}`, 400, ""},
		{`{"phone":"+12025550123","code":"000000"}`, 400, ""},
		{`{`, 400, ""},
	} {
		got := w.send(address(1), "POST", "/api/otp", c.body)
		expect(t, got, c.status)
		checkHeader(t, got, map[string]string{"Ratelimit-Remaining": fmt.Sprint(9 - i), "Ratelimit-Limit": "10"})
		if c.field != "" && got.field(t, "field") != c.field || strings.Contains(got.body, "123456") {
			t.Errorf("%s: %s", c.body, got.body)
		}
	}
	for i, c := range []struct {
		body   string
		status int
	}{
		{`{"phone":"2025550123","code":"000000"}`, 422},
		{`{"phone":"+12025550123","code":""}`, 400},
		{`{"phone":"+12025550123"}`, 400},
		{`{"phone":"+12025550123","code":0}`, 400},
		{`{"phone":"+12025550123","code":null}`, 400},
		{`[]`, 400},
	} {
		got := w.send(address(1), "PUT", "/api/otp", c.body)
		expect(t, got, c.status)
		checkHeader(t, got, map[string]string{"Ratelimit-Remaining": fmt.Sprint(29 - i), "Ratelimit-Limit": "30"})
	}
	if n := w.used("otp-attempts") + w.used("otp-send-phone") + w.used("sms-outbound") + w.count("SELECT count(*) FROM outbox"); n != 0 {
		t.Errorf("%d units and messages, want none", n)
	}
	// What is not six digits is a wrong code, and a guess.
	for _, code := range []string{"12345", "1234567", "abcdef", " ", strings.Repeat("1", 5000)} {
		expect(t, w.tryCode(address(2), somePhone, code), http.StatusUnauthorized)
	}
	expect(t, w.tryCode(address(2), somePhone, "x"), http.StatusTooManyRequests)
}

// A code that begins with a zero is six digits like others: as a number it would be another.
func TestACodeWithLeadingZerosIsVerified(t *testing.T) {
	w := newWorld(t)
	for i := range 1000 { // one in ten begins with a zero
		phone := fmt.Sprintf("+1202555%04d", i)
		code := w.codeFor(fmt.Sprintf("198.51.%d.1", i), phone)
		w.clock.At(time.Duration(i+1) * 2 * time.Second)
		if code[0] != '0' {
			continue
		}
		expect(t, w.tryCode(address(1), phone, strings.TrimLeft(code, "0")), http.StatusUnauthorized)
		expect(t, w.tryCode(address(1), phone, code), http.StatusOK)
		return
	}
	t.Error("of 1000 codes none begins with a zero")
}

// byGateway has SMS leave over HTTP.
func byGateway(url string) func(*app.Settings) {
	return func(s *app.Settings) {
		s.SMS = &sms.HTTPConfig{URL: url, Token: "a-token-of-tests", Deadline: time.Minute}
	}
}

// Row D4: all instances share one queue in front of the gateway, and a request waits for its turn.
func TestSMSLeaveTwoASecondAndTheRestIsRefused(t *testing.T) {
	var asked atomic.Int64
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer a-token-of-tests" || !sixDigits.Match(body) {
			t.Errorf("the gateway is asked %v %s", r.Header, body)
		}
		asked.Add(1)
	}))
	defer gateway.Close()
	w := newWorld(t, byGateway(gateway.URL))
	second := newWorld(t, byGateway(gateway.URL), func(s *app.Settings) { s.DatabaseURL = w.url })
	for i := range 5 {
		on := w
		if i%2 == 1 {
			on = second
		}
		expect(t, on.sendCode(address(i), fmt.Sprintf("+1202555010%d", i)), http.StatusAccepted)
	}
	all := append(slices.Clone(w.waits.all), second.waits.all...)
	slices.Sort(all)
	if want := []time.Duration{0, 500 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second}; !slices.Equal(all, want) {
		t.Errorf("they waited %v, want %v", all, want)
	}
	got := second.sendCode(address(6), somePhone)
	expect(t, got, http.StatusServiceUnavailable)
	checkHeader(t, got, map[string]string{"Retry-After": "1", "Content-Type": "application/problem+json"})
	if asked.Load() != 5 || w.count("SELECT count(*) FROM outbox") != 0 {
		t.Errorf("the gateway was asked %d times, want 5", asked.Load())
	}
	if n := w.used("otp-send-phone"); n != 5 {
		t.Errorf("%d units of phones, want 5: what is refused costs none", n)
	}
	w.clock.At(3 * time.Second)
	for i := range 3 {
		expect(t, w.sendCode(address(10+i), somePhone), http.StatusAccepted)
	}
	for i := range 2 {
		expect(t, w.sendCode(address(20+i), anotherPhone), http.StatusAccepted)
	}
	full, fresh := w.sendCode(address(30), somePhone), w.sendCode(address(31), "+12025550125")
	expect(t, full, http.StatusServiceUnavailable)
	if full.body != fresh.body || fmt.Sprint(full.Header) != fmt.Sprint(fresh.Header) {
		t.Errorf("while the queue is full a phone that has had its SMS is told apart:\n%v %s\n%v %s", full.Header, full.body, fresh.Header, fresh.body)
	}
}

// Row D4: the setting makes it another rate, within what a request can wait.
func TestTheRateToTheGatewayIsASetting(t *testing.T) {
	w := newWorld(t, func(s *app.Settings) {
		s.Policies = `[{"name":"sms-outbound","algorithm":"leaky-bucket","limit":1,"window":"1s","queue":1}]`
	})
	w.codeFor(address(1), somePhone)
	w.codeFor(address(1), somePhone)
	expect(t, w.sendCode(address(1), somePhone), http.StatusServiceUnavailable)
	if fmt.Sprint(w.waits.all) != "[0s 1s]" {
		t.Errorf("they waited %v", w.waits.all)
	}
	for setting, want := range map[string]string{
		`[{"name":"sms-outbound","algorithm":"leaky-bucket","limit":1,"window":"1s","queue":4}]`:         "the last of a queue of 4 waits for 4s",
		`[{"name":"sms-outbound","algorithm":"leaky-bucket","limit":1,"window":"876600h","queue":182}]`:  "sms-outbound",
		`[{"name":"sms-outbound","algorithm":"leaky-bucket","limit":1,"window":"1s","subject":"phone"}]`: "sms-outbound",
		`[{"name":"otp-send","algorithm":"leaky-bucket","limit":1,"window":"1s","queue":1}]`:             "otp-send",
		`[{"name":"otp-attempts","algorithm":"sliding-log","limit":5,"window":"15m","private":false}]`:   "otp-attempts",
	} {
		_, err := app.LoadPolicies(func(name string) (string, bool) { return setting, name == "RATE_LIMIT_POLICIES" })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", setting, err, want)
		}
	}
}

// What was certainly not sent costs the phone nothing; what perhaps was, does, and its code is good.
func TestAFailingGatewayIsAnOutageAndNothingIsLostOrDoubled(t *testing.T) {
	for _, c := range []struct {
		name           string
		answer, status int
		left           int // units of the phone
		detail         string
	}{
		{"busy", 503, 503, 0, "Nothing was sent"},
		{"refusing the token", 401, 503, 0, "Nothing was sent"},
		{"redirecting", 307, 503, 0, "Nothing was sent"},
		{"breaking", 500, 503, 1, "may have been sent or not"},
		{"no such number", 422, 422, 0, "gets no SMS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var status, asked atomic.Int64
			var code atomic.Value
			status.Store(int64(c.answer))
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				code.Store(sixDigits.FindString(string(body)))
				asked.Add(1)
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(int(status.Load()))
				io.WriteString(w, somePhone)
			}))
			defer gateway.Close()
			w := newWorld(t, byGateway(gateway.URL))
			got := w.sendCode(address(1), somePhone)
			expect(t, got, c.status)
			if !strings.Contains(got.body, c.detail) || (c.status == 503) != (got.Header.Get("Retry-After") == "60") || strings.Contains(got.body, "202555") {
				t.Errorf("%v %s", got.Header, got.body)
			}
			if n := w.used("otp-send-phone"); n != c.left {
				t.Errorf("%d units of the phone stand, want %d", n, c.left)
			}
			if asked.Load() != 1 || w.used("sms-outbound") != 1 {
				t.Errorf("asked %d times, %d units", asked.Load(), w.used("sms-outbound"))
			}
			if log := w.log.String(); !strings.Contains(log, "SMS not sent") || strings.Contains(log, "202555") || strings.Contains(log, gateway.URL) || strings.Contains(log, code.Load().(string)) {
				t.Errorf("the log says %s", log)
			}
			if c.left == 1 {
				expect(t, w.tryCode(address(2), somePhone, code.Load().(string)), http.StatusOK)
			}
			status.Store(200)
			w.clock.At(10 * time.Second)
			for range 3 - c.left { // all that are left
				expect(t, w.sendCode(address(1), somePhone), http.StatusAccepted)
			}
			if n := asked.Load(); n != int64(4-c.left) {
				t.Errorf("asked %d times", n)
			}
			expect(t, w.tryCode(address(2), somePhone, code.Load().(string)), http.StatusOK)
		})
	}
}

// A request whose time is over before its turn comes sends nothing, and costs the phone nothing.
func TestARequestThatCannotWaitSendsNothing(t *testing.T) {
	w := newWorld(t)
	w.waits.err = context.DeadlineExceeded
	got := w.sendCode(address(1), somePhone)
	expect(t, got, http.StatusServiceUnavailable)
	if w.used("otp-send-phone") != 0 || w.sent(somePhone) != 0 || !strings.Contains(got.body, "Nothing was sent") {
		t.Errorf("%d units, %d SMS: %s", w.used("otp-send-phone"), w.sent(somePhone), got.body)
	}
	// Issue 10, point 4: nor does it keep a place in the queue, which has five.
	for i := range 20 {
		if got := w.sendCode(address(10+i), somePhone); !strings.Contains(got.body, "Nothing was sent. Please try again in a minute.") {
			t.Fatalf("request %d finds the queue full: %s", i, got.body)
		}
	}
	w.waits.err = nil
	for i := range 3 {
		expect(t, w.sendCode(address(50+i), somePhone), http.StatusAccepted)
	}
}

// Without the table of codes nobody came to look at a guess, and nothing is sent.
func TestWithoutTheCodesNothingIsSentAndNoGuessCounts(t *testing.T) {
	w := newWorld(t)
	if _, err := w.db.Exec("DROP TABLE otp_codes"); err != nil {
		t.Fatal(err)
	}
	expect(t, w.sendCode(address(1), somePhone), http.StatusServiceUnavailable)
	expect(t, w.tryCode(address(1), somePhone, "000000"), http.StatusServiceUnavailable)
	vacant := w.count("SELECT sum(given) FROM rate_limit_refunds WHERE algorithm = 5") // places in the gateway's queue
	if n := w.used("otp-send-phone") + w.used("otp-attempts") + w.used("sms-outbound") - vacant + w.sent(somePhone); n != 0 {
		t.Errorf("%d units and messages are left", n)
	}
}

func TestTheTimersSweepTakesExpiredCodes(t *testing.T) {
	w := newWorld(t, withTokens)
	w.codeFor(address(1), somePhone)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{10*time.Minute - time.Second, 1}, {10 * time.Minute, 0}} {
		w.clock.At(step.after)
		w.sweep()
		if n := w.count("SELECT count(*) FROM otp_codes"); n != step.want {
			t.Errorf("%d codes after %v, want %d", n, step.after, step.want)
		}
	}
}
