package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	secret = []byte("a secret of tests, 32 bytes long")
	now    = time.Unix(1_772_366_400, 999)
)

// to makes a Webhook that posts to a handler on this machine.
func to(t *testing.T, path string, deadline time.Duration, handler http.HandlerFunc) *Webhook {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	u, err := ParseURL(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{URL: u, Secret: secret, Deadline: deadline, Now: func() time.Time { return now }})
}

func TestAMessageArrivesWholeAndSigned(t *testing.T) {
	const body = `{"key":"é"}`
	var got *http.Request
	var read []byte
	hook := to(t, "/hook?token=1", 0, func(w http.ResponseWriter, r *http.Request) {
		got = r
		read, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
	})
	if err := hook.Post(t.Context(), "alert-7", []byte(body)); err != nil {
		t.Fatal(err)
	}
	if got.Method != "POST" || got.URL.String() != "/hook?token=1" || string(read) != body || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("arrived is %s %s %v %s", got.Method, got.URL, got.Header, read)
	}
	if !got.Close {
		t.Error("the connection is kept")
	}
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "alert-7.1772366400.%s", body)
	for name, want := range map[string]string{
		"Webhook-Id": "alert-7", "Webhook-Timestamp": "1772366400", "Webhook-Signature": "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)),
	} {
		if value := got.Header.Values(name); len(value) != 1 || value[0] != want {
			t.Errorf("%s is %q, want %q", name, value, want)
		}
	}
}

func TestWithoutASecretThereIsNoSignature(t *testing.T) {
	var got http.Header
	hook := to(t, "", 0, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	if err := New(Config{URL: hook.config.URL}).Post(t.Context(), "x", nil); err != nil {
		t.Fatal(err)
	}
	if got.Get("Webhook-Id") != "x" || got["Webhook-Signature"] != nil {
		t.Errorf("arrived is %v", got)
	}
}

// The example of the specification's own libraries, with the secret that they write as whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw.
func TestASignatureIsThatOfStandardWebhooks(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	hook := &Webhook{config: Config{Secret: key}}
	if got := hook.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("the signature is %s", got)
	}
}

func TestOnlyAnAnswerOfSuccessTakesAMessage(t *testing.T) {
	for _, status := range []int{200, 202, 204, 299} {
		hook := to(t, "", 0, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if err := hook.Post(t.Context(), "x", nil); err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
	for _, status := range []int{300, 304, 400, 410, 429, 500, 503} {
		var asked atomic.Int64
		hook := to(t, "", 0, func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); w.WriteHeader(status) })
		err := hook.Post(t.Context(), "x", nil)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) || asked.Load() != 1 {
			t.Errorf("%d: %v, asked %d times", status, err, asked.Load())
		}
	}
}

// Issue 10.21.
func TestARetryAfterOfABusyReceiverIsRead(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 300_000_000, time.UTC)
	for _, c := range []struct {
		status int
		said   string
		want   time.Duration
	}{
		{429, "300", 5 * time.Minute},
		{503, "1", time.Second},
		{503, " 90 ", 90 * time.Second},
		{429, now.Add(5 * time.Minute).Format(http.TimeFormat), 5 * time.Minute},
		{503, "Sunday, 01-Mar-26 12:10:00 GMT", 10 * time.Minute},
		{429, "86401", MaxRetryAfter},
		{429, "99999999999999999999999", MaxRetryAfter},
		{429, now.AddDate(1, 0, 0).Format(http.TimeFormat), MaxRetryAfter},
		{429, "", 0},
		{429, "0", 0},
		{429, "-5", 0},
		{429, "1.5", 0},
		{429, "soon", 0},
		{429, now.Add(-time.Hour).Format(http.TimeFormat), 0},
		{500, "300", 0},
		{404, "300", 0},
		{200, "300", -1},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", c.said)
			w.WriteHeader(c.status)
		}))
		u, err := ParseURL(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		err = New(Config{URL: u, Deadline: time.Minute, Now: func() time.Time { return now }}).Post(t.Context(), "id", []byte("{}"))
		server.Close()
		busy, isBusy := errors.AsType[BusyError](err)
		if (err == nil) != (c.want < 0) || isBusy != (c.want > 0) || isBusy && busy.RetryAfter() != c.want {
			t.Errorf("%d %q: %v; want %v", c.status, c.said, err, c.want)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		hook := to(t, "", 0, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) })
		if err := hook.Post(t.Context(), "x", []byte("{}")); err == nil || !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("%d: %v", status, err)
		}
	}
	if elsewhere.Load() != 0 {
		t.Error("the message went elsewhere")
	}
}

func TestASilentReceiverIsGivenUpInTime(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"nothing at all": func(http.ResponseWriter) {},
		"an information": func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) },
	} {
		hook := to(t, "", 100*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
			answer(w)
			<-r.Context().Done() // the sender has gone
		})
		if err := hook.Post(t.Context(), "x", nil); err == nil || !strings.Contains(err.Error(), "in time") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	hook := to(t, "", 0, func(http.ResponseWriter, *http.Request) { t.Error("it was sent without time") })
	if err := hook.Post(ended, "x", nil); err == nil {
		t.Error("no error without time")
	}
}

// A body without an end is not read, so that it neither takes memory nor time.
func TestAnEndlessAnswerIsNotRead(t *testing.T) {
	ended := make(chan struct{})
	hook := to(t, "", time.Minute, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	if err := hook.Post(t.Context(), "x", nil); err != nil {
		t.Fatal(err)
	}
	<-ended // the connection is closed, not kept

	hook = to(t, "", time.Minute, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 1<<20))
	})
	if err := hook.Post(t.Context(), "x", nil); err == nil {
		t.Error("a header of a megabyte is taken")
	}
}

func TestAnErrorTellsNothingOfTheURL(t *testing.T) {
	server := httptest.NewServer(nil)
	address := server.Listener.Addr().String()
	server.Close()
	nonsense := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Write([]byte("what?\r\n\r\n"))
			conn.Close()
		}
	}))
	defer nonsense.Close()
	for _, text := range []string{"http://" + address + "/path-token?q=1", "https://hooks.invalid/path-token", nonsense.URL + "/path-token"} {
		u, err := ParseURL(text)
		if err != nil {
			t.Fatal(err)
		}
		err = New(Config{URL: u, Secret: secret}).Post(t.Context(), "x", nil)
		if err == nil {
			t.Fatalf("%s: no error", text)
		}
		for _, part := range []string{"token", "127.0.0.1", "hooks", string(secret)} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%q tells %q", err, part)
			}
		}
	}
}

func TestAURLIsOfAnotherMachineOnlyWithTLS(t *testing.T) {
	for _, text := range []string{
		"https://hooks.example.org", "https://hooks.example.org:8443/a/b?c=d", "https://192.0.2.1/x", "https://[2001:db8::1]/x",
		"http://127.0.0.1:9000/x", "http://localhost/x", "http://[::1]:9000",
	} {
		if u, err := ParseURL(text); err != nil || u.String() != text {
			t.Errorf("%s: %v, %v", text, u, err)
		}
	}
	for _, text := range []string{
		"", "hooks.example.org", "//hooks.example.org", "https://", "https:///x", "https:hooks.example.org", "http://hooks.example.org/secret",
		"http://127.0.0.1.example.org", "http://192.0.2.1", "ftp://127.0.0.1", "https://secret@hooks.example.org", "https://a:secret@hooks.example.org",
		"https://hooks.example.org/#secret", "https://hooks.example.org/#", "https://hooks.example.org:", "https://hooks.example.org:0", "https://hooks.example.org:99999",
		"https://hooks.example.org/\x7fsecret", "file:///secret",
	} {
		if u, err := ParseURL(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", text, u, err)
		}
	}
}

func TestAWebhookWithoutURLOrWithAShortSecretIsAMistake(t *testing.T) {
	for _, config := range []Config{{Secret: secret}, {URL: &url.URL{}, Secret: secret[:31]}, {URL: &url.URL{}, Secret: []byte{}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v is taken", config)
				}
			}()
			New(config)
		}()
	}
}
