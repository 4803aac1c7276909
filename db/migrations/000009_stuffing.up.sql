-- Times are microseconds since 1970 by the database's own clock.

-- Figures of sign-ins, a number each, in rows whose id says which: so one upsert counts an attempt in several of them, and each
-- costs one row written, or none. Nothing in it tells of anybody: which register somebody is in is an HMAC's to say.
--
--   minute * 2                      right passwords of a minute since 1970
--   minute * 2 + 1                  wrong ones
--   2^40 + minute * 1024 + 0..255   HyperLogLog registers of the accounts that failed in a minute
--   2^40 + minute * 1024 + 256..511 and of the addresses
--   2^40 + minute * 1024 + 512      there once somebody has taken it on to look at the minutes before
CREATE TABLE sign_in_figures (
  id    INTEGER PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT;

-- Attacks on passwords all over. One is on until nothing of it was seen for half an hour, or an operator ended it.
CREATE TABLE attacks (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  begun_micros INTEGER NOT NULL,
  last_micros  INTEGER NOT NULL, -- when it was last seen
  ended_micros INTEGER,          -- by an operator
  figures      TEXT    NOT NULL  -- JSON: what was seen when it began
) STRICT;

-- An attack and its alert are one statement: both are there, or neither.
CREATE TRIGGER attacks_raise
AFTER INSERT ON attacks
BEGIN
  INSERT INTO alerts (at_micros, kind, policy, key, windows, last_micros, attempts, next_micros, figures)
  VALUES (NEW.begun_micros, 'credential-stuffing', 'sign-in', NEW.id, 1, NEW.begun_micros, 0, NEW.begun_micros, NEW.figures);
END;

CREATE TRIGGER attacks_go_on
AFTER UPDATE OF last_micros ON attacks
BEGIN
  UPDATE alerts
  SET
    windows     = windows + 1,
    last_micros = NEW.last_micros
  WHERE key = NEW.id
    AND at_micros = NEW.begun_micros
    AND kind = 'credential-stuffing';
END;
