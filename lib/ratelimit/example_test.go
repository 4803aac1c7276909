package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// A clock that stands still makes the output of these examples certain. A program passes nil, for time.Now.
func noon() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

// A program keeps 32 random bytes as its secret, the same in every instance.
var secret = make([]byte, ratelimit.MinSecretBytes)

func Example() {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(noon), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	signIn := ratelimit.Policy{
		Name: "sign-in", Algorithm: ratelimit.SlidingLog, Limit: 2, Window: time.Minute, Subject: ratelimit.Address,
	}
	for range 3 {
		decision, err := limiter.Decide(context.Background(), signIn.Charge("192.0.2.7"))
		if err != nil {
			log.Fatal(err) // a server answers 503
		}
		fmt.Println(decision.Allowed, decision.Limits[0].Remaining, decision.RetryAfter)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 1m0s
}

// Either all limits are charged or none, but for those that count every attempt: here the address pays for each try, and
// the account only for those that both admit.
func ExampleLimiter_Decide_severalLimits() {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(noon), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	perAddress := ratelimit.Policy{
		Name: "sign-in", Algorithm: ratelimit.TokenBucket, Limit: 10, Window: time.Minute,
		Subject: ratelimit.Address, Count: ratelimit.EveryAttempt,
	}
	perAccount := ratelimit.Policy{
		Name: "failed-sign-ins", Algorithm: ratelimit.FixedWindow, Limit: 2, Window: 15 * time.Minute,
		Subject: ratelimit.Account, Private: true,
	}
	for range 4 {
		decision, err := limiter.Decide(context.Background(), perAddress.Charge("192.0.2.7"), perAccount.Charge("Ada"))
		if err != nil {
			log.Fatal(err)
		}
		address, account := decision.Limits[0], decision.Limits[1]
		fmt.Println(decision.Allowed, "address:", address.Remaining, "account:", account.Remaining)
	}
	// Output:
	// true address: 9 account: 1
	// true address: 8 account: 0
	// false address: 7 account: 0
	// false address: 6 account: 0
}

// A guess is charged before the password is looked at, so that parallel guesses can't outrun the limit, and given back
// when it was right.
func ExampleLimiter_GiveBack() {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(noon), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	failures := ratelimit.Policy{
		Name: "failed-sign-ins", Algorithm: ratelimit.FixedWindow, Limit: 3, Window: 15 * time.Minute, Subject: ratelimit.Account,
	}
	ctx := context.Background()
	for _, password := range []string{"hunter2", "correct horse", "correct horse", "letmein"} {
		decision, err := limiter.Decide(ctx, failures.Charge("ada"))
		if err != nil {
			log.Fatal(err)
		}
		if !decision.Allowed {
			fmt.Println("not looked at")
			continue
		}
		if password == "correct horse" {
			if err := limiter.GiveBack(ctx, decision.Limits[0].Reservation); err != nil {
				log.Fatal(err)
			}
		}
		left, err := limiter.Peek(ctx, failures.Charge("ada"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(password == "correct horse", left.Limits[0].Remaining)
	}
	// Output:
	// false 2
	// true 2
	// true 2
	// false 1
}

// A search costs five times as much as a read. A full bucket is a burst; then tokens come back one by one, here one in 0.6 s.
func ExamplePolicy_ChargeN() {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(noon), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	partner := ratelimit.Policy{
		Name: "partner-free", Algorithm: ratelimit.TokenBucket, Limit: 100, Window: time.Minute, Burst: 11, Subject: ratelimit.APIKey,
	}
	for range 3 {
		search, err := limiter.Decide(context.Background(), partner.ChargeN("key-of-a-partner", 5))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(search.Allowed, search.Limits[0].Remaining, search.RetryAfter)
	}
	// Output:
	// true 6 0s
	// true 1 0s
	// false 1 2.4s
}

// A queue that is served at two a second has room for three: the first goes at once, two wait, the fourth is refused. Whoever
// was admitted waits for the delay before doing the work.
func ExampleLimitResult_delay() {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(noon), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	messages := ratelimit.Policy{Name: "sms-gateway", Algorithm: ratelimit.LeakyBucket, Limit: 2, Window: time.Second, Queue: 2}
	for range 4 {
		decision, err := limiter.Decide(context.Background(), messages.Charge("gateway"))
		if err != nil {
			log.Fatal(err)
		}
		if decision.Allowed {
			fmt.Println("goes in", decision.Limits[0].Delay)
		} else {
			fmt.Println("try again in", decision.RetryAfter)
		}
	}
	// Output:
	// goes in 0s
	// goes in 500ms
	// goes in 1s
	// try again in 500ms
}

// Looking charges nothing. It says what is left, not what will be.
func ExampleLimiter_Peek() {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(noon), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	mails := ratelimit.Policy{Name: "mails", Algorithm: ratelimit.FixedWindow, Limit: 5, Window: 24 * time.Hour}
	for range 2 {
		seen, err := limiter.Peek(context.Background(), mails.Charge("member 17"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(seen.Allowed, seen.Limits[0].Remaining)
	}
	// Output:
	// true 5
	// true 5
}

// A ban refuses whatever is left, and a reset ends it.
func ExampleLimiter_Operate_ban() {
	limiter, err := ratelimit.New(ratelimit.NewMemoryStore(noon), secret, ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	api := ratelimit.Policy{
		Name: "api", Algorithm: ratelimit.TokenBucket, Limit: 100, Window: time.Minute, Subject: ratelimit.Address,
	}
	ctx := context.Background()
	ask := func() {
		decision, err := limiter.Decide(ctx, api.Charge("192.0.2.7"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(decision.Allowed, decision.RetryAfter)
	}
	if err := limiter.Operate(ctx, ratelimit.Ban, api, "192.0.2.7", noon().Add(time.Hour)); err != nil {
		log.Fatal(err)
	}
	ask()
	if err := limiter.Operate(ctx, ratelimit.Reset, api, "192.0.2.7", time.Time{}); err != nil {
		log.Fatal(err)
	}
	ask()
	// Output:
	// false 1h0m0s
	// true 0s
}

// Three databases share the subjects; in an application the stores are sqlstore's. What a subject may use is the same, wherever it lies.
func ExampleNewShards() {
	var shards []ratelimit.Shard
	for _, name := range []string{"weir-0", "weir-1", "weir-2"} {
		shards = append(shards, ratelimit.Shard{Name: name, Store: ratelimit.NewMemoryStore(nil)})
	}
	store, err := ratelimit.NewShards(shards, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter, err := ratelimit.New(store, []byte("32 random bytes that stay secret"), ratelimit.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	exports := ratelimit.Policy{Name: "exports", Algorithm: ratelimit.FixedWindow, Limit: 2, Window: ratelimit.MaxWindow}
	for range 3 {
		decision, err := limiter.Decide(context.Background(), exports.Charge("member 7"), exports.Charge("team 3"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(decision.Allowed)
	}
	// Output:
	// true
	// true
	// false
}
