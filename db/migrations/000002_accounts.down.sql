DROP TABLE sessions;
DROP TABLE accounts;
DROP TABLE invite_codes;
