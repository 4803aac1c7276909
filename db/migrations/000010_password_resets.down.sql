DROP TRIGGER accounts_take_resets;
DROP TRIGGER accounts_end_resets;
DROP TABLE password_resets;
