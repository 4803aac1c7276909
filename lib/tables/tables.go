// Package tables has what the packages that keep a table of the application do alike.
package tables

import (
	"context"
	"database/sql"
	"time"
)

// Now is the argument that replaces the database's clock in a statement: microseconds since 1970, or nil to use that clock, which
// a nil now asks for.
func Now(now func() time.Time) any {
	if now == nil {
		return nil
	}
	return now().UnixMicro()
}

// Deleted counts the rows that a DELETE … RETURNING gave, and closes them: the Turso server says of every DELETE that it
// affected none. An error of the query is passed on.
func Deleted(rows *sql.Rows, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var n int64
	for rows.Next() {
		n++
	}
	return n, rows.Err()
}

// Sweep repeats a step that deletes so many rows at the most, as long as ctx lasts, and says how many went, and whether none is
// left: a step that deletes fewer was the last. What was deleted until an error is gone. That ctx ended is no error.
func Sweep(ctx context.Context, most int64, step func() (*sql.Rows, error)) (deleted int64, done bool, err error) {
	for ctx.Err() == nil {
		n, err := Deleted(step())
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return deleted, false, err
		}
		deleted += n
		if n < most {
			return deleted, true, nil
		}
	}
	return deleted, false, nil
}
