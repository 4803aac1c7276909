DROP TRIGGER accounts_take_ai_log;
DROP TABLE evaluations;
DROP TABLE ai_log_entries;
