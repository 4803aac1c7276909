package ratehttp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
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
	// RetryAfterSeconds becomes the field Retry-After too; 0 tells nothing.
	RetryAfterSeconds int64 `json:"retryAfterSeconds,omitzero"`
}

// Error implements error. The text is for a log, not for a client.
func (p *Problem) Error() string {
	return fmt.Sprintf("ratehttp: problem %d: %s", p.Status, p.Detail)
}

// Write answers with the problem. The RateLimit fields that are set stay.
func (p *Problem) Write(w http.ResponseWriter) {
	full := *p
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
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Del("Content-Length")
	if full.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.FormatInt(full.RetryAfterSeconds, 10))
	}
	w.WriteHeader(full.Status)
	w.Write(body) // an error means that the client has gone
}

// Refusal is the 429 of a decision that is not allowed. It names the limits that refused and no other, no private one
// beside one that everybody knows of; the sentence is about the one that refuses longest.
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
		problem.ViolatedPolicies = append(problem.ViolatedPolicies, limit.Policy.Name)
		if limit.RetryAfter > longest.RetryAfter {
			longest = limit
		}
	}
	problem.Limit = longest.Policy.Limit
	problem.Detail = fmt.Sprintf("Too many requests. The limit %q allows %d in %s. Please try again in %s.",
		longest.Policy.Name, longest.Policy.Limit, exactly(longest.Policy.Window),
		roughly(time.Duration(problem.RetryAfterSeconds)*time.Second))
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
