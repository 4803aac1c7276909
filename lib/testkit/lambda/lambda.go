//go:build unix

// Package lambda runs built functions as the platform does: one process each, asking a Lambda Runtime API for invocations.
//
// The API is described in https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html, the form of the events in the
// source of github.com/vercel/go-bridge, which turns them into HTTP requests.
package lambda

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/testkit/child"
)

// maxDuration is the time an invocation may take, as the runtime is told; the platform's default on its smallest plan.
const maxDuration = 60 * time.Second

// Process is one instance of a function. It answers one request at a time, like the platform's; a Do that comes while another
// runs waits for it.
type Process struct {
	child *child.Process

	events chan invocation // to the handler of …/next, which the function calls when it is free
	closed chan struct{}

	mu      sync.Mutex
	pending map[string]chan<- outcome // invocations that run or wait, by request id
}

type invocation struct {
	id    string
	event []byte
}

// outcome is what the function posted for an invocation.
type outcome struct {
	body   []byte
	failed bool
}

// Start starts the executable bootstrap in an empty folder with exactly the environment env, plus what the runtime needs, and
// ends it with the test. It does not wait until the function is ready: the first Do does.
func Start(t testing.TB, bootstrap string, env []string) *Process {
	t.Helper()
	p := &Process{
		events:  make(chan invocation),
		closed:  make(chan struct{}),
		pending: make(map[string]chan<- outcome),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", p.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", p.result(false))
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", p.result(true))
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted) // the process ends and says why on its standard error
	})
	api := httptest.NewServer(mux)
	t.Cleanup(func() {
		close(p.closed)
		api.CloseClientConnections()
		api.Close()
	})

	cmd := exec.Command(bootstrap)
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{
		"AWS_LAMBDA_RUNTIME_API=" + strings.TrimPrefix(api.URL, "http://"),
		"AWS_LAMBDA_FUNCTION_NAME=function",
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
	}, env...)
	p.child = child.Start(t, cmd)
	return p
}

// Output is what the function has logged so far.
func (p *Process) Output() string { return p.child.Output() }

// PID is the function's process id.
func (p *Process) PID() int { return p.child.PID() }

// Do sends the request to the function and returns its answer. The request's URL may be relative; its Host, headers and body
// go along as the platform would send them, and nothing is added: tests that need a client address set its headers. It ends
// with an error when the function fails, when its process ends, or when the request's context does; after the latter the
// process may still be busy and the next Do waits for it.
func (p *Process) Do(req *http.Request) (*http.Response, error) {
	event, err := encode(req)
	if err != nil {
		return nil, err
	}
	inv := invocation{rand.Text(), event}
	result := make(chan outcome, 1)
	p.mu.Lock()
	p.pending[inv.id] = result
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pending, inv.id)
	}()

	ended := func() error { return fmt.Errorf("lambda: the function's process ended: %s", p.Output()) }
	select {
	case p.events <- inv:
	case <-p.child.Done():
		return nil, ended()
	case <-req.Context().Done():
		return nil, fmt.Errorf("lambda: the function takes no request: %w: %s", req.Context().Err(), p.Output())
	}
	select {
	case out := <-result:
		if out.failed {
			return nil, fmt.Errorf("lambda: the function failed: %s", out.body)
		}
		return decode(out.body, req)
	case <-p.child.Done():
		// A function that answers and then ends has answered.
		select {
		case out := <-result:
			if !out.failed {
				return decode(out.body, req)
			}
			return nil, fmt.Errorf("lambda: the function failed: %s", out.body)
		default:
			return nil, ended()
		}
	case <-req.Context().Done():
		return nil, fmt.Errorf("lambda: no answer: %w: %s", req.Context().Err(), p.Output())
	}
}

// next hands the function its next invocation.
func (p *Process) next(w http.ResponseWriter, r *http.Request) {
	select {
	case inv := <-p.events:
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Lambda-Runtime-Aws-Request-Id", inv.id)
		h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(maxDuration).UnixMilli(), 10))
		h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:local:000000000000:function:function")
		_, _ = w.Write(inv.event) // a process that has gone is seen by Do
	case <-r.Context().Done():
	case <-p.closed:
	}
}

// result takes what the function posts for an invocation.
func (p *Process) result(failed bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the process has gone, which Do sees
		}
		p.mu.Lock()
		result := p.pending[r.PathValue("id")]
		delete(p.pending, r.PathValue("id"))
		p.mu.Unlock()
		if result != nil { // nil when Do gave up waiting
			result <- outcome{body, failed}
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

// encode makes the event for a request, as the bridge reads it.
func encode(req *http.Request) ([]byte, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		if err = errors.Join(err, req.Body.Close()); err != nil {
			return nil, fmt.Errorf("lambda: request body: %w", err)
		}
	}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	headers := map[string][]string{"host": {host}}
	for name, values := range req.Header {
		headers[strings.ToLower(name)] = values
	}
	inner, err := json.Marshal(map[string]any{
		"host":     host,
		"path":     req.URL.RequestURI(),
		"method":   req.Method,
		"headers":  headers,
		"encoding": "base64",
		"body":     base64.StdEncoding.EncodeToString(body),
	})
	if err != nil {
		return nil, fmt.Errorf("lambda: %w", err)
	}
	return json.Marshal(map[string]string{"Action": "Invoke", "body": string(inner)})
}

// decode makes the answer to req out of what the bridge replied.
func decode(reply []byte, req *http.Request) (*http.Response, error) {
	var r struct {
		StatusCode int                 `json:"statusCode"`
		Headers    map[string][]string `json:"headers"`
		Encoding   string              `json:"encoding"`
		Body       string              `json:"body"`
	}
	if err := json.Unmarshal(reply, &r); err != nil {
		return nil, fmt.Errorf("lambda: reply: %w", err)
	}
	body := []byte(r.Body)
	if r.Encoding == "base64" {
		var err error
		if body, err = base64.StdEncoding.DecodeString(r.Body); err != nil {
			return nil, fmt.Errorf("lambda: reply body: %w", err)
		}
	}
	header := make(http.Header)
	for name, values := range r.Headers {
		for _, v := range values {
			header.Add(name, v)
		}
	}
	return &http.Response{
		Status:        fmt.Sprintf("%d %s", r.StatusCode, http.StatusText(r.StatusCode)),
		StatusCode:    r.StatusCode,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        header,
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       req,
	}, nil
}
