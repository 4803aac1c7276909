package sms

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"
)

// DefaultDeadline is how long a gateway may take. A request of the application as a whole has 10 seconds.
const DefaultDeadline = 5 * time.Second

// maxHeaderBytes bounds what is read of an answer. Its body is not read at all.
const maxHeaderBytes = 16 << 10

// HTTPConfig says where a gateway is and how it is asked.
type HTTPConfig struct {
	// URL as ParseURL takes it. Required.
	URL string
	// Token goes along as bearer token. Empty: none does.
	Token string
	// Deadline bounds a message from connecting to the answer. Zero means DefaultDeadline.
	Deadline time.Duration
}

// ParseURL reads the URL of a gateway: https, or http to this machine (localhost, 127.0.0.0/8, ::1), since a code and a token
// would travel unencrypted. It has no user name, password or fragment. An error matches ErrURL and holds nothing of the text.
func ParseURL(text string) (string, error) {
	fail := func(reason string) (string, error) {
		return "", fmt.Errorf("%w: %s: allowed is https://HOST/PATH, or http to this machine", ErrURL, reason)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fail("it can't be read") // the cause repeats the text
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return fail("it is no URL of HTTP with a host")
	case u.User != nil:
		return fail("it holds a user name: the token is a setting of its own")
	case u.Fragment != "":
		return fail("it has a fragment")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return fail("it is http to another machine")
	}
	return u.String(), nil
}

// isLoopback says whether a host is this machine.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// HTTP is a Gateway that is asked over HTTP. Each message takes a connection of its own: a function is frozen between
// requests. It holds no state and may be used by many goroutines.
type HTTP struct {
	config HTTPConfig
	client *http.Client
}

// NewHTTP makes a Gateway. It connects to nothing.
func NewHTTP(config HTTPConfig) *HTTP {
	if config.Deadline == 0 {
		config.Deadline = DefaultDeadline
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // which also keeps the transport from trying again
	transport.MaxResponseHeaderBytes = maxHeaderBytes
	transport.DisableCompression = true
	return &HTTP{config: config, client: &http.Client{
		Transport: transport,
		// A redirect could lead the number, the code and the token anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Send implements Gateway: POST with the JSON object {"to", "text"}, to be answered with
//
//   - 2xx: taken;
//   - 422: this number gets no messages, ErrRefused;
//   - 3xx, any other 4xx, and 503: not taken, ErrNotSent;
//   - anything else, or nothing once the request was on its way: ErrUnknown.
//
// A message is offered once. Of an answer nothing but the status is looked at.
func (g *HTTP) Send(ctx context.Context, message Message) error {
	if err := message.check(); err != nil {
		return err
	}
	body, err := json.Marshal(struct {
		To   string `json:"to"`
		Text string `json:"text"`
	}{message.To, message.Text})
	if err != nil {
		return fmt.Errorf("%w: it can't be written as JSON", ErrMessage)
	}
	ctx, cancel := context.WithTimeout(ctx, g.config.Deadline)
	defer cancel()
	var begun atomic.Bool // the request is on its way: its first bytes may be written, and its last
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { begun.Store(true) }})
	request, err := http.NewRequestWithContext(traced, http.MethodPost, g.config.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: the gateway's URL can't be read", ErrNotSent)
	}
	request.Header.Set("Content-Type", "application/json")
	if g.config.Token != "" {
		request.Header.Set("Authorization", "Bearer "+g.config.Token)
	}
	response, err := g.client.Do(request)
	switch {
	case err != nil && begun.Load():
		return fmt.Errorf("%w: %s", ErrUnknown, reason(ctx, err))
	case err != nil:
		return fmt.Errorf("%w: no connection: %s", ErrNotSent, reason(ctx, err))
	}
	response.Body.Close()
	switch status := response.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusUnprocessableEntity:
		return ErrRefused
	case status >= 300 && status < 500, status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: answer %d", ErrNotSent, status)
	default:
		return fmt.Errorf("%w: answer %d", ErrUnknown, status)
	}
}

// reason tells for the log why there is no answer. The error itself is left out: it repeats the URL.
func reason(ctx context.Context, err error) string {
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case ctx.Err() != nil:
		return "cancelled"
	case errors.As(err, &certificate):
		return "the certificate is not valid"
	}
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	return fmt.Sprintf("an error of type %T", err)
}
