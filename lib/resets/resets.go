// Package resets mails links by which somebody chooses a new password.
package resets

import (
	"context"
	"fmt"
	"strings"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/mail"
)

// Reason is why somebody gets a link. It is the beginning of a mail's text.
type Reason string

// The reasons.
const (
	// Asked is that of a request that anybody could have made.
	Asked Reason = "somebody, you most likely, asked for a new password for %s at Weir."
	// Revoked is that of an operator who ended the password.
	Revoked Reason = "the operator of Weir has ended the password of %s, because somebody else may know it, and has signed it out everywhere."
)

// Mailer mails links. It holds no state besides what it was made with and may be used by many goroutines.
type Mailer struct {
	sender mail.Sender
	site   string
}

// New makes a Mailer that sends by sender. Site is the origin of the page that a link leads to, such as
// "https://weir.example.org"; empty: mails hold the token alone, for its reader to paste.
func New(sender mail.Sender, site string) *Mailer {
	return &Mailer{sender, site}
}

// Send mails a reset to the address that the account's owner gave. ID names the mail, as mail.Message has it. The errors are those
// of lib/mail.
func (m *Mailer) Send(ctx context.Context, id string, why Reason, to accounts.Email, account accounts.Account, reset accounts.Reset) error {
	return m.sender.Send(ctx, mail.Message{
		ID:      id,
		To:      string(to),
		Subject: "A new password for Weir",
		Text:    m.text(why, account.Name, reset),
	})
}

// Way is what somebody needs to choose a new password: a link, or where there is no site the token. Behind the # it stays in the
// browser and out of logs; a token needs no escaping there.
func Way(site string, reset accounts.Reset) string {
	if site == "" {
		return reset.Token
	}
	return site + "/#reset=" + reset.Token
}

func (m *Mailer) text(why Reason, name accounts.Name, reset accounts.Reset) string {
	how := "Choose a new one here:"
	if m.site == "" {
		how = `Choose a new one on the page, under "Forgot your password?", with this token:`
	}
	return fmt.Sprintf(`Hello,

%s %s

    %s

This is good once, until %s, and for that account alone. A newer one ends it.

If you did not ask for it, there is nothing that you need to do: nobody gets in by having asked.
`, fmt.Sprintf(string(why), called(name)), how, Way(m.site, reset), reset.Expires.Format("2 January 2006, 15:04 UTC"))
}

// called tells which account it is, since an address may belong to several. A name with a dot could be one of the web, chosen by
// somebody who gave another one's address, and mail programs would make a link of it.
func called(name accounts.Name) string {
	if strings.Contains(string(name), ".") {
		return "an account of yours"
	}
	return fmt.Sprintf("the account %q", string(name))
}
