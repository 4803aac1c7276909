//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weirlimits/weir/scripts/internal/command"
)

func TestMain(m *testing.M) {
	if work(os.Stdin, os.Stdout, os.Stderr) {
		return
	}
	os.Exit(m.Run())
}

// benchmark runs the command in this process; its workers are copies of this test program.
func benchmark(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(t.Context(), args, &out, &problems)
	return code, out.String(), problems.String()
}

func TestAQuickRunPrintsEveryLineAndJudgesCountsOnly(t *testing.T) {
	code, stdout, stderr := benchmark(t, "-quick")
	if code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	var rest []string
	for _, line := range []string{ // a | stands for whatever is between
		"processors|`go run ./scripts/bench -quick`",
		"| HTTP requests per decision to the store, one after the other | 64 requests for 64 decisions|| 1.00 | 1.00 | met |",
		"| HTTP requests per decision to the store, 32 at once | 64 requests for 64 decisions|| 1.00 | 1.00 | met |",
		"| the same, one after the other, through libsql-client-go",
		"| processor time of a decision over HTTP, against a bare POST|≤ 1.4 | not judged |",
		"| the same through libsql-client-go |",
		"| flexible | | | | could not: -quick",
		"| redis | | | | could not: -quick",
		"| throttled | | | | could not: -quick",
		"| three fixed windows in one decision, against three decisions of one |≤ 0.8 | not judged |",
		"| three algorithms in one decision, against three decisions of one |≤ 0.8 | not judged |",
		"| one limit among 10000 live keys, against 1000 |≤ 1.3 | not judged |",
		"| start | | | | could not: -quick",
		"| rows written by a refusal after the first | 0 by 500 refusals|| 0.00 | 0.00 | met |",
		"| rows written by a refusal after the first, on the libSQL server, as it counts them | 0 by 500 refusals|| 0.00 | 0.00 | met |",
		"| decisions a second on one file, from 1, 2, 4, 8 processes |",
		"| upstash | | | | could not: -quick",
		"| µs | fastest round | p50 | p99 | p99.9 |",
		"| a bare POST of its bytes |",
		"| one limit, in each of 8 processes |",
		" 0 not met; ",
		", 0 went wrong",
	} {
		rest = append(rest, strings.Split(line, "|")...)
	}
	at := stdout
	for _, part := range rest {
		_, after, found := strings.Cut(at, strings.TrimSpace(part))
		if !found {
			t.Fatalf("%q is missing, or too early, in\n%s", part, stdout)
		}
		at = after
	}
}

func TestABarThatIsNotMetIsAFailureUnlessOnlyAReportIsAsked(t *testing.T) {
	timed := row{what: "a time", ratio: 1.5, bar: 1.4, hasBar: true}
	counted := row{what: "a count", ratio: 1.01, bar: 1, hasBar: true, counted: true}
	zero := row{what: "none", ratio: 0, bar: 0, hasBar: true, counted: true}
	for name, test := range map[string]struct {
		rows        []row
		err         error
		quick, bars bool
		code        int
		part        string
	}{
		"a time above its bar":              {rows: []row{timed}, bars: true, code: command.Failed, part: "| 1.50 | ≤ 1.4 | NOT MET |"},
		"a count above its bar":             {rows: []row{counted}, bars: true, code: command.Failed, part: "| 1.01 | 1.00 | NOT MET |"},
		"a report":                          {rows: []row{timed}, code: 0, part: "| NOT MET |"},
		"a quick run judges no times":       {rows: []row{timed}, quick: true, bars: true, code: 0, part: "| not judged |"},
		"a quick run judges counts":         {rows: []row{counted}, quick: true, bars: true, code: command.Failed, part: "| NOT MET |"},
		"none at all":                       {rows: []row{zero}, bars: true, code: 0, part: "| 0.00 | 0.00 | met |"},
		"what could not be measured":        {err: couldNot("no node"), bars: true, code: 0, part: "could not: no node"},
		"what went wrong, also reported":    {err: errors.New("refused"), code: command.Failed, part: "FAILED: refused"},
		"rows stand before what went wrong": {rows: []row{zero}, err: errors.New("refused"), code: command.Failed, part: "met |\n| it | | | | FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := report{out: &out, quick: test.quick}
			r.add("it", func() ([]row, error) { return test.rows, test.err })
			if code := r.end(t.Context(), test.bars); code != test.code || !strings.Contains(out.String(), test.part) {
				t.Errorf("exit code %d and\n%s\nwant %d and %q", code, out.String(), test.code, test.part)
			}
		})
	}
}

func TestTheFastestRoundOfEachIsCompared(t *testing.T) {
	took := map[string][]int64{"a": {30, 10, 20}, "b": {15, 45, 5}}
	var order string
	var contenders []contender
	for _, name := range []string{"a", "b"} {
		contenders = append(contenders, contender{name, func(n int) (outcome, error) {
			order += name
			next := took[name][0]
			took[name] = took[name][1:]
			return outcome{nanos: []int64{next - 1, next + 1}}, nil
		}})
	}
	figures, err := compare(t.Context(), 3, 2, contenders...)
	if err != nil {
		t.Fatal(err)
	}
	if order != "abbaab" {
		t.Errorf("order %s", order)
	}
	if r := versus("a against b", 2, contenders, figures); r.ratio != 2 || figures[0].fastest != 10 {
		t.Errorf("%+v", r)
	}
	if p50, p99 := figures[0].quantile(0.5), figures[0].quantile(0.99); p50 != 19 || p99 != 31 {
		t.Errorf("p50 %v, p99 %v of %v", p50, p99, figures[0].nanos)
	}
}

func TestARoundThatDidLessThanItWasToldIsAnError(t *testing.T) {
	short := contender{"short", func(n int) (outcome, error) { return outcome{nanos: make([]int64, n-1)}, nil }}
	if _, err := compare(t.Context(), 1, 5, short); err == nil {
		t.Error("none")
	}
}

// A measurement of wrong answers, or of one key where there should be many, is no measurement.
func TestTheCheckOfTheTableFindsWhatIsMissing(t *testing.T) {
	_, err := within(t.Context(), func(s *scope) (struct{}, error) {
		o := openFile(s, 3)
		one := o.charge(s.ctx, wide("p"))
		for range 4 {
			if err := one(); err != nil {
				return struct{}{}, err
			}
		}
		for _, wrong := range [][2]int{{2, 4}, {3, 5}, {4, 4}} {
			if err := o.check(s.ctx, wide("p"), wrong[0], wrong[1]); err == nil {
				t.Errorf("%v keys and units: no error", wrong)
			}
		}
		small := wide("small")
		small.Limit = 1
		full := o.charge(s.ctx, small)
		for i := range 6 {
			if err := full(); (err != nil) != (i >= 3) {
				return struct{}{}, fmt.Errorf("decision %d at a limit of one: %v", i+1, err)
			}
		}
		return struct{}{}, o.check(s.ctx, wide("p"), 3, 4)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAWorkerThatFailsSaysWhy(t *testing.T) {
	b := &bench{ctx: t.Context()}
	_, err := within(t.Context(), func(s *scope) (*worker, error) {
		cmd, err := b.self("decide", "no URL")
		if err != nil {
			return nil, err
		}
		return hire(s, cmd)
	})
	if err == nil || !strings.Contains(err.Error(), "TURSO_DATABASE_URL") {
		t.Errorf("got %v", err)
	}
}

func TestAWrongCommandLineIsToldWithTheUsage(t *testing.T) {
	for _, args := range [][]string{
		{"-fast"}, {"-run", "("}, {"all"}, {"-shards", "-servers", "0"}, {"-shards", "-servers", "17"}, {"-shards", "-commits", "soon"}, {"-shards", "-commits", "-1s"},
		{"-shards", "-for", "0s"},
	} {
		if code, _, stderr := benchmark(t, args...); code != command.WrongUsage || !strings.Contains(stderr, "usage: ") {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
	}
	if code, stdout, _ := benchmark(t, "-h"); code != 0 || !strings.Contains(stdout, "processes, upstash") {
		t.Errorf("-h: exit code %d: %s", code, stdout)
	}
}

// Row D6. What it measures is judged by nobody here; that each limit was exact is.
func TestServersWithSlowCommitsAreDrivenOverTheirLimitsExactly(t *testing.T) {
	code, stdout, stderr := benchmark(t, "-shards", "-for", "600ms", "-commits", "2ms", "-servers", "1,2")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != 0 || len(lines) != 7 {
		t.Fatalf("exit code %d: %s\n%s", code, stdout, stderr)
	}
	for i, line := range lines[5:] {
		if columns := strings.Split(line, " | "); len(columns) != 10 || columns[0] != "| 2ms" || columns[1] != fmt.Sprint(i+1) || !strings.Contains(line, "subjects over their limit") {
			t.Errorf("%q", line)
		}
	}
}

func TestAStreamThatIsNotExactIsFound(t *testing.T) {
	_, err := within(t.Context(), func(s *scope) (struct{}, error) {
		o := openFile(s, 1)
		policy := wide("p")
		policy.Limit = limitOfShards
		st := newStream(4, policy)
		for range 12 * subjectsAtOnce {
			st.one(s.ctx, o.limiter)
		}
		if err := st.exact(s.ctx, []*opened{o}); err != nil {
			t.Error(err)
		}
		for what, spoil := range map[string]func(*stream){
			"one admitted more": func(st *stream) { st.admitted[7]++ },
			"one refused":       func(st *stream) { st.admitted[7]-- },
			"a subject more":    func(st *stream) { st.asked[1000], st.admitted[1000] = 1, 1 },
			"an error":          func(st *stream) { st.failed = errors.New("cut") },
		} {
			other := newStream(4, policy)
			for subject, asked := range st.asked {
				other.asked[subject], other.admitted[subject] = asked, st.admitted[subject]
			}
			spoil(other)
			if other.exact(s.ctx, []*opened{o}) == nil {
				t.Errorf("%s: not found", what)
			}
		}
		return struct{}{}, nil
	})
	if err != nil {
		t.Error(err)
	}
}
