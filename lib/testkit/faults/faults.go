// Package faults is a proxy for tests, in front of a database server that speaks Hrana over HTTP, which fails in every way that such
// servers and the network before them do.
package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Token is what clients of a Proxy send as their bearer token, and Marker a text of the server's own. A server that fails says
// both: neither must get into an answer of the application, nor the token into its log.
const (
	Token  = "the-database-token-of-tests"
	Marker = "server-internals-17"
)

// Fault is one way to fail.
type Fault struct {
	Name string
	// Applied says that the database carries the request out, and that its reply is spoilt or lost on the way back.
	Applied bool
	// Silent says that no answer comes: see Proxy.Silence.
	Silent bool

	status  int
	header  [2]string
	body    string
	rewrite func(reply []byte) []byte      // of what the database replied
	each    func(kind string) (result any) // instead of carrying out: the result for each request of the pipeline
	cut     int                            // of a rewritten reply, so many hundredths are sent before the connection is closed
	drop    bool                           // the connection is closed without a reply
}

// All gives every fault. The redirect leads to Proxy.Elsewhere.
func All() []Fault {
	told := func(message, code string) string {
		return fmt.Sprintf(`{"message": %q, "error": %q, "code": %q}`, message+" "+Marker+" "+Token, message+" "+Marker, code)
	}
	answer := func(name string, status int, body string) Fault { return Fault{Name: name, status: status, body: body} }
	same := func(reply []byte) []byte { return reply }
	return []Fault{
		{Name: "silence", Silent: true},
		{Name: "silence after applying", Silent: true, Applied: true},
		{Name: "dropped before applying", drop: true},
		{Name: "dropped after applying", drop: true, Applied: true},
		{Name: "cut within the reply", cut: 50, rewrite: same, Applied: true},
		answer("401", http.StatusUnauthorized, told("the token is expired", "UNAUTHORIZED")),
		answer("403 BLOCKED", http.StatusForbidden, told("reads and writes are blocked", "BLOCKED")),
		answer("404", http.StatusNotFound, told("no such database", "NOT_FOUND")),
		answer("429", http.StatusTooManyRequests, told("slow down", "TOO_MANY_REQUESTS")),
		answer("500", http.StatusInternalServerError, told("internal error", "INTERNAL")),
		answer("503", http.StatusServiceUnavailable, ""),
		{
			Name: "HTML", status: http.StatusOK, header: [2]string{"Content-Type", "text/html"},
			body: "<!doctype html><title>" + Marker + "</title><p>" + Token,
		},
		{Name: "redirect", status: http.StatusTemporaryRedirect}, // after which a client would send the statements again,
		answer("STREAM_EXPIRED", http.StatusBadRequest, told("the stream has expired due to inactivity", "STREAM_EXPIRED")),
		answer("baton refused", http.StatusBadRequest, told("received an invalid baton", "BATON_INVALID")),
		answer("no results", http.StatusOK, `{"baton": null, "base_url": null, "results": []}`),
		{Name: "truncated JSON", Applied: true, rewrite: func(reply []byte) []byte { return reply[:len(reply)/2] }},
		{Name: "wrong types", Applied: true, rewrite: wrongTypes},
		{Name: "SQLITE_BUSY", each: func(kind string) any {
			if kind == "close" {
				return map[string]any{"type": "ok", "response": map[string]any{"type": "close"}}
			}
			return map[string]any{"type": "error", "error": map[string]any{"message": "database is locked: " + Marker + " " + Token, "code": "SQLITE_BUSY"}}
		}},
	}
}

// Named gives the fault of that name, which must be there.
func Named(t testing.TB, name string) Fault {
	t.Helper()
	for _, fault := range All() {
		if fault.Name == name {
			return fault
		}
	}
	t.Fatalf("faults: there is no fault %q", name)
	return Fault{}
}

// wrongTypes gives a reply with every value of another type than the protocol's.
func wrongTypes(reply []byte) []byte {
	var parsed any
	if json.Unmarshal(reply, &parsed) != nil {
		return reply
	}
	var spoil func(value any) any
	spoil = func(value any) any {
		switch value := value.(type) {
		case map[string]any:
			for name, inner := range value {
				text, isText := inner.(string)
				number, err := strconv.ParseInt(text, 10, 64)
				switch {
				case name == "affected_row_count":
					value[name] = "many"
				case name == "value" && isText && err == nil:
					value[name] = number
				case name == "value":
					value[name] = []any{inner}
				case name == "rows" && len(inner.([]any)) == 0:
					value[name] = "none"
				default:
					value[name] = spoil(inner)
				}
			}
		case []any:
			for i := range value {
				value[i] = spoil(value[i])
			}
		}
		return value
	}
	spoilt, err := json.Marshal(spoil(parsed))
	if err != nil {
		return nil
	}
	return spoilt
}

// Proxy passes requests on to a server, or fails. Its methods may be called by many goroutines.
type Proxy struct {
	URL string // http://127.0.0.1:port

	// Silence is called when a fault is silent, in the place of waiting: a test's clock moves on by the caller's deadline in
	// it, and then the connection is closed. Nil: the request is held until its client has gone. It must be set before
	// the first fault.
	Silence func()

	backend   string
	elsewhere *httptest.Server
	closed    chan struct{}

	mu       sync.Mutex
	fault    *Fault
	hits     func(request string) bool
	failed   int // requests that a fault hit
	followed int // requests with statements that came to where the redirect leads
	refusal  Refusal
	refuses  func(sql string) bool
	refused  int // statements that were refused
	rows     Rows
}

// Rows are what a server says that statements have read and written. The Turso engine's says
// nothing of rows read, and always none written.
type Rows struct{ Read, Written int64 }

// Refusal is what a database says in place of carrying out a statement, as its result.
type Refusal struct{ Message, Code string }

// Busy gives what databases say to a statement that others are in the way of, or that may not
// begin.
func Busy() []Refusal {
	return []Refusal{
		{"SQLite error: database is locked", "SQLITE_BUSY"},
		{"SQLite error: database is locked", "SQLITE_BUSY_SNAPSHOT"},
		{"database is locked", "SQLITE_BUSY_TIMEOUT"},
		{"SQLite error: database table is locked", "SQLITE_LOCKED"},
		{"database table is locked: rate_limits", "SQLITE_LOCKED_SHAREDCACHE"},
		{"Server cannot handle additional transactions", "TRANSACTION_BUSY"},
		{"Operation was blocked: not now", "BLOCKED"},
		{"database is busy", ""},
	}
}

// Start starts a proxy in front of the server at a URL, and stops it when the test ends.
func Start(t testing.TB, backend string) *Proxy {
	t.Helper()
	p := &Proxy{backend: backend, closed: make(chan struct{})}
	server := httptest.NewServer(p)
	p.elsewhere = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := io.ReadAll(r.Body) // what could be read counts
		if OfLimiter(string(request)) || OfApplication(string(request)) {
			p.mu.Lock()
			p.followed++
			p.mu.Unlock()
		}
		io.WriteString(w, "<!doctype html>"+Marker)
	}))
	p.URL = server.URL
	t.Cleanup(func() {
		close(p.closed)
		for _, s := range []*httptest.Server{server, p.elsewhere} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	return p
}

// Fail has requests fail from now on: those whose text hits returns true for, or all of them when it is nil.
func (p *Proxy) Fail(fault Fault, hits func(request string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.hits = &fault, hits
}

// Heal ends the fault.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.hits = nil, nil
}

// Refuse has the server refuse statements from now on: those whose SQL hits returns true for. It
// carries out the others, also those of the same request; in a batch, those whose conditions hold.
// A nil hits ends it.
func (p *Proxy) Refuse(refusal Refusal, hits func(sql string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal, p.refuses = refusal, hits
}

// Refused is how many statements were refused.
func (p *Proxy) Refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Rows gives the rows of all that the server has carried out so far, as it counts them.
func (p *Proxy) Rows() Rows {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rows
}

// Failed is how many requests faults have hit.
func (p *Proxy) Failed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Followed is how many requests with statements followed the redirect. What libsql-client-go sends to close a stream follows it:
// a goroutine of its own does that.
func (p *Proxy) Followed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.followed
}

// strike gives the fault that a request meets, or nil.
func (p *Proxy) strike(request string) *Fault {
	p.mu.Lock()
	fault, hits := p.fault, p.hits
	p.mu.Unlock()
	if fault == nil || hits != nil && !hits(request) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed++
	return fault
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	fault := p.strike(string(request))
	if fault == nil {
		status, reply, err := p.pass(r, request)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		send(w, status, "application/json", reply)
		return
	}
	var reply []byte
	if fault.Applied {
		if _, reply, err = p.pass(r, request); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	switch {
	case fault.Silent && p.Silence != nil:
		p.Silence()
		panic(http.ErrAbortHandler)
	case fault.Silent:
		select {
		case <-r.Context().Done():
		case <-p.closed:
		}
		panic(http.ErrAbortHandler)
	case fault.drop:
		panic(http.ErrAbortHandler)
	case fault.cut > 0:
		reply = fault.rewrite(reply)
		w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
		send(w, http.StatusOK, "application/json", reply[:len(reply)*fault.cut/100])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case fault.rewrite != nil:
		send(w, http.StatusOK, "application/json", fault.rewrite(reply))
	case fault.each != nil:
		send(w, http.StatusOK, "application/json", fault.results(request))
	default:
		if fault.status == http.StatusTemporaryRedirect {
			w.Header().Set("Location", p.elsewhere.URL+"/"+Marker)
		}
		kind := "application/json"
		if fault.header[0] != "" {
			kind = fault.header[1]
		}
		send(w, fault.status, kind, []byte(fault.body))
	}
}

// results is the reply in which the statements failed, each by itself.
func (f *Fault) results(request []byte) []byte {
	var pipeline struct{ Requests []struct{ Type string } }
	results := []any{}
	if json.Unmarshal(request, &pipeline) == nil {
		for _, r := range pipeline.Requests {
			results = append(results, f.each(r.Type))
		}
	}
	reply, err := json.Marshal(map[string]any{"baton": nil, "base_url": nil, "results": results})
	if err != nil {
		return nil
	}
	return reply
}

// pass carries a request to the server. It goes on when the client has gone, as it would without a proxy.
func (p *Proxy) pass(r *http.Request, body []byte) (status int, reply []byte, err error) {
	body, refused := p.spoil(body)
	request, err := http.NewRequest(r.Method, p.backend+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header = r.Header.Clone()
	// The transport asks for gzip by itself then, and unpacks it, so that replies can be read and
	// changed here.
	request.Header.Del("Accept-Encoding")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	if reply, err = io.ReadAll(response.Body); err != nil {
		return 0, nil, err
	}
	p.count(reply)
	return response.StatusCode, refused.in(reply), nil
}

// noSuchFunction is put in the place of a statement that is refused: no database carries it out.
const noSuchFunction = "SELECT no_such_function_of_any_database()"

// spoilt says which statements of a pipeline were spoilt: by request, and by step of its batch, -1
// for none.
type spoilt struct {
	refusal Refusal
	at      map[[2]int]bool
}

// spoil puts noSuchFunction in the place of the statements that are refused, so that the server
// itself goes on from there.
func (p *Proxy) spoil(body []byte) ([]byte, spoilt) {
	p.mu.Lock()
	refusal, refuses := p.refusal, p.refuses
	p.mu.Unlock()
	var pipeline map[string]any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if refuses == nil || decoder.Decode(&pipeline) != nil {
		return body, spoilt{}
	}
	what := spoilt{refusal, map[[2]int]bool{}}
	refuse := func(statement any, request, step int) {
		if stmt, ok := statement.(map[string]any); ok {
			if sql, ok := stmt["sql"].(string); ok && refuses(sql) {
				stmt["sql"], stmt["args"] = noSuchFunction, []any{}
				what.at[[2]int{request, step}] = true
			}
		}
	}
	requests, _ := pipeline["requests"].([]any)
	for i, r := range requests {
		r, _ := r.(map[string]any)
		refuse(r["stmt"], i, -1)
		batch, _ := r["batch"].(map[string]any)
		steps, _ := batch["steps"].([]any)
		for j, step := range steps {
			if step, ok := step.(map[string]any); ok {
				refuse(step["stmt"], i, j)
			}
		}
	}
	if len(what.at) == 0 {
		return body, spoilt{}
	}
	p.mu.Lock()
	p.refused += len(what.at)
	p.mu.Unlock()
	changed, err := json.Marshal(pipeline)
	if err != nil {
		return body, spoilt{}
	}
	return changed, what
}

// in puts the refusal in the place of what the server says of the statements that were spoilt.
func (s spoilt) in(reply []byte) []byte {
	var answer map[string]any
	if len(s.at) == 0 || json.Unmarshal(reply, &answer) != nil {
		return reply
	}
	told := map[string]any{"message": s.refusal.Message, "code": s.refusal.Code}
	if s.refusal.Code == "" {
		delete(told, "code")
	}
	results, _ := answer["results"].([]any)
	for i := range results {
		result, _ := results[i].(map[string]any)
		if s.at[[2]int{i, -1}] {
			results[i] = map[string]any{"type": "error", "error": told}
		}
		response, _ := result["response"].(map[string]any)
		batch, _ := response["result"].(map[string]any)
		failed, _ := batch["step_errors"].([]any)
		for j := range failed {
			if s.at[[2]int{i, j}] && failed[j] != nil {
				failed[j] = told
			}
		}
	}
	changed, err := json.Marshal(answer)
	if err != nil {
		return reply
	}
	return changed
}

// count adds what a reply says of rows.
func (p *Proxy) count(reply []byte) {
	type counts struct {
		Read    int64 `json:"rows_read"`
		Written int64 `json:"rows_written"`
	}
	var answer struct {
		Results []struct {
			Response struct {
				Result struct {
					counts
					Steps []*counts `json:"step_results"`
				}
			}
		}
	}
	if json.Unmarshal(reply, &answer) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, result := range answer.Results {
		all := append(result.Response.Result.Steps, &result.Response.Result.counts)
		for _, one := range all {
			if one != nil {
				p.rows.Read += one.Read
				p.rows.Written += one.Written
			}
		}
	}
}

func send(w http.ResponseWriter, status int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	w.Write(body) // an error means that the client has gone
}

// OfLimiter says whether a request is about limits, by the names of their tables.
func OfLimiter(request string) bool { return strings.Contains(request, "rate_limit") }

// OfApplication says whether a request has statements about anything else.
func OfApplication(request string) bool {
	return !OfLimiter(request) && (strings.Contains(request, `"sql"`) || strings.Contains(request, `"stmt"`))
}

// FirstOfEach gives what hits each text the first time that it comes, of those that hits returns
// true for; nil: of all.
func FirstOfEach(hits func(text string) bool) func(text string) bool {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(text string) bool {
		if hits != nil && !hits(text) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		again := seen[text]
		seen[text] = true
		return !again
	}
}

// AfterDecision gives what hits every request after the first one of the limiter.
func AfterDecision() func(request string) bool {
	var mu sync.Mutex
	decided := false
	return func(request string) bool {
		mu.Lock()
		defer mu.Unlock()
		if !decided {
			decided = OfLimiter(request)
			return false
		}
		return true
	}
}
