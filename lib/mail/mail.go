// Package mail sends plain messages: over SMTP or, where no server is set, into a table that an operator can read.
package mail

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Errors that callers branch on, with errors.Is. No error holds an address, a text, a user name or a password. After an
// error that doesn't match ErrUnknown the message was not sent, and won't be.
var (
	// ErrMessage means that a message can't be sent as it is. No server was asked.
	ErrMessage = errors.New("mail: message not valid")
	// ErrAddress means that a text is no address that mail can be sent to.
	ErrAddress = errors.New("mail: address not valid")
	// ErrURL means that a text is no SMTP URL: see ParseURL.
	ErrURL = errors.New("mail: SMTP URL not valid")
	// ErrNotSent means that the server could not be reached, didn't answer in time or refused.
	ErrNotSent = errors.New("mail: not sent")
	// ErrRefused means that the server refused the recipient for good, as one that doesn't exist. It matches ErrNotSent.
	ErrRefused = fmt.Errorf("%w: recipient refused", ErrNotSent)
	// ErrUnknown means that the message was handed over and no answer came, so that nobody knows whether it was sent. Sending
	// it again may send it twice.
	ErrUnknown = errors.New("mail: perhaps sent")
	// ErrStore means that the outbox's database didn't answer. It matches ErrUnknown.
	ErrStore = fmt.Errorf("%w: store failed", ErrUnknown)
)

const (
	// maxSubjectBytes is a line and a half of a mail program.
	maxSubjectBytes = 200
	// maxTextBytes is a hundred times what the application writes.
	maxTextBytes = 64 << 10
	// maxIDBytes leaves room for a domain in a line of a header.
	maxIDBytes = 64
)

// Message is a plain text to one recipient, in UTF-8.
type Message struct {
	To      string // an address as ParseAddress gives it
	Subject string // one line of at most 200 bytes
	Text    string // lines that end in \n, 64 KiB at most
	// ID names the message in the mail server's log or in the outbox: 1 to 64 of a to z, A to Z, 0 to 9, dot, hyphen and
	// underscore. Empty means a random one.
	ID string
}

// A Sender sends messages. It may be used by many goroutines.
type Sender interface {
	// Send hands a message over. Nil means that somebody else is now responsible for it: a mail server, which may still
	// fail to deliver it, or whoever reads the outbox. The errors are those of this package. It returns within a few
	// seconds, and at once when ctx ends.
	Send(ctx context.Context, message Message) error
}

// checked gives the message with an ID, or an error that matches ErrMessage. What a header is made of holds no line end, so
// that no text becomes another header or another recipient.
func (m Message) checked() (Message, error) {
	if address, err := ParseAddress(m.To); err != nil || address != m.To {
		return Message{}, fmt.Errorf("%w: its recipient is no address", ErrMessage)
	}
	switch {
	case strings.TrimSpace(m.Subject) == "" || len(m.Subject) > maxSubjectBytes:
		return Message{}, fmt.Errorf("%w: its subject has %d bytes, or is blank: allowed are 1 to %d", ErrMessage, len(m.Subject), maxSubjectBytes)
	case len(m.Text) > maxTextBytes:
		return Message{}, fmt.Errorf("%w: its text has %d bytes: allowed are %d", ErrMessage, len(m.Text), maxTextBytes)
	case !utf8.ValidString(m.Subject) || !utf8.ValidString(m.Text):
		return Message{}, fmt.Errorf("%w: it is not UTF-8", ErrMessage)
	case strings.ContainsFunc(m.Subject, isLineEndOrControl):
		return Message{}, fmt.Errorf("%w: its subject holds a line end or a control character", ErrMessage)
	case strings.ContainsFunc(m.Text, func(r rune) bool { return r != '\n' && r != '\t' && unicode.IsControl(r) }):
		return Message{}, fmt.Errorf("%w: its text holds a control character: allowed are \\n and \\t", ErrMessage)
	case len(m.ID) > maxIDBytes || strings.Trim(m.ID, letters+digits+".-_") != "":
		return Message{}, fmt.Errorf("%w: its ID has %d bytes, or a character that an ID has not", ErrMessage, len(m.ID))
	}
	if m.ID == "" {
		m.ID = NewID()
	}
	return m, nil
}

func isLineEndOrControl(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
}

// NewID makes a random ID of a message: 16 bytes in hexadecimal.
func NewID() string {
	random := make([]byte, 16)
	rand.Read(random) // never fails: it ends the program instead
	return hex.EncodeToString(random)
}

// The lengths of RFC 5321, section 4.5.3.1, and of RFC 1035, section 2.3.4.
const (
	maxAddressBytes = 254 // a path of 256 less its angle brackets
	maxLocalBytes   = 64
	maxLabelBytes   = 63
)

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

// AddressRule tells a person what an address looks like.
const AddressRule = "an e-mail address has the form name@example.org, in ASCII: an international domain is written as xn--"

// ParseAddress reads an address that any server takes mail for: local@domain in ASCII (other characters need SMTPUTF8, which
// few servers have), without quotes or a display name, the domain fully qualified (RFC 5321, section 2.3.5). White space
// around it is dropped. The error matches ErrAddress and doesn't hold the text.
func ParseAddress(text string) (string, error) {
	text = strings.TrimSpace(text)
	parsed, err := mail.ParseAddress(text)
	local, domain, _ := strings.Cut(text, "@")
	if err != nil || parsed.Address != text || len(text) > maxAddressBytes || len(local) > maxLocalBytes ||
		strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) || !isDomain(domain) {
		return "", fmt.Errorf("%w: %s", ErrAddress, AddressRule)
	}
	return text, nil
}

// isDomain says whether a text is a name of two labels or more, the last not a number (RFC 1123, section 2.1).
func isDomain(text string) bool {
	labels := strings.Split(text, ".")
	for _, label := range labels {
		if label == "" || len(label) > maxLabelBytes || strings.Trim(label, letters+digits+"-") != "" ||
			strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
	}
	return len(labels) > 1 && strings.Trim(labels[len(labels)-1], digits) != ""
}
