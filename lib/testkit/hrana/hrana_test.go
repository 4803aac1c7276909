package hrana_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/tursodatabase/libsql-client-go/libsql"

	"github.com/weirlimits/weir/lib/testkit/hrana"
)

func open(t *testing.T, s *hrana.Server) *sql.DB {
	t.Helper()
	db, err := sql.Open("libsql", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, text string, args ...any) sql.Result {
	t.Helper()
	res, err := db.ExecContext(t.Context(), text, args...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func count(t *testing.T, s *hrana.Server, text string) int {
	t.Helper()
	var n int
	if err := s.DB().QueryRowContext(t.Context(), text).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// post sends a pipeline as it stands and returns the status and the decoded reply.
func post(t *testing.T, s *hrana.Server, body string) (int, map[string]any) {
	t.Helper()
	resp, err := http.Post(s.URL+"/v2/pipeline", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var reply map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, reply
}

func TestValuesOfEveryTypeComeBackAsTheyWereSent(t *testing.T) {
	db := open(t, hrana.Start(t, hrana.Config{}))
	exec(t, db, `CREATE TABLE v (i INTEGER, r REAL, t TEXT, b BLOB, n INTEGER) STRICT`)
	exec(t, db, `INSERT INTO v VALUES (?, ?, ?, ?, ?)`, int64(math.MaxInt64), 0.5, "naïve", []byte{0, 1, 2, 255}, nil)
	var (
		i int64
		r float64
		x string
		b []byte
		n sql.NullInt64
	)
	if err := db.QueryRow(`SELECT i, r, t, b, n FROM v`).Scan(&i, &r, &x, &b, &n); err != nil {
		t.Fatal(err)
	}
	if i != math.MaxInt64 || r != 0.5 || x != "naïve" || !bytes.Equal(b, []byte{0, 1, 2, 255}) || n.Valid {
		t.Errorf("got %v %v %q %v %v", i, r, x, b, n)
	}
}

func TestAffectedRowsCountTheStatementAloneAndOnlyIfItWrites(t *testing.T) {
	db := open(t, hrana.Start(t, hrana.Config{}))
	exec(t, db, `CREATE TABLE a (id INTEGER PRIMARY KEY, n INTEGER)`)
	exec(t, db, `CREATE TABLE log (n INTEGER)`)
	exec(t, db, `CREATE TRIGGER a_log AFTER UPDATE ON a BEGIN INSERT INTO log VALUES (CASE WHEN 1 THEN new.n END); INSERT INTO log VALUES (0); END`)
	for _, step := range []struct {
		sql  string
		want int64
	}{
		{`INSERT INTO a VALUES (1, 0), (2, 0), (3, 0)`, 3},
		{`UPDATE a SET n = 1 WHERE id > 1`, 2},
		{`SELECT * FROM a`, 0},
		{`INSERT INTO a VALUES (1, 5) ON CONFLICT DO UPDATE SET n = 5 WHERE false`, 0},
		{`CREATE TABLE z (n)`, 0},
	} {
		if got, _ := exec(t, db, step.sql).RowsAffected(); got != step.want {
			t.Errorf("%s: %d rows affected, want %d", step.sql, got, step.want)
		}
	}
	if id, _ := exec(t, db, `INSERT INTO a VALUES (77, 0)`).LastInsertId(); id != 77 {
		t.Errorf("last insert id %d, want 77", id)
	}
}

func TestEveryRequestIsRememberedWithItsStatementsAndArguments(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	db := open(t, s)
	exec(t, db, `CREATE TABLE c (n INTEGER)`)
	s.Forget()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rows, err := conn.QueryContext(t.Context(), `INSERT INTO c VALUES (?) RETURNING n; SELECT count(*) FROM c WHERE n < ?`, 7, 8.5)
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	var got []hrana.Request
	for _, r := range s.Requests() {
		if r.Steps[0].Kind != "close" { // the driver ends the stream before in the background
			got = append(got, r)
		}
	}
	if len(got) != 1 || len(got[0].Steps) != 1 || got[0].Steps[0].Kind != "batch" {
		t.Fatalf("requests %+v, want one batch", got)
	}
	// The driver adds a ROLLBACK to every batch.
	st := got[0].Statements()
	if len(st) != 3 || !strings.HasPrefix(st[0].SQL, "INSERT") || !slices.Equal(st[0].Args, []any{int64(7)}) ||
		!strings.HasPrefix(st[1].SQL, "SELECT") || !slices.Equal(st[1].Args, []any{8.5}) || st[2].SQL != "ROLLBACK" {
		t.Errorf("statements %+v", st)
	}
}

func TestTransactionsOfDifferentStreamsAreApart(t *testing.T) {
	db := open(t, hrana.Start(t, hrana.Config{}))
	exec(t, db, `CREATE TABLE c (n INTEGER)`)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`INSERT INTO c VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	var inside, outside int
	if err := tx.QueryRow(`SELECT count(*) FROM c`).Scan(&inside); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(`SELECT count(*) FROM c`).Scan(&outside); err != nil {
		t.Fatal(err)
	}
	if inside != 1 || outside != 0 {
		t.Errorf("%d rows inside the transaction and %d outside, want 1 and 0", inside, outside)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

func TestAnExpiredStreamIsRefusedAndItsTransactionRolledBack(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	_, reply := post(t, s, `{"requests": [
		{"type": "sequence", "sql": "CREATE TABLE c (n); BEGIN; INSERT INTO c VALUES (1)"}]}`)
	baton, _ := reply["baton"].(string)
	if baton == "" {
		t.Fatalf("no baton in %v", reply)
	}
	s.ExpireStreams()
	status, reply := post(t, s, `{"baton": "`+baton+`", "requests": []}`)
	if status != http.StatusBadRequest || reply["code"] != "STREAM_EXPIRED" {
		t.Errorf("status %d and %v, want 400 and STREAM_EXPIRED", status, reply)
	}
	// The lock is free again.
	post(t, s, `{"requests": [{"type": "execute", "stmt": {"sql": "CREATE TABLE IF NOT EXISTS c (n)"}}, {"type": "close"}]}`)
	if n := count(t, s, `SELECT count(*) FROM c`); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestAnIdleStreamExpiresByItself(t *testing.T) {
	s := hrana.Start(t, hrana.Config{StreamTTL: time.Nanosecond})
	_, reply := post(t, s, `{"requests": [{"type": "sequence", "sql": "CREATE TABLE c (n); BEGIN IMMEDIATE"}]}`)
	if reply["baton"] == nil {
		t.Fatalf("no baton in %v", reply)
	}
	// This waits for the write lock that the stream held until it expired.
	if _, err := s.DB().ExecContext(t.Context(), `INSERT INTO c VALUES (1)`); err != nil {
		t.Error(err)
	}
}

func TestABatonIsGoodOnce(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	_, reply := post(t, s, `{"requests": []}`)
	again := `{"baton": "` + reply["baton"].(string) + `", "requests": []}`
	if status, reply := post(t, s, again); status != http.StatusOK {
		t.Errorf("first use: %d %v", status, reply)
	}
	if status, _ := post(t, s, again); status != http.StatusBadRequest {
		t.Errorf("second use: status %d, want 400", status)
	}
}

func TestBatchStepsRunByTheirConditions(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	step := func(text, cond string) string {
		if cond == "" {
			return `{"stmt": {"sql": "` + text + `"}}`
		}
		return `{"stmt": {"sql": "` + text + `"}, "condition": ` + cond + `}`
	}
	ok, failed := `{"type": "ok", "step": 0}`, `{"type": "ok", "step": 1}`
	_, reply := post(t, s, `{"requests": [{"type": "batch", "batch": {"steps": [`+strings.Join([]string{
		step(`SELECT 0`, ""),
		step(`SELECT * FROM nowhere`, ok),
		step(`SELECT 2`, failed),
		step(`SELECT 3`, `{"type": "error", "step": 1}`),
		step(`SELECT 4`, `{"type": "not", "cond": `+failed+`}`),
		step(`SELECT 5`, `{"type": "and", "conds": [`+ok+`, `+failed+`]}`),
		step(`SELECT 6`, `{"type": "or", "conds": [`+failed+`, `+ok+`]}`),
		step(`SELECT 7`, `{"type": "is_autocommit"}`),
		step(`BEGIN`, ""),
		step(`SELECT 9`, `{"type": "is_autocommit"}`),
	}, ",")+`]}}]}`)
	result := reply["results"].([]any)[0].(map[string]any)["response"].(map[string]any)["result"].(map[string]any)
	var ran, erred []int
	for i, r := range result["step_results"].([]any) {
		if r != nil {
			ran = append(ran, i)
		}
	}
	for i, e := range result["step_errors"].([]any) {
		if e != nil {
			erred = append(erred, i)
		}
	}
	if want := []int{0, 3, 4, 6, 7, 8}; !slices.Equal(ran, want) {
		t.Errorf("steps %v ran, want %v", ran, want)
	}
	if want := []int{1}; !slices.Equal(erred, want) {
		t.Errorf("steps %v failed, want %v", erred, want)
	}
}

func TestOddRequestsGetAnErrorAndTheNextStepStillRuns(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	for _, req := range []string{
		`{"type": "execute"}`,
		`{"type": "execute", "stmt": {}}`,
		`{"type": "execute", "stmt": {"sql": "SELECT 1; SELECT 2"}}`,
		`{"type": "execute", "stmt": {"sql": "-- nothing"}}`,
		`{"type": "execute", "stmt": {"sql": "SELECT ?", "args": [{"type": "integer", "value": 1}]}}`,
		`{"type": "execute", "stmt": {"sql": "SELECT ?", "args": [{"type": "blob"}]}}`,
		`{"type": "execute", "stmt": {"sql": "SELECT ?", "args": [{"type": "date", "value": "x"}]}}`,
		`{"type": "execute", "stmt": {"sql_id": 9}}`,
		`{"type": "batch"}`,
		`{"type": "batch", "batch": {"steps": [{"stmt": {"sql": "SELECT 1"}, "condition": {"type": "ok", "step": -1}}]}}`,
		`{"type": "batch", "batch": {"steps": [{"stmt": {"sql": "SELECT 1"}, "condition": {"type": "not"}}]}}`,
		`{"type": "describe", "sql": "SELECT 1"}`,
	} {
		_, reply := post(t, s, `{"requests": [`+req+`, {"type": "execute", "stmt": {"sql": "SELECT 1"}}]}`)
		results := reply["results"].([]any)
		if a, b := results[0].(map[string]any)["type"], results[1].(map[string]any)["type"]; a != "error" || b != "ok" {
			t.Errorf("%s: %v then %v, want error then ok", req, a, b)
		}
	}
	if status, _ := post(t, s, `{"requests": 5}`); status != http.StatusBadRequest {
		t.Errorf("a malformed pipeline: status %d, want 400", status)
	}
}

func TestStoredTextsAreRememberedAsWhatTheySay(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	_, reply := post(t, s, `{"requests": [
		{"type": "store_sql", "sql_id": 1, "sql": "SELECT 41 + 1"},
		{"type": "execute", "stmt": {"sql_id": 1}}]}`)
	post(t, s, `{"baton": "`+reply["baton"].(string)+`", "requests": [{"type": "execute", "stmt": {"sql_id": 1}}, {"type": "get_autocommit"}]}`)
	for i, r := range s.Requests() {
		if st := r.Statements(); len(st) != 1 || st[0].SQL != "SELECT 41 + 1" {
			t.Errorf("request %d: statements %+v", i+1, st)
		}
	}
}

func TestSQLiteErrorsReachTheClientWithTheirText(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	db := open(t, s)
	exec(t, db, `CREATE TABLE u (n INTEGER PRIMARY KEY)`)
	exec(t, db, `INSERT INTO u VALUES (1)`)
	_, err := db.Exec(`INSERT INTO u VALUES (1)`)
	if err == nil || !strings.Contains(err.Error(), "UNIQUE constraint failed") {
		t.Errorf("error %v, want a failed unique constraint", err)
	}
	_, reply := post(t, s, `{"requests": [{"type": "execute", "stmt": {"sql": "INSERT INTO u VALUES (1)"}}]}`)
	if e := reply["results"].([]any)[0].(map[string]any)["error"].(map[string]any); e["code"] != "SQLITE_CONSTRAINT" {
		t.Errorf("error %v, want code SQLITE_CONSTRAINT", e)
	}
}

// insertHooked starts a server on which the action meets the first INSERT, runs one, and returns its error.
func insertHooked(t *testing.T, ctx context.Context, act hrana.Action) (*hrana.Server, error) {
	t.Helper()
	s := hrana.Start(t, hrana.Config{})
	db := open(t, s)
	exec(t, db, `CREATE TABLE c (n INTEGER)`)
	s.SetHook(func(_ int, req hrana.Request) hrana.Action {
		for _, st := range req.Statements() {
			if strings.HasPrefix(st.SQL, "INSERT") {
				return act
			}
		}
		return hrana.Action{}
	})
	_, err := db.ExecContext(ctx, `INSERT INTO c VALUES (1)`)
	return s, err
}

func TestFaultsBeforeAndAfterApplying(t *testing.T) {
	for name, c := range map[string]struct {
		act     hrana.Action
		applied int
	}{
		"cut before":      {hrana.Action{Cut: true}, 0},
		"reply dropped":   {hrana.Action{DropReply: true}, 1},
		"401":             {hrana.Action{Answer: &hrana.Answer{Status: 401, Body: `{"message": "x", "code": "BLOCKED"}`}}, 0},
		"503":             {hrana.Action{Answer: &hrana.Answer{Status: 503}}, 0},
		"html":            {hrana.Action{Answer: &hrana.Answer{ContentType: "text/html", Body: "<p>hello"}}, 0},
		"reply truncated": {hrana.Action{Rewrite: func(b []byte) []byte { return b[:len(b)/2] }}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := insertHooked(t, t.Context(), c.act)
			if err == nil {
				t.Error("the client saw no error")
			}
			if n := count(t, s, `SELECT count(*) FROM c`); n != c.applied {
				t.Errorf("%d rows were written, want %d", n, c.applied)
			}
		})
	}
}

func TestAHeldRequestWaitsAndIsAppliedAlthoughItsClientHasGone(t *testing.T) {
	release := make(chan struct{})
	arrived := make(chan struct{})
	applied := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	s := hrana.Start(t, hrana.Config{})
	db := open(t, s)
	exec(t, db, `CREATE TABLE c (n INTEGER)`)
	var once sync.Once
	s.SetHook(func(_ int, req hrana.Request) hrana.Action {
		if st := req.Statements(); len(st) == 0 || !strings.HasPrefix(st[0].SQL, "INSERT") {
			return hrana.Action{}
		}
		once.Do(func() { close(arrived) })
		return hrana.Action{Hold: release, Rewrite: func(b []byte) []byte { close(applied); return b }}
	})
	if _, err := db.ExecContext(ctx, `INSERT INTO c VALUES (1)`); err == nil {
		t.Fatal("the client waited for a held request")
	}
	if n := count(t, s, `SELECT count(*) FROM c`); n != 0 {
		t.Errorf("%d rows while held, want none", n)
	}
	close(release)
	<-applied
	if n := count(t, s, `SELECT count(*) FROM c`); n != 1 {
		t.Errorf("%d rows after the release, want 1", n)
	}
}

func TestClosingTheServerEndsHeldRequests(t *testing.T) {
	var client sync.WaitGroup
	t.Run("server", func(sub *testing.T) {
		arrived := make(chan struct{})
		s := hrana.Start(sub, hrana.Config{Hook: func(int, hrana.Request) hrana.Action {
			close(arrived)
			return hrana.Action{Hold: make(chan struct{})}
		}})
		client.Go(func() {
			resp, err := http.Post(s.URL+"/v2/pipeline", "application/json", strings.NewReader(`{"requests": []}`))
			if err == nil {
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				t.Errorf("the held request was answered: %d %s", resp.StatusCode, b)
			}
		})
		<-arrived
	})
	client.Wait()
}

func TestParallelClientsLoseNoUpdate(t *testing.T) {
	s := hrana.Start(t, hrana.Config{})
	db := open(t, s)
	exec(t, db, `CREATE TABLE c (n INTEGER)`)
	exec(t, db, `INSERT INTO c VALUES (0)`)
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			if _, err := db.Exec(`UPDATE c SET n = n + 1`); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	if n := count(t, s, `SELECT n FROM c`); n != 20 {
		t.Errorf("counted %d, want 20", n)
	}
}
