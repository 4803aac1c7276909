package mail

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// TLS says how a connection to an SMTP server is encrypted.
type TLS int

// The ways of encrypting. The zero value is the one that no server in between can talk out of it.
const (
	// ImplicitTLS begins with TLS (RFC 8314, section 3.3).
	ImplicitTLS TLS = iota
	// StartTLS begins in the clear and switches, or fails: nothing is sent to a server that doesn't offer it.
	StartTLS
	// NoTLS encrypts nothing.
	NoTLS
)

// The ports of submission: RFC 8314, section 7.3, and RFC 6409, section 3.1.
const (
	implicitTLSPort = 465
	submissionPort  = 587
)

// urlHelp follows the reason in every error about a URL. The URL itself never does: it may hold a password.
const urlHelp = "allowed are smtps://USER:PASSWORD@HOST:465?from=ADDRESS and smtp://USER:PASSWORD@HOST:587?from=ADDRESS, " +
	"the latter with tls=starttls or tls=none"

// ParseURL reads the URL of an SMTP server:
//
//	smtps://USER:PASSWORD@HOST:PORT?from=ADDRESS  TLS from the start; the port is 465 when left out
//	smtp://USER:PASSWORD@HOST:PORT?from=ADDRESS   STARTTLS is required; the port is 587 when left out
//
// USER and PASSWORD, percent-encoded, may be left out together. From is the sender's address. A server on this machine
// (localhost, 127.0.0.0/8, ::1) is spoken to without TLS by smtp unless tls=starttls is said; any other only with tls=none, and
// then without a password, which would travel unencrypted.
//
// Anything else, unknown and repeated parameters included, is an error that matches ErrURL and holds nothing of the text.
func ParseURL(text string) (SMTPConfig, error) {
	fail := func(reason string) (SMTPConfig, error) {
		return SMTPConfig{}, fmt.Errorf("%w: %s: %s", ErrURL, reason, urlHelp)
	}
	u, err := url.Parse(text)
	if err != nil {
		return fail("it can't be read") // the cause repeats the text
	}
	config := SMTPConfig{Host: u.Hostname()}
	switch u.Scheme {
	case "smtps":
		config.Port = implicitTLSPort
	case "smtp":
		config.Port, config.TLS = submissionPort, StartTLS
		if isLoopback(config.Host) {
			config.TLS = NoTLS
		}
	default:
		return fail("its scheme is neither smtps nor smtp")
	}
	switch {
	case u.Opaque != "" || config.Host == "" || strings.ContainsFunc(config.Host, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fail("it has no host")
	case u.Path != "" && u.Path != "/":
		return fail("it has a path")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return fail("it has a fragment: # in a password is written %23")
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return fail("its port is not one of 1 to 65535")
		}
		config.Port = int(number)
	}

	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("its query can't be read")
	}
	for name, values := range query {
		if (name != "from" && name != "tls") || len(values) > 1 {
			return fail("its query has a parameter that is unknown or there twice")
		}
	}
	if config.From, err = ParseAddress(query.Get("from")); err != nil {
		return fail("from is missing or no address")
	}
	if query.Has("tls") {
		way, found := map[string]TLS{"starttls": StartTLS, "none": NoTLS}[query.Get("tls")]
		if !found || u.Scheme == "smtps" {
			return fail("tls is neither starttls nor none, or goes with smtps")
		}
		config.TLS = way
	}

	if u.User != nil {
		config.User = u.User.Username()
		config.Password, _ = u.User.Password()
		switch {
		case config.User == "" || config.Password == "":
			return fail("it has a user name without a password, or the other way round")
		case strings.ContainsFunc(config.User+config.Password, unicode.IsControl):
			return fail("its user name or password has a control character")
		case config.TLS == NoTLS && !isLoopback(config.Host):
			return fail("its password would travel unencrypted")
		}
	}
	return config, nil
}

// isLoopback says whether a host is this machine.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.Unmap().IsLoopback()
}
