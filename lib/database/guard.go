package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/http/httptrace"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tursodatabase/libsql-client-go/sqliteparserutils"

	"github.com/weirlimits/weir/lib/hrana"
)

var (
	// ErrTransaction is the error of Begin and BeginTx. Over HTTP a transaction of several requests keeps the database's
	// only write lock while the network is waited for, and the driver's Commit knows no deadline. What must be atomic is
	// one statement, or one text that begins with BEGIN and ends with COMMIT.
	ErrTransaction = errors.New("database: interactive transactions are not supported: use one statement, or one text with BEGIN and COMMIT")

	// ErrNonsense is the error of an answer that the driver can't read: one that makes it panic, one that lacks a
	// statement's result, or a redirect.
	ErrNonsense = errors.New("nonsensical answer")
)

// maxErrorBytes bounds the driver's part of an error text: a server may answer with a whole page.
const maxErrorBytes = 300

// busyPause is the time between two attempts to open a busy file. The lock in the way is held for about a millisecond.
const busyPause = 2 * time.Millisecond

// guard wraps every connection of a driver, so that each call ends within the deadline, with a result or an error.
//
// libsql-client-go has no timeout of its own, sends with http.DefaultClient, which follows redirects, and panics on many
// answers that it does not expect. A call to it runs in its own goroutine, so that it returns in time even if the driver
// ignores its context. The embedded file's driver honours the context, and is called directly: a switch between
// goroutines would be a large part of a call that takes some 20 µs.
//
// A call that failed because the database was busy is made again, once, after a short pause: see
// conn.again.
type guard struct {
	inner    driver.Connector
	deadline time.Duration
	token    string // taken out of every error text
	remote   bool
	gate     *hrana.Gate                // bounds the calls that are open at a server; nil for a file
	pause    func(context.Context) bool // before a call is made again; nil means hrana.Pause
}

// innerConn is what a driver must offer to be guarded. Both drivers do.
type innerConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
}

func (g *guard) Driver() driver.Driver { return g.inner.Driver() }

// Connect sends nothing to a server. A file is opened and, when it is new, put in WAL mode. Of several processes that do
// so at once SQLite tells some that the file is busy, without the wait that busy_timeout asks for; they try again.
func (g *guard) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.deadline)
	defer cancel()
	for {
		inner, err := g.connect(ctx)
		if err == nil {
			return &conn{guard: g, inner: inner}, nil
		}
		if !isBusy(err) {
			return nil, g.clean(err)
		}
		select {
		case <-ctx.Done():
			return nil, g.clean(err)
		case <-time.After(busyPause):
		}
	}
}

// isBusy recognises SQLITE_BUSY and SQLITE_LOCKED, which are 5 and 6 with or without an extension
// in the upper bits.
func isBusy(err error) bool {
	var coded interface{ Code() int }
	return errors.As(err, &coded) && (coded.Code()&0xff == 5 || coded.Code()&0xff == 6)
}

// serverBusy recognises the same in an error of libsql-client-go, which drops the code. What it
// says of an HTTP status other than 200 begins otherwise and is not recognised: see
// hrana.ServerError.Busy.
func serverBusy(err error) bool {
	return hrana.BusyMessage(strings.TrimPrefix(err.Error(), "failed to execute SQL:\n"))
}

func (g *guard) connect(ctx context.Context) (innerConn, error) {
	return safely(func() (innerConn, error) {
		inner, err := g.inner.Connect(ctx)
		if err != nil {
			return nil, err
		}
		ready, ok := inner.(innerConn)
		if !ok {
			return nil, fmt.Errorf("driver connection %T lacks context methods", inner)
		}
		return ready, nil
	})
}

// conn is used by one goroutine at a time, as database/sql promises.
type conn struct {
	*guard
	inner  innerConn
	failed atomic.Bool // a call failed and may have left a transaction or a stream open: the pool drops the connection
	left   atomic.Bool // a call runs on beyond its deadline and closes inner when it is through
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return once(ctx, c, query, func(ctx context.Context) (driver.Result, error) { return c.inner.ExecContext(ctx, query, args) })
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.query(ctx, query, func(ctx context.Context) (driver.Rows, error) { return c.inner.QueryContext(ctx, query, args) })
}

func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	inner, err := once(ctx, c, query, func(ctx context.Context) (driver.Stmt, error) { return c.inner.PrepareContext(ctx, query) })
	if err != nil {
		return nil, err
	}
	ready, ok := inner.(innerStmt)
	if !ok {
		return nil, fmt.Errorf("database: driver statement %T lacks context methods", inner)
	}
	return &stmt{conn: c, query: query, inner: ready, of: c.inner}, nil
}

func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *conn) Ping(ctx context.Context) error {
	_, err := c.ExecContext(ctx, "SELECT 1", nil)
	return err
}

func (c *conn) Begin() (driver.Tx, error) { return nil, ErrTransaction }

func (c *conn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return nil, ErrTransaction
}

// ResetSession comes before anything of the next user was sent, so ErrBadConn is right here: the pool takes another.
func (c *conn) ResetSession(ctx context.Context) error {
	if !c.IsValid() {
		return driver.ErrBadConn
	}
	if _, err := safely(func() (struct{}, error) { return struct{}{}, c.inner.ResetSession(ctx) }); err != nil {
		c.failed.Store(true)
		return driver.ErrBadConn
	}
	return nil
}

// IsValid tells the pool whether to keep the connection.
func (c *conn) IsValid() bool {
	if c.failed.Load() {
		return false
	}
	inner, ok := c.inner.(driver.Validator)
	return !ok || inner.IsValid()
}

func (c *conn) Close() error {
	if c.left.Load() {
		return nil
	}
	return c.closeInner()
}

func (c *conn) closeInner() error {
	_, err := safely(func() (struct{}, error) { return struct{}{}, c.inner.Close() })
	return c.clean(err)
}

func (c *conn) query(ctx context.Context, query string, f func(context.Context) (driver.Rows, error)) (driver.Rows, error) {
	inner, ctx, end, err := call(ctx, c, query, f)
	if err != nil {
		end()
		return nil, err
	}
	r := &rows{conn: c, inner: inner, ctx: ctx, end: end}
	if err := r.readColumns(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// once is call for a result that needs no context once it is there.
func once[T any](ctx context.Context, c *conn, query string, f func(context.Context) (T, error)) (T, error) {
	v, _, end, err := call(ctx, c, query, f)
	end()
	return v, err
}

// call runs f, which carries out query, under the deadline, with a context that it returns and that
// lasts until end is called.
func call[T any](ctx context.Context, c *conn, query string, f func(context.Context) (T, error)) (v T, _ context.Context, end context.CancelFunc, err error) {
	type outcome struct {
		v   T
		err error
	}
	ctx, end = context.WithTimeout(ctx, c.deadline)
	if !c.remote {
		begun := time.Now()
		v, err = safely(func() (T, error) { return f(ctx) })
		if err != nil && isBusy(err) && time.Since(begun) < c.deadline/2 && c.again(ctx, query) {
			v, err = safely(func() (T, error) { return f(ctx) })
		}
		return v, ctx, end, c.fail(ctx, err)
	}

	if err := c.gate.Enter(ctx); err != nil {
		return v, ctx, end, c.fail(ctx, err)
	}
	var newest atomic.Pointer[wire]
	newest.Store(&wire{})
	attempt := func() (T, error) {
		w := &wire{stop: end}
		newest.Store(w)
		v, err := safely(func() (T, error) { return f(w.watch(ctx)) })
		if errors.Is(err, driver.ErrBadConn) && !w.sent.Load() {
			// The driver knew that its stream is gone and sent nothing. database/sql would try another connection, but
			// not for a Ping or on a sql.Conn, so the stream is replaced here.
			if c.inner, err = c.connect(ctx); err == nil {
				v, err = safely(func() (T, error) { return f(w.watch(ctx)) })
			}
		}
		return v, err
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := attempt()
		if err != nil && serverBusy(err) {
			c.gate.Leave(true) // during the pause its place is for others
			if !c.again(ctx, query) || c.gate.Enter(ctx) != nil {
				done <- outcome{v, err}
				return
			}
			v, err = attempt()
		}
		c.gate.Leave(err != nil && (serverBusy(err) || errors.Is(ctx.Err(), context.DeadlineExceeded)))
		done <- outcome{v, err}
	}()
	select {
	case o := <-done:
		v, err = o.v, o.err
	case <-ctx.Done():
		// The driver still has the connection, so it is closed only when the driver is through with it.
		err = ctx.Err()
		c.left.Store(true)
		go func() {
			<-done
			c.closeInner()
		}()
	}
	w := newest.Load()
	if w.redirected.Load() {
		err = fmt.Errorf("%w: the server answered with a redirect", ErrNonsense)
	}
	if errors.Is(err, driver.ErrBadConn) && !w.sent.Load() {
		// A statement prepared on the stream that is gone: database/sql prepares it on another connection.
		c.failed.Store(true)
		return v, ctx, end, driver.ErrBadConn
	}
	return v, ctx, end, c.fail(ctx, err)
}

// again pauses after the database was too busy for query, and reports whether to carry query out
// again: whether the error proves that nothing of it was carried out. It does for a single
// statement, which is carried out as a whole or not at all, and for a text that is one transaction
// from BEGIN to COMMIT. That text gets a new connection, because its transaction may still be open
// on the old one.
func (c *conn) again(ctx context.Context, query string) bool {
	statements := split(query)
	if len(statements) > 1 && !isTransaction(statements) {
		return false
	}
	pause := c.pause
	if pause == nil {
		pause = hrana.Pause
	}
	if !pause(ctx) {
		return false
	}
	if len(statements) > 1 {
		inner, err := c.connect(ctx)
		if err != nil {
			return false
		}
		c.closeInner() // an error says that the connection is gone already
		c.inner = inner
	}
	return true
}

// split splits a text into its statements.
func split(text string) (statements []string) {
	iterator := sqliteparserutils.CreateStatementIterator(text)
	for {
		statement, _, end := iterator.Next()
		if statement != "" {
			statements = append(statements, statement)
		}
		if end {
			return statements
		}
	}
}

// isTransaction reports whether several statements are one transaction: the first begins it, the
// last commits it, and none between them ends it.
func isTransaction(statements []string) bool {
	for i, statement := range statements {
		word, _, _ := strings.Cut(strings.ToUpper(strings.Join(strings.Fields(statement), " ")), " ")
		switch word {
		case "BEGIN":
			if i > 0 {
				return false
			}
		case "COMMIT", "END":
			if i < len(statements)-1 {
				return false
			}
		case "ROLLBACK", "SAVEPOINT", "RELEASE":
			return false
		default:
			if i == 0 || i == len(statements)-1 {
				return false
			}
		}
	}
	return true
}

// safely turns a panic of f into an error.
func safely[T any](f func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the driver panicked: %v", ErrNonsense, p)
		}
	}()
	return f()
}

// wire watches what one call sends. The driver uses http.DefaultClient, whose redirects nothing but a change of that
// global could forbid: what follows a redirect is stopped instead, and the call is an error whatever comes back.
type wire struct {
	sent, answered, redirected atomic.Bool
	stop                       context.CancelFunc
}

var errRedirect = errors.New("a redirect is not followed")

func (w *wire) watch(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) {
			w.sent.Store(true)
			if w.answered.Load() {
				w.redirected.Store(true)
				w.stop()
				panic(errRedirect) // up to safely: a context that ended would not keep it from an idle connection
			}
		},
		GotFirstResponseByte: func() { w.answered.Store(true) },
	})
}

// fail takes the connection out of use and makes err fit to leave the package. It passes nil on.
func (c *conn) fail(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	c.failed.Store(true)
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ErrNonsense) {
		// Drivers word it in their own ways ("interrupted"); callers ask for the context's error.
		err = ended
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &callError{fmt.Sprintf("database: no answer in time (deadline %v)", c.deadline), err}
	}
	return c.clean(err)
}

// clean gives err a text without the URL and the token, and hides driver.ErrBadConn, at which database/sql would send
// the call again although it may have been carried out.
func (g *guard) clean(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if inURL := (*url.Error)(nil); errors.As(err, &inURL) {
		text = inURL.Err.Error()
	}
	if g.token != "" {
		text = strings.ReplaceAll(text, g.token, "[token]")
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "…"
	}
	if errors.Is(err, driver.ErrBadConn) {
		err = nil
	}
	return &callError{"database: " + text, err}
}

// callError is a failed call: a text for the log, and the cause for errors.Is and errors.As.
type callError struct {
	text  string
	cause error
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.cause }

type innerStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type stmt struct {
	conn  *conn
	query string
	inner innerStmt
	of    innerConn // that inner was prepared on; the conn may have another one since
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return once(ctx, s.conn, s.query, func(ctx context.Context) (driver.Result, error) {
		if s.of != s.conn.inner {
			return s.conn.inner.ExecContext(ctx, s.query, args)
		}
		return s.inner.ExecContext(ctx, args)
	})
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.query(ctx, s.query, func(ctx context.Context) (driver.Rows, error) {
		if s.of != s.conn.inner {
			return s.conn.inner.QueryContext(ctx, s.query, args)
		}
		return s.inner.QueryContext(ctx, args)
	})
}

// Exec and Query are part of driver.Stmt; database/sql calls the methods with a context instead.
func (s *stmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }
func (s *stmt) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip }

func (s *stmt) NumInput() int { return s.inner.NumInput() }

func (s *stmt) Close() error {
	if s.conn.left.Load() {
		return nil
	}
	_, err := safely(func() (struct{}, error) { return struct{}{}, s.inner.Close() })
	return s.conn.clean(err)
}

// rows passes the driver's rows on. The call's context, and with it the deadline, lasts until they are closed.
type rows struct {
	conn    *conn
	inner   driver.Rows
	ctx     context.Context
	end     context.CancelFunc
	columns []string
	broken  error // what HasNextResultSet could not return
}

// readColumns reads the names of the current result's columns. libsql-client-go gives nil for a result that is missing,
// and an empty slice for a statement without columns.
func (r *rows) readColumns() error {
	columns, err := safely(func() ([]string, error) { return r.inner.Columns(), nil })
	if err == nil && columns == nil && r.conn.remote {
		err = fmt.Errorf("%w: a statement's result is missing", ErrNonsense)
	}
	if err != nil {
		return r.fail(err)
	}
	r.columns = columns
	return nil
}

func (r *rows) Columns() []string { return r.columns }

func (r *rows) Next(dest []driver.Value) error {
	_, err := safely(func() (struct{}, error) {
		if err := r.ctx.Err(); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, r.inner.Next(dest)
	})
	if err == nil || err == io.EOF {
		return err
	}
	return r.fail(err)
}

func (r *rows) Close() error {
	defer r.end()
	if _, err := safely(func() (struct{}, error) { return struct{}{}, r.inner.Close() }); err != nil {
		return r.fail(err)
	}
	return nil
}

func (r *rows) HasNextResultSet() bool {
	inner, ok := r.inner.(driver.RowsNextResultSet)
	if !ok {
		return false
	}
	more, err := safely(func() (bool, error) { return inner.HasNextResultSet(), nil })
	r.broken = err
	return more || err != nil // NextResultSet reports what is wrong
}

func (r *rows) NextResultSet() error {
	inner, ok := r.inner.(driver.RowsNextResultSet)
	if !ok {
		return io.EOF
	}
	_, err := safely(func() (struct{}, error) {
		if r.broken != nil {
			return struct{}{}, r.broken
		}
		return struct{}{}, inner.NextResultSet()
	})
	if err == io.EOF {
		return err
	}
	if err != nil {
		return r.fail(err)
	}
	return r.readColumns()
}

func (r *rows) ColumnTypeDatabaseTypeName(index int) string {
	inner, ok := r.inner.(driver.RowsColumnTypeDatabaseTypeName)
	if !ok {
		return ""
	}
	name, _ := safely(func() (string, error) { return inner.ColumnTypeDatabaseTypeName(index), nil })
	return name
}

func (r *rows) ColumnTypeScanType(index int) reflect.Type {
	if inner, ok := r.inner.(driver.RowsColumnTypeScanType); ok {
		if t, err := safely(func() (reflect.Type, error) { return inner.ColumnTypeScanType(index), nil }); err == nil && t != nil {
			return t
		}
	}
	return reflect.TypeFor[any]()
}

func (r *rows) fail(err error) error { return r.conn.fail(r.ctx, err) }
