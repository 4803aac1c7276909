package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlimits/weir/lib/mail"
	"github.com/weirlimits/weir/lib/ratelimit/storetest"
	"github.com/weirlimits/weir/lib/resets"
)

// slow is a mail server that takes so long for a message.
type slow struct {
	takes time.Duration
	sent  int
}

func (s *slow) Send(ctx context.Context, _ mail.Message) error {
	select {
	case <-time.After(s.takes):
		s.sent++
		return nil
	case <-ctx.Done():
		return mail.ErrNotSent
	}
}

// Case E02: however long a mail server takes, the answer comes when it always does. The clock of the bubble moves when everybody
// waits.
func TestNoMailServerChangesTheTimeOfAnAnswer(t *testing.T) {
	application, db, err := Open(t.Context(), Settings{
		DatabaseURL:   "file:" + filepath.Join(t.TempDir(), "weir.db"),
		Secret:        storetest.Secret,
		StoreDeadline: 10 * time.Second,
		Mail:          Mail{SMTP: &mail.SMTPConfig{Host: "mail.example.org"}},
	}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	const add = "INSERT INTO accounts (username, role, email, created_micros) VALUES (?, 'member', ?, 0)"
	for _, takes := range []time.Duration{0, time.Second, 3499 * time.Millisecond, 3501 * time.Millisecond, time.Minute} {
		name := "someone-" + takes.String()
		if _, err := db.Exec(add, strings.ReplaceAll(name, ".", "-"), name+"@example.org"); err != nil {
			t.Fatal(err)
		}
		server := &slow{takes: takes}
		application.resets = resets.New(server, "")
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			answer := httptest.NewRecorder()
			body := strings.NewReader(`{"username":"` + strings.ReplaceAll(name, ".", "-") + `"}`)
			application.Handler("sign-in").ServeHTTP(answer, httptest.NewRequest("PUT", "/api/sign-in", body))
			if took := time.Since(start); answer.Code != http.StatusAccepted || took != 4*time.Second {
				t.Errorf("a server that takes %v: %d after %v", takes, answer.Code, took)
			}
		})
		if want := takes < 3500*time.Millisecond; (server.sent == 1) != want {
			t.Errorf("a server that takes %v: sent %d", takes, server.sent)
		}
	}
}
