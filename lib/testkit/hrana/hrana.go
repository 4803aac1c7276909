// Package hrana is a database server for tests: Hrana over HTTP, version 2, as Turso speaks it, with a real SQLite behind it.
//
// Unlike a real server it remembers every request, and a hook can delay, refuse, drop or corrupt any of them. The protocol is
// described in https://github.com/tursodatabase/libsql/blob/main/docs/HRANA_3_SPEC.md. Of its requests the server answers
// execute, batch, sequence, store_sql, close_sql, get_autocommit and close.
package hrana

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the database behind the server
)

// maxBody bounds a request. The client under test sends statements of a few kilobytes.
const maxBody = 64 << 20

// defaultStreamTTL is how long a real server keeps an idle stream.
const defaultStreamTTL = 10 * time.Second

// Config says how a Server behaves. The zero value is a healthy server.
type Config struct {
	// Hook is asked about every pipeline request before it is carried out; nil serves them all. It is called from the
	// goroutine that serves the request, so several calls may run at once.
	Hook Hook

	// StreamTTL is how long a stream may be idle before the server forgets it and rolls back what it left open; zero
	// means 10 seconds.
	StreamTTL time.Duration

	// Database is the SQLite file that it starts with; nil means an empty one.
	Database []byte
}

// A Hook decides what becomes of request n, counted from 1 since the server started.
type Hook func(n int, req Request) Action

// Action is what the server does with a request. The zero value serves it. The fields may be combined; they take effect in
// the order in which they stand here.
type Action struct {
	// Hold delays the request until the channel is closed. A held request is carried out afterwards even when its client
	// has gone, as a real server would; closing the server drops it without carrying it out.
	Hold <-chan struct{}

	// Answer is sent instead of carrying out the request.
	Answer *Answer

	// Cut closes the connection without carrying out the request.
	Cut bool

	// Rewrite, after the request was carried out, turns the reply into what is sent.
	Rewrite func(reply []byte) []byte

	// HoldReply, after the request was carried out, delays the reply until the channel is closed.
	HoldReply <-chan struct{}

	// DropReply, after the request was carried out, closes the connection without a reply.
	DropReply bool
}

// Answer is a literal HTTP answer.
type Answer struct {
	Status      int    // zero means 200
	ContentType string // empty means application/json
	Location    string // the Location field, for redirects
	Body        string
}

// Request is what the server remembers of one pipeline request.
type Request struct {
	Header http.Header
	Steps  []Step // the requests in the pipeline, in order
}

// Step is one request of a pipeline.
type Step struct {
	Kind       string // "execute", "batch", "close", …
	Statements []Statement
}

// Statement is one SQL text and its arguments as they were sent: int64, float64, string, []byte, nil or sql.NamedArg.
type Statement struct {
	SQL  string
	Args []any
}

// Statements returns the statements of all steps in order.
func (r Request) Statements() []Statement {
	var all []Statement
	for _, step := range r.Steps {
		all = append(all, step.Statements...)
	}
	return all
}

// Server is a running server. All methods may be called from several goroutines.
type Server struct {
	URL string // http://127.0.0.1:port

	http   *httptest.Server
	db     *sql.DB
	ttl    time.Duration
	closed chan struct{}

	mu       sync.Mutex
	hook     Hook
	count    int
	requests []Request
	streams  map[string]*stream // idle streams by baton
}

// stream is one client's connection to the database. Whoever took it out of Server.streams is its only user.
type stream struct {
	conn   *sql.Conn
	texts  map[int32]string // by store_sql
	expiry *time.Timer
}

// Start starts a server with a database of its own, and closes it when the test ends.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.StreamTTL < 0 {
		t.Fatalf("hrana: stream ttl %v must not be negative", cfg.StreamTTL)
	}
	if cfg.StreamTTL == 0 {
		cfg.StreamTTL = defaultStreamTTL
	}
	path := filepath.Join(t.TempDir(), "hrana.db")
	if err := os.WriteFile(path, cfg.Database, 0o600); err != nil {
		t.Fatalf("hrana: %v", err)
	}
	// Nothing here has to survive a crash, so the disk need not be waited for.
	dsn := "file:" + path +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatalf("hrana: %v", err)
	}
	s := &Server{
		db:      db,
		ttl:     cfg.StreamTTL,
		closed:  make(chan struct{}),
		hook:    cfg.Hook,
		streams: make(map[string]*stream),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hrana over http, version 2") })
	mux.HandleFunc("POST /v2/pipeline", s.pipeline)
	s.http = httptest.NewServer(mux)
	s.URL = s.http.URL
	t.Cleanup(s.close)
	return s
}

// SetHook replaces the hook; nil serves every request.
func (s *Server) SetHook(h Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = h
}

// Requests returns the requests received since the start or the last Forget, in order of arrival, including those that a
// hook kept from being carried out.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Forget empties the list that Requests returns. The count that hooks see goes on.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// DB is the database behind the server, for tests that look at what was stored. It is closed with the server.
func (s *Server) DB() *sql.DB { return s.db }

// ExpireStreams makes the server forget all idle streams, as if their time had run out.
func (s *Server) ExpireStreams() {
	s.mu.Lock()
	idle := s.streams
	s.streams = make(map[string]*stream)
	s.mu.Unlock()
	for _, st := range idle {
		st.expiry.Stop()
		st.close()
	}
}

func (s *Server) close() {
	close(s.closed)
	s.http.CloseClientConnections()
	s.http.Close()
	s.ExpireStreams()
	s.db.Close()
}

// The wire format.
type (
	pipelineRequest struct {
		Baton    *string         `json:"baton"`
		Requests []streamRequest `json:"requests"`
	}
	pipelineReply struct {
		Baton   *string        `json:"baton"`
		BaseURL *string        `json:"base_url"`
		Results []streamResult `json:"results"`
	}
	streamRequest struct {
		Type  string  `json:"type"`
		Stmt  *stmt   `json:"stmt"`
		Batch *batch  `json:"batch"`
		SQL   *string `json:"sql"`
		SQLID *int32  `json:"sql_id"`
	}
	streamResult struct {
		Type     string          `json:"type"` // "ok" or "error"
		Response *streamResponse `json:"response,omitempty"`
		Error    *wireError      `json:"error,omitempty"`
	}
	streamResponse struct {
		Type         string `json:"type"`
		Result       any    `json:"result,omitempty"`
		IsAutocommit *bool  `json:"is_autocommit,omitempty"`
	}
	wireError struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	}
)

func (e *wireError) Error() string { return e.Code + ": " + e.Message }

func (s *Server) pipeline(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return // the client has gone
	}
	var msg pipelineRequest
	if err := json.Unmarshal(body, &msg); err != nil {
		sendJSON(w, http.StatusBadRequest, &wireError{"invalid request: " + err.Error(), "PROTOCOL_ERROR"})
		return
	}

	act := s.record(r.Header, msg)
	if act.Hold != nil {
		select {
		case <-act.Hold:
		case <-s.closed:
			panic(http.ErrAbortHandler) // cuts the connection without a log line
		}
	}
	if act.Answer != nil {
		act.Answer.send(w)
		return
	}
	if act.Cut {
		panic(http.ErrAbortHandler)
	}

	status, reply := s.serve(msg)
	if act.Rewrite != nil {
		reply = act.Rewrite(reply)
	}
	if act.HoldReply != nil {
		select {
		case <-act.HoldReply:
		case <-s.closed:
			panic(http.ErrAbortHandler)
		}
	}
	if act.DropReply {
		panic(http.ErrAbortHandler)
	}
	send(w, status, "application/json", reply)
}

// record notes the request and asks the hook about it. A statement that refers to a stored text is noted with that text.
func (s *Server) record(header http.Header, msg pipelineRequest) Action {
	s.mu.Lock()
	texts := make(map[int32]string)
	if msg.Baton != nil && s.streams[*msg.Baton] != nil {
		for id, text := range s.streams[*msg.Baton].texts {
			texts[id] = text
		}
	}
	req := Request{Header: header.Clone()}
	for _, r := range msg.Requests {
		req.Steps = append(req.Steps, r.step(texts))
	}
	s.count++
	n, hook := s.count, s.hook
	s.requests = append(s.requests, req)
	s.mu.Unlock()
	if hook == nil {
		return Action{}
	}
	return hook(n, req)
}

// step is what is remembered of the request. texts holds the stored texts and is kept up to date.
func (r streamRequest) step(texts map[int32]string) Step {
	step := Step{Kind: r.Type}
	add := func(st stmt) {
		text, _ := st.text(texts)
		args, _ := st.args() // what can't be read is refused when it is carried out
		step.Statements = append(step.Statements, Statement{SQL: text, Args: args})
	}
	switch {
	case r.Type == "store_sql" && r.SQL != nil && r.SQLID != nil:
		texts[*r.SQLID] = *r.SQL
	case r.Type == "sequence":
		add(stmt{SQL: r.SQL, SQLID: r.SQLID})
	case r.Stmt != nil:
		add(*r.Stmt)
	case r.Batch != nil:
		for _, b := range r.Batch.Steps {
			add(b.Stmt)
		}
	}
	return step
}

// serve carries out a pipeline and returns the HTTP status and body. It does not end when the client goes away: a server
// can't tell in time either.
func (s *Server) serve(msg pipelineRequest) (int, []byte) {
	ctx := context.Background()
	st, refusal := s.take(ctx, msg.Baton)
	if refusal != nil {
		return http.StatusBadRequest, encode(refusal)
	}
	reply := pipelineReply{Results: []streamResult{}}
	closing := false
	for _, req := range msg.Requests {
		if closing {
			reply.Results = append(reply.Results, failed(&wireError{"the stream is closed", "STREAM_CLOSED"}))
			continue
		}
		resp, err := st.do(ctx, req)
		if err != nil {
			reply.Results = append(reply.Results, failed(asWireError(err)))
			continue
		}
		reply.Results = append(reply.Results, streamResult{Type: "ok", Response: resp})
		closing = req.Type == "close"
	}
	if closing {
		st.close()
	} else {
		baton := s.park(st)
		reply.Baton = &baton
	}
	return http.StatusOK, encode(reply)
}

func failed(err *wireError) streamResult { return streamResult{Type: "error", Error: err} }

// take opens a stream, or takes the idle one that baton names. A baton is good for one request.
func (s *Server) take(ctx context.Context, baton *string) (*stream, *wireError) {
	if baton == nil {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return nil, asWireError(err)
		}
		return &stream{conn: conn, texts: make(map[int32]string)}, nil
	}
	s.mu.Lock()
	st := s.streams[*baton]
	delete(s.streams, *baton)
	s.mu.Unlock()
	if st == nil {
		return nil, &wireError{"the stream has expired due to inactivity, or the baton was used before", "STREAM_EXPIRED"}
	}
	st.expiry.Stop()
	return st, nil
}

// park keeps the stream until its next request or its expiry and returns the baton for it.
func (s *Server) park(st *stream) string {
	baton := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[baton] = st
	st.expiry = time.AfterFunc(s.ttl, func() {
		s.mu.Lock()
		idle := s.streams[baton] == st
		delete(s.streams, baton)
		s.mu.Unlock()
		if idle {
			st.close()
		}
	})
	return baton
}

// close ends the stream's connection, and with it a transaction that is still open.
func (st *stream) close() {
	// Reporting a bad connection makes database/sql close it rather than hand it to the next stream.
	_ = st.conn.Raw(func(any) error { return driver.ErrBadConn })
}

func (a *Answer) send(w http.ResponseWriter) {
	status, contentType := a.Status, a.ContentType
	if status == 0 {
		status = http.StatusOK
	}
	if contentType == "" {
		contentType = "application/json"
	}
	if a.Location != "" {
		w.Header().Set("Location", a.Location)
	}
	send(w, status, contentType, []byte(a.Body))
}

func sendJSON(w http.ResponseWriter, status int, v any) {
	send(w, status, "application/json", encode(v))
}

func send(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone
}

// encode marshals one of the reply types. The only values in them that JSON can't express are infinite floats.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return encode(pipelineReply{Results: []streamResult{failed(&wireError{err.Error(), "PROTOCOL_ERROR"})}})
	}
	return b
}
