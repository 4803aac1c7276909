package accounts

import (
	"fmt"
	"net/mail"
	"strings"
	"unicode"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Name is a user name in canonical form. ParseName makes one.
type Name string

// NameRule tells a person what a name looks like.
const NameRule = "a name has 3 to 32 characters, a to z, 0 to 9, dot, hyphen or underscore, and begins with a letter or a digit"

const (
	minNameBytes = 3
	maxNameBytes = 32
	nameSymbols  = "abcdefghijklmnopqrstuvwxyz0123456789" + nameMarks
	nameMarks    = ".-_"

	// reservedPrefix begins the names of the demo accounts and of nobody else's.
	reservedPrefix = "demo-"
)

// ParseName folds a name exactly as the limits do (ratelimit.CanonicalAccount), so that every spelling of it is one account
// and one counter, and checks it against NameRule. The error matches ErrName and never holds the text: user names stay out
// of logs. A reserved name is a possible one, though it can't be had; see Name.Reserved.
func ParseName(text string) (Name, error) {
	folded, err := ratelimit.CanonicalAccount(text)
	if err != nil ||
		len(folded) < minNameBytes || len(folded) > maxNameBytes ||
		strings.Trim(folded, nameSymbols) != "" || strings.ContainsAny(folded[:1], nameMarks) {
		return "", fmt.Errorf("%w: %s", ErrName, NameRule)
	}
	return Name(folded), nil
}

// Reserved says whether the name is kept for demo accounts.
func (n Name) Reserved() bool {
	return strings.HasPrefix(string(n), reservedPrefix)
}

// maxEmailBytes is the longest address that mail can be sent to (RFC 5321, section 4.5.3.1.3, less its angle brackets).
const maxEmailBytes = 254

// Email is an address as its owner wrote it. ParseEmail makes one.
type Email string

// ParseEmail reads an e-mail address in the form local@domain, without a display name (RFC 5322, section 3.4.1). White
// space around it is dropped. The error matches ErrEmail and doesn't hold the text.
func ParseEmail(text string) (Email, error) {
	text = strings.TrimSpace(text)
	if len(text) > maxEmailBytes {
		return "", fmt.Errorf("%w: %d bytes long: allowed are %d", ErrEmail, len(text), maxEmailBytes)
	}
	address, err := mail.ParseAddress(text)
	if err != nil || address.Address != text || strings.ContainsFunc(text, unicode.IsControl) {
		return "", fmt.Errorf("%w: it has not the form name@example.org", ErrEmail)
	}
	return Email(text), nil
}
