package sqlstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// BenchmarkOneOffKeys takes a decision for each of so many keys that are never seen again, 1,000 a second by the store's clock,
// and reports how many rows are left for each that is still live: without a sweep it would be one for each key ever seen. Run
// it with -benchtime 1x.
func BenchmarkOneOffKeys(b *testing.B) {
	const keys, perSecond, window = 1_000_000, 1000, 10 * time.Second
	for b.Loop() {
		db := databases.File(b)
		clock := storetest.NewClock()
		store := sqlstore.New(db.DB, sqlstore.Config{Now: clock.Now})
		var most int64
		for i := range int64(keys) {
			clock.At(time.Duration(i) * time.Second / perSecond)
			key := i * 0x1E3779B97F4A7C15 & (1<<63 - 1) // spread, as HMACs are
			rows, err := store.Decide(b.Context(), []ratelimit.Entry{entry(key, "one-off", 5, window)})
			if err != nil || !rows[0].Charged {
				b.Fatalf("key %d: %+v, %v", i, rows, err)
			}
			if i%50_000 == 49_999 {
				most = max(most, number(b, db.DB, "SELECT count(*) FROM rate_limits"))
			}
		}
		live := perSecond * window.Seconds() // at the end of a window; half of that on average
		b.ReportMetric(float64(most)/live, "rows/live")
		b.ReportMetric(float64(most), "rows")
	}
}

// BenchmarkDecideAmongKeys takes decisions for live keys of a table that holds a thousand, or a million.
func BenchmarkDecideAmongKeys(b *testing.B) {
	for _, keys := range []int64{1000, 1_000_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			db := databases.File(b)
			_, err := db.Exec(`
				WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)
				INSERT INTO rate_limits (key, policy, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, charged,
					refused_micros, override, until_micros, said_micros, expires_micros)
				SELECT i * 9223372036854, 'live', 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 9000000000000000000 FROM n`, keys)
			if err != nil {
				b.Fatal(err)
			}
			if n := number(b, db.DB, "SELECT count(*) FROM rate_limits"); n != keys {
				b.Fatalf("%d rows", n)
			}
			store := sqlstore.New(db.DB, sqlstore.Config{})
			var i int64
			for b.Loop() {
				i = (i + 7919) % keys
				rows, err := store.Decide(b.Context(), []ratelimit.Entry{entry(i*9223372036854, "live", 1_000_000, time.Hour)})
				if err != nil || !rows[0].Charged {
					b.Fatalf("%+v, %v", rows, err)
				}
			}
			if n := number(b, db.DB, "SELECT count(*) FROM rate_limits"); n != keys {
				b.Fatalf("%d rows: the benchmark made new keys", n)
			}
		})
	}
}
