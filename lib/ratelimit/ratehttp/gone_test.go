package ratehttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// hangingUp is a store that decides when the client of the request has gone.
type hangingUp struct {
	*ratelimit.MemoryStore
	deciding chan struct{}
	request  atomic.Pointer[http.Request]
}

func (h *hangingUp) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	if r := h.request.Load(); r != nil {
		h.deciding <- struct{}{}
		<-r.Context().Done()
	}
	return h.MemoryStore.Decide(ctx, entries)
}

// Issue 10, point 2: clients that hang up while they are decided about are counted, over HTTP/1 and
// HTTP/2, whatever the limit's failure. No handler runs uncharged, and the log says nothing.
func TestClientsThatHangUpAreCountedAndNoHandlerRunsUncharged(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, failure := range []ratelimit.Failure{ratelimit.Refuse, ratelimit.Strict, ratelimit.Open} {
			t.Run(fmt.Sprintf("HTTP/2 %v, %v", http2, failure), func(t *testing.T) {
				store := &hangingUp{MemoryStore: ratelimit.NewMemoryStore(noon), deciding: make(chan struct{})}
				limiter, err := ratelimit.New(store, bytes.Repeat([]byte{7}, ratelimit.MinSecretBytes), ratelimit.Config{Deadline: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				policy := perAddress
				policy.Limit, policy.Failure = 5, failure
				var log bytes.Buffer
				var next handled
				ended := make(chan struct{})
				inner := ratehttp.Limit(limiter, ratehttp.PerAddress(policy), ratehttp.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})(&next)
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					store.request.Store(r)
					inner.ServeHTTP(w, r)
					ended <- struct{}{}
				}))
				if server.EnableHTTP2 = http2; http2 {
					server.StartTLS()
				} else {
					server.Start()
				}
				defer server.Close()
				for range 20 {
					ctx, hangUp := context.WithCancel(t.Context())
					go func() {
						<-store.deciding
						hangUp()
					}()
					request, _ := http.NewRequestWithContext(ctx, "POST", server.URL, nil)
					if response, err := server.Client().Do(request); err == nil {
						response.Body.Close()
					}
					<-ended
				}
				store.request.Store(nil)
				if left, err := limiter.Peek(t.Context(), policy.Charge("127.0.0.1")); err != nil || left.Limits[0].Remaining != 0 {
					t.Errorf("%+v, %v left", left, err)
				}
				if next.Load() > 5 {
					t.Errorf("the handler ran %d times at a limit of 5", next.Load())
				}
				if log.Len() > 0 {
					t.Errorf("log %s", &log)
				}
			})
		}
	}
}

// Issue 10, point 2: Charges isn't ended by the client either, or else its look-up of a key would
// be a way around the limit. A deadline that an outer handler set still holds for it.
func TestChargesAreNamedForAClientThatHasGone(t *testing.T) {
	limiter := memory(t)
	var log bytes.Buffer
	var next handled
	type key struct{}
	charges := func(r *http.Request) ([]ratelimit.Charge, error) {
		if err := r.Context().Err(); err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
		return []ratelimit.Charge{perAddress.Charge(r.Context().Value(key{}).(string))}, nil
	}
	handler := ratehttp.Limit(limiter, charges, ratehttp.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})(&next)
	ask := func(ctx context.Context) *http.Response {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(context.WithValue(ctx, key{}, "192.0.2.7"), "GET", "/", nil))
		return recorder.Result()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		ask(gone)
	}
	if left, err := limiter.Peek(t.Context(), perAddress.Charge("192.0.2.7")); err != nil || left.Limits[0].Remaining != 0 || next.Load() != 3 {
		t.Errorf("%+v, %v; the handler ran %d times, want 3", left, err, next.Load())
	}
	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	problem(t, ask(over), http.StatusServiceUnavailable)
	if log.Len() > 0 {
		t.Errorf("log %s", &log)
	}
}

// leaving counts what is given back, and fails to while it is told to.
type leaving struct {
	*ratelimit.MemoryStore
	mu    sync.Mutex
	given []string
	err   error
}

func (l *leaving) GiveBack(ctx context.Context, refunds []ratelimit.Refund) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, refund := range refunds {
		l.given = append(l.given, refund.Policy.Name)
	}
	if l.err != nil {
		return l.err
	}
	return l.MemoryStore.GiveBack(ctx, refunds)
}

// Issue 10, point 4: who leaves a queue gives the place back, and nothing else that was charged;
// also when the server's own context ends. A failure to is no news.
func TestWhoLeavesAQueueGivesThePlaceBackAndNothingElse(t *testing.T) {
	for _, failing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			queue := ratelimit.Policy{Name: "queue", Algorithm: ratelimit.LeakyBucket, Limit: 1, Window: time.Second, Queue: 3}
			second := queue
			second.Name, second.Queue = "second", 10
			edge := ratelimit.Policy{Name: "edge", Algorithm: ratelimit.FixedWindow, Limit: 1000, Window: ratelimit.MaxWindow}
			bucket := ratelimit.Policy{Name: "bucket", Algorithm: ratelimit.TokenBucket, Limit: 1000, Window: time.Hour}
			store := &leaving{MemoryStore: ratelimit.NewMemoryStore(nil)}
			limiter := newLimiter(t, store)
			charges := func(*http.Request) ([]ratelimit.Charge, error) {
				return []ratelimit.Charge{queue.Charge("a"), edge.Charge("a"), second.Charge("a"), bucket.Charge("a")}, nil
			}
			var log bytes.Buffer
			var next handled
			handler := ratehttp.Limit(limiter, charges, ratehttp.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})(&next)
			shutdown, stop := context.WithCancel(t.Context()) // of http.Server.BaseContext
			ask := func(ctx context.Context) chan *http.Response {
				answered := make(chan *http.Response, 1)
				go func() {
					recorder := httptest.NewRecorder()
					handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
					answered <- recorder.Result()
				}()
				synctest.Wait()
				return answered
			}
			<-ask(t.Context()) // is served
			var leavers []context.CancelFunc
			var answers []chan *http.Response
			for range 2 {
				ctx, leave := context.WithCancel(t.Context())
				leavers, answers = append(leavers, leave), append(answers, ask(ctx))
			}
			answers = append(answers, ask(shutdown))
			problem(t, <-ask(t.Context()), http.StatusTooManyRequests) // the queue is full
			if failing {
				store.err = errors.New("gone")
			}
			for _, leave := range append(leavers, stop) {
				leave()
			}
			for _, answer := range answers {
				problem(t, <-answer, http.StatusServiceUnavailable)
			}
			if fmt.Sprint(store.given) != "[queue second queue second queue second]" || next.Load() != 1 || log.Len() > 0 {
				t.Errorf("given back: %v; the handler ran %d times; log %s", store.given, next.Load(), &log)
			}
			left, err := limiter.Peek(t.Context(), queue.Charge("a"), edge.Charge("a"), second.Charge("a"), bucket.Charge("a"))
			if err != nil || left.Limits[1].Remaining != 996 || left.Limits[3].Remaining != 996 {
				t.Errorf("%+v, %v", left, err)
			}
			if places := left.Limits[0].Remaining; places != map[bool]int64{false: 3, true: 0}[failing] {
				t.Errorf("failing %v: %d places are free", failing, places)
			}
		})
	}
}

// Issue 10, point 4: a queue inside a queue. Whoever leaves the inner one has had its turn in the
// outer one.
func TestWhoLeavesAnInnerQueueGivesBackThatPlaceOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &leaving{MemoryStore: ratelimit.NewMemoryStore(nil)}
		limiter := newLimiter(t, store)
		queue := func(name string) func(http.Handler) http.Handler {
			policy := ratelimit.Policy{Name: name, Algorithm: ratelimit.LeakyBucket, Limit: 1, Window: time.Minute, Queue: 5, Subject: ratelimit.Address}
			return ratehttp.Limit(limiter, ratehttp.PerAddress(policy), ratehttp.Config{})
		}
		get(queue("inner")(new(handled)), "/", client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
		r.RemoteAddr = client
		recorder := httptest.NewRecorder()
		queue("outer")(queue("inner")(new(handled))).ServeHTTP(recorder, r)
		problem(t, recorder.Result(), http.StatusServiceUnavailable)
		if fmt.Sprint(store.given) != "[inner]" {
			t.Errorf("given back: %v", store.given)
		}
	})
}

// Issue 10, point 4: in an outage requests wait for their turn as always.
func TestInAnOutageAQueueLetsOneAfterTheOtherGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := ratelimit.Policy{Name: "queue", Algorithm: ratelimit.LeakyBucket, Limit: 60, Window: time.Minute, Queue: 89,
			Failure: ratelimit.Strict, Subject: ratelimit.Address} // of each 30th part: 2 a minute, 3 at once
		start := time.Now()
		var mu sync.Mutex
		var passed []time.Duration
		handler := ratehttp.Limit(newLimiter(t, failing{}), ratehttp.PerAddress(queue), ratehttp.Config{})(http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				passed = append(passed, time.Since(start))
				io.WriteString(w, "done")
			}))
		var all []chan int
		for range 5 {
			status := make(chan int, 1)
			go func() { status <- get(handler, "/", client).StatusCode }()
			synctest.Wait()
			all = append(all, status)
		}
		refused := 0
		for _, status := range all {
			if <-status == http.StatusServiceUnavailable {
				refused++
			}
		}
		if fmt.Sprint(passed) != "[0s 30s 1m0s]" || refused != 2 {
			t.Errorf("passed after %v, %d refused", passed, refused)
		}
	})
}
