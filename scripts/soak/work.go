//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
)

// secret is everybody's. The counters are of a database that nobody else has.
var secret = []byte("the secret of a soak, 32 bytes long")

const (
	// deadline of a child's calls: some wait in vain while the store is away.
	deadline = 500 * time.Millisecond
	// workers decide at once in each child.
	workers = 2
	// pause after a call that failed: there is nothing to be had.
	pause = 50 * time.Millisecond
)

// load is one policy with the subjects that it is asked for.
type load struct {
	policy   ratelimit.Policy
	subjects int
	// returned says that some of what is admitted is given back.
	returned bool
}

// steady says that nothing is gained while a soak runs, so that what is used at the end is all that was charged.
func (l load) steady() bool { return l.policy.Window == ratelimit.MaxWindow }

// loads gives the policies. Their limits are such that a run of a few seconds reaches them on a busy machine: with some tens of
// decisions a second on a server, some hundreds on a file.
func loads(o options) []load {
	most, rate := int64(24), int64(10)
	if o.onServer() {
		most, rate = 8, 3
	}
	exact := max(o.decisions/50, 5) // with so many decisions half of them are about its ten keys
	policy := func(name string, algorithm ratelimit.Algorithm, limit int64, window time.Duration, count ratelimit.Count) ratelimit.Policy {
		p := ratelimit.Policy{Name: name, Algorithm: algorithm, Limit: limit, Window: window, Count: count}
		switch {
		case algorithm == ratelimit.TokenBucket && window == ratelimit.MaxWindow:
			p.Burst = limit
		case algorithm == ratelimit.LeakyBucket && window == ratelimit.MaxWindow:
			p.Queue = limit - 1
		case algorithm == ratelimit.TokenBucket:
			p.Burst = (limit + 1) / 2
		case algorithm == ratelimit.LeakyBucket:
			p.Queue = limit / 2
		}
		return p
	}
	admitted, attempts := ratelimit.Admitted, ratelimit.EveryAttempt
	const century, second = ratelimit.MaxWindow, time.Second
	return []load{
		{policy("exact", ratelimit.FixedWindow, exact, century, admitted), 10, false},
		{policy("steady-fixed", ratelimit.FixedWindow, most, century, attempts), 4, true},
		{policy("steady-sliding", ratelimit.SlidingWindow, most, century, admitted), 4, true},
		{policy("steady-log", ratelimit.SlidingLog, most, century, admitted), 4, true},
		{policy("steady-tokens", ratelimit.TokenBucket, most, century, admitted), 4, true},
		{policy("steady-queue", ratelimit.LeakyBucket, most, century, admitted), 4, true},
		{policy("quick-fixed", ratelimit.FixedWindow, rate, second, admitted), 3, false},
		{policy("quick-attempts", ratelimit.FixedWindow, rate, second, attempts), 3, false},
		{policy("quick-sliding", ratelimit.SlidingWindow, rate, second, admitted), 3, false},
		{policy("quick-log", ratelimit.SlidingLog, rate, second, admitted), 3, false},
		{policy("quick-tokens", ratelimit.TokenBucket, rate, second, admitted), 3, false},
		{policy("quick-queue", ratelimit.LeakyBucket, rate, second, admitted), 3, false},
	}
}

func (l load) subject(n int) string { return fmt.Sprintf("%s %d", l.policy.Name, n) }

// work is what a child does: it decides until its input ends, or so many decisions were answered, or it is killed.
func work(ctx context.Context, o options) error {
	db, err := database.Open(database.Config{URL: o.url, Deadline: deadline})
	if err != nil {
		return err
	}
	defer db.Close()
	trace, err := os.OpenFile(o.trace, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer trace.Close()
	recorder := &recorder{Store: openStore(db), out: trace, broken: o.broken}
	if o.broken == brokenOver {
		recorder.more = 1
	}
	limiter, err := ratelimit.New(recorder, secret, ratelimit.Config{Deadline: deadline})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		os.Stdin.Read(make([]byte, 1)) // until the parent closes it, or is gone
		stop()
	}()
	whole := o
	whole.decisions = o.total
	var answered atomic.Int64
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(o.seed, uint64(worker)))
			for ctx.Err() == nil && (o.decisions == 0 || answered.Load() < o.decisions) {
				if !decide(limiter, loads(whole), random, o.decisions > 0) {
					time.Sleep(pause)
					continue
				}
				answered.Add(1)
			}
		})
	}
	group.Wait()
	return recorder.failed()
}

func openStore(db *database.DB) *sqlstore.Store {
	if db.HTTP != nil {
		return sqlstore.NewRemote(db.HTTP, sqlstore.Config{})
	}
	return sqlstore.New(db.DB, sqlstore.Config{})
}

// decide makes one decision about one to three limits, and gives some of what was admitted back. It says whether it was
// answered.
func decide(limiter *ratelimit.Limiter, all []load, random *rand.Rand, counted bool) bool {
	var chosen []load
	if counted && random.IntN(2) == 0 {
		chosen = append(chosen, all[0])
	}
	for len(chosen) == 0 || len(chosen) < 3 && random.IntN(2) == 0 {
		chosen = append(chosen, all[random.IntN(len(all))])
	}
	var charges []ratelimit.Charge
	returned := map[string]bool{}
	for i, l := range chosen {
		returned[l.policy.Name] = l.returned
		charge := l.policy.Charge(l.subject(random.IntN(l.subjects)))
		if l.returned && random.IntN(4) == 0 {
			charge.Cost += random.Int64N(3)
		}
		twice := false
		for _, other := range chosen[:i] {
			twice = twice || other.policy.Name == l.policy.Name
		}
		if !twice {
			charges = append(charges, charge)
		}
	}
	// Nobody ends a call but its deadline: a soak that ends leaves nothing unknown.
	decision, err := limiter.Decide(context.Background(), charges...)
	if err != nil {
		return false
	}
	for _, limit := range decision.Limits {
		if decision.Allowed && returned[limit.Policy.Name] && random.IntN(4) == 0 {
			limiter.GiveBack(context.Background(), limit.Reservation) // what became of it the recorder writes down
		}
	}
	return true
}

// recorder is a store that writes down each call before it is made, and what came of it after: a line each, in one write, so
// that what a killed process had asked is known, and that it is unknown what came of it.
//
//	B id wall what policy:key:cost …           before: what is D for a decision, G for giving back
//	A id now:charged:used:at:epoch:sequence …  after a decision that was answered
//	A id                                       after a giving back that was answered
//	E id wall                                  after a call that failed
type recorder struct {
	ratelimit.Store
	out    *os.File
	broken string
	more   int64 // units that the store admits above each limit of the policy "exact"

	mu   sync.Mutex
	last int64
	err  error
}

func (r *recorder) Decide(ctx context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	var line strings.Builder
	asked := append([]ratelimit.Entry(nil), entries...)
	for i, entry := range entries {
		fmt.Fprintf(&line, " %s:%d:%d", entry.Policy.Name, entry.Key, entry.Cost)
		if entry.Policy.Name == "exact" {
			asked[i].Policy.Limit += r.more
		}
	}
	id := r.before("D", line.String())
	rows, err := r.Store.Decide(ctx, asked)
	if err != nil {
		r.write(fmt.Sprintf("E %d %d\n", id, time.Now().UnixMicro()))
		return nil, err
	}
	line.Reset()
	for _, row := range rows {
		s := row.State
		fmt.Fprintf(&line, " %d:%s:%d:%d:%d:%d", row.NowMicros, map[bool]string{true: "1", false: "0"}[row.Charged], s.Used, s.HighMicros-s.BehindMicros,
			s.Epoch, s.Sequence)
	}
	r.write("A " + strconv.FormatInt(id, 10) + line.String() + "\n")
	if r.broken == brokenLost && id%100 == 0 {
		r.forget(entries, rows)
	}
	return rows, nil
}

// forget takes a charge out of the store that was answered, which only a store that is broken does.
func (r *recorder) forget(entries []ratelimit.Entry, rows []ratelimit.Row) {
	for i, entry := range entries {
		if rows[i].Charged && entry.Policy.Window == ratelimit.MaxWindow {
			r.Store.GiveBack(context.Background(), []ratelimit.Refund{{
				ID: rand.Int64(), Key: entry.Key, Policy: entry.Policy, Cost: entry.Cost, ChargedMicros: rows[i].NowMicros,
				Epoch: rows[i].State.Epoch, Sequence: rows[i].State.Sequence, ExpiresMicros: rows[i].NowMicros + entry.Policy.Window.Microseconds(),
				Debt: rows[i].State.Used*entry.Policy.Window.Milliseconds() + rows[i].State.Rest,
			}})
		}
	}
}

func (r *recorder) GiveBack(ctx context.Context, refunds []ratelimit.Refund) error {
	var line strings.Builder
	for _, refund := range refunds {
		fmt.Fprintf(&line, " %s:%d:%d", refund.Policy.Name, refund.Key, refund.Cost)
	}
	id := r.before("G", line.String())
	err := r.Store.GiveBack(ctx, refunds)
	if err != nil {
		r.write(fmt.Sprintf("E %d %d\n", id, time.Now().UnixMicro()))
		return err
	}
	r.write(fmt.Sprintf("A %d\n", id))
	return nil
}

func (r *recorder) before(what, line string) int64 {
	r.mu.Lock()
	r.last++
	id := r.last
	r.mu.Unlock()
	r.write(fmt.Sprintf("B %d %d %s%s\n", id, time.Now().UnixMicro(), what, line))
	return id
}

func (r *recorder) write(line string) {
	_, err := r.out.WriteString(line)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
}

func (r *recorder) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
