package captcha

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const (
	someSecret = "s3cr3t-of-the-site"
	someKey    = "site-key-17"
	someToken  = "XXXX.TOKEN.XXXX"
)

// patient is a deadline that no test waits for.
const patient = time.Minute

// provider starts one that answers by handler, and gives a client of it.
func provider(t *testing.T, kind Provider, deadline time.Duration, handler http.HandlerFunc) *HTTP {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return NewHTTP(Config{Provider: kind, SiteKey: someKey, Secret: someSecret, URL: server.URL + "/siteverify?account=7", Deadline: deadline})
}

// holds fails a test whose error is another one, or holds what a log must not.
func holds(t *testing.T, what string, err, want error) {
	t.Helper()
	if (err == nil) != (want == nil) || !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
	if err == nil {
		return
	}
	for _, secret := range []string{someSecret, someToken, "account=7", "127.0.0.1", "planted"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error holds %s: %v", what, secret, err)
		}
	}
}

// Row D2.
func TestAProviderIsAskedOnceWithAFormOfTheSecretAndTheToken(t *testing.T) {
	for kind, form := range map[Provider]string{
		Turnstile: "response=" + someToken + "&secret=" + someSecret,
		HCaptcha:  "response=" + someToken + "&secret=" + someSecret + "&sitekey=" + someKey,
	} {
		var asked atomic.Int64
		v := provider(t, kind, patient, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if err := r.ParseForm(); err != nil || r.PostForm.Encode() != form {
				t.Errorf("%s: form %v, %v", kind, r.PostForm, err)
			}
			if r.Method != "POST" || r.URL.RequestURI() != "/siteverify?account=7" || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
				t.Errorf("%s: %s %s %v", kind, r.Method, r.URL, r.Header)
			}
			fmt.Fprint(w, `{"success": true, "challenge_ts": "2026-11-30T12:00:00Z", "hostname": "weir.example.org", "error-codes": []}`)
		})
		holds(t, string(kind), v.Verify(t.Context(), someToken), nil)
		if asked.Load() != 1 {
			t.Errorf("%s is asked %d times", kind, asked.Load())
		}
	}
	for kind, address := range addresses {
		if got, err := ParseURL(address); err != nil || got != address || NewHTTP(Config{Provider: kind}).config.URL != address {
			t.Errorf("%s: %s, %v", kind, got, err)
		}
	}
	if len(Providers()) != len(addresses) {
		t.Error("a provider is missing")
	}
}

func TestOnlyAPlainYesMakesATokenGood(t *testing.T) {
	no := func(codes string) string {
		return `{"success": false, "error-codes": [` + codes + `], "planted": "planted"}`
	}
	for _, c := range []struct {
		status int
		body   string
		want   error
	}{
		{200, `{"success": true}`, nil},
		{200, `{"success": true, "error-codes": ["invalid-input-secret"]}`, nil},
		{200, `{"success": false}`, ErrRefused},
		{200, no(`"timeout-or-duplicate"`), ErrRefused},
		{200, no(`"already-seen-response"`), ErrRefused},
		{200, no(`"sitekey-secret-mismatch"`), ErrRefused},
		{200, no(`"planted"`), ErrRefused},
		{400, no(`"invalid-input-response"`), ErrRefused},
		{400, `planted`, ErrRefused},
		{400, `{"success": true}`, ErrRefused},
		{413, ``, ErrRefused},
		{422, ``, ErrRefused},

		{200, no(`"invalid-input-secret"`), ErrUnavailable},
		{200, no(`"bad-request", "missing-input-secret"`), ErrUnavailable},
		{400, no(`"invalid-input-secret"`), ErrUnavailable},
		{200, no(`"internal-error"`), ErrUnavailable},
		{200, ``, ErrUnavailable},
		{200, `planted`, ErrUnavailable},
		{200, `{}`, ErrUnavailable},
		{200, `[]`, ErrUnavailable},
		{200, `{"success": null}`, ErrUnavailable},
		{200, `{"success": "true"}`, ErrUnavailable},
		{200, `{"success": 1}`, ErrUnavailable},
		{200, `{"Success": true}`, ErrUnavailable},
		{200, `{"success": false, "success": true}`, ErrUnavailable},
		{200, `{"success": true} {"success": true}`, ErrUnavailable},
		{200, `{"success": true`, ErrUnavailable},
		{200, no(`7`), ErrUnavailable},
		{200, `{"success": true, "padding": "` + strings.Repeat("x", maxAnswerBytes) + `"}`, ErrUnavailable},
		{202, `{"success": true}`, ErrUnavailable},
		{204, ``, ErrUnavailable},
		{401, ``, ErrUnavailable},
		{403, `planted`, ErrUnavailable},
		{404, ``, ErrUnavailable},
		{429, `{"success": true}`, ErrUnavailable},
		{500, `{"success": true}`, ErrUnavailable},
		{503, ``, ErrUnavailable},
	} {
		v := provider(t, Turnstile, patient, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			if c.status != http.StatusNoContent {
				fmt.Fprint(w, c.body)
			}
		})
		holds(t, fmt.Sprintf("%d %.60s", c.status, c.body), v.Verify(t.Context(), someToken), c.want)
	}
}

// A client must not be able to make the provider fail.
func TestWhatCanBeNoTokenIsRefusedWithoutAsking(t *testing.T) {
	var asked atomic.Int64
	v := provider(t, HCaptcha, patient, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"success": true}`)
	})
	for _, token := range []string{"", " ", "a b", "a\nb", "\x00", "é", "\x7f", strings.Repeat("x", MaxTokenBytes+1)} {
		holds(t, fmt.Sprintf("%.10q", token), v.Verify(t.Context(), token), ErrRefused)
	}
	if asked.Load() != 0 {
		t.Errorf("it was asked %d times", asked.Load())
	}
	holds(t, "the longest", v.Verify(t.Context(), strings.Repeat("x", MaxTokenBytes)), nil)
}

func TestARedirectIsNotFollowed(t *testing.T) {
	var reached atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Store(true)
		fmt.Fprint(w, `{"success": true}`)
	}))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		v := provider(t, Turnstile, patient, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		holds(t, fmt.Sprint(status), v.Verify(t.Context(), someToken), ErrUnavailable)
	}
	if reached.Load() {
		t.Error("it was followed")
	}
}

func TestAProviderThatHangsIsGivenUp(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	hang := func(http.ResponseWriter, *http.Request) { <-end }
	halfway := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, `{"success": true`)
		w.(http.Flusher).Flush()
		<-end
	}
	for name, handler := range map[string]http.HandlerFunc{"at once": hang, "halfway": halfway} {
		holds(t, name, provider(t, Turnstile, 200*time.Millisecond, handler).Verify(t.Context(), someToken), ErrUnavailable)
	}
	ctx, cancel := context.WithCancel(t.Context())
	v := provider(t, Turnstile, patient, func(http.ResponseWriter, *http.Request) { cancel(); <-end })
	holds(t, "cancelled", v.Verify(ctx, someToken), ErrUnavailable)

	gone := httptest.NewServer(nil)
	gone.Close()
	holds(t, "gone", NewHTTP(Config{Provider: Turnstile, Secret: someSecret, URL: gone.URL}).Verify(t.Context(), someToken), ErrUnavailable)
}

func TestAURLIsHTTPSOrThisMachines(t *testing.T) {
	for _, text := range []string{
		"https://captcha.example.org/siteverify", "https://captcha.example.org:8443/", "http://127.0.0.1:9000/x", "http://localhost/x", "http://[::1]/x",
	} {
		if got, err := ParseURL(text); err != nil || got != text {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "planted", "ftp://captcha.example.org/", "http://captcha.example.org/planted", "https://planted@captcha.example.org/", "https:///planted",
		"https://captcha.example.org/#planted", "https://captcha.example.org/%zz", "http://192.0.2.1/planted",
	} {
		if got, err := ParseURL(text); err == nil || strings.Contains(err.Error(), "planted") || got != "" {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}
