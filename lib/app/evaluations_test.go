package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func (w *world) score(who func(*http.Request), entry int64, score int) reply {
	w.t.Helper()
	return w.send("203.0.113.9", "POST", "/api/evaluations", fmt.Sprintf(`{"entry":%d,"score":%d}`, entry, score), who)
}

// results gives the results as text, a line for each model.
func (w *world) results(who func(*http.Request)) string {
	w.t.Helper()
	got := w.send("203.0.113.9", "GET", "/api/evaluations", "", who)
	expect(w.t, got, http.StatusOK)
	var lines []string
	for _, item := range got.json(w.t)["items"].([]any) {
		result := item.(map[string]any)
		lines = append(lines, fmt.Sprint(result["model"], " ", result["count"], " ", result["mean"], " ", result["distribution"]))
	}
	return strings.Join(lines, "\n")
}

func TestAdminsScoreEntriesAndReadTheResultsByModel(t *testing.T) {
	w := newWorld(t)
	someone, admin, other := w.signedUp("someone", "member"), w.signedUp("boss", "admin"), w.signedUp("chief", "admin")
	if got := w.results(admin); got != "" {
		t.Errorf("of nothing: %s", got)
	}
	first, second := w.add(someone, entryOf("model-b", "1")), w.add(someone, entryOf("model-b", "2"))
	third := w.add(someone, entryOf("model-a", "3"))
	once := w.score(admin, first, 1)
	expect(t, once, http.StatusCreated)
	expect(t, w.score(other, first, 5), http.StatusCreated)
	expect(t, w.score(admin, second, 4), http.StatusCreated)
	expect(t, w.score(admin, third, 2), http.StatusCreated)
	want := "model-a 1 2 [0 1 0 0 0]\nmodel-b 3 3.3333333333333335 [1 0 0 1 1]"
	if got := w.results(other); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	again := w.score(admin, first, 3) // instead of 1
	expect(t, again, http.StatusCreated)
	if again.body != once.body {
		t.Errorf("scored once the answer is %s, again %s", once.body, again.body)
	}
	want = "model-a 1 2 [0 1 0 0 0]\nmodel-b 3 4 [0 0 1 1 1]"
	if got := w.results(admin); got != want {
		t.Errorf("after another score got\n%s\nwant\n%s", got, want)
	}
}

func TestTheDemosAdminScoresTheDemosEntriesOnly(t *testing.T) {
	w := newWorld(t)
	someone, admin, demoAdmin := w.signedUp("someone", "member"), w.signedUp("boss", "admin"), w.demo("admin")
	theirs, demos := w.add(someone, entryOf("m", "1")), w.add(w.demo("member"), entryOf("m", "2"))
	expect(t, w.score(demoAdmin, theirs, 1), http.StatusNotFound)
	expect(t, w.score(admin, demos, 1), http.StatusNotFound)
	expect(t, w.score(admin, theirs, 5), http.StatusCreated)
	expect(t, w.score(demoAdmin, demos, 2), http.StatusCreated)
	if got, demo := w.results(admin), w.results(demoAdmin); got != "m 1 5 [0 0 0 0 1]" || demo != "m 1 2 [0 1 0 0 0]" {
		t.Errorf("the results are %q, and %q in the demo", got, demo)
	}
}

func TestAnEvaluationOutOfBoundsIsToldByItsFieldAndNotKept(t *testing.T) {
	w := newWorld(t)
	admin := w.signedUp("boss", "admin")
	id := w.add(admin, entryOf("m", "1"))
	for _, c := range []struct {
		field, body string
		status      int
	}{
		{"score", `{"entry":ID,"score":0}`, 422},
		{"score", `{"entry":ID,"score":6}`, 422},
		{"score", `{"entry":ID,"score":-1}`, 422},
		{"score", `{"entry":ID,"score":4.5}`, 422},
		{"score", `{"entry":ID,"score":1e400}`, 422},
		{"score", `{"entry":ID,"score":null}`, 400},
		{"note", `{"entry":ID,"score":5,"note":null}`, 400},
		{"score", `{"entry":ID}`, 422},
		{"score", `{"entry":ID,"score":"5"}`, 400},
		{"score", `{"entry":ID,"score":[5]}`, 400},
		{"note", `{"entry":ID,"score":5,"note":"` + strings.Repeat("x", 2001) + `"}`, 422},
		{"note", `{"entry":ID,"score":5,"note":"\u0000"}`, 422},
		{"note", `{"entry":ID,"score":5,"note":5}`, 400},
		{"entry", `{"score":5}`, 422},
		{"entry", `{"entry":0,"score":5}`, 422},
		{"entry", `{"entry":1.5,"score":5}`, 422},
		{"entry", `{"entry":9007199254740993,"score":5}`, 422},
		{"entry", `{"entry":"ID","score":5}`, 400},
		{"", `{"entry":1000,"score":5}`, 404},
		{"", `{"entry":9007199254740991,"score":5}`, 404},
		{"by", `{"entry":ID,"score":5,"by":1}`, 400},
	} {
		body := strings.ReplaceAll(c.body, "ID", fmt.Sprint(id))
		got := w.send("203.0.113.9", "POST", "/api/evaluations", body, admin)
		if field, _ := got.json(t)["field"].(string); got.StatusCode != c.status || field != c.field {
			t.Errorf("%.60s: %d %s, want %d", body, got.StatusCode, got.body, c.status)
		}
	}
	if got := w.results(admin); got != "" {
		t.Errorf("kept are %s", got)
	}
	expect(t, w.send("203.0.113.9", "POST", "/api/evaluations", fmt.Sprintf(`{"entry":%d,"score":5.0,"note":"%s"}`, id, strings.Repeat("x", 2000)), admin), http.StatusCreated)
}
