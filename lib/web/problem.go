package web

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// unavailableSeconds is how long a client is asked to wait when the service can't answer: a restart or a failover of a
// database takes a few seconds.
const unavailableSeconds = 5

// maxSeconds bounds each wait that an answer tells: the most that clients with timers of 32 bits
// can hold.
const maxSeconds = 1<<31 - 1

// Problem is an error that a client is told of, in the form of RFC 9457. An operation returns it, wrapped or not. What is
// in it goes out as it stands, so it holds no text of a driver, path or token.
type Problem struct {
	Type   string `json:"type"`            // empty: "about:blank"
	Title  string `json:"title"`           // empty: the status in words
	Status int    `json:"status"`          // 0: 500
	Detail string `json:"detail"`          // a sentence for a person
	Field  string `json:"field,omitempty"` // of the input, when one is at fault

	// Limit and ViolatedPolicies tell what refused, and Plan whose plan's limit it is; RetryAfterSeconds becomes the field
	// Retry-After too. For a 429 it is 1 at least, for a 503 5 when not set.
	ViolatedPolicies  []string `json:"violated-policies,omitempty"`
	Limit             int64    `json:"limit,omitzero"`
	Plan              string   `json:"plan,omitempty"`
	RetryAfterSeconds int64    `json:"retryAfterSeconds,omitzero"`

	// Captcha tells that the same request is looked at with a token of this CAPTCHA.
	Captcha *Captcha `json:"captcha,omitempty"`

	// Challenge becomes the field WWW-Authenticate: how to prove who one is (RFC 9110, section 11.6.1).
	Challenge string `json:"-"`
}

// Captcha is what a client needs to show one: whose it is, and the public key of the site there.
type Captcha struct {
	Provider string `json:"provider"`
	SiteKey  string `json:"siteKey"`
}

// Error implements error. The text is for a log, not for a client.
func (p *Problem) Error() string {
	return fmt.Sprintf("web: problem %d: %s", p.Status, p.Detail)
}

// BadRequest is a 400: the request can't be read. The field may be empty.
func BadRequest(field, detail string) *Problem {
	return &Problem{Status: http.StatusBadRequest, Field: field, Detail: detail}
}

// Unauthorized is a 401: whoever asks is not signed in, or the proof is wrong.
func Unauthorized(detail string) *Problem {
	return &Problem{Status: http.StatusUnauthorized, Detail: detail}
}

// Forbidden is a 403: whoever asks is known, and may not.
func Forbidden(detail string) *Problem {
	return &Problem{Status: http.StatusForbidden, Detail: detail}
}

// NotFound is a 404.
func NotFound(detail string) *Problem {
	return &Problem{Status: http.StatusNotFound, Detail: detail}
}

// Conflict is a 409: the request doesn't go with how things stand, such as a name that is taken. The field may be empty.
func Conflict(field, detail string) *Problem {
	return &Problem{Status: http.StatusConflict, Field: field, Detail: detail}
}

// Unprocessable is a 422: the request can be read, and what it says is not acceptable. The field may be empty.
func Unprocessable(field, detail string) *Problem {
	return &Problem{Status: http.StatusUnprocessableEntity, Field: field, Detail: detail}
}

// Unavailable marks an error of an operation as the failure of something that it needs, such as its database: the client
// is told 503 and to come back, the log gets the error. An error that matches ratelimit.ErrStore needs no mark.
func Unavailable(err error) error {
	return &unavailable{err}
}

type unavailable struct{ err error }

func (u *unavailable) Error() string { return u.err.Error() }
func (u *unavailable) Unwrap() error { return u.err }

// unconfigured marks a setting that is missing or wrong.
type unconfigured struct{ err error }

func (u *unconfigured) Error() string { return u.err.Error() }
func (u *unconfigured) Unwrap() error { return u.err }

// panicked is what is kept of a panic: the type of its value, not the value.
type panicked struct{ kind, stack string }

func (p *panicked) Error() string { return "web: panic with a value of type " + p.kind }

// errNoAddress means that a request can't be counted, because nothing that can be believed says where it came from. Such
// requests are refused: a counter shared by all of them would let one caller lock out the others, and none would be no
// limit.
var errNoAddress = errors.New("web: no client address")

// problemAnswer encodes a problem, its defaults filled in.
func problemAnswer(header http.Header, problem *Problem) answer {
	full := *problem
	if full.Status == 0 {
		full.Status = http.StatusInternalServerError
	}
	if full.Type == "" {
		full.Type = "about:blank"
	}
	if full.Title == "" {
		full.Title = http.StatusText(full.Status)
	}
	switch full.Status {
	case http.StatusTooManyRequests:
		full.RetryAfterSeconds = min(max(full.RetryAfterSeconds, 1), maxSeconds)
	case http.StatusServiceUnavailable:
		if full.RetryAfterSeconds < 1 {
			full.RetryAfterSeconds = unavailableSeconds
		}
		full.RetryAfterSeconds = min(full.RetryAfterSeconds, maxSeconds)
	default:
		full.RetryAfterSeconds = 0
	}
	ratehttp.ProblemFields(header)
	if full.Challenge != "" {
		header.Set("WWW-Authenticate", full.Challenge)
	}
	if full.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.FormatInt(full.RetryAfterSeconds, 10))
	}
	body, err := encode(full)
	if err != nil { // strings and numbers always encode
		body = nil
	}
	return answer{status: full.Status, body: body, violated: full.ViolatedPolicies}
}
