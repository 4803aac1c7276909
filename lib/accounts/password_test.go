package accounts

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestPasswordsHaveTwelveToTwoHundredCharacters(t *testing.T) {
	for _, test := range []struct {
		password string
		ok       bool
	}{
		{"", false},
		{strings.Repeat("a", 11), false},
		{strings.Repeat("a", 12), true},
		{strings.Repeat("a", 200), true},
		{strings.Repeat("a", 201), false},
		{strings.Repeat("é", 11), false},
		{strings.Repeat("é", 12), true},
		{strings.Repeat("\U0001f600", 200), true}, // 800 bytes
		{strings.Repeat("a", 1<<20), false},
		{"eleven chars" + "\xff", false},
		{strings.Repeat(" ", 12), true},
	} {
		err := checkPassword(test.password, "someone")
		if (err == nil) != test.ok || err != nil && !errors.Is(err, ErrPassword) {
			t.Errorf("%.40q: %v", test.password, err)
		}
	}
}

// The example is RFC 9106's algorithm with this package's parameters, computed by the reference implementation in C
// (argon2-cffi 25.1, which wraps it): what is stored can be read by others, and what others stored here.
const (
	referenceHash     = "$argon2id$v=19$m=19456,t=2,p=1$c2l4dGVlbi1ieXRlLXNsdA$grZktfz/LO1WXgoFKA6ArQwEgZy2bEN+kD3OIm/5Ars"
	referencePassword = "correct horse battery"
)

func TestAHashOfTheReferenceImplementationMatches(t *testing.T) {
	h, err := parseHash(referenceHash)
	if err != nil {
		t.Fatal(err)
	}
	a := New(nil, Config{})
	for _, test := range []struct {
		password string
		want     bool
	}{{referencePassword, true}, {referencePassword + " ", false}, {"", false}} {
		if got, err := a.matches(t.Context(), h, test.password); got != test.want || err != nil {
			t.Errorf("%q: %v, %v", test.password, got, err)
		}
	}
}

func TestEveryNewHashHasASaltOfItsOwnAndOWASPsParameters(t *testing.T) {
	a := New(nil, Config{})
	var texts []string
	for range 2 {
		h, err := a.hashPassword(t.Context(), referencePassword)
		if err != nil {
			t.Fatal(err)
		}
		text := h.String()
		if !strings.HasPrefix(text, "$argon2id$v=19$m=19456,t=2,p=1$") || len(h.salt) != 16 || len(h.key) != 32 {
			t.Errorf("hash %s", text)
		}
		read, err := parseHash(text)
		if err != nil || read.String() != text {
			t.Errorf("%s is read as %s, %v", text, read, err)
		}
		if ok, err := a.matches(t.Context(), read, referencePassword); !ok || err != nil {
			t.Errorf("%s: %v, %v", text, ok, err)
		}
		texts = append(texts, text)
	}
	if texts[0] == texts[1] {
		t.Errorf("one password has the same hash twice: %s", texts[0])
	}
}

func TestAStoredHashThatIsDamagedOrOutOfBoundsIsRefused(t *testing.T) {
	const salt, key = "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	if _, err := parseHash("$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"",
		"$argon2i$v=19$m=19456,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=16$m=19456,t=2,p=1$" + salt + "$" + key,
		"$argon2id$m=19456,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=4294967295,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=262145,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=7,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=19456,t=0,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=19456,t=17,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=19456,t=2,p=0$" + salt + "$" + key,
		"$argon2id$v=19$m=19456,t=2,p=17$" + salt + "$" + key,
		"$argon2id$v=19$m=19456,t=2,p=256$" + salt + "$" + key,
		"$argon2id$v=19$m=+19456,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=019456,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=-1,t=2,p=1$" + salt + "$" + key,
		"$argon2id$v=19$t=2,m=19456,p=1$" + salt + "$" + key,
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt,
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$",
		"$argon2id$v=19$m=19456,t=2,p=1$$" + key,
		"$argon2id$v=19$m=19456,t=2,p=1$AAAA$" + key,
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key[:20],
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + strings.Repeat("A", 100),
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "==$" + key,
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key + " ",
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key + "\n",
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key + "$",
		"$argon2id$v=19$m=19456,t=2,p=1$" + salt + "$" + key[:42] + "B", // bits beyond the last byte
	} {
		if h, err := parseHash(text); err == nil {
			t.Errorf("%q is read as %v", text, h)
		}
	}
}

func TestAHashThatCannotStartInTimeIsBusyAndNotComputed(t *testing.T) {
	hashed := 0
	a := New(nil, Config{Hashed: func() { hashed++ }})
	for range cap(a.slots) {
		a.slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := a.SignIn(ctx, "no name at all", "a long password", Device{}); !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want ErrBusy and the cause", err)
	}
	if hashed != 0 {
		t.Errorf("%d hashes were computed", hashed)
	}
	<-a.slots
	if _, _, err := a.SignIn(t.Context(), "no name at all", "a long password", Device{}); err != ErrCredentials || hashed != 1 {
		t.Errorf("with a slot: %v, %d hashes", err, hashed)
	}
	if len(a.slots) != cap(a.slots)-1 {
		t.Error("the slot was not given back")
	}
}

func FuzzParseHash(f *testing.F) {
	f.Add(standIn(0).String())
	f.Add(referenceHash)
	f.Add("$argon2id$v=19$m=8,t=1,p=1$$")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseHash(text)
		if err != nil {
			return
		}
		if h.String() != text {
			t.Fatalf("%q is read as %q", text, h)
		}
		if h.memoryKiB > maxMemoryKiB || h.passes > maxPasses || h.passes == 0 || h.lanes == 0 || len(h.key) < minKeyBytes {
			t.Fatalf("%q is out of bounds", text)
		}
	})
}
