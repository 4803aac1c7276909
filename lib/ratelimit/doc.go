// Package ratelimit decides whether a request may pass, exactly, for any number of limits at once, from counters that
// every instance of an application shares.
//
// A Policy says how much of what is allowed in which time. A Limiter takes one decision over several policies as one
// atomic unit of its Store: either every limit admits the request and all are charged, or none is, but for limits that
// count every attempt.
//
//	limiter, err := ratelimit.New(store, secret)
//	…
//	decision, err := limiter.Decide(ctx, signIn.Charge(address), failedSignIns.Charge(userName))
//
// The store's clock decides, never the caller's: instances with different clocks agree. Subjects become keyed hashes
// before they reach the store. What a policy promises is at its Algorithm.
package ratelimit
