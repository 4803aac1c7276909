//go:build unix

package ailog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// start is when the tests' clock stands: with microseconds, as a database's clock never has, to see that none are lost.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// logOf makes a Log whose clock stands, and accounts with the given numbers.
func logOf(t *testing.T, db *sql.DB, accounts ...int64) *Log {
	t.Helper()
	for _, id := range accounts {
		_, err := db.ExecContext(t.Context(), `INSERT INTO accounts (id, username, role, created_micros) VALUES (?, ?, 'member', 0)`, id, fmt.Sprintf("account-%d", id))
		if err != nil {
			t.Fatal(err)
		}
	}
	return New(db, Config{Now: func() time.Time { return start }})
}

func text(prompt string) Text {
	return Text{Model: "model-a", Prompt: prompt, Response: "an answer", Tokens: 7}
}

func mustAdd(t *testing.T, l *Log, account int64, prompts ...string) (ids []int64) {
	t.Helper()
	for _, prompt := range prompts {
		e, err := l.Add(t.Context(), Author{Account: account}, text(prompt))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID)
	}
	return ids
}

func prompts(page Page) (all []string) {
	for _, e := range page.Entries {
		all = append(all, e.Prompt)
	}
	return all
}

// walk reads pages to the end and calls between after each.
func walk(t *testing.T, read func(cursor string) (Page, error), between func()) (all []string) {
	t.Helper()
	cursor := ""
	for range 1000 {
		page, err := read(cursor)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, prompts(page)...)
		if page.Next == "" {
			return all
		}
		cursor = page.Next
		between()
	}
	t.Fatal("the pages don't end")
	return nil
}

func TestAnEntryComesBackAsItWasAdded(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		texts := []Text{
			{Model: "m", Prompt: "p"},
			{
				Model:    strings.Repeat("m", MaxModelBytes),
				Prompt:   strings.Repeat("\u0001", MaxPromptBytes),
				Response: strings.Repeat("🜚", MaxResponseBytes/4),
				Tokens:   MaxTokens,
			},
			{Model: "owner/model 4:free", Prompt: " '\";-- ? ?1 \r\n\t\u2028\ufeff\ufffd ", Response: "\\u0000 \U0010ffff", Tokens: 1},
		}
		for _, want := range texts {
			added, err := l.Add(t.Context(), Author{Account: 1}, want)
			if err != nil {
				t.Fatal(err)
			}
			page, err := l.Own(t.Context(), 1, "", 1)
			if err != nil || len(page.Entries) != 1 {
				t.Fatalf("a page of %d, %v", len(page.Entries), err)
			}
			got := page.Entries[0]
			if got.Text != want || added.Text != want || got.ID != added.ID || !got.Created.Equal(start) || !added.Created.Equal(start) {
				t.Errorf("%.200q came back as %.200q", fmt.Sprint(added), fmt.Sprint(got))
			}
		}
	})
}

func TestATextOutOfBoundsIsRefusedAndNamesNoText(t *testing.T) {
	l := New(nil, Config{}) // reaching the database would panic
	good := text("a question")
	for name, c := range map[string]struct {
		change func(*Text)
		want   error
	}{
		"no model":                  {func(t *Text) { t.Model = "" }, ErrModel},
		"a blank model":             {func(t *Text) { t.Model = " " }, ErrModel},
		"a model with white space":  {func(t *Text) { t.Model = "secret " }, ErrModel},
		"a model with a line break": {func(t *Text) { t.Model = "sec\nret" }, ErrModel},
		"a model that is no UTF-8":  {func(t *Text) { t.Model = "secret\xff" }, ErrModel},
		"a long model":              {func(t *Text) { t.Model = strings.Repeat("m", MaxModelBytes+1) }, ErrModel},
		"no prompt":                 {func(t *Text) { t.Prompt = "" }, ErrPrompt},
		"a prompt with U+0000":      {func(t *Text) { t.Prompt = "sec\x00ret" }, ErrPrompt},
		"a prompt that is no UTF-8": {func(t *Text) { t.Prompt = "secret\xff" }, ErrPrompt},
		"a long prompt":             {func(t *Text) { t.Prompt = strings.Repeat("p", MaxPromptBytes+1) }, ErrPrompt},
		"a response with U+0000":    {func(t *Text) { t.Response = "sec\x00ret" }, ErrResponse},
		"a response that is no UTF": {func(t *Text) { t.Response = "secret\xff" }, ErrResponse},
		"a long response":           {func(t *Text) { t.Response = strings.Repeat("r", MaxResponseBytes+1) }, ErrResponse},
		"fewer tokens than none":    {func(t *Text) { t.Tokens = -1 }, ErrTokens},
		"too many tokens":           {func(t *Text) { t.Tokens = MaxTokens + 1 }, ErrTokens},
	} {
		bad := good
		c.change(&bad)
		_, err := l.Add(t.Context(), Author{Account: 1}, bad)
		if !errors.Is(err, c.want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "question") {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestPagesAreOfTheAccountAloneNewestFirst(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1, 2, 3)
		for i := range 5 {
			mustAdd(t, l, 1, fmt.Sprint("mine ", i))
			mustAdd(t, l, 2, fmt.Sprint("another's ", i))
		}
		want := []string{"mine 4", "mine 3", "mine 2", "mine 1", "mine 0"}
		for _, limit := range []int{1, 2, 4, 5, 6, MaxPageEntries} {
			pages := 0
			got := walk(t, func(cursor string) (Page, error) {
				pages++
				return l.Own(t.Context(), 1, cursor, limit)
			}, func() {})
			if !slices.Equal(got, want) || pages != (len(want)+limit-1)/limit {
				t.Errorf("by %d: %v in %d pages", limit, got, pages)
			}
		}
		if page, err := l.Own(t.Context(), 3, "", 5); err != nil || len(page.Entries) != 0 || page.Next != "" {
			t.Errorf("of nobody: %+v, %v", page, err)
		}
	})
}

func TestEntriesAddedMeanwhileMakeNoneSkippedOrThereTwice(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1, 2)
		var want []string
		for i := range 7 {
			mustAdd(t, l, 1, fmt.Sprint(i))
			want = append([]string{fmt.Sprint(i)}, want...)
		}
		between := func() {
			mustAdd(t, l, 1, "added meanwhile")
			mustAdd(t, l, 2, "added meanwhile by another")
		}
		if got := walk(t, func(cursor string) (Page, error) { return l.Own(t.Context(), 1, cursor, 2) }, between); !slices.Equal(got, want) {
			t.Errorf("own: %v, want %v", got, want)
		}
		page, err := l.All(t.Context(), false, "", MaxPageEntries)
		if err != nil {
			t.Fatal(err)
		}
		want = prompts(page)
		if got := walk(t, func(cursor string) (Page, error) { return l.All(t.Context(), false, cursor, 2) }, between); !slices.Equal(got, want) {
			t.Errorf("all: %v, want %v", got, want)
		}
	})
}

func TestEveryEntryOfManyAddedAtOnceHasANumberOfItsOwn(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1, 2)
		var group sync.WaitGroup
		for i := range 40 {
			group.Go(func() {
				if _, err := l.Add(t.Context(), Author{Account: int64(1 + i%2)}, text(fmt.Sprint(i/2))); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		for account := range int64(2) {
			seen := map[string]bool{}
			for _, prompt := range walk(t, func(cursor string) (Page, error) { return l.Own(t.Context(), 1+account, cursor, 3) }, func() {}) {
				seen[prompt] = true
			}
			var lowest, highest int64
			err := opened.QueryRowContext(t.Context(), `SELECT min(number), max(number) FROM ai_log_entries WHERE account = ?`, 1+account).Scan(&lowest, &highest)
			if err != nil || len(seen) != 20 || lowest != 1 || highest != 20 {
				t.Errorf("%d entries with numbers from %d to %d, %v; want 20", len(seen), lowest, highest, err)
			}
		}
	})
}

func TestAPageEndsBeforeItsTextsAreTooLarge(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		const most = MaxModelBytes + MaxPromptBytes + MaxResponseBytes
		large := Text{strings.Repeat("m", MaxModelBytes), strings.Repeat("p", MaxPromptBytes), strings.Repeat("r", MaxResponseBytes), 1}
		for range 10 {
			if _, err := l.Add(t.Context(), Author{Account: 1}, large); err != nil {
				t.Fatal(err)
			}
		}
		const fit = MaxPageBytes / most
		for name, read := range map[string]func(cursor string, limit int) (Page, error){
			"own": func(cursor string, limit int) (Page, error) { return l.Own(t.Context(), 1, cursor, limit) },
			"all": func(cursor string, limit int) (Page, error) { return l.All(t.Context(), false, cursor, limit) },
		} {
			for limit, want := range map[int]int{fit - 1: fit - 1, fit: fit, fit + 1: fit, 10: fit, MaxPageEntries: fit} {
				first, err := read("", limit)
				if err != nil || len(first.Entries) != want || first.Next == "" {
					t.Errorf("%s: the first page by %d has %d entries, want %d, and the cursor %q: %v", name, limit, len(first.Entries), want, first.Next, err)
					continue
				}
				if all := walk(t, func(cursor string) (Page, error) { return read(cursor, limit) }, func() {}); len(all) != 10 {
					t.Errorf("%s: %d entries on all pages by %d, want 10", name, len(all), limit)
				}
			}
		}
	})
}

func TestAnAccountKeepsItsNewestEntries(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1, 2)
		mustAdd(t, l, 1, "first", "second", "third")
		mustAdd(t, l, 2, "another's")
		// As if there were others between the second and the third.
		if _, err := opened.ExecContext(t.Context(), `UPDATE ai_log_entries SET number = ? WHERE prompt = 'third'`, MaxEntries-1); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			add  string
			left []string
		}{
			{"fourth", []string{"fourth", "third", "second", "first"}}, // all of MaxEntries
			{"fifth", []string{"fifth", "fourth", "third", "second"}},
			{"sixth", []string{"sixth", "fifth", "fourth", "third"}},
		} {
			mustAdd(t, l, 1, step.add)
			if page, err := l.Own(t.Context(), 1, "", 9); err != nil || !slices.Equal(prompts(page), step.left) {
				t.Errorf("after the %s: %v, %v; want %v", step.add, prompts(page), err, step.left)
			}
		}
		if page, err := l.Own(t.Context(), 2, "", 9); err != nil || len(page.Entries) != 1 {
			t.Errorf("of another: %v, %v", prompts(page), err)
		}
	})
}

func TestACursorIsGoodThoughItsEntryIsGone(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		mustAdd(t, l, 1, "first", "second", "third")
		page, err := l.Own(t.Context(), 1, "", 2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opened.ExecContext(t.Context(), `DELETE FROM ai_log_entries WHERE prompt = 'second'`); err != nil {
			t.Fatal(err)
		}
		if page, err = l.Own(t.Context(), 1, page.Next, 2); err != nil || !slices.Equal(prompts(page), []string{"first"}) {
			t.Errorf("%v, %v", prompts(page), err)
		}
	})
}

func TestWhatTheDemoAddsIsOnPagesOfItsOwn(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1, 2, 3)
		mustAdd(t, l, 1, "one")
		for _, account := range []int64{2, 3} {
			if _, err := l.Add(t.Context(), Author{Account: account, Demo: true}, text("demo")); err != nil {
				t.Fatal(err)
			}
		}
		mustAdd(t, l, 1, "two")
		for demo, want := range map[bool][]string{false: {"two", "one"}, true: {"demo", "demo"}} {
			page, err := l.All(t.Context(), demo, "", 9)
			if err != nil || !slices.Equal(prompts(page), want) {
				t.Errorf("demo %t: %v, %v; want %v", demo, prompts(page), err, want)
			}
		}
	})
}

func TestAnAccountsEntriesGoWithItAndNoneIsAddedAfterwards(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1, 2)
		mustAdd(t, l, 1, "one", "two")
		mustAdd(t, l, 2, "another's")
		if _, err := opened.ExecContext(t.Context(), `DELETE FROM accounts WHERE id = 1`); err != nil {
			t.Fatal(err)
		}
		page, err := l.All(t.Context(), false, "", 9)
		if err != nil || !slices.Equal(prompts(page), []string{"another's"}) {
			t.Errorf("left are %v, %v", prompts(page), err)
		}
		if _, err := l.Add(t.Context(), Author{Account: 1}, text("late")); !errors.Is(err, ErrAccount) {
			t.Errorf("added afterwards: %v, want ErrAccount", err)
		}
	})
}

func TestPagesFindTheirEntriesThroughAnIndex(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		for query, index := range map[string]string{own: "ai_log_entries_account (account=? AND number<?)", all: "ai_log_entries_demo (demo=? AND id<?)"} {
			rows, err := opened.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, 1, 1, 1, 1)
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
			if text := strings.Join(plan, "\n"); rows.Err() != nil || !strings.Contains(text, index) || strings.Contains(text, "SCAN ai_log_entries") || strings.Contains(text, "SCAN e") {
				t.Errorf("the plan is\n%s\n%v", text, rows.Err())
			}
		}
	})
}

func TestTheDatabasesClockDatesAnEntry(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		logOf(t, opened.DB, 1)
		before := time.Now()
		e, err := New(opened.DB, Config{}).Add(t.Context(), Author{Account: 1}, text("now"))
		// The server runs on this machine, and its clock has whole milliseconds.
		if err != nil || e.Created.Before(before.Add(-2*time.Millisecond)) || e.Created.After(time.Now().Add(2*time.Millisecond)) {
			t.Errorf("added at %v, %v", e.Created, err)
		}
	})
}

func TestALimitOutOfBoundsIsRefused(t *testing.T) {
	l := New(nil, Config{}) // reaching the database would panic
	for _, limit := range []int{-1, 0, MaxPageEntries + 1} {
		_, ownErr := l.Own(t.Context(), 1, "", limit)
		_, allErr := l.All(t.Context(), false, "", limit)
		if !errors.Is(ownErr, ErrLimit) || !errors.Is(allErr, ErrLimit) {
			t.Errorf("%d: %v, %v; want ErrLimit", limit, ownErr, allErr)
		}
	}
}

func TestAStoreThatFailsIsNotARefusal(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		l := logOf(t, opened.DB, 1)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, addErr := l.Add(gone, Author{Account: 1}, text("p"))
		_, ownErr := l.Own(gone, 1, "", 1)
		_, allErr := l.All(gone, true, "", 1)
		for _, err := range []error{addErr, ownErr, allErr} {
			if !errors.Is(err, ErrStore) || !errors.Is(err, context.Canceled) || errors.Is(err, ErrAccount) {
				t.Errorf("%v: want ErrStore and the cause", err)
			}
		}
	})
}
