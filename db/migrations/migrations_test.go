package migrations_test

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/db/migrations"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/testkit/turso"
)

// token is a comment, a quoted text, a word or a single other sign.
var token = regexp.MustCompile(`--[^\n]*|(?s:/\*.*?\*/)|'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|\S`)

// statements splits a migration into statements, each a list of tokens without comments. The body of a trigger, with its
// own semicolons and CASE … END, belongs to the statement. rest is what has no semicolon after it.
func statements(text string) (all [][]string, rest []string) {
	depth := 0
	for _, t := range token.FindAllString(text, -1) {
		if strings.HasPrefix(t, "--") || strings.HasPrefix(t, "/*") {
			continue
		}
		word := strings.ToUpper(t)
		inTrigger := len(rest) > 1 && strings.EqualFold(rest[0], "CREATE") && slices.ContainsFunc(rest[:min(3, len(rest))], func(w string) bool { return strings.EqualFold(w, "TRIGGER") })
		switch {
		case inTrigger && (word == "BEGIN" || word == "CASE"):
			depth++
		case inTrigger && word == "END":
			depth--
		}
		if t == ";" && depth == 0 {
			if len(rest) > 0 {
				all = append(all, rest)
			}
			rest = nil
			continue
		}
		rest = append(rest, t)
	}
	return all, rest
}

// lint returns what is wrong with a migration.
func lint(text string) (faults []string) {
	all, rest := statements(text)
	if len(all) == 0 {
		faults = append(faults, "no statement") // case B10
	}
	if len(rest) > 0 {
		faults = append(faults, "no semicolon at the end")
	}
	for _, s := range append(all, rest) {
		if len(s) == 0 {
			continue
		}
		first := strings.ToUpper(s[0])
		// Case C04: each migration already runs in a transaction, in which these fail or do nothing.
		if slices.Contains([]string{"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE", "VACUUM", "PRAGMA", "ATTACH", "DETACH"}, first) {
			faults = append(faults, first+" does not belong in a migration")
		}
		if first != "CREATE" {
			continue
		}
		text := strings.ToUpper(strings.Join(s, " "))
		if strings.HasPrefix(text, "CREATE TABLE") {
			if !strings.HasSuffix(text, ") STRICT") {
				faults = append(faults, "table without STRICT, or with another option: "+s[2]) // Turso refuses WITHOUT ROWID
			}
			// Case B14: in a STRICT table only these types are left, and none of them is a time.
			if regexp.MustCompile(`\b(TIMESTAMP|DATETIME|DATE|ANY)\b`).MatchString(text) {
				faults = append(faults, "table with a column of a type other than INTEGER, REAL, TEXT and BLOB: "+s[2])
			}
		}
	}
	return faults
}

func readAll(t *testing.T) map[string]string {
	t.Helper()
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("files: %v, %v", names, err)
	}
	files := make(map[string]string, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	return files
}

// Cases C04, B10, B14.
func TestEveryMigrationKeepsTheRules(t *testing.T) {
	for name, text := range readAll(t) {
		for _, fault := range lint(text) {
			t.Errorf("%s: %s", name, fault)
		}
	}
}

func TestEveryMigrationHasANumberANameAndAWayBack(t *testing.T) {
	files := readAll(t)
	form := regexp.MustCompile(`^(\d{6})_([a-z0-9_]+)\.(up|down)\.sql$`)
	ups := 0
	for name := range files {
		m := form.FindStringSubmatch(name)
		if m == nil {
			t.Errorf("%s: the form is 000001_name.up.sql", name)
			continue
		}
		other := map[string]string{"up": "down", "down": "up"}[m[3]]
		if _, ok := files[m[1]+"_"+m[2]+"."+other+".sql"]; !ok {
			t.Errorf("%s has no %s", name, other)
		}
		if m[3] == "up" {
			ups++
		}
	}
	for i := range ups {
		if found, _ := fs.Glob(migrations.FS, fmt.Sprintf("%06d_*.up.sql", i+1)); len(found) != 1 {
			t.Errorf("version %d: files %v, want one", i+1, found)
		}
	}
}

func TestTheRulesAreSeenToBeBroken(t *testing.T) {
	for text, want := range map[string]string{
		"-- nothing here; really\n/* ; */":                  "no statement",
		"CREATE TABLE a (x INTEGER) STRICT":                 "no semicolon at the end",
		"CREATE TABLE a (x INTEGER);":                       "table without STRICT",
		"CREATE TABLE a (x INTEGER) STRICT, WITHOUT ROWID;": "table without STRICT",
		"CREATE TABLE a (x DATETIME) STRICT;":               "a type other than",
		"DROP TABLE a; begin; DROP TABLE b;":                "BEGIN does not belong",
		"DROP TABLE a;\ncommit;":                            "COMMIT does not belong",
		"DROP TABLE a; ROLLBACK":                            "ROLLBACK does not belong",
		"VACUUM;":                                           "VACUUM does not belong",
		"PRAGMA foreign_keys = OFF;":                        "PRAGMA does not belong",
	} {
		if got := strings.Join(lint(text), "; "); !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	good := "CREATE TRIGGER a AFTER INSERT ON b BEGIN\n UPDATE b SET x = CASE WHEN x THEN 1 END;\n SELECT ';';\nEND;\nDROP TABLE c; -- ;"
	if got := lint(good); got != nil {
		t.Errorf("%q: got %q, want nothing", good, got)
	}
}

// created lists "table name", "index name" and so on, for all that the up files create.
func created(t *testing.T) (names []string) {
	t.Helper()
	for name, text := range readAll(t) {
		if !strings.HasSuffix(name, ".up.sql") {
			continue
		}
		all, _ := statements(text)
		for _, s := range all {
			if !strings.EqualFold(s[0], "CREATE") {
				continue
			}
			if strings.EqualFold(s[1], "UNIQUE") {
				s = s[1:]
			}
			names = append(names, strings.ToLower(s[1])+" "+s[2])
		}
	}
	slices.Sort(names)
	return names
}

// stored lists the same of a database, but for what the migrator and the database itself make.
func stored(t *testing.T, db *database.DB) (names []string) {
	t.Helper()
	rows, err := db.Query(`SELECT type, name FROM sqlite_master ORDER BY type, name`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var kind, name string
		if err := rows.Scan(&kind, &name); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(name, "sqlite_") && name != "schema_lock" && name != "schema_migrations" {
			names = append(names, kind+" "+name)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// engines start an empty database and give its URL.
var engines = map[string]func(t *testing.T) string{
	"embedded file": func(t *testing.T) string { return "file:" + filepath.Join(t.TempDir(), "weir.db") },
	"Turso server":  func(t *testing.T) string { return turso.Start(t).URL },
	"libSQL server": func(t *testing.T) string { return turso.StartLibSQL(t).URL },
}

// Case C05: all of a file runs, and all of it goes back, on every engine.
func TestUpMakesEveryTableIndexAndTriggerAndDownLeavesNone(t *testing.T) {
	want := created(t)
	if len(want) < 5 {
		t.Fatalf("parsed only %v", want)
	}
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			db, err := database.Open(database.Config{URL: open(t), Deadline: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for range 2 {
				if _, err := migration.Up(context.Background(), db); err != nil {
					t.Fatal(err)
				}
				if got := stored(t, db); !slices.Equal(got, want) {
					t.Errorf("after up: got %q, want %q", got, want)
				}
				if _, err := migration.Down(context.Background(), db, 0); err != nil {
					t.Fatal(err)
				}
				if got := stored(t, db); len(got) > 0 {
					t.Errorf("after down: got %q, want none", got)
				}
			}
		})
	}
}

// A program that brings its own tables applies RateLimits beside them: no name may be one that it uses.
func TestTheLimitersTablesAreToBeHadAlone(t *testing.T) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			db, err := database.Open(database.Config{URL: open(t), Deadline: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("BEGIN; " + migrations.RateLimits + " COMMIT;"); err != nil {
				t.Fatal(err)
			}
			got := stored(t, db)
			if len(got) == 0 {
				t.Error("it makes nothing")
			}
			for _, item := range got {
				if _, name, _ := strings.Cut(item, " "); !strings.HasPrefix(name, "rate_limit") {
					t.Errorf("it makes %s", item)
				}
			}
		})
	}
}
