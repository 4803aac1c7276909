-- Times are microseconds since 1970 by the database's own clock.

-- The only place that knows user names. A number that was an account's never becomes another's (AUTOINCREMENT), so that
-- nothing left behind by a deleted account can belong to a new one.
CREATE TABLE accounts (
  id             INTEGER PRIMARY KEY AUTOINCREMENT,
  username       TEXT    NOT NULL UNIQUE, -- in canonical form
  password_hash  TEXT,                    -- argon2id in PHC string format; NULL if no password can sign in
  role           TEXT    NOT NULL CHECK (role IN ('member', 'admin')),
  email          TEXT,                    -- as its owner wrote it, if given; unknown to everybody else
  invite_code    TEXT,                    -- the code it was made with, if any
  created_micros INTEGER NOT NULL
) STRICT;

-- The pool of invite codes. A code is free from free_from_micros on: when it was made, or when its last borrowing ends.
-- Before that it is borrowed. Once used it stays used.
CREATE TABLE invite_codes (
  code             TEXT    PRIMARY KEY,
  free_from_micros INTEGER NOT NULL,
  used_micros      INTEGER
) STRICT;

-- Lending reads one row of it, however many codes were used.
CREATE INDEX invite_codes_unused ON invite_codes (free_from_micros) WHERE used_micros IS NULL;

-- A code is used up by the very statement that makes the account: both happen, or neither.
CREATE TRIGGER accounts_use_invite_code
AFTER INSERT ON accounts
WHEN NEW.invite_code IS NOT NULL
BEGIN
  UPDATE invite_codes
  SET used_micros = NEW.created_micros
  WHERE code = NEW.invite_code;
END;

-- A session is known by the SHA-256 of its random token, in base64url; the token itself is only in the cookie.
CREATE TABLE sessions (
  token_hash     TEXT    PRIMARY KEY,
  account        INTEGER NOT NULL,
  expires_micros INTEGER NOT NULL,
  created_micros INTEGER NOT NULL
) STRICT;

-- With the time, so that an account with many sessions, such as the demo's, finds the expired ones without the others.
CREATE INDEX sessions_account ON sessions (account, expires_micros);

-- A new session takes the account's expired ones away, so that they don't pile up.
CREATE TRIGGER sessions_sweep
AFTER INSERT ON sessions
BEGIN
  DELETE FROM sessions
  WHERE account = NEW.account
    AND expires_micros <= NEW.created_micros;
END;
