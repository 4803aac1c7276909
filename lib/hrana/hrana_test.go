package hrana_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/weirlimits/weir/lib/hrana"
	server "github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

func statement(sql string, args ...any) hrana.Statement {
	return hrana.Statement{Text: hrana.NewText(sql), Args: args}
}

const token = "a-token-that-is-secret"

// Row E3: several statements are one request, each is carried out by itself, and values come back as they went.
func TestStatementsAreCarriedOutInOneRequest(t *testing.T) {
	for name, url := range map[string]string{
		"hrana": server.Start(t, server.Config{}).URL, "turso": turso.Start(t).URL, "libsql": turso.StartLibSQL(t).URL,
	} {
		t.Run(name, func(t *testing.T) {
			client := hrana.New(url, token)
			defer client.Close()
			odd := "é \" \\ \u2028 <&> '; \x01 \n"
			results, err := client.Query(t.Context(),
				statement("CREATE TABLE t (a INTEGER, b TEXT)"),
				statement("INSERT INTO t VALUES (?, ?), (?, ?)", int64(-1<<63), odd, true, ""),
				statement("SELEC"),
				statement("SELECT a, b FROM t WHERE ? IS NULL ORDER BY a", nil),
			)
			if err != nil {
				t.Fatal(err)
			}
			if results[0].Err != nil || results[1].Err != nil || results[3].Err != nil || results[2].Err == nil || !strings.Contains(results[2].Err.Error(), "SELEC") {
				t.Errorf("errors %v, %v, %v", results[0].Err, results[1].Err, results[2].Err)
			}
			if got, want := fmt.Sprintf("%q", results[3].Rows), fmt.Sprintf("%q", [][]string{{"-9223372036854775808", odd}, {"1", ""}}); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// A server that can't close streams says so before it has carried anything out. It is found out once, and nothing is carried out
// twice.
func TestAServerThatClosesNoStreamsIsAskedOnce(t *testing.T) {
	var bodies []string
	client, _ := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
		if strings.Contains(string(body), `{"type":"close"}`) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "Internal Server Error: Failed to parse pipeline request: unknown variant `close`, expected `execute` or `batch` at line 1 column 88")
			return
		}
		fmt.Fprint(w, strings.Replace(right, `,{"type":"ok","response":{"type":"close"}}`, "", 1))
	})
	for range 3 {
		if results, err := client.Query(t.Context(), statement("SELECT 7")); err != nil || fmt.Sprint(results) != "[{[[7]] <nil>}]" {
			t.Fatalf("got %v, %v", results, err)
		}
	}
	if len(bodies) != 4 || !strings.Contains(bodies[0], "close") || strings.Contains(strings.Join(bodies[1:], ""), "close") {
		t.Errorf("asked %q", bodies)
	}
}

// answering makes a client of a server that answers as told, and counts requests.
func answering(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (*hrana.Client, func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n++
		mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(fake.Close)
	client := hrana.New(fake.URL, token)
	t.Cleanup(client.Close)
	return client, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

const right = `{"baton":null,"base_url":null,"results":[` +
	`{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"a","decltype":null}],"rows":[[{"type":"integer","value":"7"}]],"affected_row_count":0,"last_insert_rowid":null,"rows_read":1}}},` +
	`{"type":"ok","response":{"type":"close"}}]}`

// Cases B02, B05: whatever a server answers is a result or an error, at once and without a panic.
func TestAnAnswerThatIsNotOneIsAnError(t *testing.T) {
	if client, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, right) }); true {
		results, err := client.Query(t.Context(), statement("SELECT 7"))
		if err != nil || fmt.Sprint(results) != "[{[[7]] <nil>}]" {
			t.Fatalf("the right answer gives %v, %v", results, err)
		}
	}
	replace := func(old, new string) string {
		if !strings.Contains(right, old) {
			t.Fatalf("there is no %s", old)
		}
		return strings.Replace(right, old, new, 1)
	}
	wrong := []string{
		``, `null`, `[]`, `{}`, `7`, `<html>busy</html>`, `{"results":null}`, `{"results":[]}`, right[:len(right)-1], right[:80], right + `{}`,
		replace(`"7"`, `7`), replace(`"7"`, `"seven"`), replace(`"7"`, `"7.5"`), replace(`"7"`, `"99999999999999999999"`), replace(`"7"`, `null`),
		replace(`"integer"`, `"float"`), replace(`"integer"`, `"null"`), replace(`"integer"`, `"blob"`), replace(`"integer"`, `7`),
		replace(`[[{`, `[[],[{`), replace(`[[{"type":"integer","value":"7"}]]`, `[{"type":"integer","value":"7"}]`),
		replace(`[[{"type":"integer","value":"7"}]]`, `null`), replace(`[{"name":"a","decltype":null}]`, `[]`), replace(`"cols"`, `"columns"`),
		replace(`"rows"`, `"lines"`), replace(`"execute"`, `"batch"`), replace(`"type":"ok"`, `"type":"well"`), replace(`"type":"ok"`, `"type":"error"`),
		replace(`"result":{`, `"result":null,"x":{`), replace(`,{"type":"ok","response":{"type":"close"}}`, ``),
		replace(`"affected_row_count":0`, `"rows":[]`), strings.Replace(right, `"results"`, `"results":[],"results"`, 1),
		replace(`{"type":"ok","response":{"type":"close"}}`, `{"type":"ok","response":{"type":"close"}},{"type":"ok","response":{"type":"close"}}`),
		replace(`"7"`, "\"\xff\""),
	}
	for _, body := range wrong {
		client, count := answering(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) })
		if results, err := client.Query(t.Context(), statement("SELECT 7")); !errors.Is(err, hrana.ErrNonsense) {
			t.Errorf("%.200s\ngives %v, %v", body, results, err)
		}
		if count() != 1 {
			t.Errorf("%d requests", count())
		}
	}
}

// Cases B02, B06, B19, B21: a refusal keeps its status and code, tells no token and no address, and is not asked for again.
func TestARefusalKeepsItsCodeAndTellsNothingElse(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		code   string
	}{
		{401, `{"error":"Unauthorized: ` + token + `"}`, ""},
		{403, `{"error":"BLOCKED"}`, "BLOCKED"},
		{403, `{"code":"BLOCKED","message":"reads are blocked"}`, "BLOCKED"},
		{404, `<html>` + token + `</html>`, ""},
		{429, ``, ""},
		{500, `Internal Server Error: ` + token, ""},
		{503, strings.Repeat("x", 5<<20), ""},
		{302, ``, ""},
		{204, ``, ""},
	} {
		client, count := answering(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://"+r.Host+"/elsewhere")
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		})
		_, err := client.Query(t.Context(), statement("SELECT 1"))
		var told *hrana.ServerError
		if !errors.As(err, &told) || told.Status != c.status || told.Code != c.code {
			t.Errorf("status %d gives %v", c.status, err)
		}
		if text := fmt.Sprint(err); strings.Contains(text, token) || strings.Contains(text, "127.0.0.1") || len(text) > 400 {
			t.Errorf("the error says %.500s", text)
		}
		if count() != 1 {
			t.Errorf("%d requests for status %d", count(), c.status)
		}
	}
	client, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"results":[{"type":"error","error":{"message":"no such table: t","code":"SQLITE_ERROR"}},`+
			`{"type":"error","error":{"message":"it was `+token+`","code":null}},{"type":"ok","response":{"type":"close"}}]}`)
	})
	results, err := client.Query(t.Context(), statement("SELECT 1"), statement("SELECT 2"))
	if err != nil || results[0].Err.Code != "SQLITE_ERROR" || results[0].Err.Message != "no such table: t" || results[1].Err == nil {
		t.Fatalf("got %v, %v", results, err)
	}
	if text := fmt.Sprint(results); strings.Contains(text, token) {
		t.Errorf("the results say %s", text)
	}
}

// passing is a context whose deadline passes when a channel is closed.
type passing struct {
	context.Context
	passed chan struct{}
}

func (p passing) Done() <-chan struct{} { return p.passed }

func (p passing) Err() error {
	select {
	case <-p.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Cases B01, B03: a server that is silent, or gone, ends with the caller's deadline or at once; nothing is sent twice.
func TestAServerThatIsSilentOrGoneEndsInTime(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{})
	client, count := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush() // the header, and nothing more
		close(asked)
		<-release
	})
	defer close(release)
	ctx := passing{t.Context(), asked} // a busy machine would take longer than a short deadline to ask
	if _, err := client.Query(ctx, statement("SELECT 1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent server gives %v", err)
	}
	if count() != 1 {
		t.Errorf("%d requests", count())
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	_, err = hrana.New("http://"+address, token).Query(t.Context(), statement("SELECT 1"))
	if err == nil || errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), address) || strings.Contains(err.Error(), token) {
		t.Errorf("a server that is gone gives %v", err)
	}

	cut, cuts := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.Close()
	})
	for range 3 {
		if _, err := cut.Query(t.Context(), statement("SELECT 1")); err == nil {
			t.Error("a cut connection gives no error")
		}
	}
	if cuts() != 3 {
		t.Errorf("%d requests for 3 calls", cuts())
	}
	middle, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, right[:50])
	})
	if _, err := middle.Query(t.Context(), statement("SELECT 1")); err == nil {
		t.Error("half an answer gives no error")
	}
	endless, _ := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 40 {
			fmt.Fprint(w, strings.Repeat(" ", 64<<10))
		}
	})
	if _, err := endless.Query(t.Context(), statement("SELECT 1")); !errors.Is(err, hrana.ErrNonsense) {
		t.Errorf("an endless answer gives %v", err)
	}
}

func TestArgumentsThatAreNoneAreAnError(t *testing.T) {
	client, count := answering(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, right) })
	for _, arg := range []any{1, 1.5, []byte("x"), "\xff"} {
		if _, err := client.Query(t.Context(), statement("SELECT ?", arg)); err == nil {
			t.Errorf("%T is taken", arg)
		}
	}
	if count() != 0 {
		t.Errorf("%d requests", count())
	}
}

// Row E3: connections are used again, also by many at once.
func TestConnectionsAreUsedAgain(t *testing.T) {
	var mu sync.Mutex
	opened := 0
	fake := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, right) }))
	fake.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			mu.Lock()
			opened++
			mu.Unlock()
		}
	}
	fake.Start()
	defer fake.Close()
	client := hrana.New(fake.URL, "")
	defer client.Close()
	for range 5 {
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				if _, err := client.Query(t.Context(), statement("SELECT 1")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	mu.Lock()
	defer mu.Unlock()
	if opened > 64 {
		t.Errorf("%d connections for 32 callers at once", opened)
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(right)
	f.Add(`{"results":[{"type":"error","error":{"message":"x","code":"Y"}},{"type":"ok","response":{"type":"close"}}]}`)
	var mu sync.Mutex
	body := ""
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
	f.Cleanup(fake.Close)
	client := hrana.New(fake.URL, "")
	f.Fuzz(func(t *testing.T, text string) {
		mu.Lock()
		defer mu.Unlock()
		body = text
		results, err := client.Query(t.Context(), statement("SELECT 7"))
		if err == nil && len(results) != 1 {
			t.Fatalf("%d results without an error", len(results))
		}
	})
}
