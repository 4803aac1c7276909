// Package breached says whether a password is in lists of stolen ones, which is where guesses begin (NIST SP 800-63B,
// section 3.1.1.2): in a short list of its own, and in those of a service that learns five digits of the password's hash.
package breached

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/egress"
)

// Errors that callers branch on, with errors.Is. No error holds a password, its hash or a part of that.
var (
	// ErrURL means that a text is no URL of a service: see ParseURL.
	ErrURL = errors.New("breached: URL not valid")
	// ErrUnknown means that a service didn't answer in time, or answered nonsense.
	ErrUnknown = errors.New("breached: not known")
)

const (
	// prefixDigits is what a service learns of a hash: one of a million prefixes, each of which some thousand stolen passwords have.
	prefixDigits = 5
	suffixDigits = 2*sha1.Size - prefixDigits
)

// Source lists the hashes that begin with a prefix.
type Source interface {
	// Suffixes gives what follows prefix, five digits in upper-case hexadecimal, in the SHA-1 of each password that is listed:
	// 35 such digits. An error matches ErrUnknown.
	Suffixes(ctx context.Context, prefix string) ([]string, error)
}

// IsListed says whether a password is in the lists of a source, which learns the prefix of its hash alone. An error matches
// ErrUnknown.
func IsListed(ctx context.Context, source Source, password string) (bool, error) {
	sum := sha1.Sum([]byte(password)) // not for its strength: it is what the lists are sorted by
	digits := strings.ToUpper(hex.EncodeToString(sum[:]))
	suffixes, err := source.Suffixes(ctx, digits[:prefixDigits])
	return err == nil && slices.Contains(suffixes, digits[prefixDigits:]), err
}

// DefaultDeadline bounds a question when HTTPConfig.Deadline is zero. Whoever signs up waits for it.
const DefaultDeadline = 2 * time.Second

// maxBodyBytes bounds an answer: 20 times what a padded one has, some 1,600 lines of 40 bytes.
const maxBodyBytes = 20 * 1600 * 40

// HTTPConfig says where a service is.
type HTTPConfig struct {
	// URL is what a prefix is put behind, as ParseURL gives it. Required.
	URL string
	// Deadline bounds a question from connecting to the end of the answer. Zero means DefaultDeadline.
	Deadline time.Duration
}

// ParseURL reads the URL that a prefix is put behind, such as https://api.pwnedpasswords.com/range/. It is https, or http to this
// machine, has no user name, query or fragment, and gets a slash at its end if it has none. An error matches ErrURL and
// holds nothing of the text.
func ParseURL(text string) (string, error) {
	fail := func(reason string) (string, error) {
		return "", fmt.Errorf("%w: %s: allowed is https://HOST/PATH/, or http to this machine", ErrURL, reason)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fail("it can't be read") // the cause repeats the text
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return fail("it is no URL of HTTP with a host")
	case u.User != nil:
		return fail("it holds a user name")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fail("it has something behind its path")
	case u.Scheme == "http" && !egress.IsLoopback(u.Hostname()):
		return fail("it is http to another machine")
	}
	return strings.TrimSuffix(u.String(), "/") + "/", nil
}

// HTTP is a Source by the protocol of Have I Been Pwned's range API
// (https://haveibeenpwned.com/API/v3#SearchingPwnedPasswordsByRange). Each question takes a connection of its own: a function is
// frozen between requests. It holds no state and may be used by many goroutines.
type HTTP struct {
	config HTTPConfig
	client *http.Client
}

// NewHTTP makes a Source. It connects to nothing.
func NewHTTP(config HTTPConfig) *HTTP {
	if config.Deadline == 0 {
		config.Deadline = DefaultDeadline
	}
	return &HTTP{config: config, client: egress.NewClient()}
}

// Suffixes implements Source: GET of the prefix, answered by lines SUFFIX:COUNT. Padding is asked for, so that the length of
// an encrypted answer doesn't tell which prefix it was; it has counts of 0 and is left out. An answer that is
// longer than ever, or has a line of another form, is one that can't be relied on.
func (h *HTTP) Suffixes(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, h.config.Deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.config.URL+prefix, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: the service's URL can't be read", ErrUnknown)
	}
	request.Header.Set("Add-Padding", "true")
	request.Header.Set("User-Agent", "weir") // the service refuses requests without one
	response, err := h.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, egress.Reason(ctx, err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: answer %d", ErrUnknown, response.StatusCode)
	}
	body := &io.LimitedReader{R: response.Body, N: maxBodyBytes + 1}
	suffixes, err := read(body)
	switch {
	case body.N == 0:
		return nil, fmt.Errorf("%w: an answer of more than %d bytes", ErrUnknown, maxBodyBytes)
	case errors.Is(err, errForm):
		return nil, fmt.Errorf("%w: an answer with a line that is not SUFFIX:COUNT", ErrUnknown)
	case err != nil:
		return nil, fmt.Errorf("%w: %s", ErrUnknown, egress.Reason(ctx, err))
	}
	return suffixes, nil
}

var errForm = errors.New("a line of another form")

// read reads an answer.
func read(body io.Reader) (suffixes []string, err error) {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		suffix, count, _ := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		suffix = strings.ToUpper(suffix)
		if len(suffix) != suffixDigits || strings.Trim(suffix, "0123456789ABCDEF") != "" || count == "" || strings.Trim(count, "0123456789") != "" {
			return nil, errForm
		}
		if strings.Trim(count, "0") != "" {
			suffixes = append(suffixes, suffix)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, errForm
	}
	return suffixes, lines.Err()
}
