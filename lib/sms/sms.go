// Package sms sends short messages to phones: through an HTTP gateway or, where none is set, into a table that an operator
// can read.
package sms

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Errors that callers branch on, with errors.Is. No error holds a number, a text, a URL or a token. After an error that
// doesn't match ErrUnknown the message was not sent, and won't be.
var (
	// ErrMessage means that a message can't be sent as it is. No gateway was asked.
	ErrMessage = errors.New("sms: message not valid")
	// ErrURL means that a text is no gateway's URL: see ParseURL.
	ErrURL = errors.New("sms: gateway's URL not valid")
	// ErrNotSent means that the gateway could not be reached, or refused.
	ErrNotSent = errors.New("sms: not sent")
	// ErrRefused means that the gateway refused the number for good, as one that gets no messages. It matches ErrNotSent.
	ErrRefused = fmt.Errorf("%w: number refused", ErrNotSent)
	// ErrUnknown means that the message was handed over and no answer came that tells whether it was sent. Sending it again may
	// send it twice.
	ErrUnknown = errors.New("sms: perhaps sent")
	// ErrStore means that the outbox's database didn't answer. It matches ErrUnknown.
	ErrStore = fmt.Errorf("%w: store failed", ErrUnknown)
)

// maxTextBytes is ten parts of a long message: ten times what the application writes.
const maxTextBytes = 1530

// Message is a plain text to one phone, in UTF-8.
type Message struct {
	To   string // in the form of E.164, such as "+12025550123"
	Text string // 1 to 1,530 bytes
}

// A Gateway sends messages. It may be used by many goroutines.
type Gateway interface {
	// Send hands a message over. Nil means that somebody else is now responsible for it: a gateway, which may still fail to
	// deliver it, or whoever reads the outbox. The errors are those of this package. It returns within a few seconds, and at
	// once when ctx ends.
	Send(ctx context.Context, message Message) error
}

// check gives an error that matches ErrMessage for what no gateway should get.
func (m Message) check() error {
	if number, err := ratelimit.CanonicalPhone(m.To); err != nil || number != m.To {
		return fmt.Errorf("%w: its number is not in the form of E.164", ErrMessage)
	}
	switch {
	case strings.TrimSpace(m.Text) == "" || len(m.Text) > maxTextBytes:
		return fmt.Errorf("%w: its text has %d bytes, or is blank: allowed are 1 to %d", ErrMessage, len(m.Text), maxTextBytes)
	case !utf8.ValidString(m.Text):
		return fmt.Errorf("%w: it is not UTF-8", ErrMessage)
	case strings.ContainsFunc(m.Text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }):
		return fmt.Errorf("%w: its text holds a control character: allowed is \\n", ErrMessage)
	}
	return nil
}
