//go:build unix

package vercel

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/testkit/child"
	"github.com/weirlimits/weir/lib/testkit/lambda"
	"github.com/weirlimits/weir/lib/testkit/repo"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func root(t *testing.T) string {
	t.Helper()
	dir, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// sources lists the names of the functions in api/.
func sources(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root(t), "api", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range found {
		if !strings.HasSuffix(f, "_test.go") {
			names = append(names, strings.TrimSuffix(filepath.Base(f), ".go"))
		}
	}
	if len(names) == 0 {
		t.Fatal("no functions in api/")
	}
	return names
}

// tree lists the files below dir, relative to it.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, filepath.ToSlash(name))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func get(t *testing.T, url string) (status int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// Cases D01, D03, D18: each function comes out of the real builder, from exactly the files a deployment uploads, and answers
// from an empty folder.
func TestEveryFunctionIsBuiltAndAnswersFromAnEmptyFolder(t *testing.T) {
	out := Build(t)
	built, err := out.Functions()
	if err != nil {
		t.Fatal(err)
	}
	if want := sources(t); !slices.Equal(built, want) {
		t.Fatalf("built %q, want %q", built, want)
	}
	for _, name := range built {
		bin, err := out.Bootstrap(name)
		if err != nil {
			t.Error(err)
			continue
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.org/api/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := lambda.Start(t, bin, []string{"VERCEL=1"}).Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode < 200 || resp.Header.Get("Content-Type") == "" {
			t.Errorf("%s: status %d, fields %v", name, resp.StatusCode, resp.Header)
		}
	}
	if _, err := out.Bootstrap("no-such-function"); err == nil {
		t.Error("a function that isn't there has an executable")
	}
}

// Case D10: nothing but the page is published.
func TestTheStaticOutputHoldsNothingButThePublicFolder(t *testing.T) {
	out := Build(t)
	got, want := tree(t, filepath.Join(out.Dir, "static")), tree(t, filepath.Join(root(t), "public"))
	if !slices.Equal(got, want) {
		t.Errorf("static output %q, want %q", got, want)
	}
}

// Case D10, under vercel dev.
func TestDevServesThePageWithItsSecurityFieldsAndNoSourceFile(t *testing.T) {
	d := Dev(t, nil)
	status, header, _ := get(t, d.URL+"/")
	if status != http.StatusOK {
		t.Errorf("the page: status %d", status)
	}
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'",
		"X-Content-Type-Options":  "nosniff",
		"Referrer-Policy":         "no-referrer",
	} {
		if got := header.Get(name); !strings.Contains(got, want) {
			t.Errorf("the page: %s is %q, want %q in it", name, got, want)
		}
	}
	files, err := repo.Files(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasPrefix(name, "public/") || strings.HasPrefix(name, "api/") {
			continue
		}
		if status, _, _ := get(t, d.URL+"/"+name); status != http.StatusNotFound {
			t.Errorf("/%s: status %d, want 404", name, status)
		}
	}
	// Whatever a function answers, it is JSON; the server's own 404 is not.
	name := sources(t)[0]
	if status, header, body := get(t, d.URL+"/api/"+name); !strings.HasSuffix(header.Get("Content-Type"), "json") {
		t.Errorf("/api/%s: status %d, fields %v, body %q\n%s", name, status, header, body, d.Output())
	}
}

func TestSeveralDevServersRunAtOnceAndLeaveNoProcess(t *testing.T) {
	var dirs []string
	t.Run("running", func(t *testing.T) {
		a, b := Dev(t, nil), Dev(t, nil)
		dirs = append(dirs, a.Dir, b.Dir)
		// A request that is still being compiled when the servers end.
		path := "/api/" + sources(t)[0]
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, d := range []*DevServer{a, b} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if resp, err := http.DefaultClient.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
		}
		get(t, a.URL+path)
	})
	for _, dir := range dirs {
		if pids := below(dir); len(pids) != 0 {
			t.Errorf("processes %v still run in %s", pids, dir)
		}
	}
}

func TestProcessesAreFoundByTheirFolderAndKilled(t *testing.T) {
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		t.Skip("needs /proc")
	}
	dir := t.TempDir()
	inside := filepath.Join(dir, "project")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "30")
	cmd.Dir = inside
	p := child.Start(t, cmd)
	if pids := below(dir); !slices.Contains(pids, p.PID()) {
		t.Errorf("found %v, want %d among them", pids, p.PID())
	}
	killBelow(dir)
	<-p.Done()
	if pids := below(dir); len(pids) != 0 {
		t.Errorf("%v are left", pids)
	}
}
