// Package web carries operations over HTTP: strict JSON in, JSON or problem details out, and one wrapper around every
// handler that counts a request before it does anything for it.
package web

import (
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/cors"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// preflightSeconds is how long a browser may keep the answer to a preflight: long enough to spare most of them, short
// enough for a changed setting to show soon.
const preflightSeconds = 600

// transferTime is the default of Config.BodyTime and Config.AnswerTime.
const transferTime = 10 * time.Second

// knownMethods are the methods a log line may name. Others are text of the client's choosing.
var knownMethods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
}

// Config says how a Web works.
type Config struct {
	// Limiter decides about every request of a limited operation. Nil suits only handlers made by Unconfigured.
	Limiter *ratelimit.Limiter
	// Platform says that Vercel's proxy stands in front and sets the address headers. When false, the client's
	// address is the socket's and no header is believed.
	Platform bool
	// AllowedOrigins are the other sites whose pages may call, for example "https://app.example.org": scheme, host and
	// port, compared whole. A wildcard matches nothing, because the answers carry cookies. Empty: no other site.
	AllowedOrigins []string
	// RequestTime bounds what is done for a request, from when its body is there; a client that
	// goes away ends nothing. Zero: the request's own context does, but for the decision, which a
	// client that goes away never ends.
	RequestTime time.Duration
	// BodyTime bounds how long a body may take to arrive, AnswerTime how long a client may take to
	// read an answer. Zero means 10 seconds, which are 400 KB at 320 kbit a second. Behind the
	// platform's bridge neither is needed.
	BodyTime, AnswerTime time.Duration
	// Log takes one line for each request, and one for what went wrong in it. Nil: no lines.
	Log *slog.Logger
	// Refused is told the policies that refused a request, before the answer is written, by any number of goroutines. It
	// must not wait for anything. Nil: nobody is told.
	Refused func(policies []string)
	// Version of the program, for the log line.
	Version string
	// ShownAs gives policies the names of others in answers and in the log: for limits that decide the same for a client,
	// when which of them did must not show: their figures should be the same; and for limits that are one to a client, such as
	// those of a delay that grows.
	ShownAs map[string]string
	// Plans gives policies the plan that they are the limit of: what they refuse names it.
	Plans map[string]string
}

// Web makes handlers. It doesn't change after New and may be used by many goroutines.
type Web struct {
	cfg     Config
	origins map[string]bool // in lower case
}

// New makes a Web.
func New(cfg Config) *Web {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.BodyTime, cfg.AnswerTime = cmp.Or(cfg.BodyTime, transferTime), cmp.Or(cfg.AnswerTime, transferTime)
	origins := make(map[string]bool)
	for _, origin := range cfg.AllowedOrigins {
		origins[strings.ToLower(origin)] = true
	}
	return &Web{cfg: cfg, origins: origins}
}

// Resource is what one route can do: an operation for each method.
type Resource map[string]Operation

// Handler makes the handler of one route. The route is a name for the log, such as "/api/sign-in": limits are counted by
// their policies, never by the path that a client wrote.
//
// OPTIONS is answered 204 and a method the resource doesn't have 405, both with Allow and neither counted. HEAD is such a
// method, also where there is GET: an answer that a client doesn't want to read isn't worth a charge. Whatever an
// operation does, a panic included, the answer is written once and whole, and one line is logged that holds no address,
// name, query, path, token or body.
func (w *Web) Handler(route string, resource Resource) http.Handler {
	methods := slices.Sorted(maps.Keys(resource))
	return &endpoint{
		web:       w,
		route:     route,
		resource:  maps.Clone(resource),
		allow:     strings.Join(methods, ", "),
		preflight: w.cors(methods),
		actual:    w.cors(knownMethods),
	}
}

// Unconfigured makes the handler of a route that can't work because a setting is missing or wrong: each of the methods
// is answered 503, and each request logs err, which should name the setting and not its value. The client learns neither.
func (w *Web) Unconfigured(route string, methods []string, err error) http.Handler {
	resource := make(Resource)
	for _, method := range methods {
		resource[method] = Query(nil, nil, func(*Call) (Reply, error) {
			return Reply{}, &unconfigured{err}
		})
	}
	return w.Handler(route, resource)
}

// cors makes the cross-origin rule for requests with these methods. The origin is always decided here: the library's own
// default, for an empty list, is every origin.
func (w *Web) cors(methods []string) *cors.Cors {
	return cors.New(cors.Options{
		AllowOriginFunc:  w.allowed,
		AllowedMethods:   methods,
		AllowedHeaders:   []string{"Authorization", "Content-Type"},
		ExposedHeaders:   append(rateLimitFields(), "Retry-After", "Location"),
		AllowCredentials: true,
		MaxAge:           preflightSeconds,
	})
}

func (w *Web) allowed(origin string) bool {
	return w.origins[strings.ToLower(origin)]
}

// checkOrigin refuses a request that changes something on behalf of a page of another site: a browser would send the
// visitor's cookies along, and a plain form needs no preflight. Requests without an Origin come from no page.
func (w *Web) checkOrigin(r *http.Request) error {
	origins := r.Header.Values("Origin")
	if r.Method == http.MethodGet || r.Method == http.MethodHead || len(origins) == 0 {
		return nil
	}
	if len(origins) == 1 && (w.allowed(origins[0]) || own(origins[0], r.Host)) {
		return nil
	}
	return Forbidden("Pages of this site may not send this request.")
}

// own says whether an origin is the site that was asked. Only the hosts are compared: behind a proxy a request doesn't
// say which scheme its client used.
func own(origin, host string) bool {
	parsed, err := url.Parse(origin)
	return err == nil && parsed.Host != "" && strings.EqualFold(parsed.Host, host)
}

// endpoint is the wrapper around one resource.
type endpoint struct {
	web       *Web
	route     string
	resource  Resource
	allow     string // the value of Allow
	preflight *cors.Cors
	actual    *cors.Cors
}

// ServeHTTP answers under net/http and under the platform's bridge alike. The bridge's writer keeps the last status and
// guesses no content type, so the status is written once and the type always set.
func (e *endpoint) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	start := time.Now()
	if len(r.Header.Values("Origin")) > 1 { // which no browser sends, and whose first value must not speak for the others
		r = r.Clone(r.Context())
		r.Header.Set("Origin", "null")
	}
	header := rw.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	body := e.transfer(rw, r)
	sent := r.WithContext(r.Context()) // net/http looks at its own request's body
	sent.Body = body

	var out answer
	switch {
	case r.Method != http.MethodOptions:
		e.actual.HandlerFunc(rw, r) // sets fields only
		out = e.answer(header, sent)
		if refused := e.web.cfg.Refused; refused != nil && len(out.violated) > 0 {
			refused(out.violated)
		}
		body.answering(header, len(out.body))
		rw.WriteHeader(out.status)
	case r.Header.Get("Access-Control-Request-Method") != "":
		out.status = http.StatusNoContent
		header.Set("Allow", e.allow)
		body.answering(header, 0)
		e.preflight.HandlerFunc(rw, r) // writes the status
	default:
		out.status = http.StatusNoContent
		header.Set("Allow", e.allow)
		body.answering(header, 0)
		e.actual.HandlerFunc(rw, r)
		rw.WriteHeader(out.status)
	}
	if len(out.body) > 0 && r.Method != http.MethodHead {
		rw.Write(out.body) // an error means that the client has gone
	}
	e.logRequest(r, out, time.Since(start))
	body.linger()
}

func (e *endpoint) logRequest(r *http.Request, out answer, took time.Duration) {
	method := "other"
	if r.Method == http.MethodOptions || slices.Contains(knownMethods, r.Method) {
		method = r.Method
	}
	attrs := []slog.Attr{
		slog.String("route", e.route),
		slog.String("method", method),
		slog.Int("status", out.status),
		slog.Int64("durationMicros", took.Microseconds()),
		slog.String("version", e.web.cfg.Version),
	}
	if len(out.violated) > 0 {
		attrs = append(attrs, slog.Any("violatedPolicies", out.violated))
	}
	e.web.cfg.Log.LogAttrs(r.Context(), slog.LevelInfo, "request", attrs...)
}
