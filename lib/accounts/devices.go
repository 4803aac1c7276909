package accounts

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A device is a browser that signed in to an account with its password. It proves nothing but that: it opens no session and
// spares no password. It is good for a guess that is counted apart from those of strangers.

const (
	// DeviceLifetime is how long a device is known after it last signed in. The trigger sessions_device has it too.
	DeviceLifetime = 180 * 24 * time.Hour

	// maxShown bounds the accounts that one browser is known for: it forgets the one that it signed in to longest ago.
	maxShown = 5

	deviceIDBytes = 16
	deviceBytes   = deviceIDBytes + 8 + 8 // id, account, when it was issued
	sealedBytes   = deviceBytes + sha256.Size

	deviceSeparator = "."
)

// deviceKeyUse keeps the key apart from everything else that the secret is for: no message that a limiter's key or a
// reservation is made from begins like this.
const deviceKeyUse = "weir: known devices"

// deviceKeys derives the keys of tokens. The first one signs.
func deviceKeys(config Config) (keys [][]byte) {
	for _, secret := range [][]byte{config.Secret, config.OtherSecret} {
		if secret != nil {
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte(deviceKeyUse))
			keys = append(keys, mac.Sum(nil))
		}
	}
	return keys
}

// Device is what a browser showed of its earlier sign-ins, and whether it is known for the account that was asked for.
// Accounts.Device reads one; the zero value is a browser that showed nothing.
type Device struct {
	// ID is the same at every sign-in of a device to one account, and differs between accounts. Empty: not known for the
	// account.
	ID    string
	shown []shownDevice // newest first; none of two for one account
}

// shownDevice is one token: a device's id, the account it was issued for, and when.
type shownDevice struct {
	id           [deviceIDBytes]byte
	account      int64
	issuedMicros int64
}

// hash is what the database knows of an id. An id is random, so a plain SHA-256 of it tells nothing.
func (d shownDevice) hash() string {
	sum := sha256.Sum256(d.id[:])
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// seal writes a token: the device's fields, each of fixed length, and their HMAC-SHA256.
func (a *Accounts) seal(d shownDevice) string {
	sealed := make([]byte, 0, sealedBytes)
	sealed = append(sealed, d.id[:]...)
	sealed = binary.BigEndian.AppendUint64(sealed, uint64(d.account))
	sealed = binary.BigEndian.AppendUint64(sealed, uint64(d.issuedMicros))
	mac := hmac.New(sha256.New, a.deviceKeys[0])
	mac.Write(sealed)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(sealed))
}

// ShowsDevice says whether a text shows a device at all, so that Device asks the database.
func (a *Accounts) ShowsDevice(text string) bool { return len(a.shown(text)) > 0 }

// shown reads the devices that a text shows, one for each account.
func (a *Accounts) shown(text string) (devices []shownDevice) {
	tokens := strings.SplitN(text, deviceSeparator, maxShown+1)
	for _, token := range tokens[:min(len(tokens), maxShown)] {
		d, ok := a.open(token)
		if ok && !slices.ContainsFunc(devices, func(other shownDevice) bool { return other.account == d.account }) {
			devices = append(devices, d)
		}
	}
	return devices
}

// open reads what seal wrote, under either key.
func (a *Accounts) open(token string) (d shownDevice, ok bool) {
	if len(token) != base64.RawURLEncoding.EncodedLen(sealedBytes) {
		return d, false
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(sealed) != sealedBytes { // line ends are skipped, so that it may be shorter
		return d, false
	}
	copy(d.id[:], sealed)
	d.account = int64(binary.BigEndian.Uint64(sealed[deviceIDBytes:]))
	d.issuedMicros = int64(binary.BigEndian.Uint64(sealed[deviceIDBytes+8:]))
	return d, slices.ContainsFunc(a.deviceKeys, func(key []byte) bool {
		mac := hmac.New(sha256.New, key)
		mac.Write(sealed[:deviceBytes])
		return hmac.Equal(mac.Sum(nil), sealed[deviceBytes:])
	})
}

// readDevices gives those of some devices that are not revoked and not expired, and the time.
const readDevices = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
SELECT d.id_hash, d.account, a.username, clock.now
FROM json_each(?) AS shown
  JOIN devices AS d ON d.id_hash = shown.value
  JOIN accounts AS a ON a.id = d.account
  CROSS JOIN clock
WHERE d.expires_micros > clock.now`

// Device reads the text that an earlier SignIn gave to a browser, and says whether the browser is known for the account of a
// name, in any spelling. A text that is forged, revoked, expired or another account's is no error: then the browser is not
// known.
//
// The database is read once if anything in the text was issued here, whatever it is and whoever is named, and not at all
// otherwise: so neither the answer nor the time tells those cases apart.
func (a *Accounts) Device(ctx context.Context, text, name string) (Device, error) {
	device := Device{shown: a.shown(text)}
	if len(device.shown) == 0 {
		return device, nil
	}
	var hashes []string
	for _, d := range device.shown {
		hashes = append(hashes, d.hash())
	}
	list, err := json.Marshal(hashes)
	if err != nil {
		return Device{}, fmt.Errorf("accounts: read devices: %w", err)
	}
	canonical, _ := ParseName(name) // "", which is nobody's, where it can't be a name
	rows, err := a.db.QueryContext(ctx, readDevices, a.now(), string(list))
	if err != nil {
		return Device{}, fmt.Errorf("%w: read devices: %w", ErrStore, err)
	}
	err = scanAll(rows, func() error {
		var idHash string
		var account, now int64
		var username Name
		if err := rows.Scan(&idHash, &account, &username, &now); err != nil {
			return err
		}
		for _, d := range device.shown {
			// An older token of a device that signed in since ends by its own time.
			fresh := now-d.issuedMicros < DeviceLifetime.Microseconds()
			if d.hash() == idHash && d.account == account && username == canonical && fresh {
				device.ID = idHash
			}
		}
		return nil
	})
	if err != nil {
		return Device{}, fmt.Errorf("%w: read devices: %w", ErrStore, err)
	}
	return device, nil
}

// scanAll calls scan for each row, and closes them.
func scanAll(rows *sql.Rows, scan func() error) error {
	defer rows.Close()
	for rows.Next() {
		if err := scan(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// remember gives the text for a browser that has just signed in: the new token, and what the browser showed of other accounts.
func (a *Accounts) remember(signedIn shownDevice, before Device) string {
	tokens := []string{a.seal(signedIn)}
	for _, d := range before.shown {
		if d.account != signedIn.account && len(tokens) < maxShown {
			tokens = append(tokens, a.seal(d))
		}
	}
	return strings.Join(tokens, deviceSeparator)
}
