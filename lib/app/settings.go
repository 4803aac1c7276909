package app

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/breached"
	"github.com/weirlimits/weir/lib/captcha"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/egress"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/policies"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/sms"
	"github.com/weirlimits/weir/lib/stuffing"
	"github.com/weirlimits/weir/lib/webhook"
)

// The bounds of STORE_DEADLINE: below a millisecond no store answers, and a request as a whole has no more time.
const (
	minStoreDeadline = time.Millisecond
	maxStoreDeadline = requestTime
)

// maxInstances is more than any plan runs at once.
const maxInstances = 1_000_000

// The shortest bearer tokens: 32 bytes are what a hash of the comparison has; the platform asks for 16 in CRON_SECRET.
const (
	minTokenBytes      = 32
	minCronSecretBytes = 16
)

// The bounds of AUDIT_RETENTION. What raises an alert is read in the audit of the last hour.
const (
	defaultAuditRetention = 30 * 24 * time.Hour
	minAuditRetention     = time.Hour
	maxAuditRetention     = 87600 * time.Hour // ten years
)

// Mail is what Settings say about mail.
type Mail struct {
	// SMTP is the server that mail goes out over: see mail.ParseURL. Nil: mail goes into the outbox.
	SMTP *mail.SMTPConfig

	// Site is the origin that links in mails begin with, such as "https://weir.example.org". Empty: mails hold no links. It
	// is never taken from a request, whose Host anybody can write.
	Site string
}

// Settings is what the environment says, read once. It holds secrets: it must not be logged.
type Settings struct {
	// Platform says that the process runs on Vercel, where the platform's address headers can be believed.
	Platform bool

	// Root is the project's folder, "" where there is none (a deployed function).
	Root string

	// DatabaseURL and AuthToken are what database.Config takes.
	DatabaseURL string
	AuthToken   string

	// Shards are the databases that counters are spread over, and NextShards the list that is to come: see ratelimit.NewShards.
	// Nil: the counters are in the application's database. AuthToken is for all of them.
	Shards, NextShards []ShardSetting

	// Secret keys the HMACs of subjects. At least ratelimit.MinSecretBytes long.
	Secret []byte

	// OtherSecret is the one that Secret changes places with, nil while it isn't changed: see ratelimit.Config.
	OtherSecret []byte

	// Policies are those that the operator adds, or puts in place of the application's: see policies.Set.With. None by
	// default.
	Policies string

	// LimitsToken and CronSecret are the bearer tokens of other services and of the platform's timer. Without one, what
	// needs it answers 503.
	LimitsToken string
	CronSecret  string

	// Hardened says that failed sign-ins are limited by a ladder, and sign-ins in a quarter of an hour: SIGN_IN_POLICY. False
	// is the standard.
	Hardened bool

	// Captcha is what hardened sign-in offers after that. Nil: nothing.
	Captcha *captcha.Config

	// CaptchaOpen says that a token counts as good when its provider doesn't say whether it is.
	CaptchaOpen bool

	Mail

	// SMS is the gateway that SMS leave by: see sms.ParseURL. Nil: they go into the outbox.
	SMS *sms.HTTPConfig

	// Breached is the service that knows stolen passwords: see breached.ParseURL. Nil: only the short list of package breached is
	// looked at.
	Breached *breached.HTTPConfig

	// Webhook is where alerts are sent. Nil: they are only kept.
	Webhook *webhook.Config

	// Stuffing says from when on it is noticed that passwords are tried all over. Nil: sign-ins are not counted for that.
	Stuffing *stuffing.Thresholds

	// AuditRetention is how long rows of the audit and alerts are kept. Zero, which LoadSettings never gives: for ever.
	AuditRetention time.Duration

	// StoreDeadline bounds each call to the database.
	StoreDeadline time.Duration

	// Instances is how many functions are expected to run at once: see ratelimit.Config. Zero means its default.
	Instances int

	// AllowedOrigins are the origins of frontends on other sites, such as "https://app.example.org". None by default.
	AllowedOrigins []string

	// SessionSameSite is http.SameSiteLaxMode or http.SameSiteNoneMode.
	SessionSameSite http.SameSite

	// Demo says whether there are demo accounts.
	Demo bool
}

// LoadSettings reads the environment through lookup (os.LookupEnv, or a test's own). Its error joins everything that is
// wrong, names each variable and what it may be, and never holds the value of a URL or a secret.
//
// It does no I/O but for one thing: off the platform, with RATE_LIMIT_SECRET unset, it reads the secret kept under root,
// and makes it if there is none.
func LoadSettings(lookup func(string) (string, bool), root string) (Settings, error) {
	e := environment{lookup: lookup}
	s := Settings{Root: root, Platform: e.platform()}
	db := e.database(s.Platform, root)
	s.DatabaseURL, s.AuthToken = db.URL, db.AuthToken
	s.Shards, s.NextShards = e.shards(db, s.Platform)

	s.Secret = e.secret("RATE_LIMIT_SECRET")
	switch {
	case s.Secret != nil || e.failed["RATE_LIMIT_SECRET"]:
	case s.Platform:
		e.fail("RATE_LIMIT_SECRET", fmt.Sprintf("is not set: on the platform it must be, with at least %d bytes", ratelimit.MinSecretBytes))
	case root == "":
		e.fail("RATE_LIMIT_SECRET", "is not set, and there is no project folder to keep one in")
	default:
		secret, err := LocalSecret(root)
		e.check(err)
		s.Secret = secret
	}

	s.OtherSecret = e.secret("RATE_LIMIT_SECRET_PREVIOUS")
	if s.OtherSecret != nil && bytes.Equal(s.OtherSecret, s.Secret) {
		e.fail("RATE_LIMIT_SECRET_PREVIOUS", "is the same as RATE_LIMIT_SECRET: set it to another one or leave it out")
	}
	s.Hardened = e.hardened("SIGN_IN_POLICY")
	s.Captcha, s.CaptchaOpen = e.captcha()
	s.Policies = e.text("RATE_LIMIT_POLICIES")
	e.policies(s.Hardened, s.Policies)
	s.LimitsToken = e.token("LIMITS_API_TOKEN", minTokenBytes)
	s.CronSecret = e.token("CRON_SECRET", minCronSecretBytes)

	s.Mail = e.mail()
	s.SMS = e.smsGateway()

	if text := e.text("BREACHED_PASSWORDS_URL"); text != "" {
		address, err := breached.ParseURL(text)
		if err != nil {
			e.fail("BREACHED_PASSWORDS_URL", err.Error())
		}
		s.Breached = &breached.HTTPConfig{URL: address}
	}

	s.Webhook = e.webhook("ALERT_WEBHOOK_URL", "ALERT_WEBHOOK_SECRET")
	s.AuditRetention = e.duration("AUDIT_RETENTION", defaultAuditRetention, minAuditRetention, maxAuditRetention, "720h")

	s.Stuffing = e.stuffing()

	s.StoreDeadline = e.duration("STORE_DEADLINE", database.DefaultDeadline, minStoreDeadline, maxStoreDeadline, "500ms")
	s.Instances = e.number("EXPECTED_INSTANCES", maxInstances)
	s.AllowedOrigins = e.origins("ALLOWED_ORIGINS")

	s.SessionSameSite = http.SameSiteLaxMode
	switch text := e.text("SESSION_SAMESITE"); text {
	case "", "lax":
	case "none":
		s.SessionSameSite = http.SameSiteNoneMode
	default:
		e.fail("SESSION_SAMESITE", fmt.Sprintf("is %q: allowed are lax and none", text))
	}

	s.Demo = !s.Platform
	switch text := e.text("DEMO"); text {
	case "":
	case "0", "1":
		s.Demo = text == "1"
	default:
		e.fail("DEMO", fmt.Sprintf("is %q: allowed are 0 and 1", text))
	}

	if err := errors.Join(e.problems...); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// LoadDatabase reads what LoadSettings reads about the database and nothing else, for commands that need no more. Deadline
// is left zero. Its errors are as LoadSettings's, and it does no I/O.
func LoadDatabase(lookup func(string) (string, bool), root string) (database.Config, error) {
	e := environment{lookup: lookup}
	db := e.database(e.platform(), root)
	if err := errors.Join(e.problems...); err != nil {
		return database.Config{}, err
	}
	return db, nil
}

// LoadShards reads what LoadSettings reads about the shards and the database, as LoadDatabase does.
func LoadShards(lookup func(string) (string, bool), root string) (own database.Config, now, next []ShardSetting, err error) {
	e := environment{lookup: lookup}
	platform := e.platform()
	own = e.database(platform, root)
	now, next = e.shards(own, platform)
	if err := errors.Join(e.problems...); err != nil {
		return database.Config{}, nil, nil, err
	}
	return own, now, next, nil
}

// LoadMail reads what LoadSettings reads about mail and nothing else, for commands that need no more. Its errors are as
// LoadSettings's.
func LoadMail(lookup func(string) (string, bool)) (Mail, error) {
	e := environment{lookup: lookup}
	m := e.mail()
	if err := errors.Join(e.problems...); err != nil {
		return Mail{}, err
	}
	return m, nil
}

// environment reads variables and collects what is wrong with them.
type environment struct {
	lookup   func(string) (string, bool)
	problems []error
	failed   map[string]bool
}

func (e *environment) check(err error) {
	if err != nil {
		e.problems = append(e.problems, err)
	}
}

func (e *environment) fail(name, reason string) {
	if e.failed == nil {
		e.failed = make(map[string]bool)
	}
	e.failed[name] = true
	e.check(fmt.Errorf("settings: %s %s", name, reason))
}

// lineEnds are the characters that end a line (Unicode, UAX 14: mandatory breaks).
const lineEnds = "\n\v\f\r\u0085\u2028\u2029"

// structured are the settings whose value is JSON, in which line ends between tokens mean nothing.
var structured = []string{"RATE_LIMIT_POLICIES"}

// text reads a variable: every setting comes through here. Unset and empty are the same, "". Wrong
// are a value of blanks alone, a blank at either end, and a line end anywhere, but for those
// between the tokens of JSON. What a shell or a file leaves at the end would make another secret of
// a secret, silently. Blanks inside are the setting's own matter.
func (e *environment) text(name string) string {
	value, ok := e.lookup(name)
	bare := strings.TrimSpace(value)
	switch {
	case !ok, value == "":
		return ""
	case bare == "":
		e.fail(name, "holds nothing but blanks: set it to a value or leave it out")
	case strings.Trim(value, lineEnds) != value:
		e.fail(name, "begins or ends with a line end: set it again without")
	case bare != value:
		e.fail(name, "begins or ends with a blank: set it again without")
	case strings.ContainsAny(value, lineEnds) && !slices.Contains(structured, name):
		e.fail(name, "holds a line end: set it again without")
	default:
		return value
	}
	return ""
}

// platform reports whether the process runs on Vercel. A value that is wrong otherwise says so too:
// what holds off the platform alone, such as a secret that is made, must not come of it.
func (e *environment) platform() bool {
	return e.text("VERCEL") != "" || e.failed["VERCEL"]
}

func (e *environment) database(platform bool, root string) database.Config {
	const name = "TURSO_DATABASE_URL"
	db := database.Config{AuthToken: e.text("TURSO_AUTH_TOKEN"), URL: e.text(name)}
	switch {
	case e.failed[name]:
	case db.URL == "" && platform:
		e.fail(name, "is not set: on the platform it must be, such as libsql://NAME.example.org")
	case db.URL == "" && root == "":
		e.fail(name, "is not set, and there is no project folder to keep an embedded file in")
	case db.URL == "":
		db.URL = LocalDatabaseURL(root)
	default:
		e.check(db.Validate())
		// Each instance would have a file, and so counters, of its own.
		if u, err := url.Parse(db.URL); platform && err == nil && u.Scheme == "file" {
			e.fail(name, "is a file: on the platform it must be a server that all instances share, such as libsql://NAME.example.org")
		}
	}
	return db
}

func (e *environment) mail() Mail {
	m := Mail{Site: e.site("SITE_URL")}
	if text := e.text("SMTP_URL"); text != "" {
		server, err := mail.ParseURL(text)
		if err != nil {
			e.fail("SMTP_URL", err.Error())
		}
		m.SMTP = &server
	}
	return m
}

func (e *environment) policies(hard bool, setting string) policies.Set {
	set, err := loadPolicies(hard, setting)
	if err != nil {
		e.fail("RATE_LIMIT_POLICIES", err.Error())
	}
	return set
}

func (e *environment) secret(name string) []byte {
	value := e.text(name)
	if value == "" {
		return nil
	}
	if len(value) < ratelimit.MinSecretBytes {
		e.fail(name, fmt.Sprintf("has %d bytes: at least %d are allowed", len(value), ratelimit.MinSecretBytes))
		return nil
	}
	return []byte(value)
}

// token reads a bearer token, which has to arrive in a header as it is.
func (e *environment) token(name string, atLeast int) string {
	value := e.text(name)
	switch {
	case value == "":
	case len(value) < atLeast:
		e.fail(name, fmt.Sprintf("has %d bytes: at least %d are allowed", len(value), atLeast))
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }):
		e.fail(name, "holds a blank, a line end or another character that a header can't carry: allowed are visible ASCII characters")
	default:
		return value
	}
	return ""
}

// hardened reads the choice between two sets of limits for sign-in.
func (e *environment) hardened(name string) bool {
	switch text := e.text(name); text {
	case "", "standard":
	case "hardened":
		return true
	default:
		e.fail(name, fmt.Sprintf("is %q: allowed are standard and hardened", text))
	}
	return false
}

// captcha reads whose CAPTCHA sign-in offers, and what holds while that can't be asked; nil when all of it is left out.
func (e *environment) captcha() (*captcha.Config, bool) {
	const provider, secret, siteKey, address, failure = "CAPTCHA_PROVIDER", "CAPTCHA_SECRET", "CAPTCHA_SITE_KEY", "CAPTCHA_URL", "CAPTCHA_FAILURE"
	config := &captcha.Config{
		Provider: captcha.Provider(e.text(provider)),
		Secret:   e.token(secret, 1),
		SiteKey:  e.token(siteKey, 1),
	}
	if text := e.text(address); text != "" {
		var err error
		if config.URL, err = captcha.ParseURL(text); err != nil {
			e.fail(address, "is wrong: "+err.Error())
		}
	}
	open := false
	word := e.text(failure)
	switch word {
	case "", "refuse":
	case "open":
		open = true
	default:
		e.fail(failure, fmt.Sprintf("is %q: allowed are refuse and open", word))
	}
	parts := []struct {
		name   string
		given  bool
		needed bool
	}{
		{secret, config.Secret != "", true}, {siteKey, config.SiteKey != "", true}, {address, config.URL != "", false}, {failure, word != "", false},
	}
	switch known := slices.Contains(captcha.Providers(), config.Provider); {
	case e.failed[provider]:
	case config.Provider == "":
		for _, part := range parts {
			if part.given && !e.failed[part.name] {
				e.fail(part.name, "is set without "+provider+", which it is for")
			}
		}
	case !known:
		e.fail(provider, fmt.Sprintf("is %q: allowed are %s and %s", config.Provider, captcha.Turnstile, captcha.HCaptcha))
	default:
		for _, part := range parts {
			if part.needed && !part.given && !e.failed[part.name] {
				e.fail(part.name, "is not set: "+provider+" needs it")
			}
		}
		return config, open
	}
	return nil, false
}

// smsGateway reads where SMS leave by; nil when that is left out.
func (e *environment) smsGateway() *sms.HTTPConfig {
	text, token := e.text("SMS_GATEWAY_URL"), e.token("SMS_GATEWAY_TOKEN", 1)
	switch {
	case e.failed["SMS_GATEWAY_URL"]:
	case text == "" && token != "":
		e.fail("SMS_GATEWAY_TOKEN", "is set without SMS_GATEWAY_URL, which it is for")
	case text != "":
		address, err := sms.ParseURL(text)
		if err != nil {
			e.fail("SMS_GATEWAY_URL", err.Error())
		}
		return &sms.HTTPConfig{URL: address, Token: token}
	}
	return nil
}

func (e *environment) duration(name string, byDefault, shortest, longest time.Duration, example string) time.Duration {
	text := e.text(name)
	if text == "" {
		return byDefault
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < shortest || d > longest {
		e.fail(name, fmt.Sprintf("is %q: allowed is a Go duration from %v to %v, such as %s", text, shortest, longest, example))
	}
	return d
}

// number reads a whole number from 1 to most; 0 when it is left out.
func (e *environment) number(name string, most int) int {
	text := e.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		e.fail(name, fmt.Sprintf("is %q: allowed is a whole number from 1 to %d", text, most))
		return 0
	}
	return n
}

// numberFrom reads a whole number from least to most, or what it is when it is left out.
func (e *environment) numberFrom(name string, least, most, byDefault int64) int64 {
	text := e.text(name)
	if text == "" {
		return byDefault
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		e.fail(name, fmt.Sprintf("is %q: allowed is a whole number from %d to %d", text, least, most))
		return byDefault
	}
	return n
}

// The bounds of what an attack is. Fewer failures than some people make in an hour, twice the normal ones, or a share that any
// Monday has, would be one every day.
const (
	minStuffingFailures, maxStuffingFailures = 10, 1_000_000
	minStuffingFactor, maxStuffingFactor     = 3, 100
	minStuffingRatio, maxStuffingRatio       = 50, 100
)

// stuffing reads from when on passwords are tried all over; nil when that is off.
func (e *environment) stuffing() *stuffing.Thresholds {
	thresholds := &stuffing.Thresholds{
		MinFailures:  e.numberFrom("STUFFING_MIN_FAILURES", minStuffingFailures, maxStuffingFailures, stuffing.DefaultMinFailures),
		Factor:       e.numberFrom("STUFFING_FACTOR", minStuffingFactor, maxStuffingFactor, stuffing.DefaultFactor),
		RatioPercent: e.numberFrom("STUFFING_RATIO_PERCENT", minStuffingRatio, maxStuffingRatio, stuffing.DefaultRatioPercent),
	}
	switch text := e.text("STUFFING_DETECTION"); text {
	case "", "on":
		return thresholds
	case "off":
	default:
		e.fail("STUFFING_DETECTION", fmt.Sprintf("is %q: allowed are on and off", text))
	}
	return nil
}

// webhook reads where alerts go, and what they are signed with, if anything.
func (e *environment) webhook(urlName, secretName string) *webhook.Config {
	text, secret := e.text(urlName), e.text(secretName)
	if secret != "" && len(secret) < webhook.MinSecretBytes {
		e.fail(secretName, fmt.Sprintf("has %d bytes: at least %d are allowed", len(secret), webhook.MinSecretBytes))
	}
	if text == "" {
		return nil
	}
	u, err := webhook.ParseURL(text)
	if err != nil {
		e.fail(urlName, "is wrong: "+err.Error())
	}
	config := &webhook.Config{URL: u}
	if secret != "" {
		config.Secret = []byte(secret)
	}
	return config
}

func (e *environment) origins(name string) []string {
	text := e.text(name)
	if text == "" {
		return nil
	}
	var origins []string
	for item := range strings.SplitSeq(text, ",") {
		origin, ok := canonicalOrigin(strings.TrimSpace(item))
		if !ok {
			e.fail(name, fmt.Sprintf("holds %q: allowed are origins such as https://app.example.org, without a path, separated by commas", item))
			continue
		}
		if !slices.Contains(origins, origin) {
			origins = append(origins, origin)
		}
	}
	return origins
}

// site reads the origin of the page. What is mailed with it, codes and tokens, would travel unencrypted over http.
func (e *environment) site(name string) string {
	text := e.text(name)
	if text == "" {
		return ""
	}
	origin, ok := canonicalOrigin(strings.TrimSuffix(text, "/"))
	u, err := url.Parse(origin)
	switch {
	case !ok || err != nil:
		e.fail(name, fmt.Sprintf("is %q: allowed is an origin such as https://weir.example.org, without a path", text))
	case u.Scheme != "https" && !egress.IsLoopback(u.Hostname()):
		e.fail(name, fmt.Sprintf("is %q: http is allowed for this machine alone, such as http://127.0.0.1:3000", text))
	}
	return origin
}

// canonicalOrigin writes an origin as a browser sends it (RFC 6454, section 6.2): in lower case, without the scheme's
// own port.
func canonicalOrigin(text string) (string, bool) {
	u, err := url.Parse(strings.ToLower(text))
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || strings.Contains(u.Host, "*") {
		return "", false
	}
	origin := u.Scheme + "://" + u.Host
	if origin != strings.ToLower(text) || strings.HasSuffix(origin, ":") {
		return "", false // a path, a query, a user name
	}
	if own := map[string]string{"https": ":443", "http": ":80"}[u.Scheme]; strings.HasSuffix(origin, own) {
		origin = strings.TrimSuffix(origin, own)
	}
	return origin, true
}

// FindRoot returns the project's folder: the first one, from start upwards, that holds vercel.json and a folder api. The
// working directory alone doesn't tell, since `vercel dev` runs each function in a folder of its own below .vercel.
func FindRoot(start string) (string, error) {
	dir, err := filepath.Abs(start)
	if err != nil {
		return "", fmt.Errorf("settings: project root: %w", err)
	}
	for {
		config, err := os.Stat(filepath.Join(dir, "vercel.json"))
		api, err2 := os.Stat(filepath.Join(dir, "api"))
		if err == nil && err2 == nil && config.Mode().IsRegular() && api.IsDir() {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("settings: project root: no folder from %s upwards holds vercel.json and api", start)
		}
		dir = parent
	}
}

// LocalDatabaseURL is the URL of the embedded file of a project.
func LocalDatabaseURL(root string) string {
	return "file:" + (&url.URL{Path: filepath.ToSlash(filepath.Join(root, ".data", "weir.db"))}).EscapedPath()
}

// LocalSecret returns the secret kept in the file .data/secret of a project. Where there is none it makes one, of 32
// random bytes in hexadecimal; of many processes that do so at once, all return the same.
func LocalSecret(root string) ([]byte, error) {
	path := filepath.Join(root, ".data", "secret")
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeSecret(path); err == nil {
			secret, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("settings: RATE_LIMIT_SECRET is not set, and the local one can't be kept: %w", err)
	}
	switch {
	case len(secret) < ratelimit.MinSecretBytes:
		return nil, fmt.Errorf("settings: RATE_LIMIT_SECRET is not set, and %s has %d bytes: at least %d are allowed; delete it to have a new one made",
			path, len(secret), ratelimit.MinSecretBytes)
	case len(bytes.TrimSpace(secret)) == 0:
		return nil, fmt.Errorf("settings: RATE_LIMIT_SECRET is not set, and %s holds nothing but blanks: delete it to have a new one made", path)
	case len(bytes.TrimSpace(secret)) != len(secret), bytes.ContainsAny(secret, lineEnds):
		return nil, fmt.Errorf("settings: RATE_LIMIT_SECRET is not set, and %s begins or ends with a blank or holds a line end: "+
			"take it out, or delete the file to have a new secret made", path)
	}
	return secret, nil
}

// makeSecret writes the secret to a file of its own and links it to path, which fails if another process was first, and
// lets nobody see half a secret.
func makeSecret(path string) error {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.CreateTemp(dir, "secret-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	random := make([]byte, ratelimit.MinSecretBytes)
	rand.Read(random)
	_, err = f.WriteString(hex.EncodeToString(random))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
