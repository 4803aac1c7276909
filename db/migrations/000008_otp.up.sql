-- One-time codes that were sent by SMS, until their time is over: the newest of each phone, by the phone's key, and those that
-- were used, each by a key of its own. Neither a phone nor a code can be told from a row without the application's secret: see
-- lib/otp. Times are microseconds since 1970 by the database's own clock.
CREATE TABLE otp_codes (
  phone_key       INTEGER PRIMARY KEY,
  other_phone_key INTEGER,          -- the phone's key under the secret that is being changed; NULL for none
  code_mac        TEXT    NOT NULL, -- of phone and code
  expires_micros  INTEGER NOT NULL
) STRICT;

-- What is expired is at its beginning.
CREATE INDEX otp_codes_expires ON otp_codes (expires_micros);

-- A new code ends the one of the same phone that stands under the other secret, in the statement that adds it, and takes a few
-- expired ones away. A code lives for 10 minutes (otp.Life): that long before its end it is now.
CREATE TRIGGER otp_codes_new
AFTER INSERT ON otp_codes
BEGIN
  DELETE FROM otp_codes
  WHERE phone_key = NEW.other_phone_key;

  DELETE FROM otp_codes
  WHERE phone_key IN (SELECT phone_key FROM otp_codes ORDER BY expires_micros LIMIT 8)
    AND expires_micros <= NEW.expires_micros - 600000000;
END;

-- The same for one that takes the place of an older one.
CREATE TRIGGER otp_codes_again
AFTER UPDATE OF code_mac ON otp_codes
BEGIN
  DELETE FROM otp_codes
  WHERE phone_key = NEW.other_phone_key;
END;
