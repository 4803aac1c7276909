package breached

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

func TestThePasswordsThatPeopleChooseMostAreCommon(t *testing.T) {
	for _, c := range []struct {
		password, name string
		want           bool
	}{
		{"password1234", "", true},
		{"PassWord1234", "", true},
		{"123456789012", "someone", true},
		{"qwertyuiop123", "someone", true},
		{"correcthorsebatterystaple", "someone", true},
		{"someonesomeone", "someone", true},
		{"SomeoneSomeoneSomeone", "someone", true},
		{"someone12345", "someone", true},
		{"someone2026someone", "someone", false},
		{"someone of them", "someone", false},
		{"123456789013579", "", false},
		{"correct horse battery", "someone", false},
		{"another battery, staple", "another", false},
		{"a long enough password", "a", false},
		{"", "", false},
	} {
		if got := IsCommon(c.password, c.name); got != c.want {
			t.Errorf("%q of %q: %t", c.password, c.name, got)
		}
	}
}

// What is shorter is refused by its length, and what isn't folded is never found.
func TestTheListHoldsWhatPassesTheOtherRules(t *testing.T) {
	words := strings.Fields(common)
	for _, word := range words {
		if n := utf8.RuneCountInString(word); n < 12 || n > 200 || strings.ToLower(word) != word {
			t.Errorf("%q", word)
		}
	}
	if len(words) < 100 {
		t.Errorf("%d words", len(words))
	}
}

// service answers with lines, and keeps what it is asked.
func service(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (*HTTP, *atomic.Pointer[http.Request]) {
	t.Helper()
	var asked atomic.Pointer[http.Request]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r)
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	where, err := ParseURL(server.URL + "/range")
	if err != nil {
		t.Fatal(err)
	}
	return NewHTTP(HTTPConfig{URL: where}), &asked
}

func digits(password string) string { return fmt.Sprintf("%X", sha1.Sum([]byte(password))) }

func TestAServiceLearnsFiveDigitsAndIsBelieved(t *testing.T) {
	const listed, padded, absent = "a stolen password", "a padded password", "a fresh password"
	h, asked := service(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%s:0\r\n%s:3\r\n%s:42", digits(padded)[5:], strings.Repeat("0", 35), strings.ToLower(digits(listed)[5:]))
	})
	for password, want := range map[string]bool{listed: true, padded: false, absent: false} {
		got, err := IsListed(t.Context(), h, password)
		if got != want || err != nil {
			t.Errorf("%q: %t, %v", password, got, err)
		}
		r := asked.Load()
		if r.Method != "GET" || r.URL.String() != "/range/"+digits(password)[:5] || r.Header.Get("Add-Padding") != "true" || r.Header.Get("User-Agent") == "" {
			t.Errorf("asked %s %s %v", r.Method, r.URL, r.Header)
		}
	}
}

func TestAnAnswerThatCannotBeReliedOnIsNone(t *testing.T) {
	line := strings.Repeat("A", 35) + ":1\r\n"
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"500":          func(w http.ResponseWriter, _ *http.Request) { http.Error(w, line, 500) },
		"429":          func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
		"404":          func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"a redirect":   func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"a page":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<!doctype html>") },
		"no count":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("A", 35)+":") },
		"a short line": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, line+"ABC:1") },
		"an odd count": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("A", 35)+":-1") },
		"a long line":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("A", 1<<17)) },
		"no end": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := fmt.Fprint(w, strings.Repeat(line, 1000)); err != nil {
					return
				}
			}
		},
		"half of it": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, line)
		},
		"nothing": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		h, asked := service(t, answer)
		listed, err := IsListed(t.Context(), h, "a password")
		if listed || !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %t, %v", name, listed, err)
		}
		if text := strings.ToUpper(fmt.Sprint(err)); strings.Contains(text, digits("a password")[:5]) || strings.Contains(text, "127.0.0.1") {
			t.Errorf("%s: the error tells the prefix or the URL: %v", name, err)
		}
		if path := asked.Load().URL.Path; path == "/elsewhere" {
			t.Error("a redirect is followed")
		}
	}
}

func TestAServiceThatIsSilentIsWaitedForUntilTheDeadline(t *testing.T) {
	end := make(chan struct{})
	h, _ := service(t, func(http.ResponseWriter, *http.Request) { <-end })
	t.Cleanup(func() { close(end) }) // before the server's own
	h.config.Deadline = 20 * time.Millisecond
	if _, err := IsListed(t.Context(), h, "a password"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := IsListed(ctx, h, "a password"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("got %v", err)
	}
}

func TestNobodyThereIsSaidWithoutTheURL(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	h := NewHTTP(HTTPConfig{URL: server.URL + "/"})
	if _, err := IsListed(t.Context(), h, "a password"); !errors.Is(err, ErrUnknown) || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("got %v", err)
	}
}

func TestAURLOfAServiceIsReadStrictly(t *testing.T) {
	for text, want := range map[string]string{
		"https://api.example.org/range/":      "https://api.example.org/range/",
		"https://api.example.org/range":       "https://api.example.org/range/",
		"https://api.example.org":             "https://api.example.org/",
		"http://127.0.0.1:8080/range":         "http://127.0.0.1:8080/range/",
		"http://api.example.org/range/":       "",
		"https://user@api.example.org/range/": "",
		"https://api.example.org/range/?x=1":  "",
		"https://api.example.org/range/#x":    "",
		"ftp://api.example.org/":              "",
		"api.example.org":                     "",
		"https://":                            "",
		"https://api.example.org/%zz":         "",
	} {
		got, err := ParseURL(text)
		if got != want || (want == "") != errors.Is(err, ErrURL) || err != nil && strings.Contains(err.Error(), "api.example") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
