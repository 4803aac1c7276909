// Package webhook posts JSON, signed if wanted, to a URL of the operator's, in the form of Standard Webhooks
// (github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md), for which there are libraries to check it with.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// MinSecretBytes is the shortest secret: as long as the hash.
const MinSecretBytes = 32

// DefaultDeadline is time enough for a receiver to put a message into a queue of its own.
const DefaultDeadline = 3 * time.Second

// maxHeaderBytes bounds the header of an answer. Its body is not read at all.
const maxHeaderBytes = 16 << 10

// MaxRetryAfter bounds what a receiver's Retry-After is taken for: longer than a receiver is down,
// and shorter than a message is worth sending.
const MaxRetryAfter = 24 * time.Hour

// BusyError says that a receiver answered 429 or 503 and said with Retry-After when to ask again.
type BusyError struct {
	Status int
	After  time.Duration // 1 s to MaxRetryAfter
}

func (e BusyError) Error() string {
	return fmt.Sprintf("webhook: the receiver answered %d and wants to be asked again in %v", e.Status, e.After)
}

// RetryAfter returns how long to wait before the receiver is asked again.
func (e BusyError) RetryAfter() time.Duration { return e.After }

// retryAfter reads Retry-After (RFC 9110, section 10.2.3): seconds, or a date. It returns 0 for
// none, for what can't be read and for what is over.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if text != "" && strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds > int64(MaxRetryAfter/time.Second) { // more digits than fit are a long time too
			return MaxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	// A date has whole seconds: rounded up, so that the receiver isn't asked too early.
	wait := (at.Sub(now) + time.Second - 1).Truncate(time.Second)
	return min(max(wait, 0), MaxRetryAfter)
}

// Config says where messages go. URL is required.
type Config struct {
	// URL begins with https://, or http:// for this machine alone: see ParseURL. It may hold a secret.
	URL *url.URL
	// Secret keys the signatures; at least MinSecretBytes long. Nil: messages are not signed, for receivers that know a sender by
	// the URL alone.
	Secret []byte
	// Deadline bounds one message as a whole. Zero means DefaultDeadline.
	Deadline time.Duration
	// Now gives the time of the signatures. Nil means the process's clock: a receiver compares it with its own.
	Now func() time.Time
}

// URLRule says what a URL may be.
const URLRule = "a URL such as https://hooks.example.org/weir, without user name and fragment; http is allowed for this machine alone"

var errURL = errors.New("allowed is " + URLRule)

// ParseURL reads the URL of a receiver. The error says the rule, and nothing of the URL.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Opaque != "" || u.User != nil || strings.Contains(text, "#") {
		return nil, errURL
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, errURL
		}
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		return nil, errURL
	}
	return u, nil
}

// isLoopback says whether a host is this machine.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}

// Webhook posts messages. It may be used by many goroutines.
type Webhook struct {
	config Config
	client http.Client
}

// New makes a Webhook. It panics on a Config that is not as its comments say.
func New(config Config) *Webhook {
	if config.URL == nil || config.Secret != nil && len(config.Secret) < MinSecretBytes {
		panic("webhook: no URL, or a short secret")
	}
	if config.Deadline == 0 {
		config.Deadline = DefaultDeadline
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Webhook{config: config, client: http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DisableKeepAlives:      true, // a function is frozen between requests, and its connections with it
			MaxResponseHeaderBytes: maxHeaderBytes,
		},
		// What is signed for one receiver is for no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Post sends a message once. It is taken when the receiver answers 2xx; what it says besides is not
// read. The id tells the message from others, and stays the same when it is sent again; it has no
// dot. An error tells neither URL nor secret; it is a BusyError if the receiver said when to ask
// again.
func (w *Webhook) Post(ctx context.Context, id string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, w.config.Deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.config.URL.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("webhook: the request can't be made")
	}
	timestamp := strconv.FormatInt(w.config.Now().Unix(), 10)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "Weir")
	request.Header.Set("Webhook-Id", id)
	request.Header.Set("Webhook-Timestamp", timestamp)
	if w.config.Secret != nil {
		request.Header.Set("Webhook-Signature", "v1,"+w.signature(id, timestamp, body))
	}
	response, err := w.client.Do(request)
	if err != nil {
		return fmt.Errorf("webhook: %w", withoutURL(err))
	}
	response.Body.Close()
	if status := response.StatusCode; status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		if after := retryAfter(response.Header, w.config.Now()); after > 0 {
			return BusyError{status, after}
		}
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("webhook: the receiver answered %d", response.StatusCode)
	}
	return nil
}

func (w *Webhook) signature(id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, w.config.Secret)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// withoutURL takes from an error of http.Client what it says of where the request went.
func withoutURL(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errors.New("no answer in time")
	}
	var whole *url.Error
	if errors.As(err, &whole) {
		err = whole.Err
	}
	var name *net.DNSError
	if errors.As(err, &name) {
		return errors.New("the receiver's host is not found")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}
