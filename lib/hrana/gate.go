package hrana

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// MaxOpen is how many requests a process has open at a server at once. Thirty decisions at once
	// over a slow network take one round trip each; with 32 writers at once libSQL's server (sqld
	// 0.24.1) stopped writing for good.
	MaxOpen = 30

	// MaxOpenStrained is the same while the server is strained. Eight decisions take it some 40 ms
	// and keep its only writer at work, so more would only wait there, and be left behind in its
	// queue when their deadline passes.
	MaxOpenStrained = 8

	// strainTime is how long a server counts as strained after it was busy or gave no answer in
	// time: longer than the 20 seconds between two checkpoints of libSQL's server.
	strainTime = 30 * time.Second
)

// Gate bounds the requests that are open at a server at once. Its zero value is ready for use, by
// many goroutines; a nil one bounds nothing.
type Gate struct {
	mu            sync.Mutex
	open          int
	strainedUntil time.Time
	waiting       []chan struct{} // in order of arrival; closed when the place is there
}

// Enter waits for a place until ctx ends, whose error it returns then. Each Enter that returns nil
// needs one Leave.
func (g *Gate) Enter(ctx context.Context) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	if g.open < g.most() && len(g.waiting) == 0 {
		g.open++
		g.mu.Unlock()
		return nil
	}
	place := make(chan struct{})
	g.waiting = append(g.waiting, place)
	g.mu.Unlock()
	select {
	case <-place:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, place); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	} else { // the place came at the same time
		g.open--
		g.admit()
	}
	return ctx.Err()
}

// Leave gives a place back. Strained says that the server was busy, or gave no answer in time.
func (g *Gate) Leave(strained bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if strained {
		g.strainedUntil = time.Now().Add(strainTime)
	}
	g.open--
	g.admit()
}

// most returns how many places there are now.
func (g *Gate) most() int {
	if !g.strainedUntil.IsZero() && time.Now().Before(g.strainedUntil) {
		return MaxOpenStrained
	}
	return MaxOpen
}

// admit gives free places to those who wait. While places are taken, each Leave calls it, so that
// no caller waits for ever.
func (g *Gate) admit() {
	for g.open < g.most() && len(g.waiting) > 0 {
		g.open++
		close(g.waiting[0])
		g.waiting = slices.Delete(g.waiting, 0, 1)
	}
}
