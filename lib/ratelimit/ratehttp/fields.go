package ratehttp

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
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

// SetFields tells what a decision left, each field once. The older fields have room for one limit: the one with the fewest
// units left, and of those that refuse and have equally few, the one that refuses longest. A private limit shows only in
// the refusal that it caused. A decision without a limit to tell of sets nothing, and neither does one that was made without the
// store: it has no figures. What is told as the quota is Policy.Limit,
// the units in a window; a bucket that holds more than that may have more left.
func SetFields(header http.Header, decision ratelimit.Decision) {
	var policies, current []string
	var tightest *ratelimit.LimitResult
	if decision.Outage != nil {
		return
	}
	limits := told(decision)
	for i := range limits {
		limit := &limits[i]
		name := limit.Policy.Name // needs no escaping: see ratelimit.Policy
		policies = append(policies, fmt.Sprintf(policyFormat, name, limit.Policy.Limit, seconds(limit.Policy.Window)))
		current = append(current, fmt.Sprintf(currentFormat, name, limit.Remaining, resetSeconds(limit)))
		if tightest == nil || tighter(limit, tightest) {
			tightest = limit
		}
	}
	if tightest == nil {
		return
	}
	header.Set(fieldPolicy, strings.Join(policies, ", "))
	header.Set(fieldCurrent, strings.Join(current, ", "))
	header.Set(fieldOldLimit, strconv.FormatInt(tightest.Policy.Limit, 10))
	header.Set(fieldOldRemaining, strconv.FormatInt(tightest.Remaining, 10))
	header.Set(fieldOldReset, strconv.FormatInt(resetSeconds(tightest), 10))
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

// seconds rounds up, so that waiting as long as told is enough, and gives 1 at least, so that nobody comes back at once.
func seconds(d time.Duration) int64 {
	return max(roundUp(d, time.Second), 1)
}

// roundUp divides without the sum that could overflow.
func roundUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
