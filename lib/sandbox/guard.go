package sandbox

import (
	"fmt"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"
)

// switches are what a connection may do at all, as sqlite3_db_config takes it. The authorizer refuses the same things
// earlier and says why; either would do.
var switches = map[int32]int32{
	sqlite3.SQLITE_DBCONFIG_DEFENSIVE:             1,
	sqlite3.SQLITE_DBCONFIG_TRUSTED_SCHEMA:        0,
	sqlite3.SQLITE_DBCONFIG_WRITABLE_SCHEMA:       0,
	sqlite3.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION: 0,
	sqlite3.SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER: 0,
	sqlite3.SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE:  0,
	sqlite3.SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE:   0,
	// A name in double quotes that doesn't exist is a mistake, not a text.
	sqlite3.SQLITE_DBCONFIG_DQS_DDL: 0,
	sqlite3.SQLITE_DBCONFIG_DQS_DML: 0,
}

// limits are the bounds of sqlite3_limit.
var limits = map[int32]int32{
	sqlite3.SQLITE_LIMIT_LENGTH:     MaxValueBytes,
	sqlite3.SQLITE_LIMIT_SQL_LENGTH: MaxStatementBytes,
	sqlite3.SQLITE_LIMIT_COLUMN:     MaxColumns,
	sqlite3.SQLITE_LIMIT_EXPR_DEPTH: maxExpressionDepth,
	// The parser's stack is C's, which here is Go's and counts in no heap.
	sqlite3.SQLITE_LIMIT_PARSER_DEPTH:        maxParserDepth,
	sqlite3.SQLITE_LIMIT_COMPOUND_SELECT:     maxCompoundSelects,
	sqlite3.SQLITE_LIMIT_VDBE_OP:             maxInstructions,
	sqlite3.SQLITE_LIMIT_FUNCTION_ARG:        maxArguments,
	sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: maxPatternBytes,
	sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH:       maxTriggerDepth,
	sqlite3.SQLITE_LIMIT_ATTACHED:            0,
	sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER:     0,
	sqlite3.SQLITE_LIMIT_WORKER_THREADS:      0,
}

const temporary = "Temporary tables are not available here: every table ends with its statement."

// asked is what the authorizer keeps of what a statement would do.
type asked struct {
	calls  int  // of functions
	alters bool // it is ALTER TABLE
}

// refuse says why a statement may not do something, or "" when it may. What is in no list is refused, so that an action or a
// function that a newer SQLite brings is looked at before anybody gets it.
func (a *asked) refuse(action int32, first, second, database string) string {
	switch action {
	case sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_CREATE_TRIGGER:
		if strings.EqualFold(database, "temp") { // as in CREATE TABLE temp.x
			return temporary
		}
		return ""
	case sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE,
		sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE,
		sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_VIEW, sqlite3.SQLITE_DROP_TRIGGER,
		sqlite3.SQLITE_REINDEX:
		return ""
	case sqlite3.SQLITE_ALTER_TABLE:
		a.alters = true
		return ""
	case sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA:
		table := strings.ToLower(first)
		// ALTER TABLE checks a STRICT table with a pragma of its own.
		if action == sqlite3.SQLITE_READ && !strings.HasPrefix(table, "pragma_") ||
			a.alters && strings.TrimPrefix(table, "pragma_") == "quick_check" {
			return ""
		}
		return "PRAGMA is not available here, nor are the tables that stand for it."
	case sqlite3.SQLITE_FUNCTION:
		a.calls++
		switch {
		case !functions[strings.ToLower(second)] && !(a.alters && alterations[strings.ToLower(second)]):
			return "The function " + second + " is not available here."
		case a.calls > maxCalls:
			return fmt.Sprintf("The statement calls functions in more than %d places.", maxCalls)
		}
		return ""
	case sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH: // VACUUM attaches too
		return "ATTACH, DETACH and VACUUM are not available here: there is one database, in memory."
	case sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT:
		return "Transactions are not available here: a statement runs alone."
	case sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE:
		return "Virtual tables are not available here."
	case sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_TEMP_INDEX, sqlite3.SQLITE_CREATE_TEMP_VIEW,
		sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_DROP_TEMP_TABLE, sqlite3.SQLITE_DROP_TEMP_INDEX,
		sqlite3.SQLITE_DROP_TEMP_VIEW, sqlite3.SQLITE_DROP_TEMP_TRIGGER:
		return temporary
	}
	return "This kind of statement is not available here."
}

// functions are those that only compute. Not among them are load_extension, what tells of the process (sqlite_log,
// sqlite_compileoption_get, sqlite_source_id and so on), sqlite_offset, and those of full-text search, R-trees and geopoly.
var functions = set(`
	-> ->> abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling changes char coalesce concat concat_ws cos cosh count
	cume_dist current_date current_time current_timestamp date datetime degrees dense_rank exp first_value floor format glob
	group_concat hex if ifnull iif instr json json_array json_array_insert json_array_length json_error_position json_extract
	json_group_array json_group_object json_insert json_object json_patch json_pretty json_quote json_remove json_replace
	json_set json_type json_valid jsonb jsonb_array jsonb_array_insert jsonb_extract jsonb_group_array jsonb_group_object
	jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set julianday lag last_insert_rowid last_value lead
	length like likelihood likely ln log log10 log2 lower ltrim max min mod nth_value ntile nullif octet_length percent_rank pi
	pow power printf quote radians random randomblob rank replace round row_number rtrim sign sin sinh soundex sqlite_version
	sqrt strftime string_agg substr substring subtype sum tan tanh time timediff total total_changes trim trunc typeof unhex
	unicode unistr unistr_quote unixepoch unlikely upper zeroblob
`)

// alterations are what ALTER TABLE calls itself.
var alterations = set(`
	sqlite_rename_table sqlite_rename_column sqlite_rename_test sqlite_rename_quotefix sqlite_drop_column sqlite_fail
	sqlite_find_constraint sqlite_drop_constraint sqlite_add_constraint
`)

func set(names string) map[string]bool {
	all := make(map[string]bool)
	for _, name := range strings.Fields(names) {
		all[name] = true
	}
	return all
}
