package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/testkit/child"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/vercel"
	"github.com/weirlimits/weir/scripts/internal/command"
)

// smoke runs the command in this process.
func smoke(t *testing.T, client *http.Client, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(t.Context(), args, client, &out, &problems)
	return code, out.String(), problems.String()
}

// failures are the names of the checks that failed.
func failures(stdout string) (names []string) {
	for line := range strings.Lines(stdout) {
		for _, check := range checks {
			if strings.HasPrefix(line, "FAILED  "+check.name) {
				names = append(names, check.name)
			}
		}
	}
	return names
}

// site is what a deployment serves, with both tokens set. Its clock stands, so that no window ends in a test.
func site(t *testing.T) http.Handler {
	t.Helper()
	settings := app.Settings{
		Secret: bytes.Repeat([]byte("x"), 32), StoreDeadline: time.Minute,
		LimitsToken: strings.Repeat("t", 32), CronSecret: strings.Repeat("c", 32),
	}
	now := time.Now().Truncate(time.Minute).Add(10 * time.Second)
	a, err := app.New(databases.File(t), settings, app.Config{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for _, route := range app.Routes() {
		mux.Handle("/api/"+route, a.Handler(route))
	}
	files := http.FileServer(http.Dir(filepath.Join("..", "..", "public")))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		files.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		mux.ServeHTTP(w, r)
	})
}

// serve serves a site at https://weir.example.org, and plain at http://weir.example.org, and gives a client that finds it.
func serve(t *testing.T, site, plain http.Handler) *http.Client {
	t.Helper()
	secure, open := httptest.NewTLSServer(site), httptest.NewServer(plain)
	t.Cleanup(secure.Close)
	t.Cleanup(open.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}, // the name in httptest's certificate
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			target := map[string]*httptest.Server{"weir.example.org:443": secure, "weir.example.org:80": open}[address]
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, target.Listener.Addr().String())
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

var toHTTPS = http.RedirectHandler("https://weir.example.org/", http.StatusPermanentRedirect)

func TestAHealthyDeploymentPassesEveryCheck(t *testing.T) {
	code, stdout, stderr := smoke(t, serve(t, site(t), toHTTPS), "https://weir.example.org/")
	if code != 0 || stderr != "" || strings.Count(stdout, "ok ") != len(checks) || strings.Count(stdout, "\n") != len(checks) {
		t.Errorf("got code %d, %q and\n%s", code, stderr, stdout)
	}
}

// edited runs a handler and lets change its answer.
func edited(site http.Handler, edit func(r *http.Request, w *httptest.ResponseRecorder)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorder := httptest.NewRecorder()
		site.ServeHTTP(recorder, r)
		edit(r, recorder)
		for name, values := range recorder.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(recorder.Code)
		w.Write(recorder.Body.Bytes())
	})
}

// believing takes its client's word for the address.
func believing(site http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if claimed := r.Header.Get("X-Forwarded-For"); claimed != "" {
			r.RemoteAddr = claimed + ":1"
		}
		site.ServeHTTP(w, r)
	})
}

// countingAll charges a username check for every method.
func countingAll(site http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			check := r.Clone(r.Context())
			check.Method = http.MethodGet
			site.ServeHTTP(httptest.NewRecorder(), check)
		}
		site.ServeHTTP(w, r)
	})
}

func TestEachFaultFailsTheCheckThatIsForIt(t *testing.T) {
	without := func(path, field string) func(http.Handler) http.Handler {
		return func(site http.Handler) http.Handler {
			return edited(site, func(r *http.Request, w *httptest.ResponseRecorder) {
				if r.URL.Path == path {
					w.Header().Del(field)
				}
			})
		}
	}
	answering := func(method, path string, status int) func(http.Handler) http.Handler {
		return func(site http.Handler) http.Handler {
			return edited(site, func(r *http.Request, w *httptest.ResponseRecorder) {
				if r.Method == method && r.URL.Path == path {
					w.Code = status
				}
			})
		}
	}
	for name, c := range map[string]struct {
		fault func(http.Handler) http.Handler
		check string
	}{
		"no CSP":               {without("/", "Content-Security-Policy"), "the page"},
		"no page":              {answering("GET", "/", 404), "the page"},
		"no description":       {answering("GET", "/openapi.json", 404), "openapi.json"},
		"a source":             {answering("GET", "/go.mod", 200), "no source"},
		"a migration":          {answering("GET", "/db/migrations/000001_rate_limits.up.sql", 200), "no source"},
		"a field is missing":   {without("/api/usernames", "Ratelimit-Policy"), "a username check"},
		"answers are stored":   {without("/api/usernames", "Cache-Control"), "a username check"},
		"addresses are forged": {believing, "each check"},
		"OPTIONS counts":       {countingAll, "a wrong method"},
		"no Allow":             {without("/api/usernames", "Allow"), "a wrong method"},
		"OPTIONS fails":        {answering("OPTIONS", "/api/usernames", 404), "a wrong method"},
		"malformed passes":     {answering("POST", "/api/sign-in", 200), "a malformed"},
		"no problem document":  {without("/api/sign-in", "Content-Type"), "a malformed"},
		"the service is open":  {answering("POST", "/api/limits", 200), "/api/limits"},
		"the sweep is open":    {answering("GET", "/api/limits", 200), "the sweep"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, _ := smoke(t, serve(t, c.fault(site(t)), toHTTPS), "https://weir.example.org")
			failed := failures(stdout)
			if code != command.Failed || len(failed) == 0 || !strings.HasPrefix(failed[0], c.check) {
				t.Errorf("got code %d and\n%s", code, stdout)
			}
			if strings.Count(stdout, "\n") != len(checks) {
				t.Errorf("%d lines, want one for each of %d checks", strings.Count(stdout, "\n"), len(checks))
			}
		})
	}
	t.Run("http stays http", func(t *testing.T) {
		if code, stdout, _ := smoke(t, serve(t, site(t), site(t)), "https://weir.example.org"); code != command.Failed || len(failures(stdout)) != 1 || !strings.Contains(stdout, "FAILED  plain http") {
			t.Errorf("got code %d and\n%s", code, stdout)
		}
	})
	t.Run("nobody answers", func(t *testing.T) {
		code, stdout, stderr := smoke(t, &http.Client{}, "http://"+child.FreeAddr(t))
		if code != command.Failed || len(failures(stdout)) != len(checks)-1 || stderr == "" { // but for https, which is a note
			t.Errorf("got code %d, %q and\n%s", code, stderr, stdout)
		}
	})
}

func TestWhatMayBeMeantSoIsANote(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(r *http.Request, w *httptest.ResponseRecorder)
		says string
	}{
		"no token": {func(r *http.Request, w *httptest.ResponseRecorder) {
			if r.URL.Path == "/api/limits" {
				w.Code = 503
				w.Body = bytes.NewBufferString(strings.Replace(w.Body.String(), "401", "503", 1))
			}
		}, "LIMITS_API_TOKEN"},
		"the clocks differ": {func(r *http.Request, w *httptest.ResponseRecorder) {
			at, _ := http.ParseTime(w.Header().Get("Date"))
			w.Header().Set("Date", at.Add(-20*time.Second).Format(http.TimeFormat))
		}, "20 s beside"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, _ := smoke(t, serve(t, edited(site(t), c.edit), toHTTPS), "https://weir.example.org")
			if code != 0 || !strings.Contains(stdout, "note ") || !strings.Contains(stdout, c.says) {
				t.Errorf("got code %d and\n%s", code, stdout)
			}
		})
	}
}

func TestWrongUsageHasACodeAndASentence(t *testing.T) {
	for _, args := range [][]string{nil, {"a", "b"}, {"weir.example.org"}, {"ftp://weir.example.org"}, {"https://weir.example.org/api"}, {"https://me@weir.example.org"}, {"https://weir.example.org?x=1"}, {"https://"}, {"-x"}} {
		if code, stdout, stderr := smoke(t, &http.Client{}, args...); code != command.WrongUsage || stdout != "" || !strings.Contains(stderr, "usage:") {
			t.Errorf("%q: got code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := smoke(t, &http.Client{}, "-h"); code != 0 || !strings.HasPrefix(stdout, "usage:") || stderr != "" {
		t.Errorf("-h: got code %d, %q, %q", code, stdout, stderr)
	}
}

// Case D10: what the commands of the README serve, by the command of the README.
func TestScriptsDevPasses(t *testing.T) {
	program := filepath.Join(t.TempDir(), "dev")
	if out, err := exec.Command("go", "build", "-o", program, "../dev").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	address := child.FreeAddr(t)
	cmd := exec.Command(program, "-listen", address, "-db", "file:"+filepath.Join(t.TempDir(), "weir.db"))
	cmd.Env = []string{"RATE_LIMIT_SECRET=" + strings.Repeat("x", 32), "CRON_SECRET=" + strings.Repeat("c", 32)}
	process := child.Start(t, cmd)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := process.Await(ctx, func(ctx context.Context) error {
		var dialer net.Dialer
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			connection.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := smoke(t, &http.Client{}, "http://"+address)
	if code != 0 || stderr != "" || strings.Count(stdout, "note ") != 2 {
		t.Errorf("got code %d, %q and\n%s\n%s", code, stderr, stdout, process.Output())
	}
}

// Case D10: the functions and the page as vercel dev serves them.
func TestVercelDevPasses(t *testing.T) {
	server := vercel.Dev(t, []string{"CRON_SECRET=" + strings.Repeat("c", 32)})
	code, stdout, stderr := smoke(t, &http.Client{}, server.URL)
	if code != 0 || stderr != "" {
		t.Errorf("got code %d, %q and\n%s\n%s", code, stderr, stdout, server.Output())
	}
}
