package sandbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/weirlimits/weir/lib/sqliteheap"
)

// conn is a connection to a database in memory that ends with it. It uses SQLite's own functions: database/sql has no way
// to the progress handler, to the memory of one connection and to where a statement ends. It belongs to one goroutine.
type conn struct {
	tls     *libc.TLS
	heap    *sqliteheap.Account
	db      uintptr
	results uintptr // room in C's memory for the two pointers that prepare gives back
	watch   *watch
	pinner  runtime.Pinner // keeps watch where C finds it
}

// watch is what the callbacks of a running statement read and write.
type watch struct {
	ctx      context.Context
	deadline time.Time
	looks    int
	overTime bool // the statement was stopped
	asked    asked
	refusal  string // why the authorizer refused it
}

// open makes the sample database and then closes every way out of it. The caller closes the connection whatever the error.
func open() (*conn, error) {
	c := &conn{tls: libc.NewTLS(), watch: &watch{}}
	c.pinner.Pin(c.watch)
	var err error
	if c.heap, err = sqliteheap.Open(c.tls, MaxHeapBytes); err != nil {
		return c, err
	}
	if c.results = libc.Xcalloc(c.tls, 2, wordBytes); c.results == 0 {
		return c, errors.New("sandbox: out of memory")
	}
	name, err := libc.CString(":memory:")
	if err != nil {
		return c, fmt.Errorf("sandbox: %w", err)
	}
	defer libc.Xfree(c.tls, name)
	// Without SQLITE_OPEN_URI no name is anything but a name.
	const flags = sqlite3.SQLITE_OPEN_READWRITE | sqlite3.SQLITE_OPEN_CREATE | sqlite3.SQLITE_OPEN_MEMORY | sqlite3.SQLITE_OPEN_NOMUTEX
	rc := sqlite3.Xsqlite3_open_v2(c.tls, name, c.results, flags, 0)
	c.db = *at[uintptr](c.results)
	if rc != sqlite3.SQLITE_OK {
		return c, fmt.Errorf("sandbox: open: %s", c.message())
	}
	if err := c.execute(sample); err != nil {
		return c, fmt.Errorf("sandbox: sample database: %w", err)
	}
	if rc := sqlite3.Xsqlite3_drop_modules(c.tls, c.db, 0); rc != sqlite3.SQLITE_OK { // virtual tables, but for those of JSON
		return c, fmt.Errorf("sandbox: modules: %s", c.message())
	}
	for option, value := range switches {
		list := libc.VaList(c.results, value, uintptr(0))
		if rc := sqlite3.Xsqlite3_db_config(c.tls, c.db, option, list); rc != sqlite3.SQLITE_OK {
			return c, fmt.Errorf("sandbox: option %d: %s", option, c.message())
		}
	}
	for limit, value := range limits {
		sqlite3.Xsqlite3_limit(c.tls, c.db, limit, value)
	}
	argument := uintptr(unsafe.Pointer(c.watch))
	sqlite3.Xsqlite3_progress_handler(c.tls, c.db, stepsPerLook, pointer(onProgress), argument)
	if rc := sqlite3.Xsqlite3_set_authorizer(c.tls, c.db, pointer(onAuthorize), argument); rc != sqlite3.SQLITE_OK {
		return c, fmt.Errorf("sandbox: authorizer: %s", c.message())
	}
	return c, nil
}

// close ends the database. Its statements have been finalized.
func (c *conn) close() {
	if c.db != 0 {
		sqlite3.Xsqlite3_close_v2(c.tls, c.db)
	}
	if c.results != 0 {
		libc.Xfree(c.tls, c.results)
	}
	if c.heap != nil {
		c.heap.Close()
	}
	c.tls.Close()
	c.pinner.Unpin()
}

// execute runs a text of the package's own: any number of statements.
func (c *conn) execute(text string) error {
	memory, err := libc.CString(text)
	if err != nil {
		return err
	}
	defer libc.Xfree(c.tls, memory)
	if rc := sqlite3.Xsqlite3_exec(c.tls, c.db, memory, 0, 0, 0); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("code %d: %s", rc, c.message())
	}
	return nil
}

// prepare compiles the first statement at an address of C's memory and gives the address behind it. The statement is 0
// where there is only white space and comments.
func (c *conn) prepare(text uintptr) (statement, tail uintptr, rc int32) {
	rc = sqlite3.Xsqlite3_prepare_v2(c.tls, c.db, text, -1, c.results, c.results+wordBytes)
	return *at[uintptr](c.results), *at[uintptr](c.results + wordBytes), rc
}

// message is SQLite's text for what went wrong last. It may hold parts of the statement, but no name of a file: there is none.
func (c *conn) message() string {
	text := clean(libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db)))
	if runes := []rune(text); len(runes) > maxReasonRunes {
		text = string(runes[:maxReasonRunes]) + "…"
	}
	return text
}

// begin starts the clock of the statement.
func (c *conn) begin(ctx context.Context, maxTime time.Duration) {
	*c.watch = watch{ctx: ctx, deadline: time.Now().Add(maxTime)}
}

// look says whether a statement has to end.
func (w *watch) look() bool {
	w.looks++
	if w.looks*stepsPerLook > MaxSteps || w.ctx.Err() != nil || time.Now().After(w.deadline) {
		w.overTime = true
	}
	return w.overTime
}

// onProgress is called by SQLite every stepsPerLook steps of its virtual machine, and while it compiles. Anything but 0 ends
// the statement.
func onProgress(_ *libc.TLS, argument uintptr) int32 {
	if at[watch](argument).look() {
		return 1
	}
	return 0
}

// onAuthorize is called by SQLite for each thing that a statement would do, while it is compiled.
func onAuthorize(_ *libc.TLS, argument uintptr, action int32, first, second, database, _ uintptr) int32 {
	w := at[watch](argument)
	reason := w.asked.refuse(action, libc.GoString(first), libc.GoString(second), libc.GoString(database))
	if reason == "" {
		return sqlite3.SQLITE_OK
	}
	if w.refusal == "" {
		w.refusal = reason
	}
	return sqlite3.SQLITE_DENY
}

// wordBytes is the size of an argument in a list of C's, and at least that of a pointer.
const wordBytes = 8

// at is the value at an address that the garbage collector doesn't move: C's memory, or what is pinned.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// pointer is a function of this package, not a closure, as C has it.
func pointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }
