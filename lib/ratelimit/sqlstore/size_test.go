package sqlstore_test

import (
	"database/sql"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// sizes are what docs/guide.md has a row for: an algorithm and a limit that is used up.
var sizes = []struct {
	row       string
	algorithm ratelimit.Algorithm
	limit     int64
}{
	{"fixed window", ratelimit.FixedWindow, 100},
	{"sliding window", ratelimit.SlidingWindow, 100},
	{"token bucket", ratelimit.TokenBucket, 100},
	{"leaky bucket", ratelimit.LeakyBucket, 100},
	{"sliding log of 5", ratelimit.SlidingLog, 5},
	{"sliding log of 100", ratelimit.SlidingLog, 100},
}

// BenchmarkBytesPerKey fills a file with keys of one algorithm, each charged its whole limit, and reports the size of the
// table alone, and that after VACUUM.
func BenchmarkBytesPerKey(b *testing.B) {
	for _, test := range sizes {
		b.Run(strings.ReplaceAll(test.row, " ", "-"), func(b *testing.B) {
			for b.Loop() {
				filled, packed := bytesPerKey(b, test.algorithm, test.limit, 100_000)
				b.ReportMetric(filled, "bytes/key")
				b.ReportMetric(packed, "bytes/key-packed")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// Row C14: the guide's table of sizes is what a table takes.
func TestTheGuideSaysWhatAKeyTakes(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/guide.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range sizes {
		t.Run(test.row, func(t *testing.T) {
			var said [2]float64
			for line := range strings.Lines(string(guide)) {
				if cells := strings.Split(line, "|"); len(cells) == 5 && strings.TrimSpace(cells[1]) == test.row {
					for i, cell := range cells[2:4] {
						if said[i], err = strconv.ParseFloat(strings.ReplaceAll(strings.TrimSpace(cell), ",", ""), 64); err != nil {
							t.Fatalf("%s: %v", line, err)
						}
					}
				}
			}
			filled, packed := bytesPerKey(t, test.algorithm, test.limit, 5000)
			for i, got := range []float64{filled, packed} {
				if math.Abs(got-said[i]) > 0.05*got { // a sample of the benchmark's keys
					t.Errorf("the guide says %v bytes a key, a table takes %.1f", said[i], got)
				}
			}
		})
	}
}

// bytesPerKey fills a new file with keys that are used up.
func bytesPerKey(t testing.TB, algorithm ratelimit.Algorithm, limit int64, keys int) (filled, packed float64) {
	t.Helper()
	// A window that no key outlives while the table is filled.
	policy := ratelimit.Policy{Name: "partner-api", Algorithm: algorithm, Limit: limit, Window: 30 * 24 * time.Hour}
	if algorithm == ratelimit.LeakyBucket {
		policy.Queue = limit - 1
	}
	db := databases.File(t)
	limiter := newLimiter(t, db)
	empty := size(t, db.DB)
	for key := 0; key < keys; {
		var charges []ratelimit.Charge
		for ; len(charges) < ratelimit.MaxCharges && key < keys; key++ {
			charges = append(charges, policy.ChargeN(strconv.Itoa(key), limit))
		}
		decision, err := limiter.Decide(t.Context(), charges...)
		if err != nil || !decision.Allowed {
			t.Fatalf("allowed %t, %v", decision.Allowed, err)
		}
	}
	if n := number(t, db.DB, "SELECT count(*) FROM rate_limits WHERE used = "+strconv.FormatInt(limit, 10)); n != int64(keys) {
		t.Fatalf("%d full keys, want %d", n, keys)
	}
	filled = float64(size(t, db.DB)-empty) / float64(keys)
	if _, err := db.ExecContext(t.Context(), "VACUUM"); err != nil {
		t.Fatal(err)
	}
	return filled, float64(size(t, db.DB)-empty) / float64(keys)
}

func newLimiter(b testing.TB, db *database.DB) *ratelimit.Limiter {
	b.Helper()
	store := open(db, sqlstore.Config{})
	limiter, err := ratelimit.New(store, storetest.Secret, ratelimit.Config{Deadline: patience})
	if err != nil {
		b.Fatal(err)
	}
	return limiter
}

// size is that of the database's pages in use, in bytes.
func size(b testing.TB, db *sql.DB) int64 {
	b.Helper()
	return number(b, db, "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size")
}
