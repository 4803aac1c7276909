//go:build unix

package accounts

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// mustSignIn is SignIn on a browser that shows a text, without the hash, which takes most of the time.
func mustSignIn(t *testing.T, f *fixture, name, shown string) Session {
	t.Helper()
	device, err := f.Device(t.Context(), shown, name)
	if err != nil {
		t.Fatal(err)
	}
	account, passwordHash, _, err := f.find(t.Context(), Name(name))
	if err != nil {
		t.Fatal(err)
	}
	session, err := f.start(t.Context(), account, passwordHash, device)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// deviceID is what a browser that shows a text is known by, empty if it isn't known.
func deviceID(t *testing.T, f *fixture, shown, name string) string {
	t.Helper()
	device, err := f.Device(t.Context(), shown, name)
	if err != nil {
		t.Fatalf("%.40q for %q: %v", shown, name, err)
	}
	return device.ID
}

// Row B9.
func TestASignInMakesItsDeviceKnownForItsAccountAlone(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		f.mustSignUp(t, "anna")
		f.mustSignUp(t, "berta")
		_, first, err := f.SignIn(t.Context(), "anna", password, Device{})
		if err != nil {
			t.Fatal(err)
		}
		if !first.DeviceExpires.Equal(f.now.Add(DeviceLifetime)) || !first.Expires.Equal(f.now.Add(SessionLifetime)) {
			t.Errorf("session until %v, device until %v", first.Expires, first.DeviceExpires)
		}
		id := deviceID(t, f, first.Device, "anna")
		if id == "" || deviceID(t, f, first.Device, " ANNA\t") != id {
			t.Fatalf("known as %q, in another spelling as %q", id, deviceID(t, f, first.Device, " ANNA\t"))
		}
		for _, name := range []string{"berta", "nobody", "demo-member", "no name at all", ""} {
			if got := deviceID(t, f, first.Device, name); got != "" {
				t.Errorf("known for %q too", name)
			}
		}
		other := mustSignIn(t, f, "anna", "")
		if deviceID(t, f, other.Device, "anna") == id {
			t.Error("two browsers are one device")
		}
		f.now = f.now.Add(day)
		again := mustSignIn(t, f, "anna", first.Device)
		if deviceID(t, f, again.Device, "anna") != id {
			t.Error("a device that signs in again is another one")
		}
		if n := f.count(t, "devices"); n != 2 {
			t.Errorf("%d devices, want 2", n)
		}
		var expires int64
		if err := f.db.QueryRowContext(t.Context(), `SELECT expires_micros FROM devices WHERE id_hash = ?`, id).Scan(&expires); err != nil || expires != again.DeviceExpires.UnixMicro() {
			t.Errorf("the row expires at %d (%v), the text at %d", expires, err, again.DeviceExpires.UnixMicro())
		}
		// What is stored is a hash of what the browser has.
		sealed, err := base64.RawURLEncoding.DecodeString(first.Device)
		if err != nil {
			t.Fatal(err)
		}
		if n := f.count(t, `devices WHERE instr(id_hash, '`+base64.RawURLEncoding.EncodeToString(sealed[:deviceIDBytes])+`') > 0`); n != 0 {
			t.Error("the id itself is stored")
		}
	})
}

func TestADeviceIsKnownForHalfAYearAfterItLastSignedIn(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 1)
		f.mustSignUp(t, "anna")
		old := mustSignIn(t, f, "anna", "")
		for _, step := range []struct {
			at   time.Duration
			want bool
		}{{0, true}, {180*day - time.Microsecond, true}, {180 * day, false}, {400 * day, false}} {
			f.now = start.Add(step.at)
			if got := deviceID(t, f, old.Device, "anna") != ""; got != step.want {
				t.Errorf("after %v known: %t, want %t", step.at, got, step.want)
			}
		}
		f.now = start.Add(100 * day)
		renewed := mustSignIn(t, f, "anna", old.Device)
		f.now = start.Add(180 * day)
		if deviceID(t, f, old.Device, "anna") != "" {
			t.Error("an older copy lives as long as the newest")
		}
		if deviceID(t, f, renewed.Device, "anna") == "" {
			t.Error("the renewed device is forgotten")
		}
		if _, err := f.db.ExecContext(t.Context(), `UPDATE devices SET expires_micros = ?`, f.now.UnixMicro()); err != nil {
			t.Fatal(err)
		}
		if deviceID(t, f, renewed.Device, "anna") != "" {
			t.Error("a row that is expired is still known")
		}
	})
}

func TestWhatWasNotIssuedHereIsNoDeviceAndIsNotLookedUp(t *testing.T) {
	f := newFixture(t, databases.File(t).DB, 1)
	f.mustSignUp(t, "anna")
	text := mustSignIn(t, f, "anna", "").Device
	if deviceID(t, f, text, "anna") == "" {
		t.Fatal("the text itself is not known")
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	forged := []string{
		"", ".", "x", text[1:], text + "A", text + "=", text[:40] + "\n" + text[40:], strings.ToUpper(text), strings.Repeat("A", len(text)),
		strings.Repeat("A.", 1<<16), "\x00\xff", "' OR 1=1 --",
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for _, last := range alphabet { // whose last bits are beyond the last byte
		if other := text[:len(text)-1] + string(last); other != text {
			forged = append(forged, other)
		}
	}
	for i := range sealed {
		changed := []byte(string(sealed))
		changed[i] ^= 1
		forged = append(forged, base64.RawURLEncoding.EncodeToString(changed))
	}
	elsewhere := New(f.db, Config{Secret: []byte("the secret of another deployment")})
	d, _ := f.open(text)
	forged = append(forged, elsewhere.seal(d))
	withoutDatabase := New(nil, Config{Secret: f.config.Secret}) // a read would end the test
	for _, text := range forged {
		device, err := withoutDatabase.Device(t.Context(), text, "anna")
		if device.ID != "" || len(device.shown) > 0 || err != nil {
			t.Errorf("%.60q: %+v, %v", text, device, err)
		}
	}
	if device, err := New(nil, Config{}).Device(t.Context(), text, "anna"); device.ID != "" || err != nil {
		t.Errorf("without a secret: %+v, %v", device, err)
	}
}

func TestDevicesAreKnownUnderBothSecretsWhileTheyChange(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 1)
		f.mustSignUp(t, "anna")
		old, fresh := f.config.Secret, []byte("another secret, which is to follow the first")
		text := mustSignIn(t, f, "anna", "").Device
		id := deviceID(t, f, text, "anna")
		for i, config := range []Config{{Secret: old, OtherSecret: fresh}, {Secret: fresh, OtherSecret: old}, {Secret: fresh}} {
			config.Now = f.config.Now
			f.Accounts = New(f.db, config)
			if got := deviceID(t, f, text, "anna"); got != id {
				t.Fatalf("step %d: known as %q, want %q", i, got, id)
			}
			text = mustSignIn(t, f, "anna", text).Device
		}
		f.Accounts = New(f.db, Config{Secret: old})
		if deviceID(t, f, text, "anna") != "" {
			t.Error("the newest text is still under the old secret")
		}
	})
}

func TestARevokedDeviceStaysRevokedWhenItsBrowserSignsInAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		anna := f.mustSignUp(t, "anna")
		f.mustSignUp(t, "berta")
		text := mustSignIn(t, f, "anna", "").Device
		bertas := mustSignIn(t, f, "berta", "").Device
		id := deviceID(t, f, text, "anna")
		known, err := f.Device(t.Context(), text, "anna")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.EndAllSessions(t.Context(), anna); err != nil {
			t.Fatal(err)
		}
		if deviceID(t, f, text, "anna") != "" || deviceID(t, f, bertas, "berta") == "" {
			t.Error("signing out everywhere forgets the wrong devices")
		}
		// Also when it was still known as its password began to be looked at.
		for _, device := range []Device{known, {ID: id}, {}} {
			_, session, err := f.SignIn(t.Context(), "anna", password, device)
			if err != nil {
				t.Fatal(err)
			}
			if got := deviceID(t, f, session.Device, "anna"); got == "" || got == id {
				t.Errorf("it signs in as the device %q, was %q", got, id)
			}
			if deviceID(t, f, text, "anna") != "" {
				t.Error("the old text is known again")
			}
		}
	})
}

func TestADeviceOfAnotherAccountIsNotTakenOver(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		f.mustSignUp(t, "anna")
		f.mustSignUp(t, "berta")
		annas := mustSignIn(t, f, "anna", "").Device
		id := deviceID(t, f, annas, "anna")
		_, session, err := f.SignIn(t.Context(), "berta", password, Device{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		other, _ := f.open(annas)
		if other.account++; deviceID(t, f, f.seal(other), "anna") != "" || deviceID(t, f, f.seal(other), "berta") != "" {
			t.Error("an id is good for an account that it wasn't issued for")
		}
		if got := deviceID(t, f, session.Device, "berta"); got == "" || got == id || deviceID(t, f, annas, "anna") != id {
			t.Errorf("berta's device is %q, anna's was %q and is %q", got, id, deviceID(t, f, annas, "anna"))
		}
	})
}

func TestAnAccountKeepsTheTwentyDevicesThatSignedInLast(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 2)
		f.mustSignUp(t, "anna")
		f.mustSignUp(t, "berta")
		bertas := mustSignIn(t, f, "berta", "").Device
		signIn := func(shown string) string {
			f.now = f.now.Add(time.Second)
			return mustSignIn(t, f, "anna", shown).Device
		}
		var texts []string
		for range 20 {
			texts = append(texts, signIn(""))
		}
		texts[0] = signIn(texts[0]) // now the newest
		texts = append(texts, signIn(""), signIn(""))
		for i, text := range texts {
			if known := deviceID(t, f, text, "anna") != ""; known != (i != 1 && i != 2) {
				t.Errorf("device %d is known: %t", i, known)
			}
		}
		if n := f.count(t, "devices"); n != 21 || deviceID(t, f, bertas, "berta") == "" {
			t.Errorf("%d devices, want 20 and berta's", n)
		}
		f.now = f.now.Add(DeviceLifetime)
		signIn("")
		if n := f.count(t, "devices"); n != 2 { // and berta's, which is hers to sweep
			t.Errorf("%d devices half a year later, want 2", n)
		}
	})
}

func TestABrowserIsKnownForTheFiveAccountsThatItSignedInToLast(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		f := newFixture(t, opened.DB, 6)
		text := ""
		for i := range 6 {
			name := fmt.Sprintf("user-%d", i)
			f.mustSignUp(t, Name(name))
			text = mustSignIn(t, f, name, text).Device
			text = mustSignIn(t, f, name, text).Device // no account is there twice
		}
		for i := range 6 {
			if known := deviceID(t, f, text, fmt.Sprintf("user-%d", i)) != ""; known != (i > 0) {
				t.Errorf("known for user %d: %t", i, known)
			}
		}
		if n := len(strings.Split(text, ".")); n != 5 || len(text) > 512 {
			t.Errorf("%d tokens of %d bytes", n, len(text))
		}
	})
}
