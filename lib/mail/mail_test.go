package mail

import (
	"errors"
	"strings"
	"testing"
)

func TestAnAddressIsOneThatEveryServerTakesMailFor(t *testing.T) {
	for _, text := range []string{
		"someone@example.org", "Some.One+tag@Example.ORG", "a@b.example.com", "o'hara@example.net", "x_y-z@xn--bcher-kva.example.org",
	} {
		if got, err := ParseAddress(" " + text + "\t"); got != text || err != nil {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", " ", "someone", "someone@", "@example.org", "a@b@example.org", "a b@example.org", "someone@example", "someone@example..org",
		"someone@.example.org", "someone@example.org.", "someone@-a.example.org", "someone@a-.example.org", "someone@192.0.2.1",
		"someone@[192.0.2.1]", "Some One <someone@example.org>", "<someone@example.org>", "someone@example.org (comment)",
		`"some one"@example.org`, `"someone"@example.org`, "söme@example.org", "someone@exämple.org", "someone@example.org\r\nBcc: other@example.org",
		"someone@example.org,other@example.org", "some\x00one@example.org", "someone@exam\nple.org", "someone@example_1.org",
		strings.Repeat("x", 65) + "@example.org", "x@" + strings.Repeat("x", 64) + ".org", "x@" + strings.Repeat("example.", 40) + "org",
	} {
		got, err := ParseAddress(text)
		if got != "" || !errors.Is(err, ErrAddress) {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "someone") {
			t.Errorf("the error repeats the text: %v", err)
		}
	}
}

func TestAMessageThatWouldForgeAHeaderIsRefused(t *testing.T) {
	good := Message{To: "someone@example.org", Subject: "Grüße", Text: "One\n\ttwo — drei\n", ID: "a.B-3_"}
	if checked, err := good.checked(); checked != good || err != nil {
		t.Fatalf("as it is: %+v, %v", checked, err)
	}
	for _, change := range []func(*Message){
		func(m *Message) { m.To = "" },
		func(m *Message) { m.To = " someone@example.org" },
		func(m *Message) { m.To = "someone@example.org\r\nBcc: other@example.org" },
		func(m *Message) { m.To = "someone@example.org\n" },
		func(m *Message) { m.To = "someone@example.org>, <other@example.org" },
		func(m *Message) { m.Subject = "" },
		func(m *Message) { m.Subject = "  " },
		func(m *Message) { m.Subject = "Hello\r\nBcc: other@example.org" },
		func(m *Message) { m.Subject = "Hello\nBcc: other@example.org" },
		func(m *Message) { m.Subject = "Hello\rBcc: other@example.org" },
		func(m *Message) { m.Subject = "Hello\u0085there" },
		func(m *Message) { m.Subject = "Hello\u2028there" },
		func(m *Message) { m.Subject = "Hello\x00" },
		func(m *Message) { m.Subject = "Hello\xff" },
		func(m *Message) { m.Subject = strings.Repeat("x", maxSubjectBytes+1) },
		func(m *Message) { m.Text = "one\r\ntwo" },
		func(m *Message) { m.Text = "one\rtwo" },
		func(m *Message) { m.Text = "\x00" },
		func(m *Message) { m.Text = "\xff" },
		func(m *Message) { m.Text = strings.Repeat("x", maxTextBytes+1) },
		func(m *Message) { m.ID = "a>\r\nBcc: <b" },
		func(m *Message) { m.ID = "a@b" },
		func(m *Message) { m.ID = strings.Repeat("x", maxIDBytes+1) },
	} {
		m := good
		change(&m)
		if _, err := m.checked(); !errors.Is(err, ErrMessage) || errors.Is(err, ErrUnknown) || strings.Contains(err.Error(), "example.org") {
			t.Errorf("%+v: %v, want ErrMessage without an address", m, err)
		}
	}
}

func TestAMessageWithoutAnIDGetsOneOfItsOwn(t *testing.T) {
	m := Message{To: "someone@example.org", Subject: "Hello"}
	first, err := m.checked()
	second, err2 := m.checked()
	if err != nil || err2 != nil || len(first.ID) != 32 || first.ID == second.ID {
		t.Errorf("%q, %v and %q, %v", first.ID, err, second.ID, err2)
	}
}
