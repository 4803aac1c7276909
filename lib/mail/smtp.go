package mail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	gomail "github.com/wneessen/go-mail"
	gosmtp "github.com/wneessen/go-mail/smtp"
)

// DefaultDeadline bounds the sending of a message when SMTPConfig.Deadline is zero. A conversation is about ten round trips,
// a second with a server far away, and a server that thinks about a message takes another one or two. A request has ten
// seconds: this leaves time for what it does before, and for taking back what it did when the mail fails.
const DefaultDeadline = 5 * time.Second

// quitTime is how long a server may take to say goodbye, when it has taken responsibility for the message already.
const quitTime = time.Second

// noTimeout takes the place of the library's own deadline, which begins anew with some steps. Send has one for all of them.
const noTimeout = 24 * time.Hour

// SMTPConfig says which server to send over. ParseURL makes one.
type SMTPConfig struct {
	Host string // name or IP address
	Port int
	TLS  TLS
	// User and Password are sent to the server, by SCRAM-SHA-256, PLAIN or LOGIN, whichever of them it offers first in this
	// order. Empty: the server wants to know nobody.
	User     string
	Password string
	From     string // the sender's address, as ParseAddress gives it
	// Deadline bounds a message from dialing to the server's last answer. Zero means DefaultDeadline.
	Deadline time.Duration
	// RootCAs are the authorities that a server's certificate may come from. Nil means the system's.
	RootCAs *x509.CertPool
}

// SMTP sends messages over an SMTP server (RFC 5321, RFC 6409), each in a connection of its own: a function is frozen between
// requests, and a server would have closed the connection by the next. It holds no state and may be used by many goroutines.
type SMTP struct {
	config SMTPConfig
}

// NewSMTP makes a Sender over a server. It connects to nothing.
func NewSMTP(config SMTPConfig) *SMTP {
	if config.Deadline == 0 {
		config.Deadline = DefaultDeadline
	}
	return &SMTP{config}
}

// Send implements Sender. A message is offered once: a server that is busy (4xx) is ErrNotSent like one that is down, and the
// caller may come again. ErrUnknown is returned in one case alone: the whole message was sent, and the connection broke or the
// deadline passed before the server's answer. The server may have taken it then (RFC 1047).
func (s *SMTP) Send(ctx context.Context, message Message) error {
	message, err := message.checked()
	if err != nil {
		return err
	}
	mail, err := s.compose(message)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMessage, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	line, err := s.dial(ctx)
	if err != nil {
		return fmt.Errorf("%w: no connection: %s", ErrNotSent, reason(ctx, err))
	}
	defer line.Close() // the library leaves it open when something fails
	defer context.AfterFunc(ctx, func() { line.Close() })()

	client, session, err := s.open(ctx, line)
	if err != nil {
		return fmt.Errorf("%w: no session: %s", ErrNotSent, reason(ctx, err))
	}
	err = client.SendWithSMTPClient(session, mail)
	if mail.IsDelivered() { // whatever happened afterwards
		defer time.AfterFunc(quitTime, func() { line.Close() }).Stop()
		client.CloseWithSMTPClient(session)
		return nil
	}
	// No QUIT here: it would end the message where it broke off, and the server would take the half.
	return failure(err)
}

// compose writes the message in the form of RFC 5322: plain text as quoted-printable UTF-8, so that lines of any length and
// any character pass every server.
func (s *SMTP) compose(message Message) (*gomail.Msg, error) {
	mail := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	if err := errors.Join(mail.From(s.config.From), mail.To(message.To)); err != nil {
		return nil, errors.New("a library can't read its addresses") // its text repeats them
	}
	mail.Subject(message.Subject)
	mail.SetDate()
	mail.SetMessageIDWithValue(message.ID + "@" + domainOf(s.config.From))
	mail.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: nobody's absence note comes back
	mail.SetBodyString(gomail.TypeTextPlain, message.Text)
	return mail, nil
}

// dial connects to the server.
func (s *SMTP) dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", net.JoinHostPort(s.config.Host, strconv.Itoa(s.config.Port)))
}

// open begins a session on a connection: encrypts it and signs in.
func (s *SMTP) open(ctx context.Context, line net.Conn) (*gomail.Client, *gosmtp.Client, error) {
	encryption := &tls.Config{ServerName: s.config.Host, RootCAs: s.config.RootCAs, MinVersion: tls.VersionTLS12}
	options := []gomail.Option{
		gomail.WithHELO(domainOf(s.config.From)),
		gomail.WithTimeout(noTimeout),
		gomail.WithTLSConfig(encryption),
		gomail.WithoutNoop(), // two round trips less
		gomail.WithoutRset(),
		gomail.WithDialContextFunc(func(context.Context, string, string) (net.Conn, error) {
			if s.config.TLS != ImplicitTLS {
				return line, nil
			}
			encrypted := tls.Client(line, encryption)
			return encrypted, encrypted.HandshakeContext(ctx)
		}),
	}
	switch s.config.TLS {
	case ImplicitTLS:
		options = append(options, gomail.WithSSL())
	case StartTLS:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	case NoTLS:
		options = append(options, gomail.WithTLSPolicy(gomail.NoTLS))
	}
	if s.config.User != "" {
		mechanisms := []gomail.SMTPAuthType{gomail.SMTPAuthSCRAMSHA256, gomail.SMTPAuthPlain, gomail.SMTPAuthLogin}
		if s.config.TLS == NoTLS { // on this machine: see ParseURL
			mechanisms = []gomail.SMTPAuthType{gomail.SMTPAuthSCRAMSHA256, gomail.SMTPAuthPlainNoEnc, gomail.SMTPAuthLoginNoEnc}
		}
		options = append(options, gomail.WithUsername(s.config.User), gomail.WithPassword(s.config.Password),
			gomail.WithOpportunisticSMTPAuth(mechanisms...))
	}
	client, err := gomail.NewClient(s.config.Host, options...)
	if err != nil {
		return nil, nil, err
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	return client, session, err
}

// failure says what it means that a message is not known to be delivered.
func failure(err error) error {
	var refused *gomail.SendError
	if !errors.As(err, &refused) {
		return fmt.Errorf("%w: an error of type %T", ErrUnknown, err) // the library has no other at present
	}
	code := refused.ErrorCode() // 0 if the server gave no answer
	text := "no answer, or the connection broke"
	if code != 0 {
		text = strings.TrimSpace(fmt.Sprintf("answer %d %s", code, refused.EnhancedStatusCode()))
	}
	text = fmt.Sprintf("%s: %s", refused.Reason, text)
	switch {
	case refused.Reason == gomail.ErrSMTPDataClose && code == 0:
		return fmt.Errorf("%w: %s", ErrUnknown, text)
	case refused.Reason == gomail.ErrSMTPRcptTo && isNoMailbox(code, refused.EnhancedStatusCode()):
		return fmt.Errorf("%w: %s", ErrRefused, text)
	}
	return fmt.Errorf("%w: %s", ErrNotSent, text)
}

// isNoMailbox says whether an answer to RCPT is about the mailbox (RFC 5321, section 4.2.3; RFC 3463, section 3.2) rather than
// about who sends: 550 5.7.1 is a server that wants a password, or doesn't relay.
func isNoMailbox(code int, enhanced string) bool {
	if code != 550 && code != 551 && code != 553 {
		return false
	}
	return enhanced == "" || strings.HasPrefix(enhanced, "5.0.") || strings.HasPrefix(enhanced, "5.1.") || strings.HasPrefix(enhanced, "5.2.")
}

// reason tells for the log why there is no session, and whether it is because ctx has ended. A server's own text is left out: it may repeat a user name. What is left
// is about hosts, ports and what a server doesn't offer: no recipient has been named yet.
func reason(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		err = ctx.Err() // why the connection was closed
	}
	var (
		answer      *textproto.Error
		nonsense    textproto.ProtocolError
		certificate *tls.CertificateVerificationError
		timeout     net.Error
	)
	switch {
	case errors.As(err, &answer):
		return fmt.Sprintf("answer %d", answer.Code)
	case errors.As(err, &nonsense):
		return "an answer that is not SMTP"
	case errors.As(err, &certificate):
		return certificate.Error()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection broke"
	}
	return err.Error()
}

func domainOf(address string) string {
	return address[strings.LastIndexByte(address, '@')+1:]
}
