-- Links by which somebody chooses a new password without the old one, the newest of each account, until it is used or its time
-- is over. A token is known by the SHA-256 of its random text, in base64url; the token itself is only in the mail. Times are
-- microseconds since 1970 by the database's own clock.
CREATE TABLE password_resets (
  account        INTEGER PRIMARY KEY,
  token_hash     TEXT    NOT NULL UNIQUE,
  expires_micros INTEGER NOT NULL
) STRICT;

-- What is expired is at its beginning.
CREATE INDEX password_resets_expires ON password_resets (expires_micros);

-- A new one takes a few expired ones away. It lives for an hour (accounts.ResetLifetime): that long before its end it is now.
CREATE TRIGGER password_resets_sweep
AFTER INSERT ON password_resets
BEGIN
  DELETE FROM password_resets
  WHERE account IN (SELECT account FROM password_resets ORDER BY expires_micros LIMIT 8)
    AND expires_micros <= NEW.expires_micros - 3600000000;
END;

-- A new password, or none, ends the account's link in the same statement: so a link is good for one new password.
CREATE TRIGGER accounts_end_resets
AFTER UPDATE OF password_hash ON accounts
BEGIN
  DELETE FROM password_resets
  WHERE account = NEW.id;
END;

-- An account's link goes with it.
CREATE TRIGGER accounts_take_resets
AFTER DELETE ON accounts
BEGIN
  DELETE FROM password_resets
  WHERE account = OLD.id;
END;
