package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlimits/weir/lib/testkit/hrana"
)

const testToken = "s3cr3t-token"

func openTestServer(t *testing.T, hook hrana.Hook) *DB {
	t.Helper()
	return openTestURL(t, hrana.Start(t, hrana.Config{Hook: hook}).URL, DefaultDeadline)
}

func openTestURL(t *testing.T, url string, deadline time.Duration) *DB {
	t.Helper()
	db, err := Open(Config{URL: url, AuthToken: testToken, Deadline: deadline})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

const (
	batchReply = `{"baton":null,"results":[{"type":"ok","response":{"type":"batch","result":%s}}]}`
	oneReply   = `{"baton":null,"results":[{"type":"ok","response":{"type":"execute","result":%s}}]}`
	oneResult  = `{"cols":[{"name":"n"}],"rows":[[%s]],"affected_row_count":0}`
)

func one(value string) string { return fmt.Sprintf(oneReply, fmt.Sprintf(oneResult, value)) }

// Cases B16, B06, B19: an answer that no server should give is an error, in time, for one statement and for a text of two. The
// process lives on and the next call is normal.
func TestAnOddReplyIsAnErrorAndTheNextCallIsNormal(t *testing.T) {
	html := "<html><body>" + strings.Repeat("Bad gateway ", 200) + "</body></html>"
	target := hrana.Start(t, hrana.Config{})
	answers := map[string]hrana.Answer{
		"no results":            {Body: `{"baton":null,"results":[]}`},
		"integer as a number":   {Body: one(`{"type":"integer","value":7}`)},
		"value of no type":      {Body: one(`{"type":"integer"}`)},
		"row without values":    {Body: fmt.Sprintf(oneReply, `{"cols":[{"name":"n"}],"rows":[[]]}`)},
		"null results":          {Body: `{"results":null}`},
		"null result":           {Body: `{"results":[null]}`},
		"no response":           {Body: `{"results":[{"type":"ok"}]}`},
		"unknown response":      {Body: `{"results":[{"type":"ok","response":{"type":"describe"}}]}`},
		"null step result":      {Body: fmt.Sprintf(batchReply, `{"step_results":[null,null,null],"step_errors":[null,null,null]}`)},
		"too few steps":         {Body: fmt.Sprintf(batchReply, `{"step_results":[null],"step_errors":[null]}`)},
		"no steps":              {Body: fmt.Sprintf(batchReply, `{"step_results":[],"step_errors":[]}`)},
		"step error":            {Body: fmt.Sprintf(batchReply, `{"step_results":[null],"step_errors":[{"message":"no"}]}`)},
		"null":                  {Body: `null`},
		"empty":                 {},
		"truncated":             {Body: one(`{"type":"integer","value":"7"}`)[:60]},
		"HTML":                  {ContentType: "text/html", Body: html},
		"502 with HTML":         {Status: 502, ContentType: "text/html", Body: html},
		"301 to a page":         {Status: 301, Location: "/page"},
		"302 to a page":         {Status: 302, Location: "/page"},
		"302 to itself":         {Status: 302, Location: "/v2/pipeline"},
		"307 to another server": {Status: 307, Location: target.URL + "/v2/pipeline"},
		"308 to another server": {Status: 308, Location: target.URL + "/v2/pipeline"},
		"400 of another shape":  {Status: 400, Body: `{"message":"The stream has expired due to inactivity","code":"STREAM_EXPIRED"}`},
		"401":                   {Status: 401, Body: `{"message":"bad token ` + testToken + `","code":"UNAUTHORIZED"}`},
		"401 with the token":    {Status: 401, Body: `{"error":"bad token ` + testToken + `"}`},
		"403":                   {Status: 403, Body: `{"message":"x","code":"BLOCKED"}`},
		"503":                   {Status: 503},
	}
	var odd atomic.Pointer[hrana.Answer]
	server := hrana.Start(t, hrana.Config{Hook: func(_ int, req hrana.Request) hrana.Action {
		if len(req.Statements()) == 0 {
			return hrana.Action{} // the driver's own closing of streams
		}
		return hrana.Action{Answer: odd.Load()}
	}})
	db := openTestURL(t, server.URL, DefaultDeadline)
	sum := func(query string) (sum int, err error) {
		rows, err := db.Query(query)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		for more := true; more; more = rows.NextResultSet() {
			for rows.Next() {
				var n int
				if err := rows.Scan(&n); err != nil {
					return 0, err
				}
				sum += n
			}
		}
		return sum, rows.Err()
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			for query, want := range map[string]int{"SELECT 7": 7, "SELECT 3; SELECT 4": 7} {
				server.Forget()
				odd.Store(&answer)
				_, err := sum(query)
				odd.Store(nil)
				if err == nil {
					t.Errorf("%s: no error", query)
				} else if text := err.Error(); strings.Contains(text, testToken) || strings.Contains(text, "127.0.0.1") || len(text) > maxErrorBytes+40 {
					t.Errorf("%s: error text %q", query, text)
				} else if answer.Status >= 400 && !strings.Contains(text, fmt.Sprint(answer.Status)) {
					t.Errorf("%s: %q does not tell the status", query, text)
				} else if answer.Location != "" && (!errors.Is(err, ErrNonsense) || !strings.Contains(text, "redirect")) {
					t.Errorf("%s: %q does not tell of the redirect", query, text)
				}
				if sent := countSent(server.Requests(), query); sent != 1 && answer.Status/100 != 3 {
					t.Errorf("%s: sent %d times", query, sent)
				}
				if got, err := sum(query); err != nil || got != want {
					t.Errorf("%s, the next call: got %d, %v; want %d", query, got, err, want)
				}
			}
		})
	}
}

func countSent(requests []hrana.Request, query string) (n int) {
	for _, r := range requests {
		for _, s := range r.Statements() {
			if strings.HasPrefix(query, s.SQL) {
				n++
				break
			}
		}
	}
	return n
}

func TestAServerThatIsNotThereIsAnErrorWithoutTheURL(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	_, err := openTestURL(t, server.URL+"/some-path", 0).Exec("SELECT 1")
	if err == nil || strings.Contains(err.Error(), "http:") || strings.Contains(err.Error(), "some-path") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want a refused connection", err)
	}
}

// Case B01: the server takes the request and never answers.
func TestASilentServerIsATimeoutAndLeavesNoGoroutine(t *testing.T) {
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // from then on the server notices that its client has gone
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(hold)
	db := openTestURL(t, server.URL, 50*time.Millisecond)
	baseline := runtime.NumGoroutine()
	for range 10 {
		began := time.Now()
		_, err := db.Exec("SELECT 1")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the deadline's error", err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Fatalf("took %v", took)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > baseline; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), baseline)
		}
	}
}

// Cases B02, B03: no transaction lasts over several requests, so no COMMIT can hang and no write lock be left behind.
func TestInteractiveTransactionsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	for _, db := range []*DB{openTestURL(t, server.URL, 0), openTestFile(t)} {
		if _, err := db.Begin(); !errors.Is(err, ErrTransaction) {
			t.Errorf("got %v, want %v", err, ErrTransaction)
		}
	}
	if n := len(server.Requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// Case B05: a stream that the server has forgotten is not used again.
func TestAStreamTheServerForgotIsNoError(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	db := openTestURL(t, server.URL, 0)
	for range 3 {
		if _, err := db.Exec("SELECT 1"); err != nil {
			t.Fatal(err)
		}
		server.ExpireStreams()
	}
}

// Turso's server for tests gives no batons: each stream ends with its first answer.
func TestAServerWithoutStreamsServesEveryKindOfCall(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, one(`{"type":"integer","value":"7"}`))
	}))
	defer server.Close()
	db := openTestURL(t, server.URL, 0)
	one, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	stmt, err := db.Prepare("SELECT 7")
	if err != nil {
		t.Fatal(err)
	}
	defer stmt.Close()
	for range 3 {
		var n, m int
		if err := errors.Join(db.Ping(), one.PingContext(t.Context()), db.QueryRow("SELECT 7").Scan(&n), stmt.QueryRow().Scan(&m)); err != nil || n+m != 14 {
			t.Errorf("got %d, %d, %v; want 7, 7", n, m, err)
		}
	}
}

// A call of which only the reply was lost may have been carried out: it is never sent again.
func TestALostReplyIsAnErrorAndTheCallIsNotRepeated(t *testing.T) {
	server := hrana.Start(t, hrana.Config{})
	if _, err := server.DB().Exec(`CREATE TABLE a (x INTEGER) STRICT`); err != nil {
		t.Fatal(err)
	}
	db := openTestURL(t, server.URL, 0)
	server.SetHook(func(_ int, req hrana.Request) hrana.Action {
		return hrana.Action{DropReply: len(req.Statements()) > 0}
	})
	if _, err := db.Exec(`INSERT INTO a VALUES (1)`); err == nil {
		t.Error("no error")
	}
	var rows int
	if err := server.DB().QueryRow(`SELECT count(*) FROM a`).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("rows: got %d, %v; want 1", rows, err)
	}
}

// fake is a driver of which every method runs a hook first.
type fake struct {
	hook  func(ctx context.Context, method string) error
	calls []string
	open  int
	made  int
}

func (f *fake) run(ctx context.Context, method string) error {
	f.calls = append(f.calls, method)
	if f.hook == nil {
		return nil
	}
	return f.hook(ctx, method)
}

func (f *fake) Connect(ctx context.Context) (driver.Conn, error) {
	f.made++
	f.open++
	return fakeConn{f}, f.run(ctx, "Connect")
}
func (f *fake) Driver() driver.Driver { return nil }

type fakeConn struct{ *fake }

func (c fakeConn) Begin() (driver.Tx, error)           { panic("not used") }
func (c fakeConn) Prepare(string) (driver.Stmt, error) { panic("not used") }
func (c fakeConn) PrepareContext(ctx context.Context, _ string) (driver.Stmt, error) {
	return fakeStmt{c}, c.run(ctx, "Prepare")
}
func (c fakeConn) ExecContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(1), c.run(ctx, "Exec")
}
func (c fakeConn) QueryContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Rows, error) {
	return &fakeRows{fake: c.fake, ctx: ctx}, c.run(ctx, "Query")
}
func (c fakeConn) ResetSession(ctx context.Context) error { return c.run(ctx, "ResetSession") }
func (c fakeConn) Close() error {
	c.open--
	return c.run(context.Background(), "Close")
}

type fakeStmt struct{ fakeConn }

func (s fakeStmt) Close() error                               { return s.run(context.Background(), "Stmt.Close") }
func (s fakeStmt) NumInput() int                              { return -1 }
func (s fakeStmt) Exec([]driver.Value) (driver.Result, error) { panic("not used") }
func (s fakeStmt) Query([]driver.Value) (driver.Rows, error)  { panic("not used") }
func (s fakeStmt) ExecContext(ctx context.Context, _ []driver.NamedValue) (driver.Result, error) {
	return s.fakeConn.ExecContext(ctx, "", nil)
}
func (s fakeStmt) QueryContext(ctx context.Context, _ []driver.NamedValue) (driver.Rows, error) {
	return s.fakeConn.QueryContext(ctx, "", nil)
}

// fakeRows has two result sets of one row each.
type fakeRows struct {
	*fake
	ctx      context.Context
	row, set int
}

func (r *fakeRows) Columns() []string {
	if err := r.run(r.ctx, "Columns"); err != nil {
		return nil
	}
	return []string{"n"}
}
func (r *fakeRows) Close() error { return r.run(r.ctx, "Rows.Close") }
func (r *fakeRows) Next(dest []driver.Value) error {
	if err := r.run(r.ctx, "Next"); err != nil {
		return err
	}
	if r.row > 0 {
		return io.EOF
	}
	r.row++
	dest[0] = int64(r.set + 1)
	return nil
}
func (r *fakeRows) HasNextResultSet() bool {
	r.run(r.ctx, "HasNextResultSet")
	return r.set == 0
}
func (r *fakeRows) NextResultSet() error {
	if err := r.run(r.ctx, "NextResultSet"); err != nil {
		return err
	}
	if r.set > 0 {
		return io.EOF
	}
	r.set, r.row = r.set+1, 0
	return nil
}
func (r *fakeRows) ColumnTypeDatabaseTypeName(int) string { return "INTEGER" }
func (r *fakeRows) ColumnTypeScanType(int) reflect.Type   { return reflect.TypeFor[int64]() }

// useAll makes every kind of call there is and returns the first error.
func useAll(db *sql.DB) error {
	if _, err := db.Exec("x"); err != nil {
		return err
	}
	stmt, err := db.Prepare("x")
	if err != nil {
		return err
	}
	rows, err := stmt.Query()
	if err != nil {
		return err
	}
	var got []int
	for more := true; more; more = rows.NextResultSet() {
		for rows.Next() {
			var n int
			if err := rows.Scan(&n); err != nil {
				return err
			}
			got = append(got, n)
		}
	}
	if err := errors.Join(rows.Err(), rows.Close(), stmt.Close()); err != nil {
		return err
	}
	if !slices.Equal(got, []int{1, 2}) {
		return fmt.Errorf("read %v, want [1 2]", got)
	}
	return nil
}

func TestAPanicAnywhereInTheDriverIsAnErrorAndCostsTheConnection(t *testing.T) {
	for _, method := range []string{"Connect", "Exec", "Prepare", "Query", "Columns", "Next", "HasNextResultSet", "NextResultSet", "Rows.Close"} {
		for _, remote := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s remote=%v", method, remote), func(t *testing.T) {
				f := &fake{hook: func(_ context.Context, m string) error {
					if m == method {
						panic("index out of range")
					}
					return nil
				}}
				db := sql.OpenDB(&guard{inner: f, deadline: time.Minute, remote: remote})
				defer db.Close()
				if err := useAll(db); !errors.Is(err, ErrNonsense) {
					t.Fatalf("got %v, want %v", err, ErrNonsense)
				}
				made := f.made
				f.hook = nil
				if err := useAll(db); err != nil {
					t.Errorf("the next call: %v", err)
				}
				if f.made == made {
					t.Error("the connection was used again")
				}
			})
		}
	}
}

// Closing and resetting have no caller who could be told.
func TestAPanicInCleaningUpHarmsNobody(t *testing.T) {
	for _, method := range []string{"Close", "Stmt.Close", "ResetSession"} {
		f := &fake{hook: func(_ context.Context, m string) error {
			if m == method {
				panic("nil pointer")
			}
			return nil
		}}
		db := sql.OpenDB(&guard{inner: f, deadline: time.Minute, remote: true})
		useAll(db)
		db.Close()
	}
}

func TestADriverThatIgnoresItsContextIsLeftAtTheDeadline(t *testing.T) {
	for _, method := range []string{"Exec", "Prepare", "Query"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				f := &fake{hook: func(_ context.Context, m string) error {
					if m == method {
						<-hang
					}
					return nil
				}}
				db := sql.OpenDB(&guard{inner: f, deadline: 3 * time.Second, remote: true})
				began := time.Now()
				err := useAll(db)
				if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 3*time.Second {
					t.Errorf("got %v after %v, want the deadline's error after 3s", err, took)
				}
				synctest.Wait()
				if slices.Contains(f.calls, "Close") {
					t.Error("the connection was closed while the driver was using it")
				}
				close(hang)
				synctest.Wait()
				if f.calls[len(f.calls)-1] != "Close" {
					t.Error("the connection was not closed when the driver was through with it")
				}
				db.Close()
			})
		})
	}
}

func TestTheDeadlineLastsUntilTheRowsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen context.Context
		f := &fake{hook: func(ctx context.Context, m string) error {
			if m == "Query" {
				seen = ctx
			}
			return nil
		}}
		db := sql.OpenDB(&guard{inner: f, deadline: 3 * time.Second})
		defer db.Close()
		rows, err := db.Query("x")
		if err != nil || seen.Err() != nil {
			t.Fatal(err, seen.Err())
		}
		<-time.After(4 * time.Second)
		if rows.Next() || !errors.Is(rows.Err(), context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline's error", rows.Err())
		}
		if rows, err = db.Query("x"); err != nil {
			t.Fatal(err)
		}
		rows.Close()
		if !errors.Is(seen.Err(), context.Canceled) {
			t.Errorf("after Close the context is %v, want canceled", seen.Err())
		}
	})
}

type busyError struct{}

func (busyError) Error() string { return "database is locked" }
func (busyError) Code() int     { return 5 | 1<<8 }

// Nothing was charged yet when a file is opened, so opening may be repeated; what runs on the connection may not.
func TestABusyFileIsOpenedAgainUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := 3
		f := &fake{hook: func(_ context.Context, m string) error {
			if m == "Connect" && busy > 0 {
				busy--
				return busyError{}
			}
			return nil
		}}
		db := sql.OpenDB(&guard{inner: f, deadline: time.Second})
		defer db.Close()
		if _, err := db.Exec("x"); err != nil || f.made != 4 {
			t.Errorf("got %v after %d attempts, want success after 4", err, f.made)
		}

		busy = 1 << 30
		began := time.Now()
		db2 := sql.OpenDB(&guard{inner: f, deadline: time.Second})
		defer db2.Close()
		_, err := db2.Exec("x")
		if took := time.Since(began); !errors.As(err, &busyError{}) || took != time.Second {
			t.Errorf("got %v after %v, want the busy error after 1s", err, took)
		}
	})
}

// database/sql repeats a call at driver.ErrBadConn. That is right only for a call that never left.
func TestBadConnIsNoReasonToRepeatACallThatMayHaveBeenCarriedOut(t *testing.T) {
	f := &fake{hook: func(_ context.Context, m string) error {
		if m == "Exec" {
			return fmt.Errorf("stream expired: %w", driver.ErrBadConn)
		}
		return nil
	}}
	db := sql.OpenDB(&guard{inner: f, deadline: time.Minute})
	defer db.Close()
	if _, err := db.Exec("x"); err == nil || errors.Is(err, driver.ErrBadConn) {
		t.Errorf("got %v, want an error other than %v", err, driver.ErrBadConn)
	}
	if want := []string{"Connect", "Exec", "Close"}; !slices.Equal(f.calls, want) {
		t.Errorf("calls: got %v, want %v", f.calls, want)
	}
}

func TestTheCallersOwnContextEndsACallToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{hook: func(ctx context.Context, m string) error {
			if m == "Exec" {
				<-ctx.Done()
				return errors.New("interrupted")
			}
			return nil
		}}
		db := sql.OpenDB(&guard{inner: f, deadline: time.Minute})
		defer db.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := db.ExecContext(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline's error", err)
		}
	})
}

func TestColumnTypesPassThrough(t *testing.T) {
	db := sql.OpenDB(&guard{inner: &fake{}, deadline: time.Minute})
	defer db.Close()
	rows, err := db.Query("x")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil || types[0].DatabaseTypeName() != "INTEGER" || types[0].ScanType() != reflect.TypeFor[int64]() {
		t.Errorf("got %+v, %v", types, err)
	}
}
