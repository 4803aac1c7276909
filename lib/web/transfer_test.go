package web_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

// soon is a bound that every stalled client meets. Nothing that has to succeed has so little time.
const soon = 50 * time.Millisecond

// served is a route on a real server that has no timeouts of its own.
type served struct {
	*httptest.Server
	log    *lockedBuffer
	closed chan net.Conn // connections that have ended
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func serveRoute(t *testing.T, bounds web.Config, http2 bool) *served {
	t.Helper()
	s := &served{log: &lockedBuffer{}, closed: make(chan net.Conn, 100)}
	memory := ratelimit.NewMemoryStore(nil)
	limiter, err := ratelimit.New(memory, bytes.Repeat([]byte{7}, ratelimit.MinSecretBytes), ratelimit.Config{Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	bounds.Limiter, bounds.Log = limiter, slog.New(slog.NewJSONHandler(s.log, nil))
	wide := byAddress
	wide.Limit, wide.Window = 1000, ratelimit.MaxWindow
	limits := []ratelimit.Policy{wide}
	handler := web.New(bounds).Handler(route, web.Resource{
		"POST": web.Body(limits, 0, nil, func(_ *web.Call, in credentials) (web.Reply, error) {
			return web.Reply{Body: map[string]string{"username": in.Username}}, nil
		}),
		"GET": web.Query(limits, nil, func(*web.Call) (web.Reply, error) {
			return web.Reply{Body: map[string]string{"name": "ada"}}, nil
		}),
		"PUT": web.Query(limits, nil, func(*web.Call) (web.Reply, error) {
			return web.Reply{Body: strings.Repeat("a", 16<<20)}, nil // more than the buffers of a connection hold
		}),
	})
	s.Server = httptest.NewUnstartedServer(handler)
	s.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			s.closed <- conn
		}
	}
	if s.EnableHTTP2 = http2; http2 {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// dial opens a connection, which has a minute for all that a test does with it.
func (s *served) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

// readAnswer reads one answer to its end.
func readAnswer(t *testing.T, from *bufio.Reader) reply {
	t.Helper()
	response, err := http.ReadResponse(from, nil)
	for err == nil && response.StatusCode == http.StatusContinue {
		response, err = http.ReadResponse(from, nil)
	}
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("the answer breaks off: %v", err)
	}
	return reply{response.StatusCode, response.Header, string(body)}
}

// Issue 10, point 13: a client that stalls is answered, with what the log tells, and its connection
// ends. The server itself has no timeouts.
func TestAStalledBodyIsAnsweredAndItsConnectionEnds(t *testing.T) {
	const head = " " + route + " HTTP/1.1\r\nHost: weir.example.org\r\n"
	for _, test := range []struct {
		name, sent string
		status     int
	}{
		{"half of a body", "POST" + head + "Content-Length: 100\r\n\r\n{", 400},
		{"none of a body", "POST" + head + "Content-Length: 100\r\n\r\n", 400},
		{"half of a chunk", "POST" + head + "Transfer-Encoding: chunked\r\n\r\n64\r\n{", 400},
		{"no last chunk", "POST" + head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 400},
		{"half of a trailer", "POST" + head + "Transfer-Encoding: chunked\r\nTrailer: A\r\n\r\n2\r\n{}\r\n0\r\nA: b", 400},
		{"a body that is waited for", "POST" + head + "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n", 400},
		{"HTTP/1.0", "POST " + route + " HTTP/1.0\r\nContent-Length: 100\r\n\r\n{", 400},
		{"too large by far", "POST" + head + "Content-Length: 104857600\r\n\r\n" + strings.Repeat("a", 100_000), 413},
		{"a body that isn't read", "GET" + head + "Content-Length: 100\r\n\r\n{", 200},
		{"a large body that isn't read", "GET" + head + "Content-Length: 104857600\r\n\r\n{", 200},
		{"a body that isn't waited for", "GET" + head + "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n", 200},
		{"a chunk that isn't read", "GET" + head + "Transfer-Encoding: chunked\r\n\r\n64\r\n{", 200},
		{"another site's", "POST" + head + "Origin: " + foreign + "\r\nContent-Length: 100\r\n\r\n{", 403},
		{"a wrong method", "PATCH" + head + "Content-Length: 100\r\n\r\n{", 405},
		{"OPTIONS", "OPTIONS" + head + "Content-Length: 100\r\n\r\n{", 204},
		{"a preflight", "OPTIONS" + head + "Origin: " + otherSite + "\r\nAccess-Control-Request-Method: POST\r\nContent-Length: 100\r\n\r\n{", 204},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := serveRoute(t, web.Config{BodyTime: soon, AnswerTime: time.Minute}, false)
			conn := s.dial(t)
			if _, err := io.WriteString(conn, test.sent); err != nil {
				t.Fatal(err)
			}
			reader := bufio.NewReader(conn)
			got := readAnswer(t, reader)
			if got.status != test.status {
				t.Fatalf("status %d, want %d: %s", got.status, test.status, got.body)
			}
			if got.status >= 400 {
				isProblem(t, got, test.status)
			}
			if n, err := io.Copy(io.Discard, reader); n > 0 || err != nil && !isReset(err) {
				t.Errorf("%d bytes behind the answer, %v", n, err)
			}
			if want := fmt.Sprintf(`"status":%d`, test.status); strings.Count(s.log.String(), `"msg":"request"`) != 1 || !strings.Contains(s.log.String(), want) {
				t.Errorf("log %s, want one line with %s", s.log, want)
			}
		})
	}
}

// isReset reports whether a connection was closed while it had bytes that the server hadn't read.
func isReset(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && !network.Timeout()
}

// Issue 10, point 13: a client that never stops sending reads its answer, and its connection ends.
func TestABodyThatNeverEndsIsAnsweredAndItsConnectionEnds(t *testing.T) {
	for _, test := range []struct {
		name, head, more string
		statuses         []int
	}{
		{"in chunks", "POST " + route + " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "1000\r\n" + strings.Repeat("a", 4096) + "\r\n", []int{400, 413}},
		{"in one", "POST " + route + " HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", strings.Repeat("a", 4096), []int{400, 413}},
		{"not read", "GET " + route + " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "1000\r\n" + strings.Repeat("a", 4096) + "\r\n", []int{200}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := serveRoute(t, web.Config{BodyTime: time.Second, AnswerTime: time.Minute}, false)
			conn := s.dial(t)
			sending := make(chan error, 1)
			go func() {
				_, err := io.WriteString(conn, test.head)
				for err == nil {
					_, err = io.WriteString(conn, test.more)
				}
				sending <- err
			}()
			got := readAnswer(t, bufio.NewReader(conn))
			if got.status != test.statuses[0] && got.status != test.statuses[len(test.statuses)-1] {
				t.Errorf("status %d, want one of %v", got.status, test.statuses)
			}
			if err := <-sending; !isReset(err) {
				t.Errorf("the client could go on sending until %v", err)
			}
		})
	}
}

// Issue 10, point 13; case D13: what ends within its bounds leaves the connection open, also when a
// body was too large or not read, and requests that come at once are answered in order.
func TestAConnectionGoesOnAfterWholeRequests(t *testing.T) {
	s := serveRoute(t, web.Config{BodyTime: time.Minute, AnswerTime: time.Minute}, false)
	conn := s.dial(t)
	post := func(body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", route, len(body), body)
	}
	chunked := "POST " + route + " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	requests := []string{
		post(`{"username":"ada"}`), chunked + "12\r\n{\"username\":\"bob\"}\r\n0\r\n\r\n",
		post(strings.Repeat("a", web.MaxBodyBytes+1)), "GET" + strings.TrimPrefix(post("{}"), "POST"),
		"PATCH" + strings.TrimPrefix(post("{}"), "POST"), "GET " + route + " HTTP/1.1\r\nHost: a\r\n\r\n", post(`{"username":"eve"}`),
	}
	go io.WriteString(conn, strings.Join(requests, ""))
	reader := bufio.NewReader(conn)
	for i, want := range []struct {
		status int
		body   string
	}{{200, "ada"}, {200, "bob"}, {413, "larger"}, {200, "ada"}, {405, "method"}, {200, "ada"}, {200, "eve"}} {
		if got := readAnswer(t, reader); got.status != want.status || !strings.Contains(got.body, want.body) || got.header.Get("Connection") != "" {
			t.Errorf("answer %d: %d %v %s, want %v", i, got.status, got.header, got.body, want)
		}
	}
}

// Issue 10, point 13: a client that doesn't read its answer keeps no connection.
func TestAnAnswerThatNobodyReadsEndsItsConnection(t *testing.T) {
	s := serveRoute(t, web.Config{BodyTime: time.Minute, AnswerTime: soon}, false)
	conn := s.dial(t)
	if _, err := fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: a\r\n\r\n", route); err != nil {
		t.Fatal(err)
	}
	<-s.closed
}

// Issue 10, point 13: over HTTP/2 a stalled body ends its stream, with the answer, and no other.
func TestAStalledStreamIsAnsweredAndTheOthersGoOn(t *testing.T) {
	s := serveRoute(t, web.Config{BodyTime: soon, AnswerTime: time.Minute}, true)
	for range 3 {
		stalled, write := io.Pipe()
		go io.WriteString(write, "{")
		response, err := s.Client().Post(s.URL+route, "application/json", stalled)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusBadRequest || response.ProtoMajor != 2 || !strings.Contains(string(body), "completely") {
			t.Errorf("%s %d %s, %v", response.Proto, response.StatusCode, body, err)
		}
		response.Body.Close()
		write.Close()
		response, err = s.Client().Get(s.URL + route)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("the next request: %v, %v", response, err)
		}
		response.Body.Close()
	}
	select {
	case <-s.closed:
		t.Error("the connection ended")
	default:
	}
}

// Issue 10, point 2: a client that hangs up while it is decided about is counted, and no line of
// the log calls it an outage.
func TestAClientThatHangsUpIsCounted(t *testing.T) {
	for _, requestTime := range []time.Duration{0, time.Minute} {
		s := newSite(t)
		cfg := web.Config{Limiter: s.limiter, Platform: true, RequestTime: requestTime, Log: slog.New(slog.NewJSONHandler(&s.log, nil))}
		s.handler = web.New(cfg).Handler(route, web.Resource{"POST": web.Body([]ratelimit.Policy{byAddress}, 0, s.charges, s.signIn)})
		for range 5 {
			r := request("POST", route, `{"username":"a","password":"wrong"}`)
			r = r.WithContext(cancelled(t))
			do(s.handler, r)
		}
		if got := s.do("POST", route, "{"); limitsOf(t, got.header)[0].r != 4 {
			t.Errorf("request time %v: %s", requestTime, got.header.Get("RateLimit"))
		}
		if log := s.log.String(); strings.Contains(log, "WARN") || strings.Contains(log, "ERROR") {
			t.Errorf("log %s", log)
		}
	}
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
