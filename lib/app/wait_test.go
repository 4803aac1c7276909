package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Row D4. The clock of the bubble moves when everybody waits, so that the test takes no time.
func TestWaitingForATurnTakesItsTimeAndEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		if err := wait(ctx, 1500*time.Millisecond); err != nil || time.Since(start) != 1500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := wait(ctx, 1500*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := wait(t.Context(), 0); err != nil {
			t.Errorf("nothing to wait for: %v", err)
		}
	})
}
