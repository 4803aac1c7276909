//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/faults"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

const (
	// subjects are the distinct keys that are asked in turn, here and by those that Weir is compared with.
	subjects = 1000

	// In a round of so many decisions the log of the file is written back about once: at 1,000 pages, SQLite's default.
	decisionsOfRound = 1000
	rounds           = 40
)

// rounds gives how many rounds of how many, fewer in a quick run.
func (b *bench) rounds(rounds, n int) (int, int) {
	if b.quick {
		return 2, max(1, n/100)
	}
	return rounds, n
}

// wide is a limit that no run reaches, in a window that none straddles.
func wide(name string) ratelimit.Policy {
	return ratelimit.Policy{Name: name, Algorithm: ratelimit.FixedWindow, Limit: ratelimit.MaxLimit, Window: ratelimit.MaxWindow}
}

var secret = []byte("a secret of benchmarks, not of deployments")

// opened is a database with a limiter on it, as an application has it.
type opened struct {
	*database.DB
	url     string
	limiter *ratelimit.Limiter
	names   []string // of the subjects
	made    int      // decisions of charge so far
}

// deadline of a call: a busy machine makes a measurement slow, and should not end it.
const deadline = time.Minute

func newLimiter(store ratelimit.Store) (*ratelimit.Limiter, error) {
	return ratelimit.New(store, secret, ratelimit.Config{Deadline: deadline})
}

func open(s *scope, url string, subjects int) *opened {
	o := &opened{DB: databases.Open(s, url), url: url, names: make([]string, subjects)}
	for i := range o.names {
		o.names[i] = "client " + strconv.Itoa(i)
	}
	config := sqlstore.Config{Deadline: deadline}
	store := sqlstore.New(o.DB.DB, config)
	if o.HTTP != nil {
		store = sqlstore.NewRemote(o.HTTP, config)
	}
	var err error
	if o.limiter, err = newLimiter(store); err != nil {
		s.Fatal(err)
	}
	return o
}

func openFile(s *scope, subjects int) *opened {
	return open(s, "file:"+filepath.Join(s.TempDir(), "weir.db"), subjects)
}

// charge makes one decision by all the policies, for the next subject, and is wrong when that is refused.
func (o *opened) charge(ctx context.Context, policies ...ratelimit.Policy) func() error {
	charges := make([]ratelimit.Charge, len(policies))
	return func() error {
		name := o.names[o.made%len(o.names)]
		o.made++
		for i, policy := range policies {
			charges[i] = policy.Charge(name)
		}
		decision, err := o.limiter.Decide(ctx, charges...)
		if err == nil && !decision.Allowed {
			err = errors.New("refused")
		}
		return err
	}
}

// check holds what stands in the table against what was charged: the keys, and the units of all of them. And of four decisions
// at a limit of three, three are allowed.
func (o *opened) check(ctx context.Context, policy ratelimit.Policy, keys, units int) error {
	if err := o.counts(ctx, policy, keys, units); err != nil {
		return err
	}
	three, seen := wide("three"), map[bool]int{}
	three.Limit = 3
	for range 4 {
		decision, err := o.limiter.Decide(ctx, three.Charge("client"))
		if err != nil {
			return err
		}
		seen[decision.Allowed]++
	}
	if seen[true] != 3 {
		return fmt.Errorf("%d allowed of four at a limit of three", seen[true])
	}
	return nil
}

func (o *opened) counts(ctx context.Context, policy ratelimit.Policy, keys, units int) error {
	var gotKeys, gotUnits int
	err := o.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(used), 0) FROM rate_limits WHERE policy = ?`, policy.Name).Scan(&gotKeys, &gotUnits)
	if err == nil && (gotKeys != keys || gotUnits != units) {
		err = fmt.Errorf("%s has %d keys and %d units, want %d and %d", policy.Name, gotKeys, gotUnits, keys, units)
	}
	return err
}

// full makes refusals for the next subject, whose limit of one is used up.
func (o *opened) full(ctx context.Context) (func() error, error) {
	narrow := wide("narrow")
	narrow.Limit = 1
	for i, name := range o.names {
		// The second one is the first refusal, which writes.
		for range 2 {
			if _, err := o.limiter.Decide(ctx, narrow.Charge(name)); err != nil {
				return nil, fmt.Errorf("subject %d: %w", i, err)
			}
		}
	}
	next := 0
	return func() error {
		decision, err := o.limiter.Decide(ctx, narrow.Charge(o.names[next%len(o.names)]))
		next++
		if err == nil && decision.Allowed {
			err = errors.New("allowed")
		}
		return err
	}, nil
}

// three compares three limits in one decision with three decisions of one.
func (b *bench) three(s *scope) (rows []row, err error) {
	bucket, sliding := wide("b"), wide("c")
	bucket.Algorithm, bucket.Window, bucket.Limit = ratelimit.TokenBucket, time.Hour, 1_000_000
	sliding.Algorithm, sliding.Window, sliding.Limit = ratelimit.SlidingWindow, time.Hour, 1_000_000
	for _, kind := range []struct {
		name     string
		policies []ratelimit.Policy
	}{
		{"fixed windows", []ratelimit.Policy{wide("a"), wide("b"), wide("c")}},
		{"algorithms", []ratelimit.Policy{wide("a"), bucket, sliding}},
	} {
		o := openFile(s, subjects)
		next := 0
		together := o.charge(b.ctx, kind.policies...)
		apart := func() error {
			name := o.names[next%subjects]
			next++
			for _, policy := range kind.policies {
				if decision, err := o.limiter.Decide(b.ctx, policy.Charge(name)); err != nil || !decision.Allowed {
					return errors.Join(err, fmt.Errorf("allowed %t", decision.Allowed))
				}
			}
			return nil
		}
		contenders := []contender{
			{"three " + kind.name + " in one decision", timed(together)},
			{"in three decisions", timed(apart)},
		}
		rounds, n := b.rounds(rounds, decisionsOfRound)
		figures, err := compare(b.ctx, rounds, n, contenders...)
		if err == nil {
			err = o.check(b.ctx, kind.policies[0], min(n*rounds, subjects), 2*n*rounds)
		}
		if err != nil {
			return rows, err
		}
		rows = append(rows, versus("three "+kind.name+" in one decision, against three decisions of one", 0.8, contenders, figures))
	}
	return rows, nil
}

// million compares decisions among a million live keys with those among a thousand.
func (b *bench) million(s *scope) ([]row, error) {
	many := 1_000_000
	if b.quick {
		many = 10_000
	}
	var contenders []contender
	var files []*opened
	policy := wide("live")
	for _, keys := range []int{many, subjects} {
		o := openFile(s, keys)
		fmt.Fprintf(b.say, "filling a file with %d keys …\n", keys)
		for from := 0; from < keys; {
			var charges []ratelimit.Charge
			for ; len(charges) < ratelimit.MaxCharges && from < keys; from++ {
				charges = append(charges, policy.Charge(o.names[from]))
			}
			if decision, err := o.limiter.Decide(b.ctx, charges...); err != nil || !decision.Allowed {
				return nil, errors.Join(err, fmt.Errorf("allowed %t", decision.Allowed))
			}
		}
		// Reads every page, so that the system has both files in memory.
		if err := o.counts(b.ctx, policy, keys, keys); err != nil {
			return nil, err
		}
		next := 0
		files = append(files, o)
		contenders = append(contenders, contender{fmt.Sprintf("one limit among %d live keys", keys), timed(func() error {
			next = (next + 7919) % keys // a prime: all of them, out of order; keys are spread anyhow
			decision, err := o.limiter.Decide(b.ctx, policy.Charge(o.names[next]))
			if err == nil && !decision.Allowed {
				err = errors.New("refused")
			}
			return err
		})})
	}
	rounds, n := b.rounds(rounds, decisionsOfRound)
	figures, err := compare(b.ctx, rounds, n, contenders...)
	if err != nil {
		return nil, err
	}
	for _, o := range files {
		err = errors.Join(err, o.check(b.ctx, policy, len(o.names), len(o.names)+rounds*n))
	}
	if err != nil {
		return nil, err
	}
	return []row{versus(fmt.Sprintf("one limit among %d live keys, against %d", many, subjects), 1.3, contenders, figures)}, nil
}

// refusal counts the rows that refusals write, by SQLite's own count, which has those of triggers
// too, and on the libSQL server by that server's, which is the one that is billed.
func (b *bench) refusal(s *scope) ([]row, error) {
	file := openFile(s, 1)
	file.SetMaxOpenConns(1) // the count is a connection's
	first, err := b.rowsWritten(file, totalChanges(b.ctx, file.DB.DB))
	if err != nil {
		return nil, err
	}
	onTurso, err := within(b.ctx, func(s *scope) (row, error) {
		o := open(s, turso.Start(s).URL, 1)
		return b.rowsWritten(o, totalChanges(b.ctx, o.DB.DB))
	})
	if err != nil {
		return []row{first}, err
	}
	onTurso.what += ", on the Turso server"
	onLibSQL, err := within(b.ctx, func(s *scope) (row, error) {
		proxy := faults.Start(s, turso.StartLibSQL(s).URL)
		o := open(s, proxy.URL, 1)
		// The first row of a new table counts as two.
		if _, err := o.limiter.Decide(b.ctx, wide("first").Charge("client")); err != nil {
			return row{}, err
		}
		return b.rowsWritten(o, func() (int64, error) { return proxy.Rows().Written, nil })
	})
	if err != nil {
		return []row{first, onTurso}, err
	}
	onLibSQL.what += ", on the libSQL server, as it counts them"
	return []row{first, onTurso, onLibSQL}, nil
}

func (b *bench) rowsWritten(o *opened, count func() (int64, error)) (row, error) {
	const refusals = 500
	policies := []ratelimit.Policy{wide("one"), wide("two")}
	policies[0].Limit = 1
	var written [3]int64 // by the admission, the first refusal, the others
	for i := range refusals + 2 {
		before, err := count()
		if err != nil {
			return row{}, err
		}
		decision, err := o.limiter.Decide(b.ctx, policies[0].Charge("client"), policies[1].Charge("client"))
		if err != nil || decision.Allowed != (i == 0) {
			return row{}, errors.Join(err, fmt.Errorf("decision %d: allowed %t", i+1, decision.Allowed))
		}
		after, err := count()
		if err != nil {
			return row{}, err
		}
		written[min(i, 2)] += after - before
	}
	if written[0] != 2 || written[1] < 2 {
		return row{}, fmt.Errorf("the count is wrong: %d rows by an admission by two limits, %d by the first refusal", written[0], written[1])
	}
	return row{
		what:    "rows written by a refusal after the first",
		figures: fmt.Sprintf("%d by %d refusals; %d by the first, %d by the admission by two limits", written[2], refusals, written[1], written[0]),
		ratio:   float64(written[2]) / refusals, hasBar: true, counted: true,
	}, nil
}

// totalChanges counts the rows that were written on a database with one connection.
func totalChanges(ctx context.Context, db *sql.DB) func() (int64, error) {
	return func() (n int64, err error) {
		return n, db.QueryRowContext(ctx, `SELECT total_changes()`).Scan(&n)
	}
}

// processes tells how many decisions a second one file takes from so many processes.
func (b *bench) processes(s *scope) ([]row, error) {
	var figures []string
	var times []named
	rounds, n := b.rounds(5, 4*decisionsOfRound)
	for _, count := range []int{1, 2, 4, 8} {
		o := openFile(s, subjects)
		workers := make([]*worker, count)
		for i := range workers {
			cmd, err := b.self("decide", o.url)
			if err == nil {
				workers[i], err = hire(s, cmd)
			}
			if err != nil {
				return nil, err
			}
		}
		each := max(1, n/count)
		all := contender{fmt.Sprintf("one limit, in each of %d processes", count), func(n int) (outcome, error) {
			done := make([]outcome, count)
			failed := make([]error, count)
			var group sync.WaitGroup
			start := time.Now()
			for i, w := range workers {
				group.Go(func() { done[i], failed[i] = w.does("decide")(each) })
			}
			group.Wait()
			sum := outcome{total: time.Since(start)}
			for _, d := range done {
				sum.nanos = append(sum.nanos, d.nanos...)
			}
			return sum, errors.Join(failed...)
		}}
		figure, err := compare(b.ctx, rounds, each*count, all)
		if err == nil {
			err = o.check(b.ctx, wide("shared"), min(each*rounds, subjects), rounds*each*count)
		}
		if err != nil {
			return nil, err
		}
		figures = append(figures, fmt.Sprintf("%.0f", 1e9/figure[0].fastest))
		figure[0].fastest *= float64(count) // of one process's decision
		times = append(times, named{all.name, figure[0]})
	}
	return []row{{what: "decisions a second on one file, from 1, 2, 4, 8 processes", figures: strings.Join(figures, ", "), times: times}}, nil
}
