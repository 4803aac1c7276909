// Package policies keeps rate limits by name: those of an application, and those that a setting adds or puts in their place.
package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Bounds of a setting. The platform's environment as a whole has 64 KiB.
const (
	maxBytes    = 64 << 10
	maxPolicies = 200
	minDeadline = time.Millisecond
	maxDeadline = 10 * time.Second
)

// ErrSetting means that a text is no list of policies.
var ErrSetting = errors.New("policies: setting not valid")

// Set is a number of policies with different names. It doesn't change once made, and may be read by many goroutines. The
// zero value is empty.
type Set struct {
	byName map[string]ratelimit.Policy
}

// Of makes a set of an application's own policies. A policy that is out of bounds, and a name that is there twice, are
// errors that match ratelimit.ErrPolicy.
func Of(builtIn []ratelimit.Policy) (Set, error) {
	set := Set{byName: map[string]ratelimit.Policy{}}
	for _, policy := range builtIn {
		if err := policy.Validate(); err != nil {
			return Set{}, err
		}
		if _, taken := set.byName[policy.Name]; taken {
			return Set{}, fmt.Errorf("%w: %s is there twice", ratelimit.ErrPolicy, policy.Name)
		}
		set.byName[policy.Name] = policy
	}
	return set, nil
}

// Named gives the policy of that name. Without one it is the zero policy, which no limiter decides about, and false.
func (s Set) Named(name string) (ratelimit.Policy, bool) {
	policy, found := s.byName[name]
	return policy, found
}

// All gives every policy, in the order of names.
func (s Set) All() []ratelimit.Policy {
	var all []ratelimit.Policy
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		all = append(all, s.byName[name])
	}
	return all
}

// allowed says what the value of each field may be.
var allowed = map[string]string{
	"name":      fmt.Sprintf("1 to %d bytes of a to z, 0 to 9, . and -, beginning with a letter or digit", ratelimit.MaxNameBytes),
	"algorithm": list(algorithms),
	"limit":     fmt.Sprintf("a whole number from 1 to %d", ratelimit.MaxLimit),
	"window": fmt.Sprintf("a Go duration from %v to %v in whole milliseconds, such as 90s, 10m or 24h",
		ratelimit.MinWindow, ratelimit.MaxWindow),
	"burst":    fmt.Sprintf("a whole number from 1 to %d, for a token-bucket", ratelimit.MaxLimit),
	"queue":    fmt.Sprintf("a whole number from 0 to %d, for a leaky-bucket", ratelimit.MaxLimit-1),
	"subject":  list(subjects),
	"count":    list(counts),
	"private":  "true, false",
	"failure":  list(failures),
	"deadline": fmt.Sprintf("a Go duration from %v to %v, such as 5ms", minDeadline, maxDeadline),
}

// value is a word of the setting and what it stands for.
type value[T any] struct {
	word  string
	means T
}

var (
	algorithms = []value[ratelimit.Algorithm]{
		{ratelimit.FixedWindow.String(), ratelimit.FixedWindow},
		{ratelimit.SlidingWindow.String(), ratelimit.SlidingWindow},
		{ratelimit.SlidingLog.String(), ratelimit.SlidingLog},
		{ratelimit.TokenBucket.String(), ratelimit.TokenBucket},
		{ratelimit.LeakyBucket.String(), ratelimit.LeakyBucket},
	}
	subjects = []value[ratelimit.SubjectKind]{
		{"address", ratelimit.Address},
		{"account", ratelimit.Account},
		{"phone", ratelimit.Phone},
		{"api-key", ratelimit.APIKey},
		{"opaque", ratelimit.Opaque},
	}
	counts = []value[ratelimit.Count]{
		{"admitted", ratelimit.Admitted},
		{"every-attempt", ratelimit.EveryAttempt},
	}
	failures = []value[ratelimit.Failure]{
		{ratelimit.Refuse.String(), ratelimit.Refuse},
		{ratelimit.Strict.String(), ratelimit.Strict},
		{ratelimit.Open.String(), ratelimit.Open},
	}
)

func list[T any](values []value[T]) string {
	var words []string
	for _, v := range values {
		words = append(words, v.word)
	}
	return strings.Join(words, ", ")
}

// With gives the set with the policies of a setting, a JSON array as docs/design.md describes it. One whose name is there
// already takes that policy's place: algorithm, limit, window, burst and queue are the new one's. What the application
// charges it with stays, so that subject may be left out or be the same; count and private stay unless they are given, and
// what is private can't be made public. A queue is refused there, but for a LeakyBucket: other routes of the application make
// nobody wait.
//
// An error matches ErrSetting. It joins what is wrong with each policy, and tells its place and name, the field, the value
// and what is allowed.
func (s Set) With(setting string) (Set, error) {
	var texts []jsontext.Value
	switch err := json.Unmarshal([]byte(setting), &texts); {
	case len(setting) > maxBytes:
		return Set{}, fmt.Errorf("%w: %d bytes long: allowed are %d", ErrSetting, len(setting), maxBytes)
	case err != nil || texts == nil:
		return Set{}, notAnArray(err)
	case len(texts) > maxPolicies:
		return Set{}, fmt.Errorf("%w: %d policies: allowed are %d", ErrSetting, len(texts), maxPolicies)
	}
	out := Set{byName: maps.Clone(s.byName)}
	if out.byName == nil {
		out.byName = map[string]ratelimit.Policy{}
	}
	var problems []error
	places := map[string]int{}
	for i, text := range texts {
		policy, err := s.parse(text)
		if first, taken := places[policy.Name]; taken && err == nil {
			err = fmt.Errorf("name %q: [%d] has it already", policy.Name, first)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%w: [%d]%s: %w", ErrSetting, i, quoted(policy.Name), err))
			continue
		}
		places[policy.Name] = i
		out.byName[policy.Name] = policy
	}
	if err := errors.Join(problems...); err != nil {
		return Set{}, err
	}
	return out, nil
}

func notAnArray(err error) error {
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntactic) && errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("%w: %s is there twice", ErrSetting, syntactic.JSONPointer)
	case errors.As(err, &syntactic):
		return fmt.Errorf("%w: at byte %d it is no JSON: allowed is an array of objects", ErrSetting, syntactic.ByteOffset)
	}
	return fmt.Errorf("%w: allowed is a JSON array of objects", ErrSetting)
}

func quoted(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" %.80q", name)
}

// parse reads one policy of a setting. With an error the policy has its name as far as it could be read.
func (s Set) parse(text jsontext.Value) (policy ratelimit.Policy, err error) {
	r := reader{}
	if text.Kind() != '{' || json.Unmarshal(text, &r.fields) != nil {
		return policy, fmt.Errorf("%.80s: allowed is an object", text)
	}
	read(&r, "name", &policy.Name)
	builtIn, replaces := s.byName[policy.Name]
	policy.Subject, policy.Count, policy.Private, policy.Failure = builtIn.Subject, builtIn.Count, builtIn.Private, builtIn.Failure
	pick(&r, "algorithm", algorithms, &policy.Algorithm)
	read(&r, "limit", &policy.Limit)
	read(&r, "queue", &policy.Queue)
	pick(&r, "subject", subjects, &policy.Subject)
	pick(&r, "count", counts, &policy.Count)
	read(&r, "private", &policy.Private)

	var window, deadline string
	if read(&r, "window", &window) {
		if policy.Window, err = time.ParseDuration(window); err != nil {
			r.wrong("window")
		}
	}
	if read(&r, "burst", &policy.Burst) && policy.Burst < 1 {
		r.wrong("burst") // 0 would mean the limit
	}
	pick(&r, "failure", failures, &policy.Failure)
	if read(&r, "deadline", &deadline) {
		policy.Deadline, err = time.ParseDuration(deadline)
		if err != nil || policy.Deadline < minDeadline || policy.Deadline > maxDeadline {
			r.wrong("deadline")
		}
	}
	for _, field := range []string{"name", "algorithm", "limit", "window"} {
		if _, there := r.fields[field]; !there {
			r.fail("%s is missing: allowed: %s", field, allowed[field])
		}
	}
	for _, field := range slices.Sorted(maps.Keys(r.fields)) {
		if _, known := allowed[field]; !known {
			r.fail("field %.80q is not known: allowed: %s", field, strings.Join(slices.Sorted(maps.Keys(allowed)), ", "))
		}
	}
	if replaces {
		switch {
		case policy.Subject != builtIn.Subject:
			r.fail("subject %s: the application counts this policy by another: leave it out", r.fields["subject"])
		case builtIn.Private && !policy.Private:
			r.fail("private false: what the application keeps private stays so: leave it out")
		case policy.Queue != 0 && builtIn.Algorithm != ratelimit.LeakyBucket:
			r.fail("queue %d: the application makes nobody wait for this policy: leave it out", policy.Queue)
		}
	}
	if r.problems == nil {
		r.problems = append(r.problems, policy.Validate())
	}
	return policy, errors.Join(r.problems...)
}

// reader reads the fields of one policy and collects what is wrong with them.
type reader struct {
	fields   map[string]jsontext.Value
	problems []error
}

func (r *reader) fail(format string, args ...any) {
	r.problems = append(r.problems, fmt.Errorf(format, args...))
}

func (r *reader) wrong(field string) {
	r.fail("%s %.80s: allowed: %s", field, r.fields[field], allowed[field])
}

// read reads a field where it is given, and says whether it is and is of the right kind.
func read[T any](r *reader, field string, out *T) bool {
	text, there := r.fields[field]
	if !there {
		return false
	}
	if text.Kind() == 'n' || json.Unmarshal(text, out) != nil {
		r.wrong(field)
		return false
	}
	return true
}

// pick reads a field that holds one of some words.
func pick[T any](r *reader, field string, values []value[T], out *T) {
	var word string
	if !read(r, field, &word) {
		return
	}
	for _, v := range values {
		if v.word == word {
			*out = v.means
			return
		}
	}
	r.wrong(field)
}
