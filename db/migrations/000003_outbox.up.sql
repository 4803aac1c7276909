-- Messages that no mail server was there for, until somebody reads them. Ids grow with time.
CREATE TABLE outbox (
  id             INTEGER PRIMARY KEY,
  message_id     TEXT    NOT NULL, -- what the message is named by outside, such as an invite's id
  recipient      TEXT    NOT NULL,
  subject        TEXT    NOT NULL,
  body           TEXT    NOT NULL,
  created_micros INTEGER NOT NULL  -- microseconds since 1970 by the database's own clock
) STRICT;

-- A new message takes a few of the oldest away once they are 24 hours old, so that they don't pile up.
CREATE TRIGGER outbox_sweep
AFTER INSERT ON outbox
BEGIN
  DELETE FROM outbox
  WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT 8)
    AND created_micros <= NEW.created_micros - 86400000000;
END;
