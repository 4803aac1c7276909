// Package ratelimit decides whether a request may pass, exactly, for any number of limits at once, from counters that
// every instance of an application shares. It uses the standard library only.
//
// A [Policy] says how much of what is allowed, per whom, in which time. A [Limiter] takes decisions, each in one round trip
// to its [Store]:
//
//	limiter, err := ratelimit.New(store, secret, ratelimit.Config{})
//	…
//	decision, err := limiter.Decide(ctx, signIn.Charge(address), failedSignIns.Charge(userName))
//
// Package ratehttp, below this one, is the same as net/http middleware.
//
// # Algorithms
//
// A policy counts by one of five, and changes from one to another by that one word. L is Policy.Limit, W is Policy.Window.
//
//   - [FixedWindow] admits at most L units in each window aligned to 1970 by the store's clock. Around an edge up to 2 L can
//     pass within W.
//   - [SlidingWindow] adds to the units of the current window those of the previous one, as if they had been spread evenly:
//     previous × (1 − elapsed) + current stays at or below L. Fewer than 2 L pass in any stretch of W, and near L where
//     traffic is even.
//   - [SlidingLog] keeps the time of each unit: at most L pass in any stretch of W, wherever it begins. It takes 8 bytes a
//     unit, so L is at most MaxLogLimit.
//   - [TokenBucket] holds Burst tokens at first and gains L in each W, continuously: at most Burst + L × t / W units pass in
//     any stretch of t.
//   - [LeakyBucket] is a queue that is served at L units in each W. What comes when Queue units wait is refused; what is
//     admitted is told in LimitResult.Delay how long to wait, and leaves at an even rate if it does.
//
// # Decisions
//
// Limiter.Decide is one atomic unit for up to MaxCharges policies, whatever their algorithms, ordered with every other
// decision on the same keys. Either every limit admits the request and all are charged, or none is. The one exception
// is a policy whose Count is [EveryAttempt]: it is charged whenever it admits the request itself, also when another limit
// refuses, so that hammering a locked account still uses up the address it comes from. A limit that refuses is never
// charged, so refusals never push the wait out. Only the first refusal of a key in a window is written down, with one audit
// row.
//
// Decision.RetryAfter is enough: whoever waits that long passes, if nobody else uses the same limits meanwhile.
//
// # Costs and peeks
//
// Policy.Charge asks for one unit, Policy.ChargeN for several, at most Policy.Capacity. A cost of 0 charges nothing and says
// what is left, in a decision with others; only a ban refuses it. Limiter.Peek says what a whole decision would, and writes
// nothing: what it says may be over by the time it is heard, so nothing should be decided by it.
//
// # Reservations: checked before trying, counted on failure
//
// A limit on failures has to be charged before the outcome is known, or parallel attempts outrun it. So the attempt is
// charged first, and given back when it turns out not to count: LimitResult.Reservation names the charge, and
// Limiter.GiveBack returns it once, and only what still stands of it. After a window's edge or a refill that may be
// nothing. Others' charges are never touched. In a [LeakyBucket] a place that is given back before its turn is free for the
// next charge, and all others keep their turns. The same serves work whose cost is known only afterwards. Limiter.Seal and
// Limiter.Open carry reservations to another process, or through a client that can't forge them.
//
// # Time
//
// The store's clock decides, in whole milliseconds, never the caller's: instances with different clocks agree. If that clock
// steps back, nobody gains units and nobody waits for it to come back; time that is passed a second time is credited once.
//
// # Keys, and changing the secret
//
// Before a subject reaches the store it is brought into the canonical form of its [SubjectKind], so that two spellings of
// one client meet in one counter, and hashed with the secret, the policy's name and the kind: the store knows nobody. A new
// name or kind means new counters, and so does a new secret, except when it is changed in steps, each complete
// on all instances before the next begins:
//
//  1. New(store, old, Config{OtherSecret: new}): states are read under both secrets, and written under the old one.
//  2. New(store, new, Config{OtherSecret: old}): read under both, written under the new one.
//  3. New(store, new, Config{}), once two of the longest windows have passed since the second step, and the refill of the slowest
//     bucket.
//     Bans from before the first step that refused nobody since then, and exemptions from before it that admitted nobody,
//     are forgotten with the old secret, and have to be repeated.
//
// The first two are one deployment each, and no counter restarts. If the first is skipped, instances that don't read both secrets
// count apart from those that write the other: while such instances run, up to twice the limit passes. If the third comes
// too early, or the secret is replaced at once, what was counted is forgotten: once more the limit passes, and bans end. A
// reservation made before the first step gives nothing back after the second. Operators had better wait for a step to be complete:
// what they say to an instance with one secret is written under that one alone, and is seen by those with both while the row
// lasts.
//
// # Changing a policy
//
// Stored counters hold units and no limit. A changed Limit, Burst, Queue or Window takes effect at the next decision, in both
// directions: after a limit was lowered, whoever is above it waits until enough of what was charged stands no more.
//
// A changed Algorithm takes the units that stood at the key's last write, as if they had all been charged at that moment.
// What the old algorithm had already let go is not known to the new one, and a sliding window's previous window is not
// carried over: in a stretch of one window around the change as much can pass as the old and the new algorithm each promise,
// added up, and never more. A bucket's fraction of a unit is dropped; between the two buckets it is kept. A log may still hold
// units that have expired, up to as many as stand: they are taken for standing, so that somebody may wait longer than needed.
// Reservations made under another algorithm or Window, or for a bucket another Limit, give nothing back. A counter is kept for as
// long as the policy that wrote it could need it: after a window was lengthened, or a bucket's rate lowered, a sweep may take
// what would still have counted. See [State].
//
// # Operators
//
// Limiter.Operate resets a subject's counter, bans the subject until a time or exempts it until then, and leaves an audit row.
// A ban refuses every cost. An exemption admits every charge, at once, and counts those that fit, so that after it the subject
// waits no longer than one who has just used up the limit.
//
// # Errors
//
// An error that matches [ErrStore] means that no answer came: the charges may have been made or
// not. The request is to be refused, with a 503, not a 429. Where a limit only guards capacity, its
// [Failure] lets a share through without the store; then Decision.Outage says why. Don't retry: the
// first call may have charged. An error that matches the one of the caller's context and not
// ErrStore means that the context has ended; it says nothing of the store, and the charges may have
// been made too. Every other error is a mistake in the call, found before the store was asked:
// nothing was charged. A refusal is no error.
//
// # Stores
//
// [MemoryStore] serves tests and programs that are one process. Package sqlstore keeps counters in SQLite, libSQL or the Turso
// engine, shared by any number of processes. [Shards] spreads subjects over several stores, and says what a decision over several
// of them is: as exact upwards, and not one atomic unit. Package storetest holds the suite that a Store of your own has to pass.
//
// # Stability
//
// Within a major version, what this package and ratehttp export stays: names, signatures, the meaning of fields and of their
// zero values, the sentinel errors, the numbers of Algorithm and SubjectKind (they are in the store), and the promises above.
// The bounds of a policy may widen and don't narrow. Fields, methods of concrete types, constants and errors may be added, so
// write struct literals with field names.
//
// Not promised: the texts of errors, the format of a sealed reservation, and [Store] with its Entry, Row, State, Refund,
// Operation and Swept, which grow with the algorithms. A Store of your own may need work with a minor version; the change log then
// says so. A test compares the exported API with testdata/api.txt, so that no change passes unseen.
package ratelimit
