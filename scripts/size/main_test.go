package main

import (
	"bytes"
	"context"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/scripts/internal/command"
)

func size(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(t.Context(), args, &out, &problems)
	return code, out.String(), problems.String()
}

// Row D10.
func TestTheStorageOfTheExerciseIsReckonedAndMeasured(t *testing.T) {
	for _, test := range []struct {
		algorithm, arithmetic string
		unit                  string // of what is measured
		from, to              float64
	}{
		{"sliding-log", "800 MB: 1000000 × 800 bytes", "GB", 0.8, 1.6},
		{"sliding-window", "16 MB: 1000000 × 16 bytes", "MB", 16, 160},
	} {
		code, out, problems := size(t, "-clients", "1000000", "-algorithm", test.algorithm, "-limit", "100", "-sample", "2000")
		if code != 0 || !strings.Contains(out, "storage by arithmetic  "+test.arithmetic+"\n") {
			t.Errorf("%s: code %d, %q and\n%s", test.algorithm, code, problems, out)
		}
		_, measured, _ := strings.Cut(out, "storage as measured ")
		fields := strings.Fields(measured)
		if len(fields) < 2 || strings.TrimSuffix(fields[1], ":") != test.unit {
			t.Fatalf("%s: no size in %s in\n%s", test.algorithm, test.unit, out)
		}
		if n, err := strconv.ParseFloat(fields[0], 64); err != nil || n < test.from || n > test.to {
			t.Errorf("%s: %v %s as measured, want %v to %v", test.algorithm, n, test.unit, test.from, test.to)
		}
	}
}

// What a sample foretells is what a table of ten times as many keys takes.
func TestASampleForetellsALargerTable(t *testing.T) {
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket", "leaky-bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			policy, err := policyOf(algorithm, 20, -1)
			if err != nil {
				t.Fatal(err)
			}
			small, err := measure(t.Context(), policy, 2000)
			if err != nil {
				t.Fatal(err)
			}
			large, err := measure(t.Context(), policy, 20_000)
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(small-large) > 0.1*large {
				t.Errorf("%.1f bytes a key of 2000, %.1f of 20000: more than a tenth apart", small, large)
			}
			if least := float64(entryBytes(policy)); small < least {
				t.Errorf("%.1f bytes a key: less than its %.0f bytes of numbers", small, least)
			}
		})
	}
}

// Pages are larger than keys: a table of one key says nothing of a million.
func TestAFewClientsAreMeasuredByATableOfMore(t *testing.T) {
	code, out, problems := size(t, "-clients", "1")
	if code != 0 || strings.Contains(out, "× 0 bytes") || !strings.Contains(out, "a table of 100 keys filled") {
		t.Errorf("code %d, %q and\n%s", code, problems, out)
	}
}

// A month of one client, played on a store, writes what the command says, by SQLite's own count.
func TestAMonthOfAClientWritesTheRowsThatAreSaid(t *testing.T) {
	const requests, trips, refunds, visits = 12, 2, 3, 4
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket", "leaky-bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			ctx := t.Context()
			db := databases.File(t)
			db.SetMaxOpenConns(1) // the count is a connection's
			now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
			store := sqlstore.New(db.DB, sqlstore.Config{Deadline: time.Minute, Now: func() time.Time { return now }, SweepEvery: -1, AuditRetention: time.Hour})
			limiter, err := ratelimit.New(store, make([]byte, ratelimit.MinSecretBytes), ratelimit.Config{Deadline: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			policy, err := policyOf(algorithm, requests/visits, -1)
			if err != nil {
				t.Fatal(err)
			}
			before := changes(t, ctx, db)
			for visit := range visits {
				var last ratelimit.Decision
				for range requests / visits {
					if last, err = limiter.Decide(ctx, policy.Charge("client")); err != nil || !last.Allowed {
						t.Fatalf("allowed %t, %v", last.Allowed, err)
					}
				}
				if visit < trips {
					for range 5 {
						if decision, err := limiter.Decide(ctx, policy.Charge("client")); err != nil || decision.Allowed {
							t.Fatalf("allowed %t, %v", decision.Allowed, err)
						}
					}
				}
				if visit < refunds {
					if err := limiter.GiveBack(ctx, last.Limits[0].Reservation); err != nil {
						t.Fatal(err)
					}
				}
				now = now.Add(90 * 24 * time.Hour)
				if _, done, err := limiter.Sweep(ctx); err != nil || !done {
					t.Fatalf("done %t, %v", done, err)
				}
				if _, _, err := store.SweepAudit(ctx); err != nil {
					t.Fatal(err)
				}
			}
			got := changes(t, ctx, db) - before
			// Refunds go when later ones come along; SQLite doesn't count the rows of an index.
			var still int64
			if err := db.QueryRowContext(ctx, "SELECT count(*) FROM rate_limit_refunds").Scan(&still); err != nil {
				t.Fatal(err)
			}
			month := question{policy: policy, requests: requests, trips: trips, refunds: refunds, visits: visits}
			if said := month.rowsWritten() - refunds*month.refundIndexRows(); got+still != said {
				t.Errorf("%d rows written and %d to go, the command says %d", got, still, said)
			}
		})
	}
}

func TestAPlanCostsItsPriceAndWhatGoesBeyond(t *testing.T) {
	for _, test := range []struct {
		plan          string
		rows, storage float64
		dollars       float64 // negative: the plan can't have it
	}{
		{"Free", 10e6, 5e9, 0},
		{"Free", 10e6 + 1, 0, -1},
		{"Free", 0, 5e9 + 1, -1},
		{"Developer", 25e6, 9e9, 4.99},
		{"Developer", 26e6, 10e9, 4.99 + 1 + 0.75},
		{"Scaler", 200e6, 0, 24.92 + 80},
		{"Pro", 0, 150e9, 416.58 + 45},
	} {
		for _, plan := range plans {
			if plan.name != test.plan {
				continue
			}
			more, fits := plan.bill(test.rows, test.storage)
			if got := plan.dollars + more.rows + more.storage; fits != (test.dollars >= 0) || fits && math.Abs(got-test.dollars) > 0.001 {
				t.Errorf("%s with %v rows and %v bytes: %v dollars, fits %t; want %v", test.plan, test.rows, test.storage, got, fits, test.dollars)
			}
		}
	}
}

func TestAWrongQuestionIsNamed(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-clients", "0"}, "-clients is 0: allowed are 1 to 1000000000"},
		{[]string{"-clients", "many"}, "invalid value \"many\""},
		{[]string{"-limit", "0"}, "-limit is 0"},
		{[]string{"-algorithm", "bucket"}, `algorithm "bucket": allowed: fixed-window`},
		{[]string{"-algorithm", "sliding-log", "-limit", "1001"}, "allowed are 1 to 1000"},
		{[]string{"-queue", "3"}, "queue"},
		{[]string{"-algorithm", "leaky-bucket", "-queue", "-1"}, "-queue is -1: allowed are 0 to 1000000000"},
		{[]string{"-refunds", "2", "-requests", "1"}, "-refunds is 2 of 1 requests"},
		{[]string{"-visits", "-1"}, "-visits is -1: allowed are 0 to 1000000000"},
		{[]string{"now"}, `unexpected argument "now"`},
	} {
		code, out, problems := size(t, test.args...)
		if code != command.WrongUsage || out != "" || !strings.Contains(problems, test.want) || !strings.Contains(problems, "usage: ") {
			t.Errorf("%q: code %d, %q, %q; want an error with %q", test.args, code, out, problems, test.want)
		}
	}
	if code, out, problems := size(t, "-h"); code != 0 || out != usage || problems != "" {
		t.Errorf("-h: code %d, %q, %q", code, out, problems)
	}
}

func changes(t *testing.T, ctx context.Context, db *database.DB) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(ctx, "SELECT total_changes()").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
