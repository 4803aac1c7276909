//go:build unix

package lambda_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirlimits/weir/lib/testkit/lambda"
)

// hello builds the function in testdata.
func hello(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "bootstrap")
	if out, err := exec.Command("go", "build", "-o", bin, "./testdata/hello").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return bin
}

func request(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestARequestReachesTheFunctionWholeAndItsAnswerComesBack(t *testing.T) {
	p := lambda.Start(t, hello(t), []string{"GREETING=hi"})
	for range 2 { // the second time the process is warm
		req := request(t, http.MethodPut, "https://example.org/api/hello?a=1&b=2", "\x00\xff")
		req.Header.Set("X-Real-IP", "192.0.2.7")
		req.Header.Add("X-Agent", "one")
		req.Header.Add("X-Agent", "two")
		resp, err := p.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`PUT /api/hello query=a=1&b=2 host=example.org remote=192.0.2.7 agents=["one" "two"] `+
			`body=00ff greeting=hi files=0 pid=%d`, p.PID())
		if got := read(t, resp); resp.StatusCode != http.StatusTeapot || got != want {
			t.Errorf("status %d and\n%s, want 418 and\n%s", resp.StatusCode, got, want)
		}
		// Case D12: several cookies stay several lines.
		if got := resp.Header.Values("Set-Cookie"); !slices.Equal(got, []string{"a=1", "b=2"}) {
			t.Errorf("cookies %q", got)
		}
	}
}

func TestTwentyProcessesAnswerAtOnce(t *testing.T) {
	bin := hello(t)
	var mu sync.Mutex
	pids := make(map[int]bool)
	var running sync.WaitGroup
	for range 20 {
		p := lambda.Start(t, bin, nil)
		running.Go(func() {
			resp, err := p.Do(request(t, http.MethodGet, "/api/hello", ""))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			pids[p.PID()] = true
		})
	}
	running.Wait()
	if len(pids) != 20 {
		t.Errorf("%d processes answered, want 20", len(pids))
	}
}

func TestOneProcessTakesOneRequestAtATime(t *testing.T) {
	p := lambda.Start(t, hello(t), nil)
	var running sync.WaitGroup
	for i := range 10 {
		running.Go(func() {
			resp, err := p.Do(request(t, http.MethodPost, "/api/hello", string(rune('a'+i))))
			if err != nil {
				t.Error(err)
				return
			}
			if got, want := read(t, resp), fmt.Sprintf("body=%x ", 'a'+i); !strings.Contains(got, want) {
				t.Errorf("got the answer %q, want one with %q", got, want)
			}
		})
	}
	running.Wait()
}

func TestAProcessThatEndsIsReportedWithItsLog(t *testing.T) {
	p := lambda.Start(t, hello(t), nil)
	for range 2 {
		_, err := p.Do(request(t, http.MethodGet, "/exit", ""))
		if err == nil || !strings.Contains(err.Error(), "leaving on request") {
			t.Errorf("error %v, want one with the log", err)
		}
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	p := lambda.Start(t, hello(t), nil)
	if _, err := p.Do(request(t, http.MethodGet, "/api/hello", "")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Do(request(t, http.MethodGet, "/hang", "").WithContext(ctx)); err == nil {
		t.Error("no error")
	}
}
