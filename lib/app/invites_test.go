package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net/http"
	netmail "net/mail"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/testkit/smtpserver"
)

// codeForm is a code as a mail holds it.
var codeForm = regexp.MustCompile(`WEIR-[0-9A-Z]{4}-[0-9A-Z]{4}-[0-9A-Z]{4}`)

// bySMTP has mail go out over a server.
func bySMTP(server *smtpserver.Server) func(*app.Settings) {
	return func(s *app.Settings) {
		s.SMTP = &mail.SMTPConfig{Host: server.Host, Port: server.Port, TLS: mail.NoTLS, From: "weir@example.org"}
	}
}

func (w *world) invite(member func(*http.Request), email string) reply {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"email": email})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.send("203.0.113.9", "POST", "/api/invites", string(body), member)
}

// outbox gives the text of the newest message there.
func (w *world) outbox() (id, recipient, subject, text string) {
	w.t.Helper()
	err := w.db.QueryRow("SELECT message_id, recipient, subject, body FROM outbox ORDER BY id DESC").Scan(&id, &recipient, &subject, &text)
	if err != nil {
		w.t.Fatal(err)
	}
	return id, recipient, subject, text
}

func (w *world) signUpWith(code, name string) reply {
	w.t.Helper()
	return w.send("198.51.100.7", "POST", "/api/sign-up", fmt.Sprintf(`{"code":%q,"username":%q,"password":%q}`, code, name, rightPassword))
}

// textOf is what a recipient reads.
func textOf(t *testing.T, sent smtpserver.Message) string {
	t.Helper()
	message, err := netmail.ReadMessage(strings.NewReader(sent.Data))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(message.Body))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Row A8: the code that the outbox's message holds makes an account, for seven days.
func TestAnInviteInTheOutboxMakesAMember(t *testing.T) {
	w := newWorld(t)
	someone := w.signedUp("someone", "member")
	before := w.count("SELECT count(*) FROM invite_codes")
	got := w.invite(someone, " Friend@Example.org ")
	expect(t, got, http.StatusAccepted)
	id, recipient, subject, text := w.outbox()
	if id != got.field(t, "id") || recipient != "Friend@Example.org" || subject == "" {
		t.Errorf("%s is answered, and the message is %s to %s about %q", got.body, id, recipient, subject)
	}
	if strings.Contains(text, "://") || strings.Contains(text, "someone") {
		t.Errorf("the text holds a link or who invites: %s", text)
	}
	code := codeForm.FindString(text)
	state := w.send("203.0.113.9", "GET", "/api/codes?code="+code, "")
	until := w.clock.Now().Add(7 * 24 * time.Hour).UTC()
	if state.field(t, "state") != "borrowed" || state.field(t, "expiresAt") != until.Format(time.RFC3339) || !strings.Contains(text, until.Format("2 January 2006, 15:04 UTC")) {
		t.Errorf("the code is %s, the text %s", state.body, text)
	}
	if n := w.count("SELECT count(*) FROM invite_codes"); n != before+1 {
		t.Errorf("%d codes, were %d: want a fresh one", n, before)
	}
	w.clock.At(7*24*time.Hour - time.Second)
	made := w.signUpWith(code, "friend")
	expect(t, made, http.StatusCreated)
	if made.body != `{"username":"friend","role":"member"}` {
		t.Errorf("the sign-up answers %s", made.body)
	}
	expect(t, w.signUpWith(code, "another"), http.StatusUnprocessableEntity)

	expect(t, w.invite(w.cookie(w.signIn("203.0.113.9", "friend", rightPassword)), "late@example.org"), http.StatusAccepted)
	_, _, _, text = w.outbox()
	w.clock.At(14 * 24 * time.Hour)
	expect(t, w.signUpWith(codeForm.FindString(text), "late"), http.StatusUnprocessableEntity)
}

// Row A8: the same over a mail server, and with a link where the page's place is set.
func TestAnInviteByMailMakesAMember(t *testing.T) {
	server := smtpserver.Start(t, smtpserver.Config{})
	w := newWorld(t, bySMTP(server), func(s *app.Settings) { s.Site = "https://weir.example.org" })
	got := w.invite(w.signedUp("someone", "member"), "friend@example.org")
	expect(t, got, http.StatusAccepted)
	all := server.Messages()
	if len(all) != 1 || all[0].To != "friend@example.org" || all[0].From != "weir@example.org" {
		t.Fatalf("the server took %+v", all)
	}
	if !strings.Contains(all[0].Data, "Message-ID: <"+got.field(t, "id")+"@example.org>") {
		t.Errorf("the answer's id is not the message's: %s", all[0].Data)
	}
	text := textOf(t, all[0])
	code := codeForm.FindString(text)
	if !strings.Contains(text, "    https://weir.example.org/#code="+code+"\r\n") {
		t.Errorf("no link in %s", text)
	}
	if n := w.count("SELECT count(*) FROM outbox"); n != 0 {
		t.Errorf("%d messages in the outbox too", n)
	}
	expect(t, w.signUpWith(code, "friend"), http.StatusCreated)
}

// A Host that a client made up must not be where a code is sent to.
func TestNoHeaderOfARequestGetsIntoAMail(t *testing.T) {
	w := newWorld(t)
	someone := w.signedUp("someone", "member")
	got := w.send("203.0.113.9", "POST", "/api/invites", `{"email":"friend@example.org"}`, someone, func(r *http.Request) {
		r.Host = "evil.example.com"
		for _, name := range []string{"X-Forwarded-Host", "Forwarded", "X-Forwarded-Proto", "Referer", "X-Original-Host"} {
			r.Header.Set(name, "evil.example.com")
		}
	})
	expect(t, got, http.StatusAccepted)
	if all := w.dump("outbox"); strings.Contains(all, "evil") {
		t.Errorf("the message is %s", all)
	}
}

// Rows A8, D8; cases A27, A47.
func TestWhatIsNoAddressIsRefusedAndCounted(t *testing.T) {
	w := newWorld(t)
	someone := w.signedUp("someone", "member")
	for i, email := range []string{"", "friend", "friend@example.org\r\nBcc: other@example.org", "a@example.org,b@example.org", "Friend <friend@example.org>"} {
		got := w.invite(someone, email)
		expect(t, got, http.StatusUnprocessableEntity)
		checkHeader(t, got, map[string]string{"Ratelimit-Remaining": fmt.Sprint(5 - i), "Ratelimit-Limit": "6"})
		if got.field(t, "field") != "email" || strings.Contains(got.body, "friend") {
			t.Errorf("%q: %s", email, got.body)
		}
	}
	if n := w.count("SELECT count(*) FROM outbox") + w.count("SELECT count(*) FROM rate_limits WHERE policy = 'invite-recipient'"); n != 0 {
		t.Errorf("%d messages and recipients", n)
	}
	w.invite(someone, "friend@example.org")
	expect(t, w.invite(someone, "friend"), http.StatusTooManyRequests)
}

// Cases E10, E14: many members fill nobody's inbox, and none learns from an answer that others invited the same person.
func TestARecipientGetsThreeInvitesADayAndNobodyIsTold(t *testing.T) {
	w := newWorld(t)
	w.clock.At(time.Hour)
	spellings := []string{"friend@example.org", "FRIEND@example.org", "friend@EXAMPLE.org", "friend+tag@example.org", " Friend+@Example.Org", "friend@example.org"}
	var answers []string
	for i, email := range spellings {
		got := w.invite(w.signedUp(fmt.Sprintf("someone%d", i), "member"), email)
		expect(t, got, http.StatusAccepted)
		id := got.field(t, "id")
		answers = append(answers, regexp.MustCompile(`r=9\d\d`).ReplaceAllString(fmt.Sprint(got.Header), "r=edge")+strings.ReplaceAll(got.body, id, "ID"))
		if want := fmt.Sprintf(`"mail-invite";r=5;t=600, "edge";r=%d;t=60`, 999-i); got.Header.Get("Ratelimit") != want { // as if it were mailed
			t.Errorf("invite %d: %s, want %s", i, got.Header.Get("Ratelimit"), want)
		}
		w.clock.At(time.Hour)
	}
	for i, answer := range answers {
		if answer != answers[0] {
			t.Errorf("answer %d differs:\n%s\n%s", i, answer, answers[0])
		}
	}
	if n := w.count("SELECT count(*) FROM outbox"); n != 3 {
		t.Errorf("%d messages, want 3", n)
	}
	if n := w.count("SELECT count(*) FROM invite_codes WHERE free_from_micros > " + fmt.Sprint(w.clock.Now().Add(time.Hour).UnixMicro())); n != 3 {
		t.Errorf("%d codes are reserved, want 3", n)
	}
	someone := w.signedUp("anyone", "member")
	expect(t, w.invite(someone, "other@example.org"), http.StatusAccepted)
	if _, recipient, _, _ := w.outbox(); recipient != "other@example.org" {
		t.Errorf("another recipient is held back too: the newest is for %s", recipient)
	}
	w.clock.At(25 * time.Hour) // a log: exactly a day later
	expect(t, w.invite(someone, "friend@example.org"), http.StatusAccepted)
	if _, recipient, _, _ := w.outbox(); recipient != "friend@example.org" {
		t.Errorf("a day later the newest is for %s", recipient)
	}
}

// Case E10: also when all come at once.
func TestInvitesToOneRecipientAtOnceAreThree(t *testing.T) {
	w := newWorld(t)
	var members []func(*http.Request)
	for i := range 4 {
		members = append(members, w.signedUp(fmt.Sprintf("someone%d", i), "member"))
	}
	w.clock.At(time.Hour)
	var group sync.WaitGroup
	var accepted, refused atomic.Int64
	for i := range 32 {
		group.Go(func() {
			switch w.invite(members[i%4], "friend@example.org").StatusCode {
			case http.StatusAccepted:
				accepted.Add(1)
			case http.StatusTooManyRequests:
				refused.Add(1)
			}
		})
	}
	group.Wait()
	if accepted.Load() != 24 || refused.Load() != 8 || w.count("SELECT count(*) FROM outbox") != 3 {
		t.Errorf("%d accepted, %d refused, %d mailed; want 24, 8 and 3", accepted.Load(), refused.Load(), w.count("SELECT count(*) FROM outbox"))
	}
}

// What was certainly not sent leaves no code and no unit of its recipient behind; what perhaps was, does.
func TestAFailingMailServerIsAnOutageAndNothingIsLostOrDoubled(t *testing.T) {
	for _, c := range []struct {
		name, step string
		action     smtpserver.Action
		status     int
		left       int // codes and units of the recipient
		detail     string
	}{
		{"busy", "mail", smtpserver.Action{Code: 421, Enhanced: [3]int{4, 3, 2}, Text: "friend@example.org"}, http.StatusServiceUnavailable, 0, "Nothing was sent"},
		{"refusing the text", "taken", smtpserver.Action{Code: 550, Enhanced: [3]int{5, 7, 1}, Text: "friend@example.org"}, http.StatusServiceUnavailable, 0, "Nothing was sent"},
		{"cut after the text", "taken", smtpserver.Action{Cut: true}, http.StatusServiceUnavailable, 1, "may have been sent or not"},
		{"no such mailbox", "rcpt", smtpserver.Action{Code: 550, Enhanced: [3]int{5, 1, 1}, Text: "friend@example.org"}, http.StatusUnprocessableEntity, 0, "no mail for this address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var well atomic.Bool
			server := smtpserver.Start(t, smtpserver.Config{Hook: func(step string) smtpserver.Action {
				if step == c.step && !well.Load() {
					return c.action
				}
				return smtpserver.Action{}
			}})
			w := newWorld(t, bySMTP(server))
			someone := w.signedUp("someone", "member")
			codes := w.count("SELECT count(*) FROM invite_codes")
			for i := range 4 { // more than a recipient may get
				got := w.invite(someone, "friend@example.org")
				if c.left > 0 && i == 3 { // three perhaps came
					expect(t, got, http.StatusAccepted)
					break
				}
				expect(t, got, c.status)
				if !strings.Contains(got.body, c.detail) || (c.status == http.StatusServiceUnavailable) != (got.Header.Get("Retry-After") == "60") {
					t.Errorf("%v %s", got.Header, got.body)
				}
				if n := w.count("SELECT count(*) FROM invite_codes") - codes; n != c.left*(i+1) {
					t.Errorf("%d codes more after %d invites", n, i+1)
				}
				if n := w.count("SELECT coalesce(sum(used), 0) FROM rate_limits WHERE policy = 'invite-recipient'"); n != c.left*(i+1) {
					t.Errorf("%d units stand after %d invites", n, i+1)
				}
			}
			if len(server.Messages()) != 0 {
				t.Fatal("the server took one")
			}
			if found := traces(w.log.String(), "friend@example.org", "someone"); len(found) > 0 || !strings.Contains(w.log.String(), "mail not sent") {
				t.Errorf("the log holds %v: %s", found, w.log)
			}
			well.Store(true)
			if c.left == 0 {
				expect(t, w.invite(someone, "friend@example.org"), http.StatusAccepted)
				if all := server.Messages(); len(all) != 1 {
					t.Errorf("%d messages once the server is well", len(all))
				}
			}
		})
	}
}

// Case E17.
func TestInvitesLeaveNoAddressInLimitsAndLog(t *testing.T) {
	w := newWorld(t)
	someone := w.signedUp("someone", "member")
	for range 7 {
		w.invite(someone, "Friend+Tag@example.org")
	}
	if !strings.Contains(w.log.String(), "its recipient has enough") {
		t.Fatal("nothing was held back")
	}
	text := w.dump(limiterTables...) + w.log.String()
	if found := traces(text, "Friend+Tag@example.org", "friend@example.org", "someone", "203.0.113.9"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	for code := range strings.Lines(w.dump("invite_codes")) {
		if _, code, found := strings.Cut(code, ".code="); found && strings.Contains(w.log.String(), strings.TrimSpace(code)) {
			t.Errorf("the log holds the code %s", code)
		}
	}
}

func TestTheTimersSweepTakesOldMessagesFromTheOutbox(t *testing.T) {
	w := newWorld(t, withTokens)
	expect(t, w.invite(w.signedUp("someone", "member"), "friend@example.org"), http.StatusAccepted)
	sweep := func() {
		t.Helper()
		got := w.send("203.0.113.9", "GET", "/api/limits?op=sweep", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) })
		expect(t, got, http.StatusOK)
		if got.json(t)["done"] != true {
			t.Errorf("the sweep answers %s", got.body)
		}
	}
	w.clock.At(24*time.Hour - time.Second)
	sweep()
	if n := w.count("SELECT count(*) FROM outbox"); n != 1 {
		t.Fatalf("%d messages after a day less a second", n)
	}
	w.clock.At(24 * time.Hour)
	sweep()
	if n := w.count("SELECT count(*) FROM outbox"); n != 0 {
		t.Errorf("%d messages after a day", n)
	}
}
