//go:build unix

package otp

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/sms"
	"github.com/weirlimits/weir/lib/testkit/databases"
)

// start is when the tests' clock starts: with microseconds, as a database's clock never has, to see that none are lost.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

var (
	oneSecret     = bytes.Repeat([]byte("1"), 32)
	anotherSecret = bytes.Repeat([]byte("2"), 32)
)

// The numbers of tests are those that the North American plan sets aside for fiction.
const (
	somePhone    = Phone("+12025550123")
	anotherPhone = Phone("+12025550124")
)

// phones is a Gateway that keeps what each phone got last, or fails.
type phones struct {
	mu   sync.Mutex
	last map[string]string
	err  error
}

func (p *phones) Send(_ context.Context, message sms.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[string]string{}
	}
	p.last[message.To] = message.Text
	return p.err
}

var sixDigits = regexp.MustCompile(`\b\d{6}\b`)

// code is the one that a phone got last.
func (p *phones) code(phone Phone) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return sixDigits.FindString(p.last[string(phone)])
}

func at(db *sql.DB, now *time.Time, to *phones, secrets ...[]byte) *Codes {
	config := Config{Secret: oneSecret, Now: func() time.Time { return *now }}
	if len(secrets) > 0 {
		config.Secret = secrets[0]
	}
	if len(secrets) > 1 {
		config.OtherSecret = secrets[1]
	}
	return New(db, to, config)
}

func mustSend(t *testing.T, c *Codes, to *phones, phone Phone) string {
	t.Helper()
	if err := c.Send(t.Context(), phone); err != nil {
		t.Fatal(err)
	}
	code := to.code(phone)
	if len(code) != 6 {
		t.Fatalf("%q holds no code", to.last[string(phone)])
	}
	return code
}

func wrong(code string) string {
	if code == "000000" {
		return "000001"
	}
	return "000000"
}

func verify(t *testing.T, c *Codes, phone Phone, code string, want error) {
	t.Helper()
	if err := c.Verify(t.Context(), phone, code); !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM otp_codes`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Row D3.
func TestACodeIsGoodOnceForTenMinutesAndForItsPhone(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, to := start, &phones{}
		c := at(opened.DB, &now, to)
		code := mustSend(t, c, to, somePhone)
		mustSend(t, c, to, anotherPhone)
		verify(t, c, somePhone, wrong(code), ErrWrong)
		verify(t, c, "+12025550125", code, ErrWrong) // which was sent none
		for code == to.code(anotherPhone) {          // one in a million
			mustSend(t, c, to, anotherPhone)
		}
		verify(t, c, anotherPhone, code, ErrWrong)
		now = start.Add(Life - time.Microsecond)
		verify(t, c, somePhone, code, nil)
		verify(t, c, somePhone, code, ErrWrong)
		now = start.Add(Life)
		verify(t, c, anotherPhone, to.code(anotherPhone), ErrWrong)
	})
}

func TestTheDatabasesClockEndsACode(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		to := &phones{}
		c := New(opened.DB, to, Config{Secret: oneSecret})
		verify(t, c, somePhone, mustSend(t, c, to, somePhone), nil)
		code := mustSend(t, c, to, somePhone)
		if _, err := opened.Exec(`UPDATE otp_codes SET expires_micros = expires_micros - ?`, Life.Microseconds()); err != nil {
			t.Fatal(err)
		}
		verify(t, c, somePhone, code, ErrWrong)
	})
}

// Row D3: a phone has one code, also while the secret is changed and instances differ in which one they write under.
func TestANewCodeEndsTheOlderOne(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, to := start, &phones{}
		before := at(opened.DB, &now, to, oneSecret, anotherSecret)
		after := at(opened.DB, &now, to, anotherSecret, oneSecret)
		for i, senders := range [][2]*Codes{{before, before}, {before, after}, {after, before}, {after, after}} {
			first := mustSend(t, senders[0], to, somePhone)
			second := mustSend(t, senders[1], to, somePhone)
			if n := count(t, opened.DB); n != 1+i { // besides those that were used
				t.Fatalf("%d: %d codes, want %d", i, n, 1+i)
			}
			for _, c := range senders {
				if first != second {
					verify(t, c, somePhone, first, ErrWrong)
				}
			}
			verify(t, senders[i%2], somePhone, second, nil)
		}
		// The secret that is left out knows nothing of the other's codes.
		code := mustSend(t, before, to, somePhone)
		verify(t, at(opened.DB, &now, to, anotherSecret), somePhone, code, ErrWrong)
		verify(t, at(opened.DB, &now, to, oneSecret), somePhone, code, nil)
	})
}

// Issue 10.15: a code that was used is told from a wrong one within its life, whatever the phone
// was sent since.
func TestOnlyACodeThatWasVerifiedIsUsed(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, to := start, &phones{}
		c := at(opened.DB, &now, to, oneSecret, anotherSecret)
		changed := at(opened.DB, &now, to, anotherSecret, oneSecret)
		isUsed := func(c *Codes, phone Phone, code string, want bool) {
			t.Helper()
			verify(t, c, phone, code, ErrWrong)
			if got := errors.Is(c.Verify(t.Context(), phone, code), ErrUsed); got != want {
				t.Errorf("used: %t, want %t", got, want)
			}
		}
		replaced := mustSend(t, c, to, somePhone)
		first := mustSend(t, c, to, somePhone)
		verify(t, c, somePhone, first, nil)
		second := mustSend(t, c, to, somePhone)
		isUsed(c, somePhone, first, true)
		if replaced != first && replaced != second { // one in a million
			isUsed(c, somePhone, replaced, false)
		}
		verify(t, c, somePhone, second, nil)
		for _, c := range []*Codes{c, changed} { // while the secret is changed too
			isUsed(c, somePhone, first, true)
			isUsed(c, somePhone, " "+second[:3]+"-"+second[3:], true)
			isUsed(c, somePhone, wrong(first), wrong(first) == second)
			isUsed(c, anotherPhone, first, false)
			isUsed(c, somePhone, "", false)
		}
		now = start.Add(Life)
		isUsed(c, somePhone, first, false)
		if _, _, err := c.Sweep(t.Context()); err != nil || count(t, opened.DB) != 0 {
			t.Errorf("%d codes are left, %v", count(t, opened.DB), err)
		}
	})
}

// Issue 10.15: the same six digits may be drawn again within ten minutes.
func TestACodeThatComesASecondTimeIsGoodOnceMore(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, to := start, &phones{}
		c := at(opened.DB, &now, to)
		code := mustSend(t, c, to, somePhone)
		verify(t, c, somePhone, code, nil)
		mustSend(t, c, to, somePhone)
		if _, err := opened.Exec(`UPDATE otp_codes SET code_mac = ? WHERE phone_key = ?`,
			codeMAC(c.keys[0], somePhone, code), phoneKey(c.keys[0], somePhone)); err != nil {
			t.Fatal(err)
		}
		verify(t, c, somePhone, code, nil)
		verify(t, c, somePhone, code, ErrUsed)
	})
}

// Row D3: verification is atomic.
func TestOfTwentyRightCodesAtOnceOneIsVerified(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, to := start, &phones{}
		c := at(opened.DB, &now, to)
		code := mustSend(t, c, to, somePhone)
		var group sync.WaitGroup
		var right, refused atomic.Int64
		for range 20 {
			group.Go(func() {
				switch err := c.Verify(t.Context(), somePhone, code); {
				case err == nil:
					right.Add(1)
				case errors.Is(err, ErrWrong):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if right.Load() != 1 || refused.Load() != 19 {
			t.Errorf("%d verified and %d refused, want 1 and 19", right.Load(), refused.Load())
		}
	})
}

// Of many new codes at once one is good, and it is one that was sent.
func TestOfManyCodesAtOnceOneStands(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now := start
		var group sync.WaitGroup
		sent := make([]*phones, 12)
		for i := range sent {
			sent[i] = &phones{}
			secrets := [][]byte{oneSecret, anotherSecret}
			if i%2 == 0 {
				secrets = [][]byte{anotherSecret, oneSecret}
			}
			group.Go(func() {
				if err := at(opened.DB, &now, sent[i], secrets...).Send(t.Context(), somePhone); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := count(t, opened.DB); n != 1 {
			t.Fatalf("%d codes stand, want 1", n)
		}
		good := 0
		c := at(opened.DB, &now, nil, oneSecret, anotherSecret)
		for _, to := range sent {
			if c.Verify(t.Context(), somePhone, to.code(somePhone)) == nil {
				good++
			}
		}
		if good != 1 {
			t.Errorf("%d of them are good, want 1", good)
		}
	})
}

// Case E17: six digits hashed without a key would be turned back by a million tries.
func TestTheTableHoldsNeitherPhonesNorCodes(t *testing.T) {
	now, to := start, &phones{}
	opened := databases.File(t)
	rows := map[string]bool{}
	for _, secret := range [][]byte{oneSecret, anotherSecret} {
		c := at(opened.DB, &now, to, secret)
		code := mustSend(t, c, to, somePhone)
		var key int64
		var mac string
		if err := opened.QueryRow(`SELECT phone_key, code_mac FROM otp_codes`).Scan(&key, &mac); err != nil {
			t.Fatal(err)
		}
		row := fmt.Sprint(key, " ", mac)
		if strings.Contains(row, code) || strings.Contains(row, strings.TrimPrefix(string(somePhone), "+")) || rows[row] || len(mac) != 43 {
			t.Errorf("the row is %s", row)
		}
		rows[row] = true
		verify(t, c, somePhone, code, nil)
	}
	if codeMAC(derive(oneSecret), somePhone, "123456") == codeMAC(derive(oneSecret), anotherPhone, "123456") {
		t.Error("equal codes of two phones look alike")
	}
}

func TestACodeIsReadAsPeopleTypeIt(t *testing.T) {
	for text, want := range map[string]string{
		"012345": "012345", " 012 345\n": "012345", "012-345": "012345", "0 1 2 3 4 5": "012345", "012\u00a0345": "012345", "000000": "000000",
		"": "", "12345": "", "1234567": "", "12345a": "", "１２３４５６": "", "+12345": "", "0x1234": "", "12345\x00": "", "1e0005": "",
		"012345" + strings.Repeat(" ", maxCodeBytes): "",
	} {
		if got := parseCode(text); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
	}
}

func TestCodesHaveSixDigitsAndLeadingZerosToo(t *testing.T) {
	var first [10]int
	for range 2000 {
		code := newCode()
		if parseCode(code) != code {
			t.Fatalf("%q is no code", code)
		}
		first[code[0]-'0']++
	}
	for digit, n := range first { // 200 are to be expected: with odds of 10⁻¹³ there are fewer than 100
		if n < 100 {
			t.Errorf("%d of 2000 codes begin with %d", n, digit)
		}
	}
}

func TestAPhoneHasTheFormOfE164(t *testing.T) {
	for text, want := range map[string]Phone{
		"+12025550123": somePhone, " +1 (202) 555-0123 ": somePhone, "+1.202.555.0123": somePhone, "+1234567": "+1234567", "+123456789012345": "+123456789012345",
	} {
		if got, err := ParsePhone(text); got != want || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "+", "12025550123", "0012025550123", "2025550123", "+0202555012", "+123456", "+1234567890123456", "+1202555012x", "+1 202 555 0123 ext. 4",
		"tel:+12025550123", "++12025550123", "+1202/5550123", "+１２０２５５５０１２３", "+49 (0) 30 123456", "+49(0)30123456", "+49 ( 0 ) 30 123456", "+12025550123\x00",
	} {
		got, err := ParsePhone(text)
		if got != "" || !errors.Is(err, ErrPhone) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		if err.Error() != ErrPhone.Error()+": "+PhoneRule {
			t.Errorf("the error repeats the text: %v", err)
		}
	}
}

func TestTheMessageFitsOneSMSAndHoldsNoLink(t *testing.T) {
	got := text("012345")
	if len(got) > 160 || !strings.HasPrefix(got, "012345 ") || !strings.Contains(got, "10 minutes") || strings.ContainsAny(got, "/@:") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	for _, r := range got { // those of GSM 03.38 that ASCII has too
		if r < ' ' || r > 'z' || strings.ContainsRune("[\\]^`", r) {
			t.Errorf("%q makes the message one of 70 characters a part", r)
		}
	}
}

// What a gateway says is what Send says; after ErrUnknown somebody may have the code, and it is good.
func TestWhatBecomesOfAMessageIsToldByTheGatewaysError(t *testing.T) {
	opened := databases.File(t)
	for _, err := range []error{sms.ErrNotSent, sms.ErrRefused, sms.ErrUnknown} {
		now, to := start, &phones{err: err}
		c := at(opened.DB, &now, to)
		if got := c.Send(t.Context(), somePhone); !errors.Is(got, err) {
			t.Errorf("got %v, want %v", got, err)
		}
		if errors.Is(err, sms.ErrUnknown) {
			verify(t, c, somePhone, to.code(somePhone), nil)
		}
	}
}

func TestExpiredCodesGoWithNewOnesAndBySweep(t *testing.T) {
	databases.Each(t, func(t *testing.T, opened *database.DB) {
		now, to := start, &phones{}
		c := at(opened.DB, &now, to)
		phone := func(i int) Phone { return Phone(fmt.Sprintf("+1202555%04d", i)) }
		for i := range 12 {
			mustSend(t, c, to, phone(i))
		}
		now = start.Add(time.Minute)
		mustSend(t, c, to, phone(20))
		now = start.Add(Life)
		mustSend(t, c, to, phone(21)) // takes eight along
		if n := count(t, opened.DB); n != 6 {
			t.Fatalf("%d codes are left, want 4 expired and 2", n)
		}
		if deleted, done, err := c.Sweep(t.Context()); deleted != 4 || !done || err != nil {
			t.Fatalf("swept %d, %t, %v; want 4", deleted, done, err)
		}
		verify(t, c, phone(20), to.code(phone(20)), nil)
		verify(t, c, phone(21), to.code(phone(21)), nil)
		if deleted, done, err := c.Sweep(t.Context()); deleted != 0 || !done || err != nil {
			t.Errorf("swept %d, %t, %v; want nothing", deleted, done, err)
		}
	})
}

func TestASweepTakesMoreThanOneStatementAndStopsWithItsTime(t *testing.T) {
	opened := databases.File(t)
	now := start
	c := at(opened.DB, &now, nil)
	text := "[0" + strings.Repeat(",0", 2*sweepRows) + "]"
	for _, statement := range []string{
		"DROP TRIGGER otp_codes_new",
		"INSERT INTO otp_codes SELECT key, NULL, '', 1 FROM json_each('" + text + "')",
		"INSERT INTO otp_codes SELECT -1 - key, NULL, '', 9000000000000000 FROM json_each('" + text + "')", // not expired
	} {
		if _, err := opened.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if deleted, done, err := c.Sweep(over); deleted != 0 || done || err != nil {
		t.Errorf("without time: %d, %t, %v", deleted, done, err)
	}
	deleted, done, err := c.Sweep(t.Context())
	if left := count(t, opened.DB); deleted != 2*sweepRows+1 || !done || err != nil || left != 2*sweepRows+1 {
		t.Errorf("swept %d, %t, %v; %d are left", deleted, done, err, left)
	}
}

func TestADatabaseThatFailsIsToldAsSuchAndNothingIsSent(t *testing.T) {
	now, to := start, &phones{}
	opened := databases.File(t)
	c := at(opened.DB, &now, to)
	opened.Close()
	if err := c.Send(t.Context(), somePhone); !errors.Is(err, ErrStore) || strings.Contains(err.Error(), "202555") || to.last != nil {
		t.Errorf("send: %v, sent %v", err, to.last)
	}
	if err := c.Verify(t.Context(), somePhone, "123456"); !errors.Is(err, ErrStore) || errors.Is(err, ErrWrong) || strings.Contains(err.Error(), "123456") {
		t.Errorf("verify: %v", err)
	}
	if _, _, err := c.Sweep(t.Context()); !errors.Is(err, ErrStore) {
		t.Errorf("sweep: %v", err)
	}
}
