// Package hrana is a small client of SQL over HTTP, as Turso and libSQL speak it: POST /v2/pipeline of
// https://github.com/tursodatabase/libsql/blob/main/docs/HRANA_3_SPEC.md. It sends any number of statements in one request that
// closes its stream itself, and understands exactly the answers that it expects.
//
// It is for the limiter's decisions: single statements whose arguments and rows are integers and texts. It knows no
// transactions, no batches and no other values.
package hrana

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrNonsense means that a server answered what no server of this protocol does. What it has carried out is unknown.
var ErrNonsense = errors.New("hrana: nonsensical answer")

// ServerError is what a server says in place of a result. Whether anything was carried out is unknown where Status isn't 200.
type ServerError struct {
	Status  int    // of the HTTP answer
	Code    string // of the database, such as SQLITE_BUSY; may be empty
	Message string // of the database, cut to a few hundred bytes; never of an HTTP answer, which may be anything
}

// Error implements error. The text is for a log.
func (e *ServerError) Error() string {
	switch {
	case e.Status != http.StatusOK:
		return fmt.Sprintf("hrana: the server answered HTTP status %d %s", e.Status, e.Code)
	case e.Code != "":
		return "hrana: " + e.Code + ": " + e.Message
	}
	return "hrana: " + e.Message
}

const (
	// maxReplyBytes bounds an answer: sixteen logs of a thousand entries, in hexadecimal, decided and read, are 512 KB.
	maxReplyBytes = 1 << 20

	// maxMessageBytes bounds what of a server's text is kept.
	maxMessageBytes = 300

	// maxIdle is how many connections are kept for callers at once.
	maxIdle = 64

	// idleTime is how long a connection may have been unused. Behind a pause that is longer, such as that of a function
	// which was frozen, the server may have closed it, and a request that is sent into a closed connection is lost with an
	// unknown outcome.
	idleTime = 5 * time.Second

	userAgent = "weir"
)

// Text is a statement, made ready to be sent once. It may have several placeholders "?", and no other statement behind it.
type Text struct{ quoted []byte }

// NewText makes a Text. SQL that is not UTF-8 is the caller's mistake: it panics, as it would at every call.
func NewText(sql string) *Text {
	quoted, err := jsontext.AppendQuote(nil, sql)
	if err != nil {
		panic("hrana: " + err.Error())
	}
	return &Text{quoted}
}

// Statement is a text with an argument for each of its placeholders: an int64, a string, a bool (1 or 0), or nil.
type Statement struct {
	Text *Text
	Args []any

	// ReadOnly says that the statement changes nothing. It is asked again behind one that is asked
	// again, so that it reads what that one wrote.
	ReadOnly bool

	// BestEffort says that the statement may fail: it is never asked again.
	BestEffort bool
}

// Client sends statements to one server. It may be used by many goroutines. It never follows a
// redirect, and asks nothing again but statements of which the server says that it didn't carry
// them out. No error holds the token or the server's address.
type Client struct {
	// Gate bounds the requests that are open at once. Those that others send to the same server may
	// take places too.
	Gate Gate

	url    string
	bearer string
	client *http.Client
	used   atomic.Int64 // when the newest request was made, in nanoseconds since 1970
	open   atomic.Bool  // the server knows no closing of streams: it has none
	pause  func(context.Context) bool
}

// New makes a Client of the server at a base URL, libsql://, https:// or http://, with a token, which may be empty. What is no
// URL fails at the first request.
func New(base, token string) *Client {
	if host, found := strings.CutPrefix(base, "libsql://"); found {
		base = "https://" + host
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = maxIdle, maxIdle
	transport.IdleConnTimeout = idleTime
	transport.DisableCompression = true // the answers are small, and a bound on their size is one on what they unpack to
	c := &Client{
		url: strings.TrimSuffix(base, "/") + "/v2/pipeline",
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		pause: Pause,
	}
	if token != "" {
		c.bearer = "Bearer " + token
	}
	return c
}

// Close closes the connections that aren't in use.
func (c *Client) Close() { c.client.CloseIdleConnections() }

// Result is what became of one statement: its rows, every value as text, or an error of the server.
type Result struct {
	Rows [][]string
	Err  *ServerError // nil when it was carried out
}

// Query sends the statements in one request. The server carries them out in order, each as a transaction of its own, also
// when one before it failed. An error is that of the whole: a *ServerError, ErrNonsense, or that of the network, which
// matches context.DeadlineExceeded when ctx ended first. Then it is unknown what was carried out.
//
// Statements that the server was too busy for are asked again, once, in a second request after a
// short pause, as long as ctx lasts. Those that were carried out are not, unless they only read.
// After any other failure nothing is asked again.
func (c *Client) Query(ctx context.Context, statements ...Statement) ([]Result, error) {
	results, err := c.send(ctx, statements)
	if err != nil {
		return nil, err
	}
	var again []int
	var left []Statement
	busy := false
	for i, statement := range statements {
		if told := results[i].Err; told != nil && told.Busy() && !statement.BestEffort {
			busy = true
		} else if !busy || !statement.ReadOnly {
			continue
		}
		again, left = append(again, i), append(left, statement)
	}
	if !busy || !c.pause(ctx) {
		return results, nil
	}
	second, err := c.send(ctx, left)
	if err != nil {
		return nil, err
	}
	for i, result := range second {
		results[again[i]] = result
	}
	return results, nil
}

// send sends the statements in one request, when there is a place for it.
func (c *Client) send(ctx context.Context, statements []Statement) (results []Result, err error) {
	if ctx.Err() != nil || c.Gate.Enter(ctx) != nil {
		return nil, fmt.Errorf("hrana: nothing was sent in time: %w", ctx.Err())
	}
	defer func() { c.Gate.Leave(strained(results, err)) }()
	if now := time.Now().UnixNano(); now-c.used.Swap(now) > int64(idleTime) {
		c.client.CloseIdleConnections()
	}
	closing := !c.open.Load()
	reply, err := c.post(ctx, statements, closing)
	if closing && errors.Is(err, errNoClose) {
		// The server refused to read the request, so nothing was carried out.
		c.open.Store(true)
		closing = false
		reply, err = c.post(ctx, statements, false)
	}
	if err != nil {
		return nil, c.scrub(err)
	}
	results, err = decode(reply, len(statements), closing)
	for i := range results {
		if told := results[i].Err; told != nil && c.leaks(told) {
			results[i].Err = &ServerError{Status: told.Status}
			if !c.leaks(&ServerError{Status: told.Status, Code: told.Code}) {
				results[i].Err.Code = told.Code
			}
		}
	}
	return results, c.scrub(err)
}

// strained reports whether an answer, or the want of one, shows that the server has too much to do.
func strained(results []Result, err error) bool {
	busy := func(result Result) bool { return result.Err != nil && result.Err.Busy() }
	return errors.Is(err, context.DeadlineExceeded) || slices.ContainsFunc(results, busy)
}

// scrub keeps the token out of an error, should a server have sent it back.
func (c *Client) scrub(err error) error {
	var told *ServerError
	switch {
	case err == nil || !c.leaks(err):
		return err
	case errors.As(err, &told):
		return &ServerError{Status: told.Status}
	}
	return ErrNonsense
}

func (c *Client) leaks(err error) bool {
	return c.bearer != "" && strings.Contains(err.Error(), strings.TrimPrefix(c.bearer, "Bearer "))
}

// errNoClose says that the server doesn't know the request to close a stream, and so refused to read the whole.
var errNoClose = errors.New("hrana: the server closes no streams")

// noClose is how the Turso server from npm says so. It forgets a stream after each request.
var noClose = []byte("unknown variant `close`")

func (c *Client) post(ctx context.Context, statements []Statement, closing bool) ([]byte, error) {
	body, err := encode(statements, closing)
	if err != nil {
		return nil, err
	}
	// One piece in memory, which net/http sends together with the header: of other readers it doesn't know that they won't keep
	// it waiting, and writes the header first, in a call and a packet of its own.
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("hrana: the server's URL can't be asked")
	}
	request.GetBody = nil // nothing is sent twice
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", userAgent)
	if c.bearer != "" {
		request.Header.Set("Authorization", c.bearer)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return nil, c.networkError(ctx, err)
	}
	defer response.Body.Close()
	reply := bytes.NewBuffer(make([]byte, 0, min(max(response.ContentLength, 0), maxReplyBytes)+bytes.MinRead))
	_, err = reply.ReadFrom(io.LimitReader(response.Body, maxReplyBytes+1))
	switch {
	case response.StatusCode != http.StatusOK && closing && bytes.Contains(reply.Bytes(), noClose):
		return nil, errNoClose
	case response.StatusCode != http.StatusOK:
		return nil, &ServerError{Status: response.StatusCode, Code: codeOf(reply.Bytes())}
	case err != nil:
		return nil, c.networkError(ctx, err)
	case reply.Len() > maxReplyBytes:
		return nil, fmt.Errorf("%w: it is longer than %d bytes", ErrNonsense, maxReplyBytes)
	}
	return reply.Bytes(), nil
}

// networkError keeps what happened and leaves the address out. A deadline of the caller's is that, whatever the network says.
func (c *Client) networkError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("hrana: no answer in time: %w", ctx.Err())
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var inner interface{ Timeout() bool }
	if errors.As(err, &inner) && inner.Timeout() {
		return fmt.Errorf("hrana: no answer in time: %w", context.DeadlineExceeded)
	}
	for { // the innermost error is of the system, and names nobody
		next := errors.Unwrap(err)
		if next == nil {
			return fmt.Errorf("hrana: no answer: %w", err)
		}
		err = next
	}
}

// encode makes a pipeline request.
func encode(statements []Statement, closing bool) ([]byte, error) {
	size := 64
	for _, statement := range statements {
		size += 64 + len(statement.Text.quoted) + 64*len(statement.Args)
	}
	b := make([]byte, 0, size)
	b = append(b, `{"requests":[`...)
	for i, statement := range statements {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"type":"execute","stmt":{"sql":`...)
		b = append(b, statement.Text.quoted...)
		b = append(b, `,"args":[`...)
		for j, arg := range statement.Args {
			if j > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendValue(b, arg); err != nil {
				return nil, fmt.Errorf("hrana: argument %d of statement %d: %w", j+1, i+1, err)
			}
		}
		b = append(b, `]}}`...)
	}
	if closing {
		b = append(b, `,{"type":"close"}`...)
	}
	return append(b, `]}`...), nil
}

func appendValue(b []byte, value any) (_ []byte, err error) {
	switch value := value.(type) {
	case nil:
		return append(b, `{"type":"null"}`...), nil
	case bool:
		if value {
			return append(b, `{"type":"integer","value":"1"}`...), nil
		}
		return append(b, `{"type":"integer","value":"0"}`...), nil
	case int64:
		b = append(b, `{"type":"integer","value":"`...)
		return append(strconv.AppendInt(b, value, 10), `"}`...), nil
	case string:
		b, err = jsontext.AppendQuote(append(b, `{"type":"text","value":`...), value)
		return append(b, '}'), err
	}
	return nil, fmt.Errorf("it is a %T", value)
}
