package resets

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/accounts"
	"github.com/weirlimits/weir/lib/mail"
)

// sender keeps what it is given and answers what it is told to.
type sender struct {
	err  error
	sent mail.Message
}

func (s *sender) Send(_ context.Context, message mail.Message) error {
	s.sent = message
	return s.err
}

var reset = accounts.Reset{Token: strings.Repeat("t", 43), Expires: time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)}

func TestAMailHoldsALinkWhoseTokenStaysOutOfLogs(t *testing.T) {
	for site, want := range map[string]string{
		"https://weir.example.org": "\n    https://weir.example.org/#reset=" + reset.Token + "\n",
		"":                         "\n    " + reset.Token + "\n",
	} {
		for _, why := range []Reason{Asked, Revoked} {
			s := &sender{}
			if err := New(s, site).Send(t.Context(), "an-id", why, "someone@example.org", accounts.Account{Name: "someone"}, reset); err != nil {
				t.Fatal(err)
			}
			text := s.sent.Text
			if s.sent.ID != "an-id" || s.sent.To != "someone@example.org" || s.sent.Subject == "" {
				t.Errorf("sent %+v", s.sent)
			}
			if !strings.Contains(text, want) || !strings.Contains(text, "1 March 2026, 12:30 UTC") || !strings.Contains(text, `the account "someone"`) {
				t.Errorf("the text is %s", text)
			}
			if strings.Contains(text, "://") != (site != "") || strings.Contains(text, "%!") {
				t.Errorf("the text is %s", text)
			}
		}
	}
}

// A name is chosen by whoever signs up, and the address may be somebody else's.
func TestANameThatCouldBeALinkIsLeftOut(t *testing.T) {
	s := &sender{}
	if err := New(s, "").Send(t.Context(), "", Asked, "someone@example.org", accounts.Account{Name: "shop.example.com"}, reset); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(s.sent.Text, "example.com") || !strings.Contains(s.sent.Text, "an account of yours") {
		t.Errorf("the text is %s", s.sent.Text)
	}
}

func TestTheErrorIsTheSenders(t *testing.T) {
	s := &sender{err: mail.ErrUnknown}
	if err := New(s, "").Send(t.Context(), "", Asked, "someone@example.org", accounts.Account{Name: "someone"}, reset); !errors.Is(err, mail.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}
