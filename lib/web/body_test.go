package web_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/web"
)

// endReader notes when a body was read to its end.
type endReader struct {
	io.Reader
	ended time.Time
}

func (r *endReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err == io.EOF {
		r.ended = time.Now()
	}
	return n, err
}

// Case A47: the time of a request begins when its body is there, however slowly that came, and one that doesn't arrive in time is
// counted, and no outage.
func TestTheTimeOfARequestBeginsWhenItsBodyIsThere(t *testing.T) {
	s := newSite(t)
	var deadline time.Time
	handler := web.New(web.Config{Limiter: s.limiter, Platform: true, RequestTime: time.Hour}).Handler(route, web.Resource{
		"POST": web.Body([]ratelimit.Policy{byAddress}, 0, nil, func(call *web.Call, _ struct{}) (web.Reply, error) {
			deadline, _ = call.Context().Deadline()
			return web.Reply{}, nil
		}),
	})
	send := func(body io.Reader) *http.Response {
		request := httptest.NewRequest("POST", route, body)
		request.Header.Set("X-Real-Ip", "203.0.113.9")
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		return recorder.Result()
	}
	body := &endReader{Reader: strings.NewReader(`{}`)}
	if got := send(body); got.StatusCode != http.StatusNoContent || deadline.Before(body.ended.Add(time.Hour)) {
		t.Errorf("status %d; the time was over %v after the body's end", got.StatusCode, deadline.Sub(body.ended))
	}
	before := send(strings.NewReader(`{}`)).Header.Get("Ratelimit-Remaining")
	got := send(iotest.ErrReader(os.ErrDeadlineExceeded))
	if got.StatusCode != http.StatusBadRequest || got.Header.Get("Ratelimit-Remaining") >= before {
		t.Errorf("a body that is too late: status %d, %s left of %s", got.StatusCode, got.Header.Get("Ratelimit-Remaining"), before)
	}
}
