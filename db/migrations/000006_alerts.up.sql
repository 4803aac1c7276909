-- Times are microseconds since 1970 by the database's own clock.

-- What an operator should hear of. Nothing in it tells whose a key is. Ids grow with time and are never used again: who
-- gets an alert twice knows it by its id.
CREATE TABLE alerts (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  at_micros    INTEGER NOT NULL, -- when it was raised
  kind         TEXT    NOT NULL, -- repeated-refusals, credential-stuffing
  policy       TEXT    NOT NULL, -- that refused; of credential-stuffing sign-in
  key          INTEGER NOT NULL, -- as in rate_limit_audit; of credential-stuffing the attack's id
  windows      INTEGER NOT NULL, -- with a refusal, of this episode up to now; of an attack minutes in which it was seen
  last_micros  INTEGER NOT NULL, -- the first refusal of the last of them; when the attack was last seen
  attempts     INTEGER NOT NULL, -- to send it
  next_micros  INTEGER,          -- when the next one is due; NULL when there is none any more
  sent_micros  INTEGER,          -- when the receiver took it
  figures      TEXT              -- JSON, of credential-stuffing: what was seen when it began
) STRICT;

-- The newest alert of a key.
CREATE INDEX alerts_key ON alerts (key, at_micros);

-- What is to be sent: few rows, or none.
CREATE INDEX alerts_due ON alerts (next_micros) WHERE next_micros IS NOT NULL;

-- The refusals of one key, of the policies that raise alerts and of no others: a row more for each of theirs.
CREATE INDEX rate_limit_audit_alerting ON rate_limit_audit (key, at_micros)
WHERE action = 'refusal' AND policy IN ('failed-sign-ins', 'failed-sign-ins-device');

-- The third window with a refusal within an hour raises an alert, in the statement that audits the refusal: both are there,
-- or neither, and of any number of requests at once only one has that statement. Later windows are added to that
-- alert, until an hour passes without one, or a day has passed since it was raised: what goes on then is told anew. Times
-- count in both directions, so that a clock that stepped back neither hides an alert nor raises a second.
CREATE TRIGGER alerts_raise
AFTER INSERT ON rate_limit_audit
WHEN NEW.action = 'refusal' AND NEW.policy IN ('failed-sign-ins', 'failed-sign-ins-device')
BEGIN
  UPDATE alerts
  SET
    windows     = windows + 1,
    last_micros = NEW.at_micros
  WHERE key = NEW.key
    AND at_micros BETWEEN NEW.at_micros - 86400000000 AND NEW.at_micros + 86400000000
    AND last_micros BETWEEN NEW.at_micros - 3600000000 AND NEW.at_micros + 3600000000;

  INSERT INTO alerts (at_micros, kind, policy, key, windows, last_micros, attempts, next_micros)
  SELECT NEW.at_micros, 'repeated-refusals', NEW.policy, NEW.key, count(*), NEW.at_micros, 0, NEW.at_micros
  FROM rate_limit_audit
  WHERE action = 'refusal'
    AND policy IN ('failed-sign-ins', 'failed-sign-ins-device')
    AND key = NEW.key
    AND at_micros BETWEEN NEW.at_micros - 3600000000 AND NEW.at_micros + 3600000000
    AND NOT EXISTS (
      SELECT 1
      FROM alerts
      WHERE key = NEW.key
        AND at_micros BETWEEN NEW.at_micros - 86400000000 AND NEW.at_micros + 86400000000
        AND last_micros BETWEEN NEW.at_micros - 3600000000 AND NEW.at_micros + 3600000000
    )
  GROUP BY key
  HAVING count(*) >= 3;
END;
