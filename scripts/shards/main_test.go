package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/hrana"
	"github.com/weirlimits/weir/lib/testkit/repo"
	"github.com/weirlimits/weir/scripts/internal/command"
)

var secret = []byte("a secret of tests, 32 bytes long")

func limiter(t *testing.T, now, next []ratelimit.Shard) *ratelimit.Limiter {
	t.Helper()
	shards, err := ratelimit.NewShards(now, next)
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.New(shards, secret, ratelimit.Config{Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// Row D6: after carry a subject is banned or exempt wherever it moves to, and what was lifted stays lifted.
func TestBansMoveAndWhatWasLiftedStaysLifted(t *testing.T) {
	repo.Project(t)
	var all []ratelimit.Shard
	var urls []string
	var dbs []*database.DB
	for _, name := range []string{"a", "b", "c", "d"} {
		server := hrana.Start(t, hrana.Config{})
		db := databases.Open(t, server.URL)
		dbs = append(dbs, db)
		urls = append(urls, name+"="+server.URL)
		all = append(all, ratelimit.Shard{Name: name, Store: sqlstore.NewRemote(db.HTTP, sqlstore.Config{Deadline: time.Minute})})
	}
	list := func(n int) string { return strings.Join(urls[:n], ",") }
	carry := func(now, next int) (code int, stdout, stderr string) {
		settings := map[string]string{"TURSO_DATABASE_URL": "http://127.0.0.1:1", "TURSO_DATABASE_URLS": list(now), "TURSO_DATABASE_URLS_NEXT": list(next)}
		var out, problems bytes.Buffer
		code = run(t.Context(), []string{"carry"}, func(name string) (string, bool) { value := settings[name]; return value, value != "" }, &out, &problems)
		return code, out.String(), problems.String()
	}
	policy := ratelimit.Policy{Name: "p", Algorithm: ratelimit.FixedWindow, Limit: 2, Window: ratelimit.MaxWindow}
	until := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	subjects := strings.Fields("0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29")
	operate := func(limiter *ratelimit.Limiter, action ratelimit.Action, subject string) {
		t.Helper()
		if err := limiter.Operate(t.Context(), action, policy, subject, until); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(limiter *ratelimit.Limiter, want func(i int) string) {
		t.Helper()
		for i, subject := range subjects {
			got := "limited"
			decision, err := limiter.Peek(t.Context(), policy.ChargeN(subject, 2))
			switch {
			case err != nil:
				t.Fatal(err)
			case !decision.Allowed:
				got = "banned"
			}
			if got == "limited" {
				for range 2 { // who is exempt passes beyond the limit
					if decision, err = limiter.Decide(t.Context(), policy.ChargeN(subject, 2)); err != nil {
						t.Fatal(err)
					}
				}
				if decision.Allowed {
					got = "exempt"
				}
				if err := limiter.Operate(t.Context(), ratelimit.Reset, policy, subject, time.Time{}); err != nil {
					t.Fatal(err)
				}
				if got == "exempt" {
					operate(limiter, ratelimit.Allow, subject)
				}
			}
			if got != want(i) {
				t.Errorf("subject %s is %s, want %s", subject, got, want(i))
			}
		}
	}
	first := func(i int) string { return []string{"banned", "exempt", "limited"}[i%3] }
	before := limiter(t, all[:2], nil)
	for i, subject := range subjects {
		switch first(i) {
		case "banned":
			operate(before, ratelimit.Ban, subject)
		case "exempt":
			operate(before, ratelimit.Allow, subject)
		}
	}
	code, stdout, stderr := carry(2, 3)
	if code != 0 || !strings.HasPrefix(stdout, "40 ") || stderr != "" { // 20 to c, and those of a and of b to each other
		t.Fatalf("code %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, _ = carry(2, 3); code != 0 || !strings.HasPrefix(stdout, "0 ") {
		t.Errorf("a second time: code %d, %q", code, stdout)
	}
	three := limiter(t, all[:3], nil)
	expect(three, first)
	// Half of the bans are lifted, where their subjects are now. The copies elsewhere don't bring them back.
	second := func(i int) string {
		if i%6 == 0 {
			return "limited"
		}
		return first(i)
	}
	for i, subject := range subjects {
		if i%6 == 0 {
			operate(three, ratelimit.Reset, subject)
		}
	}
	if code, stdout, stderr = carry(3, 4); code != 0 {
		t.Fatalf("code %d, %q, %q", code, stdout, stderr)
	}
	var moved int
	if err := dbs[3].QueryRow("SELECT count(*) FROM rate_limits WHERE override <> 0").Scan(&moved); err != nil || moved != 15 {
		t.Errorf("the fourth has %d bans and exemptions, %v, want 15", moved, err)
	}
	four := limiter(t, all, nil)
	expect(four, second)
	// The other half is lifted, where its subjects are by then, and two databases are taken away. The copies in the others end.
	for i, subject := range subjects {
		if i%6 == 3 {
			operate(four, ratelimit.Reset, subject)
		}
	}
	if code, stdout, stderr = carry(4, 2); code != 0 {
		t.Fatalf("code %d, %q, %q", code, stdout, stderr)
	}
	expect(limiter(t, all[:2], nil), func(i int) string {
		if i%3 == 0 {
			return "limited"
		}
		return first(i)
	})
}

func TestWhatCannotBeCarriedIsToldWithoutAURL(t *testing.T) {
	repo.Project(t)
	for _, args := range [][]string{nil, {"copy"}, {"carry", "all"}} {
		var out, problems bytes.Buffer
		if code := run(t.Context(), args, func(string) (string, bool) { return "", false }, &out, &problems); code != command.WrongUsage || !strings.HasPrefix(problems.String(), "usage:") {
			t.Errorf("%q: code %d, %q", args, code, problems.String())
		}
	}
	for _, settings := range []map[string]string{
		{}, {"TURSO_DATABASE_URLS_NEXT": "http://127.0.0.1:1/s3cr3t?x"}, {"TURSO_DATABASE_URLS_NEXT": "a=http://127.0.0.1:1,b=http://127.0.0.1:2"},
	} {
		settings["TURSO_DATABASE_URL"] = "http://127.0.0.1:1"
		var out, problems bytes.Buffer
		code := run(t.Context(), []string{"carry"}, func(name string) (string, bool) { value, found := settings[name]; return value, found }, &out, &problems)
		if code != command.Failed || problems.Len() == 0 || strings.Contains(problems.String(), "s3cr3t") {
			t.Errorf("%v: code %d, %q", settings, code, problems.String())
		}
	}
	var out, problems bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, nil, &out, &problems); code != 0 || out.String() != usage {
		t.Errorf("-h: code %d", code)
	}
}
