//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
)

// server is a server of SQL over HTTP in a process of its own.
type server struct{ *worker }

func (b *bench) server(s *scope) (server, error) {
	cmd, err := b.self("serve", "")
	if err != nil {
		return server{}, err
	}
	w, err := hire(s, cmd)
	return server{w}, err
}

func (s server) url() string { return s.ready }

// requests gives how many came since the last time it was asked.
func (s server) requests() (int, error) {
	var came struct{ Requests int }
	err := s.ask("requests", &came)
	return came.Requests, err
}

// throughDriver is a limiter on the same server through libsql-client-go.
func throughDriver(o *opened) (*ratelimit.Limiter, error) {
	return newLimiter(sqlstore.New(o.DB.DB, sqlstore.Config{Deadline: deadline, SweepEvery: -1}))
}

// requests counts the HTTP requests of decisions.
func (b *bench) requests(s *scope) ([]row, error) {
	server, err := b.server(s)
	if err != nil {
		return nil, err
	}
	o := open(s, server.url(), 1)
	// The migrator's connections are the driver's, which would end them with a request when they have been idle for long.
	o.SetMaxIdleConns(0)
	own := func() (*ratelimit.Limiter, error) { return o.limiter, nil }
	drivers := func() (*ratelimit.Limiter, error) { return throughDriver(open(s, server.url(), 1)) }
	each := 40
	if b.quick {
		each = 2
	}
	var rows []row
	for _, test := range []struct {
		what    string
		bar     bool
		limiter func() (*ratelimit.Limiter, error)
		at      int // once
	}{
		{"HTTP requests per decision to the store, one after the other", true, own, 1},
		{"HTTP requests per decision to the store, 32 at once", true, own, 32},
		{"the same, one after the other, through libsql-client-go", false, drivers, 1},
	} {
		limiter, err := test.limiter()
		if err != nil {
			return rows, err
		}
		if _, err := server.settled(); err != nil {
			return rows, err
		}
		decisions := each * 32
		policy := wide(fmt.Sprintf("half-%d", len(rows)))
		policy.Limit = int64(decisions / 2)
		var allowed atomic.Int64
		failed := make([]error, test.at)
		var group sync.WaitGroup
		for i := range test.at {
			group.Go(func() {
				for range decisions / test.at {
					decision, err := limiter.Decide(b.ctx, policy.Charge("client"))
					if err != nil {
						failed[i] = err
						return
					}
					if decision.Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		group.Wait()
		if err := errors.Join(failed...); err != nil {
			return rows, err
		}
		if allowed.Load() != policy.Limit {
			return rows, fmt.Errorf("%d of %d decisions allowed at a limit of %d", allowed.Load(), decisions, policy.Limit)
		}
		requests, err := server.settled()
		if err != nil {
			return rows, err
		}
		r := row{
			what:    test.what,
			figures: fmt.Sprintf("%d requests for %d decisions, half of them refused", requests, decisions),
			ratio:   float64(requests) / float64(decisions), bar: 1, hasBar: test.bar, counted: true,
		}
		if !test.bar {
			// There a refusal reads in a call of its own.
			r.figures += fmt.Sprintf(": %.2f for each of %d statements", float64(requests)/float64(decisions*3/2), decisions*3/2)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// settled counts requests until no more come: the driver sends some later.
func (s server) settled() (all int, err error) {
	for quiet := 0; quiet < 2; {
		came, err := s.requests()
		if err != nil {
			return 0, err
		}
		all += came
		quiet++
		if came > 0 {
			quiet = 0
		}
		time.Sleep(200 * time.Millisecond)
	}
	return all, nil
}

// cpu compares the processor time of a decision over HTTP with that of a bare POST of the same bytes to the same server, which
// carries out both. The server is another process, so what is measured is the client alone.
func (b *bench) cpu(s *scope) ([]row, error) {
	server, err := b.server(s)
	if err != nil {
		return nil, err
	}
	o := open(s, server.url(), subjects)
	driver, err := throughDriver(o)
	if err != nil {
		return nil, err
	}
	policy := wide("live")
	sent, err := b.sentBy(server.url(), policy)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	post := func() error {
		response, err := client.Post(server.url()+"/v2/pipeline", "application/json", bytes.NewReader(sent))
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err = errors.Join(err, response.Body.Close()); err == nil && response.StatusCode != http.StatusOK {
			err = errors.New(response.Status)
		}
		return err
	}
	decide := func(limiter *ratelimit.Limiter) func() error {
		next := 0
		return func() error {
			decision, err := limiter.Decide(b.ctx, policy.Charge(o.names[next%subjects]))
			next++
			if err == nil && !decision.Allowed {
				err = errors.New("refused")
			}
			return err
		}
	}
	charged := func(one func() error) func(int) (outcome, error) {
		round := ofProcessor(one)
		return func(n int) (outcome, error) {
			done, err := round(n)
			if _, failed := server.requests(); failed != nil { // so that it remembers few
				err = errors.Join(err, failed)
			}
			return done, err
		}
	}
	contenders := []contender{
		{"a decision over HTTP", charged(decide(o.limiter))},
		{"a bare POST of its bytes", charged(post)},
	}
	rounds, n := b.rounds(rounds, 200)
	figures, err := compare(b.ctx, rounds, n, contenders...)
	if err != nil {
		return nil, err
	}
	drivers := []contender{{"a decision through libsql-client-go", charged(decide(driver))}, contenders[1]}
	driverRounds := max(1, rounds/5)
	driverFigures, err := compare(b.ctx, driverRounds, n, drivers...)
	if err != nil {
		return nil, err
	}
	// The bytes that were posted are a decision for the first subject, and the server made it each time.
	if err := o.check(b.ctx, policy, min(n*rounds, subjects), 2*n*(rounds+driverRounds)+1); err != nil {
		return nil, err
	}
	ours := versus("processor time of a decision over HTTP, against a bare POST of the same bytes", 1.4, contenders, figures)
	theirs := versus("the same through libsql-client-go", 0, drivers, driverFigures)
	theirs.times = theirs.times[:1]
	return []row{ours, theirs}, nil
}

// sentBy gives the body of a decision's request, for the first subject, which it lets through to the server.
func (b *bench) sentBy(url string, policy ratelimit.Policy) (sent []byte, err error) {
	return within(b.ctx, func(s *scope) ([]byte, error) {
		var bodies [][]byte
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			var response *http.Response
			if err == nil {
				bodies = append(bodies, body)
				response, err = http.Post(url+r.URL.Path, "application/json", bytes.NewReader(body))
			}
			if err != nil {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			defer response.Body.Close()
			w.WriteHeader(response.StatusCode)
			io.Copy(w, response.Body)
		}))
		s.Cleanup(proxy.Close)
		o := open(s, proxy.URL, 1)
		bodies = nil // those of looking at the schema
		if err := o.charge(b.ctx, policy)(); err != nil {
			return nil, err
		}
		if len(bodies) != 1 {
			return nil, fmt.Errorf("%d requests for a decision", len(bodies))
		}
		return bodies[0], nil
	})
}

// ofProcessor does n of something, and takes the processor time of this process for the time of all.
func ofProcessor(one func() error) func(n int) (outcome, error) {
	round := timed(one)
	return func(n int) (outcome, error) {
		var before, after syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
			return outcome{}, err
		}
		done, err := round(n)
		if err := errors.Join(err, syscall.Getrusage(syscall.RUSAGE_SELF, &after)); err != nil {
			return outcome{}, err
		}
		done.total = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
		return done, nil
	}
}
