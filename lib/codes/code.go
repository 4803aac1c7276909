package codes

import (
	"crypto/rand"
	"fmt"
	"strings"
	"unicode"
)

// Code is an invite code in its only form, WEIR-XXXX-XXXX-XXXX. Parse and the pool make them.
type Code string

// Form tells a person what a code looks like.
const Form = "a code has the form WEIR-XXXX-XXXX-XXXX"

// alphabet is Crockford's base 32 (https://www.crockford.com/base32.html): no I, L, O or U, so nothing in a code is
// mistaken for something else, and a word is hardly ever spelled.
const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// symbols is how many random symbols a code has: 60 bits. Look-ups are limited for each address, but whoever holds an
// IPv6 /48 has 65,536 of them (/64 networks): at 30 look-ups a minute each, 2.8 billion guesses a day. With 10,000 codes in
// the pool the first hit is then to be expected after more than a century; at 40 bits it would be within the hour.
const symbols = 12

const (
	prefix       = "WEIR"
	foldedPrefix = "WE1R" // as Parse sees it

	// maxTextBytes bounds what Parse looks at: a code with generous blanks between its symbols.
	maxTextBytes = 128
)

// Parse reads a code as people type it: in any case, with I or L for 1 and O for 0, with blanks and dashes anywhere or
// nowhere. The error for anything else matches ErrUnknown; it doesn't repeat the text, which may be a code all the same
// and would end up in logs.
func Parse(text string) (Code, error) {
	if len(text) > maxTextBytes {
		return "", fmt.Errorf("%w: %d bytes are more than %d: %s", ErrUnknown, len(text), maxTextBytes, Form)
	}
	folded := strings.Map(fold, text)
	random, found := strings.CutPrefix(folded, foldedPrefix)
	if !found || len(random) != symbols || strings.Trim(random, alphabet) != "" {
		return "", fmt.Errorf("%w: %s", ErrUnknown, Form)
	}
	return format(random), nil
}

// fold maps a symbol to the one it stands for, and what may stand between symbols to nothing.
func fold(r rune) rune {
	switch r = unicode.ToUpper(r); {
	case unicode.IsSpace(r) || unicode.Is(unicode.Pd, r):
		return -1
	case r == 'I' || r == 'L':
		return '1'
	case r == 'O':
		return '0'
	}
	return r
}

func newCode() Code {
	random := make([]byte, symbols)
	rand.Read(random) // never fails: it ends the program instead
	for i, b := range random {
		random[i] = alphabet[int(b)%len(alphabet)] // 256 is a multiple of 32: every symbol is as likely
	}
	return format(string(random))
}

func format(random string) Code {
	return Code(prefix + "-" + random[:4] + "-" + random[4:8] + "-" + random[8:])
}
