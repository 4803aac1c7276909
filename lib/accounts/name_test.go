package accounts

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Case A40: the account is looked up by the very form that the limits count by.
func TestEverySpellingOfANameIsOneName(t *testing.T) {
	for _, text := range []string{"victim.9", "VICTIM.9", " victim.9 ", "Victim.9\t", "\u00a0vicTIM.9\r\n", "V\u0130CT\u0130M.9"} {
		got, err := ParseName(text)
		if got != "victim.9" || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		if counted, err := ratelimit.CanonicalAccount(text); counted != string(got) || err != nil {
			t.Errorf("%q: counted as %q, %v, looked up as %q", text, counted, err, got)
		}
	}
}

func TestParseNameAcceptsWhatTheRuleAllows(t *testing.T) {
	for _, text := range []string{"abc", "0ab", "a.b", "a-_", "demo", "demo-member", strings.Repeat("a", 32)} {
		if got, err := ParseName(text); string(got) != text || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestParseNameRefusesTheRestAndTellsTheRule(t *testing.T) {
	for _, text := range []string{
		"", "  ", "ab", strings.Repeat("a", 33), strings.Repeat("a", 1<<20), ".abc", "-abc", "_abc",
		"a b", "a/b", "abc@example.org", "abc\x00", "ab\xff", "zoë", "аbc" /* a Cyrillic а */, "a\u200bbc",
	} {
		got, err := ParseName(text)
		if got != "" || !errors.Is(err, ErrName) || !strings.Contains(err.Error(), NameRule) {
			t.Errorf("%.40q: %q, %v", text, got, err)
		}
		if len(text) > 2 && strings.TrimSpace(text) != "" && strings.Contains(err.Error(), text) {
			t.Errorf("the error repeats %.40q", text)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, text := range []string{"victim.9", " V\u0130CTIM\t", "demo-admin", "ab\xff", "-abc"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := ParseName(text)
		if err != nil {
			if name != "" || !errors.Is(err, ErrName) {
				t.Fatalf("%q: %q, %v", text, name, err)
			}
			return
		}
		if again, err := ParseName(string(name)); again != name || err != nil {
			t.Fatalf("%q gives %q, which gives %q, %v", text, name, again, err)
		}
		if counted, err := ratelimit.CanonicalAccount(text); counted != string(name) || err != nil {
			t.Fatalf("%q is counted as %q, %v, and looked up as %q", text, counted, err, name)
		}
		if len(name) < 3 || len(name) > 32 {
			t.Fatalf("%q gives %q", text, name)
		}
	})
}

func TestAnEmailAddressIsReadAsItsOwnerWroteIt(t *testing.T) {
	for text, want := range map[string]Email{
		"someone@example.org":       "someone@example.org",
		" Some.One+tag@Example.ORG": "Some.One+tag@Example.ORG",
	} {
		if got, err := ParseEmail(text); err != nil || got != want {
			t.Errorf("%q is read as %q, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", " ", "someone", "@example.org", "someone@", "Someone <someone@example.org>", "a@b@example.org", "a b@example.org",
		"someone@example.org\r\nBcc: another@example.org", "someone@example.org, another@example.org",
		strings.Repeat("x", 250) + "@example.org", `"quoted local"@example.org`, "someone@localhost", "someone@b\u00fccher.example.org",
	} {
		if got, err := ParseEmail(text); !errors.Is(err, ErrEmail) || got != "" {
			t.Errorf("%q is read as %q, %v", text, got, err)
		}
	}
}

func FuzzParseEmail(f *testing.F) {
	f.Add("someone@example.org")
	f.Add("\"quoted local\"@example.org")
	f.Fuzz(func(t *testing.T, text string) {
		once, err := ParseEmail(text)
		if err != nil {
			return
		}
		if twice, err := ParseEmail(string(once)); err != nil || twice != once || strings.ContainsAny(string(once), "\r\n\x00") {
			t.Fatalf("%q is read as %q, and that as %q, %v", text, once, twice, err)
		}
	})
}
