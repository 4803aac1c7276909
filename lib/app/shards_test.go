package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/hrana"
)

// onShards spreads the counters of a world over so many files, of n that are there.
func onShards(t *testing.T, now, next int) func(*app.Settings) {
	dir := t.TempDir()
	return func(s *app.Settings) {
		for i := range max(now, next) {
			shard := app.ShardSetting{Name: fmt.Sprint("shard-", i), URL: "file:" + filepath.Join(dir, fmt.Sprintf("weir-%d.db", i))}
			if i < now {
				s.Shards = append(s.Shards, shard)
			}
			if i < next {
				s.NextShards = append(s.NextShards, shard)
			}
		}
	}
}

// shardCounts runs a query on each shard of a world.
func (w *world) shardCounts(settings app.Settings, query string) (counts []int) {
	w.t.Helper()
	for _, shard := range settings.Shards {
		db, err := database.Open(database.Config{URL: shard.URL, Deadline: time.Minute})
		if err != nil {
			w.t.Fatal(err)
		}
		var n int
		if err := db.QueryRow(query).Scan(&n); err != nil {
			w.t.Fatal(err)
		}
		db.Close()
		counts = append(counts, n)
	}
	return counts
}

// Row D6: over three shards, and while a fourth comes, every route admits its limit, and the counters are in all of them and not
// in the application's database.
func TestOnShardsEveryRouteAdmitsItsLimitAndRefusesTheNext(t *testing.T) {
	for _, next := range []int{0, 4} {
		var settings app.Settings
		w := newWorld(t, onShards(t, 3, next), func(s *app.Settings) { settings = *s })
		for i, row := range byAddress {
			address := fmt.Sprintf("192.0.2.%d", i+1)
			for n := 1; n <= row.limit+1; n++ {
				body := strings.Replace(row.body, "nobody", fmt.Sprintf("nobody%d", n), 1)
				body = strings.Replace(body, "+12025550100", fmt.Sprintf("+120255501%02d", n), 1)
				got := w.send(address, row.method, "/api/"+row.route+row.query, body)
				if (got.StatusCode == http.StatusTooManyRequests) != (n > row.limit) {
					t.Fatalf("%s: request %d of %d answers %d: %s", row.policy, n, row.limit, got.StatusCode, got.body)
				}
			}
		}
		for shard, n := range w.shardCounts(settings, "SELECT count(*) FROM rate_limits") {
			if n == 0 {
				t.Errorf("shard %d has no counter", shard)
			}
		}
		if n := w.count("SELECT count(*) FROM rate_limits"); n != 0 {
			t.Errorf("the application's own database has %d counters", n)
		}
	}
}

// Rows A2, D6: a sign-in is a decision of an address and an account, most of which lie on two shards: eight guesses are
// compared, and a right password costs the account nothing.
func TestOnShardsEightGuessesAreComparedAndARightPasswordCostsNothing(t *testing.T) {
	for _, next := range []int{0, 4} {
		w := newWorld(t, onShards(t, 3, next))
		for i := range 6 {
			name := fmt.Sprint("someone-", i)
			w.member(name)
			for n := range 10 {
				expect(t, w.signIn(fmt.Sprintf("198.51.100.%d", n), name, rightPassword), http.StatusOK)
			}
			before := w.hashes.Load()
			w.guess(name, 12)
			if compared := w.hashes.Load() - before; compared != 8 {
				t.Errorf("%d guesses at %s were compared, want 8", compared, name)
			}
			w.clock.At(w.clock.Now().Sub(storetest.Start).Truncate(15*time.Minute) + 15*time.Minute)
		}
	}
}

// Row D6: views, counts, alerts and the sweep are of all shards together.
func TestOnShardsOperatorsSeeAllOfThem(t *testing.T) {
	var settings app.Settings
	w := newWorld(t, withTokens, onShards(t, 3, 0), func(s *app.Settings) { settings = *s })
	const accounts = 9
	for i := range accounts {
		w.siege(fmt.Sprint("someone-", i), 3)
	}
	for shard, n := range w.shardCounts(settings, "SELECT count(*) FROM rate_limit_audit") {
		if n == 0 {
			t.Errorf("shard %d has no refusal", shard)
		}
	}
	// pages reads a view in pages of so many, while something is refused between two pages.
	pages := func(view string, limit int, between func()) (all []map[string]any) {
		seen := map[string]bool{}
		for cursor := ""; ; {
			page := w.view(fmt.Sprintf("%s&limit=%d&cursor=%s", view, limit, cursor), byToken).items(t)
			for _, item := range page.Items {
				id := fmt.Sprint(item["shard"], " ", item["id"])
				if seen[id] || item["shard"] == nil {
					t.Errorf("%s: item %s is there twice, or in no shard", view, id)
				}
				seen[id] = true
			}
			all = append(all, page.Items...)
			if cursor = page.Next; cursor == "" {
				return all
			}
			between()
		}
	}
	nothing := func() {}
	audit := pages("audit", 100, nothing)
	if len(audit) < 3*accounts {
		t.Fatalf("%d refusals, want %d and more", len(audit), 3*accounts)
	}
	for i := range audit[1:] {
		if audit[i]["at"].(string) < audit[i+1]["at"].(string) {
			t.Errorf("item %d is older than the next", i)
		}
	}
	n := 0
	for _, limit := range []int{1, 4, 100} {
		again := pages("audit", limit, func() {
			n++
			w.siege(fmt.Sprint("another-", n), 1)
		})
		// Those that came before this walk began are there too; nothing is left out, and what came in between is not there.
		if got := again[len(again)-len(audit):]; fmt.Sprint(got) != fmt.Sprint(audit) {
			t.Errorf("in pages of %d the audit reads\n%v, want\n%v", limit, got, audit)
		}
	}
	if alerts := pages("alerts", 2, nothing); len(alerts) != accounts {
		t.Errorf("%d alerts, want one for each of %d accounts", len(alerts), accounts)
	}
	// The application's own database has alerts of other kinds, which are there once, also where it is a shard as well.
	if _, err := w.db.Exec(`INSERT INTO alerts (at_micros, kind, policy, key, windows, last_micros, attempts, next_micros)
		VALUES (?, 'repeated-refusals', 'failed-sign-ins', 1, 3, 1, 0, NULL)`, w.clock.Now().UnixMicro()); err != nil {
		t.Fatal(err)
	}
	if page := w.view("alerts&limit=1", byToken).items(t); page.Items[0]["key"] != "0000000000000001" || page.Items[0]["shard"] != nil || len(strings.Split(page.Next, ".")) != 4 {
		t.Errorf("the newest alert is %v, and then %s", page.Items, page.Next)
	}
	for _, cursor := range []string{"1", "1.1", "1.1.1.1", "1.1.0", "1.1.x", "1..1", ".1.1"} {
		got := w.send("", "GET", "/api/limits?view=audit&cursor="+cursor, "", byToken)
		expect(t, got, http.StatusBadRequest)
	}
	var usage struct {
		Policies []struct {
			Name                 string
			ActiveKeys, Refusals int
		}
	}
	if err := json.Unmarshal([]byte(w.send("", "GET", "/api/limits", "", byToken).body), &usage); err != nil {
		t.Fatal(err)
	}
	var hourly struct {
		Policies []struct {
			Name     string
			Refusals []int
		}
	}
	if err := json.Unmarshal([]byte(w.view("refusals", byToken).body), &hourly); err != nil {
		t.Fatal(err)
	}
	sum := func(counts []int) (n int) {
		for _, count := range counts {
			n += count
		}
		return n
	}
	want := sum(w.shardCounts(settings, "SELECT count(*) FROM rate_limit_audit WHERE policy = 'failed-sign-ins'"))
	for i, policy := range usage.Policies {
		if policy.Name == "failed-sign-ins" && (policy.Refusals != want || policy.ActiveKeys == 0) {
			t.Errorf("usage says %+v, want %d refusals", policy, want)
		}
		if hourly.Policies[i].Name == policy.Name && sum(hourly.Policies[i].Refusals) != policy.Refusals {
			t.Errorf("%s: %d refusals by hour, %d in all", policy.Name, sum(hourly.Policies[i].Refusals), policy.Refusals)
		}
	}
	w.clock.Add(2 * 24 * time.Hour)
	rows := sum(w.shardCounts(settings, "SELECT count(*) FROM rate_limits"))
	got := w.send("", "GET", "/api/limits?op=sweep", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) })
	expect(t, got, http.StatusOK)
	if left := sum(w.shardCounts(settings, "SELECT count(*) FROM rate_limits")); left != 0 || got.json(t)["deleted"].(float64) < float64(rows) {
		t.Errorf("%d of %d counters left after %s", left, rows, got.body)
	}
}

// Row D6: the application's own database may be one of the shards: what is in it is there once.
func TestTheApplicationsOwnDatabaseMayBeAShard(t *testing.T) {
	w := newWorld(t, withTokens, func(s *app.Settings) {
		s.Shards = []app.ShardSetting{{Name: "own", URL: s.DatabaseURL}, {Name: "other", URL: "file:" + filepath.Join(t.TempDir(), "other.db")}}
	})
	for i := range 6 {
		w.siege(fmt.Sprint("someone-", i), 3)
	}
	if here := w.count("SELECT count(*) FROM alerts"); here == 0 || here == 6 {
		t.Fatalf("%d of 6 alerts in the own database", here)
	}
	if items := w.view("alerts", byToken).items(t).Items; len(items) != 6 {
		t.Errorf("%d alerts, want 6: %v", len(items), items)
	}
}

// Row D6; case A49: one shard that is out is out for its share alone, names nobody in an answer, and keeps no sweep from the rest.
func TestOnShardsOneThatIsOutIsOutForItsShareAlone(t *testing.T) {
	servers := []*hrana.Server{hrana.Start(t, hrana.Config{}), hrana.Start(t, hrana.Config{})}
	w := newWorld(t, withTokens, func(s *app.Settings) {
		for i, server := range servers {
			databases.Open(t, server.URL)
			s.Shards = append(s.Shards, app.ShardSetting{Name: fmt.Sprint("shard-", i), URL: server.URL})
		}
	})
	servers[1].SetHook(func(int, hrana.Request) hrana.Action { return hrana.Action{Cut: true} })
	var fine, out int
	for i := range 30 {
		switch got := w.send(fmt.Sprintf("192.0.2.%d", i), "GET", "/api/usernames?name=free", ""); got.StatusCode {
		case http.StatusOK:
			fine++
		case http.StatusServiceUnavailable:
			out++
			if strings.Contains(got.body, "shard") || strings.Contains(got.body, "127.0.0.1") {
				t.Errorf("the answer tells of a shard: %s", got.body)
			}
		default:
			t.Errorf("status %d: %s", got.StatusCode, got.body)
		}
	}
	if fine < 5 || out < 5 || !strings.Contains(w.log.String(), "shard shard-1: ") {
		t.Errorf("%d answered, %d out; log %s", fine, out, w.log.String())
	}
	w.clock.Add(24 * time.Hour)
	sweep := func() reply {
		return w.send("", "GET", "/api/limits?op=sweep", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) })
	}
	expect(t, sweep(), http.StatusServiceUnavailable)
	var left int
	if err := servers[0].DB().QueryRow("SELECT count(*) FROM rate_limits").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d counters left of the shard that is there, %v", left, err)
	}
	servers[1].SetHook(nil)
	expect(t, sweep(), http.StatusOK)
}
