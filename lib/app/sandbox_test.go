package app_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

func statement(text string) string {
	body, err := json.Marshal(map[string]string{"sql": text})
	if err != nil {
		panic(err)
	}
	return string(body)
}

// endless is a statement that has no end.
var endless = statement("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")

func TestAnAdminRunsAStatement(t *testing.T) {
	w := newWorld(t)
	admin := w.demo("admin")
	for text, want := range map[string]string{
		"SELECT count(*) AS n, 9007199254740992 AS big, NULL AS none, X'0a' AS blob, 0.5 AS half, 'é<' AS text FROM orders": `{"columns":["n","big","none","blob","half","text"],` +
			`"rows":[[600,"9007199254740992",null,"X'0A'",0.5,"é<"]],"truncated":false}`,
		"DELETE FROM order_lines": `{"columns":[],"rows":[],"truncated":false}`,
		"UPDATE products SET stock = 7 WHERE id = 1 RETURNING id, stock": `{"columns":["id","stock"],"rows":[[1,7]],"truncated":false}`,
		"SELECT id FROM products WHERE id < 0":                           `{"columns":["id"],"rows":[],"truncated":false}`,
	} {
		got := w.send("203.0.113.9", "POST", "/api/sandbox-sql", statement(text), admin)
		expect(t, got, http.StatusOK)
		if got.body != want {
			t.Errorf("%s\ngives %s\nwant  %s", text, got.body, want)
		}
	}
	got := w.send("203.0.113.9", "POST", "/api/sandbox-sql", statement("SELECT id FROM order_lines"), admin)
	if rows, _ := got.json(t)["rows"].([]any); len(rows) != 1000 || got.json(t)["truncated"] != true {
		t.Errorf("%d rows, cut: %v", len(rows), got.json(t)["truncated"])
	}
}

func TestAStatementThatCannotRunIsTheRequestsFault(t *testing.T) {
	w := newWorld(t)
	admin := w.demo("admin")
	for text, want := range map[string]string{
		"SELECT * FROM x":               "no such table: x",
		"SELECT * FROM accounts":        "no such table: accounts", // it isn't the application's database
		"ATTACH '" + w.url + "' AS app": "ATTACH, DETACH and VACUUM are not available here: there is one database, in memory.",
		"SELECT 1; SELECT 2":            "The text holds more than one statement.",
		"":                              "The text holds no statement.",
		strings.Repeat(" ", 10_001):     "The statement is longer than 10000 bytes.",
	} {
		got := w.send("203.0.113.9", "POST", "/api/sandbox-sql", statement(text), admin)
		expect(t, got, http.StatusUnprocessableEntity)
		if got.field(t, "detail") != want || got.field(t, "field") != "sql" {
			t.Errorf("%q: %s", text, got.body)
		}
	}
	got := w.send("203.0.113.9", "POST", "/api/sandbox-sql", endless, admin)
	expect(t, got, http.StatusRequestTimeout)
	if got.field(t, "detail") != "The statement took too long and was stopped." {
		t.Errorf("it says %s", got.body)
	}
	if strings.Contains(w.log.String(), "SELECT") || strings.Contains(w.log.String(), "no such table") {
		t.Error("the log holds a statement")
	}
}
