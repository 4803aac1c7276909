package sandbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/weirlimits/weir/lib/sqliteheap"
)

func TestMain(m *testing.M) {
	if err := sqliteheap.Install(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// patient is a Sandbox that a slow machine doesn't hurry.
func patient() *Sandbox {
	s := New()
	s.maxTime = time.Hour
	return s
}

// run gives a result in short: the names, and the rows as JSON.
func run(t *testing.T, text string) (Result, string) {
	t.Helper()
	result, err := patient().Run(t.Context(), text)
	if err != nil {
		t.Fatalf("%s: %v, %s", text, err, reason(err))
	}
	return result, short(result)
}

func short(result Result) string {
	var out strings.Builder
	fmt.Fprint(&out, strings.Join(result.Columns, ","))
	for _, row := range result.Rows {
		out.WriteString("|")
		for i, value := range row {
			if i > 0 {
				out.WriteString(" ")
			}
			out.Write(value)
		}
	}
	return out.String()
}

func reason(err error) string {
	var told *StatementError
	if errors.As(err, &told) {
		return told.Reason
	}
	return ""
}

func TestAStatementReadsTheSample(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT count(*) FROM products":                               "count(*)|48",
		"SELECT count(*) AS n FROM customers":                         "n|120",
		"SELECT count(*) n FROM orders":                               "n|600",
		"SELECT count(*) n FROM order_lines;":                         "n|1500",
		"SELECT id, name FROM products ORDER BY id LIMIT 2":           `id,name|1 "Oak shelf"|2 "Oak lamp"`,
		"SELECT status, count(*) n FROM orders GROUP BY 1 ORDER BY 2": `status,n|"open" 20|"returned" 20|"paid" 38|"shipped" 522`,
		"SELECT sum(quantity > 0 AND l.price_cents = p.price_cents) n FROM order_lines l JOIN products p ON p.id = product_id": "n|1500",
		"SELECT count(*) n FROM orders LEFT JOIN customers c ON c.id = customer_id WHERE c.id IS NULL":                         "n|0",
		"WITH c AS (SELECT 1 UNION SELECT 2) SELECT count(*) n FROM c":                                                         "n|2",
		"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 5) SELECT sum(x) s FROM c":                   "s|15",
		"SELECT name, row_number() OVER (ORDER BY name) n FROM sqlite_schema WHERE type = 'table' ORDER BY 1 LIMIT 1":          `name,n|"customers" 1`,
		"SELECT value FROM json_each('[1,\"b\"]')":                                                                             `value|1|"b"`,
		"VALUES (1, 2), (3, 4)": "column1,column2|1 2|3 4",
		"-- how many\nSELECT /* them */ 1 AS a, 2 AS a ; ; -- all": "a,a|1 2",
		"SELECT trim(' x '), replace('aXa', 'X', '-'), 'x' LIKE 'X%', 'x' GLOB '[a-z]', printf('%05.1f', 2.25), date('2025-03-01', '-1 day')": "trim(' x '),replace('aXa', 'X', '-'),'x' LIKE 'X%','x' GLOB '[a-z]',printf('%05.1f', 2.25),date('2025-03-01', '-1 day')|" +
			`"x" "a-a" 1 1 "002.3" "2025-02-28"`,
	} {
		if _, got := run(t, text); got != want {
			t.Errorf("%s\ngives %s\nwant  %s", text, got, want)
		}
	}
}

func TestTheSampleIsTheSameEachTimeAndItsConditionsHold(t *testing.T) {
	const all = "SELECT (SELECT json_group_array(id || name || price_cents || stock) FROM products), (SELECT count(DISTINCT customer_id) FROM orders), (SELECT count(*) FROM pragma_foreign_key_check), (SELECT total(quantity * price_cents) FROM order_lines)"
	first, second := build(t, all), build(t, all)
	if first != second || !strings.Contains(first, " 0 ") {
		t.Errorf("first %s\nthen  %s", first, second)
	}
}

// build runs a statement on the sample in an ordinary database.
func build(t *testing.T, query string) string {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "sample.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(sample); err != nil {
		t.Fatal(err)
	}
	var products, customers, broken, total string
	if err := db.QueryRow(query).Scan(&products, &customers, &broken, &total); err != nil {
		t.Fatal(err)
	}
	return strings.Join([]string{products, customers, broken, total}, " ")
}

func TestWhatAStatementChangesEndsWithIt(t *testing.T) {
	s := patient()
	for text, want := range map[string]string{
		"DELETE FROM order_lines": "",
		"UPDATE products SET stock = 1 WHERE id = 1 RETURNING id, stock":                            "id,stock|1 1",
		"INSERT INTO customers VALUES (1000, 'home', 'north', '2025-01-01') RETURNING segment AS s": `s|"home"`,
		"INSERT INTO customers VALUES (1, 'home', 'north', '2025-01-01') ON CONFLICT DO NOTHING":    "",
		"CREATE TABLE copy AS SELECT * FROM products":                                               "",
		"CREATE INDEX i ON products (lower(name))":                                                  "",
		"CREATE VIEW v AS SELECT 1":                                                                 "",
		"CREATE TRIGGER tr AFTER INSERT ON products BEGIN DELETE FROM products; END":                "",
		"ALTER TABLE products ADD COLUMN colour TEXT CHECK (length(colour) < 9)":                    "",
		"ALTER TABLE products RENAME COLUMN name TO title":                                          "",
		"ALTER TABLE products DROP COLUMN stock":                                                    "",
		"ALTER TABLE products RENAME TO goods":                                                      "",
		"DROP TABLE order_lines":                                                                    "",
	} {
		for range 2 { // the second would fail or differ if the first had left anything
			result, err := s.Run(t.Context(), text)
			if got := short(result); err != nil || got != want || result.Columns == nil || result.Rows == nil || result.Truncated {
				t.Errorf("%s\ngives %q %+v, %v %s", text, got, result, err, reason(err))
			}
		}
	}
	if _, got := run(t, "SELECT count(*) n FROM order_lines"); got != "n|1500" {
		t.Errorf("then there are %s", got)
	}
}

func TestEachKindOfValueHasItsForm(t *testing.T) {
	for text, want := range map[string]string{
		"NULL":                       "null",
		"9007199254740991":           "9007199254740991",
		"-9007199254740991":          "-9007199254740991",
		"9007199254740992":           `"9007199254740992"`,
		"-9223372036854775808":       `"-9223372036854775808"`,
		"1.0":                        "1",
		"0.1":                        "0.1",
		"-1e-7":                      "-1e-7",
		"1.7976931348623157e308":     "1.7976931348623157e+308",
		"9e999":                      `"Infinity"`,
		"-9e999":                     `"-Infinity"`,
		"9e999 - 9e999":              "null",
		"TRUE":                       "1",
		"''":                         `""`,
		"'é ''\"<&'":                 `"é '\"<&"`,
		"'a' || char(0) || 'b'":      `"a\u0000b"`,
		"CAST(X'61FF62' AS TEXT)":    "\"a\uFFFDb\"",
		"X''":                        `"X''"`,
		"X'00ff'":                    `"X'00FF'"`,
		"jsonb('1')":                 `"X'1331'"`,
		"current_date IS NOT NULL":   "1",
		"json_extract('[true]','$')": `"[true]"`,
	} {
		if result, _ := run(t, "SELECT "+text+" AS v"); string(result.Rows[0][0]) != want {
			t.Errorf("%s gives %s, want %s", text, result.Rows[0][0], want)
		}
	}
}

// Each of these would reach something else than the sample, take more than its share, or is a mistake.
func TestARefusalSaysWhy(t *testing.T) {
	directory := t.TempDir()
	t.Chdir(directory)
	const (
		pragma  = "PRAGMA is not available here"
		attach  = "ATTACH, DETACH and VACUUM are not available here"
		alone   = "Transactions are not available here"
		virtual = "Virtual tables are not available here"
		long    = "A text, a blob or a row is longer than 10000 bytes."
		memory  = "The statement needs more than 16 MB of memory."
		growth  = "The tables may not grow beyond 4 MB."
		many    = "The text holds more than one statement."
		none    = "The text holds no statement."
		temp    = "Temporary tables are not available here"
	)
	const numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
	for text, want := range map[string]string{
		// Other databases and files.
		"ATTACH 'other.db' AS other":                                          attach,
		"ATTACH ':memory:' AS other":                                          attach,
		"ATTACH 'file:other.db?mode=rwc' AS other":                            attach,
		"DETACH main":                                                         attach,
		"VACUUM":                                                              attach,
		"VACUUM INTO 'other.db'":                                              attach,
		"VACUUM main INTO 'file:other.db'":                                    attach,
		"SELECT load_extension('other')":                                      "The function load_extension is not available here.",
		"SELECT readfile('/etc/hostname')":                                    "no such function: readfile",
		"SELECT writefile('other.db', 'x')":                                   "no such function: writefile",
		"SELECT edit('x')":                                                    "no such function: edit",
		"CREATE VIRTUAL TABLE v USING fts5(a)":                                virtual,
		"CREATE VIRTUAL TABLE v USING rtree(a, b, c)":                         virtual,
		"CREATE VIRTUAL TABLE v USING csv(filename='other')":                  virtual,
		"CREATE VIRTUAL TABLE temp.v USING dbstat":                            virtual,
		"SELECT * FROM dbstat":                                                "no such table: dbstat",
		"SELECT * FROM sqlite_dbpage":                                         "no such table: sqlite_dbpage",
		"SELECT * FROM fts5vocab":                                             "no such table: fts5vocab",
		"SELECT * FROM accounts":                                              "no such table: accounts",
		"SELECT * FROM other.accounts":                                        "no such table: other.accounts",
		"CREATE TEMP TABLE t (a)":                                             temp,
		"CREATE TABLE temp.t (a)":                                             temp,
		"CREATE TEMP VIEW v AS SELECT 1":                                      temp,
		"CREATE TEMP TRIGGER tr AFTER INSERT ON products BEGIN SELECT 1; END": temp,

		// The connection and the process.
		"PRAGMA temp_store_directory = '/'":                                         pragma,
		"PRAGMA writable_schema = ON":                                               pragma,
		"PRAGMA max_page_count = 1000000":                                           pragma,
		"PRAGMA main.journal_mode":                                                  pragma,
		"PRAGMA quick_check":                                                        pragma,
		"PRAGMA no_such_pragma":                                                     pragma,
		"EXPLAIN PRAGMA quick_check":                                                pragma,
		"SELECT * FROM pragma_database_list":                                        pragma,
		"SELECT count(*) FROM pragma_database_list()":                               pragma,
		"SELECT 1 FROM \"PRAGMA_table_info\"('products')":                           pragma,
		"SELECT * FROM pragma_quick_check":                                          pragma,
		"CREATE TABLE t AS SELECT * FROM pragma_function_list":                      pragma,
		"INSERT INTO customers SELECT 1000, file, '', '' FROM pragma_database_list": pragma,
		"SELECT sqlite_compileoption_get(1)":                                        "The function sqlite_compileoption_get is not available here.",
		"SELECT SQLITE_LOG(1, 'x')":                                                 "is not available here.",
		"SELECT fts5(1)":                                                            "The function fts5 is not available here.",
		"SELECT sqlite_rename_test('main', '', 'table', 't', 1, '', 1)":             "The function sqlite_rename_test is not available here.",
		"SELECT 'x' MATCH 'y'":                                                      "The function match is not available here.",
		"SELECT 'x' REGEXP 'y'":                                                     "no such function: REGEXP",
		"ANALYZE":                                                                   "This kind of statement is not available here.",
		"UPDATE sqlite_schema SET sql = ''":                                         "table sqlite_master may not be modified",
		"DROP TABLE sqlite_schema":                                                  "table sqlite_master may not be dropped",
		"CREATE TABLE sqlite_t (a)":                                                 "object name reserved for internal use: sqlite_t",

		// More than one statement, or none.
		"BEGIN":                             alone,
		"BEGIN EXCLUSIVE":                   alone,
		"COMMIT":                            alone,
		"ROLLBACK":                          alone,
		"SAVEPOINT a":                       alone,
		"RELEASE a":                         alone,
		"SELECT 1; SELECT 2":                many,
		"SELECT 1;;/**/;DELETE FROM orders": many,
		"SELECT 1; nonsense":                many,
		"SELECT 1; ATTACH 'x' AS x":         many,
		"":                                  none,
		" \n\t":                             none,
		";":                                 none,
		";;; ; --":                          none,
		"-- SELECT 1":                       none,
		"/* SELECT 1":                       none,
		"\uFEFF":                            none,
		"SELECT 1\x00; SELECT 2":            "The statement holds a NUL character.",
		"\x00":                              "The statement holds a NUL character.",
		"SELECT '\xff'":                     "The statement is not UTF-8.",
		"SELECT ?":                          "too many SQL variables",
		"SELECT :name":                      "too many SQL variables",
		"SELECT '" + strings.Repeat("x", MaxStatementBytes) + "'":    "The statement is longer than 10000 bytes.",
		"SELECT 1" + strings.Repeat(";", MaxStatementBytes-10) + "x": many,

		// Long values.
		"SELECT zeroblob(1000000000)":                                          long,
		"SELECT hex(zeroblob(9000))":                                           long,
		"SELECT randomblob(1000000000)":                                        long,
		"SELECT printf('%1000000000d', 1)":                                     long,
		"SELECT printf('%.1000000000d', 1)":                                    long,
		"SELECT printf('%*s', 2000000000, 'x')":                                long,
		"SELECT printf('%.*c', 2000000000, 'x')":                               long,
		"SELECT replace(printf('%.*c', 9000, 'x'), 'x', 'xx')":                 long,
		"SELECT replace(hex(zeroblob(4000)), '0', hex(zeroblob(4000)))":        long,
		"SELECT group_concat(name, printf('%.*c', 900, ',')) FROM products":    long,
		"SELECT json_group_array(name) FROM products, orders":                  long,
		"SELECT json_group_object(id, printf('%.*c', 900, 'x')) FROM products": long,
		"SELECT string_agg(o.note, '') FROM orders o, orders p":                long,
		"SELECT quote(zeroblob(6000))":                                         long,
		"SELECT concat(zeroblob(6000), zeroblob(6000))":                        long,
		"SELECT zeroblob(6000) || zeroblob(6000)":                              long,
		"SELECT char(" + strings.Repeat("1,", 49) + "1," + "1)":                "too many arguments on function char",
		"SELECT 'x' LIKE printf('%.*c', 60, '%')":                              "LIKE or GLOB pattern too complex",
		"SELECT 'x' GLOB printf('%.*c', 60, '*')":                              "LIKE or GLOB pattern too complex",

		// Large statements.
		"SELECT " + strings.Repeat("1,", MaxColumns) + "1": "too many columns in result set",
		"SELECT * FROM orders a, orders b, orders c, orders d, orders e, orders f, orders g, orders h, orders i, orders j, orders k, orders l, orders m, orders n, orders o, orders p, orders q, orders r, orders s, orders t, orders u": "too many columns in result set",
		"SELECT " + strings.Repeat("1+", 200) + "1":                           "Expression tree is too large (maximum depth 100)",
		"SELECT " + strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300): "Recursion limit",
		"SELECT " + strings.Repeat("NOT ", 300) + "1":                         "Recursion limit",
		"SELECT 1" + strings.Repeat(" UNION SELECT 1", 30):                    "too many terms in compound SELECT",
		"SELECT " + strings.Repeat("abs(1)+", maxCalls) + "abs(1)":            "The statement calls functions in more than 50 places.",
		"SELECT 1 FROM orders" + strings.Repeat(" JOIN orders", 70):           "at most 64 tables in a join",
		doubled(20): "VIEWs and/or subqueries nested too deep",

		// Much memory.
		"SELECT zeroblob(5000) FROM order_lines a, order_lines b ORDER BY a.price_cents":                                           memory,
		numbers + "SELECT zeroblob(5000) FROM n ORDER BY x DESC":                                                                   memory,
		numbers + "SELECT DISTINCT zeroblob(5000) || x FROM n LIMIT 1 OFFSET 100000":                                               memory,
		numbers + "SELECT count(DISTINCT x || hex(zeroblob(2000))) FROM n":                                                         memory,
		numbers + "SELECT max(x || hex(zeroblob(2500))) OVER (ORDER BY x ROWS BETWEEN 9 PRECEDING AND UNBOUNDED FOLLOWING) FROM n": memory,
		"WITH RECURSIVE n(i, x) AS (SELECT 1, zeroblob(5000) UNION SELECT i + 1, x FROM n) SELECT count(*) FROM n":                 memory,
		"WITH n AS MATERIALIZED (SELECT zeroblob(5000) b FROM orders a, orders b) SELECT count(b) FROM n":                          memory,
		"CREATE TABLE t AS " + numbers + "SELECT zeroblob(9000) FROM n":                                                            growth,
		"INSERT INTO products " + numbers + "SELECT 1000 + x, x, zeroblob(9), 1, 1, 1 FROM n":                                      "cannot store BLOB value in TEXT column products.category",
		"INSERT INTO products " + numbers + "SELECT 1000 + x, x || hex(zeroblob(2000)), '', 1, 1, 1 FROM n":                        growth,
		"UPDATE order_lines SET price_cents = (SELECT count(*) FROM order_lines a, order_lines b) RETURNING x":                     "no such column: x",

		// Mistakes.
		"SELECT * FROM nowhere":                     "no such table: nowhere",
		"SELECT colour FROM orders":                 "no such column: colour",
		"SELECT \"nothing\"":                        "no such column: \"nothing\"",
		"SELEC 1":                                   "near \"SELEC\": syntax error",
		"SELECT":                                    "incomplete input",
		"SELECT abs(-9223372036854775808)":          "integer overflow",
		"SELECT json('{')":                          "malformed JSON",
		"DELETE FROM customers":                     "FOREIGN KEY constraint failed",
		"UPDATE products SET stock = -1":            "CHECK constraint failed: stock >= 0",
		"INSERT INTO customers (id) VALUES ('one')": "datatype mismatch",
	} {
		result, err := patient().Run(t.Context(), text)
		shown := text[:min(len(text), 200)]
		got := reason(err)
		if !strings.Contains(got, want) {
			t.Errorf("%s\ngives %v, %q; %v, want %q", shown, short(result), got, err, want)
		}
		for _, leak := range []string{directory, "SQLITE", "sqlite:", "sandbox:", ".go", "logic error"} {
			if strings.Contains(got, leak) {
				t.Errorf("%s: the reason holds %q: %s", shown, leak, got)
			}
		}
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) > 0 {
		t.Errorf("there are files: %v, %v", entries, err)
	}
}

// doubled nests queries so that each uses the one before twice.
func doubled(levels int) string {
	text := "WITH q0 AS (SELECT 1 AS x)"
	for i := range levels {
		text += fmt.Sprintf(", q%d AS (SELECT x FROM q%d UNION ALL SELECT x FROM q%d)", i+1, i, i)
	}
	return text + fmt.Sprintf(" SELECT count(*) FROM q%d", levels)
}

// bombs are statements that would take time without end, or more memory than there is.
var bombs = []string{
	"WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
	"SELECT count(*) FROM order_lines a, order_lines b, order_lines c, order_lines d",
	"WITH RECURSIVE n(x) AS (SELECT zeroblob(9900) UNION ALL SELECT randomblob(9900) FROM n) SELECT count(x) FROM n",
	"WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + value FROM n, json_each('[1,2,3]')) SELECT count(*) FROM n",
	"WITH RECURSIVE n(x) AS (SELECT randomblob(9900) UNION ALL SELECT randomblob(9900) FROM n) SELECT x FROM n ORDER BY x",
	"CREATE TABLE t AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT zeroblob(9900) FROM n",
	"SELECT max(instr(x || a.id, y || b.id)) FROM (SELECT printf('%.*c', 9000, 'a') x, printf('%.*c', 4500, 'a') || 'b' y), order_lines a, order_lines b",
	"SELECT max(trim(x || a.id, y)) FROM (SELECT printf('%.*c', 9000, 'a') x, printf('%.*c', 800, 'b') || 'a' y), order_lines a, order_lines b",
}

func TestABombEndsAndItsMemoryStaysBounded(t *testing.T) {
	for _, text := range bombs {
		c, err := open()
		if err != nil {
			t.Fatal(err)
		}
		c.begin(t.Context(), MaxTime)
		result, err := c.run(text)
		if !errors.Is(err, ErrTime) && reason(err) == "" {
			t.Errorf("%s gives %s, %v", text, short(result), err)
		}
		if steps := c.watch.looks * stepsPerLook; steps > MaxSteps+stepsPerLook {
			t.Errorf("%s takes %d steps", text, steps)
		}
		if peak := c.heap.Peak(); peak > MaxHeapBytes {
			t.Errorf("%s takes %d bytes", text, peak)
		}
		c.close()
		if left := c.heap.Bytes(); left != 0 {
			t.Errorf("%s leaves %d bytes", text, left)
		}
	}
}

// The steps alone end a statement, on the fastest machine too.
func TestStepsAreBounded(t *testing.T) {
	w := &watch{}
	c := &conn{watch: w}
	c.begin(t.Context(), time.Hour)
	for range MaxSteps / stepsPerLook {
		if w.look() {
			t.Fatalf("stopped after %d steps", w.looks*stepsPerLook)
		}
	}
	if !w.look() || !w.overTime {
		t.Fatal("more steps than are allowed")
	}
}

// child is set in the process that TestEightBombsAtOnceStayWithinTheirMemory starts.
const child = "WEIR_SANDBOX_CHILD"

func TestEightBombsAtOnceStayWithinTheirMemory(t *testing.T) {
	if os.Getenv(child) != "" {
		eightBombs(t)
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("the most memory that a process had is read from /proc")
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), child+"=1")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, tail, found := strings.Cut(string(out), "peak kB ")
	first, _, _ := strings.Cut(tail, "\n")
	peak, err := strconv.Atoi(first)
	if !found || err != nil {
		t.Fatalf("no peak in %s", out)
	}
	t.Logf("at most %d MB", peak>>10)
	// A test binary alone has some 30 MB, built for the race detector 60.
	if bound := 100<<10 + MaxRuns*2*MaxHeapBytes>>10; peak > bound {
		t.Errorf("the process had %d kB, want at most %d", peak, bound)
	}
}

func eightBombs(t *testing.T) {
	s := New()
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for {
				result, err := s.Run(t.Context(), bombs[i])
				if errors.Is(err, ErrBusy) { // the others took their time
					continue
				}
				if !errors.Is(err, ErrTime) && reason(err) == "" {
					t.Errorf("%s gives %s, %v", bombs[i], short(result), err)
				}
				return
			}
		})
	}
	group.Wait()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); fields[0] == "VmHWM:" {
			fmt.Printf("\npeak kB %s\n", fields[1])
		}
	}
}

func TestAnAnswerIsCutByRowsAndByBytes(t *testing.T) {
	const numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT %d) "
	for _, row := range []struct {
		text      string
		rows      int
		truncated bool
	}{
		{fmt.Sprintf(numbers, MaxRows) + "SELECT x FROM n", MaxRows, false},
		{fmt.Sprintf(numbers, MaxRows+1) + "SELECT x FROM n", MaxRows, true},
		{"WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n", MaxRows, true},
		{"UPDATE order_lines SET quantity = 1 RETURNING id", MaxRows, true},
		{fmt.Sprintf(numbers, 52) + "SELECT printf('%.*c', 9990, 'x') FROM n", 52, false},
		{fmt.Sprintf(numbers, 53) + "SELECT printf('%.*c', 9990, 'x') FROM n", 52, true},
		{fmt.Sprintf(numbers, 9) + "SELECT printf('%.*c', 9990, char(1)) FROM n", 8, true}, // six bytes of JSON each
		{"SELECT " + strings.Repeat("zeroblob(9990),", 30) + "1", 0, true},
	} {
		result, err := patient().Run(t.Context(), row.text)
		if err != nil || len(result.Rows) != row.rows || result.Truncated != row.truncated {
			t.Errorf("%s\ngives %d rows, cut %t; %v, %s", row.text, len(result.Rows), result.Truncated, err, reason(err))
		}
		checkBounds(t, row.text, result)
	}
	wide := "WITH q AS (SELECT 1 AS \"" + strings.Repeat("\x01", 9000) + "\") SELECT * FROM q"
	for i := range 60 { // of the 64 tables that a join has at most
		wide += fmt.Sprintf(",q a%d", i)
	}
	if _, err := patient().Run(t.Context(), wide); !strings.Contains(reason(err), "The names of the columns are longer") {
		t.Errorf("names without end: %v, %s", err, reason(err))
	}
}

// checkBounds holds a result against what Run promises of every one.
func checkBounds(t *testing.T, text string, result Result) {
	t.Helper()
	size := 0
	for _, name := range result.Columns {
		size += len(name)
	}
	for _, row := range result.Rows {
		if len(row) != len(result.Columns) {
			t.Errorf("%q: a row of %d for %d columns", text, len(row), len(result.Columns))
		}
		for _, value := range row {
			size += len(value)
			if !value.IsValid() {
				t.Errorf("%q: a value is not JSON: %s", text, value)
			}
		}
	}
	if len(result.Rows) > MaxRows || size > MaxAnswerBytes || len(result.Columns) > MaxColumns {
		t.Errorf("%q: %d rows of %d columns, %d bytes", text, len(result.Rows), len(result.Columns), size)
	}
}

func TestTheCallersContextEndsAStatement(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, err := open()
	defer c.close()
	if err != nil {
		t.Fatal(err)
	}
	c.begin(ctx, time.Hour)
	cancel()
	if _, err := c.run(bombs[0]); !errors.Is(err, ErrTime) {
		t.Fatalf("error %v, want ErrTime", err)
	}
	if c.watch.looks != 1 {
		t.Errorf("it ended at the look %d, want the first", c.watch.looks)
	}
}

func TestWhoFindsNoTurnIsToldSo(t *testing.T) {
	s := New()
	for range MaxRuns {
		s.turns <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Run(ctx, "SELECT 1"); !errors.Is(err, ErrBusy) {
		t.Fatalf("error %v, want ErrBusy", err)
	}
	<-s.turns
	for range 3 { // a turn is given back, after a failure too
		if _, err := s.Run(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Run(t.Context(), "SELEC"); reason(err) == "" {
			t.Fatal(err)
		}
	}
}

// A newer SQLite may bring functions. Whoever updates it decides about them here and in functions.
func TestEveryFunctionIsAllowedOrRefusedOnPurpose(t *testing.T) {
	onPurpose := set(`bm25 fts5 fts5_get_locale fts5_insttoken fts5_locale fts5_source_id geopoly_area geopoly_bbox geopoly_blob
		geopoly_ccw geopoly_contains_point geopoly_debug geopoly_group_bbox geopoly_json geopoly_overlap geopoly_regular geopoly_svg
		geopoly_within geopoly_xform highlight load_extension match rtreecheck rtreedepth rtreenode snippet
		sqlite_compileoption_get sqlite_compileoption_used sqlite_log sqlite_offset sqlite_source_id`)
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("SELECT DISTINCT lower(name) FROM pragma_function_list")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	seen := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		seen[name] = true
		if functions[name] == onPurpose[name] {
			t.Errorf("%s is allowed: %t, and refused on purpose: %t", name, functions[name], onPurpose[name])
		}
	}
	if err := rows.Err(); err != nil || len(seen) < 100 {
		t.Fatalf("%d functions, %v", len(seen), err)
	}
	for name := range functions {
		if !seen[name] {
			t.Errorf("there is no function %s", name)
		}
	}
}

func FuzzRun(f *testing.F) {
	for _, text := range bombs[1:3] {
		f.Add(text)
	}
	for _, text := range []string{
		"SELECT * FROM orders", "UPDATE products SET stock = 0 RETURNING *", "SELECT 1; SELECT 2", "", "--", "SELECT X'00', 1e999, '\x00'",
		"WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 9) SELECT * FROM n", "PRAGMA user_version", "ATTACH 'x' AS y",
		"SELECT json_tree.* FROM json_tree('{\"a\":[1,2]}')", "CREATE TABLE t (a PRIMARY KEY, b AS (a || a)) STRICT", "VACUUM INTO 'x'",
		"ALTER TABLE products DROP COLUMN stock", "SELECT printf('%*d', 99999, 1)", "EXPLAIN QUERY PLAN SELECT 1", "REINDEX", doubled(3),
		"SELECT sum(id) OVER (PARTITION BY status ORDER BY id ROWS 3 PRECEDING) FROM orders", "INSERT INTO orders DEFAULT VALUES",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := New()
		s.maxTime /= 20 // or else there are a few tries a second
		result, err := s.Run(t.Context(), text)
		checkBounds(t, text, result)
		switch told := reason(err); {
		case err == nil && (result.Columns == nil || result.Rows == nil):
			t.Error("a result without columns or rows")
		case err != nil && told == "" && !errors.Is(err, ErrTime):
			t.Errorf("error %v", err)
		case len([]rune(told)) > maxReasonRunes+1:
			t.Errorf("a reason of %d bytes", len(told))
		}
	})
}
