package ratelimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"
)

// SubjectKind says what a policy counts by, and so how a subject is brought into the one form that is hashed: two
// spellings of the same client must meet in one counter.
type SubjectKind uint8

const (
	// Opaque subjects are taken byte for byte: identifiers that the caller made, such as a member's number.
	Opaque SubjectKind = iota
	// Address subjects are IP addresses: see CanonicalAddress.
	Address
	// Account subjects are user names: see CanonicalAccount.
	Account
	// Phone subjects are telephone numbers: see CanonicalPhone.
	Phone
	// APIKey subjects are keys that an application gave out: byte for byte, of visible ASCII characters, because a key that
	// is told apart by case or a blank is another key.
	APIKey
)

// MaxSubjectBytes bounds a subject as the caller has it. It is more than any address or
// user name needs, and keeps hashing a subject cheap.
const MaxSubjectBytes = 1024

// Canonical gives the form of subject that is hashed; it is its own canonical form. A blank, over-long or unreadable subject is an
// error that matches ErrSubject and doesn't repeat the subject, which may be personal.
func (k SubjectKind) Canonical(subject string) (string, error) {
	canonical, err := subject, error(nil)
	if len(subject) <= MaxSubjectBytes {
		canonical, err = k.canonical(subject)
	}
	if n := len(canonical); n > MaxSubjectBytes { // lower case may be longer
		return "", fmt.Errorf("%w: %d bytes long: allowed are %d", ErrSubject, n, MaxSubjectBytes)
	}
	return canonical, err
}

func (k SubjectKind) canonical(subject string) (string, error) {
	switch k {
	case Address:
		return CanonicalAddress(subject)
	case Account:
		return CanonicalAccount(subject)
	case Phone:
		return CanonicalPhone(subject)
	case APIKey:
		if strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "", fmt.Errorf("%w: it has characters that no key has", ErrSubject)
		}
	}
	if strings.TrimSpace(subject) == "" {
		return "", fmt.Errorf("%w: it is blank", ErrSubject)
	}
	return subject, nil
}

// nat64 is the well-known prefix of IPv4 addresses seen through a translator (RFC 6052, section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// CanonicalAddress brings an IP address into the form that limits count by. A port and brackets are dropped. An IPv4
// address inside IPv6, mapped (RFC 4291, section 2.5.5.2) or translated (RFC 6052), is the IPv4 address. Any other IPv6
// address is cut to its first 64 bits, the rest being zero, since one subscriber has at least that many addresses (RFC 6177). An address with
// a zone, with leading zeros in IPv4, or that isn't one at all is an error that matches ErrSubject.
func CanonicalAddress(text string) (string, error) {
	address, err := parseAddress(strings.TrimSpace(text))
	if err != nil || address.Zone() != "" {
		return "", fmt.Errorf("%w: it is not an IP address", ErrSubject)
	}
	address = address.Unmap()
	if nat64.Contains(address) {
		bytes := address.As16()
		address = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	if address.Is4() {
		return address.String(), nil
	}
	network, err := address.Prefix(64)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrSubject, err)
	}
	return network.Addr().String(), nil
}

func parseAddress(text string) (netip.Addr, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address, nil
	}
	if inner, found := strings.CutPrefix(text, "["); found {
		if inner, found = strings.CutSuffix(inner, "]"); found {
			address, err := netip.ParseAddr(inner)
			if err == nil && !address.Is6() {
				err = fmt.Errorf("brackets around an IPv4 address")
			}
			return address, err
		}
	}
	withPort, err := netip.ParseAddrPort(text)
	return withPort.Addr(), err
}

// CanonicalAccount folds a user name: white space around it is dropped and letters become lower case by Unicode's simple
// mapping. An application must look accounts up by the same form, or spellings of one name would have a counter each. A
// blank name and one that isn't UTF-8 are errors that match ErrSubject.
func CanonicalAccount(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", fmt.Errorf("%w: it is not UTF-8", ErrSubject)
	}
	folded := strings.ToLower(strings.TrimSpace(name))
	if folded == "" {
		return "", fmt.Errorf("%w: it is blank", ErrSubject)
	}
	return folded, nil
}

// CanonicalPhone brings a telephone number into the international form of E.164: a plus sign and 7 to 15 digits, the first
// of which is not 0. Blanks, hyphens, dots and brackets that people put between digits are dropped. A number without its
// country, with an extension, or that is none at all, is an error that matches ErrSubject.
func CanonicalPhone(text string) (string, error) {
	text = strings.TrimSpace(text)
	digits, international := strings.CutPrefix(text, "+")
	number := []byte{'+'}
	for _, c := range []byte(digits) {
		switch {
		case '0' <= c && c <= '9':
			number = append(number, c)
		case strings.IndexByte(" -.()", c) < 0:
			return "", fmt.Errorf("%w: it is not a telephone number", ErrSubject)
		}
	}
	if !international || len(number) < 1+7 || len(number) > 1+15 || number[1] == '0' {
		return "", fmt.Errorf("%w: it is not a telephone number in international form", ErrSubject)
	}
	return string(number), nil
}

// keyOf derives the number that stands for a subject of a policy in the store: the first 63 bits of an HMAC-SHA256
// (RFC 2104), so that nobody without the secret can tell whose row it is. The name carries its length and the kind its
// fixed size, so that no two pairs have the same encoding. Among a million live keys two collide with odds of about one
// in 18 million.
func keyOf(secret []byte, policy string, kind SubjectKind, canonical string) int64 {
	mac := hmac.New(sha256.New, secret)
	message := make([]byte, 0, 2+len(policy)+len(canonical))
	message = append(message, byte(len(policy)))
	message = append(message, policy...)
	message = append(message, byte(kind))
	message = append(message, canonical...)
	mac.Write(message)
	return int64(binary.BigEndian.Uint64(mac.Sum(nil)) >> 1)
}
