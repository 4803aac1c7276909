package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

// note is the error of a check that found what may be meant so, and says what.
type note string

func (n note) Error() string { return string(n) }

// A check returns nil, an error that says what was expected and what was found, or a note.
type check struct {
	name string
	run  func(*deployment) error
}

// The order is that in which a reader wants to know: what fails first is often why the others fail.
var checks = []check{
	{"the page is served with its security fields", (*deployment).page},
	{"openapi.json describes the functions", (*deployment).description},
	{"no source, setting or migration is served", (*deployment).sources},
	{"a username check is answered with its RateLimit fields", (*deployment).usernames},
	{"each check counts once, whoever the client says it is", (*deployment).counts},
	{"a wrong method is refused with Allow, OPTIONS answered, and neither counted", (*deployment).methods},
	{"a malformed body is a problem document", (*deployment).malformed},
	{"/api/limits asks services for their token", (*deployment).service},
	{"the sweep asks the timer for its secret", (*deployment).timer},
	{"windows end by the clock", (*deployment).clock},
	{"plain http leads to https", (*deployment).https},
}

const username = "/api/usernames?name=smoke-test"

func (d *deployment) page() error {
	got, err := d.ask(http.MethodGet, "/", nil)
	if err != nil {
		return err
	}
	if got.status == http.StatusUnauthorized || strings.HasPrefix(got.header.Get("Location"), "https://vercel.com/") {
		return fmt.Errorf("status %d: the deployment is protected: take the production URL, or turn Deployment Protection off", got.status)
	}
	if err := got.is(http.StatusOK, "text/html"); err != nil {
		return err
	}
	for _, field := range []struct{ name, part string }{
		{"Content-Security-Policy", "default-src 'none'"},
		{"Content-Security-Policy", "frame-ancestors 'none'"},
		{"X-Content-Type-Options", "nosniff"},
		{"Referrer-Policy", "no-referrer"},
	} {
		if value := got.header.Get(field.name); !strings.Contains(value, field.part) {
			return fmt.Errorf("%s is %q: want %q in it", field.name, value, field.part)
		}
	}
	return nil
}

func (d *deployment) description() error {
	got, err := d.ask(http.MethodGet, "/openapi.json", nil)
	if err != nil {
		return err
	}
	if err := got.is(http.StatusOK, "application/json"); err != nil {
		return err
	}
	var document struct {
		OpenAPI string
		Paths   map[string]any
	}
	if err := json.Unmarshal(got.body, &document); err != nil || !strings.HasPrefix(document.OpenAPI, "3.") || document.Paths["/api/usernames"] == nil {
		return errors.New("it is no description of OpenAPI 3 with /api/usernames in it")
	}
	return nil
}

func (d *deployment) sources() error {
	var served []string
	for _, path := range []string{
		"/go.mod", "/go.sum", "/vercel.json", "/README.md", "/.env", "/.data/secret", "/.data/weir.db",
		"/lib/app/app.go", "/lib/ratelimit/limiter.go", "/db/migrations/000001_rate_limits.up.sql", "/scripts/dev/main.go",
	} {
		got, err := d.ask(http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		if got.status != http.StatusNotFound {
			served = append(served, fmt.Sprintf("GET %s answers %d", path, got.status))
		}
	}
	if served != nil {
		return fmt.Errorf("%s: want 404", strings.Join(served, ", "))
	}
	return nil
}

func (d *deployment) usernames() error {
	got, err := d.ask(http.MethodGet, username, nil)
	if err != nil {
		return err
	}
	switch {
	case got.status == http.StatusServiceUnavailable:
		return fmt.Errorf("status 503: a setting or the schema is missing, and the log says which%s", got.detail())
	case got.status == http.StatusTooManyRequests:
		return fmt.Errorf("status 429: this address has used up its checks; again in %s seconds", got.header.Get("Retry-After"))
	}
	if err := got.is(http.StatusOK, "application/json"); err != nil {
		return err
	}
	var checked struct {
		Name *string
		Free *bool
	}
	if err := json.Unmarshal(got.body, &checked); err != nil || checked.Name == nil || checked.Free == nil {
		return fmt.Errorf("the body is %.100s: want name and free", got.body)
	}
	for _, name := range ratehttp.Fields() {
		if got.header.Get(name) == "" {
			return fmt.Errorf("there is no %s", name)
		}
	}
	if value := got.header.Get("Cache-Control"); !strings.Contains(value, "no-store") {
		return fmt.Errorf("Cache-Control is %q: want no-store", value)
	}
	return nil
}

// state is what an answer tells of its tightest limit.
type state struct {
	remaining, reset int64
	at               time.Time // by the server's clock
}

func (d *deployment) state(fields ...string) (s state, header http.Header, err error) {
	got, err := d.ask(http.MethodGet, username, nil, fields...)
	if err != nil {
		return s, nil, err
	}
	if got.status != http.StatusOK {
		return s, nil, fmt.Errorf("status %d: want 200", got.status)
	}
	var problems [2]error
	s.remaining, problems[0] = strconv.ParseInt(got.header.Get("Ratelimit-Remaining"), 10, 64)
	s.reset, problems[1] = strconv.ParseInt(got.header.Get("Ratelimit-Reset"), 10, 64)
	s.at, _ = http.ParseTime(got.header.Get("Date"))
	return s, got.header, errors.Join(problems[:]...)
}

// tries bounds how often requests are made again because a window ended between them, or somebody else at this address was
// counted.
const tries = 3

// inTurn makes username checks in turn, each after an action that costs nothing and with fields of its own, and says whether
// each left one less than the one before it. The first is made before all.
func (d *deployment) inTurn(turns ...turn) error {
	var wrong error
	for range tries {
		wrong = nil
		before, _, err := d.state()
		if err != nil {
			return err
		}
		for _, turn := range turns {
			if turn.before != nil {
				if err := turn.before(); err != nil {
					return err
				}
			}
			after, _, err := d.state(turn.fields...)
			if err != nil {
				return err
			}
			if after.remaining != before.remaining-1 && wrong == nil {
				wrong = fmt.Errorf("%swhat was left went from %d to %d: want one less, if nobody else at this address calls meanwhile",
					turn.name, before.remaining, after.remaining)
			}
			before = after
		}
		if wrong == nil {
			return nil
		}
	}
	return wrong
}

// turn is a username check: what goes before it, its fields, and what they mean in an error.
type turn struct {
	before func() error
	fields []string
	name   string
}

func (d *deployment) counts() error {
	return d.inTurn(
		turn{},
		turn{fields: []string{"X-Forwarded-For", "203.0.113.7"}, name: "with X-Forwarded-For of the client's own "},
		turn{fields: []string{"X-Forwarded-For", "203.0.113.8", "Forwarded", "for=203.0.113.8"}, name: "with Forwarded of the client's own "},
		turn{fields: []string{"True-Client-Ip", "203.0.113.9", "Cf-Connecting-Ip", "203.0.113.9"}, name: "with the fields of other proxies "},
	)
}

func (d *deployment) methods() error {
	return d.inTurn(turn{before: func() error {
		for _, method := range []string{http.MethodDelete, http.MethodHead} {
			got, err := d.ask(method, username, nil)
			if err != nil {
				return err
			}
			if allow := got.header.Get("Allow"); got.status != http.StatusMethodNotAllowed || !strings.Contains(allow, http.MethodGet) {
				return fmt.Errorf("%s answers %d with Allow %q: want 405 and GET", method, got.status, allow)
			}
		}
		got, err := d.ask(http.MethodOptions, username, nil)
		if err != nil {
			return err
		}
		if got.status != http.StatusNoContent {
			return fmt.Errorf("OPTIONS answers %d: want 204", got.status)
		}
		return nil
	}})
}

func (d *deployment) malformed() error {
	got, err := d.ask(http.MethodPost, "/api/sign-in", strings.NewReader("{"), "Content-Type", "application/json")
	if err != nil {
		return err
	}
	if got.status == http.StatusTooManyRequests {
		return note("this address has used up its sign-ins, so the body wasn't looked at")
	}
	return got.isProblem(http.StatusBadRequest)
}

func (d *deployment) service() error {
	got, err := d.ask(http.MethodPost, "/api/limits", strings.NewReader(`{"limits": []}`), "Content-Type", "application/json")
	return needsToken(got, err, "LIMITS_API_TOKEN is not set: other services get 503")
}

func (d *deployment) timer() error {
	got, err := d.ask(http.MethodGet, "/api/limits?op=sweep", nil)
	return needsToken(got, err, "CRON_SECRET is not set: the daily sweep gets 503")
}

func needsToken(got answer, err error, unset note) error {
	switch {
	case err != nil:
		return err
	case got.status == http.StatusServiceUnavailable && got.isProblem(got.status) == nil:
		return unset
	case got.status == http.StatusUnauthorized && !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer"):
		return fmt.Errorf("WWW-Authenticate is %q: want Bearer", got.header.Get("WWW-Authenticate"))
	}
	return got.isProblem(http.StatusUnauthorized)
}

// clockTolerance is for the way of an answer and for whole seconds.
const clockTolerance = 5

// clock compares the database's clock with the server's. A policy that is no fixed window ends otherwise, and can't be told
// from outside.
func (d *deployment) clock() error {
	now, header, err := d.state()
	if err != nil {
		return err
	}
	window := regexp.MustCompile(`;w=(\d+)`).FindStringSubmatch(header.Get("Ratelimit-Policy"))
	if window == nil || now.at.IsZero() {
		return fmt.Errorf("RateLimit-Policy is %q and Date %q: want a window and a date", header.Get("Ratelimit-Policy"), header.Get("Date"))
	}
	seconds, err := strconv.ParseInt(window[1], 10, 64)
	if err != nil || seconds < 1 {
		return fmt.Errorf("the window is %q: want seconds", window[1])
	}
	off := (now.at.Unix() + now.reset) % seconds
	off = min(off, seconds-off)
	if off > clockTolerance {
		return note(fmt.Sprintf("the window ends %d s beside the server's clock: the database's is off, or the policy is no fixed window", off))
	}
	return nil
}

func (d *deployment) https() error {
	if d.site.Scheme != "https" {
		return note("the URL is not https")
	}
	got, err := d.askAt(url.URL{Scheme: "http", Host: d.site.Hostname()}, http.MethodGet, "/", nil)
	if err != nil {
		return err
	}
	location := got.header.Get("Location")
	if got.status < 300 || got.status > 399 || !strings.HasPrefix(location, "https://") {
		return fmt.Errorf("http answers %d with Location %q: want to be sent to https", got.status, location)
	}
	return nil
}

// is says what is wrong with an answer's status or type.
func (a answer) is(status int, mediaType string) error {
	if a.status != status {
		return fmt.Errorf("status %d: want %d%s", a.status, status, a.detail())
	}
	if got, _, err := mime.ParseMediaType(a.header.Get("Content-Type")); err != nil || got != mediaType {
		return fmt.Errorf("Content-Type is %q: want %s", a.header.Get("Content-Type"), mediaType)
	}
	return nil
}

// isProblem says what is wrong with an answer that should be problem details of a status.
func (a answer) isProblem(status int) error {
	if err := a.is(status, "application/problem+json"); err != nil {
		return err
	}
	var problem struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal(a.body, &problem); err != nil || problem.Type == "" || problem.Title == "" || problem.Detail == "" || problem.Status != status {
		return fmt.Errorf("the body is %.200s: want type, title, detail and the status %d", a.body, status)
	}
	return nil
}

// detail is the sentence of an answer that is a problem, in parentheses.
func (a answer) detail() string {
	var problem struct{ Detail string }
	if json.Unmarshal(a.body, &problem) != nil || problem.Detail == "" {
		return ""
	}
	return fmt.Sprintf(" (%.200s)", problem.Detail)
}
