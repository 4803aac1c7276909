-- One row for each key that was charged. A key is the first 63 bits of an HMAC, so no row tells whose it is.
-- Times are microseconds since 1970 by the database's own clock.
CREATE TABLE rate_limits (
  key            INTEGER PRIMARY KEY,
  policy         TEXT    NOT NULL,
  algorithm      INTEGER NOT NULL,
  high_micros    INTEGER NOT NULL, -- the latest time the key has seen; never goes back
  behind_micros  INTEGER NOT NULL, -- how far the last write lies before it: 0 unless the clock stepped back
  used           INTEGER NOT NULL, -- units that stood just after the last write
  rest           INTEGER NOT NULL, -- the algorithm's second number
  log            BLOB,             -- the sliding log's entries
  charged        INTEGER NOT NULL, -- cost of the last write; 0 when it marked a refusal
  refused_micros INTEGER NOT NULL, -- when the newest audited refusal was; 0 for never
  expires_micros INTEGER NOT NULL  -- from here on the row can refuse nothing and may go
) STRICT;

-- One row for the first refusal of a key in a window.
CREATE TABLE rate_limit_audit (
  id        INTEGER PRIMARY KEY,
  at_micros INTEGER NOT NULL,
  policy    TEXT    NOT NULL,
  key       INTEGER NOT NULL,
  used      INTEGER NOT NULL
) STRICT;

-- The audit row belongs to the statement that marks the refusal: both are there, or neither.
CREATE TRIGGER rate_limits_first_refusal
AFTER UPDATE OF refused_micros ON rate_limits
WHEN NEW.refused_micros <> OLD.refused_micros
BEGIN
  INSERT INTO rate_limit_audit (at_micros, policy, key, used)
  VALUES (NEW.refused_micros, NEW.policy, NEW.key, NEW.used);
END;

-- One row for each reservation given back. Its key is what makes giving back happen once.
CREATE TABLE rate_limit_refunds (
  id             INTEGER PRIMARY KEY,
  key            INTEGER NOT NULL,
  algorithm      INTEGER NOT NULL,
  charged_micros INTEGER NOT NULL,
  window_micros  INTEGER NOT NULL,
  cost           INTEGER NOT NULL,
  expires_micros INTEGER NOT NULL
) STRICT;

-- A fixed window forgets its charges at its edge: what was charged in another window no longer stands.
CREATE TRIGGER rate_limit_refunds_give_back
AFTER INSERT ON rate_limit_refunds
BEGIN
  UPDATE rate_limits
  SET used = max(used - NEW.cost, 0)
  WHERE key = NEW.key
    AND algorithm = NEW.algorithm
    AND (high_micros - behind_micros) / NEW.window_micros = NEW.charged_micros / NEW.window_micros;
END;
