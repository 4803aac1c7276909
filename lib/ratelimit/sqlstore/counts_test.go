package sqlstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

func TestCountsAreOfLiveKeysAndOfADaysRefusals(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		clock := storetest.NewClock()
		store := open(db, sqlstore.Config{Now: clock.Now, SweepEvery: -1})
		expect := func(when string, want ...sqlstore.Count) {
			t.Helper()
			got, err := store.Counts(t.Context())
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: got %+v, %v; want %+v", when, got, err, want)
			}
		}
		decide := func(key int64, policy string, window time.Duration, times int) {
			t.Helper()
			for range times {
				if _, err := store.Decide(t.Context(), []ratelimit.Entry{entry(key, policy, 2, window)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		expect("nothing charged")
		decide(1, "minute", time.Minute, 5) // one refusal is audited, the two after it are not
		decide(2, "minute", time.Minute, 1)
		decide(3, "day", 24*time.Hour, 3)
		ban := ratelimit.Operation{Key: 4, Policy: "banned", Action: ratelimit.Ban, UntilMicros: storetest.Start.Add(time.Hour).UnixMicro()}
		if err := store.Operate(t.Context(), ban); err != nil {
			t.Fatal(err)
		}
		expect("at first", sqlstore.Count{Policy: "banned", ActiveKeys: 1, Refusals: 0}, sqlstore.Count{Policy: "day", ActiveKeys: 1, Refusals: 1}, sqlstore.Count{Policy: "minute", ActiveKeys: 2, Refusals: 1})
		clock.At(time.Minute)
		decide(2, "minute", time.Minute, 3)
		expect("a minute later", sqlstore.Count{Policy: "banned", ActiveKeys: 1, Refusals: 0}, sqlstore.Count{Policy: "day", ActiveKeys: 1, Refusals: 1}, sqlstore.Count{Policy: "minute", ActiveKeys: 1, Refusals: 2})
		clock.At(24 * time.Hour)
		expect("a day later", sqlstore.Count{Policy: "minute", ActiveKeys: 0, Refusals: 1})
		clock.At(24*time.Hour + time.Minute)
		expect("when all is over")
	})
}
