package mail

import (
	"errors"
	"strings"
	"testing"
)

func TestAnSMTPURLIsReadStrictly(t *testing.T) {
	for text, want := range map[string]SMTPConfig{
		"smtps://user:pass@mail.example.org?from=weir@example.org":                {Host: "mail.example.org", Port: 465, TLS: ImplicitTLS, User: "user", Password: "pass"},
		"SMTPS://u%40x:p%3A%2F%40@mail.example.org:2465/?from=weir%40example.org": {Host: "mail.example.org", Port: 2465, TLS: ImplicitTLS, User: "u@x", Password: "p:/@"},
		"smtp://user:pass@mail.example.org?from=weir@example.org":                 {Host: "mail.example.org", Port: 587, TLS: StartTLS, User: "user", Password: "pass"},
		"smtp://mail.example.org:25?from=weir@example.org":                        {Host: "mail.example.org", Port: 25, TLS: StartTLS},
		"smtp://mail.example.org?from=weir@example.org&tls=starttls":              {Host: "mail.example.org", Port: 587, TLS: StartTLS},
		"smtp://mail.example.org:25?tls=none&from=weir@example.org":               {Host: "mail.example.org", Port: 25, TLS: NoTLS},
		"smtp://localhost:1025?from=weir@example.org":                             {Host: "localhost", Port: 1025, TLS: NoTLS},
		"smtp://user:pass@127.0.0.1:1025?from=weir@example.org":                   {Host: "127.0.0.1", Port: 1025, TLS: NoTLS, User: "user", Password: "pass"},
		"smtp://[::1]:1025?from=weir@example.org":                                 {Host: "::1", Port: 1025, TLS: NoTLS},
		"smtp://127.0.0.1:1025?from=weir@example.org&tls=starttls":                {Host: "127.0.0.1", Port: 1025, TLS: StartTLS},
		"smtps://[2001:db8::25]?from=weir@example.org":                            {Host: "2001:db8::25", Port: 465, TLS: ImplicitTLS},
	} {
		want.From = "weir@example.org"
		if got, err := ParseURL(text); got != want || err != nil {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestAWrongSMTPURLIsAnErrorThatHoldsNothingOfIt(t *testing.T) {
	for _, text := range []string{
		"", "s3cr3t", "//s3cr3t.example.org?from=weir@example.org", "http://s3cr3t.example.org?from=weir@example.org",
		"smtp:s3cr3t.example.org?from=weir@example.org",
		"smtps://?from=weir@example.org",
		"smtps://user:s3cr3t@:465?from=weir@example.org",
		"smtps://user:s3cr3t@mail.example.org",             // no sender
		"smtps://user:s3cr3t@mail.example.org?from=",       //
		"smtps://user:s3cr3t@mail.example.org?from=s3cr3t", //
		"smtps://user:s3cr3t@mail.example.org?from=a@example.org&from=b@example.org",
		"smtps://user:s3cr3t@mail.example.org?from=a@example.org%0d%0aBcc:b@example.org",
		"smtps://user:s3cr3t@mail.example.org?from=weir@example.org&s3cr3t=1",  // a parameter that doesn't exist
		"smtps://user:s3cr3t@mail.example.org?From=weir@example.org",           //
		"smtps://user:s3cr3t@mail.example.org?from=weir@example.org;x",         //
		"smtps://user:s3cr3t@mail.example.org?from=weir@example.org&tls=none",  // smtps is TLS
		"smtp://user:s3cr3t@mail.example.org?from=weir@example.org&tls=s3cr3t", //
		"smtp://user:s3cr3t@mail.example.org?from=weir@example.org&tls=",       //
		"smtp://user:s3cr3t@mail.example.org?from=weir@example.org&tls=none",   // the password in the clear
		"smtps://user:s3cr3t@mail.example.org:?from=weir@example.org",          // ports
		"smtps://user:s3cr3t@mail.example.org:0?from=weir@example.org",         //
		"smtps://user:s3cr3t@mail.example.org:65536?from=weir@example.org",     //
		"smtps://user:s3cr3t@mail.example.org:smtp?from=weir@example.org",      //
		"smtps://user:s3cr3t@mail.example.org/s3cr3t?from=weir@example.org",    //
		"smtps://user:s3c#r3t@mail.example.org?from=weir@example.org",          // # not encoded
		"smtps://user:s3cr3t@mail.example.org?from=weir@example.org#",          //
		"smtps://s3cr3t@mail.example.org?from=weir@example.org",                // no password
		"smtps://user:@mail.example.org?from=weir@example.org",                 //
		"smtps://:s3cr3t@mail.example.org?from=weir@example.org",               //
		"smtps://user:s3cr3t%0d@mail.example.org?from=weir@example.org",        //
		"smtps://user:s3cr3t%zz@mail.example.org?from=weir@example.org",        //
		"smtps://user:s3cr3t@mail.example.org?from=%zz",                        //
		"smtps://user:s3cr3t@mail.example.org\n?from=weir@example.org",         //
		" smtps://user:s3cr3t@mail.example.org?from=weir@example.org",          //
		"smtps://user:s3cr3t@ma%20il.example.org?from=weir@example.org",        //
	} {
		got, err := ParseURL(text)
		if got != (SMTPConfig{}) || !errors.Is(err, ErrURL) {
			t.Errorf("%q: got %+v, %v", text, got, err)
			continue
		}
		if said := err.Error(); strings.Contains(said, "s3c") || strings.Contains(said, "r3t") || !strings.Contains(said, "smtps://USER") {
			t.Errorf("%q: the error says %s", text, said)
		}
	}
}
