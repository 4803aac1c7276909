package app_test

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/app"
)

// dump writes every row of the tables out as text, blobs and numbers in the forms that somebody might look for.
func (w *world) dump(tables ...string) string {
	w.t.Helper()
	var out strings.Builder
	for _, table := range tables {
		rows, err := w.db.Query("SELECT * FROM " + table)
		if err != nil {
			w.t.Fatal(err)
		}
		columns, err := rows.Columns()
		if err != nil {
			w.t.Fatal(err)
		}
		for rows.Next() {
			values := make([]any, len(columns))
			targets := make([]any, len(columns))
			for i := range values {
				targets[i] = &values[i]
			}
			if err := rows.Scan(targets...); err != nil {
				w.t.Fatal(err)
			}
			for i, value := range values {
				if blob, ok := value.([]byte); ok {
					value = string(blob) + " " + hex.EncodeToString(blob)
				}
				fmt.Fprintf(&out, "%s.%s=%v\n", table, columns[i], value)
			}
		}
		if err := rows.Close(); err != nil {
			w.t.Fatal(err)
		}
	}
	return out.String()
}

// traces lists what of the identifiers a text holds: themselves, or an unkeyed hash, in hexadecimal, base64 or, as keys
// are stored, as the number that its first 63 or 64 bits make.
func traces(text string, identifiers ...string) []string {
	lower := strings.ToLower(text)
	var found []string
	for _, identifier := range identifiers {
		if strings.Contains(lower, strings.ToLower(identifier)) {
			found = append(found, identifier)
		}
		for _, spelling := range []string{identifier, strings.ToLower(identifier)} {
			s1, s2, m5 := sha1.Sum([]byte(spelling)), sha256.Sum256([]byte(spelling)), md5.Sum([]byte(spelling))
			for name, sum := range map[string][]byte{"sha1": s1[:], "sha256": s2[:], "md5": m5[:]} {
				var number uint64
				for _, b := range sum[:8] {
					number = number<<8 | uint64(b)
				}
				for _, form := range []string{
					hex.EncodeToString(sum),
					strings.ToLower(base64.RawStdEncoding.EncodeToString(sum)),
					strings.ToLower(base64.RawURLEncoding.EncodeToString(sum)),
					fmt.Sprint(number), fmt.Sprint(number >> 1), fmt.Sprint(int64(number)),
				} {
					if strings.Contains(lower, form) {
						found = append(found, name+" of "+identifier)
					}
				}
			}
		}
	}
	return found
}

// limiterTables are those that must not know anybody, and those of one-time codes and of links for new passwords.
var limiterTables = []string{"rate_limits", "rate_limit_audit", "rate_limit_refunds", "alerts", "otp_codes", "password_resets", "sign_in_figures", "attacks"}

// busyDay uses every route, refusals, mistakes and an outage included, and returns who took part.
func (w *world) busyDay() (identifiers []string) {
	for _, name := range []string{"someone", "another"} {
		w.member(name)
	}
	addresses := []string{"203.0.113.9", "198.51.100.7", "2001:db8:77:1::5"}
	for i, address := range addresses {
		for _, row := range byAddress {
			for range 3 {
				w.send(address, row.method, "/api/"+row.route+row.query, row.body)
			}
		}
		for range 4 {
			w.signIn(address, "Someone", "a wrong password")
			w.signIn(address, "SOMEONE", rightPassword)
			w.signIn(address, "no-such-person", "a wrong password")
			w.send(address, "POST", "/api/sign-in", `{"username":"someone","password":`)
			w.send(address, "GET", "/api/usernames?name=someone&secret=another", "")
		}
		w.clock.At(time.Duration(i+1) * 7 * time.Minute)
	}
	session, device := w.browser("203.0.113.201", "another")
	for _, password := range []string{"a wrong password", rightPassword} {
		w.send("203.0.113.201", "PATCH", "/api/sign-in", change(password, newPassword), with(session, device))
		w.send("203.0.113.201", "DELETE", "/api/sign-up", fmt.Sprintf(`{"password":%q}`, password), with(session))
	}
	if _, err := w.db.Exec("ALTER TABLE sessions RENAME TO away"); err != nil {
		w.t.Fatal(err)
	}
	w.signIn("203.0.113.77", "another", newPassword)
	if _, err := w.db.Exec("ALTER TABLE away RENAME TO sessions"); err != nil {
		w.t.Fatal(err)
	}
	w.give("someone", "Some.One@example.org")
	for range 4 {
		w.askReset("203.0.113.77", "Someone")
	}
	token := w.resetToken()
	for range 2 {
		w.send("203.0.113.77", "PATCH", "/api/sign-in", byLink(token, newPassword))
	}
	for range 4 {
		w.send("203.0.113.77", "POST", "/api/otp", `{"phone":"+1 (202) 555-0177"}`)
	}
	code := w.newestCode()
	for _, code := range []string{"000000", code, code} {
		w.send("203.0.113.77", "PUT", "/api/otp", fmt.Sprintf(`{"phone":"+12025550177","code":%q}`, code))
	}
	return append(addresses, "+12025550100", "2025550100", "+12025550177", "2025550177", "+1 (202) 555-0177", code, token, "some.one@example.org", "203.0.113.77", "203.0.113.200", "203.0.113.201", "someone", "another", "no-such-person", "nobody",
		"2001:db8:77:1::", rightPassword, newPassword, "a wrong password", "a secret of tests")
}

// Row B2; case E17.
func TestTheLimitersTablesAndTheLogKnowNobody(t *testing.T) {
	w := newWorld(t, detecting)
	identifiers := w.busyDay()
	text := w.dump(limiterTables...) + w.log.String()
	if len(text) < 5000 || !strings.Contains(text, "rate_limit_audit.key") || !strings.Contains(text, "rate_limit_refunds.key") || !strings.Contains(text, "sign_in_figures.value") {
		t.Fatalf("the day left too little to look at: %d bytes", len(text))
	}
	if found := traces(text, identifiers...); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	if found := traces(w.dump("accounts"), "someone"); len(found) == 0 {
		t.Error("the accounts don't hold a user name: the search finds nothing")
	}
}

// Case E17: the search is shown to find what it looks for.
func TestAPlantedAddressIsFound(t *testing.T) {
	sum := sha256.Sum256([]byte("203.0.113.9"))
	var number uint64
	for _, b := range sum[:8] {
		number = number<<8 | uint64(b)
	}
	for _, planted := range []string{
		"203.0.113.9", hex.EncodeToString(sum[:]), base64.StdEncoding.EncodeToString(sum[:]), fmt.Sprint(number >> 1),
	} {
		w := newWorld(t)
		w.busyDay()
		if _, err := w.db.Exec("UPDATE rate_limits SET policy = policy || ? WHERE key = (SELECT min(key) FROM rate_limits)", planted); err != nil {
			t.Fatal(err)
		}
		if found := traces(w.dump(limiterTables...), "203.0.113.9"); len(found) == 0 {
			t.Errorf("%s is not found", planted)
		}
	}
}

// Row B2; case E17.
func TestAnotherSecretMakesEveryKeyAnother(t *testing.T) {
	keys := map[string]int{}
	for _, secret := range []string{"", " and another one"} {
		w := newWorld(t, func(s *app.Settings) { s.Secret = append(s.Secret[:len(s.Secret):len(s.Secret)], secret...) })
		w.busyDay()
		for line := range strings.Lines(w.dump("rate_limits")) {
			if strings.Contains(line, ".key=") {
				keys[line]++
			}
		}
	}
	if len(keys) < 20 {
		t.Fatalf("only %d keys", len(keys))
	}
	for key, n := range keys {
		if n > 1 {
			t.Errorf("%s has not changed", key)
		}
	}
}

// Cases D12, D11: what the day's answers have in common.
func TestEveryAnswerNamesItsContentTypeAndIsNotStored(t *testing.T) {
	w := newWorld(t)
	for _, row := range byAddress {
		for _, method := range []string{row.method, "PATCH", "OPTIONS", "HEAD"} {
			got := w.send("203.0.113.9", method, "/api/"+row.route+row.query, row.body)
			if got.body != "" && !strings.Contains(got.Header.Get("Content-Type"), "json") {
				t.Errorf("%s %s: content type %q", method, row.route, got.Header.Get("Content-Type"))
			}
			if got.StatusCode == http.StatusMethodNotAllowed && got.Header.Get("Allow") == "" {
				t.Errorf("%s %s: 405 without Allow", method, row.route)
			}
			if got.StatusCode >= 500 {
				t.Errorf("%s %s answers %d", method, row.route, got.StatusCode)
			}
		}
	}
}
