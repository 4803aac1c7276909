package accounts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Admins are made by whoever has the database, with scripts/admin: no request makes one.

const createAdmin = `
INSERT INTO accounts (username, password_hash, role, created_micros)
VALUES (?, ?, 'admin', coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))
ON CONFLICT (username) DO NOTHING
RETURNING id`

// CreateAdmin makes an admin without a code. Refusals are ErrPassword, ErrBreached and ErrNameTaken.
func (a *Accounts) CreateAdmin(ctx context.Context, name Name, password string) (Account, error) {
	if err := checkPassword(password, name); err != nil {
		return Account{}, err
	}
	if name.Reserved() {
		return Account{}, ErrNameTaken
	}
	h, err := a.hashNew(ctx, password)
	if err != nil {
		return Account{}, err
	}
	account := Account{Name: name, Role: Admin}
	err = a.db.QueryRowContext(ctx, createAdmin, string(name), h.String(), a.now()).Scan(&account.ID)
	if errors.Is(err, sql.ErrNoRows) {
		return Account{}, ErrNameTaken
	}
	if err != nil {
		return Account{}, fmt.Errorf("%w: create an admin: %w", ErrStore, err)
	}
	return account, nil
}

const setRole = `
UPDATE accounts
SET role = ?
WHERE username = ?
RETURNING id`

// SetRole makes an account an admin or a member, from its next request on. ErrNoAccount means that there is none of the name,
// and that demo accounts, which keep their role, are not to be had by this.
func (a *Accounts) SetRole(ctx context.Context, name Name, role Role) error {
	if role != Member && role != Admin {
		return fmt.Errorf("%w: %.20q: allowed are %q and %q", ErrRole, role, Member, Admin)
	}
	if name.Reserved() {
		return ErrNoAccount
	}
	var id int64
	err := a.db.QueryRowContext(ctx, setRole, string(role), string(name)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNoAccount
	}
	if err != nil {
		return fmt.Errorf("%w: set a role: %w", ErrStore, err)
	}
	return nil
}

// maxAdmins bounds a list of admins, who are few.
const maxAdmins = 1000

const listAdmins = `
SELECT id, username, role
FROM accounts
WHERE role = 'admin'
ORDER BY username
LIMIT ?`

// Admins lists the admins by name, the demo's included, 1,000 at most.
func (a *Accounts) Admins(ctx context.Context) (admins []Account, err error) {
	rows, err := a.db.QueryContext(ctx, listAdmins, maxAdmins)
	if err == nil {
		err = scanAll(rows, func() error {
			var account Account
			err := rows.Scan(&account.ID, &account.Name, &account.Role)
			admins = append(admins, account)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("%w: list the admins: %w", ErrStore, err)
	}
	return admins, nil
}
