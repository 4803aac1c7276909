// Package smtpserver is a mail server for tests: SMTP with STARTTLS or TLS and with passwords, that keeps what it gets and
// delays, refuses or breaks off on demand.
package smtpserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// Encryption is what a server offers. The zero value is none.
type Encryption int

// What a server offers.
const (
	None Encryption = iota
	StartTLS
	Implicit
)

// Config says how a Server behaves. The zero value takes every message, unencrypted and from anybody.
type Config struct {
	Encryption Encryption
	// User and Password are demanded by PLAIN unless User is empty.
	User, Password string
	// Greeting is waited for before the server says its first word; nil means at once. Connected is sent to whenever a
	// client has connected; nil means that nobody is told.
	Greeting  <-chan struct{}
	Connected chan<- struct{}
	// Hook decides what becomes of each step: "mail", "rcpt", "data" (in the middle of the text) and "taken" (after the text,
	// before the answer). It may block, which ends when the test does. Nil serves everything.
	Hook func(step string) Action
}

// Action is what the server does with a step. The zero value serves it.
type Action struct {
	Code     int    // answered instead, when not 0
	Enhanced [3]int // goes with Code
	Text     string // goes with Code
	Cut      bool   // close the connection
	Hang     bool   // answer nothing, until the test has ended
}

// Message is what the server took, as it was sent, dots unstuffed.
type Message struct {
	From, To string
	Data     string
}

// Server is a running server.
type Server struct {
	Host string // 127.0.0.1
	Port int
	// Roots holds the authority of its certificate, which no system knows.
	Roots *x509.CertPool

	config   Config
	done     chan struct{}
	mu       sync.Mutex
	messages []Message
	seen     int // messages of which the whole text arrived, taken or not
}

// Start starts a server that ends with the test.
func Start(t testing.TB, config Config) *Server {
	t.Helper()
	certificate, roots := selfSigned(t)
	encryption := &tls.Config{Certificates: []tls.Certificate{certificate}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	s := &Server{Host: "127.0.0.1", Port: address.Port, Roots: roots, config: config, done: make(chan struct{})}
	server := smtp.NewServer(smtp.BackendFunc(func(conn *smtp.Conn) (smtp.Session, error) {
		if config.User != "" {
			return &passwordSession{&session{server: s, conn: conn}}, nil
		}
		return &session{server: s, conn: conn, known: true}, nil
	}))
	server.Domain = "mail.example.org"
	server.AllowInsecureAuth = true
	server.ErrorLog = quiet{}
	var outer net.Listener = &greeter{listener, s}
	switch config.Encryption {
	case StartTLS:
		server.TLSConfig = encryption
	case Implicit:
		outer = tls.NewListener(outer, encryption)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(outer) // ends when it is closed below
	}()
	t.Cleanup(func() {
		close(s.done)
		server.Close()
		<-ended
	})
	return s
}

// Messages are those that the server took, in order.
func (s *Server) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

// Seen counts the messages whose whole text arrived, whatever the server answered.
func (s *Server) Seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// step does what the hook says, and tells whether to go on.
func (s *Server) step(conn *smtp.Conn, name string) error {
	if s.config.Hook == nil {
		return nil
	}
	action := s.config.Hook(name)
	switch {
	case action.Hang:
		<-s.done
		return errors.New("the test has ended")
	case action.Cut:
		conn.Conn().Close()
		return errors.New("cut")
	case action.Code != 0:
		return &smtp.SMTPError{Code: action.Code, EnhancedCode: smtp.EnhancedCode(action.Enhanced), Message: action.Text}
	}
	return nil
}

type session struct {
	server   *Server
	conn     *smtp.Conn
	known    bool // or nobody has to be
	from, to string
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if !s.known {
		return smtp.ErrAuthRequired
	}
	s.from = from
	return s.server.step(s.conn, "mail")
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = to
	return s.server.step(s.conn, "rcpt")
}

func (s *session) Data(r io.Reader) error {
	var text bytes.Buffer
	if _, err := io.CopyN(&text, r, 100); err != nil { // every header is longer
		return err
	}
	if err := s.server.step(s.conn, "data"); err != nil {
		return err
	}
	if _, err := io.Copy(&text, r); err != nil {
		return err
	}
	s.server.mu.Lock()
	s.server.seen++
	s.server.mu.Unlock()
	if err := s.server.step(s.conn, "taken"); err != nil {
		return err
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.messages = append(s.server.messages, Message{s.from, s.to, text.String()})
	return nil
}

func (s *session) Reset()        { s.from, s.to = "", "" }
func (s *session) Logout() error { return nil }

// passwordSession is a session whose client has to sign in.
type passwordSession struct{ *session }

func (s *passwordSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *passwordSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != s.server.config.User || password != s.server.config.Password {
			return smtp.ErrAuthFailed
		}
		s.known = true
		return nil
	}), nil
}

// greeter holds what a server says first until it may.
type greeter struct {
	net.Listener
	server *Server
}

func (g *greeter) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if g.server.config.Connected != nil {
		g.server.config.Connected <- struct{}{}
	}
	if g.server.config.Greeting == nil {
		return conn, nil
	}
	return &greeted{Conn: conn, server: g.server}, nil
}

type greeted struct {
	net.Conn
	server *Server
	once   sync.Once
}

func (g *greeted) Write(p []byte) (int, error) {
	g.once.Do(func() {
		select {
		case <-g.server.config.Greeting:
		case <-g.server.done:
		}
	})
	return g.Conn.Write(p)
}

// selfSigned makes a certificate for this machine, and the pool that knows it.
func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "mail.example.org"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:              []string{"localhost"},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// quiet drops what the server would log: that clients break off, as tests have them do.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
func (quiet) Println(...any)        {}
