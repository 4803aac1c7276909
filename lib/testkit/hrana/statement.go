package hrana

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tursodatabase/libsql-client-go/sqliteparserutils"
	"modernc.org/sqlite"
)

type (
	stmt struct {
		SQL       *string    `json:"sql"`
		SQLID     *int32     `json:"sql_id"`
		Args      []value    `json:"args"`
		NamedArgs []namedArg `json:"named_args"`
		WantRows  *bool      `json:"want_rows"` // absent means true
	}
	namedArg struct {
		Name  string `json:"name"`
		Value value  `json:"value"`
	}
	value struct {
		Type   string          `json:"type"`
		Value  json.RawMessage `json:"value,omitempty"`
		Base64 *string         `json:"base64,omitempty"`
	}
	batch struct {
		Steps []struct {
			Condition *condition `json:"condition"`
			Stmt      stmt       `json:"stmt"`
		} `json:"steps"`
	}
	condition struct {
		Type  string      `json:"type"`
		Step  int         `json:"step"`
		Cond  *condition  `json:"cond"`
		Conds []condition `json:"conds"`
	}
	column struct {
		Name     string  `json:"name"`
		Decltype *string `json:"decltype"`
	}
	stmtResult struct {
		Cols             []column  `json:"cols"`
		Rows             [][]value `json:"rows"`
		AffectedRowCount int64     `json:"affected_row_count"`
		LastInsertRowID  *string   `json:"last_insert_rowid"`
		ReplicationIndex *string   `json:"replication_index"`
	}
	batchResult struct {
		StepResults      []*stmtResult `json:"step_results"`
		StepErrors       []*wireError  `json:"step_errors"`
		ReplicationIndex *string       `json:"replication_index"`
	}
)

// do carries out one request of a pipeline.
func (st *stream) do(ctx context.Context, req streamRequest) (*streamResponse, error) {
	resp := &streamResponse{Type: req.Type}
	switch {
	case req.Type == "close":
		return resp, nil
	case req.Type == "execute" && req.Stmt != nil:
		res, err := st.execute(ctx, *req.Stmt)
		resp.Result = res
		return resp, err
	case req.Type == "batch" && req.Batch != nil:
		res, err := st.batch(ctx, *req.Batch)
		resp.Result = res
		return resp, err
	case req.Type == "sequence":
		text, err := stmt{SQL: req.SQL, SQLID: req.SQLID}.text(st.texts)
		if err != nil {
			return nil, err
		}
		_, err = st.conn.ExecContext(ctx, text)
		return resp, err
	case req.Type == "store_sql" && req.SQL != nil && req.SQLID != nil:
		st.texts[*req.SQLID] = *req.SQL
		return resp, nil
	case req.Type == "close_sql" && req.SQLID != nil:
		delete(st.texts, *req.SQLID)
		return resp, nil
	case req.Type == "get_autocommit":
		auto := st.autocommit(ctx)
		resp.IsAutocommit = &auto
		return resp, nil
	}
	return nil, &wireError{fmt.Sprintf("request %q is unknown or incomplete", req.Type), "PROTOCOL_ERROR"}
}

// execute runs one statement.
func (st *stream) execute(ctx context.Context, s stmt) (*stmtResult, error) {
	text, err := s.text(st.texts)
	if err != nil {
		return nil, err
	}
	if n := countStatements(text); n != 1 {
		return nil, &wireError{fmt.Sprintf("sql text holds %d statements, must be 1", n), "SQL_STATEMENT_COUNT"}
	}
	args, err := s.args()
	if err != nil {
		return nil, err
	}
	before, _, _, err := st.changes(ctx)
	if err != nil {
		return nil, err
	}
	res := &stmtResult{Cols: []column{}, Rows: [][]value{}}
	if err := st.query(ctx, res, text, args); err != nil {
		return nil, err
	}
	after, direct, rowID, err := st.changes(ctx)
	if err != nil {
		return nil, err
	}
	// changes() keeps the number of the last writing statement, which may not be this one.
	if after != before {
		id := strconv.FormatInt(rowID, 10)
		res.AffectedRowCount, res.LastInsertRowID = direct, &id
	}
	if s.WantRows != nil && !*s.WantRows {
		res.Rows = [][]value{}
	}
	return res, nil
}

// query runs the statement to its end and fills in the result's columns and rows.
func (st *stream) query(ctx context.Context, res *stmtResult, text string, args []any) error {
	rows, err := st.conn.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil {
		return err
	}
	for _, typ := range types {
		col := column{Name: typ.Name()}
		if decl := typ.DatabaseTypeName(); decl != "" {
			col.Decltype = &decl
		}
		res.Cols = append(res.Cols, col)
	}
	for rows.Next() {
		raw := make([]any, len(types))
		dest := make([]any, len(types))
		for i := range raw {
			dest[i] = &raw[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		row := make([]value, len(raw))
		for i, v := range raw {
			if row[i], err = toValue(v); err != nil {
				return err
			}
		}
		res.Rows = append(res.Rows, row)
	}
	return rows.Err()
}

// changes returns the rows changed on this connection in all and by the last writing statement without its triggers, and the
// last rowid inserted.
func (st *stream) changes(ctx context.Context) (total, last, rowID int64, err error) {
	err = st.conn.QueryRowContext(ctx, `SELECT total_changes(), changes(), last_insert_rowid()`).Scan(&total, &last, &rowID)
	return total, last, rowID, err
}

// autocommit says whether no transaction is open, by trying to open one.
func (st *stream) autocommit(ctx context.Context) bool {
	if _, err := st.conn.ExecContext(ctx, `BEGIN`); err != nil {
		return false
	}
	_, err := st.conn.ExecContext(ctx, `ROLLBACK`)
	return err == nil
}

// batch runs the steps whose conditions hold. A failed step doesn't end the batch, and nothing but the statements themselves
// makes a transaction.
func (st *stream) batch(ctx context.Context, b batch) (*batchResult, error) {
	res := &batchResult{
		StepResults: make([]*stmtResult, len(b.Steps)),
		StepErrors:  make([]*wireError, len(b.Steps)),
	}
	for i, step := range b.Steps {
		if step.Condition != nil {
			holds, err := st.holds(ctx, *step.Condition, res, i)
			if err != nil {
				return nil, err
			}
			if !holds {
				continue
			}
		}
		r, err := st.execute(ctx, step.Stmt)
		if err != nil {
			res.StepErrors[i] = asWireError(err)
			continue
		}
		res.StepResults[i] = r
	}
	return res, nil
}

// holds evaluates the condition of step i.
func (st *stream) holds(ctx context.Context, c condition, res *batchResult, i int) (bool, error) {
	switch c.Type {
	case "ok", "error":
		if c.Step < 0 || c.Step >= i {
			return false, &wireError{fmt.Sprintf("condition of step %d names step %d, must be an earlier one", i, c.Step), "PROTOCOL_ERROR"}
		}
		if c.Type == "ok" {
			return res.StepResults[c.Step] != nil, nil
		}
		return res.StepErrors[c.Step] != nil, nil
	case "not":
		if c.Cond == nil {
			break
		}
		holds, err := st.holds(ctx, *c.Cond, res, i)
		return !holds, err
	case "and", "or":
		for _, sub := range c.Conds {
			holds, err := st.holds(ctx, sub, res, i)
			if err != nil || holds == (c.Type == "or") {
				return holds, err
			}
		}
		return c.Type == "and", nil
	case "is_autocommit":
		return st.autocommit(ctx), nil
	}
	return false, &wireError{fmt.Sprintf("condition %q is unknown or incomplete", c.Type), "PROTOCOL_ERROR"}
}

// text is the statement's SQL, given or stored.
func (s stmt) text(texts map[int32]string) (string, error) {
	switch {
	case s.SQL != nil && s.SQLID == nil:
		return *s.SQL, nil
	case s.SQL == nil && s.SQLID != nil:
		if text, ok := texts[*s.SQLID]; ok {
			return text, nil
		}
		return "", &wireError{fmt.Sprintf("no sql text is stored as %d", *s.SQLID), "SQL_NOT_FOUND"}
	}
	return "", &wireError{"a statement has either sql or sql_id", "PROTOCOL_ERROR"}
}

// args decodes the statement's arguments for database/sql.
func (s stmt) args() ([]any, error) {
	var args []any
	for _, v := range s.Args {
		arg, err := v.decode()
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	for _, n := range s.NamedArgs {
		arg, err := n.Value.decode()
		if err != nil {
			return nil, err
		}
		args = append(args, sql.Named(strings.TrimLeft(n.Name, ":@$"), arg))
	}
	return args, nil
}

func (v value) decode() (any, error) {
	invalid := func(err error) error {
		return &wireError{fmt.Sprintf("%s value is malformed: %v", v.Type, err), "PROTOCOL_ERROR"}
	}
	switch v.Type {
	case "null":
		return nil, nil
	case "integer":
		var digits string
		if err := json.Unmarshal(v.Value, &digits); err != nil {
			return nil, invalid(err) // a JSON number would lose digits beyond 2^53
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return nil, invalid(err)
		}
		return n, nil
	case "float":
		var f float64
		if err := json.Unmarshal(v.Value, &f); err != nil {
			return nil, invalid(err)
		}
		return f, nil
	case "text":
		var text string
		if err := json.Unmarshal(v.Value, &text); err != nil {
			return nil, invalid(err)
		}
		return text, nil
	case "blob":
		if v.Base64 == nil {
			return nil, invalid(errors.New("no base64"))
		}
		// Clients send it with and without padding; the specification takes both.
		b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(*v.Base64, "="))
		if err != nil {
			return nil, invalid(err)
		}
		return b, nil
	}
	return nil, &wireError{fmt.Sprintf("value type %q is unknown", v.Type), "PROTOCOL_ERROR"}
}

// toValue encodes what the SQLite driver returned. The driver makes bools and times of columns declared so; a real server
// sends what is stored.
func toValue(v any) (value, error) {
	switch v := v.(type) {
	case nil:
		return value{Type: "null"}, nil
	case int64:
		return value{Type: "integer", Value: json.RawMessage(strconv.Quote(strconv.FormatInt(v, 10)))}, nil
	case bool:
		if v {
			return toValue(int64(1))
		}
		return toValue(int64(0))
	case float64:
		b, err := json.Marshal(v)
		return value{Type: "float", Value: b}, err
	case string:
		b, err := json.Marshal(v)
		return value{Type: "text", Value: b}, err
	case time.Time:
		return toValue(v.Format("2006-01-02 15:04:05.999999999-07:00"))
	case []byte:
		b64 := base64.RawStdEncoding.EncodeToString(v)
		return value{Type: "blob", Base64: &b64}, nil
	}
	return value{}, fmt.Errorf("hrana: no wire type for %T", v)
}

// countStatements counts the statements in an SQL text; comments and empty ones don't count.
func countStatements(text string) int {
	n := 0
	statements := sqliteparserutils.CreateStatementIterator(text)
	for {
		statement, _, end := statements.Next()
		if statement != "" {
			n++
		}
		if end {
			return n
		}
	}
}

// codeNames are the names real servers send for SQLite's primary result codes; https://www.sqlite.org/rescode.html.
var codeNames = map[int]string{
	1: "SQLITE_ERROR", 5: "SQLITE_BUSY", 6: "SQLITE_LOCKED", 8: "SQLITE_READONLY", 9: "SQLITE_INTERRUPT", 10: "SQLITE_IOERR",
	11: "SQLITE_CORRUPT", 13: "SQLITE_FULL", 18: "SQLITE_TOOBIG", 19: "SQLITE_CONSTRAINT", 20: "SQLITE_MISMATCH",
}

func asWireError(err error) *wireError {
	if e, ok := errors.AsType[*wireError](err); ok {
		return e
	}
	code := "SQLITE_ERROR"
	if e, ok := errors.AsType[*sqlite.Error](err); ok && codeNames[e.Code()&0xff] != "" {
		code = codeNames[e.Code()&0xff]
	}
	return &wireError{"SQLite error: " + err.Error(), code}
}
