package main

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/testkit/hrana"
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

// environ sets the variables that dev reads to env's values, and those env doesn't have to nothing.
func environ(t *testing.T, env map[string]string) {
	t.Helper()
	for _, name := range []string{"TURSO_DATABASE_URL", "TURSO_DATABASE_URLS", "TURSO_DATABASE_URLS_NEXT", "TURSO_AUTH_TOKEN", "RATE_LIMIT_SECRET", "STORE_DEADLINE", "VERCEL", "DEMO"} {
		t.Setenv(name, env[name])
	}
}

func start(t *testing.T, root string) *httptest.Server { return startWith(t, root, root) }

// startWith serves the functions of one project and the page of another.
func startWith(t *testing.T, root, pageRoot string) *httptest.Server {
	t.Helper()
	api, end, err := functions(t.Context(), root, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end() })
	page, err := page(pageRoot)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler(api, page))
	t.Cleanup(server.Close)
	return server
}

// fetch names an address, as the platform does.
func fetch(t *testing.T, method, url, body string) (*http.Response, string) {
	t.Helper()
	return fetchFrom(t, "192.0.2.1", method, url, body)
}

func fetchFrom(t *testing.T, address, method, url, body string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Vercel-Forwarded-For", address)
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
	environ(t, nil)
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
	for _, path := range []string{"/go.mod", "/../go.mod", "/api/nothing", "/api/sign-in.go", "/api/sign-in/", "/api/%73ign-up/x"} { // cases A46, D10
		if response, body := fetch(t, "GET", server.URL+path, ""); response.StatusCode != http.StatusNotFound || strings.Contains(body, "secret") {
			t.Errorf("GET %s answers %d: %s", path, response.StatusCode, body)
		}
	}
	// Case A46: another spelling of a path that reaches the function meets the same counter.
	if response, _ := fetch(t, "POST", server.URL+"/api/%63odes?x=1", "{}"); response.Header.Get("Ratelimit-Remaining") != "10" {
		t.Errorf("the second borrowing leaves %q of 12", response.Header.Get("Ratelimit-Remaining"))
	}
}

func TestTheDemoIsOnUnlessItIsTurnedOffAlsoWithThePlatformsHeaders(t *testing.T) {
	for _, c := range []struct {
		demo, vercel string
		want         int
	}{
		{"", "", http.StatusOK},
		{"", "1", http.StatusOK},
		{"1", "1", http.StatusOK},
		{"0", "", http.StatusNotFound},
		{"0", "1", http.StatusNotFound},
	} {
		environ(t, map[string]string{"DEMO": c.demo, "VERCEL": c.vercel})
		server := start(t, project(t))
		if response, body := fetch(t, "POST", server.URL+"/api/demo-sign-in", `{"role":"member"}`); response.StatusCode != c.want {
			t.Errorf("DEMO=%s VERCEL=%s: the demo answers %d, want %d: %s", c.demo, c.vercel, response.StatusCode, c.want, body)
		}
	}
}

func TestWithThePlatformsHeadersTheFileIsUsedAndTheHeadersAreBelieved(t *testing.T) {
	environ(t, map[string]string{"VERCEL": "1"})
	root := project(t)
	server := start(t, root)
	remaining := func(address string) string {
		response, _ := fetchFrom(t, address, "POST", server.URL+"/api/codes", "{}")
		return response.Header.Get("Ratelimit-Remaining")
	}
	if first, other, again := remaining("192.0.2.1"), remaining("192.0.2.2"), remaining("192.0.2.1"); first != "11" || other != "11" || again != "10" {
		t.Errorf("%s, %s and %s left of 12, want 11, 11 and 10", first, other, again)
	}
	if _, err := os.Stat(filepath.Join(root, ".data", "weir.db")); err != nil {
		t.Error(err)
	}
}

// The shell of somebody who deploys holds production's URL.
func TestTheShellsDatabaseIsNotTouched(t *testing.T) {
	production := hrana.Start(t, hrana.Config{})
	environ(t, map[string]string{"TURSO_DATABASE_URL": production.URL, "TURSO_AUTH_TOKEN": "production's"})
	server := start(t, project(t))
	if response, body := fetch(t, "POST", server.URL+"/api/codes", "{}"); response.StatusCode != http.StatusCreated {
		t.Errorf("borrowing a code answers %d: %s", response.StatusCode, body)
	}
	if n := len(production.Requests()); n != 0 {
		t.Errorf("%d requests reached it", n)
	}
}

func TestDbNamesAnotherDatabase(t *testing.T) {
	environ(t, nil)
	server := hrana.Start(t, hrana.Config{})
	api, end, err := functions(t.Context(), project(t), server.URL, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	answer := httptest.NewRecorder()
	api("codes").ServeHTTP(answer, httptest.NewRequest("POST", "/api/codes", strings.NewReader("{}")))
	if answer.Code != http.StatusCreated || len(server.Requests()) == 0 {
		t.Errorf("borrowing a code answers %d after %d requests: %s", answer.Code, len(server.Requests()), answer.Body)
	}
	for _, db := range []string{"bogus", "file:relative.db", "libsql://db.example.org?authToken=s3cr3t"} {
		if err := validate(db); err == nil || !strings.Contains(err.Error(), "-db") || strings.Contains(err.Error(), "DATABASE_URL") || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: got %v, want an error that blames -db", db, err)
		}
	}
}

// A file is migrated and filled in longer than a millisecond.
func TestAShortStoreDeadlineDoesNotKeepItFromStarting(t *testing.T) {
	environ(t, map[string]string{"STORE_DEADLINE": "1ms"})
	server := start(t, project(t))
	if response, body := fetch(t, "GET", server.URL+"/", ""); response.StatusCode != http.StatusOK {
		t.Errorf("the page answers %d: %s", response.StatusCode, body)
	}
}

// Case D16.
func TestAWrongSettingIsAnswered503AndThePageStillServed(t *testing.T) {
	environ(t, map[string]string{"RATE_LIMIT_SECRET": "   "})
	server := start(t, project(t))
	if response, body := fetch(t, "POST", server.URL+"/api/codes", "{}"); response.StatusCode != http.StatusServiceUnavailable || strings.Contains(body, "RATE_LIMIT_SECRET") {
		t.Errorf("borrowing a code answers %d: %s", response.StatusCode, body)
	}
	if response, _ := fetch(t, "GET", server.URL+"/", ""); response.StatusCode != http.StatusOK {
		t.Errorf("the page answers %d", response.StatusCode)
	}
}

// Case D16.
func TestAWrongLocalSecretIsAnswered503AlsoWithThePlatformsHeaders(t *testing.T) {
	for _, vercel := range []string{"", "1"} {
		for _, text := range []string{"", "short", strings.Repeat(" ", 40)} {
			environ(t, map[string]string{"VERCEL": vercel})
			root := project(t)
			path := filepath.Join(root, ".data", "secret")
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			_, wrong := app.LoadSettings(environment(""), root)
			if wrong == nil || !strings.Contains(wrong.Error(), path) {
				t.Errorf("VERCEL=%s, %q: got %v, want an error that names the file", vercel, text, wrong)
			}
			if response, _ := fetch(t, "POST", start(t, root).URL+"/api/codes", "{}"); response.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("VERCEL=%s, %q: borrowing a code answers %d", vercel, text, response.StatusCode)
			}
		}
	}
}

// Row D6: a shell from which somebody deploys holds production's databases.
func TestDatabasesOfTheEnvironmentAreNotRead(t *testing.T) {
	environ(t, map[string]string{
		"TURSO_DATABASE_URL": "libsql://weir.example.org", "TURSO_DATABASE_URLS": "libsql://a.example.org", "TURSO_DATABASE_URLS_NEXT": "libsql://b.example.org",
	})
	root := project(t)
	settings, err := app.LoadSettings(environment(""), root)
	if err != nil || settings.DatabaseURL != app.LocalDatabaseURL(root) || settings.Shards != nil || settings.NextShards != nil {
		t.Errorf("got %q, %v and %v, %v", settings.DatabaseURL, settings.Shards, settings.NextShards, err)
	}
}
