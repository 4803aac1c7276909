package web_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/vercel/go-bridge/go/bridge"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

const (
	route     = "/api/sign-in"
	otherSite = "https://app.example.org" // allowed
	foreign   = "https://evil.example.org"
	client    = "203.0.113.9"
)

var (
	byAddress = ratelimit.Policy{Name: "sign-in", Algorithm: ratelimit.FixedWindow, Limit: 10, Window: time.Minute,
		Subject: ratelimit.Address, Count: ratelimit.EveryAttempt}
	byAccount = ratelimit.Policy{Name: "failed-sign-in", Algorithm: ratelimit.FixedWindow, Limit: 3, Window: 15 * time.Minute,
		Subject: ratelimit.Account, Private: true}
)

type credentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// site is a sign-in with a limit by address and a private one by account, on a clock of the test's own.
type site struct {
	t       *testing.T
	web     *web.Web
	limiter *ratelimit.Limiter
	handler http.Handler
	log     bytes.Buffer

	mu      sync.Mutex
	now     time.Time
	outage  error // of the store
	checked int   // passwords looked at
}

// failingStore fails while its site has an outage.
type failingStore struct {
	*ratelimit.MemoryStore
	site *site
}

func (f failingStore) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	if f.site.outage != nil {
		return nil, f.site.outage
	}
	return f.MemoryStore.Decide(ctx, entries)
}

func newSite(t *testing.T, limits ...ratelimit.Policy) *site {
	t.Helper()
	if limits == nil {
		limits = []ratelimit.Policy{byAddress}
	}
	s := &site{t: t, now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	memory := ratelimit.NewMemoryStore(func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.now
	})
	var err error
	s.limiter, err = ratelimit.New(failingStore{memory, s}, bytes.Repeat([]byte{7}, ratelimit.MinSecretBytes), ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.web = web.New(web.Config{
		Limiter:        s.limiter,
		Platform:       true,
		AllowedOrigins: []string{otherSite},
		Log:            slog.New(slog.NewJSONHandler(&s.log, nil)),
		Version:        "1.2.3",
	})
	s.handler = s.web.Handler(route, web.Resource{
		"POST": web.Body(limits, 0, s.charges, s.signIn),
		"GET":  web.Query(limits, nil, s.whoAmI),
	})
	return s
}

func (s *site) charges(_ *web.Call, in credentials) ([]ratelimit.Charge, error) {
	charges := []ratelimit.Charge{byAccount.Charge(in.Username)}
	if in.Password == "" {
		return charges, web.Unprocessable("password", "A password is needed.")
	}
	return charges, nil
}

func (s *site) signIn(call *web.Call, in credentials) (web.Reply, error) {
	s.checked++
	switch in.Password {
	case "right":
		if err := s.limiter.GiveBack(call.Context(), call.Reservation(byAccount.Name)); err != nil {
			return web.Reply{}, err
		}
		return web.Reply{
			Body:    map[string]string{"username": in.Username, "role": "member"},
			Cookies: []*http.Cookie{{Name: "session", Value: "s3cret"}, {Name: "device", Value: "d3vice"}},
		}, nil
	case "panic":
		panic("no " + in.Username)
	case "bug":
		return web.Reply{}, errors.New("accounts: SELECT hash FROM accounts: disk I/O error")
	case "down":
		return web.Reply{}, web.Unavailable(errors.New("accounts: dial libsql://db.example.org: refused"))
	case "unencodable":
		return web.Reply{Body: func() {}}, nil
	}
	return web.Reply{}, web.Unauthorized("The user name or the password is wrong.")
}

func (s *site) whoAmI(call *web.Call) (web.Reply, error) {
	if call.Cookie("session") == "" {
		return web.Reply{}, web.Unauthorized("Nobody is signed in.")
	}
	name, err := call.Query("name")
	if err != nil {
		return web.Reply{}, err
	}
	return web.Reply{Body: map[string]string{"name": name}}, nil
}

// request makes a request from an address; header is name, value, name, value, ….
func request(method, target, body string, header ...string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.RemoteAddr = ""
	r.Header.Set("X-Vercel-Forwarded-For", client)
	for i := 0; i < len(header); i += 2 {
		r.Header[http.CanonicalHeaderKey(header[i])] = []string{header[i+1]}
	}
	return r
}

// reply is an answer as its client sees it.
type reply struct {
	status int
	header http.Header
	body   string
}

func do(handler http.Handler, r *http.Request) reply {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	return reply{recorder.Code, recorder.Result().Header, recorder.Body.String()}
}

func (s *site) do(method, target, body string, header ...string) reply {
	return do(s.handler, request(method, target, body, header...))
}

func (s *site) signInAs(username, password string, header ...string) reply {
	return s.do("POST", route, `{"username":"`+username+`","password":"`+password+`"}`, header...)
}

func (s *site) wait(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// viaServer and viaBridge are the two ways in which a handler is served.
func viaServer(t *testing.T, handler http.Handler, r *http.Request) reply {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	out, err := http.NewRequest(r.Method, server.URL+r.URL.RequestURI(), r.Body)
	if err != nil {
		t.Fatal(err)
	}
	out.Header = r.Header
	response, err := server.Client().Do(out)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Header.Del("Date")
	response.Header.Del("Content-Length")
	return reply{response.StatusCode, response.Header, string(body)}
}

func viaBridge(t *testing.T, handler http.Handler, r *http.Request) reply {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	headers := make(map[string]bridge.ReqHeaderValues)
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = values
	}
	response, err := bridge.Serve(handler, &bridge.Request{
		Host: "weir.example.org", Path: r.URL.RequestURI(), Method: r.Method, Headers: headers, Body: string(body),
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := base64.StdEncoding.DecodeString(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{response.StatusCode, response.Headers, string(text)}
}

// problem is what a problem document says.
type problem struct {
	Type              string   `json:"type"`
	Title             string   `json:"title"`
	Status            int      `json:"status"`
	Detail            string   `json:"detail"`
	Field             string   `json:"field"`
	ViolatedPolicies  []string `json:"violated-policies"`
	Limit             int64    `json:"limit"`
	RetryAfterSeconds int64    `json:"retryAfterSeconds"`
}

// isProblem checks all that every problem document has.
func isProblem(t *testing.T, got reply, status int) problem {
	t.Helper()
	var p problem
	if err := jsonv2.Unmarshal([]byte(got.body), &p, jsonv2.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("not a problem document: %v: %d %q", err, got.status, got.body)
	}
	switch {
	case got.status != status || p.Status != status:
		t.Fatalf("status %d with a problem of %d, want %d: %s", got.status, p.Status, status, got.body)
	case got.header.Get("Content-Type") != "application/problem+json":
		t.Fatalf("content type %q", got.header.Get("Content-Type"))
	case p.Type == "" || p.Title == "" || !strings.HasSuffix(p.Detail, "."):
		t.Fatalf("the problem is not complete: %s", got.body)
	}
	retry, told := got.header["Retry-After"]
	switch {
	case told != (status == 429 || status == 503):
		t.Fatalf("Retry-After %q on %d", retry, status)
	case told && (len(retry) != 1 || retry[0] != strconv.FormatInt(p.RetryAfterSeconds, 10) || p.RetryAfterSeconds < 1):
		t.Fatalf("Retry-After %q, want %d as in the body", retry, p.RetryAfterSeconds)
	}
	return p
}

// limit is an entry of the RateLimit fields.
type limit struct {
	name       string
	q, w, r, t int64
}

// limitsOf reads the RateLimit fields as a client would: by the grammar of structured fields, two lists in one order.
func limitsOf(t *testing.T, header http.Header) []limit {
	t.Helper()
	for _, name := range []string{"RateLimit-Policy", "RateLimit", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"} {
		if len(header.Values(name)) > 1 {
			t.Fatalf("%s is there %d times", name, len(header.Values(name)))
		}
	}
	policies := items(t, header.Values("RateLimit-Policy"))
	current := items(t, header.Values("RateLimit"))
	if len(policies) != len(current) {
		t.Fatalf("%d policies, %d states", len(policies), len(current))
	}
	var limits []limit
	for i := range policies {
		l := limit{name: policies[i].Value.(string)}
		if current[i].Value.(string) != l.name {
			t.Fatalf("policy %q beside the state of %q", l.name, current[i].Value)
		}
		l.q, l.w = number(t, policies[i], "q"), number(t, policies[i], "w")
		l.r, l.t = number(t, current[i], "r"), number(t, current[i], "t")
		if l.r < 0 || l.w < 1 || l.t < 0 || l.t > l.w {
			t.Fatalf("impossible limit %+v", l)
		}
		limits = append(limits, l)
	}
	return limits
}

func items(t *testing.T, values []string) []httpsfv.Item {
	t.Helper()
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		t.Fatalf("%q is not a list: %v", values, err)
	}
	var out []httpsfv.Item
	for _, member := range list {
		out = append(out, member.(httpsfv.Item))
	}
	return out
}

func number(t *testing.T, item httpsfv.Item, name string) int64 {
	t.Helper()
	value, found := item.Params.Get(name)
	n, whole := value.(int64)
	if !found || !whole {
		t.Fatalf("parameter %s is %v", name, value)
	}
	return n
}

// oldFields gives limit, remaining and reset of the older fields as one text.
func oldFields(header http.Header) string {
	return header.Get("RateLimit-Limit") + " " + header.Get("RateLimit-Remaining") + " " + header.Get("RateLimit-Reset")
}

// logLines reads the log, and checks that nothing personal is in it.
func (s *site) logLines() []map[string]any {
	s.t.Helper()
	text := s.log.String()
	for _, secret := range []string{client, "mallory", "right", "s3cret", "?name="} {
		if strings.Contains(text, secret) {
			s.t.Fatalf("the log holds %q: %s", secret, text)
		}
	}
	var lines []map[string]any
	for line := range strings.Lines(text) {
		var fields map[string]any
		if err := jsonv2.Unmarshal([]byte(line), &fields); err != nil {
			s.t.Fatalf("log line %q: %v", line, err)
		}
		lines = append(lines, fields)
	}
	return lines
}
