// Command peers is rate limiters in Go that scripts/bench compares Weir with: redis_rate and throttled. It talks the protocol
// of ../node/protocol.mjs:
//
//	peers redis_rate ADDRESS
//	peers throttled-redis ADDRESS
//	peers throttled-memory
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
)

// subjects are the distinct keys, asked in turn.
const subjects = 1000

// wide is a limit that no run reaches; both libraries keep the time between two units in nanoseconds.
const wide = 1_000_000_000

// limiter decides by a limit an hour, in buckets of that size.
type limiter func(ctx context.Context, key string, limit int) (allowed bool, err error)

func main() {
	if err := serve(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// trips counts the round trips to Redis.
type trips struct{ atomic.Int64 }

func (t *trips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

func (t *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		t.Add(1)
		return next(ctx, cmd)
	}
}

func (t *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		t.Add(1)
		return next(ctx, cmds)
	}
}

func open(args []string, counter *trips) (limiter, error) {
	switch {
	case len(args) == 2 && args[0] == "redis_rate":
		client := redis.NewClient(&redis.Options{Addr: args[1]})
		client.AddHook(counter)
		rate := redis_rate.NewLimiter(client)
		return func(ctx context.Context, key string, limit int) (bool, error) {
			result, err := rate.Allow(ctx, key, redis_rate.PerHour(limit))
			if err != nil {
				return false, err
			}
			return result.Allowed == 1, nil
		}, nil
	case len(args) == 2 && args[0] == "throttled-redis":
		client := redis.NewClient(&redis.Options{Addr: args[1]})
		client.AddHook(counter)
		store, err := goredisstore.NewCtx(client, "throttled:")
		if err != nil {
			return nil, err
		}
		return throttle(store), nil
	case len(args) == 1 && args[0] == "throttled-memory":
		store, err := memstore.NewCtx(0) // 0: as many keys as there are
		if err != nil {
			return nil, err
		}
		return throttle(store), nil
	}
	return nil, fmt.Errorf("unknown arguments %q", args)
}

func throttle(store throttled.GCRAStoreCtx) limiter {
	limiters := map[int]*throttled.GCRARateLimiterCtx{}
	return func(ctx context.Context, key string, limit int) (bool, error) {
		made, found := limiters[limit]
		if !found {
			var err error
			quota := throttled.RateQuota{MaxRate: throttled.PerHour(limit), MaxBurst: limit - 1}
			if made, err = throttled.NewGCRARateLimiterCtx(store, quota); err != nil {
				return false, err
			}
			limiters[limit] = made
		}
		limited, _, err := made.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}
}

func serve(ctx context.Context, args []string) error {
	var counter trips
	decide, err := open(args, &counter)
	if err != nil {
		return err
	}
	var names [subjects]string
	for i := range names {
		names[i] = "client " + strconv.Itoa(i)
		if allowed, err := decide(ctx, "narrow "+names[i], 1); err != nil || !allowed {
			return errors.Join(err, fmt.Errorf("the first of %s: allowed %t", names[i], allowed))
		}
	}
	say := json.NewEncoder(os.Stdout)
	if err := say.Encode(map[string]string{"ready": name(args[0])}); err != nil {
		return err
	}
	next := 0
	timed := func(count int, one func(name string) error) ([]int64, error) {
		nanos := make([]int64, count)
		for i := range nanos {
			start := time.Now()
			if err := one(names[next%subjects]); err != nil {
				return nil, err
			}
			nanos[i] = time.Since(start).Nanoseconds()
			next++
		}
		return nanos, nil
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		what, number, _ := strings.Cut(lines.Text(), " ")
		count, _ := strconv.Atoi(number)
		answer := map[string]any{}
		switch what {
		case "check":
			allowed := 0
			for range 4 {
				fits, err := decide(ctx, "three", 3)
				if err != nil {
					return err
				}
				if fits {
					allowed++
				}
			}
			answer["allowed"], answer["refused"] = allowed, 4-allowed
		case "decide":
			before := counter.Load()
			answer["nanos"], err = timed(count, func(name string) error {
				allowed, err := decide(ctx, name, wide)
				if err == nil && !allowed {
					err = errors.New("refused")
				}
				return err
			})
			answer["trips"] = float64(counter.Load()-before) / float64(count)
		case "refuse":
			answer["nanos"], err = timed(count, func(name string) error {
				allowed, err := decide(ctx, "narrow "+name, 1)
				if err == nil && allowed {
					err = errors.New("allowed")
				}
				return err
			})
		default:
			err = fmt.Errorf("unknown: %s", lines.Text())
		}
		if err != nil {
			return err
		}
		if err := say.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

// name is the library with its version.
func name(peer string) string {
	library, _, _ := strings.Cut(peer, "-")
	if info, read := debug.ReadBuildInfo(); read {
		for _, module := range info.Deps {
			if strings.Contains(module.Path, "/"+library) {
				return peer + " " + module.Version
			}
		}
	}
	return peer
}
