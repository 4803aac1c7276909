package app

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/weirlimits/weir/lib/partners"
	"github.com/weirlimits/weir/lib/policies"
	"github.com/weirlimits/weir/lib/ratelimit"
)

// builtIn are the limits of the application. Another algorithm is another word: what a key has used stays used. A fixed
// window admits up to twice its limit around an edge, see ratelimit.FixedWindow. RATE_LIMIT_POLICIES replaces a row's figures.
var builtIn = []ratelimit.Policy{
	row("sign-in", ratelimit.FixedWindow, 10, time.Minute, perAddress),
	row("session", ratelimit.FixedWindow, 60, time.Minute, perAddress),
	row(failedSignIns, ratelimit.FixedWindow, 8, 15*time.Minute, perAccount),
	row(failedSignInsOnDevice, ratelimit.FixedWindow, 8, 15*time.Minute, perDevice),
	row("sign-up", ratelimit.FixedWindow, 8, 10*time.Minute, perAddress),
	row("demo-sign-in", ratelimit.FixedWindow, 30, 10*time.Minute, perAddress),
	row("borrow-code", ratelimit.FixedWindow, 12, 10*time.Minute, perAddress),
	row("code-lookup", ratelimit.FixedWindow, 30, time.Minute, perAddress),
	row("username-check", ratelimit.FixedWindow, 60, time.Minute, perAddress),
	row("ai-log", ratelimit.FixedWindow, 200, 10*time.Minute, perMember),
	row("ai-log-read", ratelimit.FixedWindow, 60, time.Minute, perMember),
	row("evaluation", ratelimit.FixedWindow, 40, 10*time.Minute, perMember),
	row("evaluation-read", ratelimit.FixedWindow, 60, time.Minute, perMember),
	row(mailInvite, ratelimit.FixedWindow, 6, 10*time.Minute, perMember),
	row(inviteRecipient, ratelimit.SlidingLog, 3, 24*time.Hour, perRecipient),
	row(resetRecipient, ratelimit.SlidingLog, 3, time.Hour, perRecipient),
	row("otp-send", ratelimit.FixedWindow, 10, time.Hour, perAddress),
	row(sendToPhone, ratelimit.SlidingLog, 3, time.Hour, perPhone),
	row("otp-check", ratelimit.FixedWindow, 30, 15*time.Minute, perAddress),
	// A log, in a time longer than a code lives: around the edge of a fixed window a code could be guessed at twice as often.
	row(wrongCodes, ratelimit.SlidingLog, 5, 15*time.Minute, perPhone),
	outbound(ratelimit.Policy{Name: smsOutbound, Algorithm: ratelimit.LeakyBucket, Limit: 2, Window: time.Second, Queue: 4}),
	row("sandbox-sql", ratelimit.FixedWindow, 30, 10*time.Minute, perMember),
	row(planPolicies[partners.Free], ratelimit.TokenBucket, 100, time.Minute, perKey),
	row(planPolicies[partners.Paid], ratelimit.TokenBucket, 1000, time.Minute, perKey),
	row(edge, ratelimit.FixedWindow, 1000, time.Minute, perAddressAdmitted),
}

// hardened are the limits of SIGN_IN_POLICY=hardened: those that stand in the place of the ones above, and those that are added.
// All are logs, which no edge of a window doubles. Failed sign-ins are a ladder: the more of them there were, the longer until the
// next, and all rungs are decided as one.
var hardened = []ratelimit.Policy{
	row("sign-in", ratelimit.SlidingLog, 50, 15*time.Minute, perAddress),
	row(failedSignIns, ratelimit.SlidingLog, 5, 15*time.Minute, perAccount),
	row(delays[failedSignIns][0], ratelimit.SlidingLog, 4, time.Minute, perAccount),
	row(delays[failedSignIns][1], ratelimit.SlidingLog, 3, 10*time.Second, perAccount),
	row(failedSignInsOnDevice, ratelimit.SlidingLog, 5, 15*time.Minute, perDevice),
	row(delays[failedSignInsOnDevice][0], ratelimit.SlidingLog, 4, time.Minute, perDevice),
	row(delays[failedSignInsOnDevice][1], ratelimit.SlidingLog, 3, 10*time.Second, perDevice),
	row(failedSignInsByCaptcha, ratelimit.SlidingLog, 5, 15*time.Minute, perAccount),
}

// delays are the lower rungs of a ladder, by the policy at its top, longest first.
var delays = map[string][]string{
	failedSignIns:         {failedSignIns + "-delay-2", failedSignIns + "-delay-1"},
	failedSignInsOnDevice: {failedSignInsOnDevice + "-delay-2", failedSignInsOnDevice + "-delay-1"},
}

// edge is the policy of an address over all routes, decided together with each route's own.
const edge = "edge"

// How a row is keyed and counted.
var (
	// perAddress counts every attempt, also one that another limit refuses.
	perAddress = ratelimit.Policy{Subject: ratelimit.Address, Count: ratelimit.EveryAttempt}
	// perAddressAdmitted counts what no other limit refuses, so that a refusal stays without a write.
	// Without the database it leaves the word to the limits beside it.
	perAddressAdmitted = ratelimit.Policy{Subject: ratelimit.Address, Count: ratelimit.Admitted, Failure: ratelimit.Open}
	// perAccount is checked before trying and counts on failure: a sign-in reserves its unit before the password is
	// looked at, and the right one gives it back. It counts names whether they have an account or not.
	perAccount = ratelimit.Policy{Subject: ratelimit.Account, Count: ratelimit.Admitted, Private: true}
	// perDevice is the same for the guesses at an account from a device that signed in to it before, by the device.
	perDevice = ratelimit.Policy{Subject: ratelimit.Opaque, Count: ratelimit.Admitted, Private: true}
	// perMember counts every attempt of whoever is signed in, by the number of the account.
	perMember = ratelimit.Policy{Subject: ratelimit.Opaque, Count: ratelimit.EveryAttempt}
	// perKey counts what the key of a partner admits, by the number of the key, which is never another one's. What it guards is
	// capacity: without the counters partners go on reading, a share of it.
	perKey = ratelimit.Policy{Subject: ratelimit.APIKey, Count: ratelimit.EveryAttempt, Failure: ratelimit.Open}
	// perRecipient counts what was mailed to somebody, whoever had it mailed, by invites.Recipient.Key.
	perRecipient = ratelimit.Policy{Subject: ratelimit.Opaque, Count: ratelimit.Admitted, Private: true}
	// perPhone counts the codes that a phone was sent, whoever asked, and the wrong ones that were tried for it, wherever
	// from and whichever code was the newest: so a new code brings no new guesses.
	perPhone = ratelimit.Policy{Subject: ratelimit.Phone, Count: ratelimit.Admitted, Private: true}
)

// outbound counts what leaves for a service outside, whoever caused it. It has one subject.
func outbound(policy ratelimit.Policy) ratelimit.Policy {
	policy.Subject, policy.Count, policy.Private = ratelimit.Opaque, ratelimit.Admitted, true
	return policy
}

func row(name string, algorithm ratelimit.Algorithm, limit int64, window time.Duration, policy ratelimit.Policy) ratelimit.Policy {
	policy.Name, policy.Algorithm, policy.Limit, policy.Window = name, algorithm, limit, window
	return policy
}

// LoadPolicies reads what LoadSettings reads about the policies and nothing else, for commands that need no more. Its errors
// are as LoadSettings's.
func LoadPolicies(lookup func(string) (string, bool)) (policies.Set, error) {
	e := environment{lookup: lookup}
	set := e.policies(e.hardened("SIGN_IN_POLICY"), e.text("RATE_LIMIT_POLICIES"))
	if err := errors.Join(e.problems...); err != nil {
		return policies.Set{}, err
	}
	return set, nil
}

// loadPolicies gives the application's limits with what RATE_LIMIT_POLICIES says, which may be empty.
func loadPolicies(hard bool, setting string) (policies.Set, error) {
	rows := builtIn
	if hard {
		rows = slices.Concat(slices.DeleteFunc(slices.Clone(builtIn), func(old ratelimit.Policy) bool {
			return slices.ContainsFunc(hardened, func(row ratelimit.Policy) bool { return row.Name == old.Name })
		}), hardened)
	}
	set, err := policies.Of(rows)
	if err != nil || setting == "" {
		return set, err
	}
	if set, err = set.With(setting); err != nil {
		return policies.Set{}, err
	}
	for _, name := range slices.Sorted(maps.Values(planPolicies)) {
		if policy, _ := set.Named(name); policy.Capacity() < searchCost {
			err = errors.Join(err, fmt.Errorf("%w: %s holds %d: a search costs %d", policies.ErrSetting, name, policy.Capacity(), searchCost))
		}
	}
	queue, _ := set.Named(smsOutbound)
	if wait := longestWait(queue); wait > maxSMSWait {
		err = errors.Join(err, fmt.Errorf("%w: %s: the last of a queue of %d waits for %v: allowed are %v",
			policies.ErrSetting, smsOutbound, queue.Queue, wait, maxSMSWait))
	}
	return set, err
}

// longestWait is how long whatever comes last into a full queue waits.
func longestWait(policy ratelimit.Policy) time.Duration {
	if policy.Queue == 0 {
		return 0
	}
	// A policy that is valid has a product of queue and milliseconds within 2⁵⁹.
	return time.Duration(min(policy.Queue*policy.Window.Milliseconds()/policy.Limit, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// policy gives a policy of the application by name. A name that is in no table gives a policy that admits nothing, and that
// every test of its route fails on.
func (a *App) policy(name string) ratelimit.Policy {
	policy, _ := a.policies.Named(name)
	return policy
}

// limits are what a route charges to the address: a policy of its own, and the edge's.
func (a *App) limits(name string) []ratelimit.Policy {
	return []ratelimit.Policy{a.policy(name), a.policy(edge)}
}
