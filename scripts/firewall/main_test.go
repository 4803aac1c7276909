package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/testkit/databases"
	"github.com/weirlimits/weir/lib/testkit/vercel"
	"github.com/weirlimits/weir/scripts/internal/command"
)

// only is an environment of one variable.
func only(variable, value string) func(string) (string, bool) {
	return func(name string) (string, bool) { return value, name == variable }
}

// firewall runs the command in this process.
func firewall(setting string, args ...string) (code int, stdout, stderr string) {
	var out, problems bytes.Buffer
	code = run(args, only("RATE_LIMIT_POLICIES", setting), &out, &problems)
	return code, out.String(), problems.String()
}

// asked is what the CLI asks of Vercel's API to make of a rule.
type asked struct {
	Action string
	ID     string
	Value  struct {
		Name           string
		Active         bool
		ConditionGroup []struct{ Conditions []condition }
		Action         struct{ Mitigate mitigation }
	}
}

type condition struct {
	Type, Op string
	Value    any
	Neg      bool
}

type mitigation struct {
	Action    string
	RateLimit struct {
		Algo          string
		Window, Limit int64
		Keys          []string
		Action        string
	}
}

// fakeAPI answers as much of Vercel's API as the CLI needs, and keeps what it is asked to stage and to publish.
type fakeAPI struct {
	mu        sync.Mutex
	staged    []asked
	published int
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	answer := `{}`
	switch path := r.URL.Path; {
	case path == "/v2/user":
		answer = `{"user": {"id": "u", "username": "u", "email": "u@example.org", "defaultTeamId": "team_local", "version": "northstar"}}`
	case path == "/teams/team_local":
		answer = `{"id": "team_local", "slug": "team", "name": "team"}`
	case path == "/v9/projects/prj_local":
		answer = `{"id": "prj_local", "name": "weir", "accountId": "team_local"}`
	case r.Method == http.MethodPatch && path == "/v1/security/firewall/config/draft":
		var a asked
		if err := json.Unmarshal(body, &a); err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
		f.staged = append(f.staged, a)
	case r.Method == http.MethodPost && path == "/v1/security/firewall/config/draft/activate":
		f.published++
	case path == "/v1/security/firewall/config":
		type ruleThere struct {
			ID     string `json:"id"`
			Name   string `json:"name"`
			Active bool   `json:"active"`
			Action any    `json:"action"`
			Groups []any  `json:"conditionGroup"`
		}
		mitigate := map[string]any{"mitigate": map[string]any{"action": "log"}}
		there := []ruleThere{}
		for _, target := range append([]target{edge}, others...) {
			there = append(there, ruleThere{ID: "rule_" + target.policy, Name: "weir " + target.policy, Action: mitigate, Groups: []any{}})
		}
		rules, _ := json.Marshal(there)
		answer = fmt.Sprintf(`{"active": {"rules": %s}, "draft": {"rules": %[1]s, "changes": [{"action": "rules.remove", "id": "rule_x", "value": null}]}, "versions": []}`, rules)
	default:
		w.WriteHeader(http.StatusNotFound)
		answer = fmt.Sprintf(`{"error": {"code": "not_found", "message": "%s %s is not known to the test"}}`, r.Method, path)
	}
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, answer)
}

// play runs a script of the command with the real CLI.
func play(t *testing.T, script string) *fakeAPI {
	t.Helper()
	api := &fakeAPI{}
	server := httptest.NewServer(api)
	defer server.Close()
	if out, err := vercel.Shell(t, server.URL, script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return api
}

// Row B7: the CLI itself reads what is printed, and asks Vercel's API for the rules.
func TestTheCLIStagesAndPublishesWhatIsPrinted(t *testing.T) {
	vercel.Require(t)
	for name, want := range map[string]int{"hobby": 1, "pro": 1 + len(others)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, script, stderr := firewall("", "-plan", name)
			if code != 0 || stderr != "" {
				t.Fatalf("got code %d, %q", code, stderr)
			}
			api := play(t, script)
			if len(api.staged) != want || api.published != 1 {
				t.Fatalf("staged %+v, published %d times; want %d rules, once", api.staged, api.published, want)
			}
			first := api.staged[0]
			limit := first.Value.Action.Mitigate.RateLimit
			conditions := first.Value.ConditionGroup[0].Conditions
			switch {
			case first.Action != "rules.insert" || first.Value.Name != "weir edge" || !first.Value.Active:
				t.Errorf("got %+v", first)
			case first.Value.Action.Mitigate.Action != "rate_limit" || limit.Algo != "fixed_window" || limit.Action != "rate_limit":
				t.Errorf("got %+v", first)
			case limit.Window != 60 || limit.Limit != 1000 || !slices.Equal(limit.Keys, []string{"ip"}):
				t.Errorf("got %+v, want 1,000 in 60 seconds for each ip", limit)
			case !slices.Equal(conditions, []condition{{"path", "pre", "/api/", false}, {"path", "pre", "/api/limits", true}}):
				t.Errorf("got %+v", conditions)
			}
		})
	}
}

func TestRulesThatAreThereAreEdited(t *testing.T) {
	vercel.Require(t)
	_, script, _ := firewall(`[{"name":"edge","algorithm":"sliding-window","limit":500,"window":"30s"}]`, "-edit")
	api := play(t, script)
	if len(api.staged) != 1 || api.staged[0].Action != "rules.update" || api.staged[0].ID != "rule_edge" || api.published != 1 {
		t.Fatalf("staged %+v, published %d times", api.staged, api.published)
	}
	if limit := api.staged[0].Value.Action.Mitigate.RateLimit; limit.Window != 30 || limit.Limit != 500 {
		t.Errorf("got %+v, want 500 in 30 seconds", limit)
	}
}

func TestTheCLIRefusesAFlagThatItDoesNotKnow(t *testing.T) {
	_, script, _ := firewall("")
	api := httptest.NewServer(&fakeAPI{})
	defer api.Close()
	out, err := vercel.Shell(t, api.URL, strings.Replace(script, "--rate-limit-window 60", "--rate-limit-windows 60", 1)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--rate-limit-windows") {
		t.Errorf("got %v: %s", err, out)
	}
}

func TestEveryRuleIsWithinItsPlanAndNoTighterThanItsPolicy(t *testing.T) {
	row := `{"name":"edge","algorithm":"%s","limit":%d,"window":"%s"%s}`
	for _, c := range []struct {
		algorithm string
		limit     int64
		window    string
		more      string
		plan      string
		want      rule
	}{
		{"fixed-window", 1000, "1m", "", "hobby", rule{requests: 1000, seconds: 60}},
		{"sliding-log", 1000, "1m", "", "pro", rule{requests: 1000, seconds: 60}},
		{"token-bucket", 1000, "1m", "", "pro", rule{requests: 2000, seconds: 60}},
		{"token-bucket", 1000, "1m", `,"burst":50`, "pro", rule{requests: 1050, seconds: 60}},
		{"fixed-window", 1000, "2h", "", "hobby", rule{requests: 1000, seconds: 600}},
		{"fixed-window", 1000, "30m", "", "pro", rule{requests: 1000, seconds: 600}},
		{"fixed-window", 1000, "30m", "", "enterprise", rule{requests: 1000, seconds: 1800}},
		{"fixed-window", 1000, "2h", "", "enterprise", rule{requests: 1000, seconds: 3600}},
		{"fixed-window", 20, "1s", "", "hobby", rule{requests: 200, seconds: 10}},
		{"fixed-window", 20, "1500ms", "", "hobby", rule{requests: 140, seconds: 10}}, // seven windows are 10.5 s
		{"fixed-window", 20, "10500ms", "", "hobby", rule{requests: 20, seconds: 10}},
		{"fixed-window", ratelimit.MaxLimit, "1ms", "", "hobby", rule{requests: maxRequests, seconds: 10}},
	} {
		setting := "[" + fmt.Sprintf(row, c.algorithm, c.limit, c.window, c.more) + "]"
		set, err := app.LoadPolicies(only("RATE_LIMIT_POLICIES", setting))
		if err != nil {
			t.Fatal(err)
		}
		rules, err := plans[c.plan].rules(set)
		if err != nil || len(rules) == 0 || rules[0].requests != c.want.requests || rules[0].seconds != c.want.seconds {
			t.Errorf("%s on %s: got %+v, %v; want %+v", setting, c.plan, rules, err, c.want)
		}
	}
	for name, plan := range plans {
		set, err := app.LoadPolicies(func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		rules, err := plan.rules(set)
		if err != nil || len(rules) > plan.most {
			t.Errorf("%s: %d rules, %v", name, len(rules), err)
		}
		for _, r := range rules {
			if r.requests < 1 || r.requests > maxRequests || r.seconds < 10 || time.Duration(r.seconds)*time.Second > plan.longest {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}

// Row B7: the rules are about what the functions charge, as their own answers tell.
func TestEveryPolicyByAddressHasARuleAndEveryRuleIsOfWhatIsCharged(t *testing.T) {
	set, err := app.LoadPolicies(func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range set.All() {
		covered := slices.ContainsFunc(append([]target{edge}, others...), func(t target) bool { return t.policy == policy.Name })
		if byAddress := policy.Subject == ratelimit.Address; byAddress != covered {
			t.Errorf("the policy %s: by address %t, has a rule %t", policy.Name, byAddress, covered)
		}
	}
	a, err := app.New(databases.File(t), app.Settings{Secret: bytes.Repeat([]byte("x"), 32), StoreDeadline: time.Minute}, app.Config{})
	if err != nil {
		t.Fatal(err)
	}
	charged := func(method, path string) string {
		r := httptest.NewRequest(method, path, strings.NewReader("{"))
		r.RemoteAddr = "192.0.2.1:1"
		w := httptest.NewRecorder()
		a.Handler(strings.TrimPrefix(path, "/api/")).ServeHTTP(w, r)
		return w.Header().Get("Ratelimit-Policy")
	}
	for _, target := range others {
		for _, method := range target.methods {
			if got := charged(method, target.path); !strings.Contains(got, `"`+target.policy+`"`) {
				t.Errorf("%s %s is charged to %s, not to %s", method, target.path, got, target.policy)
			}
		}
	}
	for _, route := range app.Routes() {
		for _, method := range []string{"GET", "POST"} {
			got := charged(method, "/api/"+route)
			if leftOut := "/api/"+route == edge.but; got != "" && leftOut || leftOut == strings.Contains(got, `"edge"`) && got != "" {
				t.Errorf("%s /api/%s is charged to %q; left out of the rule: %t", method, route, got, leftOut)
			}
		}
	}
}

// Row D2: the rules follow the limits of sign-in that are chosen. The longest window of the plan is shorter than theirs.
func TestTheRulesAreThoseOfTheSignInThatIsChosen(t *testing.T) {
	for setting, want := range map[string]rule{"standard": {requests: 20, seconds: 60}, "hardened": {requests: 100, seconds: 600}} {
		set, err := app.LoadPolicies(only("SIGN_IN_POLICY", setting))
		if err != nil {
			t.Fatal(err)
		}
		rules, err := plans["pro"].rules(set)
		if err != nil || len(rules) != 1+len(others) {
			t.Fatalf("%s: %d rules, %v", setting, len(rules), err)
		}
		if got := rules[1]; got.policy != "sign-in" || got.requests != want.requests || got.seconds != want.seconds {
			t.Errorf("%s: got %+v, want %+v", setting, got, want)
		}
	}
	var problems bytes.Buffer
	if code := run(nil, only("SIGN_IN_POLICY", "hard"), io.Discard, &problems); code != command.Failed || !strings.Contains(problems.String(), "SIGN_IN_POLICY") {
		t.Errorf("got code %d, %q", code, problems.String())
	}
}

func TestWhatIsWrongHasACodeAndASentence(t *testing.T) {
	for _, c := range []struct {
		args    []string
		setting string
		code    int
		says    string
	}{
		{[]string{"-plan", "free"}, "", command.WrongUsage, `-plan is "free": allowed are hobby, pro and enterprise`},
		{[]string{"-plan"}, "", command.WrongUsage, "flag needs an argument"},
		{[]string{"-region", "iad1"}, "", command.WrongUsage, "-region"},
		{[]string{"hobby"}, "", command.WrongUsage, `unexpected argument "hobby"`},
		{nil, "[", command.Failed, "RATE_LIMIT_POLICIES"},
		{nil, " ", command.Failed, "RATE_LIMIT_POLICIES"},
	} {
		code, stdout, stderr := firewall(c.setting, c.args...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.says) || (code == command.WrongUsage) != strings.Contains(stderr, "usage:") {
			t.Errorf("%q with %q: got code %d, %q, %q", c.args, c.setting, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := firewall("", "-h"); code != 0 || !strings.HasPrefix(stdout, "usage:") || stderr != "" {
		t.Errorf("-h: got code %d, %q, %q", code, stdout, stderr)
	}
}
