package policies_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/policies"
	"github.com/weirlimits/weir/lib/ratelimit"
)

var (
	open = ratelimit.Policy{
		Name: "open", Algorithm: ratelimit.FixedWindow, Limit: 10, Window: time.Minute,
		Subject: ratelimit.Address, Count: ratelimit.EveryAttempt,
	}
	private = ratelimit.Policy{
		Name: "private", Algorithm: ratelimit.FixedWindow, Limit: 8, Window: time.Hour,
		Subject: ratelimit.Account, Private: true,
	}
)

func builtIn(t testing.TB) policies.Set {
	t.Helper()
	set, err := policies.Of([]ratelimit.Policy{open, private})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// Row D4: where the application waits for its turn already, how many may wait is a figure like others.
func TestASettingGivesALeakyBucketOfTheApplicationAnotherQueue(t *testing.T) {
	leaky := ratelimit.Policy{Name: "leaky", Algorithm: ratelimit.LeakyBucket, Limit: 2, Window: time.Second, Queue: 4, Private: true}
	before, err := policies.Of([]ratelimit.Policy{leaky})
	if err != nil {
		t.Fatal(err)
	}
	for setting, want := range map[string]int64{`,"queue":7`: 7, ``: 0} {
		set, err := before.With(`[{"name":"leaky","algorithm":"leaky-bucket","limit":5,"window":"1s"` + setting + `}]`)
		got, _ := set.Named("leaky")
		if err != nil || got.Queue != want || got.Limit != 5 || !got.Private {
			t.Errorf("%s: %+v, %v; want a queue of %d", setting, got, err, want)
		}
	}
}

func TestASettingAddsPoliciesAndReplacesTheFiguresOfThoseThatAreThere(t *testing.T) {
	before := builtIn(t)
	set, err := before.With(`[
		{"name": "open", "algorithm": "token-bucket", "limit": 20, "window": "30s", "burst": 5},
		{"name": "private", "algorithm": "sliding-log", "limit": 3, "window": "15m", "subject": "account", "count": "every-attempt",
			"private": true},
		{"name": "a.new-1", "algorithm": "leaky-bucket", "limit": 2, "window": "1s", "queue": 2, "subject": "phone",
			"count": "admitted", "private": true, "failure": "refuse"},
		{"name": "plain", "algorithm": "sliding-window", "limit": 1000000000, "window": "100ms"},
		{"name": "key", "algorithm": "fixed-window", "limit": 1, "window": "876600h", "subject": "api-key"}
	]`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []ratelimit.Policy{
		{Name: "open", Algorithm: ratelimit.TokenBucket, Limit: 20, Window: 30 * time.Second, Burst: 5, Subject: ratelimit.Address, Count: ratelimit.EveryAttempt},
		{Name: "private", Algorithm: ratelimit.SlidingLog, Limit: 3, Window: 15 * time.Minute, Subject: ratelimit.Account, Count: ratelimit.EveryAttempt, Private: true},
		{Name: "a.new-1", Algorithm: ratelimit.LeakyBucket, Limit: 2, Window: time.Second, Queue: 2, Subject: ratelimit.Phone, Private: true},
		{Name: "plain", Algorithm: ratelimit.SlidingWindow, Limit: 1_000_000_000, Window: 100 * time.Millisecond, Subject: ratelimit.Opaque},
		{Name: "key", Algorithm: ratelimit.FixedWindow, Limit: 1, Window: ratelimit.MaxWindow, Subject: ratelimit.APIKey},
	} {
		if got, found := set.Named(want.Name); !found || got != want {
			t.Errorf("got %+v, %t; want %+v", got, found, want)
		}
	}
	var names []string
	for _, policy := range set.All() {
		names = append(names, policy.Name)
	}
	if got := strings.Join(names, " "); got != "a.new-1 key open plain private" {
		t.Errorf("all are %s", got)
	}
	if got, _ := before.Named("open"); got != open || len(before.All()) != 2 {
		t.Errorf("the set that was added to has changed: %+v", before.All())
	}
	if same, err := before.With(`[]`); err != nil || len(same.All()) != 2 {
		t.Errorf("an empty list: %v, %v", same.All(), err)
	}
	if first, err := (policies.Set{}).With(`[{"name":"x","algorithm":"fixed-window","limit":1,"window":"1s"}]`); err != nil || len(first.All()) != 1 {
		t.Errorf("added to nothing: %v, %v", first.All(), err)
	}
	if _, found := before.Named("nobody"); found {
		t.Error("a policy that isn't there is found")
	}
}

// Case D16: every mistake is told with the policy's place and name, the field, the value and what is allowed.
func TestAWrongSettingSaysWhatIsWrongAndWhatIsAllowed(t *testing.T) {
	const good = `"algorithm":"fixed-window","limit":5,"window":"1m"`
	one := func(fields string) string { return `[{"name":"x",` + fields + `}]` }
	for setting, want := range map[string][]string{
		``:                                       {"array of objects"},
		`  `:                                     {"array of objects"},
		`null`:                                   {"array of objects"},
		`{}`:                                     {"array of objects"},
		`"x"`:                                    {"array of objects"},
		`[`:                                      {"byte 1", "array of objects"},
		`[] x`:                                   {"byte 3"},
		`[1]`:                                    {"[0]", "1", "an object"},
		`[null]`:                                 {"[0]", "null", "an object"},
		`[{},{}]`:                                {"[0]", "[1]", "name is missing", "algorithm is missing", "limit is missing", "window is missing", "token-bucket"},
		`[[]]`:                                   {"[0]", "an object"},
		"[{\"name\":\"\xff\"}]":                  {"JSON"},
		`[{"name":"x","name":"y",` + good + `}]`: {"/0/name", "twice"},
		`[{"name":"","limit":1}]`:                {"[0]", "algorithm is missing"},
		`[{"name":"",` + good + `}]`:             {"[0]", `""`, "1 to 64 bytes"},
		`[{"name":"Sign in",` + good + `}]`:      {"[0]", `"Sign in"`, "1 to 64 bytes"},
		`[{"name":7,` + good + `}]`:              {"[0]", "name 7", "1 to 64 bytes"},
		`[{"name":null,` + good + `}]`:           {"[0]", "name null", "1 to 64 bytes"},
		`[{"name":"x",` + good + `},{"name":"y",` + good + `},{"name":"x",` + good + `}]`: {"[2]", `"x"`, "[0] has it already"},
		one(`"algorithm":"token bucket","limit":5,"window":"1m"`):                         {`[0] "x"`, `algorithm "token bucket"`, "leaky-bucket"},
		one(`"algorithm":4,"limit":5,"window":"1m"`):                                      {"algorithm 4", "leaky-bucket"},
		one(`"algorithm":"fixed-window","limit":0,"window":"1m"`):                         {"limit 0", "1 to 1000000000"},
		one(`"algorithm":"fixed-window","limit":-1,"window":"1m"`):                        {"limit -1", "1 to 1000000000"},
		one(`"algorithm":"fixed-window","limit":1.5,"window":"1m"`):                       {"limit 1.5", "1 to 1000000000"},
		one(`"algorithm":"fixed-window","limit":"5","window":"1m"`):                       {`limit "5"`, "1 to 1000000000"},
		one(`"algorithm":"fixed-window","limit":null,"window":"1m"`):                      {"limit null", "1 to 1000000000"},
		one(`"algorithm":"fixed-window","limit":1000000001,"window":"1m"`):                {"limit 1000000001", "1 to 1000000000"},
		one(`"algorithm":"fixed-window","limit":99999999999999999999,"window":"1m"`):      {"limit 99999999999999999999", "1 to 1000000000"},
		one(`"algorithm":"sliding-log","limit":1001,"window":"1m"`):                       {"limit 1001", "1 to 1000"},
		one(`"algorithm":"fixed-window","limit":5,"window":""`):                           {`window ""`, "Go duration"},
		one(`"algorithm":"fixed-window","limit":5,"window":"1 minute"`):                   {`window "1 minute"`, "Go duration"},
		one(`"algorithm":"fixed-window","limit":5,"window":"1d"`):                         {`window "1d"`, "24h"},
		one(`"algorithm":"fixed-window","limit":5,"window":60`):                           {"window 60", "Go duration"},
		one(`"algorithm":"fixed-window","limit":5,"window":"0s"`):                         {"window 0s", "1ms"},
		one(`"algorithm":"fixed-window","limit":5,"window":"-1m"`):                        {"window -1m0s", "1ms"},
		one(`"algorithm":"fixed-window","limit":5,"window":"1500us"`):                     {"window 1.5ms", "whole milliseconds"},
		one(`"algorithm":"fixed-window","limit":5,"window":"876601h"`):                    {"window 876601h0m0s", "876600h"},
		one(`"algorithm":"fixed-window","limit":5,"window":"9999999999h"`):                {`window "9999999999h"`, "876600h"},
		one(`"algorithm":"sliding-window","limit":1000000000,"window":"876600h"`):         {"1000000000 units", "876600h"},
		one(`"algorithm":"token-bucket","limit":5,"window":"1m","burst":0`):               {"burst 0", "from 1"},
		one(`"algorithm":"token-bucket","limit":5,"window":"1m","burst":-3`):              {"burst -3", "from 1"},
		one(`"algorithm":"token-bucket","limit":1,"window":"876600h","burst":1000`):       {"1000", "century"},
		one(good + `,"burst":5`):                             {"burst 5", "token-bucket"},
		one(good + `,"queue":5`):                             {"queue 5", "leaky-bucket"},
		one(good + `,"queue":-5`):                            {"queue -5", "leaky-bucket"},
		one(good + `,"subject":"ip"`):                        {`subject "ip"`, "address, account, phone, api-key, opaque"},
		one(good + `,"count":"all"`):                         {`count "all"`, "admitted, every-attempt"},
		one(good + `,"private":"yes"`):                       {`private "yes"`, "true, false"},
		one(good + `,"failure":"closed"`):                    {`failure "closed"`, "refuse"},
		one(good + `,"deadline":"5"`):                        {`deadline "5"`, "1ms to 10s"},
		one(good + `,"deadline":"0s"`):                       {`deadline "0s"`, "1ms to 10s"},
		one(good + `,"deadline":"1h"`):                       {`deadline "1h"`, "1ms to 10s"},
		one(good + `,"Limit":5`):                             {`field "Limit" is not known`, "limit"},
		`[{"name":"open",` + good + `,"subject":"account"}]`: {`[0] "open"`, `subject "account"`, "leave it out"},
		`[{"name":"private",` + good + `,"private":false}]`:  {"private false", "leave it out"},
		`[{"name":"open","algorithm":"leaky-bucket","limit":5,"window":"1m","queue":1}]`: {"queue 1", "leave it out"},
		`[` + strings.Repeat(`{},`, 200) + `{}]`:                                         {"201 policies", "200"},
		`[` + strings.Repeat(` `, 64<<10) + `]`:                                          {"65538 bytes", "65536"},
	} {
		set, err := builtIn(t).With(setting)
		if !errors.Is(err, policies.ErrSetting) || len(set.All()) != 0 {
			t.Errorf("%.120s: got %v, %v", setting, set.All(), err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%.120s: %q lacks %q", setting, err, part)
			}
		}
	}
}

func TestATableWithAMistakeIsRefused(t *testing.T) {
	unlimited := open
	unlimited.Limit = 0
	for _, table := range [][]ratelimit.Policy{{open, private, open}, {unlimited}} {
		if set, err := policies.Of(table); !errors.Is(err, ratelimit.ErrPolicy) || len(set.All()) != 0 {
			t.Errorf("got %v, %v", set.All(), err)
		}
	}
}

func FuzzASettingIsReadOrRefusedAndWhatIsReadIsValid(f *testing.F) {
	f.Add(`[{"name":"open","algorithm":"token-bucket","limit":20,"window":"30s","burst":5,"failure":"refuse"}]`)
	f.Add(`[{"name":"q","algorithm":"leaky-bucket","limit":2,"window":"1s","queue":2,"subject":"phone","count":"admitted","private":true}]`)
	f.Add(`[{"name":"x","algorithm":"fixed-window","limit":1e3,"window":"1h"},{"name":"x"}]`)
	f.Add(`[null, {}, "\ud800"`)
	f.Fuzz(func(t *testing.T, setting string) {
		set, err := builtIn(t).With(setting)
		if err != nil {
			if !errors.Is(err, policies.ErrSetting) {
				t.Fatalf("error %v", err)
			}
			return
		}
		for _, name := range []string{open.Name, private.Name} {
			if _, found := set.Named(name); !found {
				t.Fatalf("%s is gone", name)
			}
		}
		for _, policy := range set.All() {
			if err := policy.Validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Row D7.
func TestAPolicySaysWhatHoldsWithoutTheDatabase(t *testing.T) {
	set, err := policies.Of([]ratelimit.Policy{{
		Name: "edge", Algorithm: ratelimit.FixedWindow, Limit: 5, Window: time.Minute, Failure: ratelimit.Open,
	}})
	if err != nil {
		t.Fatal(err)
	}
	set, err = set.With(`[
		{"name": "a", "algorithm": "fixed-window", "limit": 5, "window": "1m"},
		{"name": "b", "algorithm": "fixed-window", "limit": 5, "window": "1m", "failure": "open", "deadline": "5ms"},
		{"name": "c", "algorithm": "fixed-window", "limit": 5, "window": "1m", "failure": "strict"},
		{"name": "edge", "algorithm": "fixed-window", "limit": 9, "window": "1m"}]`)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "refuse 0s", "b": "open 5ms", "c": "strict 0s", "edge": "open 0s"} {
		policy, _ := set.Named(name)
		if got := fmt.Sprint(policy.Failure, " ", policy.Deadline); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
