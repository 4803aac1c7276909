package invites

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// sender keeps what it is given and answers what it is told to.
type sender struct {
	err  error
	sent []mail.Message
}

func (s *sender) Send(_ context.Context, message mail.Message) error {
	s.sent = append(s.sent, message)
	return s.err
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(db *database.DB, s mail.Sender, site string) (*Mailer, *codes.Pool) {
	pool := codes.New(db.DB, codes.Config{Now: func() time.Time { return start }})
	return New(pool, s, Config{Site: site}), pool
}

func count(t *testing.T, db *database.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM invite_codes`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func codeIn(t *testing.T, text string) codes.Code {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n    WEIR")
	if !found || len(rest) < 15 {
		t.Fatalf("no code in %q", text)
	}
	code, err := codes.Parse("WEIR" + rest[:15])
	if err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return code
}

func TestAnInviteHoldsACodeThatIsKeptForItsRecipient(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		s := &sender{}
		m, pool := at(db, s, "")
		for _, id := range []string{"a", "b"} {
			if err := m.Send(t.Context(), id, "friend@example.org"); err != nil {
				t.Fatal(err)
			}
		}
		if len(s.sent) != 2 || s.sent[0].ID != "a" || s.sent[0].To != "friend@example.org" || codeIn(t, s.sent[0].Text) == codeIn(t, s.sent[1].Text) {
			t.Fatalf("sent %+v", s.sent)
		}
		if !strings.Contains(s.sent[0].Text, "until 8 March 2026, 12:00 UTC") || strings.Contains(s.sent[0].Text, "://") {
			t.Errorf("the text is %s", s.sent[0].Text)
		}
		state, expires, err := pool.Lookup(t.Context(), codeIn(t, s.sent[0].Text))
		if state != codes.Borrowed || !expires.Equal(start.Add(7*24*time.Hour)) || err != nil {
			t.Errorf("the code is %v until %v, %v", state, expires, err)
		}
	})
}

func TestALinkLeadsToTheSiteWithTheCodeOutOfItsLog(t *testing.T) {
	s := &sender{}
	m, _ := at(databases.File(t), s, "https://weir.example.org")
	if err := m.Send(t.Context(), "a", "friend@example.org"); err != nil {
		t.Fatal(err)
	}
	if text := s.sent[0].Text; !strings.Contains(text, fmt.Sprintf("\n    https://weir.example.org/#code=%s\n", codeIn(t, text))) {
		t.Errorf("the text is %s", text)
	}
}

func TestAMessageThatWasNotSentLeavesNoCode(t *testing.T) {
	databases.Each(t, func(t *testing.T, db *database.DB) {
		left := 0
		for _, c := range []struct {
			err  error
			kept int
		}{
			{mail.ErrNotSent, 0},
			{mail.ErrRefused, 0},
			{mail.ErrMessage, 0},
			{errors.New("something else"), 0},
			{mail.ErrUnknown, 1},
			{mail.ErrStore, 1},
		} {
			m, _ := at(db, &sender{err: fmt.Errorf("because: %w", c.err)}, "")
			err := m.Send(t.Context(), "a", "friend@example.org")
			left += c.kept
			if !errors.Is(err, c.err) || count(t, db) != left {
				t.Errorf("%v: got %v, and %d codes are left, want %d", c.err, err, count(t, db), left)
			}
		}
	})
}

// cutting is a sender whose caller's time is over when it fails.
type cutting struct{ cancel context.CancelFunc }

func (c cutting) Send(context.Context, mail.Message) error {
	c.cancel()
	return mail.ErrNotSent
}

func TestTheCodeGoesBackAlsoWhenTimeIsOver(t *testing.T) {
	db := databases.File(t)
	ctx, cancel := context.WithCancel(t.Context())
	m, _ := at(db, cutting{cancel}, "")
	if err := m.Send(ctx, "a", "friend@example.org"); !errors.Is(err, mail.ErrNotSent) || count(t, db) != 0 {
		t.Errorf("got %v, and %d codes are left", err, count(t, db))
	}
	if err := m.Send(ctx, "a", "friend@example.org"); !errors.Is(err, codes.ErrStore) {
		t.Errorf("without a code: %v", err)
	}
}

func TestSpellingsOfOneMailboxAreOneRecipient(t *testing.T) {
	for text, want := range map[string]string{
		"friend@example.org":        "friend@example.org",
		" Friend@EXAMPLE.Org\t":     "friend@example.org",
		"friend+a@example.org":      "friend@example.org",
		"friend+a+b@example.org":    "friend@example.org",
		"friend+@example.org":       "friend@example.org",
		"+friend@example.org":       "+friend@example.org",
		"fri.end@example.org":       "fri.end@example.org", // a person of its own at most providers
		"friend@mail.example.org":   "friend@mail.example.org",
		"f.r.iend+x@GoogleMail.com": "friend@gmail.com", // where dots don't count
	} {
		r, err := ParseRecipient(text)
		if err != nil || r.Key() != want || string(r) != strings.TrimSpace(text) {
			t.Errorf("%q: %q, key %q, %v; want %q", text, r, r.Key(), err, want)
		}
	}
	if r, err := ParseRecipient("friend"); r != "" || !errors.Is(err, mail.ErrAddress) {
		t.Errorf("got %q, %v", r, err)
	}
}
