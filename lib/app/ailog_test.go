package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/ailog"
	"github.com/weirlimits/weir/lib/evaluations"
)

const someEntry = `{"model":"model-a","prompt":"a question","response":"an answer","tokens":7}`

func entryOf(model, prompt string) string {
	return fmt.Sprintf(`{"model":%q,"prompt":%q,"response":"","tokens":0}`, model, prompt)
}

// pageOf is a page of the AI log.
type pageOf struct {
	Items []struct {
		ID            int64
		Model, Prompt string
		Response      string
		Tokens        int64
		CreatedAt     string
	}
	Next *string
}

func (w *world) page(query string, who func(*http.Request)) (page pageOf) {
	w.t.Helper()
	got := w.send("203.0.113.9", "GET", "/api/ai-log"+query, "", who)
	expect(w.t, got, http.StatusOK)
	if err := json.Unmarshal([]byte(got.body), &page); err != nil {
		w.t.Fatal(err)
	}
	return page
}

// add adds entries and returns the ID of the last one.
func (w *world) add(who func(*http.Request), entries ...string) (id int64) {
	w.t.Helper()
	for _, entry := range entries {
		got := w.send("203.0.113.9", "POST", "/api/ai-log", entry, who)
		expect(w.t, got, http.StatusCreated)
		id = int64(got.json(w.t)["id"].(float64))
	}
	return id
}

func TestAnEntryIsAddedAndRead(t *testing.T) {
	w := newWorld(t)
	someone := w.signedUp("someone", "member")
	if page := w.page("", someone); len(page.Items) != 0 || page.Next != nil {
		t.Errorf("of nothing: %+v", page)
	}
	added := w.send("203.0.113.9", "POST", "/api/ai-log", someEntry, someone)
	expect(t, added, http.StatusCreated)
	page := w.page("", someone)
	if len(page.Items) != 1 || page.Next != nil {
		t.Fatalf("the page is %+v", page)
	}
	got := page.Items[0]
	if got.Model != "model-a" || got.Prompt != "a question" || got.Response != "an answer" || got.Tokens != 7 ||
		float64(got.ID) != added.json(t)["id"] || got.CreatedAt != added.field(t, "createdAt") {
		t.Errorf("added %s, read %+v", added.body, got)
	}
}

func TestMembersPageThroughTheirOwnEntriesWhileOthersAdd(t *testing.T) {
	w := newWorld(t)
	someone, another := w.signedUp("someone", "member"), w.signedUp("another", "member")
	var want []string
	for i := range 45 {
		w.add(someone, entryOf("m", fmt.Sprint("mine ", i)))
		w.add(another, entryOf("m", fmt.Sprint("another's ", i)))
		want = append([]string{fmt.Sprint("mine ", i)}, want...)
	}
	for query, pages := range map[string]int{"": 3, "limit=45": 1, "limit=44": 2, "limit=7": 7} {
		var seen []string
		cursor, read := "", 0
		for ; read < 50; read++ {
			page := w.page("?"+query+cursor, someone)
			for _, item := range page.Items {
				seen = append(seen, item.Prompt)
			}
			if page.Next == nil {
				read++
				break
			}
			cursor = "&cursor=" + url.QueryEscape(*page.Next)
			want = append([]string{"added meanwhile"}, want...) // seen by those who begin anew
			w.add(someone, entryOf("m", "added meanwhile"))
			w.add(another, entryOf("m", "added meanwhile by another"))
		}
		before := want[len(want)-len(seen):]
		if !slices.Equal(seen, before) || len(seen) != 45 || read != pages {
			t.Errorf("%q: %d pages with %v, want %v", query, read, seen, before)
		}
		if _, err := w.db.Exec("DELETE FROM ai_log_entries WHERE prompt LIKE 'added%'"); err != nil {
			t.Fatal(err)
		}
		want = want[len(want)-45:]
	}
}

func TestAMistakeInAPagesQueryIsToldByItsField(t *testing.T) {
	w := newWorld(t)
	someone, another, admin := w.signedUp("someone", "member"), w.signedUp("another", "member"), w.signedUp("boss", "admin")
	for _, who := range []func(*http.Request){someone, another, admin} {
		w.add(who, entryOf("m", "1"), entryOf("m", "2"))
	}
	next := *w.page("?limit=1", someone).Next
	everybodys := *w.page("?limit=1&all=1", admin).Next
	for query, field := range map[string]string{
		"limit=0":                         "limit",
		"limit=-1":                        "limit",
		"limit=101":                       "limit",
		"limit=":                          "limit",
		"limit=ten":                       "limit",
		"limit=1.5":                       "limit",
		"limit=%2B5":                      "limit",
		"limit=99999999999999999999":      "limit",
		"limit=1&limit=1":                 "limit",
		"cursor=x":                        "cursor",
		"cursor=1":                        "cursor",
		"cursor=" + next[1:]:              "cursor",
		"cursor=" + next + "A":            "cursor",
		"cursor=" + strings.ToLower(next): "cursor",
		"cursor=" + everybodys:            "cursor",
		"cursor=%00":                      "cursor",
		"all=":                            "all",
		"all=0":                           "all",
		"all=true":                        "all",
	} {
		got := w.send("203.0.113.9", "GET", "/api/ai-log?"+query, "", someone)
		expect(t, got, http.StatusBadRequest)
		if got.json(t)["field"] != field || field == "limit" && !strings.Contains(query, "&") && !strings.Contains(got.body, "from 1 to 100") {
			t.Errorf("%s: %s", query, got.body)
		}
	}
	for who, change := range map[string]func(*http.Request){"another member": another, "an admin": admin} {
		got := w.send("203.0.113.9", "GET", "/api/ai-log?cursor="+next, "", change)
		expect(t, got, http.StatusBadRequest)
		if got.json(t)["field"] != "cursor" {
			t.Errorf("the cursor of %s: %s", who, got.body)
		}
	}
	expect(t, w.send("203.0.113.9", "GET", "/api/ai-log?all=1&cursor="+next, "", admin), http.StatusBadRequest)
	if page := w.page("?limit=100&cursor="+next, someone); len(page.Items) != 1 || page.Items[0].Prompt != "1" {
		t.Errorf("the right cursor: %+v", page)
	}
	if page := w.page("?cursor=", someone); len(page.Items) != 2 {
		t.Errorf("an empty cursor: %+v", page)
	}
}

func TestAnEntryOutOfBoundsIsToldByItsFieldAndNotKept(t *testing.T) {
	w := newWorld(t)
	someone := w.signedUp("someone", "member")
	change := func(field, value string) string {
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal([]byte(someEntry), &fields); err != nil {
			t.Fatal(err)
		}
		fields[field] = json.RawMessage(value)
		if value == "" {
			delete(fields, field)
		}
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	long := func(bytes int) string { return `"` + strings.Repeat("x", bytes) + `"` }
	for _, c := range []struct {
		field, value string
		status       int
	}{
		{"model", ``, 422},
		{"model", `null`, 400},
		{"model", `""`, 422},
		{"model", `" m"`, 422},
		{"model", `"a\nb"`, 422},
		{"model", long(ailog.MaxModelBytes + 1), 422},
		{"model", `7`, 400},
		{"prompt", ``, 422},
		{"prompt", `""`, 422},
		{"prompt", `"a\u0000b"`, 422},
		{"prompt", long(ailog.MaxPromptBytes + 1), 422},
		{"prompt", `["x"]`, 400},
		{"response", ``, 422},
		{"response", `null`, 400},
		{"response", long(ailog.MaxResponseBytes + 1), 422},
		{"response", `{}`, 400},
		{"tokens", ``, 422},
		{"tokens", `null`, 400},
		{"tokens", `-1`, 422},
		{"tokens", `1.5`, 422},
		{"tokens", `10000001`, 422},
		{"tokens", `1e999`, 422},
		{"tokens", `"7"`, 400},
		{"tokens", `true`, 400},
		{"more", `1`, 400},
	} {
		got := w.send("203.0.113.9", "POST", "/api/ai-log", change(c.field, c.value), someone)
		if got.StatusCode != c.status || got.json(t)["field"] != c.field {
			t.Errorf("%s %.20s: %d %s, want %d", c.field, c.value, got.StatusCode, got.body, c.status)
		}
	}
	if page := w.page("", someone); len(page.Items) != 0 {
		t.Errorf("kept are %+v", page)
	}
	w.add(someone, change("response", `""`), change("tokens", `0`), change("tokens", `1e7`), change("tokens", `7.0`))
}

func TestTheBoundsThatAreDescribedAreThoseInForce(t *testing.T) {
	described, err := openapi()
	if err != nil {
		t.Fatal(err)
	}
	for _, bound := range []struct {
		schema, property, keyword string
		want                      int64
	}{
		{"NewEntry", "model", "maxLength", ailog.MaxModelBytes},
		{"NewEntry", "prompt", "maxLength", ailog.MaxPromptBytes},
		{"NewEntry", "response", "maxLength", ailog.MaxResponseBytes},
		{"NewEntry", "tokens", "maximum", ailog.MaxTokens},
		{"EntryPage", "items", "maxItems", ailog.MaxPageEntries},
		{"NewEvaluation", "note", "maxLength", evaluations.MaxNoteBytes},
		{"NewEvaluation", "score", "maximum", evaluations.MaxScore},
		{"Results", "items", "maxItems", evaluations.MaxResults},
	} {
		property, _ := described.find("components", "schemas", bound.schema, "properties", bound.property)
		if got := fmt.Sprint(property[bound.keyword]); got != fmt.Sprint(bound.want) {
			t.Errorf("%s.%s has the %s %s, in force is %d", bound.schema, bound.property, bound.keyword, got, bound.want)
		}
	}
}

// Every entry that is allowed fits into a body, and a page of the largest ones into what the platform lets through.
func TestTheLargestEntryFitsInItsLongestSpellingAndSoDoesAPageOfThem(t *testing.T) {
	w := newWorld(t)
	someone := w.signedUp("someone", "member")
	spelled := func(escape string, bytes int) string { return `"` + strings.Repeat(escape, bytes) + `"` }
	largest := fmt.Sprintf(`{"model":%s,"prompt":%s,"response":%s,"tokens":%d}`, spelled(`\u006d`, ailog.MaxModelBytes),
		spelled(`\u0001`, ailog.MaxPromptBytes), spelled(`\u0001`, ailog.MaxResponseBytes), ailog.MaxTokens)
	for range 20 {
		w.add(someone, largest)
	}
	const maxBody = 6*(ailog.MaxModelBytes+ailog.MaxPromptBytes+ailog.MaxResponseBytes) + 1<<10
	padded := func(bytes int) string { return largest + strings.Repeat(" ", bytes-len(largest)) }
	expect(t, w.send("203.0.113.9", "POST", "/api/ai-log", padded(maxBody), someone), http.StatusCreated)
	expect(t, w.send("203.0.113.9", "POST", "/api/ai-log", padded(maxBody+1), someone), http.StatusRequestEntityTooLarge)
	got := w.send("203.0.113.9", "GET", "/api/ai-log?limit=100", "", someone)
	expect(t, got, http.StatusOK)
	const platform = 4_500_000
	if items := got.json(t)["items"].([]any); len(items) != ailog.MaxPageBytes/(ailog.MaxModelBytes+ailog.MaxPromptBytes+ailog.MaxResponseBytes) || len(got.body) > platform {
		t.Errorf("a page of %d entries has %d bytes", len(items), len(got.body))
	}
}

func TestAdminsReadTheEntriesOfAllMembersAndTheDemosAdminThoseOfTheDemo(t *testing.T) {
	w := newWorld(t)
	someone, admin := w.signedUp("someone", "member"), w.signedUp("boss", "admin")
	demoMember, demoAdmin := w.demo("member"), w.demo("admin")
	for who, prompt := range map[string]func(*http.Request){"someone's": someone, "the admin's": admin, "the demo's": demoMember, "its admin's": demoAdmin} {
		w.add(prompt, entryOf("m", who))
	}
	seen := func(query string, who func(*http.Request)) string {
		var all []string
		for _, item := range w.page(query, who).Items {
			all = append(all, item.Prompt)
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	for want, got := range map[string]string{
		"someone's":               seen("", someone),
		"someone's, the admin's":  seen("?all=1", admin),
		"the admin's":             seen("", admin),
		"its admin's, the demo's": seen("?all=1", demoAdmin),
		"its admin's":             seen("", demoAdmin),
	} {
		if got != want {
			t.Errorf("seen are %q, want %q", got, want)
		}
	}
	for _, member := range []func(*http.Request){someone, demoMember} {
		expect(t, w.send("203.0.113.9", "GET", "/api/ai-log?all=1", "", member), http.StatusForbidden)
	}
	got := w.send("203.0.113.9", "GET", "/api/ai-log?all=1", "", admin)
	if strings.Contains(got.body, `"someone"`) || strings.Contains(got.body, "account") {
		t.Errorf("the authors are told: %s", got.body)
	}
}

func TestWhatIsInAnEntryIsInNoLogAndNoLimit(t *testing.T) {
	w := newWorld(t)
	someone, admin := w.signedUp("someone", "member"), w.signedUp("boss", "admin")
	id := w.add(someone, entryOf("a-private-model", "a private question"))
	w.send("203.0.113.9", "POST", "/api/ai-log", `{"model":"a-private-model","prompt":"a private question"}`, someone)
	w.send("203.0.113.9", "POST", "/api/evaluations", fmt.Sprintf(`{"entry":%d,"score":1,"note":"a private note"}`, id), admin)
	if _, err := w.db.Exec("DROP TABLE evaluations"); err != nil {
		t.Fatal(err)
	}
	expect(t, w.send("203.0.113.9", "POST", "/api/evaluations", fmt.Sprintf(`{"entry":%d,"score":1,"note":"a private note"}`, id), admin), http.StatusServiceUnavailable)
	text := w.dump(limiterTables...) + w.log.String()
	if !strings.Contains(text, "rate_limits.policy=evaluation") || !strings.Contains(text, "store did not answer") {
		t.Fatalf("nothing to look at: %s", text)
	}
	if found := traces(text, "a-private-model", "a private question", "a private note", "someone", "boss"); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}
