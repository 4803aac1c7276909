package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/partners"
)

// partner makes a key and gives what shows it, with its number.
func (w *world) partner(plan partners.Plan) (show func(*http.Request), id int64) {
	w.t.Helper()
	id, key, err := partners.New(w.db.DB, partners.Config{}).Create(w.t.Context(), plan, "a partner")
	if err != nil {
		w.t.Fatal(err)
	}
	return showing("Bearer " + string(key)), id
}

func showing(authorization string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", authorization) }
}

// read asks for a page, from an address that nothing else uses.
func (w *world) read(query string, who func(*http.Request)) reply {
	w.t.Helper()
	return w.send("198.51.100.50", "GET", "/api/partner"+query, "", who)
}

func (w *world) partnerPage(query string, who func(*http.Request)) (page pageOf) {
	w.t.Helper()
	got := w.read(query, who)
	expect(w.t, got, http.StatusOK)
	if err := json.Unmarshal([]byte(got.body), &page); err != nil {
		w.t.Fatal(err)
	}
	return page
}

func (p pageOf) prompts() (all []string) {
	for _, item := range p.Items {
		all = append(all, item.Prompt)
	}
	return all
}

// byKeyRow is one of the application's limits by key.
type byKeyRow struct {
	plan                 partners.Plan
	policy               string
	limit                int
	method, route, query string
}

var byKey = []byKeyRow{
	{partners.Free, "partner-free", 100, "GET", "partner", ""},
	{partners.Paid, "partner-paid", 1000, "GET", "partner", "?limit=1"},
}

// Rows D1, D8, C4, C6; case A53.
func TestEveryPlanAdmitsItsBucketAndRefusesTheNext(t *testing.T) {
	for _, row := range byKey {
		t.Run(string(row.plan), func(t *testing.T) {
			w := newWorld(t)
			show, _ := w.partner(row.plan)
			path := "/api/" + row.route + row.query
			fields := func(left, wait int) map[string]string {
				return map[string]string{
					"Ratelimit-Policy":    fmt.Sprintf(`"%s";q=%d;w=60`, row.policy, row.limit),
					"Ratelimit":           fmt.Sprintf(`"%s";r=%d;t=%d`, row.policy, left, wait),
					"Ratelimit-Limit":     strconv.Itoa(row.limit),
					"Ratelimit-Remaining": strconv.Itoa(left),
					"Ratelimit-Reset":     strconv.Itoa(wait),
				}
			}
			for i := range row.limit {
				got := w.send("203.0.113.9", row.method, path, "", show)
				expect(t, got, http.StatusOK)
				checkHeader(t, got, fields(row.limit-i-1, 1))
				checkHeader(t, got, map[string]string{"Retry-After": ""})
			}
			for _, address := range []string{"203.0.113.9", "203.0.113.10"} { // wherever it comes from
				got := w.send(address, row.method, path, "", show)
				expect(t, got, http.StatusTooManyRequests)
				checkHeader(t, got, fields(0, 1)) // 0.6 s of the free plan is told as 1
				checkHeader(t, got, map[string]string{"Retry-After": "1", "Content-Type": "application/problem+json"})
				problem := got.json(t)
				if problem["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" || problem["plan"] != string(row.plan) ||
					problem["limit"] != float64(row.limit) || problem["retryAfterSeconds"] != float64(1) || fmt.Sprint(problem["violated-policies"]) != "["+row.policy+"]" {
					t.Fatalf("the refusal says %s", got.body)
				}
				if detail := got.field(t, "detail"); !strings.Contains(detail, fmt.Sprintf("allows %d in 1 minute", row.limit)) || !strings.Contains(detail, fmt.Sprintf("the plan %q", row.plan)) {
					t.Fatalf("the sentence is %q", detail)
				}
			}
			if n := w.count("SELECT count(*) FROM rate_limit_audit WHERE policy = '" + row.policy + "'"); n != 1 { // row B5
				t.Errorf("%d audit rows, want 1", n)
			}
			if n := w.count("SELECT count(*) FROM rate_limits WHERE policy = 'edge'"); n != 0 {
				t.Error("the address has been charged for a good key")
			}
			refill := time.Minute / time.Duration(row.limit)
			w.clock.Add(refill - time.Millisecond)
			expect(t, w.send("203.0.113.9", row.method, path, "", show), http.StatusTooManyRequests)
			w.clock.Add(time.Millisecond)
			expect(t, w.send("203.0.113.9", row.method, path, "", show), http.StatusOK)
			expect(t, w.send("203.0.113.9", row.method, path, "", show), http.StatusTooManyRequests)
		})
	}
}

// Row D1.
func TestASearchCostsFiveAndAListOne(t *testing.T) {
	w := newWorld(t)
	show, _ := w.partner(partners.Free)
	left := 100
	for _, c := range []struct {
		query  string
		cost   int
		status int
	}{
		{"", 1, 200},
		{"?q=weir", 5, 200},
		{"?q=weir&cursor=", 5, 200},
		{"?limit=5", 1, 200},
		{"?q=", 5, 400}, // who asks for a search pays for one
		{"?q=a&q=b", 5, 400},
		{"?q=a&%zz", 5, 400},
		{"?cursor=x", 1, 400},
		{"?Q=weir", 1, 200},
	} {
		got := w.read(c.query, show)
		expect(t, got, c.status)
		left -= c.cost
		checkHeader(t, got, map[string]string{"Ratelimit-Remaining": strconv.Itoa(left)})
	}
	for ; left >= 5; left -= 5 {
		expect(t, w.read("?q=weir", show), http.StatusOK)
	}
	if left != 1 {
		t.Fatalf("%d left", left)
	}
	got := w.read("?q=weir", show) // 4 more take 2.4 s
	expect(t, got, http.StatusTooManyRequests)
	checkHeader(t, got, map[string]string{"Retry-After": "3", "Ratelimit-Remaining": "1"})
	if got.json(t)["limit"] != float64(100) || got.json(t)["plan"] != "free" {
		t.Errorf("the refusal says %s", got.body)
	}
	expect(t, w.read("", show), http.StatusOK) // which costs less
	w.clock.Add(3 * time.Second)
	expect(t, w.read("?q=weir", show), http.StatusOK)
}

// Row D1: a key's bucket is its own.
func TestTwoKeysAreTwoBucketsAtOneAddress(t *testing.T) {
	w := newWorld(t)
	one, _ := w.partner(partners.Free)
	two, _ := w.partner(partners.Free)
	for range 100 {
		expect(t, w.read("", one), http.StatusOK)
	}
	expect(t, w.read("", one), http.StatusTooManyRequests)
	got := w.read("", two)
	expect(t, got, http.StatusOK)
	checkHeader(t, got, map[string]string{"Ratelimit-Remaining": "99"})
}

// Row D1.
func TestAPlanChangesAndAKeyEndsWithTheNextRequest(t *testing.T) {
	w := newWorld(t)
	show, id := w.partner(partners.Free)
	keys := partners.New(w.db.DB, partners.Config{})
	for range 100 {
		expect(t, w.read("", show), http.StatusOK)
	}
	expect(t, w.read("", show), http.StatusTooManyRequests)
	if err := keys.SetPlan(t.Context(), id, partners.Paid); err != nil {
		t.Fatal(err)
	}
	got := w.read("", show)
	expect(t, got, http.StatusOK)
	checkHeader(t, got, map[string]string{"Ratelimit": `"partner-paid";r=999;t=1`})
	if err := keys.SetPlan(t.Context(), id, partners.Free); err != nil {
		t.Fatal(err)
	}
	expect(t, w.read("", show), http.StatusTooManyRequests) // going there and back gives nothing
	if err := keys.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	expect(t, w.read("", show), http.StatusUnauthorized)
}

// Row D1; case B19: a key shows in no answer and no line of the log.
func TestWhoShowsNoGoodKeyCostsTheAddressAlone(t *testing.T) {
	w := newWorld(t)
	show, _ := w.partner(partners.Free)
	shown := &http.Request{Header: http.Header{}}
	show(shown)
	key := strings.TrimPrefix(shown.Header.Get("Authorization"), "Bearer ")
	revoked, id := w.partner(partners.Paid)
	if err := partners.New(w.db.DB, partners.Config{}).Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	unknown := "weir_" + strings.Repeat("0", 64)
	var bodies []string
	tried := 0
	for name, change := range map[string]func(*http.Request){
		"none":                    func(*http.Request) {},
		"an empty field":          showing(""),
		"the scheme alone":        showing("Bearer"),
		"the key alone":           showing(key),
		"another scheme":          showing("Basic " + key),
		"a key in capitals":       showing("Bearer " + strings.ToUpper(key)),
		"a part of one":           showing("Bearer " + key[:len(key)-1]),
		"more than one":           showing("Bearer " + key + " " + key),
		"one that never was":      showing("Bearer " + unknown),
		"one that is revoked":     revoked,
		"two fields":              func(r *http.Request) { r.Header["Authorization"] = []string{"Bearer " + key, "Bearer " + key} },
		"in the URL":              func(r *http.Request) { r.URL.RawQuery = "access_token=" + key + "&key=" + key },
		"the token of a setting":  byToken,
		"a session and no key":    w.demo("admin"),
		"a NUL":                   showing("Bearer \x00"),
		"a megabyte":              showing("Bearer " + strings.Repeat("x", 1<<20)),
		"a key with something in": showing("Bearer " + key[:9] + "'" + key[10:]),
	} {
		got := w.send("203.0.113.9", "GET", "/api/partner", "", change)
		tried++
		expect(t, got, http.StatusUnauthorized)
		checkHeader(t, got, map[string]string{"Ratelimit-Policy": `"edge";q=1000;w=60`, "Ratelimit-Remaining": strconv.Itoa(1000 - tried)})
		challenge := `Bearer realm="Weir"`
		if name != "none" && name != "in the URL" && name != "a session and no key" {
			challenge += `, error="invalid_token"`
		}
		if got.Header.Get("Www-Authenticate") != challenge {
			t.Errorf("%s: the challenge is %q, want %q", name, got.Header.Get("Www-Authenticate"), challenge)
		}
		bodies = append(bodies, got.body)
	}
	slices.Sort(bodies)
	if bodies = slices.Compact(bodies); len(bodies) != 1 {
		t.Errorf("the answers differ: %q", bodies)
	}
	if n := w.count("SELECT count(*) FROM rate_limits WHERE policy LIKE 'partner-%'"); n != 0 {
		t.Errorf("%d buckets", n)
	}
	for _, scheme := range []string{"bearer ", "BEARER  "} {
		expect(t, w.send("203.0.113.9", "GET", "/api/partner", "", showing(scheme+key)), http.StatusOK)
	}
	text := w.log.String() + bodies[0]
	if strings.Contains(text, key[:12]) || strings.Contains(w.dump("partner_keys"), key[5:]) {
		t.Error("a key shows")
	}
	if found := traces(w.dump(limiterTables...)+text, key); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// Row D1; case A49: whoever has no key is refused as others are.
func TestRequestsWithoutAKeyAreLimitedByTheirAddress(t *testing.T) {
	w := newWorld(t, func(s *app.Settings) {
		s.Policies = `[{"name": "edge", "algorithm": "fixed-window", "limit": 3, "window": "1m"}]`
	})
	w.clock.At(0)
	show, _ := w.partner(partners.Free)
	for range 3 {
		expect(t, w.read("", showing("Bearer x")), http.StatusUnauthorized)
	}
	got := w.read("", showing("Bearer x"))
	expect(t, got, http.StatusTooManyRequests)
	if problem := got.json(t); problem["plan"] != nil || strings.Contains(got.body, "plan") {
		t.Errorf("a refusal of the address speaks of a plan: %s", got.body)
	}
	expect(t, w.read("", show), http.StatusOK)
}

func TestAPartnerPagesThroughAllEntriesButTheDemos(t *testing.T) {
	w := newWorld(t)
	show, _ := w.partner(partners.Paid)
	if page := w.partnerPage("", show); len(page.Items) != 0 || page.Next != nil {
		t.Errorf("of nothing: %+v", page)
	}
	someone, another, demo := w.signedUp("someone", "member"), w.signedUp("another", "member"), w.demo("member")
	var want []string
	for i := range 45 {
		prompt := fmt.Sprintf("question %d", i)
		w.add([]func(*http.Request){someone, another}[i%2], entryOf("m", prompt))
		w.add(demo, entryOf("m", "the demo's"))
		want = append([]string{prompt}, want...)
	}
	for query, pages := range map[string]int{"": 3, "limit=45": 1, "limit=44": 2, "q=question": 3, "q=QUESTION&limit=23": 2} {
		var seen []string
		read, cursor := 0, ""
		for read < 9 {
			page := w.partnerPage("?"+query+cursor, show)
			read++
			seen = append(seen, page.prompts()...)
			if page.Next == nil {
				break
			}
			cursor = "&cursor=" + url.QueryEscape(*page.Next)
		}
		if !slices.Equal(seen, want) || read != pages {
			t.Errorf("%q: %d pages with %q", query, read, seen)
		}
	}
	if page := w.partnerPage("?q=+question+4"+"&limit=100", show); !slices.Equal(page.prompts(), []string{"question 44", "question 43", "question 42", "question 41", "question 40", "question 4"}) {
		t.Errorf("found %q", page.prompts())
	}
	for _, query := range []string{"the+demo", "%25", "someone"} { // authors are not told
		if page := w.partnerPage("?q="+query, show); len(page.Items) != 0 || page.Next != nil {
			t.Errorf("%s: found %+v", query, page)
		}
	}
	got := w.read("?limit=1", show)
	var fields struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(got.body), &fields); err != nil || len(fields.Items) != 1 || len(fields.Items[0]) != 6 || strings.Contains(got.body, "someone") {
		t.Errorf("an entry tells %s, %v", got.body, err)
	}
}

func TestAMistakeInAPartnersQueryIsToldByItsField(t *testing.T) {
	w := newWorld(t)
	show, _ := w.partner(partners.Paid)
	someone := w.signedUp("someone", "member")
	w.add(someone, entryOf("m", "one"), entryOf("m", "two"), entryOf("m", "three"))
	listed, found, own := *w.partnerPage("?limit=1", show).Next, *w.partnerPage("?limit=1&q=o", show).Next, *w.page("?limit=1", someone).Next
	for query, field := range map[string]string{
		"limit=0":                            "limit",
		"limit=101":                          "limit",
		"limit=":                             "limit",
		"q=x&limit=ten":                      "limit",
		"cursor=x":                           "cursor",
		"cursor=" + found:                    "cursor",
		"cursor=" + own:                      "cursor",
		"cursor=" + listed + "&q=o":          "cursor",
		"cursor=" + found + "&q=on":          "cursor",
		"cursor=" + listed + "&cursor=":      "cursor",
		"q=":                                 "q",
		"q=+%09%E3%80%80":                    "q",
		"q=a%00b":                            "q",
		"q=%00":                              "q",
		"q=%ff":                              "q",
		"q=" + strings.Repeat("x", 201):      "q",
		"q=" + strings.Repeat("%C3%BC", 201): "q",
		"q=one&q=two":                        "q",
	} {
		got := w.read("?"+query, show)
		expect(t, got, http.StatusBadRequest)
		if got.json(t)["field"] != field {
			t.Errorf("%.80s: %s", query, got.body)
		}
	}
	for _, query := range []string{"q=" + strings.Repeat("%C3%BC", 200), "q=one&cursor=", "cursor=" + found + "&q=O"} {
		expect(t, w.read("?"+query, show), http.StatusOK)
	}
}

// What white space is differs from one reader of patterns to the next, so the pattern names it.
func TestAQueryIsDescribedAsItIsRead(t *testing.T) {
	described, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(s *app.Settings) {
		s.Policies = `[{"name": "partner-paid", "algorithm": "token-bucket", "limit": 100000, "window": "1m"}]`
	})
	show, _ := w.partner(partners.Paid)
	var schema string
	operation, at := described.find("paths", "/api/partner", "get")
	for i, parameter := range list(operation["parameters"]) {
		if parameter.(map[string]any)["name"] == "q" {
			schema = fmt.Sprintf("%s/parameters/%d/schema", at, i)
		}
	}
	texts := []string{"", strings.Repeat("ü", 200), strings.Repeat("ü", 201), strings.Repeat(" ", 200), strings.Repeat(" ", 200) + "x", "a\x00", "\x00a", "a\nb"}
	for r := range rune(0x3100) {
		if r < 0x100 || r >= 0x1680 && r < 0x1690 || r >= 0x2000 && r < 0x2070 || r >= 0x2ff0 {
			texts = append(texts, string(r), " "+string(r)+"\n")
		}
	}
	for _, text := range texts {
		got := w.read("?q="+url.QueryEscape(text), show)
		if fault := described.check(schema, text); (fault == nil) != (got.StatusCode == http.StatusOK) || got.StatusCode != 200 && got.StatusCode != 400 {
			t.Errorf("%+.40q is answered %d; as described: %v", text, got.StatusCode, fault)
		}
	}
}

// Row D7: the counters can't be written, and partners go on reading: the share of each process, twice the limit by 30.
func TestPartnersReadOnWhileTheCountersAreOutOfReach(t *testing.T) {
	for name, cut := range map[string]func(w *world){
		"no table": func(w *world) {
			if _, err := w.db.Exec("DROP TABLE rate_limits"); err != nil {
				w.t.Fatal(err)
			}
		},
		"somebody else writes": func(w *world) {
			lock, err := w.db.Conn(w.t.Context())
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { lock.Close() })
			if _, err := lock.ExecContext(w.t.Context(), "BEGIN IMMEDIATE"); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(s *app.Settings) { s.StoreDeadline, s.Instances = 4*time.Second, 30 })
			someone := w.signedUp("someone", "member")
			w.add(someone, entryOf("m", "one"))
			free, _ := w.partner(partners.Free)
			paid, _ := w.partner(partners.Paid)
			cut(w)
			admitted := func(query string, who func(*http.Request)) (n int) {
				for range 70 {
					got := w.read(query, who)
					if got.StatusCode == http.StatusServiceUnavailable {
						if got.Header.Get("Retry-After") == "" || got.Header.Get("Ratelimit") != "" {
							t.Fatalf("header %v", got.Header)
						}
						return n
					}
					expect(t, got, http.StatusOK)
					if got.Header.Get("Ratelimit") != "" || !strings.Contains(got.body, `"one"`) {
						t.Fatalf("header %v, body %s", got.Header, got.body)
					}
					n++
				}
				return n
			}
			if n := admitted("", free); n != 7 {
				t.Errorf("the free plan got %d, want 7", n)
			}
			if n := admitted("?q=one", paid); n != 13 { // of 67 units
				t.Errorf("the paid plan got %d searches, want 13", n)
			}
			if !strings.Contains(w.log.String(), "admitted without it") {
				t.Error("the outage is not in the log")
			}
			if got := w.send("203.0.113.9", "GET", "/api/usernames?name=someone", ""); got.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("what is no partner's is answered %d", got.StatusCode)
			}
		})
	}
}

// Cases A49, B16: without its own tables there is nothing to read.
func TestADatabaseThatFailsIsAnOutageForPartnersToo(t *testing.T) {
	for _, table := range []string{"partner_keys", "ai_log_entries"} {
		w := newWorld(t)
		show, _ := w.partner(partners.Free)
		if _, err := w.db.Exec("DROP TABLE " + table); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{"", "?q=x"} {
			got := w.read(query, show)
			expect(t, got, http.StatusServiceUnavailable)
			for _, secret := range []string{table, "SQL", "table", "file:"} {
				if strings.Contains(got.body, secret) {
					t.Errorf("%s tells %q: %s", query, secret, got.body)
				}
			}
		}
	}
}

func TestASettingThatLeavesNoRoomForASearchIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		`[{"name":"partner-free","algorithm":"token-bucket","limit":4,"window":"1m"}]`:                      "partner-free holds 4: a search costs 5",
		`[{"name":"partner-paid","algorithm":"token-bucket","limit":9,"burst":3,"window":"1m"}]`:            "partner-paid holds 3",
		`[{"name":"partner-paid","algorithm":"fixed-window","limit":5,"window":"1m"}]`:                      "",
		`[{"name":"partner-free","algorithm":"token-bucket","limit":1,"burst":5,"window":"1m"}]`:            "",
		`[{"name":"partner-free","algorithm":"leaky-bucket","limit":500,"window":"1m"}]`:                    "partner-free holds 1",
		`[{"name":"partner-free","algorithm":"token-bucket","limit":100,"subject":"opaque","window":"1m"}]`: "subject",
	} {
		_, err := app.LoadPolicies(func(name string) (string, bool) { return text, name == "RATE_LIMIT_POLICIES" })
		if (err == nil) != (want == "") || err != nil && !(strings.Contains(err.Error(), want) && strings.Contains(err.Error(), "RATE_LIMIT_POLICIES")) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
