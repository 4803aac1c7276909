package ratehttp

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Field and parameter names of draft-ietf-httpapi-ratelimit-headers-11, and of the three older fields that many clients
// read. The draft is not an RFC and may rename them: they are written here and nowhere else.
const (
	fieldPolicy   = "RateLimit-Policy"
	fieldCurrent  = "RateLimit"
	policyFormat  = `"%s";q=%d;w=%d` // quota, window in seconds
	currentFormat = `"%s";r=%d;t=%d` // remaining, seconds until there is more

	fieldOldLimit     = "RateLimit-Limit"
	fieldOldRemaining = "RateLimit-Remaining"
	fieldOldReset     = "RateLimit-Reset" // seconds from now
)

// Fields names the fields that SetFields sets. Pages of other sites can read them, and Retry-After, only where
// Access-Control-Expose-Headers names them.
func Fields() []string {
	return []string{fieldPolicy, fieldCurrent, fieldOldLimit, fieldOldRemaining, fieldOldReset}
}

// SetFields tells what a decision left, each field once and each policy once: of several limits
// with one name, such as one policy for two subjects, the tightest. The older fields have room for
// one limit: the one with the fewest units left, and of those that refuse and have equally few, the
// one that refuses longest. A private limit shows only in the refusal that it caused. A decision
// without a limit to tell of sets nothing, and neither does one that was made without the store: it
// has no figures. What is told as the quota is Policy.Limit, the units in a window; a bucket that
// holds more than that may have more left.
func SetFields(header http.Header, decision ratelimit.Decision) {
	figuresOf(decision).set(header)
}

// figuresOf returns what the fields tell of a decision.
func figuresOf(decision ratelimit.Decision) figures {
	var out figures
	if decision.Outage != nil {
		return out
	}
	var limits []*ratelimit.LimitResult // one for each name
	var tightest *ratelimit.LimitResult
	all := told(decision)
	for i := range all {
		limit := &all[i]
		same := slices.IndexFunc(limits, func(other *ratelimit.LimitResult) bool { return other.Policy.Name == limit.Policy.Name })
		switch {
		case same < 0:
			limits = append(limits, limit)
		case tighter(limit, limits[same]):
			limits[same] = limit
		}
		if tightest == nil || tighter(limit, tightest) {
			tightest = limit
		}
	}
	for _, limit := range limits {
		name, reset := limit.Policy.Name, resetSeconds(limit) // the name needs no escaping: see ratelimit.Policy
		window := max(roundUp(limit.Policy.Window, time.Second), 1)
		out.policies = append(out.policies, figure{
			name: name, known: true, remaining: limit.Remaining, reset: reset,
			policy:  fmt.Sprintf(policyFormat, name, limit.Policy.Limit, window),
			current: fmt.Sprintf(currentFormat, name, limit.Remaining, reset),
		})
	}
	if tightest != nil {
		out.old = &oldFigures{tightest.Policy.Limit, tightest.Remaining, resetSeconds(tightest)}
	}
	return out
}

// told gives the limits of a decision that its answer may speak of. A private limit shows only in the refusal that it
// caused: not while it allows, and not when a limit that everybody knows of refuses anyway, or else an address that has
// used up its own limit could watch any account at no cost.
func told(decision ratelimit.Decision) []ratelimit.LimitResult {
	refused := slices.ContainsFunc(decision.Limits, func(limit ratelimit.LimitResult) bool {
		return !limit.Allowed && !limit.Policy.Private
	})
	return slices.DeleteFunc(slices.Clone(decision.Limits), func(limit ratelimit.LimitResult) bool {
		return limit.Policy.Private && (limit.Allowed || refused)
	})
}

// retryAfter is the wait until the limits that an answer speaks of would all admit the same request.
func retryAfter(decision ratelimit.Decision) time.Duration {
	limits := told(decision)
	if len(limits) == len(decision.Limits) {
		return decision.RetryAfter
	}
	return decision.RetryAfterOf(func(policy ratelimit.Policy) bool {
		return slices.ContainsFunc(limits, func(limit ratelimit.LimitResult) bool { return limit.Policy == policy })
	})
}

func tighter(a, b *ratelimit.LimitResult) bool {
	switch {
	case a.Remaining != b.Remaining:
		return a.Remaining < b.Remaining
	case a.Allowed != b.Allowed:
		return b.Allowed
	}
	return resetSeconds(a) > resetSeconds(b)
}

// resetSeconds is the time until a limit has more units; when it refused, until it would not.
func resetSeconds(limit *ratelimit.LimitResult) int64 {
	if !limit.Allowed {
		return seconds(limit.RetryAfter)
	}
	return seconds(limit.Reset)
}

// maxSeconds bounds each wait that an answer tells: 68 years, the most that clients with timers of
// 32 bits can hold.
const maxSeconds = 1<<31 - 1

// seconds returns a wait in whole seconds, rounded up, so that waiting as long as told is enough:
// from 1, so that no client comes back at once, to maxSeconds.
func seconds(d time.Duration) int64 {
	return min(max(roundUp(d, time.Second), 1), maxSeconds)
}

// roundUp divides without the sum that could overflow.
func roundUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
