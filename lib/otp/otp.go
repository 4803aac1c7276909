// Package otp sends one-time codes to phones and checks them. A code has six digits, lives for ten minutes and is good for
// once; a phone has one at a time.
//
// Six digits can be guessed: how often somebody may try, and be sent a code, is up to the caller. The schema is in
// db/migrations.
package otp

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
	"unicode"

	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/sms"
	"github.com/weirlimits/weir/lib/tables"
)

// Errors that callers branch on, with errors.Is. No error holds a phone or a code.
var (
	// ErrPhone means that a text is no telephone number in international form.
	ErrPhone = errors.New("otp: phone not valid")
	// ErrWrong means that this is not the code that the phone was sent last, or that it is used or expired, or that none was
	// sent. A client isn't told which.
	ErrWrong = errors.New("otp: wrong code")
	// ErrUsed means that this code was verified before, and would not be expired yet: a double
	// click, not a guess. It matches ErrWrong too, since a client gets the same answer.
	ErrUsed = fmt.Errorf("%w: it was used before", ErrWrong)
	// ErrStore means that the database didn't answer. A code may have been made or used up then.
	ErrStore = errors.New("otp: store failed")
)

// Life is how long a code is good for. The triggers of otp_codes have it too.
const Life = 10 * time.Minute

// digits is how long a code is: as many as people keep in mind between two windows. A guess is right once in a million.
const digits = 6

// maxCodeBytes bounds what Verify looks at: a code with generous blanks between its digits.
const maxCodeBytes = 64

// sweepRows bounds one statement of Sweep: few enough that nobody waits long for the writer.
const sweepRows = 500

// PhoneRule tells a person what a number looks like.
const PhoneRule = "a telephone number has the international form of E.164: +, the country's code and the number, 7 to 15 digits, such as +12025550123"

// Phone is a telephone number in the form of E.164, such as "+12025550123". ParsePhone makes one.
type Phone string

// ParsePhone reads a telephone number as ratelimit.CanonicalPhone does, so that limits count by what messages are sent to. A
// zero in brackets, which is not dialled from abroad, is an error too: with it one phone would have two numbers. So is every
// other text; it matches ErrPhone and doesn't repeat the text.
//
// Whether a country has such numbers isn't looked at.
func ParsePhone(text string) (Phone, error) {
	canonical, err := ratelimit.Phone.Canonical(text)
	trunkZero := strings.Contains(strings.NewReplacer(" ", "", "-", "", ".", "").Replace(text), "(0)")
	if err != nil || trunkZero {
		return "", fmt.Errorf("%w: %s", ErrPhone, PhoneRule)
	}
	return Phone(canonical), nil
}

// Config says how Codes works.
type Config struct {
	// Secret keys what is stored of phones and codes. Required.
	Secret []byte
	// OtherSecret is the one that Secret changes places with: codes are made under Secret and good under both. Nil means none.
	OtherSecret []byte
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
}

// Codes are the codes that phones were sent. It holds no state besides db and may be used by many goroutines and, over one
// database, by many processes.
type Codes struct {
	db      *sql.DB
	gateway sms.Gateway
	config  Config
	keys    [][]byte // the first one makes codes
}

// New makes Codes on db, which the caller opens, migrates and closes, whose messages leave by gateway.
func New(db *sql.DB, gateway sms.Gateway, config Config) *Codes {
	c := &Codes{db: db, gateway: gateway, config: config}
	for _, secret := range [][]byte{config.Secret, config.OtherSecret} {
		if secret != nil {
			c.keys = append(c.keys, derive(secret))
		}
	}
	return c
}

// keyUse keeps the key apart from everything else that the secret is for: no message that a limiter's key, a reservation or a
// known device is made from begins like this.
const keyUse = "weir: one-time codes"

func derive(secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(keyUse))
	return mac.Sum(nil)
}

// phoneKey stands for a phone in the database: the first 63 bits of an HMAC-SHA256. A phone has digits alone and a code's
// message begins otherwise, so no two messages are the same.
func phoneKey(key []byte, phone Phone) int64 {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("phone " + string(phone)))
	return int64(binary.BigEndian.Uint64(mac.Sum(nil)) >> 1)
}

// codeMAC stands for a phone's code. A hash without a key would be turned back by a million tries.
func codeMAC(key []byte, phone Phone, code string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("code " + string(phone) + " " + code))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// usedKey stands for a phone's code that was verified, in the place of the phone's key: with all 63
// bits of it, so it is no one's by chance. Its message begins otherwise than those above.
func usedKey(key []byte, phone Phone, code string) int64 {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("used " + string(phone) + " " + code))
	return int64(binary.BigEndian.Uint64(mac.Sum(nil)) >> 1)
}

// newCode gives each of the million codes with the same odds.
func newCode() string {
	n, err := rand.Int(rand.Reader, big.NewInt(1_000_000))
	if err != nil { // crypto/rand ends the program instead
		panic("otp: no random number: " + err.Error())
	}
	return fmt.Sprintf("%0*d", digits, n)
}

// parseCode reads a code as people type it: with blanks and hyphens anywhere. What is no code gives "".
func parseCode(text string) string {
	if len(text) > maxCodeBytes {
		return ""
	}
	code := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.Is(unicode.Pd, r) {
			return -1
		}
		return r
	}, text)
	if len(code) != digits || strings.Trim(code, "0123456789") != "" {
		return ""
	}
	return code
}

// keep puts a code in the place of the phone's older one, or adds it, in one statement: of two at once one takes the other's
// place. Its triggers end the code that stands under the other secret in the same statement, and take expired ones away.
const keep = `
INSERT INTO otp_codes (phone_key, other_phone_key, code_mac, expires_micros)
VALUES (?, ?, ?, coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + ?)
ON CONFLICT (phone_key) DO UPDATE SET
  other_phone_key = excluded.other_phone_key,
  code_mac = excluded.code_mac,
  expires_micros = excluded.expires_micros`

// Send makes a new code for a phone and sends it there. The older one ends, also if sending fails: what is then left in the
// database nobody knows.
//
// The errors are those of lib/sms, and ErrStore before anything was sent. After sms.ErrUnknown somebody may have the code,
// and it is good.
func (c *Codes) Send(ctx context.Context, phone Phone) error {
	code := newCode()
	var other any
	if len(c.keys) > 1 {
		other = phoneKey(c.keys[1], phone)
	}
	_, err := c.db.ExecContext(ctx, keep,
		phoneKey(c.keys[0], phone), other, codeMAC(c.keys[0], phone, code), c.now(), Life.Microseconds())
	if err != nil {
		return fmt.Errorf("%w: keep a code: %w", ErrStore, err)
	}
	return c.gateway.Send(ctx, sms.Message{To: string(phone), Text: text(code)})
}

// text holds nothing that whoever asks could have chosen, and no link. It fits one SMS.
func text(code string) string {
	return fmt.Sprintf("%s is your code for Weir. It is good for %d minutes, and for nobody but you. If you did not ask for it, ignore this message.",
		code, int(Life.Minutes()))
}

// use moves the phone's code to the key of a used one if it is the one that was given and its time
// isn't over, in one UPDATE under the engine's write lock: of two at once one finds it. A wrong
// code changes nothing and so writes nothing. How long the comparison takes tells nothing, because
// an attacker without the secret doesn't know which MAC a guess has.
//
// The row stays until its time is over, whatever codes the phone is sent meanwhile. REPLACE is for
// a code that comes a second time within its life: the newer row counts.
const use = `
UPDATE OR REPLACE otp_codes
SET
  phone_key       = ?,
  other_phone_key = NULL
WHERE phone_key IN (?, ?)
  AND code_mac IN (?, ?)
  AND expires_micros > coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
RETURNING phone_key`

// isUsed finds a code that was used and whose time isn't over.
const isUsed = `
SELECT phone_key
FROM otp_codes
WHERE phone_key IN (?, ?)
  AND expires_micros > coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
LIMIT 1`

// Verify uses a phone's code up. Nil means that this was it. The text may have blanks and hyphens
// between its digits. An error matches ErrWrong or ErrStore, and ErrUsed where a code is sent
// again. A text that is no code takes the same time.
func (c *Codes) Verify(ctx context.Context, phone Phone, text string) error {
	code := parseCode(text)
	newest, other := c.keys[0], c.keys[len(c.keys)-1]
	used, otherUsed := usedKey(newest, phone, code), usedKey(other, phone, code)
	var key int64
	err := c.db.QueryRowContext(ctx, use, used,
		phoneKey(newest, phone), phoneKey(other, phone), codeMAC(newest, phone, code), codeMAC(other, phone, code), c.now()).Scan(&key)
	if errors.Is(err, sql.ErrNoRows) {
		err = c.db.QueryRowContext(ctx, isUsed, used, otherUsed, c.now()).Scan(&key)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return ErrWrong
		case err == nil:
			return ErrUsed
		}
	}
	if err != nil {
		return fmt.Errorf("%w: use a code: %w", ErrStore, err)
	}
	return nil
}

// sweep looks at the codes that expire first and deletes those whose time is over.
const sweep = `
DELETE FROM otp_codes
WHERE phone_key IN (SELECT phone_key FROM otp_codes ORDER BY expires_micros LIMIT ?)
  AND expires_micros <= coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)
RETURNING phone_key`

// Sweep deletes the codes whose time is over, as long as ctx lasts, and says how many, and whether none is left. An error
// matches ErrStore; what was deleted until then is gone.
func (c *Codes) Sweep(ctx context.Context) (deleted int64, done bool, err error) {
	deleted, done, err = tables.Sweep(ctx, sweepRows, func() (*sql.Rows, error) {
		return c.db.QueryContext(ctx, sweep, sweepRows, c.now())
	})
	if err != nil {
		err = fmt.Errorf("%w: sweep the codes: %w", ErrStore, err)
	}
	return deleted, done, err
}

// now is the argument that replaces the database's clock, nil to use it.
func (c *Codes) now() any { return tables.Now(c.config.Now) }
