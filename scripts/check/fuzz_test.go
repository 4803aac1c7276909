package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/testkit/child"
	"github.com/weirlimits/weir/lib/testkit/repo"
)

// Row E11: a short run of the fuzzer agrees with everything that the application answers but for one status, which is
// changed on the way.
func TestTheFuzzerFindsAWrongStatusAndNothingElse(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	run := &check{ctx: t.Context(), root: root, tmp: t.TempDir()}
	if err := run.fuzzerRuns(); err != nil {
		child.SkipUnlessCI(t, "the fuzzer is not installed: go run ./scripts/check installs it")
	}
	a, err := run.fuzzedApplication()
	if err != nil {
		t.Fatal(err)
	}
	defer a.stop()
	target, err := url.Parse(a.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path == "/api/usernames" && r.StatusCode == http.StatusOK {
			r.StatusCode = http.StatusAccepted
		}
		return nil
	}
	server := httptest.NewServer(proxy)
	defer server.Close()
	err = run.fuzzAt(server.URL, a, "--max-examples", "10")
	if err == nil {
		t.Fatal("a status that is not described was not found")
	}
	for _, want := range []string{"Undocumented status code", "curl -X GET '" + server.URL + "/api/usernames?name=", "RATE_LIMIT_POLICIES='["} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it lacks %q:\n%v", want, err)
		}
	}
	if found := strings.Count(err.Error(), "Reproduce with:"); found != 1 {
		t.Errorf("%d findings, want one:\n%v", found, err)
	}
}

// Issue 10.22: with the real limits the fuzzer meets refusals, and they are as described; a refusal
// without Retry-After is found.
func TestTheFuzzerMeetsRealRefusals(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	run := &check{ctx: t.Context(), root: root, tmp: t.TempDir()}
	if err := run.fuzzerRuns(); err != nil {
		child.SkipUnlessCI(t, "the fuzzer is not installed: go run ./scripts/check installs it")
	}
	work := t.TempDir()
	if _, err := run.command(nil, "go", "build", "-o", filepath.Join(work, "dev"), "./scripts/dev"); err != nil {
		t.Fatal(err)
	}
	if err := run.fuzzLimited(&application{dir: work}); err != nil {
		t.Fatal(err)
	}
	a, err := run.startApplication(work, fuzzSettings)
	if err != nil {
		t.Fatal(err)
	}
	defer a.stop()
	a.limited, a.policies = true, []string{"usernames"}
	target, err := url.Parse(a.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.StatusCode == http.StatusTooManyRequests {
			r.Header.Del("Retry-After")
		}
		return nil
	}
	server := httptest.NewServer(proxy)
	defer server.Close()
	err = run.fuzzAt(server.URL, a, "--max-examples", limitedExamples, "--include-path-regex", "^/api/usernames$")
	if err == nil || !strings.Contains(err.Error(), "Retry-After") {
		t.Errorf("a refusal without Retry-After is not found: %v", err)
	}
	if err := a.refused("/api/sandbox-sql"); err == nil {
		t.Error("a route that was never asked counts as refused")
	}
}

func TestWithoutPythonOrWhatItInstallsTheFuzzerIsSkipped(t *testing.T) {
	run := &check{ctx: t.Context(), root: t.TempDir(), tmp: t.TempDir()}
	t.Setenv("PATH", t.TempDir())
	for name, step := range map[string]func() error{"installing": run.pythonTools, "fuzzing": run.fuzz} {
		err := step()
		if _, skipped := errors.AsType[skip](err); !skipped {
			t.Errorf("%s gives %v, want a skip", name, err)
		}
	}
}

// The pinned packages must install from any index, so no address is named, and each has the hashes of its files.
func TestEveryPythonPackageIsPinnedByItsHashes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "_tools", "requirements.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "://") || strings.Contains(string(text), "index-url") {
		t.Error("requirements.txt names an address")
	}
	packages := 0
	for _, entry := range strings.Split(strings.ReplaceAll(string(text), "\\\n", ""), "\n") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		packages++
		if !strings.Contains(entry, "==") || !strings.Contains(entry, "--hash=sha256:") {
			t.Errorf("not pinned: %s", entry)
		}
	}
	if packages < 10 {
		t.Errorf("only %d packages", packages)
	}
}
