package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// guess tries wrong passwords for a name, each from another address.
func (w *world) guess(name string, times int) {
	w.t.Helper()
	for i := range times {
		if got := w.signIn(fmt.Sprintf("198.51.100.%d", i), name, "a wrong password"); got.StatusCode != http.StatusUnauthorized && got.StatusCode != http.StatusTooManyRequests {
			w.t.Fatalf("a guess answers %d: %s", got.StatusCode, got.body)
		}
	}
}

// siege has an account's limit refuse in so many windows, one after the other, and leaves the clock in the last of them.
func (w *world) siege(name string, windows int) {
	w.t.Helper()
	for range windows {
		w.clock.At(w.clock.Now().Sub(storetest.Start).Truncate(15*time.Minute) + 15*time.Minute)
		w.guess(name, 12)
	}
}

func (w *world) view(query string, change ...func(*http.Request)) reply {
	w.t.Helper()
	got := w.send("203.0.113.9", "GET", "/api/limits?view="+query, "", change...)
	expect(w.t, got, http.StatusOK)
	return got
}

type items struct {
	Items []map[string]any
	Next  string
}

func (r reply) items(t *testing.T) (page items) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.body), &page); err != nil {
		t.Fatal(err)
	}
	return page
}

func TestAViewByASessionCostsTheEdgeAndIsForAdmins(t *testing.T) {
	w := services(t)
	admin, member := w.signedUp("someone", "admin"), w.signedUp("another", "member")
	used := func() int {
		return w.count("SELECT coalesce(sum(used), 0) FROM rate_limits WHERE policy = 'edge'")
	}
	for _, view := range []string{"refusals", "audit", "alerts"} {
		for _, c := range []struct {
			change func(*http.Request)
			status int
			cost   int // to the address
		}{
			{func(*http.Request) {}, http.StatusUnauthorized, 1},
			{member, http.StatusForbidden, 1},
			{admin, http.StatusOK, 1},
			{byToken, http.StatusOK, 0},
			{func(r *http.Request) { admin(r); byToken(r) }, http.StatusOK, 0},
			{func(r *http.Request) { admin(r); r.Header.Set("Authorization", "Bearer wrong") }, http.StatusUnauthorized, 0},
			{func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) }, http.StatusUnauthorized, 0},
		} {
			before := used()
			got := w.send("203.0.113.9", "GET", "/api/limits?view="+view, "", c.change)
			expect(t, got, c.status)
			if cost := used() - before; cost != c.cost || (got.Header.Get("Ratelimit-Policy") == `"edge";q=1000;w=60`) != (c.cost > 0) {
				t.Errorf("%s: status %d costs %d and has %v", view, got.StatusCode, cost, got.Header)
			}
		}
	}
	for query, who := range map[string]func(*http.Request){
		"view=": admin, "view=x": byToken, "view=audit&view=audit": admin, "view=audit&op=sweep": admin, "view=alerts&op=": byToken,
		"view=audit&limit=0": admin, "view=alerts&limit=101": byToken, "view=audit&limit=x": byToken, "view=audit&cursor=0": admin,
		"view=audit&cursor=-1": admin, "view=audit&cursor=01": admin, "view=alerts&cursor=1000000000000000000": admin, "view=refusals&cursor=x": admin, "view=refusals&limit=0": byToken,
		"cursor=x": byToken, "limit=0": byToken, "view=alerts&cursor=x": admin,
		"view=audit&cursor=1&cursor=2": admin, "view=audit&%zz": admin,
	} {
		expect(t, w.send("203.0.113.9", "GET", "/api/limits?"+query, "", who), http.StatusBadRequest)
	}
	expect(t, w.send("203.0.113.9", "GET", "/api/limits?op=sweep&view=audit", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+cronSecret) }),
		http.StatusBadRequest)
	// Without a view a session is not enough, whoever's.
	for _, path := range []string{"/api/limits", "/api/limits?op=sweep", "/api/limits?op="} {
		expect(t, w.send("203.0.113.9", "GET", path, "", admin), http.StatusUnauthorized)
	}
}

func TestTheRefusalsOfADayAreShownByPolicyAndHour(t *testing.T) {
	w := services(t)
	admin := w.signedUp("someone", "admin")
	begin := storetest.Start.Truncate(time.Hour)
	at := func(d time.Duration) { w.clock.At(begin.Add(d).Sub(storetest.Start)) }
	at(10 * time.Hour)
	w.guess("someone", 20)
	w.guess("another", 20)
	at(11 * time.Hour)
	w.guess("someone", 20)
	if _, err := w.db.Exec("UPDATE rate_limit_audit SET policy = 'gone' WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	at(12*time.Hour + 59*time.Minute)
	var body struct {
		From          time.Time
		BucketSeconds int
		Policies      []struct {
			Name     string
			Refusals []int
		}
	}
	got := w.view("refusals", admin)
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Fatal(err)
	}
	if !body.From.Equal(begin.Add(-11*time.Hour)) || body.BucketSeconds != 3600 {
		t.Errorf("from %v by %d", body.From, body.BucketSeconds)
	}
	want := map[string]string{"failed-sign-ins": "[21 1 22 1]", "gone": "[21 1]"}
	seen := map[string]bool{}
	for _, policy := range body.Policies {
		places := []int{}
		for hour, n := range policy.Refusals {
			if n > 0 {
				places = append(places, hour, n)
			}
		}
		if text := fmt.Sprint(places); text != "[]" && text != want[policy.Name] || text == "[]" && want[policy.Name] != "" || len(policy.Refusals) != 24 {
			t.Errorf("%s: %v", policy.Name, policy.Refusals)
		}
		seen[policy.Name] = true
	}
	for _, name := range []string{"failed-sign-ins", "gone", "edge", "queue"} { // zeros are told
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestTheAuditIsShownInPagesAndNamesNobody(t *testing.T) {
	w := services(t)
	admin := w.signedUp("someone", "admin")
	w.guess("someone", 20)
	w.guess("another", 20)
	w.clock.At(15 * time.Minute)
	w.guess("someone", 20)
	w.limits(`{"mode": "ban", "until": "2100-01-01T00:00:00Z", "limits": [{"policy": "log", "subject": "another"}]}`)
	w.limits(`{"mode": "reset", "limits": [{"policy": "log", "subject": "another"}]}`)
	var all []map[string]any
	var bodies string
	query := "audit&limit=2"
	for pages := 0; query != ""; pages++ {
		got := w.view(query, admin)
		page := got.items(t)
		all, bodies = append(all, page.Items...), bodies+got.body
		if query = ""; page.Next != "" {
			query = "audit&limit=2&cursor=" + page.Next
		}
		if pages == 0 { // what is added meanwhile comes before the first page
			w.limits(`{"mode": "reset", "limits": [{"policy": "fixed", "subject": "another"}]}`)
		}
		if pages > 5 {
			t.Fatal("the pages have no end")
		}
	}
	var got []string
	for _, item := range all {
		got = append(got, fmt.Sprint(item["action"], " ", item["policy"], " ", item["used"], " ", item["until"]))
	}
	want := "reset log <nil> <nil>, ban log <nil> 2100-01-01T00:00:00Z, refusal failed-sign-ins 8 <nil>, refusal failed-sign-ins 8 <nil>, refusal failed-sign-ins 8 <nil>"
	if strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
	if all[2]["key"] != all[4]["key"] || all[2]["key"] == all[3]["key"] || all[2]["at"] != storetest.Start.Add(15*time.Minute).UTC().Format(time.RFC3339) {
		t.Errorf("keys and time: %v", all[2:])
	}
	if found := traces(bodies, "someone", "another", "198.51.100.1"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// Anybody may be an admin of the demo: with keys they could follow what happens to an account by making its limit refuse once.
func TestAnAdminOfTheDemoSeesNoKeys(t *testing.T) {
	w := services(t)
	demo, admin := w.demo("admin"), w.signedUp("someone", "admin")
	w.siege("another", 3)
	for _, view := range []string{"audit", "alerts"} {
		for _, item := range w.view(view, demo).items(t).Items {
			if item["key"] != nil {
				t.Errorf("%s: %v", view, item)
			}
		}
		if items := w.view(view, admin).items(t).Items; len(items) == 0 || len(items[0]["key"].(string)) != 16 {
			t.Errorf("%s: %v", view, items)
		}
		if items := w.view(view, byToken).items(t).Items; len(items) == 0 || len(items[0]["key"].(string)) != 16 {
			t.Errorf("%s: %v", view, items)
		}
	}
}
