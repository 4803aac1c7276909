package ratehttp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

const client = "192.0.2.7:50001"

var (
	perAddress = ratelimit.Policy{Name: "api", Algorithm: ratelimit.FixedWindow, Limit: 3, Window: time.Minute,
		Subject: ratelimit.Address}
	perAccount = ratelimit.Policy{Name: "account", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: time.Hour,
		Subject: ratelimit.Account, Private: true}
)

func noon() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

func newLimiter(t *testing.T, store ratelimit.Store) *ratelimit.Limiter {
	t.Helper()
	limiter, err := ratelimit.New(store, bytes.Repeat([]byte{7}, ratelimit.MinSecretBytes), ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func memory(t *testing.T) *ratelimit.Limiter { return newLimiter(t, ratelimit.NewMemoryStore(noon)) }

// handled counts the requests that reach it.
type handled struct{ atomic.Int64 }

func (h *handled) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.Add(1)
	if r.URL.Path == "/missing" {
		http.NotFound(w, r)
		return
	}
	fmt.Fprint(w, "done")
}

func get(handler http.Handler, target, address string) *http.Response {
	r := httptest.NewRequest("GET", target, nil)
	r.RemoteAddr = address
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	return recorder.Result()
}

func fields(t *testing.T, header http.Header) string {
	t.Helper()
	var all []string
	for _, name := range ratehttp.Fields() {
		if n := len(header.Values(name)); n > 1 {
			t.Errorf("%s is there %d times", name, n)
		}
		all = append(all, header.Get(name))
	}
	return strings.Join(all, " | ")
}

func problem(t *testing.T, response *http.Response, status int) ratehttp.Problem {
	t.Helper()
	var p ratehttp.Problem
	decoder := json.NewDecoder(response.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != status || p.Status != status || p.Type == "" || p.Title == "" || !strings.HasSuffix(p.Detail, ".") ||
		response.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("status %d, %q, problem %+v, want %d", response.StatusCode, response.Header.Get("Content-Type"), p, status)
	}
	return p
}

// Row D8; cases A03, A27.
func TestEveryAnswerHasTheFieldsAndTheRefusalIsAProblem(t *testing.T) {
	var next handled
	handler := ratehttp.Limit(memory(t), ratehttp.PerAddress(perAddress), ratehttp.Config{})(&next)
	for i, target := range []string{"/", "/missing", "/"} {
		got := get(handler, target, client)
		want := fmt.Sprintf(`"api";q=3;w=60 | "api";r=%d;t=60 | 3 | %d | 60`, 2-i, 2-i)
		if fields(t, got.Header) != want || got.Header.Get("Retry-After") != "" {
			t.Errorf("%s: %s, want %s", target, fields(t, got.Header), want)
		}
	}
	got := get(handler, "/", client)
	p := problem(t, got, http.StatusTooManyRequests)
	if p.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || p.Limit != 3 || p.RetryAfterSeconds != 60 ||
		len(p.ViolatedPolicies) != 1 || p.ViolatedPolicies[0] != "api" || got.Header.Get("Retry-After") != "60" {
		t.Errorf("problem %+v, Retry-After %q", p, got.Header.Get("Retry-After"))
	}
	if want := `"api";q=3;w=60 | "api";r=0;t=60 | 3 | 0 | 60`; fields(t, got.Header) != want {
		t.Errorf("%s, want %s", fields(t, got.Header), want)
	}
	if next.Load() != 3 {
		t.Errorf("the handler ran %d times, want 3", next.Load())
	}
}

// Cases A33, A36.
func TestPortsAndAddressesOfOneNetworkAreOneClient(t *testing.T) {
	opaque := perAddress
	opaque.Subject = ratelimit.Opaque // by mistake: a port must not become part of the key all the same
	for _, policy := range []ratelimit.Policy{perAddress, opaque} {
		handler := ratehttp.Limit(memory(t), ratehttp.PerAddress(policy), ratehttp.Config{})(new(handled))
		for i, address := range []string{"[2001:db8::1]:1", "[2001:db8::1]:2", "[2001:db8::ffff]:1", "[2001:db8:0:0:1::]:1"} {
			if got := get(handler, "/", address); (got.StatusCode == http.StatusOK) != (i < 3) {
				t.Errorf("%s: status %d", address, got.StatusCode)
			}
		}
	}
}

func TestARequestWithoutAnAddressIsAnOutageOfItsOwn(t *testing.T) { // case A38
	var next handled
	handler := ratehttp.Limit(memory(t), ratehttp.PerAddress(perAddress), ratehttp.Config{})(&next)
	for _, address := range []string{"", "@", "/run/weir.sock"} {
		got := get(handler, "/", address)
		problem(t, got, http.StatusServiceUnavailable)
		if got.Header.Get("Retry-After") != "5" {
			t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
		}
	}
	if next.Load() != 0 {
		t.Error("the handler ran")
	}
}

func TestAPrivateLimitShowsOnlyInTheRefusalThatItCaused(t *testing.T) {
	charges := func(r *http.Request) ([]ratelimit.Charge, error) {
		return []ratelimit.Charge{perAddress.Charge("192.0.2.7"), perAccount.Charge(r.URL.Query().Get("name"))}, nil
	}
	handler := ratehttp.Limit(memory(t), charges, ratehttp.Config{})(new(handled))
	if got := get(handler, "/?name=ada", client); strings.Contains(fmt.Sprint(got.Header), "account") {
		t.Errorf("it shows while it allows: %v", got.Header)
	}
	got := get(handler, "/?name=ada", client)
	if p := problem(t, got, 429); len(p.ViolatedPolicies) != 1 || p.ViolatedPolicies[0] != "account" {
		t.Errorf("problem %+v", p)
	}
	if want := `"api";q=3;w=60, "account";q=1;w=3600 | "api";r=2;t=60, "account";r=0;t=3600 | 1 | 0 | 3600`; fields(t, got.Header) != want {
		t.Errorf("%s, want %s", fields(t, got.Header), want)
	}
	get(handler, "/?name=grace", client)
	get(handler, "/?name=edith", client) // the address's last one
	got = get(handler, "/?name=ada", client)
	if p := problem(t, got, 429); strings.Contains(fmt.Sprint(got.Header, p), "account") || p.RetryAfterSeconds != 60 {
		t.Errorf("it shows beside a refusal that everybody may know of: %v %+v", got.Header, p)
	}
}

// failing is a store that doesn't answer.
type failing struct{ ratelimit.Store }

func (failing) Decide(context.Context, []ratelimit.Entry) ([]ratelimit.Row, error) {
	return nil, errors.New("dial tcp 198.51.100.4:443: refused")
}

func TestAStoreThatFailsIsA503AndNothingIsTried(t *testing.T) { // case A49
	var next handled
	var log bytes.Buffer
	config := ratehttp.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}
	handler := ratehttp.Limit(newLimiter(t, failing{}), ratehttp.PerAddress(perAddress), config)(&next)
	got := get(handler, "/", client)
	p := problem(t, got, http.StatusServiceUnavailable)
	if got.Header.Get("Retry-After") != "5" || p.RetryAfterSeconds != 5 || strings.Contains(p.Detail, "dial") {
		t.Errorf("Retry-After %q, problem %+v", got.Header.Get("Retry-After"), p)
	}
	if fields(t, got.Header) != " |  |  |  | " {
		t.Errorf("fields without a decision: %s", fields(t, got.Header))
	}
	if next.Load() != 0 {
		t.Error("the handler ran")
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "refused") || strings.Contains(log.String(), "192.0.2.7") {
		t.Errorf("log %q", log.String())
	}
}

func TestAnErrorOfChargesIsAnsweredAndNothingIsCounted(t *testing.T) {
	limiter := memory(t)
	for _, test := range []struct {
		err    error
		status int
	}{
		{&ratehttp.Problem{Status: http.StatusUnauthorized, Detail: "An API key is needed."}, http.StatusUnauthorized},
		{fmt.Errorf("wrapped: %w", &ratehttp.Problem{Status: http.StatusForbidden, Detail: "No."}), http.StatusForbidden},
		{fmt.Errorf("no key: %w", ratelimit.ErrSubject), http.StatusBadRequest},
		{errors.New("a secret of the service"), http.StatusInternalServerError},
		{&ratehttp.Problem{Detail: "A status is missing."}, http.StatusInternalServerError},
	} {
		var next handled
		charges := func(*http.Request) ([]ratelimit.Charge, error) {
			return []ratelimit.Charge{perAddress.Charge("192.0.2.7")}, test.err
		}
		got := get(ratehttp.Limit(limiter, charges, ratehttp.Config{})(&next), "/", client)
		if got.StatusCode != test.status {
			t.Errorf("%v: status %d, want %d", test.err, got.StatusCode, test.status)
		}
		if test.status == 500 {
			continue
		}
		if p := problem(t, got, test.status); strings.Contains(p.Detail, "secret") || next.Load() != 0 {
			t.Errorf("%v: %+v, the handler ran %d times", test.err, p, next.Load())
		}
	}
	left, err := limiter.Peek(t.Context(), perAddress.Charge("192.0.2.7"))
	if err != nil || left.Limits[0].Remaining != 3 {
		t.Errorf("%+v, %v", left, err)
	}
}

func TestASubjectThatCannotBeReadCountsAgainstTheAddress(t *testing.T) { // case A47
	var next handled
	charges := func(r *http.Request) ([]ratelimit.Charge, error) {
		return []ratelimit.Charge{perAddress.Charge("192.0.2.7"), perAccount.Charge(" ")}, nil
	}
	handler := ratehttp.Limit(memory(t), charges, ratehttp.Config{})(&next)
	for left := 2; left >= 0; left-- {
		got := get(handler, "/", client)
		problem(t, got, http.StatusBadRequest)
		if got.Header.Get("RateLimit-Remaining") != fmt.Sprint(left) {
			t.Errorf("%s left, want %d", got.Header.Get("RateLimit-Remaining"), left)
		}
	}
	problem(t, get(handler, "/", client), http.StatusTooManyRequests)
	if next.Load() != 0 {
		t.Error("the handler ran")
	}
}

func TestARequestWithoutChargesPassesUncounted(t *testing.T) {
	none := func(*http.Request) ([]ratelimit.Charge, error) { return nil, nil }
	got := get(ratehttp.Limit(newLimiter(t, failing{}), none, ratehttp.Config{})(new(handled)), "/", client)
	if got.StatusCode != http.StatusOK || fields(t, got.Header) != " |  |  |  | " {
		t.Errorf("status %d, %s", got.StatusCode, fields(t, got.Header))
	}
}

// Case A28.
func TestLimitsInsideLimitsAreToldTogetherAndEachFieldOnce(t *testing.T) {
	limiter := memory(t)
	search := perAddress
	search.Name, search.Limit, search.Window = "search", 1, time.Hour
	var seen []string
	inner := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, limit := range ratehttp.Decided(r.Context()).Limits {
			seen = append(seen, limit.Policy.Name)
		}
	})
	handler := ratehttp.Limit(limiter, ratehttp.PerAddress(perAddress), ratehttp.Config{})(
		ratehttp.Limit(limiter, ratehttp.PerAddress(search), ratehttp.Config{})(inner))
	got := get(handler, "/", client)
	if want := `"api";q=3;w=60, "search";q=1;w=3600 | "api";r=2;t=60, "search";r=0;t=3600 | 1 | 0 | 3600`; fields(t, got.Header) != want {
		t.Errorf("%s, want %s", fields(t, got.Header), want)
	}
	if fmt.Sprint(seen) != "[api search]" {
		t.Errorf("the handler sees %v", seen)
	}
	got = get(handler, "/", client)
	if p := problem(t, got, 429); fmt.Sprint(p.ViolatedPolicies) != "[search]" || p.RetryAfterSeconds != 3600 {
		t.Errorf("problem %+v", p)
	}
	if want := `"api";q=3;w=60, "search";q=1;w=3600 | "api";r=1;t=60, "search";r=0;t=3600 | 1 | 0 | 3600`; fields(t, got.Header) != want {
		t.Errorf("%s, want %s", fields(t, got.Header), want)
	}
}

func TestAHandlerGivesBackWhatItsRequestWasCharged(t *testing.T) {
	limiter := memory(t)
	handler := ratehttp.Limit(limiter, ratehttp.PerAddress(perAddress), ratehttp.Config{})(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			if err := limiter.GiveBack(r.Context(), ratehttp.Decided(r.Context()).Limits[0].Reservation); err != nil {
				t.Error(err)
			}
		}))
	for i := range 10 {
		if got := get(handler, "/", client); got.StatusCode != http.StatusOK {
			t.Fatalf("request %d: status %d", i, got.StatusCode)
		}
	}
	if n := len(ratehttp.Decided(t.Context()).Limits); n != 0 {
		t.Errorf("%d limits without middleware", n)
	}
}

func TestAHundredAtOnceAdmitTheLimitAndEachAnswerHasItsFields(t *testing.T) {
	policy := perAddress
	policy.Limit = 40
	var next handled
	server := httptest.NewServer(ratehttp.Limit(memory(t), ratehttp.PerAddress(policy), ratehttp.Config{})(&next))
	defer server.Close()
	var mu sync.Mutex
	statuses, remaining := map[int]int{}, map[string]int{}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			response, err := server.Client().Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			response.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			statuses[response.StatusCode]++
			remaining[response.Header.Get("RateLimit-Remaining")]++
			for _, name := range ratehttp.Fields() {
				if len(response.Header.Values(name)) != 1 {
					t.Errorf("%d has %s %d times", response.StatusCode, name, len(response.Header.Values(name)))
				}
			}
		})
	}
	all.Wait()
	if statuses[200] != 40 || statuses[429] != 60 || next.Load() != 40 {
		t.Errorf("statuses %v, the handler ran %d times, want 40 of 200 and 60 of 429", statuses, next.Load())
	}
	for left := range 40 {
		if want := map[bool]int{true: 61, false: 1}[left == 0]; remaining[fmt.Sprint(left)] != want {
			t.Errorf("%d answers say that %d are left, want %d", remaining[fmt.Sprint(left)], left, want)
		}
	}
}

// Row C5.
func TestAQueuedRequestWaitsForItsTurnAndNoLongerThanItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := ratelimit.Policy{Name: "queue", Algorithm: ratelimit.LeakyBucket, Limit: 2, Window: time.Second, Queue: 3,
			Subject: ratelimit.Address}
		limiter := newLimiter(t, ratelimit.NewMemoryStore(nil))
		start := time.Now()
		var mu sync.Mutex
		var ran []time.Duration
		handler := ratehttp.Limit(limiter, ratehttp.PerAddress(queue), ratehttp.Config{})(http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				ran = append(ran, time.Since(start))
			}))
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { get(handler, "/", client) })
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		gone := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
		gone.RemoteAddr = client
		recorder := httptest.NewRecorder()
		all.Go(func() { handler.ServeHTTP(recorder, gone) })
		synctest.Wait()
		problem(t, get(handler, "/", client), http.StatusTooManyRequests)
		cancel()
		all.Wait()
		problem(t, recorder.Result(), http.StatusServiceUnavailable)
		if fmt.Sprint(ran) != "[0s 500ms 1s]" {
			t.Errorf("requests ran after %v", ran)
		}
	})
}

func TestAQueueInsideAQueueWaitsForItsOwnTurnOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := func(name string, window time.Duration) ratelimit.Policy {
			return ratelimit.Policy{Name: name, Algorithm: ratelimit.LeakyBucket, Limit: 1, Window: window, Queue: 1,
				Subject: ratelimit.Address}
		}
		limiter := newLimiter(t, ratelimit.NewMemoryStore(nil))
		handler := ratehttp.Limit(limiter, ratehttp.PerAddress(queue("slow", 10*time.Second)), ratehttp.Config{})(
			ratehttp.Limit(limiter, ratehttp.PerAddress(queue("fast", time.Second)), ratehttp.Config{})(new(handled)))
		start := time.Now()
		for range 2 {
			get(handler, "/", client)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("two requests took %v, want 10s", took)
		}
	})
}

// Row C15.
func TestEachKeyHasACounterOfItsOwnForADay(t *testing.T) {
	plan := func(limit int64) ratelimit.Policy {
		return ratelimit.Policy{Name: "partner", Algorithm: ratelimit.FixedWindow, Limit: limit, Subject: ratelimit.APIKey}
	}
	policy := func(name string, kind ratelimit.SubjectKind) ratelimit.Policy {
		return ratelimit.Policy{Name: name, Algorithm: ratelimit.FixedWindow, Limit: 1, Subject: kind}
	}
	for _, test := range []struct {
		name                 string
		policy               ratelimit.Policy
		subject, same, other string
	}{
		{"account", policy("account", ratelimit.Account), "Ada", " ada ", "grace"},
		{"account and address", policy("pair", ratelimit.Opaque), "192.0.2.7 ada", "192.0.2.7 ada", "192.0.2.8 ada"},
		{"API key of the small plan", plan(1), "key-1", "key-1", "KEY-1"},
		{"API key of the large plan", plan(2), "key-2", "key-2", "key-3"},
		{"phone", policy("phone", ratelimit.Phone), "+44 20 7946 0000", "+442079460000", "+442079460001"},
		{"address", policy("edge", ratelimit.Address), "2001:db8::1", "[2001:db8::2]:443", "2001:db8:0:1::1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := noon()
			limiter := newLimiter(t, ratelimit.NewMemoryStore(func() time.Time { return now }))
			test.policy.Window = 24 * time.Hour
			charges := func(r *http.Request) ([]ratelimit.Charge, error) {
				return []ratelimit.Charge{test.policy.Charge(r.Header.Get("Subject"))}, nil
			}
			handler := ratehttp.Limit(limiter, charges, ratehttp.Config{})(new(handled))
			status := func(subject string) int {
				r := httptest.NewRequest("GET", "/", nil)
				r.Header.Set("Subject", subject)
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, r)
				return recorder.Code
			}
			for range test.policy.Limit {
				if got := status(test.subject); got != http.StatusOK {
					t.Fatalf("status %d within the limit", got)
				}
			}
			if got := status(test.same); got != http.StatusTooManyRequests {
				t.Errorf("another spelling has a counter of its own: status %d", got)
			}
			if got := status(test.other); got != http.StatusOK {
				t.Errorf("another subject shares the counter: status %d", got)
			}
			now = noon().Add(12*time.Hour - time.Millisecond)
			if got := status(test.subject); got != http.StatusTooManyRequests {
				t.Errorf("status %d before midnight", got)
			}
			now = noon().Add(12 * time.Hour)
			if got := status(test.subject); got != http.StatusOK {
				t.Errorf("status %d at midnight", got)
			}
		})
	}
}
