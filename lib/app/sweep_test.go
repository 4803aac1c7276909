package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// planted says how a row of each table that has an end is made: by its number, and a time that decides whether that has come. The
// tables without an end are in unending.
var planted = map[string]string{
	"rate_limits": `INSERT INTO rate_limits (
		key, policy, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, charged,
		refused_micros, override, until_micros, said_micros, expires_micros)
		VALUES (%d, 'p', 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, %d)`,
	"rate_limit_refunds": `INSERT INTO rate_limit_refunds (
		id, key, algorithm, window_micros, cost, charged_micros, epoch, charged_at, given_at, at_micros, debt, given, expires_micros)
		VALUES (%d, 7, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, %d)`,
	"rate_limit_audit": `INSERT INTO rate_limit_audit (id, policy, key, used, action, until_micros, at_micros) VALUES (%d, 'p', 1, 1, 'refusal', 0, %d)`,
	"alerts": `INSERT INTO alerts (id, kind, policy, key, windows, last_micros, attempts, at_micros)
		VALUES (%[1]d, 'repeated-refusals', 'p', 1, 1, %[2]d, 0, %[2]d)`,
	"sessions":        `INSERT INTO sessions (token_hash, account, created_micros, expires_micros) VALUES ('%[1]d', %[1]d, 0, %[2]d)`,
	"devices":         `INSERT INTO devices (id_hash, account, created_micros, used_micros, expires_micros) VALUES ('%[1]d', %[1]d, 0, 0, %[2]d)`,
	"outbox":          `INSERT INTO outbox (id, message_id, recipient, subject, body, created_micros) VALUES (%d, 'm', 'r', 's', 'b', %d)`,
	"otp_codes":       `INSERT INTO otp_codes (phone_key, code_mac, expires_micros) VALUES (%d, 'm', %d)`,
	"password_resets": `INSERT INTO password_resets (account, token_hash, expires_micros) VALUES (%[1]d, '%[1]d', %[2]d)`,
	"sign_in_figures": `INSERT INTO sign_in_figures (id, value) SELECT 2 * (%[2]d / 60000000), %[1]d`,
	"attacks":         `INSERT INTO attacks (id, figures, begun_micros, last_micros) VALUES (%d, '{}', %[2]d, %[2]d)`,
}

var unending = []string{"accounts", "invite_codes", "ai_log_entries", "evaluations", "partner_keys"}

// Issue 10.17: the timer's sweep takes what is over in every table, and nothing else. The tables are those of the schema, so that a
// new one can't be forgotten.
func TestTheTimersSweepTakesWhatIsOverInEveryTable(t *testing.T) {
	w := newWorld(t, withTokens, detecting, func(s *app.Settings) { s.AuditRetention = 24 * time.Hour })
	rows, err := w.db.QueryContext(t.Context(), `
		SELECT name, EXISTS (SELECT 1 FROM pragma_table_info(m.name) WHERE name = 'expires_micros')
		FROM sqlite_master AS m
		WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'schema%'`)
	if err != nil {
		t.Fatal(err)
	}
	var tables []string
	for rows.Next() {
		var table string
		var ends bool
		if err := rows.Scan(&table, &ends); err != nil {
			t.Fatal(err)
		}
		_, known := planted[table]
		switch without := strings.Contains(" "+strings.Join(unending, " ")+" ", " "+table+" "); {
		case known && !without:
			tables = append(tables, table)
		case known || !without || ends:
			t.Errorf("the table %s: say in this test whether its rows have an end, and have the timer's sweep take them", table)
		}
	}
	if err := rows.Err(); err != nil || len(tables) != len(planted) {
		t.Fatalf("%d tables of %d, %v", len(tables), len(planted), err)
	}

	w.clock.At(100 * 24 * time.Hour)
	count := func(table string) (n int) {
		t.Helper()
		if err := w.db.QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := map[string]int{}
	for _, table := range tables { // the live row first: triggers of some tables take what is over when a row is added
		for number, at := range []time.Time{w.clock.Now().Add(time.Hour), storetest.Start} {
			if _, err := w.db.Exec(fmt.Sprintf(planted[table], number+1, at.UnixMicro())); err != nil {
				t.Fatalf("%s: %v", table, err)
			}
		}
	}
	for _, table := range tables {
		before[table] = count(table)
	}
	if got := w.sweep(); got.json(t)["done"] != true {
		t.Fatalf("%s", got.body)
	}
	for _, table := range tables {
		want := 1
		if table == "alerts" {
			want = 2 // an attack raises one
		}
		if before[table] != 2*want || count(table) != want {
			t.Errorf("%s: %d rows before the sweep and %d after it, want %d and %d", table, before[table], count(table), 2*want, want)
		}
	}
}

// Issue 10.18: forty views at once are all answered, and so is everything else meanwhile.
func TestManyViewsAtOnceKeepNobodyOut(t *testing.T) {
	w := newWorld(t, withTokens)
	byToken := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+limitsToken) }
	var group sync.WaitGroup
	for i := range 40 {
		path := []string{"/api/limits", "/api/limits?view=refusals", "/api/limits?view=audit", "/api/limits?view=alerts"}[i%4]
		group.Go(func() {
			if got := w.send("", "GET", path, "", byToken); got.StatusCode != http.StatusOK {
				t.Errorf("%s answers %d: %s", path, got.StatusCode, got.body)
			}
		})
		group.Go(func() {
			got := w.send(fmt.Sprintf("203.0.113.%d", i), "GET", "/api/usernames?name=someone", "")
			if got.StatusCode != http.StatusOK {
				t.Errorf("a name is answered %d: %s", got.StatusCode, got.body)
			}
		})
	}
	group.Wait()
}
