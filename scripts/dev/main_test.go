package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// project makes a folder that is a project as far as dev looks at it.
func project(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"vercel.json":       `{"headers": [{"source": "/(.*)", "headers": [{"key": "X-Test", "value": "yes"}]}]}`,
		"public/index.html": "the page",
		"go.mod":            "module example.org/secret",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func start(t *testing.T, root string) *httptest.Server {
	t.Helper()
	api, end, err := functions(t.Context(), root, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end() })
	page, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler(api, page))
	t.Cleanup(server.Close)
	return server
}

func fetch(t *testing.T, method, url, body string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

func TestANewProjectServesThePageAndTheFunctions(t *testing.T) {
	for _, name := range []string{"TURSO_DATABASE_URL", "RATE_LIMIT_SECRET", "VERCEL", "DEMO"} {
		t.Setenv(name, "")
	}
	server := start(t, project(t))
	if response, body := fetch(t, "GET", server.URL+"/", ""); body != "the page" || response.Header.Get("X-Test") != "yes" {
		t.Errorf("the page answers %d with %v: %s", response.StatusCode, response.Header, body)
	}
	if response, body := fetch(t, "POST", server.URL+"/api/codes", "{}"); response.StatusCode != http.StatusCreated {
		t.Errorf("borrowing a code answers %d: %s", response.StatusCode, body)
	}
	if response, body := fetch(t, "POST", server.URL+"/api/demo-sign-in", `{"role":"admin"}`); response.StatusCode != http.StatusOK {
		t.Errorf("the demo answers %d: %s", response.StatusCode, body)
	}
	for _, path := range []string{"/go.mod", "/../go.mod", "/api/nothing", "/api/sign-in.go", "/api/sign-in/", "/api/%73ign-up/x"} { // A46, D10
		if response, body := fetch(t, "GET", server.URL+path, ""); response.StatusCode != http.StatusNotFound || strings.Contains(body, "secret") {
			t.Errorf("GET %s answers %d: %s", path, response.StatusCode, body)
		}
	}
	// A46: another spelling of a path that reaches the function meets the same counter.
	if response, _ := fetch(t, "POST", server.URL+"/api/%63odes?x=1", "{}"); response.Header.Get("Ratelimit-Remaining") != "10" {
		t.Errorf("the second borrowing leaves %q of 12", response.Header.Get("Ratelimit-Remaining"))
	}
}

// D16
func TestAWrongSettingIsAnswered503AndThePageStillServed(t *testing.T) {
	t.Setenv("RATE_LIMIT_SECRET", "   ")
	server := start(t, project(t))
	if response, body := fetch(t, "POST", server.URL+"/api/codes", "{}"); response.StatusCode != http.StatusServiceUnavailable || strings.Contains(body, "RATE_LIMIT_SECRET") {
		t.Errorf("borrowing a code answers %d: %s", response.StatusCode, body)
	}
	if response, _ := fetch(t, "GET", server.URL+"/", ""); response.StatusCode != http.StatusOK {
		t.Errorf("the page answers %d", response.StatusCode)
	}
}
