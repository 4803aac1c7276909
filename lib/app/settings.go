package app

import (
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
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/database"
)

// minSecretBytes is the length of RATE_LIMIT_SECRET from which guessing it is out of reach, HMAC-SHA256's own output.
const minSecretBytes = 32

// The bounds of STORE_DEADLINE: below a millisecond no store answers, above half a minute no client waits.
const (
	minStoreDeadline = time.Millisecond
	maxStoreDeadline = 30 * time.Second
)

// Settings is what the environment says, read once. It holds secrets: it must not be logged.
type Settings struct {
	// Platform says that the process runs on Vercel, where the platform's address headers can be believed.
	Platform bool

	// Root is the project's folder, "" where there is none (a deployed function).
	Root string

	// DatabaseURL and AuthToken are what database.Config takes.
	DatabaseURL string
	AuthToken   string

	// Secret keys the HMACs of subjects. At least 32 bytes.
	Secret []byte

	// StoreDeadline bounds each call to the database.
	StoreDeadline time.Duration

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
	s := Settings{Root: root, Platform: e.text("VERCEL") != ""}

	s.AuthToken = e.text("TURSO_AUTH_TOKEN")
	s.DatabaseURL = e.text("TURSO_DATABASE_URL")
	switch {
	case s.DatabaseURL != "":
		e.check(database.Config{URL: s.DatabaseURL, AuthToken: s.AuthToken}.Validate())
	case e.failed["TURSO_DATABASE_URL"]:
	case s.Platform:
		e.fail("TURSO_DATABASE_URL", "is not set: on the platform it must be, such as libsql://NAME.example.org")
	case root == "":
		e.fail("TURSO_DATABASE_URL", "is not set, and there is no project folder to keep an embedded file in")
	default:
		s.DatabaseURL = LocalDatabaseURL(root)
	}

	s.Secret = e.secret("RATE_LIMIT_SECRET")
	switch {
	case s.Secret != nil || e.failed["RATE_LIMIT_SECRET"]:
	case s.Platform:
		e.fail("RATE_LIMIT_SECRET", fmt.Sprintf("is not set: on the platform it must be, with at least %d bytes", minSecretBytes))
	case root == "":
		e.fail("RATE_LIMIT_SECRET", "is not set, and there is no project folder to keep one in")
	default:
		secret, err := LocalSecret(root)
		e.check(err)
		s.Secret = secret
	}

	s.StoreDeadline = e.deadline("STORE_DEADLINE", database.DefaultDeadline)
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

// text reads a variable. Unset and empty are the same, ""; a value of blanks alone is a mistake.
func (e *environment) text(name string) string {
	value, ok := e.lookup(name)
	if !ok {
		return ""
	}
	if value != "" && strings.TrimSpace(value) == "" {
		e.fail(name, "holds nothing but blanks: set it to a value or leave it out")
		return ""
	}
	return value
}

func (e *environment) secret(name string) []byte {
	value := e.text(name)
	if value == "" {
		return nil
	}
	if len(value) < minSecretBytes {
		e.fail(name, fmt.Sprintf("has %d bytes: at least %d are allowed", len(value), minSecretBytes))
		return nil
	}
	return []byte(value)
}

func (e *environment) deadline(name string, byDefault time.Duration) time.Duration {
	text := e.text(name)
	if text == "" {
		return byDefault
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minStoreDeadline || d > maxStoreDeadline {
		e.fail(name, fmt.Sprintf("is %q: allowed is a Go duration from %v to %v, such as 500ms", text, minStoreDeadline, maxStoreDeadline))
	}
	return d
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
	if len(secret) < minSecretBytes {
		return nil, fmt.Errorf("settings: %s has %d bytes: at least %d are allowed; delete it to have a new one made", path, len(secret), minSecretBytes)
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
	random := make([]byte, minSecretBytes)
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
