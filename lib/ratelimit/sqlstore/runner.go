package sqlstore

import (
	"context"
	"database/sql"
	"strings"
	"sync"

	"github.com/weirlimits/weir/lib/hrana"
)

// text is an SQL statement, in the form of either kind of database.
type text struct {
	sql        string
	remote     *hrana.Text
	reads      bool // it changes nothing
	bestEffort bool // it may fail
}

func newText(sql string) *text {
	return &text{sql: sql, remote: hrana.NewText(sql), reads: strings.HasPrefix(strings.TrimSpace(sql), "SELECT")}
}

// newBestEffort makes the text of a statement that may fail, and that a busy server is not asked
// for again.
func newBestEffort(sql string) *text {
	t := newText(sql)
	t.bestEffort = true
	return t
}

// call is a statement with its arguments.
type call struct {
	text *text
	args []any
}

// outcome is the rows of a call, every value as text, or its error.
type outcome struct {
	rows [][]string
	err  error
}

// runner is a database as the store sees it.
type runner interface {
	// run carries out calls in order, each by itself, in one request where that saves one. An error is that of all.
	run(ctx context.Context, calls ...call) ([]outcome, error)
	// together says that several calls are one request.
	together() bool
}

// server is a database behind HTTP.
type server struct{ client *hrana.Client }

func (s server) together() bool { return true }

func (s server) run(ctx context.Context, calls ...call) ([]outcome, error) {
	statements := make([]hrana.Statement, len(calls))
	for i, call := range calls {
		statements[i] = hrana.Statement{
			Text: call.text.remote, Args: call.args, ReadOnly: call.text.reads, BestEffort: call.text.bestEffort,
		}
	}
	results, err := s.client.Query(ctx, statements...)
	if err != nil {
		return nil, err
	}
	outcomes := make([]outcome, len(results))
	for i, result := range results {
		outcomes[i].rows = result.Rows
		if result.Err != nil {
			outcomes[i].err = result.Err
		}
	}
	return outcomes, nil
}

// pool is a database behind database/sql.
type pool struct {
	db *sql.DB

	preparing sync.Mutex
	prepared  map[*text]*sql.Stmt
}

// maxPrepared bounds the statements that are kept compiled, on each connection: an application has a handful of shapes.
const maxPrepared = 64

func (p *pool) together() bool { return false }

func (p *pool) run(ctx context.Context, calls ...call) ([]outcome, error) {
	outcomes := make([]outcome, len(calls))
	for i, call := range calls {
		outcomes[i].rows, outcomes[i].err = p.query(ctx, call)
	}
	return outcomes, nil
}

// query runs a statement that is compiled once: that takes SQLite several times as long as to run it.
func (p *pool) query(ctx context.Context, call call) ([][]string, error) {
	statement, err := p.prepare(ctx, call.text)
	if err != nil {
		return nil, err
	}
	var rows *sql.Rows
	if statement == nil {
		rows, err = p.db.QueryContext(ctx, call.text.sql, call.args...)
	} else {
		rows, err = statement.QueryContext(ctx, call.args...)
	}
	if err != nil {
		return nil, err
	}
	return readAll(rows)
}

// readAll reads a result to its end. The end matters: the statement is only then carried out and committed.
func readAll(rows *sql.Rows) (all [][]string, err error) {
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	into := make([]any, len(columns))
	for rows.Next() {
		row := make([]string, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return all, rows.Close()
}

func (p *pool) prepare(ctx context.Context, t *text) (*sql.Stmt, error) {
	p.preparing.Lock()
	defer p.preparing.Unlock()
	statement, found := p.prepared[t]
	if found || len(p.prepared) == maxPrepared {
		return statement, nil
	}
	statement, err := p.db.PrepareContext(ctx, t.sql)
	if err != nil {
		return nil, err
	}
	if p.prepared == nil {
		p.prepared = map[*text]*sql.Stmt{}
	}
	p.prepared[t] = statement
	return statement, nil
}
