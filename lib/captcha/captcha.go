// Package captcha asks the provider of a CAPTCHA whether a token that a browser got from its widget is good.
package captcha

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/weirlimits/weir/lib/egress"
)

// MaxTokenBytes bounds a token: Turnstile's have 2,048 characters at the most, hCaptcha's some more.
const MaxTokenBytes = 8 << 10

// DefaultDeadline is how long a provider may take. A request of the application as a whole has 10 seconds.
const DefaultDeadline = 3 * time.Second

// maxAnswerBytes bounds an answer. A provider's has some hundred bytes.
const maxAnswerBytes = 16 << 10

// ErrRefused means that the provider doesn't take the token for good: it is made up, too old, or was shown before.
// ErrUnavailable means that nobody knows: the provider did not answer, or said nothing about the token.
var (
	ErrRefused     = errors.New("captcha: the token is not good")
	ErrUnavailable = errors.New("captcha: the provider did not say whether the token is good")
)

// Provider is one that is known here: Turnstile or HCaptcha.
type Provider string

const (
	Turnstile Provider = "turnstile" // developers.cloudflare.com/turnstile/get-started/server-side-validation
	HCaptcha  Provider = "hcaptcha"  // docs.hcaptcha.com/#verify-the-user-response-server-side
)

// addresses are where the providers are asked.
var addresses = map[Provider]string{
	Turnstile: "https://challenges.cloudflare.com/turnstile/v0/siteverify",
	HCaptcha:  "https://api.hcaptcha.com/siteverify",
}

// Providers are those that are known, in order.
func Providers() []Provider { return []Provider{HCaptcha, Turnstile} }

// Verifier says whether a token is good. A token is good once. An error matches ErrRefused or ErrUnavailable.
type Verifier interface {
	Verify(ctx context.Context, token string) error
}

// Config says whom to ask, and as whom. Provider, SiteKey and Secret are required.
type Config struct {
	Provider Provider
	// SiteKey is the public one, which the widget has too.
	SiteKey string
	// Secret is the site's.
	Secret string
	// URL, as ParseURL takes it, is asked in place of the provider's own: for a proxy, or a provider with the same
	// protocol. Empty: the provider's own.
	URL string
	// Deadline bounds a question from connecting to the end of the answer. Zero means DefaultDeadline.
	Deadline time.Duration
}

var errURL = errors.New("allowed is https://HOST/PATH, without user name and fragment, or http to this machine")

// ParseURL reads the URL of a provider: https, or http to this machine (localhost, 127.0.0.0/8, ::1), since the secret would
// travel unencrypted. The error says the rule, and nothing of the text.
func ParseURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.User != nil || strings.Contains(text, "#"):
		return "", errURL
	case u.Scheme != "https" && (u.Scheme != "http" || !egress.IsLoopback(u.Hostname())):
		return "", errURL
	}
	return u.String(), nil
}

// HTTP is a Verifier that asks a provider over HTTP. Each question takes a connection of its own: a function is frozen between
// requests. It holds no state and may be used by many goroutines.
type HTTP struct {
	config Config
	client *http.Client
}

// NewHTTP makes a Verifier. It connects to nothing. It panics on a provider that is not known.
func NewHTTP(config Config) *HTTP {
	if config.URL == "" {
		config.URL = addresses[config.Provider]
	}
	if config.Deadline == 0 {
		config.Deadline = DefaultDeadline
	}
	if addresses[config.Provider] == "" {
		panic("captcha: the provider is not known")
	}
	return &HTTP{config: config, client: egress.NewClient()}
}

// Verify implements Verifier: POST with a form of the secret, the token and the site's key, once. The client's address is left
// out: the provider has no need of it, and a client that has several would be refused.
//
// Only success true in an answer 200 makes a token good. It is refused by success false, and by an answer that says that the
// request was wrong (400, 413, 422), since what a client can change in it is the token alone. An answer that it is the secret,
// or the provider itself, that something is wrong with is ErrUnavailable, like no answer, one of any other status, and one that
// can't be read. So no client can make a token one of which nobody knows.
func (h *HTTP) Verify(ctx context.Context, token string) error {
	if !CanBeToken(token) { // so that no token makes the provider fail in a way of its own
		return fmt.Errorf("%w: it is none", ErrRefused)
	}
	form := url.Values{"secret": {h.config.Secret}, "response": {token}, "sitekey": {h.config.SiteKey}}
	if h.config.Provider != HCaptcha { // the others know it by the secret
		form.Del("sitekey")
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.Deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.config.URL, strings.NewReader(form.Encode()))
	if err != nil {
		return fmt.Errorf("%w: its URL can't be read", ErrUnavailable)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "Weir")
	response, err := h.client.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %s", ErrUnavailable, egress.Reason(ctx, err))
	}
	defer response.Body.Close()
	switch status := response.StatusCode; status {
	case http.StatusOK:
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
	default:
		return fmt.Errorf("%w: answer %d", ErrUnavailable, status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s", ErrUnavailable, egress.Reason(ctx, err))
	case len(body) > maxAnswerBytes:
		return fmt.Errorf("%w: its answer is larger than %d bytes", ErrUnavailable, maxAnswerBytes)
	}
	return judge(response.StatusCode, body)
}

// CanBeToken says whether a text can be a token: 1 to MaxTokenBytes of visible ASCII.
func CanBeToken(token string) bool {
	return token != "" && len(token) <= MaxTokenBytes && !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}

// What providers say besides no, by both their documentations. Of the first kind a token is no cause, whatever it is; a token that
// was made for another site may well be the cause of a mismatch.
var (
	ofOthers = []string{"missing-input-secret", "invalid-input-secret", "internal-error"}
	ofToken  = []string{
		"missing-input-response", "invalid-input-response", "expired-input-response", "timeout-or-duplicate", "already-seen-response",
		"invalid-or-already-seen-response", "bad-request", "sitekey-secret-mismatch", "invalid-sitekey", "not-using-dummy-secret",
		"not-using-dummy-passcode",
	}
)

// judge reads an answer. Providers add fields as they like; success has to be there, once, and true or false. Of the codes those
// that are known go into the error.
func judge(status int, body []byte) error {
	var answer struct {
		Success *bool    `json:"success"`
		Codes   []string `json:"error-codes"`
	}
	unread := json.Unmarshal(body, &answer) != nil || answer.Success == nil
	if !unread && *answer.Success && status == http.StatusOK {
		return nil
	}
	said := fmt.Sprintf("answer %d", status)
	for _, code := range answer.Codes {
		switch {
		case unread:
		case slices.Contains(ofOthers, code):
			return fmt.Errorf("%w: it says %s", ErrUnavailable, code)
		case slices.Contains(ofToken, code):
			said = "the provider says " + code
		}
	}
	if unread && status == http.StatusOK {
		return fmt.Errorf("%w: its answer can't be read", ErrUnavailable)
	}
	return fmt.Errorf("%w: %s", ErrRefused, said)
}
