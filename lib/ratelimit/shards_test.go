package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

// shardsOf makes shards of these stores, named a, b, c and so on.
func shardsOf[S ratelimit.Store](stores ...S) (shards []ratelimit.Shard) {
	for i, store := range stores {
		shards = append(shards, ratelimit.Shard{Name: string(rune('a' + i)), Store: store})
	}
	return shards
}

func newShards(t testing.TB, now, next []ratelimit.Shard) *ratelimit.Shards {
	t.Helper()
	shards, err := ratelimit.NewShards(now, next)
	if err != nil {
		t.Fatal(err)
	}
	return shards
}

func memories(n int, now func() time.Time) (all []*ratelimit.MemoryStore) {
	for range n {
		all = append(all, ratelimit.NewMemoryStore(now))
	}
	return all
}

// Row D6: the suite holds over shards, decisions over several of them included.
func TestShardsOfMemoryStores(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			open := func(t *testing.T, now func() time.Time) storetest.Harness {
				stores := memories(n, now)
				return storetest.Harness{
					Store: newShards(t, shardsOf(stores...), nil),
					Audits: func() (audits []ratelimit.Audit) {
						for _, store := range stores {
							audits = append(audits, store.Audits()...)
						}
						return audits
					},
					Writes: func() (writes int64) {
						for _, store := range stores {
							writes += store.Writes()
						}
						return writes
					},
				}
			}
			storetest.Run(t, open)
			storetest.RunWrites(t, open)
		})
	}
}
