package sqlstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// Row D6.
func TestWordsAreWhatOperatorsSaidLast(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now})
		until := clock.Now().Add(time.Hour)
		say := func(key int64, action ratelimit.Action) {
			t.Helper()
			clock.Add(time.Second)
			o := ratelimit.Operation{Key: key, Policy: "p", Action: action, UntilMicros: until.UnixMicro()}
			if action == ratelimit.Reset {
				o.UntilMicros = 0
			}
			if err := store.Operate(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(5, "p", 5, time.Hour)}); err != nil {
			t.Fatal(err)
		}
		say(9, ratelimit.Ban)
		say(7, ratelimit.Ban)
		say(7, ratelimit.Allow)
		say(3, ratelimit.Allow)
		say(3, ratelimit.Reset)
		expect := func(from int64, limit int, want string) {
			t.Helper()
			words, err := store.Words(t.Context(), from, limit)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, word := range words {
				got += fmt.Sprintf("%d %s %s %v %t, ", word.Key, word.Policy, word.Action, word.Said.Sub(storetest.Start), word.Until.Equal(until))
			}
			if got != want {
				t.Errorf("from %d: %q, want %q", from, got, want)
			}
		}
		expect(0, 10, "3 p reset 5s false, 7 p allow 3s true, 9 p ban 1s true, ")
		expect(0, 1, "3 p reset 5s false, ")
		expect(8, 10, "9 p ban 1s true, ")
		clock.Add(time.Hour)
		expect(0, 10, "3 p reset 5s false, 7 p reset 3s false, 9 p reset 1s false, ")
	})
}
