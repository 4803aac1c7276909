//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/turso"
	"github.com/weirlimits/weir/scripts/internal/command"
)

// commitVariable tells a worker that serves how long each of its commits takes.
const commitVariable = "WEIR_BENCH_COMMIT"

// What is driven over its limit: each of so many subjects at once is asked so often, and admitted limitOfShards times. So of 12
// decisions 11 write: 10 admissions and the first refusal.
const (
	subjectsAtOnce = 25 // for each server
	asksOfShards   = 12
	limitOfShards  = 10
)

// steadyPart of what servers do at the most is the rate that is held: close to all of it, whatever waits grows without end.
const steadyPart = 0.7

// goal is a million decisions a minute.
const goal = 16_700

// shardsRun is what -shards measures.
type shardsRun struct {
	servers []int
	commits []time.Duration // 0: the Turso server, as it is
	steady  time.Duration   // how long a rate is held
}

// parseShards reads the flags of -shards.
func parseShards(servers, commits string, steady time.Duration) (run shardsRun, err error) {
	run.steady = steady
	for text := range strings.SplitSeq(servers, ",") {
		n, failed := strconv.Atoi(text)
		if failed != nil || n < 1 || n > 16 {
			err = errors.Join(err, fmt.Errorf("-servers %q: allowed are numbers from 1 to 16, separated by commas", servers))
		}
		run.servers = append(run.servers, n)
	}
	for text := range strings.SplitSeq(commits, ",") {
		d, failed := time.ParseDuration(text)
		if text == "turso" {
			d, failed = 0, nil
		} else if failed == nil && d <= 0 {
			failed = errors.New("no time")
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("-commits %q: allowed are times such as 10ms, and turso for its server as it is, separated by commas", commits))
		}
		run.commits = append(run.commits, d)
	}
	if steady <= 0 {
		err = errors.Join(err, fmt.Errorf("-for %v: it must be above 0", steady))
	}
	return run, err
}

// model makes a server of SQL like one whose every commit takes so long, with one writer: it stands for a plan of Turso's. Who
// writes nothing commits nothing.
func model(commit time.Duration, server func() *hrana.Server) hrana.Hook {
	var writer sync.Mutex
	writes := regexp.MustCompile(`(?i)\b(INSERT|UPDATE|DELETE)\b`)
	changed := regexp.MustCompile(`"affected_row_count":[1-9]`)
	return func(_ int, request hrana.Request) hrana.Action {
		server().Forget()
		if !slices.ContainsFunc(request.Statements(), func(s hrana.Statement) bool { return writes.MatchString(s.SQL) }) {
			return hrana.Action{}
		}
		writer.Lock()
		return hrana.Action{Rewrite: func(reply []byte) []byte {
			if changed.Match(reply) {
				time.Sleep(commit)
			}
			writer.Unlock()
			return reply
		}}
	}
}

// over makes a limiter over n servers, and gives their databases.
func (b *bench) over(s *scope, n int, commit time.Duration) (*ratelimit.Limiter, []*opened, error) {
	var all []*opened
	var shards []ratelimit.Shard
	for i := range n {
		url := ""
		if commit == 0 {
			url = turso.Start(s).URL
		} else {
			cmd, err := b.self("serve", "")
			if err != nil {
				return nil, nil, err
			}
			cmd.Env = append(cmd.Env, commitVariable+"="+commit.String())
			w, err := hire(s, cmd)
			if err != nil {
				return nil, nil, err
			}
			url = server{w}.url()
		}
		o := &opened{DB: databases.Open(s, url), url: url}
		all = append(all, o)
		// A name of its own: a port would share the subjects out differently each time.
		shards = append(shards, ratelimit.Shard{Name: fmt.Sprint("shard-", i), Store: sqlstore.NewRemote(o.HTTP, sqlstore.Config{Deadline: deadline})})
	}
	store, err := ratelimit.NewShards(shards, nil)
	if err != nil {
		return nil, nil, err
	}
	limiter, err := newLimiter(store)
	return limiter, all, err
}

// stream is decisions for subjects that are driven over their limits, some at once.
type stream struct {
	policies []ratelimit.Policy // one subject each
	atOnce   int64
	next     atomic.Int64
	mu       sync.Mutex
	asked    map[int64]int
	admitted map[int64]int
	failed   error
}

// one makes the next decision.
func (st *stream) one(ctx context.Context, limiter *ratelimit.Limiter) {
	k := st.next.Add(1) - 1
	subject := k/(st.atOnce*asksOfShards)*st.atOnce + k%st.atOnce
	charges := []ratelimit.Charge{st.policies[0].Charge(fmt.Sprint("account ", subject))}
	for _, policy := range st.policies[1:] {
		charges = append(charges, policy.Charge(fmt.Sprint("address ", k%st.atOnce)))
	}
	decision, err := limiter.Decide(ctx, charges...)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.asked[subject]++
	if err != nil {
		st.failed = errors.Join(st.failed, err)
	} else if decision.Allowed {
		st.admitted[subject]++
	}
}

func newStream(servers int, policies ...ratelimit.Policy) *stream {
	return &stream{policies: policies, atOnce: int64(servers * subjectsAtOnce), asked: map[int64]int{}, admitted: map[int64]int{}}
}

// exact holds what was admitted against the limit, and what stands in the databases against what was admitted.
func (st *stream) exact(ctx context.Context, all []*opened) error {
	if st.failed != nil {
		return st.failed
	}
	total, refused := 0, 0
	for subject, asked := range st.asked {
		if want := min(asked, limitOfShards); st.admitted[subject] != want {
			return fmt.Errorf("subject %d was admitted %d times of %d, want %d", subject, st.admitted[subject], asked, want)
		}
		total += st.admitted[subject]
		refused += asked - st.admitted[subject]
	}
	var keys, units int
	for _, o := range all {
		var k, u int
		if err := o.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(used), 0) FROM rate_limits WHERE policy = ?`, st.policies[0].Name).Scan(&k, &u); err != nil {
			return err
		}
		keys, units = keys+k, units+u
	}
	if keys != len(st.asked) || units != total || total == 0 {
		return fmt.Errorf("the databases have %d keys with %d units: %d subjects were admitted %d times", keys, units, len(st.asked), total)
	}
	return nil
}

// atMost drives servers as hard as they go, and gives decisions a second.
func (st *stream) atMost(ctx context.Context, limiter *ratelimit.Limiter, workers int, long time.Duration) float64 {
	start := time.Now()
	from := st.next.Load()
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for time.Since(start) < long && ctx.Err() == nil {
				st.one(ctx, limiter)
			}
		})
	}
	group.Wait()
	return float64(st.next.Load()-from) / time.Since(start).Seconds()
}

// steady makes so many decisions a second for so long, whether the ones before are done or not, and gives how many a second were done,
// and how long each took from when it was due.
func (st *stream) steady(ctx context.Context, limiter *ratelimit.Limiter, rate float64, long time.Duration) (held float64, times figure) {
	n := max(1, int(rate*long.Seconds()))
	times.nanos = make([]int64, n)
	start := time.Now()
	var group sync.WaitGroup
	for i := range n {
		due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		if ctx.Err() != nil {
			break
		}
		group.Go(func() {
			st.one(ctx, limiter)
			times.nanos[i] = time.Since(due).Nanoseconds()
		})
	}
	group.Wait()
	held = float64(n) / time.Since(start).Seconds()
	slices.Sort(times.nanos)
	return held, times
}

// shards measures what several servers do, and prints a line for each number of them and each time of a commit.
func (b *bench) shards(run shardsRun, out io.Writer) int {
	fmt.Fprintf(out, "| a commit takes | servers | decisions a second at the most | against 1 | for %d a second it takes | steady for %v, a second | p50 | p99 | of two subjects, at the most | exact |\n", goal, run.steady)
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|---|")
	failed := false
	for _, commit := range run.commits {
		first := 0.0
		for _, n := range run.servers {
			what := commit.String()
			if commit == 0 {
				what = "Turso's server"
			}
			fmt.Fprintf(b.say, "%s, %d …\n", what, n)
			line, err := within(b.ctx, func(s *scope) (string, error) { return b.shardsLine(s, run, n, commit, &first) })
			var missing couldNot
			if errors.As(err, &missing) {
				line = "could not: " + string(missing)
			} else if err != nil {
				failed = true
				line = "FAILED: " + strings.ReplaceAll(err.Error(), "\n", " ")
			}
			fmt.Fprintf(out, "| %s | %d | %s |\n", what, n, line)
		}
	}
	if err := b.ctx.Err(); err != nil || failed {
		return command.Failed
	}
	return 0
}

func (b *bench) shardsLine(s *scope, run shardsRun, n int, commit time.Duration, first *float64) (string, error) {
	limiter, all, err := b.over(s, n, commit)
	if err != nil {
		return "", err
	}
	short := max(run.steady/6, 100*time.Millisecond)
	workers := 16 * n
	alone := wide("alone")
	alone.Limit = limitOfShards
	one := newStream(n, alone)
	most := one.atMost(b.ctx, limiter, workers, short)
	held, times := one.steady(b.ctx, limiter, most*steadyPart, run.steady)
	if err := one.exact(b.ctx, all); err != nil {
		return "", err
	}
	account, address := wide("account"), wide("address")
	account.Limit, address.Count = limitOfShards, ratelimit.EveryAttempt
	two := newStream(n, account, address)
	mostOfTwo := two.atMost(b.ctx, limiter, workers, short)
	if err := two.exact(b.ctx, all); err != nil {
		return "", fmt.Errorf("of two subjects: %w", err)
	}
	if *first == 0 {
		*first = most / float64(n)
	}
	each := most / float64(n)
	millis := func(q float64) string { return fmt.Sprintf("%.0f ms", times.quantile(q)/1e6) }
	return fmt.Sprintf("%.1f | %.2f | %.0f, or %.0f at %.0f %% | %.1f | %s | %s | %.1f | %d of %d subjects over their limit",
		most, most / *first, math.Ceil(goal/each), math.Ceil(goal/each/steadyPart), 100*steadyPart, held, millis(0.5), millis(0.99), mostOfTwo,
		one.over(), len(one.asked)), nil
}

// over is how many subjects were asked for more than their limit.
func (st *stream) over() (n int) {
	for _, asked := range st.asked {
		if asked > limitOfShards {
			n++
		}
	}
	return n
}

// commitTime is what the environment of a worker says a commit takes; 0 for no model.
func commitTime() (time.Duration, error) {
	text := os.Getenv(commitVariable)
	if text == "" {
		return 0, nil
	}
	return time.ParseDuration(text)
}
