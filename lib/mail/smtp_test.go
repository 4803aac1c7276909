package mail

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/testkit/smtpserver"
)

// short is a deadline for tests in which it passes; others have the real one.
const short = 200 * time.Millisecond

func to(server *smtpserver.Server, way TLS, change ...func(*SMTPConfig)) *SMTP {
	config := SMTPConfig{Host: server.Host, Port: server.Port, TLS: way, From: "weir@example.org", RootCAs: server.Roots}
	for _, change := range change {
		change(&config)
	}
	return NewSMTP(config)
}

func hurry(config *SMTPConfig) { config.Deadline = short }

func hello() Message {
	return Message{To: "someone@example.org", Subject: "Hello", Text: "Hello,\nthere.\n", ID: "id-1"}
}

// read gives a message as its recipient sees it.
func read(t *testing.T, sent smtpserver.Message) (header netmail.Header, subject, text string) {
	t.Helper()
	message, err := netmail.ReadMessage(strings.NewReader(sent.Data))
	if err != nil {
		t.Fatalf("%v in %q", err, sent.Data)
	}
	if kind := message.Header.Get("Content-Type"); kind != "text/plain; charset=UTF-8" || message.Header.Get("Content-Transfer-Encoding") != "quoted-printable" {
		t.Errorf("content type %q, header %v", kind, message.Header)
	}
	body, err := io.ReadAll(quotedprintable.NewReader(message.Body))
	if err != nil {
		t.Fatal(err)
	}
	if subject, err = new(mime.WordDecoder).DecodeHeader(message.Header.Get("Subject")); err != nil {
		t.Fatal(err)
	}
	return message.Header, subject, strings.ReplaceAll(string(body), "\r\n", "\n")
}

func TestAMessageArrivesAsItWasWritten(t *testing.T) {
	for name, text := range map[string]string{
		"plain":         "Hello,\n\nthere.\n",
		"dots":          ".\n..\n.leading\nin the mid.dle\n.\nafter the dot\n",
		"a dot alone":   ".\n",
		"long lines":    strings.Repeat("0123456789", 500) + "\n" + strings.Repeat(".", 3000) + "\n",
		"UTF-8":         "Grüße aus Köln — 你好, 🌊\n" + strings.Repeat("ü", 2000) + "\n",
		"commands":      "QUIT\nRCPT TO:<other@example.org>\nFrom other@example.org\nBcc: other@example.org\n",
		"blanks at end": "one  \ntwo\t\n\n\n",
		"equals signs":  "a=3D =\n=2E\n",
		"the largest":   strings.Repeat("é.\n", maxTextBytes/4),
	} {
		t.Run(name, func(t *testing.T) {
			server := smtpserver.Start(t, smtpserver.Config{})
			message := hello()
			message.Subject = "Grüße: your invite, " + strings.Repeat("ä long subject ", 8)
			message.Text = text
			if err := to(server, NoTLS).Send(t.Context(), message); err != nil {
				t.Fatal(err)
			}
			all := server.Messages()
			if len(all) != 1 || all[0].From != "weir@example.org" || all[0].To != "someone@example.org" {
				t.Fatalf("the server took %+v", all)
			}
			header, subject, got := read(t, all[0])
			if got != text {
				t.Errorf("got %d bytes %.300q, want %d bytes %.300q", len(got), got, len(text), text)
			}
			if subject != message.Subject || header.Get("From") != "<weir@example.org>" || header.Get("To") != "<someone@example.org>" ||
				header.Get("Message-Id") != "<id-1@example.org>" || header.Get("Auto-Submitted") != "auto-generated" || header.Get("Bcc") != "" {
				t.Errorf("subject %q, header %v", subject, header)
			}
			if date, err := header.Date(); err != nil || time.Since(date).Abs() > time.Hour {
				t.Errorf("date %v, %v", date, err)
			}
			for line := range strings.SplitSeq(all[0].Data, "\r\n") {
				if len(line) > 998 || strings.ContainsAny(line, "\r\n") { // RFC 5322, section 2.1.1
					t.Errorf("a line of %d bytes: %.80q", len(line), line)
				}
				if strings.ContainsFunc(line, func(r rune) bool { return r > '~' }) {
					t.Errorf("a line that is not ASCII: %.80q", line)
				}
			}
		})
	}
}

func TestAMessageGoesThroughEachKindOfEncryptionWithAPassword(t *testing.T) {
	for _, c := range []struct {
		name    string
		way     TLS
		offered smtpserver.Encryption
	}{
		{"smtps", ImplicitTLS, smtpserver.Implicit},
		{"STARTTLS", StartTLS, smtpserver.StartTLS},
		{"none, on this machine", NoTLS, smtpserver.None},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := smtpserver.Start(t, smtpserver.Config{Encryption: c.offered, User: "weir", Password: "s3cr3t"})
			known := func(config *SMTPConfig) { config.User, config.Password = "weir", "s3cr3t" }
			if err := to(server, c.way, known).Send(t.Context(), hello()); err != nil {
				t.Fatal(err)
			}
			for name, stranger := range map[string]func(*SMTPConfig){
				"a wrong password": func(config *SMTPConfig) { config.User, config.Password = "weir", "wr0ng" },
				"no password":      func(*SMTPConfig) {},
			} {
				err := to(server, c.way, stranger).Send(t.Context(), hello())
				if !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) || errors.Is(err, ErrRefused) {
					t.Errorf("%s: %v, want ErrNotSent", name, err)
				}
				if strings.Contains(err.Error(), "wr0ng") {
					t.Errorf("the error holds the password: %v", err)
				}
			}
			if all := server.Messages(); len(all) != 1 {
				t.Errorf("the server took %d messages, want the first alone", len(all))
			}
		})
	}
}

func TestWhatIsNotEncryptedAsAskedIsNotSent(t *testing.T) {
	for _, c := range []struct {
		name    string
		way     TLS
		offered smtpserver.Encryption
		change  func(*SMTPConfig)
	}{
		{"a certificate that nobody vouches for", ImplicitTLS, smtpserver.Implicit, func(c *SMTPConfig) { c.RootCAs = nil }},
		{"the same after STARTTLS", StartTLS, smtpserver.StartTLS, func(c *SMTPConfig) { c.RootCAs = nil }},
		{"another host's certificate", StartTLS, smtpserver.StartTLS, func(c *SMTPConfig) { c.Host = "127.0.0.2" }},
		{"no STARTTLS offered", StartTLS, smtpserver.None, func(*SMTPConfig) {}},
		{"a server that speaks no TLS", ImplicitTLS, smtpserver.None, func(c *SMTPConfig) { c.Deadline = short }},
		{"a password for a server that asks none", NoTLS, smtpserver.None, func(c *SMTPConfig) { c.User, c.Password = "weir", "s3cr3t" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := smtpserver.Start(t, smtpserver.Config{Encryption: c.offered})
			err := to(server, c.way, c.change).Send(t.Context(), hello())
			if !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v, want ErrNotSent", err)
			}
			if server.Seen() != 0 {
				t.Error("the text was sent")
			}
		})
	}
}

func TestWhatTheServerAnswersDecidesWhatWasSent(t *testing.T) {
	answer := func(code int, enhanced ...int) smtpserver.Action {
		action := smtpserver.Action{Code: code, Text: "about someone@example.org and s3cr3t"}
		copy(action.Enhanced[:], enhanced)
		return action
	}
	for _, c := range []struct {
		name   string
		step   string
		action smtpserver.Action
		want   error
		log    string
	}{
		{"busy at once", "mail", answer(421, 4, 3, 2), ErrNotSent, "421 4.3.2"},
		{"sender refused", "mail", answer(550, 5, 1, 8), ErrNotSent, "550 5.1.8"},
		{"mailbox busy", "rcpt", answer(451, 4, 2, 1), ErrNotSent, "451 4.2.1"},
		{"no such mailbox", "rcpt", answer(550, 5, 1, 1), ErrRefused, "550 5.1.1"},
		{"refused without a reason", "rcpt", answer(550), ErrRefused, "550"},
		{"relaying denied", "rcpt", answer(550, 5, 7, 1), ErrNotSent, "550 5.7.1"},
		{"server full", "rcpt", answer(552, 5, 3, 4), ErrNotSent, "552 5.3.4"},
		{"text refused for now", "taken", answer(451, 4, 7, 1), ErrNotSent, "451 4.7.1"},
		{"text refused", "taken", answer(550, 5, 7, 1), ErrNotSent, "550 5.7.1"},
		{"closing down after the text", "taken", answer(421, 4, 3, 2), ErrNotSent, "421 4.3.2"},
		{"cut before the recipient", "mail", smtpserver.Action{Cut: true}, ErrNotSent, "broke"},
		{"cut in the middle of the text", "data", smtpserver.Action{Cut: true}, ErrUnknown, "broke"},
		{"cut before the answer", "taken", smtpserver.Action{Cut: true}, ErrUnknown, "broke"},
		{"hanging at the sender", "mail", smtpserver.Action{Hang: true}, ErrNotSent, "no answer"},
		{"hanging at the recipient", "rcpt", smtpserver.Action{Hang: true}, ErrNotSent, "no answer"},
		{"hanging in the text", "data", smtpserver.Action{Hang: true}, ErrUnknown, "no answer"},
		{"hanging after the text", "taken", smtpserver.Action{Hang: true}, ErrUnknown, "no answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := smtpserver.Start(t, smtpserver.Config{Hook: func(step string) smtpserver.Action {
				if step == c.step {
					return c.action
				}
				return smtpserver.Action{}
			}})
			change := func(*SMTPConfig) {}
			if c.action.Hang {
				change = hurry
			}
			err := to(server, NoTLS, change).Send(t.Context(), hello())
			if !errors.Is(err, c.want) || errors.Is(err, ErrUnknown) != (c.want == ErrUnknown) || errors.Is(err, ErrRefused) != (c.want == ErrRefused) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if said := err.Error(); !strings.Contains(said, c.log) || strings.Contains(said, "someone") || strings.Contains(said, "s3cr3t") {
				t.Errorf("the error says %q, want %q and nothing of the server's text", said, c.log)
			}
			if len(server.Messages()) != 0 {
				t.Error("the server took it")
			}
		})
	}
}

// A message is offered once, whatever becomes of it.
func TestAMessageIsNeverOfferedTwice(t *testing.T) {
	var mu sync.Mutex
	steps := map[string]int{}
	server := smtpserver.Start(t, smtpserver.Config{Hook: func(step string) smtpserver.Action {
		mu.Lock()
		defer mu.Unlock()
		steps[step]++
		return smtpserver.Action{Cut: step == "taken"}
	}})
	if err := to(server, NoTLS).Send(t.Context(), hello()); !errors.Is(err, ErrUnknown) {
		t.Fatalf("got %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if steps["mail"] != 1 || steps["taken"] != 1 || server.Seen() != 1 {
		t.Errorf("steps %v, %d texts", steps, server.Seen())
	}
}

func TestAServerMayTakeItsTimeToGreetButNotForEver(t *testing.T) {
	greeting, connected := make(chan struct{}), make(chan struct{}, 1)
	server := smtpserver.Start(t, smtpserver.Config{Greeting: greeting, Connected: connected})
	sent := make(chan error, 1)
	go func() { sent <- to(server, NoTLS).Send(t.Context(), hello()) }()
	<-connected
	select {
	case err := <-sent:
		t.Fatalf("it didn't wait for the greeting: %v", err)
	default:
	}
	close(greeting)
	if err := <-sent; err != nil || len(server.Messages()) != 1 {
		t.Fatalf("%v, and %d messages", err, len(server.Messages()))
	}

	silent := smtpserver.Start(t, smtpserver.Config{Greeting: make(chan struct{})})
	err := to(silent, NoTLS, hurry).Send(t.Context(), hello())
	if !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "in time") {
		t.Errorf("a server that says nothing: %v", err)
	}
}

// The deadline is for the message as a whole: a server that says a word now and then doesn't extend it. This one answers a
// line of its greeting whenever the client would wait for longer, and would do so for ever.
func TestATricklingServerDoesNotExtendTheDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for tick := time.NewTicker(short / 20); ; <-tick.C {
			if _, err := io.WriteString(conn, "220-wait\r\n"); err != nil {
				return // the client has gone
			}
		}
	}()
	address := listener.Addr().(*net.TCPAddr)
	err = NewSMTP(SMTPConfig{Host: "127.0.0.1", Port: address.Port, TLS: NoTLS, From: "weir@example.org", Deadline: short}).Send(t.Context(), hello())
	if !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	<-ended
}

func TestAServerThatIsNotThereOrSpeaksAnotherLanguageIsNotSentTo(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	sender := NewSMTP(SMTPConfig{Host: "127.0.0.1", Port: port, TLS: NoTLS, From: "weir@example.org"})
	for _, greeting := range []string{"554 no service for s3cr3t\r\n", "421 s3cr3t\r\n", "HTTP/1.1 400 s3cr3t\r\n\r\n", "\r\n", ""} {
		go func() {
			if conn, err := listener.Accept(); err == nil {
				io.WriteString(conn, greeting)
				conn.Close()
			}
		}()
		err := sender.Send(t.Context(), hello())
		if !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q: got %v", greeting, err)
		}
	}
	listener.Close()
	if err := sender.Send(t.Context(), hello()); !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) {
		t.Errorf("nobody there: got %v", err)
	}
}

func TestAContextThatEndsEndsTheSending(t *testing.T) {
	connected := make(chan struct{}, 1)
	server := smtpserver.Start(t, smtpserver.Config{Greeting: make(chan struct{}), Connected: connected})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-connected
		cancel()
	}()
	patient := func(config *SMTPConfig) { config.Deadline = time.Hour } // so that nothing else ends it
	if err := to(server, NoTLS, patient).Send(ctx, hello()); !errors.Is(err, ErrNotSent) || errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	if err := to(server, NoTLS).Send(ctx, hello()); !errors.Is(err, ErrNotSent) {
		t.Errorf("begun afterwards: got %v", err)
	}
}

// What the server answered decides, not how the goodbye went.
func TestAServerThatHangsAtTheGoodbyeHasTakenTheMessage(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	gone := make(chan []byte, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "220 x\r\n250 x\r\n250 x\r\n250 x\r\n354 x\r\n250 taken\r\n") // and no word more
		all, _ := io.ReadAll(conn)
		gone <- all
	}()
	address := listener.Addr().(*net.TCPAddr)
	err = NewSMTP(SMTPConfig{Host: "127.0.0.1", Port: address.Port, TLS: NoTLS, From: "weir@example.org", Deadline: time.Hour}).Send(t.Context(), hello())
	if err != nil {
		t.Errorf("got %v", err)
	}
	if all := <-gone; !bytes.Contains(all, []byte("\r\n.\r\nQUIT\r\n")) {
		t.Errorf("the server got %q", all)
	}
}

func TestManySendAtOnce(t *testing.T) {
	server := smtpserver.Start(t, smtpserver.Config{Encryption: smtpserver.StartTLS, User: "weir", Password: "s3cr3t"})
	sender := to(server, StartTLS, func(config *SMTPConfig) { config.User, config.Password = "weir", "s3cr3t" })
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := sender.Send(t.Context(), hello()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := len(server.Messages()); n != 8 {
		t.Errorf("%d messages arrived", n)
	}
}

func TestAFailedSendingLeavesNoConnectionOpen(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		io.WriteString(conn, "220 x\r\n250 x\r\n451 x\r\n250 x\r\n") // MAIL is refused
		_, err = io.Copy(io.Discard, conn)
		ended <- err
	}()
	address := listener.Addr().(*net.TCPAddr)
	err = NewSMTP(SMTPConfig{Host: "127.0.0.1", Port: address.Port, TLS: NoTLS, From: "weir@example.org", Deadline: time.Hour}).Send(t.Context(), hello())
	if !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), "451") {
		t.Errorf("got %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the connection ends with %v", err)
	}
}
