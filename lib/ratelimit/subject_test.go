package ratelimit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Cases A33, A34, A35, A36, A52: addresses in one group are one client, groups are different clients.
func TestSpellingsOfOneAddressAreOneSubject(t *testing.T) {
	groups := [][]string{
		{"203.0.113.9", "203.0.113.9:50001", "203.0.113.9:50002", "::ffff:203.0.113.9", "[::ffff:203.0.113.9]:443", " 203.0.113.9 ", "64:ff9b::203.0.113.9"},
		{"203.0.113.10", "::ffff:203.0.113.10"},
		{"198.51.100.7", "::FFFF:198.51.100.7", "::ffff:c633:6407"},
		{"2001:DB8:0:0::1", "2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:443", "2001:db8::ffff:ffff:ffff:ffff"},
		{"2001:db8:1:2::1", "2001:db8:1:2:3:4:5:6", "2001:0db8:0001:0002::"},
		{"2001:db8:1:3::1"},
		{"127.0.0.1"},
		{"::1"},
		{"10.0.0.1"},
		{"169.254.1.1"},
	}
	seen := map[string]int{}
	for i, group := range groups {
		for _, text := range group {
			got, err := ratelimit.CanonicalAddress(text)
			if err != nil {
				t.Errorf("%q: %v", text, err)
				continue
			}
			if other, found := seen[got]; found && other != i {
				t.Errorf("%q is the subject of another client, %q", text, groups[other][0])
			}
			if first, _ := ratelimit.CanonicalAddress(group[0]); got != first {
				t.Errorf("%q becomes %q, but %q becomes %q", text, got, group[0], first)
			}
			seen[got] = i
		}
	}
}

// Cases A35, A38.
func TestWhatIsNoAddressIsNoSubject(t *testing.T) {
	for _, text := range []string{
		"", "   ", "fe80::1%eth0", "010.0.0.1", "999.1.1.1", "abc", "203.0.113.9, 198.51.100.7", "203.0.113.9:", "203.0.113.9:99999",
		"[203.0.113.9]", "2001:db8::1::2", "[2001:db8::1", "203.0.113", "unknown", "1.2.3.4.5", "[fe80::1%eth0]:443",
	} {
		if got, err := ratelimit.CanonicalAddress(text); !errors.Is(err, ratelimit.ErrSubject) || got != "" {
			t.Errorf("%q becomes %q with error %v, want ErrSubject", text, got, err)
		}
	}
}

// Case A40.
func TestSpellingsOfOneAccountAreOneSubject(t *testing.T) {
	for _, text := range []string{"victim@example.org", "VICTIM@example.org", " victim@example.org ", "Victim@Example.Org\t", "\nvictim@example.ORG", "victim@example.org\u00a0"} {
		if got, err := ratelimit.CanonicalAccount(text); err != nil || got != "victim@example.org" {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
	}
}

// Cases A39, A43.
func TestBlankAndOverlongSubjectsAreRefusedAndNotRepeated(t *testing.T) {
	long := strings.Repeat("secretname", 200_000)
	for _, kind := range []ratelimit.SubjectKind{ratelimit.Opaque, ratelimit.Address, ratelimit.Account, ratelimit.Phone, ratelimit.APIKey} {
		for _, text := range []string{"", " ", "\t\n", "\u00a0", long} {
			_, err := kind.Canonical(text)
			if !errors.Is(err, ratelimit.ErrSubject) {
				t.Errorf("kind %d takes %.10q", kind, text)
			} else if strings.Contains(err.Error(), "secretname") {
				t.Errorf("kind %d repeats the subject: %.80v", kind, err)
			}
		}
	}
	if _, err := ratelimit.CanonicalAccount("a\xff"); !errors.Is(err, ratelimit.ErrSubject) {
		t.Error("an account name that isn't UTF-8 is taken")
	}
}

// row C15
func TestSpellingsOfOnePhoneAreOneSubject(t *testing.T) {
	for _, text := range []string{"+15550100123", "+1 555 010-0123", " +1 (555) 010.0123 ", "+1-555-0100123"} {
		if got, err := ratelimit.CanonicalPhone(text); err != nil || got != "+15550100123" {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"15550100123", "0015550100123", "+05550100123", "+123456", "+1234567890123456", "+1555010012x", "++15550100123", "+1 555 010 0123 ext 4", "+1٥٥50100123"} {
		if got, err := ratelimit.CanonicalPhone(text); !errors.Is(err, ratelimit.ErrSubject) {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
	}
}

// row C15
func TestKeysThatDifferInAnythingAreDifferentSubjects(t *testing.T) {
	for _, text := range []string{"abc", "ABC", "abc."} {
		if got, err := ratelimit.APIKey.Canonical(text); err != nil || got != text {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
	}
	for _, text := range []string{" abc", "a bc", "abc\n", "äbc", "a\x00"} {
		if got, err := ratelimit.APIKey.Canonical(text); !errors.Is(err, ratelimit.ErrSubject) {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
	}
}

func FuzzCanonicalAddress(f *testing.F) {
	for _, seed := range []string{"203.0.113.9:1", "[2001:db8::1]:443", "64:ff9b::1.2.3.4", "::ffff:1.2.3.4", "fe80::1%x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		once, err := ratelimit.CanonicalAddress(text)
		if err != nil {
			return
		}
		if twice, err := ratelimit.CanonicalAddress(once); err != nil || twice != once {
			t.Fatalf("%q becomes %q, and that becomes %q, %v", text, once, twice, err)
		}
	})
}

func FuzzCanonicalAccount(f *testing.F) {
	for _, seed := range []string{"Someone", " K ", "ẞß", "\u2003x", "İ"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		once, err := ratelimit.CanonicalAccount(text)
		if err != nil {
			return
		}
		if twice, err := ratelimit.CanonicalAccount(once); err != nil || twice != once {
			t.Fatalf("%q becomes %q, and that becomes %q, %v", text, once, twice, err)
		}
	})
}
