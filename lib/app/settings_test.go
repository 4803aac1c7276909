package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/captcha"
	"github.com/weirlimits/weir/lib/sms"
	"github.com/weirlimits/weir/lib/stuffing"
)

func lookupIn(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
}

// The value is as secret as a real one: no error may hold it.
const testSecret = "0123456789abcdef0123456789abcdef"

func platform() map[string]string {
	return map[string]string{
		"VERCEL":             "1",
		"TURSO_DATABASE_URL": "libsql://weir.example.org",
		"TURSO_AUTH_TOKEN":   "s3cr3t-token",
		"RATE_LIMIT_SECRET":  testSecret,
	}
}

func TestSettingsOnThePlatform(t *testing.T) {
	env := platform()
	s, err := LoadSettings(lookupIn(env), "")
	if err != nil {
		t.Fatal(err)
	}
	if !s.Platform || s.DatabaseURL != env["TURSO_DATABASE_URL"] || s.AuthToken != env["TURSO_AUTH_TOKEN"] || string(s.Secret) != testSecret {
		t.Errorf("got %+v", s)
	}
	if s.StoreDeadline != 2*time.Second || s.AllowedOrigins != nil || s.OtherSecret != nil || s.Policies+s.LimitsToken+s.CronSecret != "" || s.SMTP != nil || s.SMS != nil || s.Webhook != nil || s.AuditRetention != 30*24*time.Hour || s.Stuffing == nil || *s.Stuffing != (stuffing.Thresholds{MinFailures: 50, Factor: 4, RatioPercent: 75}) || s.Site != "" || s.SessionSameSite != http.SameSiteLaxMode || s.Demo {
		t.Errorf("defaults: got %+v", s)
	}

	env["STORE_DEADLINE"] = "1ms"
	env["ALLOWED_ORIGINS"] = "https://App.example.org:443, http://127.0.0.1:3000,https://app.example.org"
	env["SESSION_SAMESITE"] = "none"
	env["DEMO"] = "1"
	env["RATE_LIMIT_SECRET_PREVIOUS"] = "another " + testSecret
	env["RATE_LIMIT_POLICIES"] = `[{"name":"sign-in","algorithm":"token-bucket","limit":5,"window":"1m"}]`
	env["LIMITS_API_TOKEN"] = testSecret
	env["CRON_SECRET"] = testSecret[:16]
	env["SMTP_URL"] = "smtps://weir:p%40ss@mail.example.org?from=weir@example.org"
	env["SITE_URL"] = "https://Weir.example.org:443/"
	env["ALERT_WEBHOOK_URL"] = "https://hooks.example.org/weir?token=1"
	env["AUDIT_RETENTION"] = "1h"
	env["STUFFING_MIN_FAILURES"] = "10"
	env["STUFFING_FACTOR"] = "100"
	env["STUFFING_RATIO_PERCENT"] = "50"
	env["SMS_GATEWAY_URL"] = "https://sms.example.org/v1/send"
	env["SMS_GATEWAY_TOKEN"] = "s3cr3t-token"
	env["BREACHED_PASSWORDS_URL"] = "https://breached.example.org/range"
	s, err = LoadSettings(lookupIn(env), "")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"https://app.example.org", "http://127.0.0.1:3000"}; !slices.Equal(s.AllowedOrigins, want) {
		t.Errorf("origins: got %q, want %q", s.AllowedOrigins, want)
	}
	if s.Stuffing == nil || *s.Stuffing != (stuffing.Thresholds{MinFailures: 10, Factor: 100, RatioPercent: 50}) {
		t.Errorf("attacks: got %+v", s.Stuffing)
	}
	if string(s.OtherSecret) != "another "+testSecret || s.Policies != env["RATE_LIMIT_POLICIES"] || s.LimitsToken != testSecret || s.CronSecret != testSecret[:16] {
		t.Errorf("got %+v", s)
	}
	if s.SMTP == nil || s.SMTP.Host != "mail.example.org" || s.SMTP.Port != 465 || s.SMTP.Password != "p@ss" || s.Site != "https://weir.example.org" {
		t.Errorf("mail: got %+v, site %q", s.SMTP, s.Site)
	}
	if s.SMS == nil || *s.SMS != (sms.HTTPConfig{URL: env["SMS_GATEWAY_URL"], Token: env["SMS_GATEWAY_TOKEN"]}) {
		t.Errorf("SMS: got %+v", s.SMS)
	}
	if s.Breached == nil || s.Breached.URL != "https://breached.example.org/range/" {
		t.Errorf("breached passwords: got %+v", s.Breached)
	}
	if s.Webhook == nil || s.Webhook.URL.String() != env["ALERT_WEBHOOK_URL"] || s.Webhook.Secret != nil || s.AuditRetention != time.Hour {
		t.Errorf("alerts: got %+v, kept for %v", s.Webhook, s.AuditRetention)
	}
	env["ALERT_WEBHOOK_SECRET"] = testSecret
	if s, err := LoadSettings(lookupIn(env), ""); err != nil || string(s.Webhook.Secret) != testSecret {
		t.Errorf("signed alerts: got %+v, %v", s.Webhook, err)
	}
	delete(env, "ALERT_WEBHOOK_URL")
	if s, err := LoadSettings(lookupIn(env), ""); err != nil || s.Webhook != nil {
		t.Errorf("a secret for nothing: got %+v, %v", s.Webhook, err)
	}
	if s.StoreDeadline != time.Millisecond || s.SessionSameSite != http.SameSiteNoneMode || !s.Demo {
		t.Errorf("got %+v", s)
	}
}

func TestSettingsOffThePlatformNeedNothing(t *testing.T) {
	root := t.TempDir()
	// `vercel dev` sets VERCEL to the empty string.
	s, err := LoadSettings(lookupIn(map[string]string{"VERCEL": "", "TURSO_DATABASE_URL": "", "RATE_LIMIT_SECRET": ""}), root)
	if err != nil {
		t.Fatal(err)
	}
	if s.Platform || s.Root != root || s.DatabaseURL != "file:"+root+"/.data/weir.db" || !s.Demo {
		t.Errorf("got %+v", s)
	}
	again, err := LoadSettings(lookupIn(nil), root)
	if err != nil || len(s.Secret) < 32 || !bytes.Equal(s.Secret, again.Secret) {
		t.Errorf("secret: got %d bytes, then %d, %v; want the same 32 or more", len(s.Secret), len(again.Secret), err)
	}
	info, err := os.Stat(filepath.Join(root, ".data", "secret"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("file: %v, %v; want mode 0600", info.Mode(), err)
	}
	if s, err = LoadSettings(lookupIn(map[string]string{"DEMO": "0"}), root); err != nil || s.Demo {
		t.Errorf("DEMO=0: got %v, %v", s.Demo, err)
	}
}

// Case D16: every variable unset, empty and blank, where that is wrong, and set to what isn't allowed.
func TestAWrongSettingIsAnErrorThatNamesTheVariable(t *testing.T) {
	const unset = "(unset)"
	for _, c := range []struct {
		name  string
		value string
	}{
		{"TURSO_DATABASE_URL", unset},
		{"TURSO_DATABASE_URL", ""},
		{"TURSO_DATABASE_URL", "  "},
		{"TURSO_DATABASE_URL", "libsql://s3cr3t.example.org?authToken=s3cr3t"},
		{"TURSO_DATABASE_URL", "file:s3cr3t.db"},
		{"TURSO_DATABASE_URL", "file:/s3cr3t.db"}, // a database for each instance
		{"TURSO_DATABASE_URL", "FILE:/s3cr3t.db"},
		{"TURSO_AUTH_TOKEN", "  "},
		{"TURSO_AUTH_TOKEN", "s3cr3t\n"},
		{"TURSO_DATABASE_URLS", "  "},
		{"TURSO_DATABASE_URLS", ","},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org,"},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org,,libsql://s3cr3t-1.example.org"},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org libsql://s3cr3t-1.example.org"},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org,https://S3cr3t-0.example.org:443/"},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org,libsql://s3cr3t-0.example.org."},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org/x,libsql://s3cr3t-0.example.org//%78/"},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org,libsql://s3cr3t-0.example.org:0443"},
		{"TURSO_DATABASE_URLS", "https://[::1]:8080,https://[0:0:0:0:0:0:0:1]:8080"},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org?authToken=s3cr3t"},
		{"TURSO_DATABASE_URLS", "file:/s3cr3t.db"},
		{"TURSO_DATABASE_URLS", "libsql://s3cr3t-0.example.org,file:/s3cr3t.db"},
		{"TURSO_DATABASE_URLS", "http://s3cr3t-0.example.org"}, // the token would travel unencrypted
		{"TURSO_DATABASE_URLS", "a=libsql://s3cr3t-0.example.org,libsql://s3cr3t-1.example.org"},
		{"TURSO_DATABASE_URLS", "a=libsql://s3cr3t-0.example.org,a=libsql://s3cr3t-1.example.org"},
		{"TURSO_DATABASE_URLS", "a=libsql://s3cr3t-0.example.org,b=libsql://s3cr3t-0.example.org"},
		{"TURSO_DATABASE_URLS", "a=,b=libsql://s3cr3t-0.example.org"},
		{"TURSO_DATABASE_URLS", manyShards(257)},
		{"TURSO_DATABASE_URLS_NEXT", "  "},
		{"TURSO_DATABASE_URLS_NEXT", "s3cr3t"},
		{"TURSO_DATABASE_URLS_NEXT", platform()["TURSO_DATABASE_URL"]}, // where they are
		{"TURSO_DATABASE_URLS_NEXT", "x=" + platform()["TURSO_DATABASE_URL"]},
		{"TURSO_DATABASE_URLS_NEXT", manyShards(256)},
		{"RATE_LIMIT_SECRET", unset},
		{"RATE_LIMIT_SECRET", ""},
		{"RATE_LIMIT_SECRET", "  "},
		{"RATE_LIMIT_SECRET", strings.Repeat(" ", 40)},
		{"RATE_LIMIT_SECRET", "s3cr3t9abcdef0123456789abcdef01"},
		{"RATE_LIMIT_SECRET_PREVIOUS", "  "},
		{"RATE_LIMIT_SECRET_PREVIOUS", "s3cr3t9abcdef0123456789abcdef01"},
		{"RATE_LIMIT_SECRET_PREVIOUS", testSecret},
		{"RATE_LIMIT_POLICIES", "  "},
		{"RATE_LIMIT_POLICIES", "s3cr3t"},
		{"RATE_LIMIT_POLICIES", `{"name":"s3cr3t"}`},
		{"RATE_LIMIT_POLICIES", `[{"name":"sign-in","algorithm":"fixed-window","limit":0,"window":"1m"}]`},
		{"LIMITS_API_TOKEN", " "},
		{"LIMITS_API_TOKEN", "s3cr3t9abcdef0123456789abcdef01"},
		{"LIMITS_API_TOKEN", "s3cr3t9abcdef0123456789abcdef0123\n"},
		{"LIMITS_API_TOKEN", "s3cr3t9abcdef0123456789 abcdef0123"},
		{"LIMITS_API_TOKEN", "s3cr3t9abcdef0123456789abcdef0123é"},
		{"CRON_SECRET", "\n"},
		{"CRON_SECRET", "s3cr3t9abcdef01"},
		{"CRON_SECRET", " s3cr3t9abcdef0123"},
		{"SMTP_URL", "  "},
		{"SMTP_URL", "s3cr3t"},
		{"SMTP_URL", "smtps://weir:s3cr3t@mail.example.org"},
		{"SMTP_URL", "smtp://weir:s3cr3t@mail.example.org?from=weir@example.org&tls=none"},
		{"SMTP_URL", "smtps://weir:s3cr3t%@mail.example.org?from=weir@example.org"},
		{"SITE_URL", "  "},
		{"SITE_URL", "weir.example.org"},
		{"SITE_URL", "https://weir.example.org/path"},
		{"SITE_URL", "https://weir.example.org?x=1"},
		{"SITE_URL", "https://weir.example.org//"},
		{"SITE_URL", "http://weir.example.org"},
		{"SITE_URL", "https://me@weir.example.org"},
		{"SITE_URL", "javascript:alert(1)"},
		{"ALERT_WEBHOOK_URL", "  "},
		{"ALERT_WEBHOOK_URL", "http://hooks.example.org/s3cr3t"},
		{"ALERT_WEBHOOK_URL", "https://weir:s3cr3t@hooks.example.org"},
		{"ALERT_WEBHOOK_SECRET", "  "},
		{"ALERT_WEBHOOK_SECRET", "s3cr3t9abcdef0123456789abcdef01"},
		{"STUFFING_DETECTION", " "},
		{"STUFFING_DETECTION", "yes"},
		{"STUFFING_DETECTION", "1"},
		{"STUFFING_MIN_FAILURES", "9"},
		{"STUFFING_MIN_FAILURES", "1000001"},
		{"STUFFING_MIN_FAILURES", "many"},
		{"STUFFING_FACTOR", "2"},
		{"STUFFING_FACTOR", "101"},
		{"STUFFING_FACTOR", "4.5"},
		{"STUFFING_RATIO_PERCENT", "49"},
		{"STUFFING_RATIO_PERCENT", "101"},
		{"STUFFING_RATIO_PERCENT", "75%"},
		{"AUDIT_RETENTION", " "},
		{"AUDIT_RETENTION", "30"},
		{"AUDIT_RETENTION", "30d"},
		{"AUDIT_RETENTION", "59m59s"},
		{"AUDIT_RETENTION", "87600h0m1s"},
		{"BREACHED_PASSWORDS_URL", "  "},
		{"BREACHED_PASSWORDS_URL", "http://breached.example.org/s3cr3t"},
		{"BREACHED_PASSWORDS_URL", "https://breached.example.org/?key=s3cr3t"},
		{"SMS_GATEWAY_URL", "  "},
		{"SMS_GATEWAY_URL", "s3cr3t"},
		{"SMS_GATEWAY_URL", "http://sms.example.org/s3cr3t"},
		{"SMS_GATEWAY_URL", "https://me:s3cr3t@sms.example.org"},
		{"SMS_GATEWAY_TOKEN", "  "},
		{"SMS_GATEWAY_TOKEN", "s3cr3t token"},
		{"SMS_GATEWAY_TOKEN", "s3cr3t-without-a-url"},
		{"SIGN_IN_POLICY", "  "},
		{"SIGN_IN_POLICY", "strict"},
		{"SIGN_IN_POLICY", "Hardened"},
		{"CAPTCHA_PROVIDER", "  "},
		{"CAPTCHA_PROVIDER", "recaptcha"},
		{"CAPTCHA_SECRET", "  "},
		{"CAPTCHA_SECRET", "s3cr3t secret"},
		{"CAPTCHA_SECRET", "s3cr3t-without-a-provider"},
		{"CAPTCHA_SITE_KEY", "  "},
		{"CAPTCHA_SITE_KEY", "key\n"},
		{"CAPTCHA_SITE_KEY", "key-without-a-provider"},
		{"CAPTCHA_URL", "  "},
		{"CAPTCHA_URL", "http://captcha.example.org/s3cr3t"},
		{"CAPTCHA_URL", "https://captcha.example.org/without-a-provider"},
		{"CAPTCHA_FAILURE", "  "},
		{"CAPTCHA_FAILURE", "strict"},
		{"CAPTCHA_FAILURE", "open"}, // without a provider
		{"VERCEL", "  "},
		{"STORE_DEADLINE", "\t"},
		{"STORE_DEADLINE", "2"},
		{"STORE_DEADLINE", "0s"},
		{"STORE_DEADLINE", "-1s"},
		{"STORE_DEADLINE", "999us"},
		{"STORE_DEADLINE", "10001ms"},
		{"ALLOWED_ORIGINS", "  "},
		{"ALLOWED_ORIGINS", "*"},
		{"ALLOWED_ORIGINS", "null"},
		{"ALLOWED_ORIGINS", "https://*.example.org"},
		{"ALLOWED_ORIGINS", "https://app.example.org/"},
		{"ALLOWED_ORIGINS", "https://app.example.org?x"},
		{"ALLOWED_ORIGINS", "https://me@app.example.org"},
		{"ALLOWED_ORIGINS", "https://app.example.org:"},
		{"ALLOWED_ORIGINS", "https://app.example.org,"},
		{"ALLOWED_ORIGINS", "app.example.org"},
		{"ALLOWED_ORIGINS", "ftp://app.example.org"},
		{"SESSION_SAMESITE", " "},
		{"SESSION_SAMESITE", "strict"},
		{"DEMO", " "},
		{"DEMO", "yes"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			env := platform()
			env[c.name] = c.value
			if c.value == unset {
				delete(env, c.name)
			}
			s, err := LoadSettings(lookupIn(env), t.TempDir())
			if err == nil {
				t.Fatalf("no error, got %+v", s)
			}
			if !strings.Contains(err.Error(), c.name) || strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), testSecret) {
				t.Errorf("error text %q", err)
			}
			if s.Secret != nil || s.DatabaseURL != "" {
				t.Errorf("an error came with settings: %+v", s)
			}
		})
	}
}

// everySetting holds a good value of each setting, all of them together.
func everySetting() map[string]string {
	const secret = "s3cr3t9abcdef0123456789abcdef0123"
	return map[string]string{
		"VERCEL":                     "1",
		"TURSO_DATABASE_URL":         "libsql://s3cr3t.example.org",
		"TURSO_AUTH_TOKEN":           secret,
		"TURSO_DATABASE_URLS":        "libsql://s3cr3t-0.example.org,libsql://s3cr3t-1.example.org",
		"TURSO_DATABASE_URLS_NEXT":   "libsql://s3cr3t-2.example.org",
		"RATE_LIMIT_SECRET":          secret,
		"RATE_LIMIT_SECRET_PREVIOUS": "another " + secret,
		"RATE_LIMIT_POLICIES":        "[{\"name\":\"x\",\n\"algorithm\":\"fixed-window\",\r\n\"limit\":1,\"window\":\"1m\"}]",
		"LIMITS_API_TOKEN":           secret,
		"CRON_SECRET":                secret,
		"SIGN_IN_POLICY":             "hardened",
		"CAPTCHA_PROVIDER":           "turnstile",
		"CAPTCHA_SECRET":             secret,
		"CAPTCHA_SITE_KEY":           "key",
		"CAPTCHA_URL":                "https://captcha.example.org/s3cr3t",
		"CAPTCHA_FAILURE":            "refuse",
		"SMTP_URL":                   "smtps://weir:s3cr3t@mail.example.org?from=weir@example.org",
		"SITE_URL":                   "https://weir.example.org",
		"SMS_GATEWAY_URL":            "https://sms.example.org/s3cr3t",
		"SMS_GATEWAY_TOKEN":          secret,
		"BREACHED_PASSWORDS_URL":     "https://breached.example.org/s3cr3t",
		"ALERT_WEBHOOK_URL":          "https://hooks.example.org/s3cr3t",
		"ALERT_WEBHOOK_SECRET":       secret,
		"AUDIT_RETENTION":            "720h",
		"STUFFING_DETECTION":         "on",
		"STUFFING_MIN_FAILURES":      "50",
		"STUFFING_FACTOR":            "4",
		"STUFFING_RATIO_PERCENT":     "75",
		"STORE_DEADLINE":             "500ms",
		"EXPECTED_INSTANCES":         "20",
		"ALLOWED_ORIGINS":            "https://app.example.org, https://other.example.org",
		"SESSION_SAMESITE":           "none",
		"DEMO":                       "1",
	}
}

// Issue 10.20: no setting may have a line end or a blank at its ends, and only JSON a line end
// inside. The names are those that LoadSettings asks for, so that a new setting can't be forgotten.
func TestEverySettingWithALineEndOrABlankAtItsEndsIsNamed(t *testing.T) {
	asked := map[string]bool{}
	good := everySetting()
	_, err := LoadSettings(func(name string) (string, bool) {
		asked[name] = true
		return lookupIn(good)(name)
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(asked)); !slices.Equal(names, slices.Sorted(maps.Keys(good))) {
		t.Fatalf("LoadSettings asks for %q; everySetting has %q", names, slices.Sorted(maps.Keys(good)))
	}
	for name, value := range good {
		wrong := []string{value + "\n", value + "\r\n", value + "\r", "\n" + value, value + "\u2028", value + "\n\n", value + " ", " " + value, value + "\t", value + "\u00a0"}
		if name != "RATE_LIMIT_POLICIES" {
			wrong = append(wrong, value[:1]+"\n"+value[1:]+"x", value+"\r\nx")
		}
		for _, value := range wrong {
			env := everySetting()
			env[name] = value
			root := t.TempDir()
			s, err := LoadSettings(lookupIn(env), root)
			if err == nil || !strings.Contains(err.Error(), "settings: "+name+" ") || strings.Contains(err.Error(), "s3cr3t") || s.Secret != nil {
				t.Errorf("%s=%q: %v", name, value, err)
			}
			if err != nil && strings.Count(err.Error(), "settings:") != 1 {
				t.Errorf("%s=%q: more than one problem: %v", name, value, err)
			}
			if _, err := os.Stat(filepath.Join(root, ".data")); err == nil {
				t.Errorf("%s=%q: a secret was made", name, value)
			}
		}
	}
}

// Issue 10.20: at the first request, as any wrong setting, and mended without a new process.
func TestALineEndIsToldAtTheFirstRequest(t *testing.T) {
	for name, value := range everySetting() {
		t.Setenv(name, value)
	}
	ask := func() (status int, log string) {
		var text bytes.Buffer
		before := processLog
		processLog = slog.New(slog.NewJSONHandler(&text, nil))
		defer func() { processLog = before }()
		w := httptest.NewRecorder()
		Serve("codes", w, httptest.NewRequest("GET", "/api/codes?code=x", nil))
		if strings.Contains(w.Body.String(), "s3cr3t") {
			t.Errorf("the answer holds a secret: %s", w.Body)
		}
		if w.Code == http.StatusServiceUnavailable && w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("Content-Type %s", w.Header().Get("Content-Type"))
		}
		return w.Code, text.String()
	}
	for name, value := range everySetting() {
		t.Setenv(name, value+"\n")
		status, log := ask()
		if status != http.StatusServiceUnavailable || !strings.Contains(log, name+" begins or ends with a line end") || strings.Contains(log, "s3cr3t") {
			t.Errorf("%s: status %d, log %s", name, status, log)
		}
		t.Setenv(name, value)
	}
}

// Issue 10.20: a secret that is kept in a file is another one with the line end that an editor
// adds.
func TestALocalSecretWithALineEndIsNamed(t *testing.T) {
	for _, text := range []string{testSecret + "\n", testSecret + "\r\n", " " + testSecret, testSecret + " ", testSecret[:9] + "\n" + testSecret} {
		root := t.TempDir()
		path := filepath.Join(root, ".data", "secret")
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSettings(lookupIn(nil), root); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), testSecret[:9]) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Row D2: of the CAPTCHA's settings some belong together.
func TestACaptchaIsSetUpWholeOrNotAtAll(t *testing.T) {
	whole := map[string]string{"CAPTCHA_PROVIDER": "hcaptcha", "CAPTCHA_SECRET": "s3cr3t", "CAPTCHA_SITE_KEY": "key"}
	with := func(change ...string) map[string]string {
		env := platform()
		maps.Copy(env, whole)
		for i := 0; i < len(change); i += 2 {
			env[change[i]] = change[i+1]
		}
		return env
	}
	s, err := LoadSettings(lookupIn(with("SIGN_IN_POLICY", "hardened")), "")
	if want := (captcha.Config{Provider: captcha.HCaptcha, Secret: "s3cr3t", SiteKey: "key"}); err != nil || !s.Hardened || s.Captcha == nil || *s.Captcha != want || s.CaptchaOpen {
		t.Errorf("got %+v, %v", s, err)
	}
	s, err = LoadSettings(lookupIn(with("CAPTCHA_PROVIDER", "turnstile", "CAPTCHA_URL", "http://127.0.0.1:9/x", "CAPTCHA_FAILURE", "open", "SIGN_IN_POLICY", "standard")), "")
	if err != nil || s.Hardened || s.Captcha.Provider != captcha.Turnstile || s.Captcha.URL != "http://127.0.0.1:9/x" || !s.CaptchaOpen {
		t.Errorf("got %+v, %v", s, err)
	}
	if s, err = LoadSettings(lookupIn(platform()), ""); err != nil || s.Hardened || s.Captcha != nil || s.CaptchaOpen {
		t.Errorf("without any: got %+v, %v", s, err)
	}
	for _, missing := range []string{"CAPTCHA_SECRET", "CAPTCHA_SITE_KEY"} {
		if _, err := LoadSettings(lookupIn(with(missing, "")), ""); err == nil || strings.Count(err.Error(), "settings:") != 1 || !strings.Contains(err.Error(), missing+" is not set") {
			t.Errorf("without %s: %v", missing, err)
		}
		if _, err := LoadSettings(lookupIn(with(missing, "  ")), ""); err == nil || strings.Count(err.Error(), "settings:") != 1 || !strings.Contains(err.Error(), missing+" holds nothing but blanks") {
			t.Errorf("with a blank %s: %v", missing, err)
		}
	}
	_, err = LoadSettings(lookupIn(with("CAPTCHA_PROVIDER", "", "CAPTCHA_FAILURE", "refuse")), "")
	for _, orphan := range []string{"CAPTCHA_SECRET", "CAPTCHA_SITE_KEY", "CAPTCHA_FAILURE"} {
		if err == nil || !strings.Contains(err.Error(), orphan+" is set without CAPTCHA_PROVIDER") {
			t.Errorf("without a provider: %v does not name %s", err, orphan)
		}
	}
}

func TestAllWrongSettingsAreReportedAtOnce(t *testing.T) {
	_, err := LoadSettings(lookupIn(map[string]string{"VERCEL": "1", "STORE_DEADLINE": "soon", "DEMO": "maybe"}), "")
	for _, name := range []string{"TURSO_DATABASE_URL", "RATE_LIMIT_SECRET", "STORE_DEADLINE", "DEMO"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
	_, err = LoadSettings(lookupIn(nil), "")
	for _, name := range []string{"TURSO_DATABASE_URL", "RATE_LIMIT_SECRET"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without a project folder: %v does not name %s", err, name)
		}
	}
}

func TestProcessesThatMakeTheSecretAtOnceGetTheSame(t *testing.T) {
	const processes = 20
	if root := os.Getenv("WEIR_TEST_SECRET_ROOT"); root != "" {
		secret, err := LocalSecret(root)
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("secret:" + string(secret) + "\n")
		return
	}
	root := t.TempDir()
	outputs := make(chan string, processes)
	for range processes {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "WEIR_TEST_SECRET_ROOT="+root)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				outputs <- err.Error() + string(out)
				return
			}
			first, _, _ := strings.Cut(string(out), "\n")
			outputs <- first
		}()
	}
	seen := map[string]int{}
	for range processes {
		seen[<-outputs]++
	}
	if len(seen) != 1 {
		t.Errorf("got %v, want one secret", seen)
	}
	if left, err := os.ReadDir(filepath.Join(root, ".data")); err != nil || len(left) != 1 {
		t.Errorf("files: %v, %v; want the secret alone", left, err)
	}
}

func TestALocalSecretThatIsShortOrBlankIsNotUsed(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "short": "s3cr3t", "blank": strings.Repeat(" ", 40), "blank lines": strings.Repeat(" \n", 40)} {
		root := t.TempDir()
		path := filepath.Join(root, ".data", "secret")
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSettings(lookupIn(nil), root); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "RATE_LIMIT_SECRET") || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
}

func TestTheDatabasesSettingsAreReadAlone(t *testing.T) {
	env := map[string]string{"TURSO_DATABASE_URL": "libsql://weir.example.org", "TURSO_AUTH_TOKEN": "token", "DEMO": "maybe", "STORE_DEADLINE": "soon"}
	root := t.TempDir()
	db, err := LoadDatabase(lookupIn(env), root)
	if err != nil || db.URL != env["TURSO_DATABASE_URL"] || db.AuthToken != "token" || db.Deadline != 0 {
		t.Errorf("got %+v, %v", db, err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("it made %v, %v; want nothing", left, err)
	}
	if db, err = LoadDatabase(lookupIn(nil), root); err != nil || db.URL != LocalDatabaseURL(root) {
		t.Errorf("unset: got %+v, %v; want the embedded file", db, err)
	}
	env["TURSO_AUTH_TOKEN"] = " "
	if db, err = LoadDatabase(lookupIn(env), root); err == nil || db.URL != "" || !strings.Contains(err.Error(), "TURSO_AUTH_TOKEN") {
		t.Errorf("a blank token: got %+v, %v", db, err)
	}
}

func TestTheRootIsFoundFromBelowVercelDevsFolder(t *testing.T) {
	root := t.TempDir()
	below := filepath.Join(root, ".vercel", "cache", "go", "x1y2")
	err := errors.Join(
		os.MkdirAll(below, 0o755),
		os.Mkdir(filepath.Join(root, "api"), 0o755),
		os.Mkdir(filepath.Join(root, ".vercel", "api"), 0o755), // alone it doesn't make a root
		os.WriteFile(filepath.Join(root, "vercel.json"), []byte("{}"), 0o644),
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, start := range []string{root, below} {
		if got, err := FindRoot(start); err != nil || got != root {
			t.Errorf("from %s: got %q, %v; want %q", start, got, err, root)
		}
	}
	if got, err := FindRoot(t.TempDir()); err == nil {
		t.Errorf("from outside: got %q, want an error", got)
	}
}

func TestTheDetectionOfAttacksCanBeOff(t *testing.T) {
	env := map[string]string{"RATE_LIMIT_SECRET": testSecret, "TURSO_DATABASE_URL": "file:/somewhere/weir.db"}
	for value, on := range map[string]bool{"": true, "on": true, "off": false} {
		env["STUFFING_DETECTION"] = value
		if s, err := LoadSettings(lookupIn(env), ""); err != nil || (s.Stuffing != nil) != on {
			t.Errorf("%q: got %v, %v", value, s.Stuffing, err)
		}
	}
}

// manyShards is a list of so many databases.
func manyShards(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("libsql://weir-%d.example.org", i))
	}
	return strings.Join(all, ",")
}

// Row D6: what a list of shards means, and which two lists go together.
func TestShardsHaveTheNamesOfTheirHostsOrTheirOwn(t *testing.T) {
	const own = "libsql://weir.example.org"
	for what, c := range map[string]struct {
		now, next string
		want      string // now | next, or what is wrong
	}{
		"none":                       {"", "", " | "},
		"hosts":                      {"libsql://B.example.org, https://a.example.org/", "", "b.example.org a.example.org | "},
		"names":                      {"one=libsql://b.example.org,two=" + own, "", "one two | "},
		"a port and a path":          {"http://127.0.0.1:8080/x,http://127.0.0.1:8081/x", "", "127.0.0.1:8080/x 127.0.0.1:8081/x | "},
		"one more":                   {"libsql://a.example.org", "libsql://b.example.org,https://a.example.org", "a.example.org | b.example.org a.example.org"},
		"from the database itself":   {"", own + ",libsql://b.example.org", "weir.example.org | weir.example.org b.example.org"},
		"from it, with names":        {"", "a=" + own + ",b=libsql://b.example.org", "a | a b"},
		"away from it":               {"", "libsql://b.example.org", "weir.example.org | b.example.org"},
		"the same in another order":  {"libsql://a.example.org,libsql://b.example.org", "libsql://b.example.org,libsql://a.example.org", "in already"},
		"a name that moves":          {"a=libsql://a.example.org", "a=libsql://b.example.org", "move the database first"},
		"a database with a new name": {"a=libsql://a.example.org", "b=libsql://a.example.org", "another name"},
		"names that come":            {"libsql://a.example.org", "a=libsql://a.example.org,b=libsql://b.example.org", "another name"},
	} {
		env := platform()
		env["TURSO_DATABASE_URL"], env["TURSO_DATABASE_URLS"], env["TURSO_DATABASE_URLS_NEXT"] = own, c.now, c.next
		s, err := LoadSettings(lookupIn(env), "")
		names := func(shards []ShardSetting) string {
			var all []string
			for _, shard := range shards {
				all = append(all, shard.Name)
			}
			return strings.Join(all, " ")
		}
		got := names(s.Shards) + " | " + names(s.NextShards)
		if err != nil {
			if strings.Contains(err.Error(), "example.org") {
				t.Errorf("%s: an error repeats a URL: %v", what, err)
			}
			got = err.Error()
		}
		if !strings.Contains(c.want, "|") && !strings.Contains(got, c.want) || strings.Contains(c.want, "|") && got != c.want {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
}
