package hrana

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// decode reads the answer to so many statements, and to the closing of the stream behind them.
func decode(reply []byte, statements int, closing bool) ([]Result, error) {
	// The decoder reads a Buffer in place. Names that matter are watched for doubles here, at a fraction of the cost.
	d := decoder{Decoder: jsontext.NewDecoder(bytes.NewBuffer(reply), jsontext.AllowDuplicateNames(true))}
	results := make([]Result, 0, statements)
	seen, closed := false, false
	err := d.object(func(name string) error {
		if name != "results" {
			return d.SkipValue() // such as baton and base_url, which a closed stream has no use for
		}
		if seen {
			return errTwice
		}
		seen = true
		return d.array(func() error {
			switch {
			case len(results) < statements:
				result, err := d.result("execute")
				results = append(results, result)
				return err
			case closing && !closed:
				closed = true
				_, err := d.result("close") // an error of the server's is of no account: it forgets streams by itself
				return err
			}
			return errors.New("a result too many")
		})
	})
	if err == nil {
		_, end := d.ReadToken()
		switch {
		case end == nil:
			err = errors.New("something behind the answer")
		case !seen || len(results) != statements || closed != closing:
			err = fmt.Errorf("%d results for %d statements", len(results), statements)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrNonsense, cut(err.Error()))
	}
	return results, nil
}

var errTwice = errors.New("a name twice")

// decoder reads JSON as it comes: nothing of it is looked at twice. Wrong UTF-8 is an error.
type decoder struct{ *jsontext.Decoder }

// object reads an object; each is called for each of its names and reads the value.
func (d decoder) object(each func(name string) error) error {
	if err := d.expect('{'); err != nil {
		return err
	}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return err
		}
		if err := each(token.String()); err != nil {
			return err
		}
	}
	return d.expect('}')
}

// array reads an array; each is called before each of its elements and reads it.
func (d decoder) array(each func() error) error {
	if err := d.expect('['); err != nil {
		return err
	}
	for {
		switch d.PeekKind() {
		case ']':
			return d.expect(']')
		case 0:
			_, err := d.ReadToken()
			return err
		}
		if err := each(); err != nil {
			return err
		}
	}
}

func (d decoder) expect(kind jsontext.Kind) error {
	token, err := d.ReadToken()
	if err == nil && token.Kind() != kind {
		err = fmt.Errorf("%v where %v should be", token.Kind(), kind)
	}
	return err
}

func (d decoder) text() (string, error) {
	token, err := d.ReadToken()
	if err == nil && token.Kind() != '"' {
		err = fmt.Errorf("%v where a text should be", token.Kind())
	}
	if err != nil {
		return "", err
	}
	return token.String(), nil
}

// result reads the result of one request of the pipeline, which is of a type.
func (d decoder) result(want string) (Result, error) {
	var rows [][]string
	var kind, of string
	var refused *ServerError
	done := false
	err := d.object(func(name string) (err error) {
		switch name {
		case "type":
			kind, err = d.text()
		case "error":
			refused, err = d.serverError()
		case "response":
			err = d.object(func(name string) (err error) {
				switch name {
				case "type":
					of, err = d.text()
				case "result":
					if want != "execute" {
						return d.SkipValue()
					}
					if done {
						return errTwice
					}
					done = true
					rows, err = d.rows()
				default:
					err = d.SkipValue()
				}
				return err
			})
		default:
			err = d.SkipValue()
		}
		return err
	})
	switch {
	case err != nil:
		return Result{}, err
	case kind == "error" && refused != nil:
		return Result{Err: refused}, nil
	case kind != "ok" || of != want || want == "execute" && !done:
		return Result{}, fmt.Errorf("a result of type %.20q and response %.20q where %s should be", kind, of, want)
	}
	return Result{Rows: rows}, nil
}

func (d decoder) serverError() (*ServerError, error) {
	told := &ServerError{Status: http.StatusOK}
	err := d.object(func(name string) (err error) {
		switch name {
		case "message":
			told.Message, err = d.text()
			told.Message = cut(told.Message)
		case "code":
			if d.PeekKind() == 'n' {
				return d.SkipValue()
			}
			told.Code, err = d.text()
			told.Code = cut(told.Code)
		default:
			err = d.SkipValue()
		}
		return err
	})
	return told, err
}

// rows reads the result of a statement.
func (d decoder) rows() (rows [][]string, err error) {
	columns, seen := -1, false
	err = d.object(func(name string) error {
		switch name {
		case "cols":
			if columns >= 0 {
				return errTwice
			}
			columns = 0
			return d.array(func() error {
				columns++
				return d.SkipValue()
			})
		case "rows":
			if seen {
				return errTwice
			}
			seen = true
			return d.array(func() error {
				row := make([]string, 0, max(columns, 1))
				err := d.array(func() error {
					value, err := d.value()
					row = append(row, value)
					return err
				})
				rows = append(rows, row)
				return err
			})
		}
		return d.SkipValue()
	})
	if err != nil {
		return nil, err
	}
	if !seen || columns < 0 {
		return nil, errors.New("a result without rows or columns")
	}
	for _, row := range rows {
		if len(row) != columns {
			return nil, fmt.Errorf("a row of %d values in %d columns", len(row), columns)
		}
	}
	return rows, nil
}

// value reads an integer, which is a text of digits in this protocol, or a text.
func (d decoder) value() (string, error) {
	var kind, value string
	seen := false
	err := d.object(func(name string) (err error) {
		switch name {
		case "type":
			kind, err = d.text()
		case "value":
			if seen {
				return errTwice
			}
			seen = true
			value, err = d.text()
		default:
			err = d.SkipValue()
		}
		return err
	})
	switch {
	case err != nil:
		return "", err
	case kind == "integer" && seen:
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			return "", fmt.Errorf("an integer that is none: %.30q", value)
		}
	case kind != "text" || !seen:
		return "", fmt.Errorf("a value of type %.20q", kind)
	}
	return value, nil
}

// codeOf finds the database's code in the answer to a request that was refused as a whole. It is often no JSON at all.
func codeOf(reply []byte) string {
	var told struct{ Code, Error any }
	if json.Unmarshal(reply, &told) != nil {
		return ""
	}
	for _, code := range []any{told.Code, told.Error} {
		if text, ok := code.(string); ok && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == "" {
			return cut(text) // a code, and no sentence
		}
	}
	return ""
}

// cut bounds a server's text.
func cut(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxMessageBytes {
		text = strings.ToValidUTF8(text[:maxMessageBytes], "") + "…"
	}
	return text
}
