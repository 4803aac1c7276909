package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// operation is one call of a history: a decision over one or two keys, or a charge given back.
type operation struct {
	id     int      // of the decision, or of the one whose charge is given back
	costs  [2]int64 // of a decision, by key; 0 where a key isn't asked
	isBack bool
	key    int // whose charge is given back
}

// outcome is what a decision answered.
type outcome struct {
	allowed   bool
	charged   [2]bool
	remaining [2]int64 // of what was charged
}

// counters is what an ideal limiter holds while time stands still.
type counters struct {
	used [2]int64
	back uint64 // which charges were given back: bit 2 × id + key
}

const maxDecisions = 32 // so that each charge has its bit

// ideal does one operation after another on two limits of these capacities.
func ideal(capacity [2]int64, everyAttempt [2]bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return counters{} },
		Step: func(state, input, output any) (bool, any) {
			now, call := state.(counters), input.(operation)
			if call.isBack {
				bit := uint64(1) << (2*call.id + call.key)
				if now.back&bit == 0 {
					now.back |= bit
					now.used[call.key] -= call.costs[call.key]
				}
				return true, now
			}
			got := output.(outcome)
			var fits [2]bool
			allowed := true
			for key, cost := range call.costs {
				fits[key] = now.used[key]+cost <= capacity[key]
				allowed = allowed && fits[key]
			}
			for key, cost := range call.costs {
				charged := cost > 0 && fits[key] && (allowed || everyAttempt[key])
				if charged {
					now.used[key] += cost
				}
				if charged != got.charged[key] || charged && got.remaining[key] != capacity[key]-now.used[key] {
					return false, state
				}
			}
			return allowed == got.allowed, now
		},
		Equal:             func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
	}
}

// linearizable records what goroutines are told by a store that they use together, and looks for an order in which one
// ideal limiter, asked by nobody else, would have said the same. The clock stands still. What is given back are charges
// of windows and logs alone: see refundsWithinOneMillisecond.
func linearizable(t *testing.T, s *suite) {
	random := seeded(t)
	for history := range s.scaled(150) {
		var policies [2]ratelimit.Policy
		var capacity [2]int64
		var everyAttempt [2]bool
		for key := range policies {
			algorithm := algorithms[random.IntN(5)]
			policies[key] = plain(algorithm, fmt.Sprintf("history-%d-%d", history, key))
			capacity[key] = 5
			if random.IntN(3) == 0 {
				policies[key].Count, everyAttempt[key] = ratelimit.EveryAttempt, true
			}
		}
		type charged struct {
			operation
			reservation ratelimit.Reservation
		}
		var mu sync.Mutex
		var operations []porcupine.Operation
		var charges []charged
		var tick, ids atomic.Int64
		record := func(worker int, input operation, call int64, output outcome) {
			back := tick.Add(1)
			mu.Lock()
			defer mu.Unlock()
			operations = append(operations, porcupine.Operation{ClientId: worker, Input: input, Call: call, Output: output, Return: back})
		}
		plans := make([][]uint64, 6)
		for worker := range plans {
			for range 7 {
				plans[worker] = append(plans[worker], random.Uint64())
			}
		}
		together(len(plans), func(worker int) {
			for _, plan := range plans[worker] {
				mu.Lock()
				held := charges
				mu.Unlock()
				if plan%3 == 0 && len(held) > 0 {
					back := held[plan>>8%uint64(len(held))]
					call := tick.Add(1)
					if err := s.limiter.GiveBack(context.Background(), back.reservation); err != nil {
						t.Error(err)
						return
					}
					record(worker, back.operation, call, outcome{})
					continue
				}
				id := int(ids.Add(1)) - 1
				if id >= maxDecisions {
					return
				}
				input := operation{id: id}
				var asked []int
				var asks []ratelimit.Charge
				for key := range policies {
					if plan>>(16+key)&1 == 0 || key == 1 && len(asks) == 0 {
						input.costs[key] = 1 + int64(plan>>(20+4*key)%3)
						asked, asks = append(asked, key), append(asks, policies[key].ChargeN("someone", input.costs[key]))
					}
				}
				call := tick.Add(1)
				got, err := s.limiter.Decide(context.Background(), asks...)
				if err != nil {
					t.Error(err)
					return
				}
				output := outcome{allowed: got.Allowed}
				for i, key := range asked {
					limit := got.Limits[i]
					output.charged[key] = limit.Reservation != ratelimit.Reservation{}
					output.remaining[key] = limit.Remaining
				}
				record(worker, input, call, output)
				for i, key := range asked {
					bucket := policies[key].Algorithm == ratelimit.TokenBucket || policies[key].Algorithm == ratelimit.LeakyBucket
					if output.charged[key] && !bucket {
						back := operation{id: id, costs: input.costs, isBack: true, key: key}
						mu.Lock()
						charges = append(charges, charged{back, got.Limits[i].Reservation})
						mu.Unlock()
					}
				}
			}
		})
		if result := porcupine.CheckOperationsTimeout(ideal(capacity, everyAttempt), operations, time.Minute); result != porcupine.Ok {
			t.Fatalf("history %d of %s and %s has no order (%s): %+v", history, describe(policies[0]), describe(policies[1]), result, operations)
		}
	}
}
