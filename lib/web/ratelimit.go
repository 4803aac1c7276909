package web

import (
	"fmt"
	"net/http"
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

func rateLimitFields() []string {
	return []string{fieldPolicy, fieldCurrent, fieldOldLimit, fieldOldRemaining, fieldOldReset}
}

// setRateLimit tells what a decision left. A private limit shows only when it refuses. The older fields have room for one
// limit: the one with the fewest units left, and of those that refuse and have equally few, the one that refuses longest.
// A decision without visible limits sets nothing. Policy names need no escaping: see ratelimit.Policy.
func setRateLimit(header http.Header, decision ratelimit.Decision) {
	var policies, current []string
	var tightest *ratelimit.LimitResult
	for i := range decision.Limits {
		limit := &decision.Limits[i]
		if limit.Policy.Private && limit.Allowed {
			continue
		}
		name := limit.Policy.Name
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
