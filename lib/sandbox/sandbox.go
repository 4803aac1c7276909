// Package sandbox runs one SQL statement on a sample database that is made in memory for it and ends with it.
//
// A statement is a stranger's program, so everything that it may use is bounded, and nothing of it outlives the run: it
// reaches no file, no other database and nothing of the application. What it changes, it changes in its own database.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// The bounds of one statement.
const (
	// MaxTime is for the statement alone, by the clock. The tables are small: what people ask of them takes milliseconds, and
	// an admin who uses up every run of a limit of 30 in ten minutes keeps one core busy for a twentieth of the time. Within
	// one step SQLite can't be stopped: see MaxValueBytes.
	MaxTime = time.Second
	// MaxSteps bounds the instructions of SQLite's virtual machine, so that a slow machine and a fast one stop at the same
	// place. A free core does these in 0.3 to 0.7 seconds.
	MaxSteps = 50_000_000
	// MaxHeapBytes is all that SQLite may allocate for the connection: the sample database takes 0.2 MB, sorting and grouping
	// all of it less than one, and a function of the smallest size has 1,024 MB for everything.
	MaxHeapBytes = 16 << 20
	// MaxDatabaseBytes bounds the tables, so that one that grows is told apart from a query that sorts too much. It is twenty
	// times what the sample has. See max_page_count in sample.
	MaxDatabaseBytes = 4 << 20
	// MaxValueBytes bounds a text, a blob and a row, at what a statement is at most. A step may call a function whose time
	// grows with the square of it: at this length 30 ms for the worst, trim with 800 characters to trim.
	MaxValueBytes = 10_000
	// MaxStatementBytes is some three pages of print, and six times that, as JSON may write it, still fits a request.
	MaxStatementBytes = 10_000
	// MaxColumns bounds a result, a table, and the terms of SELECT, GROUP BY, ORDER BY and SET. No sample table has ten.
	MaxColumns = 100
	// MaxRows is more than a person reads.
	MaxRows = 1_000
	// MaxAnswerBytes bounds names and rows as JSON. The platform passes on 4.5 MB.
	MaxAnswerBytes = 512 << 10

	// maxExpressionDepth is what a sum of as many terms needs.
	maxExpressionDepth = 100
	// maxParserDepth is what SQLite's parser was built with before its stack could grow.
	maxParserDepth = 100
	// maxCompoundSelects bounds the terms of a UNION; each term may be a plan of its own.
	maxCompoundSelects = 20
	// maxInstructions bounds a compiled statement: that of a join of all tables with all their columns has 40.
	maxInstructions = 25_000
	// maxArguments is for a JSON object of 25 fields.
	maxArguments = 50
	// maxCalls bounds the places where a function is called. SQLite doesn't stop between the columns of one row, so the
	// worst of them all take a second and a half beyond MaxTime.
	maxCalls = 50
	// maxPatternBytes bounds LIKE and GLOB, whose time grows with it.
	maxPatternBytes = 50
	// maxTriggerDepth is for what a foreign key does to the rows that refer to it.
	maxTriggerDepth = 10
	// stepsPerLook is how often a statement is looked at: every microsecond or two, against which a look is cheap, or every
	// second if each step calls the worst of functions.
	stepsPerLook = 100
	// maxReasonRunes bounds the text of an error, which may repeat the statement.
	maxReasonRunes = 300
)

// The bounds of a process.
const (
	// MaxRuns is how many statements run at once: a deployed function gets one request at a time, and a machine on which
	// somebody develops has two cores.
	MaxRuns = 2
	// MaxWait is for a run to begin: as long as the statements of a handful of others may take.
	MaxWait = 5 * time.Second
)

// maxSafe is the largest whole number that every reader of JSON keeps exactly (RFC 8259, section 6).
const maxSafe = 1<<53 - 1

var (
	// ErrTime means that the statement was stopped: it took MaxTime or MaxSteps.
	ErrTime = errors.New("sandbox: the statement took too long")
	// ErrBusy means that others' statements ran for all of MaxWait, or until the caller's context ended.
	ErrBusy = errors.New("sandbox: too many statements at once")
)

// StatementError means that the statement was refused or failed. It is the statement's fault, and of no other consequence.
type StatementError struct {
	// Reason is a sentence, or SQLite's own text, such as "no such table: x", and may hold parts of the statement.
	Reason string
}

// Error implements error. It leaves the reason out: a log is no place for parts of a statement.
func (e *StatementError) Error() string { return "sandbox: the statement was refused or failed" }

func refused(format string, args ...any) error {
	return &StatementError{Reason: fmt.Sprintf(format, args...)}
}

// Result is what a statement gave.
type Result struct {
	// Columns are the names, which need not differ. A statement that only changes something has none.
	Columns []string
	// Rows have a value for each column, as JSON: null; a number; a text. An integer beyond ±(2^53−1) is a text of its digits,
	// because readers of JSON would round it; infinities are the texts "Infinity" and "-Infinity"; a blob is the text of its
	// literal in SQL, such as X'0AFF'. Bytes of a text that aren't UTF-8 become the replacement character.
	Rows [][]jsontext.Value
	// Truncated says that there was more than MaxRows or MaxAnswerBytes: Rows are the first ones.
	Truncated bool
}

// Sandbox runs statements. It may be used by many goroutines.
type Sandbox struct {
	turns   chan struct{}
	maxTime time.Duration
}

// New makes a Sandbox. Before the process opens its first SQLite database, sqliteheap.Install must have been called, or else
// every run fails with sqliteheap.ErrTooLate.
func New() *Sandbox {
	return &Sandbox{turns: make(chan struct{}, MaxRuns), maxTime: MaxTime}
}

// Run runs a text of exactly one statement. The end of ctx ends it too. Errors: *StatementError, ErrTime, ErrBusy; others mean
// that there is no sandbox.
func (s *Sandbox) Run(ctx context.Context, text string) (Result, error) {
	switch {
	case len(text) > MaxStatementBytes:
		return Result{}, refused("The statement is longer than %d bytes.", MaxStatementBytes)
	case strings.ContainsRune(text, 0):
		return Result{}, refused("The statement holds a NUL character.")
	case !utf8.ValidString(text):
		return Result{}, refused("The statement is not UTF-8.")
	}
	wait, cancel := context.WithTimeout(ctx, MaxWait)
	defer cancel()
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-wait.Done():
		return Result{}, ErrBusy
	}
	c, err := open()
	defer c.close()
	if err != nil {
		return Result{}, err
	}
	c.begin(ctx, s.maxTime)
	return c.run(text)
}

func (c *conn) run(text string) (Result, error) {
	memory, err := libc.CString(text)
	if err != nil {
		return Result{}, fmt.Errorf("sandbox: %w", err)
	}
	defer libc.Xfree(c.tls, memory)
	statement, tail, rc := c.prepare(memory)
	defer func() { sqlite3.Xsqlite3_finalize(c.tls, statement) }()
	for rc == sqlite3.SQLITE_OK && *at[byte](tail) != 0 {
		// Of ; and comments, SQLite makes statement 0.
		var next uintptr
		next, tail, rc = c.prepare(tail)
		switch {
		case statement == 0:
			statement = next
		case next != 0 || rc != sqlite3.SQLITE_OK && !c.watch.overTime:
			sqlite3.Xsqlite3_finalize(c.tls, next)
			return Result{}, refused("The text holds more than one statement.")
		}
	}
	if rc != sqlite3.SQLITE_OK {
		return Result{}, c.failure(rc)
	}
	if statement == 0 {
		return Result{}, refused("The text holds no statement.")
	}
	return c.rows(statement)
}

// rows runs a statement to its end, or until the answer is full. SQLite changes everything that a statement changes before it
// gives the first row.
func (c *conn) rows(statement uintptr) (Result, error) {
	result := Result{Columns: []string{}, Rows: [][]jsontext.Value{}}
	count := sqlite3.Xsqlite3_column_count(c.tls, statement)
	bytes := 0
	for i := range count {
		name := clean(libc.GoString(sqlite3.Xsqlite3_column_name(c.tls, statement, i)))
		quoted, err := jsontext.AppendQuote(nil, name)
		if err != nil {
			return Result{}, fmt.Errorf("sandbox: name of a column: %w", err)
		}
		bytes += len(quoted) + len(",")
		result.Columns = append(result.Columns, name)
	}
	if bytes > MaxAnswerBytes {
		return Result{}, refused("The names of the columns are longer than %d bytes together.", MaxAnswerBytes)
	}
	for {
		rc := sqlite3.Xsqlite3_step(c.tls, statement)
		switch {
		case rc == sqlite3.SQLITE_DONE:
			return result, nil
		case rc != sqlite3.SQLITE_ROW:
			return Result{}, c.failure(rc)
		case len(result.Rows) == MaxRows:
			result.Truncated = true
			return result, nil
		}
		row := make([]jsontext.Value, count)
		bytes += len("[],")
		for i := range count {
			value, err := c.value(statement, i)
			if err != nil {
				return Result{}, err
			}
			row[i] = value
			if bytes += len(value) + len(","); bytes > MaxAnswerBytes {
				result.Truncated = true
				return result, nil
			}
		}
		result.Rows = append(result.Rows, row)
	}
}

// value reads a column of the present row.
func (c *conn) value(statement uintptr, column int32) (jsontext.Value, error) {
	var value any
	switch sqlite3.Xsqlite3_column_type(c.tls, statement, column) {
	case sqlite3.SQLITE_NULL:
	case sqlite3.SQLITE_INTEGER:
		n := int64(sqlite3.Xsqlite3_column_int64(c.tls, statement, column))
		if value = n; n > maxSafe || n < -maxSafe {
			value = strconv.FormatInt(n, 10)
		}
	case sqlite3.SQLITE_FLOAT:
		f := sqlite3.Xsqlite3_column_double(c.tls, statement, column)
		switch value = f; {
		case math.IsInf(f, 1):
			value = "Infinity"
		case math.IsInf(f, -1):
			value = "-Infinity"
		case math.IsNaN(f): // which SQLite takes for NULL
			value = nil
		}
	case sqlite3.SQLITE_BLOB:
		value = fmt.Sprintf("X'%X'", c.bytes(statement, column, sqlite3.Xsqlite3_column_blob(c.tls, statement, column)))
	default:
		value = clean(string(c.bytes(statement, column, sqlite3.Xsqlite3_column_text(c.tls, statement, column))))
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("sandbox: value of a column: %w", err)
	}
	return text, nil
}

// bytes reads a text or blob at p, which is 0 when it is empty and when there was no memory for it.
func (c *conn) bytes(statement uintptr, column int32, p uintptr) []byte {
	if p == 0 {
		return nil
	}
	return libc.GoBytes(p, int(sqlite3.Xsqlite3_column_bytes(c.tls, statement, column)))
}

// failure says what a result code of SQLite means for whoever wrote the statement.
func (c *conn) failure(rc int32) error {
	switch code := rc & 0xff; {
	case c.watch.overTime:
		return ErrTime
	case c.watch.refusal != "":
		return &StatementError{Reason: c.watch.refusal}
	case code == sqlite3.SQLITE_FULL:
		return refused("The tables may not grow beyond %d MB.", MaxDatabaseBytes>>20)
	case code == sqlite3.SQLITE_TOOBIG:
		return refused("A text, a blob or a row is longer than %d bytes.", MaxValueBytes)
	case c.heap.Refused():
		return refused("The statement needs more than %d MB of memory.", MaxHeapBytes>>20)
	case code == sqlite3.SQLITE_NOMEM: // which SQLite also says of a statement with too many instructions
		return refused("The statement is too complicated.")
	}
	return &StatementError{Reason: c.message()}
}

func clean(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
