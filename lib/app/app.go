// Package app is the application: it reads the environment once, wires the parts together and hands api/ its handlers.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/ailog"
	"github.com/weirlimits/weir/lib/alerts"
	"github.com/weirlimits/weir/lib/captcha"
	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/evaluations"
	"github.com/weirlimits/weir/lib/invites"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/otp"
	"github.com/weirlimits/weir/lib/partners"
	"github.com/weirlimits/weir/lib/policies"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
	"github.com/weirlimits/weir/lib/resets"
	"github.com/weirlimits/weir/lib/sandbox"
	"github.com/weirlimits/weir/lib/sms"
	"github.com/weirlimits/weir/lib/stuffing"
	"github.com/weirlimits/weir/lib/web"
)

// Version is the application's, in the form of semver.org. It is in every log line.
const Version = "0.1.0"

// requestTime bounds what is done for a request whose body is there: waiting for a connection and for other passwords to be hashed included. Each
// call to the database has its own, shorter deadline. A client that goes away ends nothing: what it asked for was counted,
// and what it was promised, such as a unit that a right password gets back, is still done.
const requestTime = 10 * time.Second

// Config says how an App differs from the one that the settings describe. The zero value changes nothing.
type Config struct {
	// Now replaces the database's clock, for tests.
	Now func() time.Time
	// Hashed is called before a password is hashed, for tests.
	Hashed func()
	// HashMemoryKiB is what accounts.Config takes, for tests.
	HashMemoryKiB uint32
	// Wait replaces waiting for a turn, for tests. It returns an error when ctx ends before.
	Wait func(ctx context.Context, d time.Duration) error
	// BodyTime is what web.Config takes, for tests.
	BodyTime time.Duration
	// Log takes the log lines. Nil means none.
	Log *slog.Logger
	// Shards are the databases that counters are spread over, and NextShards the list that is to come: see
	// ratelimit.NewShards. The caller opens, migrates and closes them. None: the counters are in the application's database.
	Shards, NextShards []Shard
}

// App answers the requests of every route. It may be used by many goroutines.
type App struct {
	settings    Settings
	web         *web.Web
	log         *slog.Logger
	now         func() time.Time // of the process: it decides nothing
	counters    *counters
	limiter     *ratelimit.Limiter
	service     *ratelimit.Limiter // for charges that services give back
	policies    policies.Set
	accounts    *accounts.Accounts
	codes       *codes.Pool
	entries     *ailog.Log
	evaluations *evaluations.Evaluations
	partners    *partners.Partners
	mail        mail.Sender
	outbox      *mail.Outbox // what mail is without a server; swept with one too, and has SMS without a gateway
	invites     *invites.Mailer
	resets      *resets.Mailer
	otp         *otp.Codes
	wait        func(context.Context, time.Duration) error
	sandbox     *sandbox.Sandbox
	stuffing    *stuffing.Detector      // nil when it is off
	captcha     captcha.Verifier        // nil: none is offered
	views       chan struct{}           // holds an element for each view that is open
	alerted     atomic.Bool             // since it last looked, this process has refused something that may raise an alert
	handlers    map[string]http.Handler // by route
	close       func() error            // nil when New's caller opened the shards
}

// Close closes what Open opened besides the application's own database.
func (a *App) Close() error {
	if a.close == nil {
		return nil
	}
	return a.close()
}

// New makes an App on db, which the caller opens, migrates and closes.
func New(db *database.DB, settings Settings, config Config) (*App, error) {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	counters, err := newCounters(db, config.Shards, config.NextShards, sqlstore.Config{
		Deadline:       settings.StoreDeadline,
		AuditRetention: settings.AuditRetention,
		Now:            config.Now,
	}, func(shard string) alerts.Config {
		return alerts.Config{Now: config.Now, Sender: alertSender(settings, shard), Retention: settings.AuditRetention}
	})
	if err != nil {
		return nil, fmt.Errorf("app: shards: %w", err)
	}
	limiter, err := ratelimit.New(counters.store, settings.Secret, ratelimit.Config{
		OtherSecret: settings.OtherSecret,
		Deadline:    settings.StoreDeadline,
		Instances:   settings.Instances,
		Remember:    rememberedRefusals,
		Clock:       config.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("app: RATE_LIMIT_SECRET: %w", err)
	}
	limits, err := loadPolicies(settings.Hardened, settings.Policies)
	if err != nil {
		return nil, fmt.Errorf("app: RATE_LIMIT_POLICIES: %w", err)
	}
	now := config.Now
	if now == nil {
		now = time.Now
	}
	a := &App{
		settings: settings,
		log:      config.Log,
		now:      now,
		counters: counters,
		limiter:  limiter,
		service:  limiter.WithoutMemory(),
		policies: limits,
		accounts: accounts.New(db.DB, accounts.Config{
			Now:           config.Now,
			Secret:        settings.Secret,
			OtherSecret:   settings.OtherSecret,
			Hashed:        config.Hashed,
			Breached:      breachedBy(settings, config.Log),
			HashMemoryKiB: config.HashMemoryKiB,
		}),
		codes:       codes.New(db.DB, codes.Config{Now: config.Now}),
		entries:     ailog.New(db.DB, ailog.Config{Now: config.Now}),
		evaluations: evaluations.New(db.DB, evaluations.Config{Now: config.Now}),
		partners:    partners.New(db.DB, partners.Config{Now: config.Now}),
		outbox:      mail.NewOutbox(db.DB, mail.OutboxConfig{Now: config.Now}),
		sandbox:     sandbox.New(),
		views:       make(chan struct{}, maxViews),
		handlers:    map[string]http.Handler{},
	}
	a.web = web.New(web.Config{
		Limiter:        limiter,
		Platform:       settings.Platform,
		AllowedOrigins: settings.AllowedOrigins,
		Log:            config.Log,
		Version:        Version,
		RequestTime:    requestTime,
		BodyTime:       config.BodyTime,
		ShownAs:        shownAs(),
		Plans:          plans(),
		Refused:        a.refused,
	})
	if settings.Stuffing != nil {
		a.stuffing = stuffing.New(db.DB, stuffing.Config{Now: config.Now, Secret: settings.Secret, Thresholds: *settings.Stuffing})
	}
	if settings.Captcha != nil {
		a.captcha = captcha.NewHTTP(*settings.Captcha)
	}
	a.mail = a.outbox
	if settings.SMTP != nil {
		a.mail = mail.NewSMTP(*settings.SMTP)
	}
	var gateway sms.Gateway = sms.NewOutbox(db.DB, sms.OutboxConfig{Now: config.Now})
	if settings.SMS != nil {
		gateway = sms.NewHTTP(*settings.SMS)
	}
	a.otp = otp.New(db.DB, gateway, otp.Config{Secret: settings.Secret, OtherSecret: settings.OtherSecret, Now: config.Now})
	if a.wait = config.Wait; a.wait == nil {
		a.wait = wait
	}
	a.invites = invites.New(a.codes, a.mail, invites.Config{Site: settings.Site})
	a.resets = resets.New(a.mail, settings.Site)
	for route, resource := range resources {
		a.handlers[route] = a.alerting(a.web.Handler("/api/"+route, resource(a)))
	}
	return a, nil
}

func openStore(db *database.DB, config sqlstore.Config) *sqlstore.Store {
	if db.HTTP != nil {
		return sqlstore.NewRemote(db.HTTP, config)
	}
	return sqlstore.New(db.DB, config)
}

// rememberedRefusals is how many refusals a process remembers for a second: some 10 MB when it is full.
const rememberedRefusals = 10_000

// PoolSize is how many unused invite codes the embedded database is kept at.
const PoolSize = 100

// Fill tops up what a new database lacks: the pool of invite codes, to n that are unused, and the demo accounts where
// the settings allow them. Filling twice is like filling once.
func (a *App) Fill(ctx context.Context, n int) error {
	if err := a.codes.Fill(ctx, n); err != nil {
		return err
	}
	if !a.settings.Demo {
		return nil
	}
	for _, role := range []accounts.Role{accounts.Member, accounts.Admin} {
		if _, err := a.accounts.Demo(ctx, role); err != nil {
			return err
		}
	}
	return nil
}

// resources are the routes below /api/.
var resources = map[string]func(*App) web.Resource{
	"sign-in":      (*App).signIn,
	"sign-up":      (*App).signUp,
	"demo-sign-in": (*App).demoSignIn,
	"codes":        (*App).codePool,
	"invites":      (*App).invite,
	"limits":       (*App).limitsService,
	"sandbox-sql":  (*App).sandboxSQL,
	"usernames":    (*App).usernames,
	"ai-log":       (*App).aiLog,
	"evaluations":  (*App).evaluate,
	"partner":      (*App).partner,
	"otp":          (*App).oneTimeCode,
}

// Routes are the names of the resources below /api/, in order.
func Routes() []string {
	var names []string
	for name := range resources {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Handler gives the handler of a resource: route is one of Routes.
func (a *App) Handler(route string) http.Handler { return a.handlers[route] }

// Unconfigured makes the handler of a resource that can't work: it answers 503, and says why in the log, which err should
// do without the value of any setting. Route is one of Routes.
func Unconfigured(route string, platform bool, log *slog.Logger, err error) http.Handler {
	var methods []string
	for method := range resources[route](&App{}) {
		methods = append(methods, method)
	}
	slices.Sort(methods)
	return web.New(web.Config{Platform: platform, Log: log, Version: Version}).Unconfigured("/api/"+route, methods, err)
}

// alerting sends what is due before it does anything for a request that only reads.
func (a *App) alerting(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTime)
			a.sendAlertsInPassing(ctx)
			cancel()
		}
		handler.ServeHTTP(w, r)
	})
}

// storage marks an error of the database as an outage, and says when too much is asked at once; what a domain package
// refuses stays as it is.
func storage(err error) error {
	switch {
	case errors.Is(err, accounts.ErrBusy):
		return &web.Problem{
			Status: http.StatusServiceUnavailable,
			Detail: "Too many people are signing in at the moment. Please try again in a few seconds.",
		}
	case errors.Is(err, accounts.ErrStore), errors.Is(err, codes.ErrStore), errors.Is(err, ailog.ErrStore), errors.Is(err, evaluations.ErrStore),
		errors.Is(err, mail.ErrStore), errors.Is(err, alerts.ErrStore), errors.Is(err, partners.ErrStore), errors.Is(err, otp.ErrStore),
		errors.Is(err, sms.ErrStore), errors.Is(err, stuffing.ErrStore):
		return web.Unavailable(err)
	}
	return err
}
