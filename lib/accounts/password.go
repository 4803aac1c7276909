package accounts

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"github.com/weirlimits/weir/lib/breached"
)

// PasswordRule tells a person what a password looks like.
const PasswordRule = "a password has 12 to 200 characters and at most 1024 bytes"

const (
	minPasswordRunes = 12
	maxPasswordRunes = 200
	maxPasswordBytes = 1024
)

// The parameters of new hashes: the current minimum of OWASP's Password Storage Cheat Sheet.
const (
	memoryKiB = 19 * 1024
	passes    = 2
	lanes     = 1
	saltBytes = 16
	keyBytes  = 32
)

// What a stored hash may ask for, so that a damaged row can't exhaust the process.
const (
	maxMemoryKiB = 256 * 1024
	maxPasses    = 16
	maxLanes     = 16
	maxSaltBytes = 64
	minKeyBytes  = 16
	maxKeyBytes  = 64
)

// checkPassword says whether a text may be the password of an account of this name, as far as it can be said here.
func checkPassword(password string, name Name) error {
	runes := utf8.RuneCountInString(password)
	switch {
	case !utf8.ValidString(password):
		return fmt.Errorf("%w: it is not UTF-8", ErrPassword)
	case len(password) > maxPasswordBytes:
		return fmt.Errorf("%w: it has %d bytes: %s", ErrPassword, len(password), PasswordRule)
	case runes < minPasswordRunes || runes > maxPasswordRunes:
		return fmt.Errorf("%w: it has %d characters: %s", ErrPassword, runes, PasswordRule)
	case breached.IsCommon(password, string(name)):
		return ErrBreached
	}
	return nil
}

// hash is an Argon2id hash (RFC 9106) with what it was made from, but for the password.
type hash struct {
	memoryKiB uint32
	passes    uint32
	lanes     uint8
	salt, key []byte
}

// standIn makes what stands for the hash of an account that is missing or has no password: it costs what a new one costs. That
// no password matches it is not left to its key; see check.
func standIn(memory uint32) hash {
	if memory == 0 {
		memory = memoryKiB
	}
	return hash{memoryKiB: memory, passes: passes, lanes: lanes, salt: make([]byte, saltBytes), key: make([]byte, keyBytes)}
}

// derive computes the key of a password with the parameters of h. It waits for a free slot first, so that no more than the
// slots' number of hashes take memory at once; if ctx ends in that wait the error is ErrBusy.
func (a *Accounts) derive(ctx context.Context, h hash, password string) ([]byte, error) {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
	}
	if a.config.Hashed != nil {
		a.config.Hashed()
	}
	return argon2.IDKey([]byte(password), h.salt, h.passes, h.memoryKiB, h.lanes, uint32(len(h.key))), nil
}

// hashNew makes the hash of a new password, unless it is in lists of stolen ones: ErrBreached.
func (a *Accounts) hashNew(ctx context.Context, password string) (hash, error) {
	if a.config.Breached != nil && a.config.Breached(ctx, password) {
		return hash{}, ErrBreached
	}
	return a.hashPassword(ctx, password)
}

// hashPassword makes the hash of a password.
func (a *Accounts) hashPassword(ctx context.Context, password string) (hash, error) {
	h := a.standIn
	h.salt = make([]byte, saltBytes)
	rand.Read(h.salt) // never fails: it ends the program instead
	var err error
	h.key, err = a.derive(ctx, h, password)
	return h, err
}

// matches compares in constant time.
func (a *Accounts) matches(ctx context.Context, h hash, password string) (bool, error) {
	key, err := a.derive(ctx, h, password)
	return err == nil && subtle.ConstantTimeCompare(key, h.key) == 1, err
}

var errHash = errors.New("the stored hash is not argon2id in PHC string format, or out of bounds")

// phcNumbers is the part of the PHC string format (https://github.com/P-H-C/phc-string-format) before salt and key.
const phcNumbers = "$argon2id$v=19$m=%d,t=%d,p=%d$"

func (h hash) String() string {
	encode := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf(phcNumbers+"%s$%s", h.memoryKiB, h.passes, h.lanes, encode(h.salt), encode(h.key))
}

// parseHash reads what String wrote, and nothing else: Sscanf and base64 are lenient, so the result must give the same text
// again.
func parseHash(text string) (hash, error) {
	var h hash
	var rest string
	if _, err := fmt.Sscanf(text, phcNumbers+"%s", &h.memoryKiB, &h.passes, &h.lanes, &rest); err != nil {
		return hash{}, errHash
	}
	salt, key, _ := strings.Cut(rest, "$")
	var saltErr, keyErr error
	h.salt, saltErr = base64.RawStdEncoding.DecodeString(salt)
	h.key, keyErr = base64.RawStdEncoding.DecodeString(key)
	if saltErr != nil || keyErr != nil || !h.inBounds() || h.String() != text {
		return hash{}, errHash
	}
	return h, nil
}

func (h hash) inBounds() bool {
	return h.passes >= 1 && h.passes <= maxPasses &&
		h.lanes >= 1 && h.lanes <= maxLanes &&
		h.memoryKiB >= 8*uint32(h.lanes) && h.memoryKiB <= maxMemoryKiB &&
		len(h.salt) >= 8 && len(h.salt) <= maxSaltBytes &&
		len(h.key) >= minKeyBytes && len(h.key) <= maxKeyBytes
}
