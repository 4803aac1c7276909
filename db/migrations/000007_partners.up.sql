-- Times are microseconds since 1970 by the database's own clock.

-- The keys that partners call the API with. A key is known by its SHA-256, in base64url; the key itself is nowhere. A key that
-- was revoked stays, and ids are never used again: what counts by the id never counts for another key.
CREATE TABLE partner_keys (
  id             INTEGER PRIMARY KEY AUTOINCREMENT,
  key_hash       TEXT    NOT NULL,
  label          TEXT    NOT NULL,
  plan           TEXT    NOT NULL CHECK (plan IN ('free', 'paid')),
  created_micros INTEGER NOT NULL,
  revoked_micros INTEGER -- NULL while the key is good
) STRICT;

CREATE UNIQUE INDEX partner_keys_hash ON partner_keys (key_hash);
