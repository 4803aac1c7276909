package migration

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
)

const (
	// lockTTL is how long a migrator that was killed keeps others waiting. Each migration renews the lock, so it has to
	// outlast the longest single one, not all of them.
	lockTTL = time.Minute

	// lockPoll is the pause between two attempts to take the lock.
	lockPoll = 100 * time.Millisecond
)

// store is a database.Driver of golang-migrate for one run. Its calls are single statements, or texts that BEGIN and
// COMMIT by themselves, so it needs no transaction that lasts over several requests and no connection of its own.
//
// A migration and its version row are one such text: both are there, or neither. So SetVersion(v, true), with which
// golang-migrate announces a migration, is only remembered; a row marked dirty can come from other tools alone.
type store struct {
	ctx     context.Context
	db      *sql.DB
	owner   string // names this run in the lock's row; "" while the lock isn't held
	pending *int   // the version announced as dirty
}

var _ database.Driver = (*store)(nil)

// Open is part of the interface. The database is always given as an instance.
func (s *store) Open(string) (database.Driver, error) {
	return nil, errors.New("migration: the driver opens no URLs")
}

// Close leaves the *sql.DB open: it belongs to the caller.
func (s *store) Close() error { return nil }

// Drop is part of the interface. Nothing in Weir drops a whole database.
func (s *store) Drop() error {
	return errors.New("migration: dropping everything is not supported: take the migrations down")
}

// Lock takes the lock's row, waiting for whoever has it until the context ends. Then it returns database.ErrLocked.
func (s *store) Lock() error {
	if s.owner != "" {
		return database.ErrLocked
	}
	_, err := s.db.ExecContext(s.ctx, `
CREATE TABLE IF NOT EXISTS schema_lock (
  id             INTEGER PRIMARY KEY CHECK (id = 1),
  owner          TEXT    NOT NULL,
  expires_micros INTEGER NOT NULL
) STRICT`)
	if err != nil {
		return fmt.Errorf("migration: make the lock table: %w", err)
	}
	owner := rand.Text()
	for held := false; ; {
		// One statement reads the row, compares it with the database's clock and takes it, so one of many succeeds.
		// It returns a row only when it has taken the lock.
		var taken string
		err := s.db.QueryRowContext(s.ctx, `
INSERT INTO schema_lock (id, owner, expires_micros)
VALUES (1, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 + ?)
ON CONFLICT (id) DO UPDATE
SET owner = excluded.owner, expires_micros = excluded.expires_micros
WHERE schema_lock.expires_micros <= excluded.expires_micros - ?
RETURNING owner`, owner, lockTTL.Microseconds(), lockTTL.Microseconds()).Scan(&taken)
		if err == nil {
			s.owner = owner
			return nil
		}
		held = held || errors.Is(err, sql.ErrNoRows)
		if held && s.ctx.Err() != nil {
			return database.ErrLocked
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("migration: take the lock: %w", err)
		}
		select {
		case <-s.ctx.Done():
			return database.ErrLocked
		case <-time.After(lockPoll):
		}
	}
}

// Unlock gives the lock back, also when the context has ended. A lock that was lost in the meantime is left alone.
func (s *store) Unlock() error {
	if s.owner == "" {
		return database.ErrNotLocked
	}
	_, err := s.db.ExecContext(context.WithoutCancel(s.ctx), `DELETE FROM schema_lock WHERE owner = ?`, s.owner)
	s.owner = ""
	if err != nil {
		return fmt.Errorf("migration: give the lock back (it ends by itself within %v): %w", lockTTL, err)
	}
	return nil
}

// Run applies a migration and sets the version that SetVersion announced, both or neither.
func (s *store) Run(migration io.Reader) error {
	file, err := io.ReadAll(migration)
	if err != nil {
		return fmt.Errorf("migration: read: %w", err)
	}
	if s.pending == nil {
		return errors.New("migration: no version was announced")
	}
	return s.commit(*s.pending, string(file))
}

// SetVersion writes the version row, unless dirty: see store.
func (s *store) SetVersion(version int, dirty bool) error {
	if dirty {
		s.pending = &version
		return nil
	}
	if err := s.commit(version, ""); err != nil {
		return err
	}
	s.pending = nil
	return nil
}

// commit runs the file and sets the version in one transaction, in one text and so, over HTTP, in one request. The
// driver for HTTP makes a batch of it in which a step runs only if the one before it succeeded, and which ends with a
// ROLLBACK if the COMMIT didn't; on a file the connection of a failed text is closed, which rolls back.
//
// The INSERT into schema_lock fails (owner is NOT NULL) unless the lock is still this run's, so a run that was stopped
// for longer than its lock lasted changes nothing any more. The text has no parameters, since each statement would
// count them anew; owner is letters and digits.
func (s *store) commit(version int, file string) error {
	set := ""
	if version != database.NilVersion {
		set = fmt.Sprintf("INSERT INTO schema_migrations (version, dirty) VALUES (%d, 0);", version)
	}
	_, err := s.db.ExecContext(s.ctx, fmt.Sprintf(`
BEGIN IMMEDIATE;
INSERT INTO schema_lock (id, owner, expires_micros)
SELECT 1, NULL, 0
WHERE NOT EXISTS (SELECT 1 FROM schema_lock WHERE owner = '%s');
UPDATE schema_lock
SET expires_micros = CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 + %d;
CREATE TABLE IF NOT EXISTS schema_migrations (
  version INTEGER PRIMARY KEY,
  dirty   INTEGER NOT NULL
) STRICT;
%s
DELETE FROM schema_migrations;
%s
COMMIT`, s.owner, lockTTL.Microseconds(), file, set))
	if err != nil {
		return fmt.Errorf("migration: to version %d: %w", version, err)
	}
	return nil
}

// Version reads the version row. No table and no row mean database.NilVersion; a query that failed is an error, never
// an empty database.
func (s *store) Version() (version int, dirty bool, err error) {
	if s.pending != nil {
		return *s.pending, true, nil
	}
	versions, dirty, err := s.versions()
	if err != nil {
		// The lookup comes second, so that the usual case is one read. The table may have been made just between the
		// two, so its being there is followed by another attempt.
		var tables int
		lookup := s.db.QueryRowContext(s.ctx, `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'`).Scan(&tables)
		switch {
		case lookup == nil && tables == 0:
			return database.NilVersion, false, nil
		case lookup == nil:
			versions, dirty, err = s.versions()
		}
	}
	if err != nil {
		return 0, false, fmt.Errorf("migration: read the version: %w", err)
	}
	switch len(versions) {
	case 0:
		return database.NilVersion, false, nil
	case 1:
		return versions[0], dirty, nil
	default:
		return 0, false, fmt.Errorf("migration: schema_migrations has %d rows: one is allowed", len(versions))
	}
}

func (s *store) versions() (versions []int, dirty bool, err error) {
	rows, err := s.db.QueryContext(s.ctx, `SELECT version, dirty FROM schema_migrations LIMIT 2`)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var version int
		if err := rows.Scan(&version, &dirty); err != nil {
			return nil, false, err
		}
		versions = append(versions, version)
	}
	return versions, dirty, rows.Err()
}
