// Command firewall prints the commands of Vercel's CLI that put coarse limits for each client address in front of the
// functions, made from the table of policies that the functions decide by.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/policies"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/firewall [-plan hobby|pro|enterprise] [-edit]

prints commands of Vercel's CLI, and runs none of them. They stage rate limits for each client address in Vercel's
Firewall, which count at the edge before a function runs, and publish them.

  -plan   the Vercel plan, hobby when left out. Hobby has one rule: the policy edge over the functions. pro and enterprise
          add one for each policy that counts by address, at twice its figure
  -edit   change rules that are there, after a policy was changed, instead of adding them

Of the environment SIGN_IN_POLICY and RATE_LIMIT_POLICIES alone are read: where production chooses or replaces figures, set them
to the same. Exit codes of the built program: 0 done, 1 a setting is wrong, 2 wrong usage. go run turns every code but 0 into 1.
`

func main() { os.Exit(run(os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)) }

// run is the command without the process around it. It returns the exit code.
func run(args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("firewall", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	name := flags.String("plan", "hobby", "")
	edit := flags.Bool("edit", false, "")
	err := flags.Parse(args)
	plan, known := plans[*name]
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case err == nil && !known:
		err = fmt.Errorf("-plan is %q: allowed are hobby, pro and enterprise", *name)
	}
	if err != nil {
		fmt.Fprintf(stderr, "firewall: %v\n%s", err, usage)
		return command.WrongUsage
	}
	set, err := app.LoadPolicies(lookup)
	if err != nil {
		fmt.Fprintf(stderr, "firewall: %v\n", err)
		return command.Failed
	}
	rules, err := plan.rules(set)
	if err != nil {
		fmt.Fprintf(stderr, "firewall: %v\n", err)
		return command.Failed
	}
	print(stdout, rules, *edit)
	return 0
}

// plan is what Vercel lets a plan have (vercel.com/docs/vercel-firewall/vercel-waf/rate-limiting).
type plan struct {
	// longest is the longest window. The shortest is minWindow on every plan.
	longest time.Duration
	// most is how many rules with a rate limit a project may have.
	most int
}

var plans = map[string]plan{
	"hobby":      {longest: 10 * time.Minute, most: 1},
	"pro":        {longest: 10 * time.Minute, most: 40},
	"enterprise": {longest: time.Hour, most: 1000},
}

// What a rule may say on every plan, by the CLI's own checks.
const (
	minWindow   = 10 * time.Second
	maxRequests = 10_000_000
)

// edge is the policy of an address over all routes. What it doesn't count inside, the rule leaves out: services ask
// /api/limits as often as they like, all from the address of their backend.
var edge = target{policy: "edge", path: "/api/", but: "/api/limits"}

// others are the routes that have a policy by address of their own.
var others = []target{
	{policy: "sign-in", path: "/api/sign-in", methods: []string{"POST"}},
	{policy: "session", path: "/api/sign-in", methods: []string{"GET", "DELETE", "PUT", "PATCH"}},
	{policy: "sign-up", path: "/api/sign-up", methods: []string{"POST"}},
	{policy: "demo-sign-in", path: "/api/demo-sign-in", methods: []string{"POST"}},
	{policy: "borrow-code", path: "/api/codes", methods: []string{"POST"}},
	{policy: "code-lookup", path: "/api/codes", methods: []string{"GET"}},
	{policy: "username-check", path: "/api/usernames", methods: []string{"GET"}},
	{policy: "otp-send", path: "/api/otp", methods: []string{"POST"}},
	{policy: "otp-check", path: "/api/otp", methods: []string{"PUT"}},
}

// target is what a policy is charged for: requests whose path begins with path, but not with but, by methods; all methods
// where none is named.
type target struct {
	policy, path, but string
	methods           []string
}

// rule is one of the firewall.
type rule struct {
	target
	requests, seconds int64
}

// rules gives what the plan has room for. The rule of the policy edge has that policy's figures: who meets it is no ordinary
// client. The others have twice theirs: people meet those policies, and should then get the refusal from inside, which tells
// how long to wait. A rule's window isn't aligned to the clock's, and so can see what two of the policy's admit.
func (p plan) rules(set policies.Set) ([]rule, error) {
	targets := append([]target{edge}, others...)
	var rules []rule
	for _, target := range targets[:min(p.most, len(targets))] {
		policy, found := set.Named(target.policy)
		if !found {
			return nil, fmt.Errorf("there is no policy %s", target.policy)
		}
		limit := policy.Limit
		if policy.Algorithm == ratelimit.TokenBucket {
			limit += policy.Capacity() // a full one admits its burst besides
		}
		if target.policy != edge.policy {
			limit *= 2
		}
		// Too short a window becomes several of them, too long a one is cut: so the rule refuses later than the policy.
		window, times := policy.Window, int64(1)
		if window < minWindow {
			times = int64((minWindow + window - 1) / window)
		}
		window = min(window*time.Duration(times), p.longest)
		rules = append(rules, rule{target, min(min(limit, maxRequests)*times, maxRequests), int64(window / time.Second)})
	}
	return rules, nil
}

// conditions are the rule's as the CLI reads them.
func (r rule) conditions() []string {
	conditions := []string{fmt.Sprintf(`{"type":"path","op":"pre","value":"%s"}`, r.path)}
	if r.but != "" {
		conditions = append(conditions, fmt.Sprintf(`{"type":"path","op":"pre","value":"%s","neg":true}`, r.but))
	}
	if r.methods != nil {
		conditions = append(conditions, fmt.Sprintf(`{"type":"method","op":"inc","value":["%s"]}`, strings.Join(r.methods, `","`)))
	}
	return conditions
}

// print writes a script for a shell.
func print(out io.Writer, rules []rule, edit bool) {
	fmt.Fprint(out, `# Rate limits for each client address in Vercel's Firewall, in front of the functions. To be run in the project's
# folder, after vercel login and vercel link, with the CLI 60.1.3. They are one draft until the last command publishes it.
`)
	verb := "add"
	if edit {
		verb = "edit"
	}
	for _, r := range rules {
		fmt.Fprintf(out, "\n# The policy %s.\nvercel firewall rules %s 'weir %s' \\\n", r.policy, verb, r.policy)
		for _, condition := range r.conditions() {
			fmt.Fprintf(out, "  --condition '%s' \\\n", condition)
		}
		fmt.Fprintf(out, "  --action rate_limit --rate-limit-algo fixed_window --rate-limit-window %d --rate-limit-requests %d \\\n", r.seconds, r.requests)
		fmt.Fprint(out, "  --rate-limit-keys ip --rate-limit-action rate_limit --yes\n")
	}
	fmt.Fprint(out, `
# What is about to change, with what else is staged; then all of it goes live.
vercel firewall diff
vercel firewall publish --yes

# What these rules can't do, so that the limits inside stay in force:
# - They count in each region by itself: a client that reaches several has the limit in each.
# - They count whole requests in fixed windows that aren't the clock's, refused ones too, so one may refuse a client whom the
#   policy inside still admits, until its window is over.
# - They know addresses, and neither accounts, members, API keys, costs nor right and wrong passwords.
# - A partner that calls from one address has the rule's figure there, whatever the plan of its key allows.
# - Their 429 has no RateLimit fields, no problem details and no CORS fields: a page of another site sees a network error.
# - They leave out /api/limits, which services ask from one address: its bearer token guards it.
`)
}
