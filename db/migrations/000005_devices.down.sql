DROP TRIGGER accounts_take_sessions;
DROP TRIGGER accounts_sign_out;
DROP TRIGGER sessions_device;
ALTER TABLE accounts DROP COLUMN kept_session;
ALTER TABLE accounts DROP COLUMN signed_out_micros;
ALTER TABLE sessions DROP COLUMN device;
DROP TABLE devices;
