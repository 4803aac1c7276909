package ratehttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// proxied serves a reverse proxy behind a limit of three a minute, named "api", in front of an
// upstream.
func proxied(t *testing.T, http2 bool, upstream http.HandlerFunc) *httptest.Server {
	t.Helper()
	behind := httptest.NewServer(upstream)
	t.Cleanup(behind.Close)
	target, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1}
	front := httptest.NewUnstartedServer(ratehttp.Limit(memory(t), ratehttp.PerAddress(perAddress), ratehttp.Config{})(proxy))
	if front.EnableHTTP2 = http2; http2 {
		front.StartTLS()
	} else {
		front.Start()
	}
	t.Cleanup(front.Close)
	return front
}

const (
	oursFirst = `"api";q=3;w=60`
	leftFirst = `"api";r=2;t=60`
)

// Issue 10, point 9; case A28: behind a reverse proxy each field comes once, with the tightest
// figures, over HTTP/1 and HTTP/2.
func TestBehindAReverseProxyEachFieldComesOnce(t *testing.T) {
	for _, test := range []struct {
		name     string
		upstream http.Header
		want     string // policy | current | limit | remaining | reset
	}{
		{"no fields", http.Header{}, oursFirst + ` | ` + leftFirst + ` | 3 | 2 | 60`},
		{"looser", http.Header{
			"Ratelimit-Policy": {`"up";q=5000;w=3600`}, "Ratelimit": {`"up";r=4999;t=3600`},
			"Ratelimit-Limit": {"5000"}, "Ratelimit-Remaining": {"4999"}, "Ratelimit-Reset": {"3600"},
		}, oursFirst + `, "up";q=5000;w=3600 | ` + leftFirst + `, "up";r=4999;t=3600 | 3 | 2 | 60`},
		{"tighter", http.Header{
			"Ratelimit-Policy": {`"up";q=5;w=3600;pk=:YQ==:`}, "Ratelimit": {`"up";r=1;t=30;pk=:YQ==:`},
			"Ratelimit-Limit": {"5"}, "Ratelimit-Remaining": {"1"}, "Ratelimit-Reset": {"30"},
		}, oursFirst + `, "up";q=5;w=3600;pk=:YQ==: | ` + leftFirst + `, "up";r=1;t=30;pk=:YQ==: | 5 | 1 | 30`},
		{"equally tight, longer", http.Header{"Ratelimit-Limit": {"9"}, "Ratelimit-Remaining": {"2"}, "Ratelimit-Reset": {"61"}},
			oursFirst + ` | ` + leftFirst + ` | 9 | 2 | 61`},
		{"our name, tighter", http.Header{"Ratelimit-Policy": {`"api";q=2;w=10`}, "Ratelimit": {`"api";r=0;t=10`}},
			`"api";q=2;w=10 | "api";r=0;t=10 | 3 | 2 | 60`},
		{"our name, looser", http.Header{"Ratelimit-Policy": {`"api";q=2000;w=10`}, "Ratelimit": {`"api";r=1000;t=10`}},
			oursFirst + ` | ` + leftFirst + ` | 3 | 2 | 60`},
		{"our name as a token", http.Header{"Ratelimit-Policy": {`api;q=2;w=10`}, "Ratelimit": {`api;r=0;t=10`}},
			`api;q=2;w=10 | api;r=0;t=10 | 3 | 2 | 60`},
		{"our name, no figures", http.Header{"Ratelimit-Policy": {`"api";q=2;w=10`}, "Ratelimit": {`"api"`}},
			oursFirst + ` | ` + leftFirst + ` | 3 | 2 | 60`},
		{"twice already, in lines", http.Header{
			"Ratelimit-Policy": {`"a";q=9;w=1`, `"b";q=8;w=1, "a";q=7;w=1`}, "Ratelimit": {`"a";r=5;t=1`, `"b";r=4;t=1 , "a";r=3;t=1`},
			"Ratelimit-Limit": {"5000", "9"}, "Ratelimit-Remaining": {"4999", "1"}, "Ratelimit-Reset": {"3600", "1"},
		}, oursFirst + `, "a";q=7;w=1, "b";q=8;w=1 | ` + leftFirst + `, "a";r=3;t=1, "b";r=4;t=1 | 9 | 1 | 1`},
		{"twice already, in one line", http.Header{"Ratelimit-Limit": {"5000, 2"}, "Ratelimit-Remaining": {"4999,0"}, "Ratelimit-Reset": {"3600 , 7"}},
			oursFirst + ` | ` + leftFirst + ` | 2 | 0 | 7`},
		{"an older draft's quotas", http.Header{"Ratelimit-Limit": {"2, 2;w=1, 50;w=60"}, "Ratelimit-Remaining": {"1"}, "Ratelimit-Reset": {"1"}},
			oursFirst + ` | ` + leftFirst + ` | 2 | 1 | 1`},
		{"an older draft's dictionary", http.Header{"Ratelimit": {`limit=10, remaining=1, reset=7`}}, oursFirst + ` | ` + leftFirst + ` | 3 | 2 | 60`},
		{"not all three", http.Header{"Ratelimit-Limit": {"1"}, "Ratelimit-Remaining": {"0"}}, oursFirst + ` | ` + leftFirst + ` | 3 | 2 | 60`},
		{"nonsense", http.Header{
			"Ratelimit-Policy": {`"up`, `"ok";q=1;w=1`, `"trailing";q=1,`, `("inner");q=1`}, "Ratelimit": {`"up";R=1`, `"ok";r=1;t=1`, `;`, `1;r=0`},
			"Ratelimit-Limit": {"many"}, "Ratelimit-Remaining": {"-1"}, "Ratelimit-Reset": {"1.5"},
		}, oursFirst + `, "ok";q=1;w=1 | ` + leftFirst + `, "ok";r=1;t=1 | 3 | 2 | 60`},
		{"a name with everything", http.Header{"Ratelimit": {`"a\"b, \\c";r=1;t=2;d=-1.5;x="y;, z";b=?0;at=@1;k*=tok/en:x`}},
			oursFirst + ` | ` + leftFirst + `, "a\"b, \\c";r=1;t=2;d=-1.5;x="y;, z";b=?0;at=@1;k*=tok/en:x | 3 | 2 | 60`},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprint(test.name, ", HTTP/2 ", http2), func(t *testing.T) {
				front := proxied(t, http2, func(w http.ResponseWriter, r *http.Request) {
					for name, values := range test.upstream {
						w.Header()[name] = values
					}
					io.WriteString(w, "done")
				})
				response, err := front.Client().Get(front.URL)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				if got := fields(t, response.Header); got != test.want || string(body) != "done" || err != nil {
					t.Errorf("got  %s\nwant %s\n%q, %v", got, test.want, body, err)
				}
			})
		}
	}
}

// Issue 10, point 9: interim answers pass, and the answer after them, for which the proxy has
// cleared the header, has all fields once.
func TestInterimAnswersPassAndTheFieldsComeOnceInTheAnswer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		front := proxied(t, http2, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("RateLimit", `"up";r=1;t=1`)
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, "done")
		})
		interim := 0
		request, _ := http.NewRequest("GET", front.URL, nil)
		request = request.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
				interim++
				if code != http.StatusEarlyHints || header.Get("Link") == "" || len(header["Ratelimit"]) > 1 {
					t.Errorf("interim answer %d %v", code, header)
				}
				return nil
			},
		}))
		response, err := front.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if want := oursFirst + ` | ` + leftFirst + `, "up";r=1;t=1 | 3 | 2 | 60`; fields(t, response.Header) != want || response.StatusCode != http.StatusTeapot || interim != 2 {
			t.Errorf("%d, %d interim answers, %s, want %s", response.StatusCode, interim, fields(t, response.Header), want)
		}
	}
}

// Issue 10, point 9: whoever sets the fields first, in the handler or outside, replaced, added or
// cleared.
func TestTheTightestIsToldWhoeverSetsTheFieldsFirst(t *testing.T) {
	set := func(put func(http.Header, string, string)) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			put(w.Header(), "RateLimit-Policy", `"other";q=9;w=1`)
			put(w.Header(), "RateLimit", `"other";r=8;t=1`)
			put(w.Header(), "RateLimit-Limit", "9")
			put(w.Header(), "RateLimit-Remaining", "8")
			put(w.Header(), "RateLimit-Reset", "1")
		}
	}
	nothing := func(http.ResponseWriter) {}
	alone := oursFirst + ` | ` + leftFirst + ` | 3 | 2 | 60`
	both := oursFirst + `, "other";q=9;w=1 | ` + leftFirst + `, "other";r=8;t=1 | 3 | 2 | 60`
	for name, test := range map[string]struct {
		outside, inside func(http.ResponseWriter)
		want            string
	}{
		"set outside":    {set(http.Header.Set), nothing, both},
		"set inside":     {nothing, set(http.Header.Set), both},
		"added inside":   {nothing, set(http.Header.Add), both},
		"both":           {set(http.Header.Set), set(http.Header.Add), both},
		"cleared inside": {nothing, func(w http.ResponseWriter) { clear(w.Header()) }, alone},
	} {
		for how, write := range map[string]func(http.ResponseWriter){
			"nothing":     nothing,
			"status":      func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) },
			"body":        func(w http.ResponseWriter) { io.WriteString(w, "done") },
			"flush":       func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
			"controller":  func(w http.ResponseWriter) { http.NewResponseController(w).Flush() },
			"reader from": func(w http.ResponseWriter) { io.Copy(w, struct{ io.Reader }{strings.NewReader("done")}) },
		} {
			inner := ratehttp.Limit(memory(t), ratehttp.PerAddress(perAddress), ratehttp.Config{})(http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) { test.inside(w); write(w) }))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				test.outside(w)
				inner.ServeHTTP(w, r)
			}))
			response, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			if got := fields(t, response.Header); got != test.want {
				t.Errorf("%s, %s:\ngot  %s\nwant %s", name, how, got, test.want)
			}
			response.Body.Close()
			server.Close()
		}
	}
}

// Issue 10, point 9: one policy for two subjects is told once, by the subject that has less left.
func TestOnePolicyForTwoSubjectsIsToldOnce(t *testing.T) {
	limiter := memory(t)
	charges := func(r *http.Request) ([]ratelimit.Charge, error) {
		return []ratelimit.Charge{perAddress.Charge("192.0.2.1"), perAddress.Charge(r.URL.Query().Get("to"))}, nil
	}
	handler := ratehttp.Limit(limiter, charges, ratehttp.Config{})(new(handled))
	for i, to := range []string{"192.0.2.2", "192.0.2.3", "192.0.2.4"} {
		got := get(handler, "/?to="+to, client)
		if want := fmt.Sprintf(`"api";q=3;w=60 | "api";r=%d;t=60 | 3 | %d | 60`, 2-i, 2-i); fields(t, got.Header) != want {
			t.Errorf("%s, want %s", fields(t, got.Header), want)
		}
	}
	got := get(handler, "/?to=192.0.2.5", client)
	if p := problem(t, got, 429); fmt.Sprint(p.ViolatedPolicies) != "[api]" {
		t.Errorf("%q", p.ViolatedPolicies)
	}
	header := http.Header{}
	decision, err := limiter.Decide(t.Context(), perAddress.Charge("192.0.2.9"), perAddress.Charge("192.0.2.2"))
	if err != nil {
		t.Fatal(err)
	}
	if ratehttp.SetFields(header, decision); fields(t, header) != `"api";q=3;w=60 | "api";r=1;t=60 | 3 | 1 | 60` {
		t.Errorf("%s", fields(t, header))
	}
	same := ratehttp.Limit(limiter, ratehttp.PerAddress(perAddress), ratehttp.Config{}) // for one subject, outside and inside
	got = get(same(same(new(handled))), "/", "198.51.100.1:1")
	if fields(t, got.Header) != `"api";q=3;w=60 | "api";r=1;t=60 | 3 | 1 | 60` {
		t.Errorf("middleware inside itself: %s", fields(t, got.Header))
	}
}

// Issue 10, point 9: a handler finds what its connection can do, by type assertion and by
// http.ResponseController.
func TestAHandlerFindsWhatItsConnectionCanDo(t *testing.T) {
	var has, can string
	handler := ratehttp.Limit(memory(t), ratehttp.PerAddress(perAddress), ratehttp.Config{})(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			_, flushes := w.(http.Flusher)
			_, hijacks := w.(http.Hijacker)
			_, pushes := w.(http.Pusher)
			_, reads := w.(io.ReaderFrom)
			has = fmt.Sprint(flushes, hijacks, pushes, reads)
			controller := http.NewResponseController(w)
			can = fmt.Sprint(controller.SetReadDeadline(time.Time{}) == nil, controller.SetWriteDeadline(time.Time{}) == nil,
				controller.Flush() == nil, !errors.Is(controller.EnableFullDuplex(), http.ErrNotSupported))
		}))
	for _, http2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(handler)
		if server.EnableHTTP2 = http2; http2 {
			server.StartTLS()
		} else {
			server.Start()
		}
		response, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, response.Body) // until the handler has returned
		if response.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{false: "true true false true", true: "true false true true"}[http2]; has != want || can != "true true true true" {
			t.Errorf("HTTP/2 %v: has %s, want %s; can %s", http2, has, want, can)
		}
		server.Close()
	}
	bare := &bareWriter{header: http.Header{}}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = client
	handler.ServeHTTP(bare, r)
	if has != "false false false true" || can != "false false false false" || bare.header.Get("RateLimit") == "" {
		t.Errorf("a bare writer has %s, can %s: %v", has, can, bare.header)
	}
}

type bareWriter struct{ header http.Header }

func (w *bareWriter) Header() http.Header         { return w.header }
func (w *bareWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *bareWriter) WriteHeader(int)             {}

// Issue 10, point 9: files, protocol upgrades and connections that are taken over work as without
// the middleware.
func TestFilesAndUpgradesPass(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.txt")
	if err := os.WriteFile(path, []byte(strings.Repeat("a", 1<<20)), 0o644); err != nil {
		t.Fatal(err)
	}
	files := httptest.NewServer(ratehttp.Limit(memory(t), ratehttp.PerAddress(perAddress), ratehttp.Config{})(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) })))
	defer files.Close()
	response, err := files.Client().Get(files.URL)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if response.Body.Close(); err != nil || len(body) != 1<<20 || response.Header.Get("ETag") != "" || response.Header.Get("RateLimit") == "" {
		t.Errorf("%d bytes, %v, %v", len(body), response.Header, err)
	}

	front := proxied(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.Header().Set("RateLimit", `"api";r=9;t=1`)
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, _ := both.ReadString('\n')
		io.WriteString(conn, "heard "+line)
	})
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err = http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols || len(response.Header["Ratelimit"]) != 1 || response.Header.Get("RateLimit") != leftFirst {
		t.Fatalf("%+v, %v", response, err)
	}
	io.WriteString(conn, "hello\n")
	if line, err := reader.ReadString('\n'); err != nil || line != "heard hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}
