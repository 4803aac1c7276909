// Package egress is how the application asks services outside over HTTP: once, of nobody else, and with errors that tell no URL.
package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
)

// maxHeaderBytes bounds the header of an answer. What is read of its body is for the caller to bound.
const maxHeaderBytes = 16 << 10

// NewClient makes a client for one service. It connects to nothing yet, has no deadline of its own and may be used by many
// goroutines.
//
//   - Each request takes a connection of its own, since a function is frozen between requests; that also keeps the transport
//     from trying again.
//   - Redirects are not followed: they could lead what is sent anywhere.
//   - Answers are not unpacked, so that what is bounded is what was sent.
func NewClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	transport.MaxResponseHeaderBytes = maxHeaderBytes
	transport.DisableCompression = true
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Reason tells for the log why there is no answer. The error itself is left out: it repeats the URL, and what is in that. Ctx is
// the request's.
func Reason(ctx context.Context, err error) string {
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

// IsLoopback says whether a host, a name or an address without a port, is this machine: what goes there may go unencrypted.
func IsLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
