package ratelimit_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

func inMemory(_ *testing.T, now func() time.Time) storetest.Harness {
	store := ratelimit.NewMemoryStore(now)
	return storetest.Harness{Store: store, Audits: store.Audits, Writes: store.Writes}
}

// Row B4: any bytes are a stream of requests and refunds.
func FuzzStreams(f *testing.F) {
	for algorithm := range byte(5) {
		f.Add([]byte{99, algorithm, 4, 3, algorithm + 1, 2, 5, 0, 1, 3, 1, 10, 2, 1, 1, 50, 3, 2, 2, 0, 4, 1, 0, 30, 2, 1, 4, 99, 2, 3, 3})
		f.Add([]byte{0, algorithm, 11, 0, algorithm + 3, 11, 11, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 9, 9, 255, 2, 9, 9})
	}
	f.Fuzz(func(t *testing.T, data []byte) { storetest.PlayBytes(t, inMemory, data) })
}

// Case A18: what Validate lets through decides without overflow, at any time and after any step of the clock.
func FuzzPolicies(f *testing.F) {
	for algorithm := range uint8(7) {
		f.Add(algorithm, int64(1), int64(1), int64(0), int64(0), int64(1), []byte{1, 2, 3, 4, 5, 6, 7, 8})
		f.Add(algorithm, int64(ratelimit.MaxLimit), ratelimit.MaxWindow.Milliseconds(), int64(0), int64(0), int64(math.MaxInt64), []byte{})
		f.Add(algorithm, int64(ratelimit.MaxLimit), int64(1), int64(ratelimit.MaxLimit), int64(0), int64(5), []byte{0, 0, 0, 0, 0, 0, 0, 0})
		f.Add(algorithm, int64(1), int64(100), int64(0), int64(ratelimit.MaxLimit-1), int64(5), []byte{255, 255, 255, 255, 255, 255, 255, 255})
		f.Add(algorithm, int64(1_000_000), (30 * 24 * time.Hour).Milliseconds(), int64(0), int64(0), int64(999_999), []byte{9, 9, 9, 9, 9, 9, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1})
		f.Add(algorithm, int64(math.MaxInt64), int64(math.MinInt64), int64(-1), int64(math.MinInt64), int64(-1), []byte{})
		f.Add(algorithm, int64(ratelimit.MaxLogLimit), int64(60_000), int64(0), int64(0), int64(ratelimit.MaxLogLimit), []byte{1, 1, 1, 1, 1, 1, 1, 1})
	}
	f.Fuzz(func(t *testing.T, algorithm uint8, limit, windowMillis, burst, queue, cost int64, clock []byte) {
		policy := ratelimit.Policy{
			Name: "fuzzed", Algorithm: ratelimit.Algorithm(algorithm), Limit: limit, Window: time.Duration(windowMillis) * time.Millisecond,
			Burst: burst, Queue: queue,
		}
		first, last := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
		times := []int64{first, last, first + (last-first)/2}
		for ; len(clock) >= 8 && len(times) < 10; clock = clock[8:] {
			times = append(times, first+int64(binary.BigEndian.Uint64(clock)%uint64(last-first)))
		}
		storetest.PlayNumbers(t, inMemory, policy, cost, times)
	})
}
