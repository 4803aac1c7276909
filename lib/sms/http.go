package sms

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/weirlimits/weir/lib/egress"
)

// DefaultDeadline is how long a gateway may take. A request of the application as a whole has 10 seconds.
const DefaultDeadline = 5 * time.Second

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
	case u.Scheme == "http" && !egress.IsLoopback(u.Hostname()):
		return fail("it is http to another machine")
	}
	return u.String(), nil
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
	return &HTTP{config: config, client: egress.NewClient()}
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
		return fmt.Errorf("%w: %s", ErrUnknown, egress.Reason(ctx, err))
	case err != nil:
		return fmt.Errorf("%w: no connection: %s", ErrNotSent, egress.Reason(ctx, err))
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
