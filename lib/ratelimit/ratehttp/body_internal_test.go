package ratehttp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Issue 10, point 13: a refusal reaches a client whose body stalls, on a server without timeouts,
// and the connection ends.
func TestARefusalReachesAClientWhoseBodyStalls(t *testing.T) {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(nil), bytes.Repeat([]byte{7}, ratelimit.MinSecretBytes), ratelimit.Config{Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	policy := ratelimit.Policy{Name: "api", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: ratelimit.MaxWindow, Subject: ratelimit.Address}
	server := httptest.NewServer(&limited{
		limiter: limiter, charges: PerAddress(policy), log: slog.New(slog.DiscardHandler), bodyTime: 50 * time.Millisecond,
		next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	})
	defer server.Close()
	if response, err := server.Client().Get(server.URL); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", response, err)
	}
	for _, body := range []string{"Content-Length: 9\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n9\r\n{"} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\n%s", body)
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusTooManyRequests {
			t.Errorf("status %d, %v", response.StatusCode, err)
		}
		if n, err := io.Copy(io.Discard, reader); n > 0 || err != nil {
			t.Errorf("%d bytes behind the answer, %v", n, err)
		}
	}
}
