package web

import (
	"fmt"
	"net/http"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// What a limit says over HTTP is written in package ratehttp, for these handlers and any others.

func rateLimitFields() []string { return ratehttp.Fields() }

func setRateLimit(header http.Header, decision ratelimit.Decision) {
	ratehttp.SetFields(header, decision)
}

// refusal is the problem of a decision that is not allowed.
func (w *Web) refusal(decision ratelimit.Decision) *Problem {
	refused := ratehttp.Refusal(decision)
	problem := &Problem{
		Type:              refused.Type,
		Status:            refused.Status,
		Detail:            refused.Detail,
		ViolatedPolicies:  refused.ViolatedPolicies,
		Limit:             refused.Limit,
		RetryAfterSeconds: refused.RetryAfterSeconds,
	}
	for _, policy := range refused.ViolatedPolicies {
		if plan, found := w.cfg.Plans[policy]; found {
			problem.Plan = plan
			problem.Detail += fmt.Sprintf(" This is the limit of the plan %q.", plan)
			break
		}
	}
	return problem
}
