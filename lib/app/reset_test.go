package app_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/testkit/smtpserver"
)

// someToken has the form of one, and nobody was mailed it.
var someToken = strings.Repeat("A", 43)

// tokenForm is a token as a mail holds it, on a line of its own or at the end of a link.
var tokenForm = regexp.MustCompile(`(?m)^    (?:https://weir\.example\.org/#reset=)?([A-Za-z0-9_-]{43})\r?$`)

// give has an account have an e-mail.
func (w *world) give(name, email string) {
	w.t.Helper()
	if _, err := w.db.Exec("UPDATE accounts SET email = ? WHERE username = ?", email, name); err != nil {
		w.t.Fatal(err)
	}
}

// askReset asks for a reset.
func (w *world) askReset(address, name string) reply {
	w.t.Helper()
	return w.send(address, "PUT", "/api/sign-in", fmt.Sprintf(`{"username":%q}`, name))
}

// byLink is the body of a new password by a token.
func byLink(token, password string) string {
	return fmt.Sprintf(`{"token":%q,"newPassword":%q}`, token, password)
}

// tokenIn reads the token of a mail.
func tokenIn(t *testing.T, text string) string {
	t.Helper()
	found := tokenForm.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no token in %s", text)
	}
	return found[1]
}

// resetToken is the token of the newest mail.
func (w *world) resetToken() string {
	w.t.Helper()
	_, _, _, text := w.outbox()
	return tokenIn(w.t, text)
}

// mailed is how many mails somebody has got.
func (w *world) mailed(recipient string) int {
	return w.count("SELECT count(*) FROM outbox WHERE recipient = '" + recipient + "'")
}

// From the sign-up with an e-mail to the sign-in with another password.
func TestAForgottenPasswordIsReplacedByMail(t *testing.T) {
	w := newWorld(t)
	code := w.send("203.0.113.9", "POST", "/api/codes", "{}").field(t, "code")
	expect(t, w.send("203.0.113.9", "POST", "/api/sign-up",
		fmt.Sprintf(`{"code":%q,"username":"someone","password":%q,"email":"Some.One@example.org"}`, code, rightPassword)), http.StatusCreated)
	session, device := w.browser("203.0.113.1", "someone")
	got := w.askReset("198.51.100.1", " SomeOne ")
	expect(t, got, http.StatusAccepted)
	if got.body != "" || len(got.Cookies()) > 0 {
		t.Errorf("the answer says %q", got.body)
	}
	_, recipient, _, text := w.outbox()
	if recipient != "Some.One@example.org" || strings.Contains(text, "://") || !strings.Contains(text, w.clock.Now().Add(time.Hour).UTC().Format("15:04 UTC")) {
		t.Errorf("the mail to %s is %s", recipient, text)
	}
	token := w.resetToken()
	expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", with(session)), http.StatusOK) // asking alone ends nothing
	weak := w.send("198.51.100.1", "PATCH", "/api/sign-in", byLink(token, "short"))
	expect(t, weak, http.StatusUnprocessableEntity)
	if weak.field(t, "field") != "newPassword" {
		t.Errorf("the refusal is %s", weak.body)
	}
	w.clock.At(30*time.Minute - time.Second)
	done := w.send("198.51.100.1", "PATCH", "/api/sign-in", byLink(token, newPassword))
	expect(t, done, http.StatusNoContent)
	if len(done.Cookies()) > 0 {
		t.Error("a reset signs somebody in")
	}
	expect(t, w.send("203.0.113.1", "GET", "/api/sign-in", "", with(session)), http.StatusUnauthorized)
	expect(t, w.signIn("203.0.113.1", "someone", rightPassword), http.StatusUnauthorized)
	used := w.used("failed-sign-ins")
	expect(t, w.send("203.0.113.1", "POST", "/api/sign-in", `{"username":"someone","password":"wrong password"}`, with(device)), http.StatusUnauthorized)
	if w.used("failed-sign-ins") != used+1 || w.used("failed-sign-ins-device") != 0 {
		t.Error("the device is still known")
	}
	expect(t, w.signIn("203.0.113.1", "someone", newPassword), http.StatusOK)
}

// A link that isn't good gets one answer, whatever is wrong with it.
func TestALinkThatIsUsedReplacedExpiredOrMadeUpGetsOneAnswer(t *testing.T) {
	w := newWorld(t)
	tokens := map[string]string{"made up": someToken, "no token": "x"}
	for i, name := range []string{"used", "replaced", "expired", "changed"} {
		w.clock.At(time.Duration(i) * time.Hour) // so that all ask from one address
		w.member(name)
		w.give(name, name+"@example.org")
		expect(t, w.askReset("203.0.113.1", name), http.StatusAccepted)
		tokens[name] = w.resetToken()
		switch name {
		case "used":
			expect(t, w.send("203.0.113.1", "PATCH", "/api/sign-in", byLink(tokens[name], newPassword)), http.StatusNoContent)
		case "replaced":
			expect(t, w.askReset("203.0.113.1", name), http.StatusAccepted)
		case "expired":
			w.clock.At(time.Duration(i)*time.Hour + 30*time.Minute)
		case "changed":
			session, _ := w.browser("203.0.113.1", name)
			expect(t, w.send("203.0.113.1", "PATCH", "/api/sign-in", change(rightPassword, rightPassword), with(session)), http.StatusNoContent)
		}
	}
	answers := map[string]bool{}
	i := 0
	for name, token := range tokens {
		i++
		got := w.send(fmt.Sprintf("198.51.100.%d", i), "PATCH", "/api/sign-in", byLink(token, "another password again"))
		if got.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, got.StatusCode)
		}
		answers[fmt.Sprint(got.Header)+got.body] = true
	}
	if len(answers) != 1 {
		t.Errorf("the answers differ: %v", answers)
	}
}

func TestWhatIsNoRequestForAResetIsRefused(t *testing.T) {
	w := newWorld(t)
	w.hashes.Store(0)
	for body, field := range map[string]string{
		`{}`:                                    "username",
		`{"username":" "}`:                      "username",
		`{"username":1}`:                        "username",
		`{"username":"someone","email":"x"}`:    "email",
		fmt.Sprintf(`{"username":"%0257d"}`, 0): "username",
	} {
		if got := w.send("203.0.113.1", "PUT", "/api/sign-in", body); got.StatusCode != http.StatusBadRequest || got.field(t, "field") != field {
			t.Errorf("%s answers %d %s", body, got.StatusCode, got.body)
		}
	}
	for body, field := range map[string]string{
		`{"token":"","newPassword":"another password"}`:                         "token",
		`{"token":"` + someToken + `"}`:                                         "newPassword",
		`{"token":"` + someToken + `","newPassword":""}`:                        "newPassword",
		`{"token":"` + someToken + `","currentPassword":"x","newPassword":"y"}`: "currentPassword",
		`{"token":1,"newPassword":"another password"}`:                          "token",
	} {
		if got := w.send("203.0.113.2", "PATCH", "/api/sign-in", body); got.StatusCode != http.StatusBadRequest || got.field(t, "field") != field {
			t.Errorf("%s answers %d %s", body, got.StatusCode, got.body)
		}
	}
	if w.hashes.Load() != 0 || w.used("reset-recipient") != 0 {
		t.Error("something was looked at")
	}
}

// Case E10: from however many addresses, an inbox gets three mails an hour, and the answers to all are one.
func TestAnInboxGetsThreeResetsAnHourAndNobodyIsTold(t *testing.T) {
	w := newWorld(t)
	for name, email := range map[string]string{"someone": "someone@example.org", "another": "SomeOne+tag@example.org", "third": "third@example.org", "without": ""} {
		w.member(name)
		if email != "" {
			w.give(name, email)
		}
	}
	w.clock.At(time.Hour)
	answers := map[string]bool{}
	n := 0
	play := func(name string) {
		for range 20 {
			n++
			got := w.askReset(fmt.Sprintf("198.51.100.%d", n), name)
			expect(t, got, http.StatusAccepted)
			answers[fmt.Sprint(got.StatusCode, got.Header)+got.body] = true
		}
	}
	for _, name := range []string{"someone", "nobody", "without", "no name", "demo-member"} {
		play(name)
	}
	if len(answers) != 1 {
		t.Errorf("the answers differ: %v", answers)
	}
	if n := w.mailed("someone@example.org"); n != 3 {
		t.Errorf("%d mails, want 3", n)
	}
	// The account doesn't matter: it is the inbox that is full.
	token := w.resetToken()
	expect(t, w.askReset("203.0.113.1", "another"), http.StatusAccepted)
	expect(t, w.askReset("203.0.113.1", "third"), http.StatusAccepted)
	if w.mailed("SomeOne+tag@example.org") != 0 || w.mailed("third@example.org") != 1 {
		t.Error("another account of the inbox gets more, or another inbox nothing")
	}
	// Who is over the limit replaces no link.
	expect(t, w.send("203.0.113.1", "PATCH", "/api/sign-in", byLink(token, newPassword)), http.StatusNoContent)
	w.clock.At(2*time.Hour - time.Second)
	expect(t, w.askReset("203.0.113.1", "someone"), http.StatusAccepted)
	if n := w.mailed("someone@example.org"); n != 3 {
		t.Errorf("%d mails within an hour", n)
	}
	w.clock.At(2 * time.Hour)
	expect(t, w.askReset("203.0.113.1", "someone"), http.StatusAccepted)
	if n := w.mailed("someone@example.org"); n != 4 {
		t.Errorf("%d mails after an hour, want 4", n)
	}
	if found := traces(w.dump(limiterTables...)+w.log.String(), "someone@example.org", "third@example.org", "someone", "without", "nobody"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// Case E10: also when all ask at once. Of the links one is good.
func TestResetsAskedForAtOnceAreThreeMailsAndOneLink(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	w.give("someone", "someone@example.org")
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() { expectLater(t, w.askReset(fmt.Sprintf("198.51.100.%d", i), "someone"), http.StatusAccepted) })
	}
	group.Wait()
	var texts []string
	rows, err := w.db.Query("SELECT body FROM outbox")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	if err := rows.Close(); err != nil {
		t.Fatal(err)
	}
	good := 0
	for i, text := range texts {
		if w.send(fmt.Sprintf("203.0.113.%d", i), "PATCH", "/api/sign-in", byLink(tokenIn(t, text), newPassword)).StatusCode == http.StatusNoContent {
			good++
		}
	}
	if len(texts) != 3 || good != 1 {
		t.Errorf("%d mails with %d good links, want 3 and 1", len(texts), good)
	}
}

// expectLater is expect for other goroutines than the test's own.
func expectLater(t *testing.T, got reply, status int) {
	if got.StatusCode != status {
		t.Errorf("status %d, want %d: %s", got.StatusCode, status, got.body)
	}
}

// Case E09.
func TestOfTwoResetsAtOnceOneIsDone(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	w.give("someone", "someone@example.org")
	expect(t, w.askReset("203.0.113.1", "someone"), http.StatusAccepted)
	token := w.resetToken()
	var group sync.WaitGroup
	var done, refused atomic.Int64
	for i := range 8 {
		group.Go(func() {
			switch w.send(fmt.Sprintf("198.51.100.%d", i), "PATCH", "/api/sign-in", byLink(token, fmt.Sprintf("%s %d", newPassword, i))).StatusCode {
			case http.StatusNoContent:
				done.Add(1)
			case http.StatusUnauthorized:
				refused.Add(1)
			}
		})
	}
	group.Wait()
	if done.Load() != 1 || refused.Load() != 7 {
		t.Errorf("%d done, %d refused", done.Load(), refused.Load())
	}
}

// Case E02: every name takes the same time. The clock of the bubble moves when everybody waits, so that the time is exact and the
// test takes none.
func TestAskingForAResetTakesTheSameTimeForEveryName(t *testing.T) {
	w := newWorld(t) // outside, since the driver leaves a goroutine behind
	w.member("someone")
	w.member("without")
	w.give("someone", "someone@example.org")
	w.waits.really = true
	for i, name := range []string{"someone", "someone", "someone", "someone", "nobody", "without", "demo-member", "no name"} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			expect(t, w.askReset(fmt.Sprintf("198.51.100.%d", i), name), http.StatusAccepted)
			if took := time.Since(start); took != time.Second {
				t.Errorf("request %d, for %s, takes %v", i, name, took)
			}
		})
	}
	if n := w.mailed("someone@example.org"); n != 3 {
		t.Errorf("%d mails", n)
	}
}

// The answer doesn't tell what became of the mail. What was certainly not sent isn't counted; what perhaps was, is.
func TestWhatBecomesOfAResetsMailIsForTheLogAlone(t *testing.T) {
	for _, c := range []struct {
		name, step string
		action     smtpserver.Action
		left       int // units of the recipient
		log        string
	}{
		{"taken", "", smtpserver.Action{}, 1, ""},
		{"busy", "mail", smtpserver.Action{Code: 421, Enhanced: [3]int{4, 3, 2}, Text: "someone@example.org"}, 0, "not sent"},
		{"no such mailbox", "rcpt", smtpserver.Action{Code: 550, Enhanced: [3]int{5, 1, 1}, Text: "someone@example.org"}, 0, "recipient refused"},
		{"silent", "rcpt", smtpserver.Action{Hang: true}, 0, "not sent"},
		{"cut after the text", "taken", smtpserver.Action{Cut: true}, 1, "perhaps sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := smtpserver.Start(t, smtpserver.Config{Hook: func(step string) smtpserver.Action {
				if step == c.step {
					return c.action
				}
				return smtpserver.Action{}
			}})
			w := newWorld(t, bySMTP(server), func(s *app.Settings) {
				s.SMTP.Deadline = 300 * time.Millisecond
				s.Site = "https://weir.example.org"
			})
			w.member("someone")
			w.give("someone", "someone@example.org")
			known, unknown := w.askReset("198.51.100.1", "someone"), w.askReset("198.51.100.2", "nobody")
			if known.StatusCode != http.StatusAccepted || fmt.Sprint(known.Header)+known.body != fmt.Sprint(unknown.Header)+unknown.body {
				t.Errorf("answered %d %v %s and %d %v %s", known.StatusCode, known.Header, known.body, unknown.StatusCode, unknown.Header, unknown.body)
			}
			for _, d := range w.waits.all {
				if d <= 0 || d > 4*time.Second {
					t.Errorf("waited for %v", d)
				}
			}
			if d := w.waits.all[0]; c.action.Hang && d > 3700*time.Millisecond { // what the server took is part of the time
				t.Errorf("waited for %v after a deadline of 300 ms", d)
			}
			if len(w.waits.all) != 2 {
				t.Errorf("%d requests waited", len(w.waits.all))
			}
			if n := w.used("reset-recipient"); n != c.left+1 { // and that of nobody
				t.Errorf("%d units stand, want %d", n-1, c.left)
			}
			log := w.log.String()
			if (c.log == "") == strings.Contains(log, "reset not mailed") || !strings.Contains(log, c.log) {
				t.Errorf("the log says %s", log)
			}
			if found := traces(log, "someone@example.org", "someone", someToken); len(found) > 0 {
				t.Errorf("the log holds %v", found)
			}
			if c.step == "" {
				all := server.Messages()
				if len(all) != 1 || all[0].To != "someone@example.org" {
					t.Fatalf("the server took %+v", all)
				}
				text := textOf(t, all[0])
				if !strings.Contains(text, "    https://weir.example.org/#reset=") {
					t.Errorf("the mail is %s", text)
				}
				expect(t, w.send("203.0.113.1", "PATCH", "/api/sign-in", byLink(tokenIn(t, text), newPassword)), http.StatusNoContent)
			}
		})
	}
}

// Every name meets an outage alike, but for the outbox's, which only a mail would meet and nobody is told of.
func TestAnOutageTellsNoNameFromAnother(t *testing.T) {
	for table, status := range map[string]int{"accounts": 503, "password_resets": 503, "outbox": 202, "rate_limits": 503} {
		w := newWorld(t)
		w.member("someone")
		w.give("someone", "someone@example.org")
		if _, err := w.db.Exec("DROP TABLE " + table); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"someone", "nobody"} {
			if got := w.askReset(fmt.Sprintf("198.51.100.%d", i), name); got.StatusCode != status {
				t.Errorf("without %s %s is answered %d", table, name, got.StatusCode)
			}
		}
		if table == "outbox" && !strings.Contains(w.log.String(), "reset not mailed") {
			t.Errorf("the log says %s", w.log)
		}
	}
}

// A Host that a client made up must not be where a token is sent to.
func TestNoHeaderOfARequestGetsIntoAReset(t *testing.T) {
	w := newWorld(t)
	w.member("someone")
	w.give("someone", "someone@example.org")
	expect(t, w.send("203.0.113.9", "PUT", "/api/sign-in", `{"username":"someone"}`, func(r *http.Request) {
		r.Host = "evil.example.com"
		for _, name := range []string{"X-Forwarded-Host", "Forwarded", "X-Forwarded-Proto", "Referer", "X-Original-Host"} {
			r.Header.Set(name, "evil.example.com")
		}
	}), http.StatusAccepted)
	if all := w.dump("outbox"); strings.Contains(all, "evil") || w.mailed("someone@example.org") != 1 {
		t.Errorf("the message is %s", all)
	}
}

func TestTheTimersSweepTakesExpiredLinks(t *testing.T) {
	w := newWorld(t, withTokens)
	w.member("someone")
	w.give("someone", "someone@example.org")
	expect(t, w.askReset("203.0.113.1", "someone"), http.StatusAccepted)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{time.Hour - time.Second, 1}, {time.Hour, 0}} {
		w.clock.At(step.after)
		w.sweep()
		if n := w.count("SELECT count(*) FROM password_resets"); n != step.want {
			t.Errorf("%d links after %v, want %d", n, step.after, step.want)
		}
	}
}

// Case E03: whoever asks in the owner's place, as often as the inbox takes it or while mail is down, leaves the owner a link.
func TestAStrangerWhoAsksLeavesTheOwnerALink(t *testing.T) {
	busy := false
	server := smtpserver.Start(t, smtpserver.Config{Hook: func(step string) smtpserver.Action {
		if busy && step == "mail" {
			return smtpserver.Action{Code: 421, Enhanced: [3]int{4, 3, 2}, Text: "later"}
		}
		return smtpserver.Action{}
	}})
	w := newWorld(t, bySMTP(server))
	w.member("someone")
	w.give("someone", "someone@example.org")
	for range 4 {
		expect(t, w.askReset("198.51.100.1", "someone"), http.StatusAccepted)
	}
	mails := server.Messages()
	if len(mails) != 3 {
		t.Fatalf("%d mails, want 3", len(mails))
	}
	token := tokenIn(t, textOf(t, mails[2]))
	busy = true
	w.clock.At(59 * time.Minute)
	expect(t, w.askReset("198.51.100.2", "someone"), http.StatusAccepted)
	w.clock.At(time.Hour - time.Second)
	expect(t, w.send("198.51.100.3", "PATCH", "/api/sign-in", byLink(token, "an entirely new one")), http.StatusNoContent)

	// Where there was none before, none is left of one that was not mailed.
	w.clock.At(2 * time.Hour)
	expect(t, w.askReset("198.51.100.2", "someone"), http.StatusAccepted)
	if n := w.count("SELECT count(*) FROM password_resets"); n != 0 {
		t.Errorf("%d links, though none was mailed", n)
	}
}

// Case E02: what a slow store takes beyond a step is hidden in the next one.
func TestAnAnswerThatIsLateIsAsLateForAll(t *testing.T) {
	for _, test := range []struct{ spent, step, want time.Duration }{
		{0, time.Second, time.Second},
		{300 * time.Millisecond, time.Second, 700 * time.Millisecond},
		{1430 * time.Millisecond, time.Second, 570 * time.Millisecond},
		{1780 * time.Millisecond, time.Second, 220 * time.Millisecond},
		{4610 * time.Millisecond, 4 * time.Second, 3390 * time.Millisecond},
		{6060 * time.Millisecond, 4 * time.Second, 1940 * time.Millisecond},
	} {
		if got := app.Rest(test.spent, test.step); got != test.want {
			t.Errorf("after %v of steps of %v: %v, want %v", test.spent, test.step, got, test.want)
		}
	}
}
