-- Times are microseconds since 1970 by the database's own clock.

-- The browsers that signed in to an account with its password. A device is known by the SHA-256 of its random id, in
-- base64url; the id itself is only in the cookie. It gives a guess a counter of its own, and no access.
CREATE TABLE devices (
  id_hash        TEXT    PRIMARY KEY,
  account        INTEGER NOT NULL,
  created_micros INTEGER NOT NULL,
  used_micros    INTEGER NOT NULL, -- its last sign-in
  expires_micros INTEGER NOT NULL
) STRICT;

CREATE INDEX devices_account ON devices (account);

ALTER TABLE sessions ADD COLUMN device TEXT; -- id_hash of the device that signed in; NULL for none

-- When everybody was signed out of the account at once, but for one session and its device, if there is one.
ALTER TABLE accounts ADD COLUMN signed_out_micros INTEGER NOT NULL DEFAULT 0;
ALTER TABLE accounts ADD COLUMN kept_session TEXT;

-- A sign-in makes its device known, or known for longer, in the statement that starts the session. An account keeps the 20
-- devices that signed in last.
CREATE TRIGGER sessions_device
AFTER INSERT ON sessions
WHEN NEW.device IS NOT NULL
BEGIN
  UPDATE devices
  SET used_micros = NEW.created_micros, expires_micros = NEW.created_micros + 15552000000000 -- 180 days
  WHERE id_hash = NEW.device
    AND account = NEW.account;

  INSERT INTO devices (id_hash, account, created_micros, used_micros, expires_micros)
  SELECT NEW.device, NEW.account, NEW.created_micros, NEW.created_micros, NEW.created_micros + 15552000000000
  WHERE NOT EXISTS (SELECT 1 FROM devices WHERE id_hash = NEW.device);

  DELETE FROM devices
  WHERE account = NEW.account
    AND id_hash <> NEW.device
    AND (
      expires_micros <= NEW.created_micros
      OR id_hash NOT IN (
        SELECT id_hash
        FROM devices
        WHERE account = NEW.account
        ORDER BY used_micros DESC, created_micros DESC
        LIMIT 20
      )
    );
END;

-- Signing everybody out is one statement: a new password and the end of the sessions that the old one started are both there,
-- or neither.
CREATE TRIGGER accounts_sign_out
AFTER UPDATE OF signed_out_micros ON accounts
BEGIN
  DELETE FROM devices
  WHERE account = NEW.id
    AND id_hash NOT IN (
      SELECT device
      FROM sessions
      WHERE token_hash = NEW.kept_session
        AND device IS NOT NULL
    );

  DELETE FROM sessions
  WHERE account = NEW.id
    AND token_hash <> coalesce(NEW.kept_session, '');
END;

-- An account's sessions and devices go with it.
CREATE TRIGGER accounts_take_sessions
AFTER DELETE ON accounts
BEGIN
  DELETE FROM devices
  WHERE account = OLD.id;

  DELETE FROM sessions
  WHERE account = OLD.id;
END;
