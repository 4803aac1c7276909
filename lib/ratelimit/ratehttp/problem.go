package ratehttp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// quotaExceeded is the problem type of a refusal, from draft-ietf-httpapi-ratelimit-headers-11.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// unavailableSeconds is how long a client is asked to wait when the store doesn't answer: a restart or a failover of a
// database takes a few seconds.
const unavailableSeconds = 5

// Problem is an error that a client is told of, in the form of RFC 9457. What is in it goes out as it stands.
type Problem struct {
	Type   string `json:"type"`   // empty: "about:blank"
	Title  string `json:"title"`  // empty: the status in words
	Status int    `json:"status"` // 400 to 599; others stand for 500
	Detail string `json:"detail"` // a sentence for a person

	ViolatedPolicies []string `json:"violated-policies,omitempty"` // names of the limits that refused
	Limit            int64    `json:"limit,omitzero"`              // units in the window of the one that refuses longest
	// RetryAfterSeconds becomes the field Retry-After too, 2³¹ − 1 at the most; 0 tells nothing.
	RetryAfterSeconds int64 `json:"retryAfterSeconds,omitzero"`
}

// Error implements error. The text is for a log, not for a client.
func (p *Problem) Error() string {
	return fmt.Sprintf("ratehttp: problem %d: %s", p.Status, p.Detail)
}

// Write answers with the problem. Of the fields that are set already, those that describe another
// representation go, as ProblemFields says; the others stay, such as the RateLimit fields and those
// of CORS.
func (p *Problem) Write(w http.ResponseWriter) {
	full := *p
	full.RetryAfterSeconds = min(full.RetryAfterSeconds, maxSeconds)
	if full.Status < 400 || full.Status > 599 { // no error; and net/http panics on some
		full.Status = http.StatusInternalServerError
	}
	if full.Type == "" {
		full.Type = "about:blank"
	}
	if full.Title == "" {
		full.Title = http.StatusText(full.Status)
	}
	body, err := json.Marshal(full)
	if err != nil { // strings and numbers always encode
		body = nil
	}
	header := w.Header()
	ProblemFields(header)
	if full.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.FormatInt(full.RetryAfterSeconds, 10))
	}
	w.WriteHeader(full.Status)
	w.Write(body) // an error means that the client has gone
}

// ProblemFields prepares the header of an answer whose body is a problem document. It removes the
// fields of the representation that the problem replaces, and Retry-After; sets Content-Type; and
// has no cache keep the answer, also none that follows a field of its own (RFC 9213) rather than
// Cache-Control.
func ProblemFields(header http.Header) {
	for name := range header {
		if replaced(name) {
			delete(header, name)
		}
	}
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
}

// replacedFields describe a representation, or one cache's copy of it, besides those whose names
// begin with "Content-": its validators and dates (RFC 9110, sections 8.8 and 10.2; RFC 9111,
// section 5; RFC 7089), digests (RFC 9530, RFC 3230), ranges, links (RFC 8288), trailers, where
// else to find it, and what proxies make of an answer in its place.
var replacedFields = map[string]bool{
	"accept-ranges": true, "age": true, "delta-base": true, "digest": true, "etag": true, "expires": true, "im": true,
	"last-modified": true, "link": true, "location": true, "memento-datetime": true, "refresh": true, "repr-digest": true,
	"retry-after": true, "sourcemap": true, "trailer": true,
	"edge-control": true, "surrogate-control": true, // of caches, older than RFC 9213
	"x-accel-expires": true, "x-accel-redirect": true, "x-sendfile": true, "x-sourcemap": true,
}

// replaced reports whether a field must not be inherited by a problem. The names of targeted cache
// fields end in "-Cache-Control".
func replaced(name string) bool {
	name = strings.ToLower(name)
	switch {
	case strings.HasPrefix(name, "content-"):
		return !strings.HasPrefix(name, "content-security-policy")
	case strings.HasPrefix(name, strings.ToLower(http.TrailerPrefix)):
		return true
	}
	return replacedFields[name] || strings.HasSuffix(name, "-cache-control")
}

// Refusal is the 429 of a decision that is not allowed. It names the limits that refused, each
// once, and no other, no private one beside one that everybody knows of. The sentence is about the
// one that refuses longest, or else about the ban that ends last.
func Refusal(decision ratelimit.Decision) *Problem {
	problem := &Problem{
		Type:              quotaExceeded,
		Status:            http.StatusTooManyRequests,
		RetryAfterSeconds: seconds(retryAfter(decision)),
	}
	var longest ratelimit.LimitResult
	for _, limit := range told(decision) {
		if limit.Allowed {
			continue
		}
		if !slices.Contains(problem.ViolatedPolicies, limit.Policy.Name) {
			problem.ViolatedPolicies = append(problem.ViolatedPolicies, limit.Policy.Name)
		}
		if later := limit.BannedUntil.Compare(longest.BannedUntil); later > 0 || later == 0 && limit.RetryAfter > longest.RetryAfter {
			longest = limit
		}
	}
	problem.Limit = longest.Policy.Limit
	wait := roughly(time.Duration(problem.RetryAfterSeconds) * time.Second)
	if until := longest.BannedUntil; !until.IsZero() {
		until = until.Add(time.Second - 1).Truncate(time.Second) // never told as earlier than it is
		problem.Detail = fmt.Sprintf("These requests are blocked until %s by the operator of this service, whatever the limit %q allows. "+
			"Please try again in %s.", until.UTC().Format(time.RFC3339), longest.Policy.Name, wait)
		return problem
	}
	problem.Detail = fmt.Sprintf("Too many requests. The limit %q allows %d in %s. Please try again in %s.",
		longest.Policy.Name, longest.Policy.Limit, exactly(longest.Policy.Window), wait)
	return problem
}

// units are the words for durations, the largest first.
var units = []struct {
	name string
	size time.Duration
}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}}

// exactly tells whole milliseconds in the largest unit that needs no rounding: "1 minute", "90 seconds",
// "500 milliseconds".
func exactly(d time.Duration) string {
	for _, unit := range units {
		if d%unit.size == 0 {
			return count(int64(d/unit.size), unit.name)
		}
	}
	return count(d.Milliseconds(), "millisecond")
}

// roughly rounds up, in the largest unit of which there are at least two, or else "1 second": "37 seconds",
// "90 seconds", "12 minutes".
func roughly(d time.Duration) string {
	for _, unit := range units {
		if d >= 2*unit.size {
			return count(roundUp(d, unit.size), unit.name)
		}
	}
	return count(1, "second")
}

func count(n int64, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}
