-- Times are microseconds since 1970 by the database's own clock.

-- What members had language models answer. An account's entries are numbered from 1 without a gap, in the order in which they
-- were added: pages go by the number, and so does what is kept. The texts come last, so that reading the other columns
-- doesn't walk through them.
CREATE TABLE ai_log_entries (
  id             INTEGER PRIMARY KEY AUTOINCREMENT,
  account        INTEGER NOT NULL,
  number         INTEGER NOT NULL,
  demo           INTEGER NOT NULL CHECK (demo IN (0, 1)), -- 1 if a demo account added it
  created_micros INTEGER NOT NULL,
  tokens         INTEGER NOT NULL,
  bytes          INTEGER NOT NULL, -- of the three texts
  model          TEXT    NOT NULL,
  prompt         TEXT    NOT NULL,
  response       TEXT    NOT NULL
) STRICT;

-- Pages of an account's own entries, and its newest number.
CREATE UNIQUE INDEX ai_log_entries_account ON ai_log_entries (account, number);

-- Pages of everybody's entries, those of the demo apart.
CREATE INDEX ai_log_entries_demo ON ai_log_entries (demo, id);

-- An admin's score of an entry: one row for each of both.
CREATE TABLE evaluations (
  id             INTEGER PRIMARY KEY AUTOINCREMENT,
  entry          INTEGER NOT NULL,
  account        INTEGER NOT NULL, -- the admin's
  score          INTEGER NOT NULL CHECK (score BETWEEN 1 AND 5),
  note           TEXT,
  created_micros INTEGER NOT NULL  -- when it was last scored
) STRICT;

CREATE UNIQUE INDEX evaluations_entry ON evaluations (entry, account);

CREATE INDEX evaluations_account ON evaluations (account);

-- An account keeps its newest 5,000 entries (ailog.MaxEntries): the statement that adds one takes the oldest away.
CREATE TRIGGER ai_log_entries_keep_newest
AFTER INSERT ON ai_log_entries
BEGIN
  DELETE FROM ai_log_entries
  WHERE account = NEW.account
    AND number <= NEW.number - 5000;
END;

-- An evaluation goes with its entry, whatever took the entry away.
CREATE TRIGGER ai_log_entries_take_evaluations
AFTER DELETE ON ai_log_entries
BEGIN
  DELETE FROM evaluations
  WHERE entry = OLD.id;
END;

-- An account's entries go with it, and so do the evaluations that it made.
CREATE TRIGGER accounts_take_ai_log
AFTER DELETE ON accounts
BEGIN
  DELETE FROM ai_log_entries
  WHERE account = OLD.id;
  DELETE FROM evaluations
  WHERE account = OLD.id;
END;
