//go:build unix

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// charge is what a decision charged to a key, at the store's time.
type charge struct{ micros, cost int64 }

// span is when something whose outcome is unknown may have been carried out, and how much it was.
type span struct{ from, to, cost int64 }

// mark is which write of a key a charge was.
type mark struct{ epoch, sequence int64 }

// account is what is known of a key.
type account struct {
	load     load
	charges  []charge
	unknown  []span
	marks    []mark
	refused  []int64 // when the key itself was full, of fixed windows; by the store's time
	refusals int64
	used     int64 // the most that a state said

	returned, perhapsReturned int64 // units
}

// books are all accounts, by key.
type books struct {
	byKey     map[int64]*account
	loads     map[string]load
	decisions int64 // answered
	unknown   int64 // decisions
	partly    int64 // that charged some of their limits and not all
}

// lateness is how long after its deadline a call that nobody waits for any more may still be carried out.
const lateness = 2 * time.Second

// answers counts the decisions that a child's trace tells were answered.
func answers(name string) (n int64, err error) {
	err = eachLine(name, func(fields []string) error {
		if fields[0] == "A" && len(fields) > 2 {
			n++
		}
		return nil
	})
	return n, err
}

// eachLine reads the whole lines of a trace: a process may have been killed within one.
func eachLine(name string, each func(fields []string) error) error {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil // killed before it began
	}
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			return fmt.Errorf("%s: a line says %q", name, lines.Text())
		}
		if err := each(fields); err != nil {
			return fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
		}
	}
	return lines.Err()
}

// numbers reads numbers that stand between colons.
func numbers(text string) ([]int64, error) {
	var all []int64
	for _, part := range strings.Split(text, ":") {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// asked is a call that was begun.
type asked struct {
	wall     int64
	decision bool
	keys     []int64
	costs    []int64
}

// read adds a trace to the books.
func (b *books) read(name string) error {
	open := map[string]asked{}
	err := eachLine(name, func(fields []string) error {
		id := fields[1]
		switch fields[0] {
		case "B":
			wall, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil {
				return err
			}
			call := asked{wall: wall, decision: fields[3] == "D"}
			for _, text := range fields[4:] {
				policy, rest, _ := strings.Cut(text, ":")
				values, err := numbers(rest)
				if err != nil || len(values) != 2 {
					return errors.Join(err, errors.New("no key and cost"))
				}
				if b.byKey[values[0]] == nil {
					b.byKey[values[0]] = &account{load: b.loads[policy]}
				}
				call.keys, call.costs = append(call.keys, values[0]), append(call.costs, values[1])
			}
			open[id] = call
			return nil
		case "A":
			call := open[id]
			delete(open, id)
			return b.answered(call, fields[2:])
		case "E":
			call := open[id]
			delete(open, id)
			b.unanswered(call)
			return nil
		}
		return errors.New("a line of no kind")
	})
	for _, call := range open {
		b.unanswered(call)
	}
	return err
}

func (b *books) unanswered(call asked) {
	if call.decision {
		b.unknown++
	}
	for i, key := range call.keys {
		a := b.byKey[key]
		if !call.decision {
			a.perhapsReturned += call.costs[i]
			continue
		}
		a.unknown = append(a.unknown, span{call.wall - 1000, call.wall + (deadline + lateness).Microseconds(), call.costs[i]})
	}
}

func (b *books) answered(call asked, rows []string) error {
	if !call.decision {
		for i, key := range call.keys {
			b.byKey[key].returned += call.costs[i]
		}
		return nil
	}
	if len(rows) != len(call.keys) {
		return errors.New("a row for each limit is missing")
	}
	b.decisions++
	charged, all := 0, 0
	for i, text := range rows {
		row, err := numbers(text)
		if err != nil || len(row) != 6 {
			return errors.Join(err, errors.New("no row"))
		}
		now, used, at := row[0], row[2], row[3]
		a := b.byKey[call.keys[i]]
		policy := a.load.policy
		a.used = max(a.used, used)
		if policy.Count == ratelimit.Admitted {
			all++
		}
		if row[1] == 1 {
			if policy.Count == ratelimit.Admitted {
				charged++
			}
			a.charges = append(a.charges, charge{now, call.costs[i]})
			a.marks = append(a.marks, mark{row[4], row[5]})
			continue
		}
		a.refusals++
		window := policy.Window.Microseconds()
		if policy.Algorithm == ratelimit.FixedWindow && at/window == now/window && used+call.costs[i] > policy.Limit {
			a.refused = append(a.refused, now)
		}
	}
	if charged > 0 && (charged < all || slices.ContainsFunc(rows, func(row string) bool { return strings.Split(row, ":")[1] == "0" })) {
		b.partly++
	}
	return nil
}

// sum gives what was charged, and what may have been.
func (a *account) sum() (known, perhaps int64) {
	for _, c := range a.charges {
		known += c.cost
	}
	for _, s := range a.unknown {
		perhaps += s.cost
	}
	return known, perhaps
}

// faults of a key say what it was told that can't be.
func (a *account) faults() (faults []string, exact int) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	slices.SortFunc(a.marks, func(x, y mark) int {
		return cmp.Or(cmp.Compare(x.epoch, y.epoch), cmp.Compare(x.sequence, y.sequence))
	})
	for i := 1; i < len(a.marks); i++ {
		if a.marks[i] == a.marks[i-1] {
			fault("two charges are the same write, %+v", a.marks[i])
			break
		}
	}
	policy := a.load.policy
	if a.used > policy.Capacity() {
		fault("%d were used of %d", a.used, policy.Capacity())
	}
	if a.load.steady() {
		return faults, 0
	}
	slices.SortFunc(a.charges, func(x, y charge) int { return cmp.Compare(x.micros, y.micros) })
	window := policy.Window.Microseconds()
	switch policy.Algorithm {
	case ratelimit.FixedWindow:
		got := a.perWindow(window)
		for _, n := range got {
			if n > policy.Limit {
				fault("%d were admitted in a window of %d", n, policy.Limit)
			}
		}
		full := map[int64]bool{}
		for _, at := range a.refused {
			full[at/window] = true
		}
		for at := range full {
			if slices.ContainsFunc(a.unknown, func(s span) bool { return s.from/window <= at && at <= s.to/window }) {
				continue
			}
			exact++
			if got[at] != policy.Limit {
				fault("%d of %d were admitted in a window that refused", got[at], policy.Limit)
			}
		}
	case ratelimit.SlidingWindow:
		for _, n := range a.perWindow(window) {
			if n > policy.Limit {
				fault("%d were admitted in a window of %d", n, policy.Limit)
			}
		}
		if n := a.rolling(window); n >= 2*policy.Limit {
			fault("%d were admitted in a stretch of one window, of %d", n, policy.Limit)
		}
	case ratelimit.SlidingLog:
		if n := a.rolling(window); n > policy.Limit {
			fault("%d were admitted in a stretch of one window, of %d", n, policy.Limit)
		}
	case ratelimit.TokenBucket, ratelimit.LeakyBucket:
		// The level in fractions of a unit, one for each millisecond of the window. What is unknown can only have made it higher.
		ms := policy.Window.Milliseconds()
		level, last := int64(0), int64(0)
		for _, c := range a.charges {
			level = max(level-min((c.micros-last)/1000, 1<<40)*policy.Limit, 0) + c.cost*ms
			last = c.micros
			if level > policy.Capacity()*ms {
				fault("%d/%d units stood in a bucket of %d", level, ms, policy.Capacity())
				break
			}
		}
	}
	return faults, exact
}

func (a *account) perWindow(window int64) map[int64]int64 {
	sums := map[int64]int64{}
	for _, c := range a.charges {
		sums[c.micros/window] += c.cost
	}
	return sums
}

// rolling is the most that was charged in any stretch of one window.
func (a *account) rolling(window int64) (most int64) {
	sum, first := int64(0), 0
	for _, c := range a.charges {
		for sum += c.cost; a.charges[first].micros <= c.micros-window; first++ {
			sum -= a.charges[first].cost
		}
		most = max(most, sum)
	}
	return most
}

// report is what a soak found.
type report struct {
	books    *books
	policies []policyLine
	verdicts []verdict
	took     time.Duration
}

type policyLine struct {
	load                                load
	keys                                int
	admitted, returned, unknown, refuse int64
	faults                              []string
}

type verdict struct {
	what, found string
	ok          bool
}

// reconcile holds the books against each other and against the store.
func reconcile(ctx context.Context, o options, store *theStore, f *family) (*report, error) {
	b := &books{byKey: map[int64]*account{}, loads: map[string]load{}}
	all := loads(o)
	for _, l := range all {
		b.loads[l.policy.Name] = l
	}
	for _, trace := range f.traces {
		if err := b.read(trace); err != nil {
			return nil, err
		}
	}
	r := &report{books: b}
	limiter, err := ratelimit.New(openStore(store.db), secret, ratelimit.Config{Deadline: parentDeadline})
	if err != nil {
		return nil, err
	}
	drained, err := b.drain(ctx, limiter, all)
	if err != nil {
		return nil, err
	}
	exactWindows, full := 0, 0
	for _, l := range all {
		line := policyLine{load: l}
		for key, a := range b.byKey {
			if a.load.policy.Name != l.policy.Name {
				continue
			}
			line.keys++
			known, perhaps := a.sum()
			line.admitted, line.returned = line.admitted+known, line.returned+a.returned
			line.unknown, line.refuse = line.unknown+perhaps, line.refuse+a.refusals
			faults, exact := a.faults()
			exactWindows += exact
			line.faults = append(line.faults, faults...)
			if !l.steady() {
				continue
			}
			stands := drained[key]
			least, most := known-a.returned-a.perhapsReturned, known+perhaps-a.returned
			if l.policy.Algorithm == ratelimit.TokenBucket || l.policy.Algorithm == ratelimit.LeakyBucket {
				most++ // a unit that was given back may be short by what was refilled since
			}
			if stands < least || stands > most {
				line.faults = append(line.faults, fmt.Sprintf("%d units stand where %d to %d were charged", stands, least, most))
			}
			if least > l.policy.Capacity() {
				line.faults = append(line.faults, fmt.Sprintf("%d were admitted of %d", least, l.policy.Capacity()))
			}
			if stands == l.policy.Capacity() {
				full++
			}
		}
		if line.admitted == 0 {
			line.faults = append(line.faults, "nothing was admitted")
		}
		r.policies = append(r.policies, line)
	}
	r.add("decisions whole", fmt.Sprintf("%d answered, %d of unknown outcome, %d charged in part", b.decisions, b.unknown, b.partly), b.partly == 0 && b.decisions > 0)
	r.add("exact where the store answered", fmt.Sprintf("%d windows of a second that refused and %d keys for good were full to the unit", exactWindows, full), exactWindows+full > 0)
	r.exactly(b)
	r.add("faults", fmt.Sprintf("%d processes killed, store taken away %d times", f.kills, f.stops), f.kills > 0 && f.stops > 0)
	if err := r.inspect(ctx, o, store); err != nil {
		return nil, err
	}
	r.flat(f.memory)
	return r, nil
}

func (r *report) add(what, found string, ok bool) {
	r.verdicts = append(r.verdicts, verdict{what, found, ok})
}

// exactly looks at the policy "exact", of which nothing is given back: what was admitted is the limit, but for what is unknown.
func (r *report) exactly(b *books) {
	keys, reached, admitted, unknown, limit := 0, 0, int64(0), int64(0), int64(0)
	ok := true
	for _, a := range b.byKey {
		if a.load.policy.Name != "exact" {
			continue
		}
		known, perhaps := a.sum()
		keys++
		limit = a.load.policy.Limit
		admitted, unknown = admitted+known, unknown+perhaps
		if a.refused != nil { // it was full
			reached++
			ok = ok && known <= limit && known+perhaps >= limit
		}
	}
	r.add("admitted equals the limit", fmt.Sprintf("%d of %d keys reached their limit of %d: %d admitted, %d unknown", reached, keys, limit, admitted, unknown), ok && reached > 0)
}

// drain looks at what stands of each key for which nothing is gained, and that it takes the rest and no more.
func (b *books) drain(ctx context.Context, limiter *ratelimit.Limiter, all []load) (map[int64]int64, error) {
	stands := map[int64]int64{}
	for _, l := range all {
		if !l.steady() {
			continue
		}
		for n := range l.subjects {
			subject := l.subject(n)
			left, err := limiter.Peek(ctx, l.policy.Charge(subject))
			if err != nil {
				return nil, fmt.Errorf("%s: a state that can't be: %w", l.policy.Name, err)
			}
			remaining := left.Limits[0].Remaining
			if remaining > 0 {
				got, err := limiter.Decide(ctx, l.policy.ChargeN(subject, remaining))
				if err != nil {
					return nil, err
				}
				if !got.Allowed {
					return nil, fmt.Errorf("%s: what is left, %d, is not admitted", l.policy.Name, remaining)
				}
			}
			got, err := limiter.Decide(ctx, l.policy.Charge(subject))
			if err != nil {
				return nil, err
			}
			if got.Allowed {
				return nil, fmt.Errorf("%s: one more than the limit is admitted", l.policy.Name)
			}
			key, err := keyOf(l.policy, subject)
			if err != nil {
				return nil, err
			}
			stands[key] = l.policy.Capacity() - remaining
		}
	}
	return stands, nil
}

// keySeen is a store that tells which key it is asked for.
type keySeen struct {
	ratelimit.Store
	key int64
}

func (k *keySeen) Peek(_ context.Context, entries []ratelimit.Entry) ([]ratelimit.Row, error) {
	k.key = entries[0].Key
	return nil, errors.New("only the key was wanted")
}

func keyOf(policy ratelimit.Policy, subject string) (int64, error) {
	seen := &keySeen{}
	limiter, err := ratelimit.New(seen, secret, ratelimit.Config{})
	if err != nil {
		return 0, err
	}
	limiter.Peek(context.Background(), policy.Charge(subject)) // fails
	return seen.key, nil
}

// invalid counts rows that no decision leaves.
const invalid = `
SELECT count(*)
FROM rate_limits
WHERE used < 0
   OR rest < 0
   OR behind_micros < 0
   OR behind_micros > high_micros
   OR sequence < 1
   OR algorithm NOT BETWEEN 1 AND 5
   OR window_micros < 1000
   OR expires_micros <= high_micros - behind_micros
   OR (algorithm = 3) <> (log IS NOT NULL)
   OR (algorithm = 3 AND length(log) <> 8 * used)`

// twice counts first refusals of one window that are in the audit more than once.
const twice = `
SELECT count(*)
FROM (
  SELECT 1
  FROM rate_limit_audit
  WHERE policy IN ('quick-fixed', 'quick-attempts', 'quick-sliding')
  GROUP BY policy, key, at_micros / 1000000
  HAVING count(*) > 1
)`

// inspect looks at the database itself.
func (r *report) inspect(ctx context.Context, o options, store *theStore) error {
	verdict := ""
	if err := store.db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&verdict); err != nil {
		return fmt.Errorf("integrity_check: %w", err)
	}
	r.add("integrity_check", verdict, verdict == "ok")
	var rows, wrong, doubles, audits int64
	for query, into := range map[string]*int64{
		"SELECT count(*) FROM rate_limits": &rows, invalid: &wrong, twice: &doubles, "SELECT count(*) FROM rate_limit_audit": &audits,
	} {
		if err := store.db.QueryRowContext(ctx, query).Scan(into); err != nil {
			return err
		}
	}
	r.add("rows valid", fmt.Sprintf("%d of %d rows are none that a decision leaves", wrong, rows), wrong == 0 && rows > 0)
	r.add("audit", fmt.Sprintf("%d rows, %d windows audited twice", audits, doubles), doubles == 0 && audits > 0)
	return nil
}

// The growth that the last third of a run may have over the middle one: what a garbage collector makes of the same memory.
const (
	growthShare = 0.10
	growthBytes = 8 << 20
)

// flat looks at the memory of the process that was never killed.
func (r *report) flat(samples []int64) {
	if len(samples) < 9 {
		r.add("memory", "not measured", len(samples) == 0) // where the system doesn't tell
		return
	}
	third := len(samples) / 3
	mean := func(part []int64) float64 {
		sum := int64(0)
		for _, n := range part {
			sum += n
		}
		return float64(sum) / float64(len(part))
	}
	middle, last := mean(samples[third:2*third]), mean(samples[2*third:])
	slope := (last - middle) / (float64(third) * sampleEvery.Seconds())
	r.add("memory flat", fmt.Sprintf("%.1f MB in the middle third, %.1f MB in the last, %+.1f KB/s", middle/(1<<20), last/(1<<20), slope/1024),
		last <= middle*(1+growthShare)+growthBytes)
}

// print prints the table, and says whether everything is ok.
func (r *report) print(out io.Writer) bool {
	ok := true
	word := func(good bool) string {
		ok = ok && good
		if good {
			return "ok"
		}
		return "FAILED"
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "policy\talgorithm\tlimit\tkeys\tadmitted\tgiven back\tunknown\trefused\tverdict")
	for _, line := range r.policies {
		limit := fmt.Sprint(line.load.policy.Capacity())
		if !line.load.steady() {
			limit = fmt.Sprintf("%d/%v", line.load.policy.Limit, line.load.policy.Window)
		}
		verdict := word(len(line.faults) == 0)
		for i, fault := range line.faults {
			if i == 3 {
				verdict += fmt.Sprintf("; and %d more", len(line.faults)-i)
				break
			}
			verdict += map[bool]string{true: ": ", false: "; "}[i == 0] + fault
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", line.load.policy.Name, line.load.policy.Algorithm, limit, line.keys, line.admitted,
			line.returned, line.unknown, line.refuse, verdict)
	}
	w.Flush()
	fmt.Fprintln(out)
	for _, v := range r.verdicts {
		fmt.Fprintf(w, "%s\t%s\t%s\n", v.what, word(v.ok), v.found)
	}
	w.Flush()
	fmt.Fprintf(out, "%d decisions in %.1f s: %.0f a second\n", r.books.decisions, r.took.Seconds(), float64(r.books.decisions)/r.took.Seconds())
	return ok
}
