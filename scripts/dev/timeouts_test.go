package main

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Issue 10, point 13: whatever a client is slow at, its connection ends within the server's bounds.
// No timeout is zero.
func TestEveryConnectionEndsWhateverItsClientIsSlowAt(t *testing.T) {
	const minute, soon = time.Minute, 50 * time.Millisecond
	patient := timeouts{header: minute, request: minute, answer: minute, idle: minute}
	with := func(change func(*timeouts)) timeouts {
		bounds := patient
		change(&bounds)
		return bounds
	}
	environ(t, nil)
	root := project(t)
	large := filepath.Join(root, "public", "large.bin") // more than the buffers of a connection hold
	if err := os.WriteFile(large, bytes.Repeat([]byte("a"), 16<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	api, end, err := functions(t.Context(), root, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end() })
	files, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		bounds timeouts
		sent   string
		status int // of the answer before the end; 0 for none
	}{
		{"nothing", with(func(b *timeouts) { b.header = soon }), "", 0},
		{"half of a header", with(func(b *timeouts) { b.header = soon }), "GET / HTTP/1.1\r\nHost: a\r\n", 0},
		{"no second request", with(func(b *timeouts) { b.idle = soon }), "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200},
		{"a body of the page", with(func(b *timeouts) { b.request = soon }), "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{", 200},
		{"a body of no function", with(func(b *timeouts) { b.request = soon }), "POST /api/no HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{", 404},
		{"an answer", with(func(b *timeouts) { b.answer = soon }), "GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := newServer(handler(api, files), slog.New(slog.DiscardHandler), test.bounds)
			closed := make(chan struct{}, 1)
			server.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateClosed {
					closed <- struct{}{}
				}
			}
			go server.Serve(listener)
			t.Cleanup(func() { server.Close() })
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			conn.SetDeadline(time.Now().Add(minute))
			if _, err := io.WriteString(conn, test.sent); err != nil {
				t.Fatal(err)
			}
			if reader := bufio.NewReader(conn); test.status > 0 {
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != test.status {
					t.Errorf("status %d, want %d; %v", response.StatusCode, test.status, err)
				}
			}
			<-closed
		})
	}
	for name, bound := range map[string]time.Duration{
		"header": serverTimeouts.header, "request": serverTimeouts.request, "answer": serverTimeouts.answer, "idle": serverTimeouts.idle,
	} {
		if bound <= 0 || bound > minute {
			t.Errorf("%s: %v", name, bound)
		}
	}
}
