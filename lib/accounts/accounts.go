// Package accounts keeps accounts, their sessions and their known devices: who someone is, and how they prove it.
//
// # Memory
//
// A password costs 19 MiB and some 30 ms of one processor core (Argon2id with OWASP's minimum). An Accounts computes at most
// GOMAXPROCS hashes at once and lets others wait, since more would not be faster: so hashing takes GOMAXPROCS × 19 MiB, and
// up to as much again until the garbage collector has run. A deployed function serves one request at a time.
//
// The schema is in db/migrations.
package accounts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/tables"
)

// Errors that callers branch on, with errors.Is. No error holds a user name, a password, a code or a token.
var (
	// ErrName means that a text can't be a user name, by NameRule.
	ErrName = errors.New("accounts: name not valid")
	// ErrEmail means that a text can't be an e-mail address.
	ErrEmail = errors.New("accounts: e-mail address not valid")
	// ErrPassword means that a password is too short, too long or not UTF-8, by PasswordRule.
	ErrPassword = errors.New("accounts: password not valid")
	// ErrBreached means that a new password is in lists of stolen ones, or one of those that people choose most.
	ErrBreached = errors.New("accounts: password is known to others")
	// ErrNameTaken means that the name is another account's, or reserved. The code is kept.
	ErrNameTaken = errors.New("accounts: name is taken")
	// ErrCode means that nobody can sign up with the code. It is always one of the three below.
	ErrCode = errors.New("accounts: code not valid")
	// ErrCodeUnknown means that there is no such code.
	ErrCodeUnknown = fmt.Errorf("%w: unknown", ErrCode)
	// ErrCodeUsed means that an account was made with the code already.
	ErrCodeUsed = fmt.Errorf("%w: used", ErrCode)
	// ErrCodeNotBorrowed means that the code's time is over, or that nobody has borrowed it yet.
	ErrCodeNotBorrowed = fmt.Errorf("%w: not borrowed now", ErrCode)
	// ErrCredentials means that there is no account of this name with this password, and not which of the two is wrong.
	ErrCredentials = errors.New("accounts: wrong name or password")
	// ErrNoAccount means that there is no account of a name.
	ErrNoAccount = errors.New("accounts: no such account")
	// ErrNoSession means that a token is not, or no longer, that of a session.
	ErrNoSession = errors.New("accounts: no session")
	// ErrRole means that a role is neither Member nor Admin.
	ErrRole = errors.New("accounts: role not valid")
	// ErrBusy means that the context ended while a password waited for others to be hashed. Nothing was done.
	ErrBusy = errors.New("accounts: too many passwords to hash")
	// ErrStore means that the database didn't answer, or answered nonsense. Whether it carried out what was asked is
	// unknown.
	ErrStore = errors.New("accounts: store failed")
)

// Role is what an account may do.
type Role string

// The roles.
const (
	Member Role = "member"
	Admin  Role = "admin"
)

// Account is who someone is.
type Account struct {
	ID   int64 // never used for another account
	Name Name
	Role Role
}

// Config says how an Accounts works. The zero value is for use.
type Config struct {
	// Now replaces the database's clock, for tests. Nil means the database's clock.
	Now func() time.Time
	// Secret keys what a browser shows of its earlier sign-ins, by a key that is derived for this alone; OtherSecret is the one
	// that it changes places with, so that none is forgotten. Without a Secret no device is known.
	Secret      []byte
	OtherSecret []byte
	// Hashed is called before each password hash is computed, by the goroutine that computes it, so that tests can count
	// them. Nil means that nobody counts.
	Hashed func()
	// Breached says whether a new password is in lists of stolen ones, besides those that breached.IsCommon knows. It is
	// asked once for each, before the hash is computed. Nil means that nobody else is asked.
	Breached func(ctx context.Context, password string) bool
	// HashMemoryKiB is the memory of a new hash. Zero means OWASP's minimum; tests of something else take less.
	HashMemoryKiB uint32
}

// Accounts are the accounts and sessions in a database. Besides db it holds only the number of hashes being computed; it may
// be used by many goroutines and, over one database, by many processes.
type Accounts struct {
	db     *sql.DB
	codes  *codes.Pool
	config Config
	slots  chan struct{} // one element for each hash being computed

	standIn hash // for accounts without a password

	deviceKeys [][]byte // the first one signs; none: no devices
}

// New makes an Accounts on db, which the caller opens, migrates and closes.
func New(db *sql.DB, config Config) *Accounts {
	return &Accounts{
		db:     db,
		codes:  codes.New(db, codes.Config{Now: config.Now}),
		config: config,
		slots:  make(chan struct{}, runtime.GOMAXPROCS(0)),

		standIn: standIn(config.HashMemoryKiB),

		deviceKeys: deviceKeys(config),
	}
}

// signUp makes an account with a borrowed code. It is one INSERT, so the engine runs it under its write lock from the first
// read to the last write, and it happens whole or not at all.
//
//   - It reads the code's row and inserts only while that is borrowed and unused. The trigger accounts_use_invite_code marks
//     the code used inside the same statement, so of two sign-ups with one code the second finds it used; nor can the code
//     be lent to another in between.
//   - A taken name inserts nothing, so the trigger doesn't run and the code is kept.
const signUp = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
INSERT INTO accounts (username, password_hash, role, email, invite_code, created_micros)
SELECT ?, ?, 'member', ?, code, now
FROM invite_codes CROSS JOIN clock
WHERE code = ? AND used_micros IS NULL AND free_from_micros > now
ON CONFLICT (username) DO NOTHING
RETURNING id`

// Why a refused sign-up is decided once more: its reason is read afterwards and may have passed by then, say because a code
// was borrowed a moment after it was refused.
const signUpAttempts = 2

// Applicant is somebody who wants an account.
type Applicant struct {
	Code     codes.Code // borrowed
	Name     Name
	Password string // by PasswordRule
	Email    Email  // optional
}

// SignUp makes a member with a borrowed code and uses the code up, both or neither. Refusals are ErrPassword, ErrBreached,
// ErrNameTaken and ErrCode. After ErrStore the account may have been made: signing in tells.
func (a *Accounts) SignUp(ctx context.Context, who Applicant) (Account, error) {
	if err := checkPassword(who.Password, who.Name); err != nil {
		return Account{}, err
	}
	if who.Name.Reserved() {
		return Account{}, ErrNameTaken
	}
	h, err := a.hashNew(ctx, who.Password)
	if err != nil {
		return Account{}, err
	}
	email := sql.NullString{String: string(who.Email), Valid: who.Email != ""}
	for range signUpAttempts {
		account := Account{Name: who.Name, Role: Member}
		err := a.db.QueryRowContext(ctx, signUp, a.now(), string(who.Name), h.String(), email, string(who.Code)).Scan(&account.ID)
		if err == nil {
			return account, nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return Account{}, fmt.Errorf("%w: sign up: %w", ErrStore, err)
		}
		if err := a.whyRefused(ctx, who.Code, who.Name); err != nil {
			return Account{}, err
		}
	}
	return Account{}, fmt.Errorf("%w: sign up: refused %d times for reasons that had passed", ErrStore, signUpAttempts)
}

// whyRefused tells why a sign-up was refused, or nil if by now nothing speaks against it.
func (a *Accounts) whyRefused(ctx context.Context, code codes.Code, name Name) error {
	state, _, err := a.codes.Lookup(ctx, code)
	switch {
	case errors.Is(err, codes.ErrUnknown):
		return ErrCodeUnknown
	case err != nil:
		return fmt.Errorf("%w: why a sign-up was refused: %w", ErrStore, err)
	case state == codes.Used:
		return ErrCodeUsed
	case state == codes.Free:
		return ErrCodeNotBorrowed
	}
	free, err := a.IsFree(ctx, name)
	if err == nil && !free {
		return ErrNameTaken
	}
	return err
}

const find = `
SELECT id, role, coalesce(password_hash, '')
FROM accounts
WHERE username = ?`

// find reads the account of a name, with its hash in PHC string format, empty if it has no password.
func (a *Accounts) find(ctx context.Context, name Name) (account Account, passwordHash string, found bool, err error) {
	account.Name = name
	err = a.db.QueryRowContext(ctx, find, string(name)).Scan(&account.ID, &account.Role, &passwordHash)
	if errors.Is(err, sql.ErrNoRows) {
		return Account{}, "", false, nil
	}
	if err != nil {
		return Account{}, "", false, fmt.Errorf("%w: find an account: %w", ErrStore, err)
	}
	return account, passwordHash, true, nil
}

// IsFree says whether somebody could sign up with the name. Reserved names are never free.
func (a *Accounts) IsFree(ctx context.Context, name Name) (bool, error) {
	if name.Reserved() {
		return false, nil
	}
	_, _, found, err := a.find(ctx, name)
	return err == nil && !found, err
}

// SignIn starts a session of the account of a name, in any spelling, if the password is its own; otherwise the error is
// ErrCredentials. It computes one hash of the same cost whether the password is right, wrong, or there is no such account or
// no password to it, so that time doesn't tell them apart. A password that was changed while it was looked at is a wrong one.
//
// With Config.Secret the device that asks is known for the account from now on, or for longer if it was already.
func (a *Accounts) SignIn(ctx context.Context, name, password string, device Device) (Account, Session, error) {
	account, passwordHash, err := a.authenticate(ctx, name, password)
	if err != nil {
		return Account{}, Session{}, err
	}
	session, err := a.start(ctx, account, passwordHash, device)
	if errors.Is(err, ErrNoAccount) {
		return Account{}, Session{}, ErrCredentials
	}
	return account, session, err
}

// authenticate returns the account of a name and its hash if the password is its own, and ErrCredentials otherwise.
func (a *Accounts) authenticate(ctx context.Context, name, password string) (account Account, passwordHash string, err error) {
	if canonical, err := ParseName(name); err == nil {
		if account, passwordHash, _, err = a.find(ctx, canonical); err != nil {
			return Account{}, "", err
		}
	}
	if err := a.check(ctx, passwordHash, password); err != nil {
		return Account{}, "", err
	}
	return account, passwordHash, nil
}

// check compares a password with a stored hash, empty for none, and gives ErrCredentials if it is another one. It computes
// one hash in any case, but for a password that is longer than any can be.
func (a *Accounts) check(ctx context.Context, passwordHash, password string) error {
	if len(password) > maxPasswordBytes {
		return ErrCredentials // whoever's it is
	}
	h := a.standIn
	if passwordHash != "" {
		var err error
		if h, err = parseHash(passwordHash); err != nil {
			return fmt.Errorf("%w: compare a password: %w", ErrStore, err)
		}
	}
	matches, err := a.matches(ctx, h, password)
	if err != nil {
		return err
	}
	if !matches || passwordHash == "" {
		return ErrCredentials
	}
	return nil
}

// checkOwn compares a password with that of an account, and gives the stored hash.
func (a *Accounts) checkOwn(ctx context.Context, account Account, password string) (passwordHash string, err error) {
	now, passwordHash, _, err := a.find(ctx, account.Name)
	if err != nil {
		return "", err
	}
	if now.ID != account.ID { // it has gone, and somebody else may have its name
		passwordHash = ""
	}
	return passwordHash, a.check(ctx, passwordHash, password)
}

// changePassword is one UPDATE, in which the trigger accounts_sign_out ends the account's sessions but the one that is kept,
// and forgets its devices but that session's. It changes the password that was compared and no other: of two changes at once,
// each from the same old password, the second finds another one.
const changePassword = `
WITH clock AS MATERIALIZED (
  SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
)
UPDATE accounts
SET
  password_hash     = ?,
  signed_out_micros = (SELECT now FROM clock),
  kept_session      = ?
WHERE id = ? AND password_hash = ?
RETURNING id`

// ChangePassword gives an account another password, if current is its own, and ends all its sessions but the one with the
// token; devices are forgotten but that session's. Refusals are ErrPassword, for which nothing is hashed, ErrCredentials and
// ErrBreached.
func (a *Accounts) ChangePassword(ctx context.Context, account Account, token, current, password string) error {
	if err := checkPassword(password, account.Name); err != nil {
		return err
	}
	before, err := a.checkOwn(ctx, account, current)
	if err != nil {
		return err
	}
	h, err := a.hashNew(ctx, password)
	if err != nil {
		return err
	}
	var id int64
	err = a.db.QueryRowContext(ctx, changePassword, a.now(), h.String(), hashToken(token), account.ID, before).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrCredentials
	}
	if err != nil {
		return fmt.Errorf("%w: change a password: %w", ErrStore, err)
	}
	return nil
}

// deleteAccount is one DELETE, in which triggers on accounts take along what belongs to the account. It needs the password
// that was compared: a new one says that its owner goes on.
const deleteAccount = `
DELETE FROM accounts
WHERE id = ? AND password_hash = ?
RETURNING id`

// Delete deletes an account and all that belongs to it, if the password is its own; otherwise the error is ErrCredentials.
// Its name is free again, its number is not, and the code that it was made with stays used.
func (a *Accounts) Delete(ctx context.Context, account Account, password string) error {
	passwordHash, err := a.checkOwn(ctx, account, password)
	if err != nil {
		return err
	}
	var id int64
	err = a.db.QueryRowContext(ctx, deleteAccount, account.ID, passwordHash).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrCredentials
	}
	if err != nil {
		return fmt.Errorf("%w: delete an account: %w", ErrStore, err)
	}
	return nil
}

// addDemo makes a demo account unless it is there.
const addDemo = `
INSERT INTO accounts (username, role, created_micros)
VALUES (?, ?, coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))
ON CONFLICT (username) DO NOTHING`

// Demo returns the demo account of a role, demo-member or demo-admin, which all visitors share. It has no password, so
// nobody signs in to it but by this call. It is made at the first call. ErrRole means that there is no such role.
func (a *Accounts) Demo(ctx context.Context, role Role) (Account, error) {
	if role != Member && role != Admin {
		return Account{}, fmt.Errorf("%w: %.20q: allowed are %q and %q", ErrRole, role, Member, Admin)
	}
	name := Name(reservedPrefix + role)
	account, _, found, err := a.find(ctx, name)
	if err != nil || found {
		return account, err
	}
	if _, err := a.db.ExecContext(ctx, addDemo, string(name), string(role), a.now()); err != nil {
		return Account{}, fmt.Errorf("%w: add a demo account: %w", ErrStore, err)
	}
	account, _, found, err = a.find(ctx, name)
	if err == nil && !found {
		err = fmt.Errorf("%w: a demo account was added and is missing", ErrStore)
	}
	return account, err
}

// now is the argument that replaces the database's clock, nil to use it.
func (a *Accounts) now() any { return tables.Now(a.config.Now) }
