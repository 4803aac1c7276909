package partners

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// Key is the secret that a partner shows: the prefix weir_, by which people and scanners of source code know it, and 256 random
// bits in lower-case hexadecimal, so that a double click selects the whole. It has no checksum: a text of the form that was
// never given out costs one read.
type Key string

const (
	keyPrefix = "weir_"
	keyBytes  = 32
)

// Form tells a person what a key looks like.
var Form = fmt.Sprintf("a key has the form %sX, X being %d of 0 to 9 and a to f", keyPrefix, hex.EncodedLen(keyBytes))

func newKey() Key {
	random := make([]byte, keyBytes)
	rand.Read(random) // never fails: it ends the program instead
	return Key(keyPrefix + hex.EncodeToString(random))
}

// hash is what is stored of a key, and false for a text that doesn't have the form. A plain hash is enough for 256 random bits,
// which nobody finds by trying. How long the look-up of a hash takes may tell something about hashes, and nothing about keys.
func (k Key) hash() (string, bool) {
	random, found := strings.CutPrefix(string(k), keyPrefix)
	if !found || len(random) != hex.EncodedLen(keyBytes) || strings.Trim(random, "0123456789abcdef") != "" {
		return "", false
	}
	sum := sha256.Sum256([]byte(k))
	return base64.RawURLEncoding.EncodeToString(sum[:]), true
}
