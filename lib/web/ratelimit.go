package web

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// What a limit says over HTTP is written in package ratehttp, for these handlers and any others.

func rateLimitFields() []string { return ratehttp.Fields() }

func setRateLimit(header http.Header, decision ratelimit.Decision) {
	ratehttp.SetFields(header, decision)
}

// TooManyRequests is a 429 that an operation gives by itself, in the form of those of limits: what the policy admits is not to be
// had as the request is. Wait is when it may be.
func TooManyRequests(policy ratelimit.Policy, wait time.Duration, detail string) *Problem {
	problem := ratehttp.Refusal(ratelimit.Decision{
		RetryAfter: wait,
		Limits:     []ratelimit.LimitResult{{Policy: policy, RetryAfter: wait}},
	})
	return &Problem{
		Type:              problem.Type,
		Status:            problem.Status,
		Detail:            detail,
		ViolatedPolicies:  problem.ViolatedPolicies,
		Limit:             problem.Limit,
		RetryAfterSeconds: problem.RetryAfterSeconds,
	}
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
			if banned(decision, policy) { // which is no plan's
				break
			}
			problem.Detail += fmt.Sprintf(" This is the limit of the plan %q.", plan)
			break
		}
	}
	return problem
}

// banned reports whether an operator has banned the subject of a policy.
func banned(decision ratelimit.Decision, policy string) bool {
	return slices.ContainsFunc(decision.Limits, func(limit ratelimit.LimitResult) bool {
		return limit.Policy.Name == policy && !limit.BannedUntil.IsZero()
	})
}
