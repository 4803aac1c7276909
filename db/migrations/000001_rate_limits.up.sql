-- One row for each key that was charged. A key is the first 63 bits of an HMAC, so no row tells whose it is.
-- Times are microseconds since 1970 by the database's own clock.
CREATE TABLE rate_limits (
  key            INTEGER PRIMARY KEY,
  policy         TEXT    NOT NULL,
  algorithm      INTEGER NOT NULL,
  window_micros  INTEGER NOT NULL, -- of the policy that the state was written by
  per            INTEGER NOT NULL, -- its limit
  high_micros    INTEGER NOT NULL, -- the latest time the key has seen; never goes back
  behind_micros  INTEGER NOT NULL, -- how far the key's time lies before it: 0 unless the clock stepped back
  passed_micros  INTEGER NOT NULL, -- up to where time before high_micros has been passed again, 0 for never; while behind, see ratelimit.State
  epoch          INTEGER NOT NULL, -- begins at random, and grows when the key's time or policy changes or it is reset: charges of another epoch are gone
  sequence       INTEGER NOT NULL, -- how often decisions and operators wrote it: tells the newer of a subject's two states of one time
  used           INTEGER NOT NULL, -- units that stood just after the last write
  rest           INTEGER NOT NULL, -- the algorithm's second number
  log            BLOB,             -- the sliding log's times, 8 bytes each, oldest first, counted from rest
  place          INTEGER,          -- leaky bucket: where the units charged last end in the queue, in fractions as given below
  vacancy        INTEGER,          -- leaky bucket: the refund whose place they took; NULL for the end of the queue
  charged        INTEGER NOT NULL, -- cost of the last decision that wrote; 0 when it marked a refusal, -1 when it did neither, -2 when only an exemption admitted it
  refused_micros INTEGER NOT NULL, -- when the newest audited refusal was; 0 for never
  override       INTEGER NOT NULL, -- what an operator said: 0 nothing, 1 banned, 2 exempt
  until_micros   INTEGER NOT NULL, -- the end of that
  said_micros    INTEGER NOT NULL, -- when an operator last said something; 0 for never
  expires_micros INTEGER NOT NULL  -- from here on the row can refuse nothing and may go
) STRICT;

-- One row for the first refusal of a key in a window, and one for each thing that an operator did to a key.
CREATE TABLE rate_limit_audit (
  id           INTEGER PRIMARY KEY,
  at_micros    INTEGER NOT NULL,
  policy       TEXT    NOT NULL,
  key          INTEGER NOT NULL,
  other_key    INTEGER,          -- an operator's, while the secret changes: the subject's key under the other one
  used         INTEGER NOT NULL, -- units that stood
  action       TEXT    NOT NULL, -- refusal, reset, ban or allow
  until_micros INTEGER NOT NULL  -- the end of a ban or an exemption
) STRICT;

-- The audit row belongs to the statement that marks the refusal: both are there, or neither. A mark costs nothing.
CREATE TRIGGER rate_limits_first_refusal
AFTER UPDATE OF refused_micros ON rate_limits
WHEN NEW.charged = 0
BEGIN
  INSERT INTO rate_limit_audit (at_micros, policy, key, used, action, until_micros)
  VALUES (NEW.refused_micros, NEW.policy, NEW.key, NEW.used, 'refusal', 0);
END;

-- The same for a key that has no row yet, because its subject was charged under the other secret.
CREATE TRIGGER rate_limits_first_refusal_of_new_key
AFTER INSERT ON rate_limits
WHEN NEW.charged = 0
BEGIN
  INSERT INTO rate_limit_audit (at_micros, policy, key, used, action, until_micros)
  VALUES (NEW.refused_micros, NEW.policy, NEW.key, NEW.used, 'refusal', 0);
END;

-- What an operator does is written to the audit, and happens by that, under both keys of the subject while there are two. A
-- reset ends a ban or an exemption too. A key that nobody has charged gets a row only to hold what was said.
CREATE TRIGGER rate_limit_audit_operation
AFTER INSERT ON rate_limit_audit
WHEN NEW.action <> 'refusal'
BEGIN
  INSERT INTO rate_limits (
    key, policy, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, charged,
    refused_micros, override, until_micros, said_micros, expires_micros
  )
  SELECT NEW.key, NEW.policy, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, NEW.until_micros
  WHERE NEW.action <> 'reset'
    AND NOT EXISTS (SELECT 1 FROM rate_limits WHERE key = NEW.key);

  INSERT INTO rate_limits (
    key, policy, algorithm, window_micros, per, high_micros, behind_micros, passed_micros, epoch, sequence, used, rest, charged,
    refused_micros, override, until_micros, said_micros, expires_micros
  )
  SELECT NEW.other_key, NEW.policy, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, NEW.until_micros
  WHERE NEW.action <> 'reset'
    AND NEW.other_key IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM rate_limits WHERE key = NEW.other_key);

  UPDATE rate_limits
  SET
    used           = CASE NEW.action WHEN 'reset' THEN 0 ELSE used END,
    rest           = CASE NEW.action WHEN 'reset' THEN 0 ELSE rest END,
    log            = CASE NEW.action WHEN 'reset' THEN NULL ELSE log END,
    epoch          = CASE NEW.action WHEN 'reset' THEN epoch + 1 ELSE epoch END,
    sequence       = sequence + 1,
    override       = CASE NEW.action WHEN 'ban' THEN 1 WHEN 'allow' THEN 2 ELSE 0 END,
    until_micros   = NEW.until_micros,
    said_micros    = NEW.at_micros,
    expires_micros = max(expires_micros, NEW.until_micros)
  WHERE key = NEW.key OR key = NEW.other_key;
END;

-- One row for each reservation given back; its id is what makes giving back happen once. debt and given are the buckets'. debt is
-- in fractions of a unit, one for each millisecond of the window: where the charge ended in the bucket just after it. given is
-- a token bucket's amount, in such fractions. In a queue it is how many units are vacant, up to where the charge ended: the next
-- that fits takes the first of them.
CREATE TABLE rate_limit_refunds (
  id             INTEGER PRIMARY KEY,
  key            INTEGER NOT NULL, -- where the subject's state lay
  algorithm      INTEGER NOT NULL,
  window_micros  INTEGER NOT NULL,
  cost           INTEGER NOT NULL,
  charged_micros INTEGER NOT NULL,
  epoch          INTEGER NOT NULL, -- of the key when it was charged
  charged_at     INTEGER NOT NULL, -- the state's sequence when it was charged
  given_at       INTEGER NOT NULL, -- the same when it was given back
  at_micros      INTEGER NOT NULL,
  debt           INTEGER NOT NULL,
  given          INTEGER NOT NULL,
  expires_micros INTEGER NOT NULL
) STRICT;

CREATE INDEX rate_limit_refunds_of_buckets ON rate_limit_refunds (key) WHERE algorithm >= 4 AND given > 0;

-- A charge is taken out of its key where it still stands: in a window of its own or, for the sliding window, the next; in the
-- log where its entries are; in a token bucket as much as was not refilled since. In a queue all keep their places, and the row
-- itself is the vacant one. A key whose epoch is another has none of it.
CREATE TRIGGER rate_limit_refunds_give_back
AFTER INSERT ON rate_limit_refunds
BEGIN
  UPDATE rate_limits
  SET
    used = CASE
      WHEN algorithm <= 2 THEN CASE
        WHEN (high_micros - behind_micros) / NEW.window_micros = NEW.charged_micros / NEW.window_micros
        THEN max(used - NEW.cost, 0)
        ELSE used
      END
      WHEN algorithm = 4 THEN
        max(used * (NEW.window_micros / 1000) + rest - NEW.given, 0) / (NEW.window_micros / 1000)
      ELSE used
    END,
    rest = CASE
      WHEN algorithm = 2
        AND (high_micros - behind_micros) / NEW.window_micros = NEW.charged_micros / NEW.window_micros + 1
      THEN max(rest - NEW.cost, 0)
      WHEN algorithm = 4 THEN
        max(used * (NEW.window_micros / 1000) + rest - NEW.given, 0) % (NEW.window_micros / 1000)
      ELSE rest
    END
  WHERE key = NEW.key
    AND algorithm = NEW.algorithm
    AND epoch = NEW.epoch;

  -- Entries of one time are alike, and so many of them are this charge's; they are found aligned to 8 bytes or not at all.
  UPDATE rate_limits
  SET
    used = used - NEW.cost,
    log  = unhex( -- joined as text, since the Turso engine joins blobs as if they were UTF-8
      hex(substr(log, 1, instr(log, unhex(printf('%016x', NEW.charged_micros - rest))) - 1))
        || hex(substr(log, instr(log, unhex(printf('%016x', NEW.charged_micros - rest))) + 8 * NEW.cost)))
  WHERE key = NEW.key
    AND algorithm = NEW.algorithm
    AND algorithm = 3
    AND epoch = NEW.epoch
    AND instr(log, unhex(printf('%016x', NEW.charged_micros - rest))) % 8 = 1
    AND substr(log, instr(log, unhex(printf('%016x', NEW.charged_micros - rest))) + 8 * (NEW.cost - 1), 8)
      = unhex(printf('%016x', NEW.charged_micros - rest));

  -- Ids are random, so that each row visits a few others, wherever they are, and takes away those that are of no use any more.
  DELETE FROM rate_limit_refunds
  WHERE id IN (SELECT id FROM rate_limit_refunds WHERE id > NEW.id ORDER BY id LIMIT 4)
    AND expires_micros <= NEW.at_micros;
END;

-- A charge that took a vacant place in a queue leaves what is behind it.
CREATE TRIGGER rate_limits_take_vacancy
AFTER UPDATE OF vacancy ON rate_limits
WHEN NEW.vacancy IS NOT NULL
BEGIN
  UPDATE rate_limit_refunds
  SET given = (
    debt - min((NEW.high_micros - NEW.behind_micros - charged_micros) / 1000, 576460752303423488 / NEW.per) * NEW.per - NEW.place
  ) / (NEW.window_micros / 1000)
  WHERE id = NEW.vacancy;
END;
