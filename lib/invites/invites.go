// Package invites mails invites: a fresh code to somebody who has no account yet.
package invites

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/mail"
)

// Recipient is who is invited: an address. ParseRecipient makes one.
type Recipient string

// ParseRecipient reads an address as mail.ParseAddress does, and returns its error.
func ParseRecipient(text string) (Recipient, error) {
	address, err := mail.ParseAddress(text)
	return Recipient(address), err
}

// Key gives what limits count a recipient by: one text for the spellings of an address that reach one mailbox nearly
// everywhere. Upper case is folded, and what follows a plus in the local part is left out (RFC 5233), or else each tag would be
// another recipient with the same inbox. So would each dot at Gmail, which ignores them. Mail is sent to the address as it was
// written, not to this.
func (r Recipient) Key() string {
	local, domain, _ := strings.Cut(strings.ToLower(string(r)), "@")
	if person, _, tagged := strings.Cut(local, "+"); tagged && person != "" {
		local = person
	}
	if domain == "gmail.com" || domain == "googlemail.com" {
		local, domain = strings.ReplaceAll(local, ".", ""), "gmail.com"
	}
	return local + "@" + domain
}

// Config says how a Mailer works. The zero value is for use.
type Config struct {
	// Site is the origin of the page that people sign up on, such as "https://weir.example.org". Empty: mails hold no link.
	Site string
}

// Mailer mails invites. It holds no state besides what it was made with and may be used by many goroutines.
type Mailer struct {
	codes  *codes.Pool
	sender mail.Sender
	config Config
}

// New makes a Mailer that takes codes from pool and sends by sender.
func New(pool *codes.Pool, sender mail.Sender, config Config) *Mailer {
	return &Mailer{pool, sender, config}
}

// Send mails an invite with a fresh code, which is kept for codes.InviteHold. ID names it, as mail.Message has it.
//
// The errors are those of lib/mail, and codes.ErrStore before anything was mailed. When the mail was certainly not sent the
// code is taken back. After mail.ErrUnknown it stays: somebody may have it. The same is so when taking it back fails, and when
// the process ends in between; such a code is free when its time is over.
func (m *Mailer) Send(ctx context.Context, id string, to Recipient) error {
	code, until, err := m.codes.Reserve(ctx)
	if err != nil {
		return err
	}
	err = m.sender.Send(ctx, mail.Message{
		ID:      id,
		To:      string(to),
		Subject: "Your invite to Weir",
		Text:    m.text(code, until.Format("2 January 2006, 15:04 UTC")),
	})
	if err != nil && !errors.Is(err, mail.ErrUnknown) {
		// Also when ctx has ended: the database bounds its calls by itself.
		err = errors.Join(err, m.codes.Withdraw(context.WithoutCancel(ctx), code))
	}
	return err
}

// text holds nothing that whoever invites could have chosen: an invite can't be made to carry somebody's own message.
func (m *Mailer) text(code codes.Code, until string) string {
	where := "Sign up with this code:"
	link := ""
	if m.config.Site != "" {
		// Behind the # it stays in the browser and out of logs.
		link = fmt.Sprintf("\n\n    %s/#code=%s", m.config.Site, url.QueryEscape(string(code)))
	}
	return fmt.Sprintf(`Hello,

a member of Weir invites you to make an account there. %s

    %s%s

The code is kept for you until %s, and makes one account.

If you expected no invite, there is nothing that you need to do.
`, where, code, link, until)
}
