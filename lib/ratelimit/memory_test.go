package ratelimit_test

import (
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
)

func TestMemoryStore(t *testing.T) {
	open := func(t *testing.T, now func() time.Time) storetest.Harness {
		store := ratelimit.NewMemoryStore(now)
		return storetest.Harness{Store: store, Audits: store.Audits, Writes: store.Writes}
	}
	storetest.Run(t, open)
	storetest.RunWrites(t, open)
}
