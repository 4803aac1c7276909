package ailog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrQuery means that a text can't be searched for, by QueryRule.
var ErrQuery = errors.New("ailog: query not valid")

const (
	// MaxQueryCharacters is room for a sentence.
	MaxQueryCharacters = 200
	// MaxSearchedEntries bounds how many entries one page of a search looks at. A thousand of 2 KB take 5 to 20 ms.
	MaxSearchedEntries = 1000
	// MaxSearchedBytes bounds their texts: so much takes a quarter of a second where texts and query are made to take long. See
	// search.
	MaxSearchedBytes = 8 << 20
)

// QueryRule is the rule for what is searched for, for a person.
var QueryRule = fmt.Sprintf("a query has 1 to %d characters, not only white space, and no character U+0000", MaxQueryCharacters)

// search looks for a text in a stretch of the entries of all accounts, and gives what it finds as all does: those that fit into a
// page, and one more without its texts. The stretch ends where it has enough entries or bytes. There is always a row, which
// tells where the stretch ends and whether there are entries below it.
//
// It is instr and not LIKE, which needs a thousand times as long for texts that nearly match everywhere, and for which engines
// differ. lower changes the letters of ASCII alone, on every engine.
const search = `
WITH
  stretch AS MATERIALIZED (
    SELECT id, sum(bytes) OVER (ORDER BY id DESC) AS total
    FROM (
      SELECT id, bytes
      FROM ai_log_entries
      WHERE demo = ? AND id < ?
      ORDER BY id DESC
      LIMIT ?
    )
  ),
  bounds AS MATERIALIZED (
    SELECT min(id) AS lowest
    FROM stretch
    WHERE total <= ?
  ),
  page AS MATERIALIZED (
    SELECT place, sum(bytes) OVER (ORDER BY place DESC) AS total
    FROM (
      SELECT e.id AS place, e.bytes AS bytes
      FROM stretch CROSS JOIN ai_log_entries AS e
      WHERE stretch.total <= ?
        AND e.id = stretch.id
        AND (instr(lower(e.model), ?) > 0 OR instr(lower(e.prompt), ?) > 0 OR instr(lower(e.response), ?) > 0)
      ORDER BY e.id DESC
      LIMIT ?
    )
  )
SELECT
  coalesce(bounds.lowest, 0),
  coalesce((SELECT min(id) FROM ai_log_entries WHERE demo = ?) < bounds.lowest, 0),
  page.place,
  e.id, e.created_micros, e.tokens, e.model, e.prompt, e.response
FROM bounds
  LEFT JOIN page
  LEFT JOIN ai_log_entries AS e ON e.id = page.place AND page.total <= ?
ORDER BY page.place DESC`

// Search pages through the entries that All pages through and that have a text in their model, prompt or response, as it stands
// there but for the case of the letters A to Z. White space around the query doesn't count.
//
// A page looks at MaxSearchedEntries entries or MaxSearchedBytes of their texts at the most. So one may have fewer entries than
// limit, or none, and a Next: from there the search goes on. The cursors of another query are ErrCursor, as those of another
// list are. ErrQuery means that the query isn't by QueryRule.
func (l *Log) Search(ctx context.Context, demo bool, query, cursor string, limit int) (Page, error) {
	query, err := parseQuery(query)
	if err != nil {
		return Page{}, err
	}
	from := list{all: true, demo: demo, query: query}
	below, err := from.start(cursor, limit)
	if err != nil {
		return Page{}, err
	}
	failed := func(err error) (Page, error) {
		return Page{}, fmt.Errorf("%w: search: %w", ErrStore, err)
	}
	rows, err := l.db.QueryContext(ctx, search,
		demo, below, MaxSearchedEntries, MaxSearchedBytes,
		MaxSearchedBytes, query, query, query, limit+1,
		demo, MaxPageBytes)
	if err != nil {
		return failed(err)
	}
	defer rows.Close()
	var page Page
	var lowest, last int64 // places
	more, full := false, false
	for rows.Next() {
		var place, id, created, tokens sql.NullInt64
		var model, prompt, response sql.NullString
		if err := rows.Scan(&lowest, &more, &place, &id, &created, &tokens, &model, &prompt, &response); err != nil {
			return failed(err)
		}
		switch {
		case !place.Valid: // nothing was found
		case !id.Valid || len(page.Entries) == limit:
			full = true
		default:
			page.Entries = append(page.Entries, Entry{
				ID:      id.Int64,
				Text:    Text{Model: model.String, Prompt: prompt.String, Response: response.String, Tokens: tokens.Int64},
				Created: time.UnixMicro(created.Int64).UTC(),
			})
			last = place.Int64
		}
	}
	if err := rows.Err(); err != nil {
		return failed(err)
	}
	switch {
	case full:
		page.Next = from.cursor(last)
	case more:
		page.Next = from.cursor(lowest)
	}
	return page, nil
}

// parseQuery brings a query into the form that texts are searched for.
func parseQuery(text string) (string, error) {
	query := strings.TrimSpace(text)
	if query == "" || utf8.RuneCountInString(text) > MaxQueryCharacters || !storable(text, utf8.UTFMax*MaxQueryCharacters) {
		return "", fmt.Errorf("%w: %s", ErrQuery, QueryRule)
	}
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r - 'A' + 'a'
		}
		return r
	}, query), nil
}
