package app_test

import (
	"crypto/sha1"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/breached"
)

// Row D9: a stolen password is taken nowhere, and what it was wanted for is still to be had with another one.
func TestAStolenPasswordIsRefusedAndCodeAndLinkStay(t *testing.T) {
	const stolen = "a stolen password"
	sum := fmt.Sprintf("%X", sha1.Sum([]byte(stolen)))
	var mu sync.Mutex
	var asked []string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		if r.URL.Path == "/range/"+sum[:5] {
			fmt.Fprintf(w, "%s:12\r\n%s:0", sum[5:], strings.Repeat("0", 35))
		}
	}))
	t.Cleanup(service.Close)
	w := newWorld(t, func(s *app.Settings) { s.Breached = &breached.HTTPConfig{URL: service.URL + "/range/"} })
	code := w.send("203.0.113.9", "POST", "/api/codes", "{}").field(t, "code")
	refused := func(got reply, field string) {
		t.Helper()
		expect(t, got, http.StatusUnprocessableEntity)
		if got.field(t, "field") != field || !strings.Contains(got.field(t, "detail"), "stolen") {
			t.Errorf("the refusal is %s", got.body)
		}
	}
	signUp := func(password string) reply {
		return w.send("203.0.113.9", "POST", "/api/sign-up", fmt.Sprintf(`{"code":%q,"username":"someone","password":%q,"email":"someone@example.org"}`, code, password))
	}
	for _, password := range []string{stolen, "password1234", "someonesomeone"} {
		refused(signUp(password), "password")
	}
	expect(t, signUp(rightPassword), http.StatusCreated)
	session, _ := w.browser("203.0.113.1", "someone")
	for _, password := range []string{stolen, "password1234", "someonesomeone"} {
		refused(w.send("203.0.113.1", "PATCH", "/api/sign-in", change(rightPassword, password), with(session)), "newPassword")
	}
	if n := w.used("failed-sign-ins"); n != 0 {
		t.Errorf("%d guesses count", n)
	}
	expect(t, w.askReset("203.0.113.1", "someone"), http.StatusAccepted)
	token := w.resetToken()
	for _, password := range []string{stolen, "password1234", "someonesomeone"} {
		refused(w.send("203.0.113.1", "PATCH", "/api/sign-in", byLink(token, password)), "newPassword")
	}
	expect(t, w.send("203.0.113.1", "PATCH", "/api/sign-in", byLink(token, newPassword)), http.StatusNoContent)
	if len(asked) != 5 { // not for what is known here
		t.Errorf("asked %q", asked)
	}
	for _, path := range asked {
		if len(path) != len("/range/")+5 {
			t.Errorf("asked %q", path)
		}
	}
	if strings.Contains(strings.ToUpper(w.log.String()), sum[:5]) || strings.Contains(w.log.String(), "WARN") {
		t.Errorf("the log says %s", w.log)
	}
}

// Row D9: nobody's sign-up waits for a service that is down, or fails with it.
func TestWithoutTheServiceOfStolenPasswordsTheyAreAccepted(t *testing.T) {
	service := httptest.NewServer(http.NotFoundHandler())
	where := service.URL + "/range/"
	service.Close()
	w := newWorld(t, func(s *app.Settings) { s.Breached = &breached.HTTPConfig{URL: where} })
	w.member("someone")
	log := w.log.String()
	if strings.Count(log, "not looked up among stolen ones") != 1 {
		t.Errorf("the log says %s", log)
	}
	sum := fmt.Sprintf("%X", sha1.Sum([]byte(rightPassword)))
	if found := traces(log, "someone", rightPassword, sum[:5], "127.0.0.1"); len(found) > 0 {
		t.Errorf("the log holds %v", found)
	}
}
