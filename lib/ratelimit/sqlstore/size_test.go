package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// BenchmarkBytesPerKey fills a file with keys of one algorithm, each charged its whole limit, and reports the size of the
// table alone, and that after VACUUM.
func BenchmarkBytesPerKey(b *testing.B) {
	const keys = 100_000
	for _, test := range []struct {
		algorithm ratelimit.Algorithm
		limit     int64
	}{
		{ratelimit.FixedWindow, 100}, {ratelimit.SlidingWindow, 100}, {ratelimit.SlidingLog, 5}, {ratelimit.SlidingLog, 100},
		{ratelimit.TokenBucket, 100}, {ratelimit.LeakyBucket, 100},
	} {
		algorithm, limit := test.algorithm, test.limit
		b.Run(fmt.Sprintf("%s-of-%d", algorithm, limit), func(b *testing.B) {
			// A window that no key outlives while the table is filled.
			policy := ratelimit.Policy{Name: "partner-api", Algorithm: algorithm, Limit: limit, Window: 30 * 24 * time.Hour}
			if algorithm == ratelimit.LeakyBucket {
				policy.Queue = limit - 1
			}
			for b.Loop() {
				file := "file:" + filepath.Join(b.TempDir(), "weir.db")
				db := databases.Open(b, file)
				limiter := newLimiter(b, db)
				empty := size(b, db.DB)
				for key := 0; key < keys; {
					var charges []ratelimit.Charge
					for ; len(charges) < ratelimit.MaxCharges && key < keys; key++ {
						charges = append(charges, policy.ChargeN(strconv.Itoa(key), limit))
					}
					decision, err := limiter.Decide(context.Background(), charges...)
					if err != nil || !decision.Allowed {
						b.Fatalf("allowed %t, %v", decision.Allowed, err)
					}
				}
				if n := number(b, db.DB, "SELECT count(*) FROM rate_limits WHERE used = "+strconv.FormatInt(limit, 10)); n != keys {
					b.Fatalf("%d full keys, want %d", n, keys)
				}
				b.ReportMetric(float64(size(b, db.DB)-empty)/keys, "bytes/key")
				if _, err := db.ExecContext(context.Background(), "VACUUM"); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(size(b, db.DB)-empty)/keys, "bytes/key-packed")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

func newLimiter(b *testing.B, db *database.DB) *ratelimit.Limiter {
	b.Helper()
	store := open(db, sqlstore.Config{})
	limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		b.Fatal(err)
	}
	return limiter
}

// size is that of the database's pages in use, in bytes.
func size(b *testing.B, db *sql.DB) int64 {
	b.Helper()
	return number(b, db, "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size")
}
