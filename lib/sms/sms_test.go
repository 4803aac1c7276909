package sms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

const (
	somePhone = "+12025550123" // set aside for fiction
	someToken = "a-token-of-tests"
)

var hello = Message{To: somePhone, Text: "123456 is your code."}

// patient is a deadline that no test waits for.
const patient = time.Minute

// gateway starts one that answers by handler, and gives a client of it.
func gateway(t *testing.T, deadline time.Duration, handler http.HandlerFunc) *HTTP {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return NewHTTP(HTTPConfig{URL: server.URL + "/send?account=7", Token: someToken, Deadline: deadline})
}

// tellsNothing fails a test whose error holds what a log must not.
func tellsNothing(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, secret := range []string{"202555", "123456", someToken, "account=7", "127.0.0.1"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error holds %s: %v", secret, err)
		}
	}
}

func TestAGatewayIsAskedOnceWithTheMessageAndTheToken(t *testing.T) {
	var asked atomic.Int64
	g := gateway(t, patient, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, err := io.ReadAll(r.Body)
		var fields map[string]string
		if err != nil || json.Unmarshal(body, &fields) != nil || len(fields) != 2 || fields["to"] != hello.To || fields["text"] != hello.Text {
			t.Errorf("body %s, %v", body, err)
		}
		if r.Method != "POST" || r.URL.RequestURI() != "/send?account=7" || r.Header.Get("Authorization") != "Bearer "+someToken ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	if err := g.Send(t.Context(), hello); err != nil || asked.Load() != 1 {
		t.Errorf("%v after %d requests", err, asked.Load())
	}
}

// What is certain is told as certain: after ErrNotSent the caller may try again, after ErrUnknown it could come twice.
func TestTheStatusSaysWhatBecameOfAMessage(t *testing.T) {
	for status, want := range map[int]error{
		200: nil, 201: nil, 202: nil, 204: nil, 299: nil,
		422: ErrRefused,
		300: ErrNotSent, 304: ErrNotSent, 400: ErrNotSent, 401: ErrNotSent, 403: ErrNotSent, 404: ErrNotSent, 429: ErrNotSent, 503: ErrNotSent,
		500: ErrUnknown, 502: ErrUnknown, 504: ErrUnknown, 599: ErrUnknown,
	} {
		g := gateway(t, patient, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			if status != 204 && status != 304 {
				fmt.Fprintf(w, "no message to %s", somePhone)
			}
		})
		err := g.Send(t.Context(), hello)
		if !errors.Is(err, want) || (err == nil) != (want == nil) || want != ErrRefused && errors.Is(err, ErrRefused) || errors.Is(err, ErrUnknown) != (want == ErrUnknown) {
			t.Errorf("%d: %v, want %v", status, err, want)
		}
		tellsNothing(t, err)
	}
	if !errors.Is(ErrRefused, ErrNotSent) || !errors.Is(ErrStore, ErrUnknown) {
		t.Error("classes")
	}
}

// A redirect could lead the number, the code and the token anywhere.
func TestARedirectIsNotFollowed(t *testing.T) {
	var reached atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		g := gateway(t, patient, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		err := g.Send(t.Context(), hello)
		if !errors.Is(err, ErrNotSent) || errors.Is(err, ErrRefused) {
			t.Errorf("%d: %v", status, err)
		}
		tellsNothing(t, err)
	}
	if reached.Load() {
		t.Error("it was followed")
	}
}

func TestAGatewayThatHangsIsGivenUpAndNobodyKnowsWhatItDid(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	asked := make(chan struct{}, 1)
	hang := func(w http.ResponseWriter, r *http.Request) { asked <- struct{}{}; <-end }
	err := gateway(t, 50*time.Millisecond, hang).Send(t.Context(), hello)
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("%v", err)
	}
	tellsNothing(t, err)
	<-asked

	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	err = gateway(t, patient, hang).Send(ctx, hello)
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("%v", err)
	}
}

func TestAGatewayThatIsNotThereSentNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	err = NewHTTP(HTTPConfig{URL: "http://" + address, Deadline: patient}).Send(t.Context(), hello)
	if !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
	tellsNothing(t, err)

	// A certificate that nobody vouches for: the request was not made.
	var asked atomic.Bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	server.Config.ErrorLog = nil
	server.StartTLS()
	defer server.Close()
	err = NewHTTP(HTTPConfig{URL: server.URL, Token: someToken, Deadline: patient}).Send(t.Context(), hello)
	if !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), "certificate") || asked.Load() {
		t.Errorf("%v", err)
	}
}

// raw starts a gateway that writes an answer of its own making.
func raw(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn.Read(make([]byte, 4096))
				answer(conn)
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

func TestAnAnswerIsReadUpToItsStatusAndNoFurther(t *testing.T) {
	stopped := make(chan error, 1)
	endless := func(conn net.Conn) {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
		var err error
		for err == nil {
			_, err = conn.Write(make([]byte, 64<<10))
		}
		stopped <- err
	}
	if err := NewHTTP(HTTPConfig{URL: raw(t, endless), Deadline: patient}).Send(t.Context(), hello); err != nil {
		t.Errorf("an endless body: %v", err)
	}
	<-stopped
	for name, answer := range map[string]string{
		"endless fields": "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 32<<10) + "\r\n\r\n",
		"nonsense":       "220 mail.example.org ESMTP " + somePhone + "\r\n",
		"half a line":    "HTTP/1.1 20",
		"nothing":        "",
	} {
		err := NewHTTP(HTTPConfig{URL: raw(t, func(conn net.Conn) { io.WriteString(conn, answer) }), Deadline: patient}).Send(t.Context(), hello)
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v, want ErrUnknown", name, err)
		}
		tellsNothing(t, err)
	}
}

func TestAMessageThatIsNoneReachesNoGateway(t *testing.T) {
	g := gateway(t, patient, func(http.ResponseWriter, *http.Request) { t.Error("asked") })
	opened := databases.File(t)
	for _, m := range []Message{
		{}, {To: somePhone}, {Text: "hello"}, {To: "12025550123", Text: "hello"}, {To: "+1 202 555 0123", Text: "hello"}, {To: somePhone + "\n", Text: "hello"},
		{To: somePhone, Text: " "}, {To: somePhone, Text: "a\x00"}, {To: somePhone, Text: "a\r\nb"}, {To: somePhone, Text: "\xff"},
		{To: somePhone, Text: strings.Repeat("x", maxTextBytes+1)},
	} {
		for _, sender := range []Gateway{g, NewOutbox(opened.DB, OutboxConfig{})} {
			err := sender.Send(t.Context(), m)
			if !errors.Is(err, ErrMessage) || errors.Is(err, ErrUnknown) {
				t.Errorf("%+v: %v", m, err)
			}
			tellsNothing(t, err)
		}
	}
}

func TestAGatewaysURLIsHTTPSOrThisMachine(t *testing.T) {
	for _, text := range []string{
		"https://sms.example.org", "https://sms.example.org:8443/v1/send?x=1", "http://127.0.0.1:8080/send", "http://localhost/", "http://[::1]:80/",
	} {
		if got, err := ParseURL(text); got != text || err != nil {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "s3cr3t", "http://sms.example.org/s3cr3t", "ftp://s3cr3t.example.org", "https://", "https:///s3cr3t", "https://me:s3cr3t@sms.example.org",
		"https://sms.example.org/#s3cr3t", "https://sms.example.org/%zzs3cr3t", "//s3cr3t.example.org", "http://10.0.0.1/s3cr3t", "http://localhost.example.org/s3cr3t",
	} {
		got, err := ParseURL(text)
		if got != "" || !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestWithoutAGatewayAMessageIsInTheOutboxForADay(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
		clock := func() time.Time { return now }
		if err := NewOutbox(opened.DB, OutboxConfig{Now: clock}).Send(t.Context(), hello); err != nil {
			t.Fatal(err)
		}
		var got Message
		var subject string
		var micros int64
		read := `SELECT recipient, subject, body, created_micros FROM outbox`
		if err := opened.QueryRowContext(t.Context(), read).Scan(&got.To, &subject, &got.Text, &micros); err != nil || got != hello || subject != "SMS" || micros != now.UnixMicro() {
			t.Errorf("got %+v, %s at %d, %v", got, subject, micros, err)
		}
		box := mail.NewOutbox(opened.DB, mail.OutboxConfig{Now: clock})
		now = now.Add(mail.Keep - time.Microsecond)
		if n, _, err := box.Sweep(t.Context()); n != 0 || err != nil {
			t.Errorf("a sweep before a day is over takes %d, %v", n, err)
		}
		now = now.Add(time.Microsecond)
		if n, _, err := box.Sweep(t.Context()); n != 1 || err != nil {
			t.Errorf("a sweep after a day takes %d, %v", n, err)
		}
	})
}

func TestAnOutboxWhoseDatabaseFailsIsUnknown(t *testing.T) {
	opened := databases.File(t)
	opened.Close()
	err := NewOutbox(opened.DB, OutboxConfig{}).Send(t.Context(), hello)
	if !errors.Is(err, ErrStore) {
		t.Errorf("%v", err)
	}
	tellsNothing(t, err)
}
