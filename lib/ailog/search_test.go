//go:build unix

package ailog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// found searches to the end.
func found(t *testing.T, l *Log, query string, limit int) []string {
	t.Helper()
	return walk(t, func(cursor string) (Page, error) { return l.Search(t.Context(), false, query, cursor, limit) }, func() {})
}

func TestASearchFindsATextAsItStandsInAnyFieldAndAnyCase(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1, 2, 3)
		for _, e := range []struct {
			author Author
			Text
		}{
			{Author{Account: 1}, Text{"Model-A", "what is a Weir?", "a low dam", 0}},
			{Author{Account: 2}, Text{"model-b", "100% of it", "", 0}},
			{Author{Account: 1}, Text{"model-b", "1000 of it", "line one\nLINE Two", 0}},
			{Author{Account: 2}, Text{"model-b", `a_b \ [x] * "q" 'r'`, "ÄRGER 🜚", 0}},
			{Author{Account: 3, Demo: true}, Text{"model-b", "the demo's weir", "", 0}},
		} {
			if _, err := l.Add(t.Context(), e.author, e.Text); err != nil {
				t.Fatal(err)
			}
		}
		const weir, percent, lines, marks = "what is a Weir?", "100% of it", "1000 of it", `a_b \ [x] * "q" 'r'`
		for query, want := range map[string][]string{
			"weir":         {weir},
			"  WEIR?\t":    {weir},
			"low d":        {weir},
			"MODEL-a":      {weir},
			"model":        {marks, lines, percent, weir},
			"100%":         {percent},
			"100":          {lines, percent},
			"%":            {percent},
			"_":            {marks},
			`\`:            {marks},
			"*":            {marks},
			`"q" 'r'`:      {marks},
			"[X]":          {marks},
			"Ärger":        {marks},
			"ärger":        nil, // only the letters A to Z have two cases here
			"🜚":            {marks},
			"one\nline tw": {lines},
			"one line two": nil,
			"a lowdam":     nil,
			"weir?a":       nil, // fields are looked at one by one
		} {
			if got := found(t, l, query, 3); !slices.Equal(got, want) {
				t.Errorf("%q: %q, want %q", query, got, want)
			}
		}
		page, err := l.Search(t.Context(), true, "weir", "", 5)
		if err != nil || !slices.Equal(prompts(page), []string{"the demo's weir"}) || page.Next != "" {
			t.Errorf("of the demo: %q, %v", prompts(page), err)
		}
		page, err = l.Search(t.Context(), false, "low dam", "", 5)
		if want := (Text{"Model-A", "what is a Weir?", "a low dam", 0}); err != nil || len(page.Entries) != 1 || page.Entries[0].Text != want || page.Entries[0].ID != 1 || !page.Entries[0].Created.Equal(start) {
			t.Errorf("the entry is %+v, %v", page.Entries, err)
		}
	})
}

func TestASearchOfNothingEnds(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		page, err := logOf(t, opened.DB).Search(t.Context(), false, "x", "", 1)
		if err != nil || len(page.Entries) != 0 || page.Next != "" {
			t.Errorf("%+v, %v", page, err)
		}
	})
}

// fill adds n entries of the account 1 in few statements.
func fill(t *testing.T, db *database.DB, n int, prompt func(number int) string, bytes int) {
	t.Helper()
	for number := 1; number <= n; {
		var rows []string
		var args []any
		for ; number <= n && len(rows) < 100; number++ {
			rows = append(rows, "(1, ?, 0, 0, 0, ?, 'm', ?, '')")
			args = append(args, number, bytes, prompt(number))
		}
		_, err := db.ExecContext(t.Context(), `INSERT INTO ai_log_entries (account, number, demo, created_micros, tokens, bytes, model, prompt, response) VALUES `+strings.Join(rows, ", "), args...)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPageOfASearchLooksAtSoManyEntriesAndTheNextGoesOn(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		const n = 2*MaxSearchedEntries + 1
		fill(t, opened, n, func(number int) string {
			if number == 1 || number == n-MaxSearchedEntries {
				return fmt.Sprintf("needle %d", number)
			}
			return fmt.Sprintf("hay %d", number)
		}, 10)
		next := ""
		for i, want := range [][]string{nil, {fmt.Sprintf("needle %d", n-MaxSearchedEntries)}, {"needle 1"}} {
			page, err := l.Search(t.Context(), false, "needle", next, 5)
			if err != nil || !slices.Equal(prompts(page), want) || (page.Next == "") != (i == 2) {
				t.Fatalf("page %d: %q, next %q, %v; want %q", i, prompts(page), page.Next, err, want)
			}
			next = page.Next
		}
		if got := found(t, l, "needle", 1); len(got) != 2 {
			t.Errorf("one by one: %q", got)
		}
		if page, err := l.Search(t.Context(), false, "hay 2001", "", 1); err != nil || len(page.Entries) != 1 {
			t.Errorf("the newest: %+v, %v", page, err)
		}
	})
}

func TestAPageOfASearchLooksAtSoManyBytes(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		const n = 40
		fill(t, opened, n, func(number int) string { return fmt.Sprintf("entry %d.", number) }, MaxSearchedBytes/16) // as if they were large
		for number, pages := range map[int]int{n: 1, n - 15: 1, n - 16: 2, n - 31: 2, n - 32: 3, 1: 3} {
			cursor, read := "", 0
			for read = 1; read < 9; read++ {
				page, err := l.Search(t.Context(), false, fmt.Sprintf("entry %d.", number), cursor, 5)
				if err != nil {
					t.Fatal(err)
				}
				if len(page.Entries) > 0 || page.Next == "" {
					break
				}
				cursor = page.Next
			}
			if read != pages {
				t.Errorf("entry %d is on page %d, want %d", number, read, pages)
			}
		}
	})
}

func TestAPageOfASearchEndsBeforeItsTextsAreTooLarge(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		large := Text{"m", strings.Repeat("p", MaxPromptBytes), strings.Repeat("r", MaxResponseBytes), 1}
		for range 10 {
			if _, err := l.Add(t.Context(), Author{Account: 1}, large); err != nil {
				t.Fatal(err)
			}
		}
		page, err := l.Search(t.Context(), false, "pp", "", 10)
		if want := MaxPageBytes / (1 + MaxPromptBytes + MaxResponseBytes); err != nil || len(page.Entries) != want || page.Next == "" {
			t.Errorf("%d entries, next %q, %v; want %d and more", len(page.Entries), page.Next, err, want)
		}
		if all := found(t, l, "pp", 10); len(all) != 10 {
			t.Errorf("%d on all pages, want 10", len(all))
		}
	})
}

func TestWhatIsFoundMeanwhileMakesNothingSkippedOrThereTwice(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		want := mustAdd(t, l, 1, "a1", "b", "a2", "a3", "b", "a4", "a5")
		if len(want) != 7 {
			t.Fatal(want)
		}
		got := walk(t, func(cursor string) (Page, error) { return l.Search(t.Context(), false, "a", cursor, 2) }, func() { mustAdd(t, l, 1, "a9") })
		// "model-a" and "an answer" are in every entry, so that all of them are found.
		if !slices.Equal(got, []string{"a5", "a4", "b", "a3", "a2", "b", "a1"}) {
			t.Errorf("%q", got)
		}
		got = walk(t, func(cursor string) (Page, error) { return l.Search(t.Context(), false, "b", cursor, 1) }, func() { mustAdd(t, l, 1, "b9") })
		if !slices.Equal(got, []string{"b", "b"}) {
			t.Errorf("%q", got)
		}
	})
}

func TestACursorOfASearchIsForItsQueryAlone(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		mustAdd(t, l, 1, "one", "two", "three")
		search := func(demo bool, query, cursor string) (Page, error) {
			return l.Search(t.Context(), demo, query, cursor, 1)
		}
		first, err := search(false, "Model", "")
		if err != nil || first.Next == "" {
			t.Fatal(first, err)
		}
		listed, err := l.All(t.Context(), false, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := search(false, " mODEL ", first.Next); err != nil || !slices.Equal(prompts(page), []string{"two"}) {
			t.Errorf("the same query: %q, %v", prompts(page), err)
		}
		_, another := search(false, "model-", first.Next)
		_, demo := search(true, "model", first.Next)
		_, list := l.All(t.Context(), false, first.Next, 1)
		_, fromList := search(false, "model", listed.Next)
		_, none := search(false, "model", "x")
		for name, err := range map[string]error{"another query": another, "the demo": demo, "the list": list, "from the list": fromList, "none": none} {
			if !errors.Is(err, ErrCursor) {
				t.Errorf("%s: %v, want ErrCursor", name, err)
			}
		}
	})
}

func TestAQueryOutOfBoundsIsRefusedAndNotTold(t *testing.T) {
	l := New(nil, Config{}) // reaching the database would panic
	for _, query := range []string{"", " \t\n\u00a0\u3000", "secret\x00", "\x00", "secret\xff", strings.Repeat("s", 201), strings.Repeat("ü", 201), strings.Repeat(" ", 200) + "s"} {
		_, err := l.Search(t.Context(), false, query, "", 1)
		if !errors.Is(err, ErrQuery) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want ErrQuery", query, err)
		}
	}
	for _, limit := range []int{0, MaxPageEntries + 1} {
		if _, err := l.Search(t.Context(), false, "q", "", limit); !errors.Is(err, ErrLimit) {
			t.Errorf("%d: %v, want ErrLimit", limit, err)
		}
	}
}

func TestTheLongestQueryIsTaken(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		for _, letter := range []string{"s", "ü", "🜚"} {
			long := strings.Repeat(letter, MaxQueryCharacters)
			mustAdd(t, l, 1, "x"+long)
			if got := found(t, l, long, 1); len(got) != 1 {
				t.Errorf("%s: found %d", letter, len(got))
			}
		}
	})
}

func TestASearchReadsAStretchOfTheIndexAndRowsByTheirNumber(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		rows, err := opened.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+search, 0, 1, 1, 1, 1, "q", "q", "q", 1, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var plan []string
		for rows.Next() {
			var id, parent, unused any
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, step)
		}
		if text := strings.Join(plan, "\n"); rows.Err() != nil || !strings.Contains(text, "ai_log_entries_demo (demo=? AND id<?)") || strings.Contains(text, "SCAN ai_log_entries") || strings.Contains(text, "SCAN e") {
			t.Errorf("the plan is\n%s\n%v", text, rows.Err())
		}
	})
}

func TestASearchWhoseStoreFailsIsNotARefusal(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := logOf(t, opened.DB).Search(gone, false, "q", "", 1); !errors.Is(err, ErrStore) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v: want ErrStore and the cause", err)
		}
	})
}
