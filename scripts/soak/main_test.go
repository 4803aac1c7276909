//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// A soak starts itself as its processes: here that is this test program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-child" {
		main()
	}
	os.Exit(m.Run())
}

func soaked(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	var out, faults bytes.Buffer
	code = run(t.Context(), args, &out, &faults)
	return code, out.String() + faults.String()
}

// Cases A01, A22, A49; row D7.
func TestASoakOfAFewSecondsFindsNothingWrong(t *testing.T) {
	if code, said := soaked(t, "-for", "5s"); code != 0 {
		t.Errorf("code %d:\n%s", code, said)
	}
}

func TestASoakOnAServerFindsNothingWrong(t *testing.T) {
	turso.Require(t)
	for _, server := range []string{"-turso", "-libsql"} {
		if code, said := soaked(t, "-decisions", "1000", server); code != 0 {
			t.Errorf("%s: code %d:\n%s", server, code, said)
		}
	}
}

func TestASoakUntilSoManyDecisionsFindsNothingWrong(t *testing.T) {
	if code, said := soaked(t, "-decisions", "20000"); code != 0 || !strings.Contains(said, "20000 decisions") {
		t.Errorf("code %d:\n%s", code, said)
	}
}

func TestASoakFindsAStoreThatAdmitsTooManyOrForgets(t *testing.T) {
	for how, found := range map[string]string{
		"over": "61 were used of 60",
		"lost": "units stand where",
	} {
		t.Run(how, func(t *testing.T) {
			if code, said := soaked(t, "-decisions", "3000", "-break", how); code != 1 || !strings.Contains(said, found) {
				t.Errorf("code %d, want 1 and %q:\n%s", code, found, said)
			}
		})
	}
}

func TestAWrongCommandLineIsToldAndNothingIsDone(t *testing.T) {
	for _, args := range [][]string{
		{"-for", "0s"}, {"-for", "100h"}, {"-for", "long"}, {"-processes", "1"}, {"-processes", "65"}, {"-decisions", "-1"}, {"-break", "it"},
		{"more"}, {"-unknown"},
	} {
		var out, faults bytes.Buffer
		if code := run(t.Context(), args, &out, &faults); code != 2 || !strings.Contains(faults.String(), "usage:") || out.Len() > 0 {
			t.Errorf("%q: code %d, %s%s", args, code, out.String(), faults.String())
		}
	}
	var out, faults bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, &out, &faults); code != 0 || !strings.Contains(out.String(), "usage:") {
		t.Errorf("-h: code %d, %s", code, out.String())
	}
}

// entry is a decision of one charge of one unit in a trace, as a recorder writes it.
func entry(id int, policy string, micros, charged, used, sequence int64) string {
	return fmt.Sprintf("B %d %d D %s:7:1\nA %d %d:%d:%d:%d:1:%d\n", id, micros, policy, id, micros, charged, used, micros, sequence)
}

func TestWhatATraceTellsThatCannotBeIsFound(t *testing.T) {
	const second = int64(1_000_000)
	begin := time.Date(2031, time.March, 4, 0, 0, 0, 0, time.UTC).UnixMicro()
	rate := int64(10)
	many := func(policy string, n int64, apart int64) (trace string) {
		for i := range n {
			trace += entry(int(i), policy, begin+i*apart, 1, 1, i)
		}
		return trace
	}
	for _, test := range []struct{ name, trace, found string }{
		{"a fixed window is full", many("quick-fixed", rate, 1000), ""},
		{"a fixed window has one more", many("quick-fixed", rate+1, 1000), "11 were admitted in a window of 10"},
		{"a fixed window refuses too early", many("quick-fixed", rate-1, 1000) + entry(99, "quick-fixed", begin+500_000, 0, rate, 0), "9 of 10 were admitted"},
		{
			"the same, where one is unknown", many("quick-fixed", rate-1, 1000) + entry(99, "quick-fixed", begin+500_000, 0, rate, 0) +
				fmt.Sprintf("B 100 %d D quick-fixed:7:1\n", begin), "",
		},
		{"a sliding window has one more", many("quick-sliding", rate+1, 1000), "11 were admitted in a window of 10"},
		{"a log has one more in a second", many("quick-log", rate+1, second/rate-1000), "11 were admitted in a stretch"},
		{"a log is full", many("quick-log", 5*rate, second/rate), ""},
		{"a bucket has one more", many("quick-tokens", rate/2+1, 0), "6000/1000 units stood in a bucket of 5"},
		{"a bucket is used as fast as it fills", many("quick-tokens", 5*rate, second/rate), ""},
		{"a queue has one more", many("quick-queue", rate/2+2, 0), "7000/1000 units stood in a bucket of 6"},
		{"two charges are one write", entry(1, "exact", begin, 1, 1, 5) + entry(2, "exact", begin, 1, 2, 5), "the same write"},
		{"more is used than there is", entry(1, "exact", begin, 1, 6, 5), "6 were used of 5"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := booksOf(t, test.trace)
			faults, _ := b.byKey[7].faults()
			if got := strings.Join(faults, "; "); test.found == "" && got != "" || !strings.Contains(got, test.found) {
				t.Errorf("faults %q, want %q", got, test.found)
			}
		})
	}
}

func booksOf(t *testing.T, trace string) *books {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(name, []byte(trace), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &books{byKey: map[int64]*account{}, loads: map[string]load{}}
	for _, l := range loads(options{}) {
		b.loads[l.policy.Name] = l
	}
	if err := b.read(name); err != nil {
		t.Fatal(err)
	}
	return b
}

// What a killed process had asked counts as possible; a line that it was killed within doesn't count.
func TestATraceThatBreaksOffLeavesWhatItAskedUnknown(t *testing.T) {
	b := booksOf(t, "B 1 5 D exact:7:1 steady-log:8:2\nB 2 6 D exact:7:1\nE 2 9\nB 3 7 G steady-log:8:2\nB 4 8 D exact:7:1\nA 4 8:1:1:8:1:1\nA 1 5:1")
	known, perhaps := b.byKey[7].sum()
	if known != 1 || perhaps != 2 || b.decisions != 1 || b.unknown != 2 {
		t.Errorf("%d known and %d unknown units, %d decisions and %d unknown", known, perhaps, b.decisions, b.unknown)
	}
	if _, perhaps := b.byKey[8].sum(); perhaps != 2 || b.byKey[8].perhapsReturned != 2 {
		t.Errorf("%d units perhaps charged, %d perhaps given back, want 2 of each", perhaps, b.byKey[8].perhapsReturned)
	}
}

func TestADecisionThatChargesInPartIsFound(t *testing.T) {
	const asked = "B 1 5 D exact:7:1 quick-attempts:8:1 steady-log:9:1\n"
	for answer, partly := range map[string]int64{
		"A 1 5:1:1:5:1:1 5:1:1:5:1:1 5:1:1:5:1:1\n": 0,
		"A 1 5:0:1:5:1:1 5:1:1:5:1:1 5:0:1:5:1:1\n": 0, // what counts every attempt is charged by itself
		"A 1 5:1:1:5:1:1 5:1:1:5:1:1 5:0:1:5:1:1\n": 1,
		"A 1 5:1:1:5:1:1 5:0:1:5:1:1 5:1:1:5:1:1\n": 1,
	} {
		if b := booksOf(t, asked+answer); b.partly != partly {
			t.Errorf("%s: %d decisions in part, want %d", answer, b.partly, partly)
		}
	}
}

func TestGrowingMemoryIsFound(t *testing.T) {
	for grows, want := range map[int64]bool{0: true, 1 << 20: false} {
		var samples []int64
		for i := range int64(60) {
			samples = append(samples, 30<<20+i*grows)
		}
		r := &report{}
		r.flat(samples)
		if r.verdicts[0].ok != want {
			t.Errorf("growth of %d bytes a sample: %+v", grows, r.verdicts[0])
		}
	}
}

// The policies are those of the package, so that what they promise is what is judged.
func TestTheLoadsAreValidAndOfEveryAlgorithm(t *testing.T) {
	for _, o := range []options{{}, {turso: true}, {libsql: true}, {decisions: 1_000_000}} {
		seen := map[ratelimit.Algorithm]bool{}
		for _, l := range loads(o) {
			if err := l.policy.Validate(); err != nil {
				t.Error(err)
			}
			seen[l.policy.Algorithm] = true
		}
		if len(seen) != 5 {
			t.Errorf("%d algorithms", len(seen))
		}
	}
}
