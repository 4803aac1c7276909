package accounts

import (
	"fmt"
	"strings"

	"github.com/weirlimits/weir/lib/mail"
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

// Email is an address as its owner wrote it. ParseEmail makes one.
type Email string

// ParseEmail reads an address as mail.ParseAddress does: one that any server takes mail for, since it is there to be written to.
// The error matches ErrEmail and doesn't hold the text.
func ParseEmail(text string) (Email, error) {
	address, err := mail.ParseAddress(text)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrEmail, mail.AddressRule)
	}
	return Email(address), nil
}
