package main

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/testkit/repo"
)

// A row that names a test which isn't there would claim what nothing shows.
func TestEveryRequirementNamesATestThatExistsOrSaysNotYet(t *testing.T) {
	rows := table(t, "docs/requirements.md")
	if len(rows) < 60 {
		t.Fatalf("only %d rows", len(rows))
	}
	for _, fault := range judgeTable(rows, sources(t)) {
		t.Error("requirements.md: " + fault)
	}
}

func TestEveryCaseThatATestCitesHasALineAndTheLineNamesTestsThatExist(t *testing.T) {
	lines, rows, sources := table(t, "docs/cases.md"), table(t, "docs/requirements.md"), sources(t)
	for _, fault := range judgeTable(lines, sources) {
		t.Error("cases.md: " + fault)
	}
	cited := map[string]bool{}
	for name, text := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, comment := range file.Comments {
			cites := citations(comment.Text())
			for _, id := range cites.cases {
				cited[id] = true
				if !slices.ContainsFunc(lines, func(l line) bool { return l.id == id }) {
					t.Errorf("%s cites case %s, which has no line in docs/cases.md", name, id)
				}
			}
			for _, id := range cites.rows {
				if !slices.ContainsFunc(rows, func(l line) bool { return l.id == id }) {
					t.Errorf("%s cites row %s, which isn't in docs/requirements.md", name, id)
				}
			}
			for _, id := range cites.neither {
				t.Errorf("%s cites %s: write case %[2]s or row %[2]s", name, id)
			}
		}
	}
	for _, l := range lines {
		if !cited[l.id] {
			t.Errorf("cases.md: no test cites case %s", l.id)
		}
	}
}

// line is one of a table whose first column is an id and whose last one says which tests show it.
type line struct{ id, shownBy string }

func table(t *testing.T, name string) (lines []line) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return parseTable(string(text))
}

func parseTable(text string) (lines []line) {
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-F]\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(text, -1) {
		lines = append(lines, line{m[1], m[2]})
	}
	return lines
}

// judgeTable says what is wrong with a table, given all Go sources by name.
func judgeTable(lines []line, sources map[string]string) (faults []string) {
	seen := map[string]bool{}
	for _, l := range lines {
		if seen[l.id] {
			faults = append(faults, l.id+" is there twice")
		}
		seen[l.id] = true
		// What is no test's own is a part of the suite for stores.
		names := regexp.MustCompile("`(?:Test|storetest\\.)([A-Za-z0-9]+)`").FindAllStringSubmatch(l.shownBy, -1)
		if len(names) == 0 && !strings.HasPrefix(l.shownBy, "not yet") {
			faults = append(faults, l.id+" names no test and doesn't say not yet: "+l.shownBy)
		}
		for _, m := range names {
			function := strings.TrimPrefix(strings.Trim(m[0], "`"), "storetest.")
			there := false
			for _, text := range sources {
				there = there || strings.Contains(text, "\nfunc "+function+"(")
			}
			if !there {
				faults = append(faults, l.id+" names "+function+", which isn't there")
			}
		}
	}
	return faults
}

// cited are the ids in a comment: those that follow the word case, those that follow the word row, and those that follow
// neither, which might be the one or the other.
type cited struct{ cases, rows, neither []string }

// citations finds them in lists too, such as "Row B3; cases A01, A02".
func citations(comment string) (c cited) {
	id := regexp.MustCompile(`^[A-F][0-9]{1,2}$`)
	list := &c.neither
	for _, word := range regexp.MustCompile(`\w+|[^\w\s]`).FindAllString(comment, -1) {
		switch {
		case id.MatchString(word):
			*list = append(*list, word)
		case strings.EqualFold(word, "case") || strings.EqualFold(word, "cases"):
			list = &c.cases
		case strings.EqualFold(word, "row") || strings.EqualFold(word, "rows"):
			list = &c.rows
		case word != "," && word != "and" && word != "to":
			list = &c.neither
		}
	}
	return c
}

func TestCitationsAreToldApartAndFaultsOfATableAreFound(t *testing.T) {
	for text, want := range map[string]cited{
		"Rows B1, B3; cases A01, A02: as deployed":            {cases: []string{"A01", "A02"}, rows: []string{"B1", "B3"}},
		"rows C1 to C5, from both sides":                      {rows: []string{"C1", "C5"}},
		"as they are. Case A10 and C13":                       {cases: []string{"A10", "C13"}},
		"A10: the window, case D16":                           {cases: []string{"D16"}, neither: []string{"A10"}},
		"in the case of a SHA256 or an IPv6 there is no B100": {},
	} {
		got := citations(text)
		if !slices.Equal(got.cases, want.cases) || !slices.Equal(got.rows, want.rows) || !slices.Equal(got.neither, want.neither) {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
	sources := map[string]string{"a_test.go": "package a\n\nfunc TestGood(t *testing.T) {}\n\nfunc part(t *testing.T) {}\n"}
	for text, want := range map[string]int{
		"| A1 | x | `TestGood`, `storetest.part` |":     0,
		"| A1 | x | not yet |":                          0,
		"| A1 | x | `TestGone` |":                       1,
		"| A1 | x | `storetest.gone`, `TestGood` |":     1,
		"| A1 | x | soon |":                             1,
		"| A1 | x | not yet |\n| A1 | y | `TestGood` |": 1,
	} {
		if got := judgeTable(parseTable(text), sources); len(got) != want {
			t.Errorf("%q: got %q, want %d faults", text, got, want)
		}
	}
}

// The README's program is compiled and run as an example, so it has to be the same: line by line, in its order.
func TestTheReadmesProgramIsTheExample(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(filepath.Join("..", "..", "lib", "ratelimit", "sqlstore", "example_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, program, found := strings.Cut(string(readme), "\n```go\n")
	program, _, ended := strings.Cut(program, "\n```\n")
	if !found || !ended {
		t.Fatal("there is none")
	}
	rest := string(example)
	for wanted := range strings.Lines(program) {
		if _, rest, found = strings.Cut(rest, strings.TrimRight(wanted, "\n")+"\n"); !found {
			t.Fatalf("example_test.go lacks %q, or has it before the line above", wanted)
		}
	}
}

// sources are the texts of all Go files of the project by their names.
func sources(t *testing.T) map[string]string {
	t.Helper()
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := repo.Files(root)
	if err != nil {
		t.Fatalf("git is asked which files are the project's, so this needs git and a clone, not a copy of the files without .git: %v", err)
	}
	all := map[string]string{}
	for _, name := range files {
		if filepath.Ext(name) != ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

// document is what openapi.json and api.md both tell: of each method and path the statuses that are its own.
type document map[string][]string

// common are the statuses that api.md explains once for all routes.
var common = []string{"400", "403", "413", "429", "500", "503"}

func parseDescription(text []byte) (document, error) {
	var description struct {
		Paths map[string]map[string]struct {
			Responses map[string]any
		}
	}
	if err := json.Unmarshal(text, &description); err != nil {
		return nil, err
	}
	d := document{}
	for path, methods := range description.Paths {
		for method, operation := range methods {
			own := slices.DeleteFunc(slices.Sorted(maps.Keys(operation.Responses)), func(s string) bool { return slices.Contains(common, s) })
			d[strings.ToUpper(method)+" "+path] = own
		}
	}
	return d, nil
}

// parseAPI reads the tables of routes of api.md. A status is a number of three digits at the beginning of an answer.
func parseAPI(text string) document {
	d := document{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^`]*)` \\|.*\\| (.*) \\|$").FindAllStringSubmatch(text, -1) {
		statuses := []string{}
		for _, answer := range strings.Split(row[2], " · ") {
			if status := regexp.MustCompile(`^\d{3}\b`).FindString(answer); status != "" {
				statuses = append(statuses, status)
			}
		}
		slices.Sort(statuses)
		d[row[1]] = statuses
	}
	return d
}

// differences tell in which routes two documents differ.
func differences(described, told document) (faults []string) {
	for route, statuses := range described {
		if got, there := told[route]; !there {
			faults = append(faults, route+" is missing")
		} else if !slices.Equal(got, statuses) {
			faults = append(faults, fmt.Sprintf("%s has %v: want %v", route, got, statuses))
		}
	}
	for route := range told {
		if _, there := described[route]; !there {
			faults = append(faults, route+" is no route")
		}
	}
	return faults
}

func TestTheAPIForPeopleHasTheRoutesAndStatusesOfTheDescription(t *testing.T) {
	description, err := os.ReadFile(filepath.Join("..", "..", "public", "openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	described, err := parseDescription(description)
	if err != nil || len(described) < 10 {
		t.Fatalf("%d operations, %v", len(described), err)
	}
	for _, fault := range differences(described, parseAPI(string(text))) {
		t.Error("api.md: " + fault)
	}
}

func TestADifferenceBetweenTheAPIForPeopleAndTheDescriptionIsFound(t *testing.T) {
	described, err := parseDescription([]byte(`{"paths": {"/api/a": {"get": {"responses": {"200": {}, "401": {}, "429": {}}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	const good = "| `GET /api/a` | `?x=` | 200 `{x}`, 1 to 100 · 401 · * |\n"
	for text, want := range map[string]int{
		good:                                   0,
		"":                                     1,
		"| `POST /api/a` | x | 200 · 401 |\n":  2,
		"| `GET /api/a` | x | 200 · * |\n":     1,
		good + "| `GET /api/b` | x | 200 |\n":  1,
		"| `GET /api/a` | x | 401 · 200 |\n":   0,
		"| `GET /api/a` | x | 200, or 401 |\n": 1,
	} {
		if got := differences(described, parseAPI(text)); len(got) != want {
			t.Errorf("%q: got %q, want %d", text, got, want)
		}
	}
}

// What Vercel makes of the button is out of reach; that it asks for settings that exist, and names this repository, is not.
func TestTheDeployButtonAsksForSettingsOfTheTable(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	button := regexp.MustCompile(`\]\((https://vercel\.com/new/clone\?[^)]*)\)`).FindSubmatch(readme)
	if button == nil {
		t.Fatal("there is none")
	}
	u, err := url.Parse(string(button[1]))
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if repository := strings.TrimPrefix(u.Query().Get("repository-url"), "https://"); !strings.HasPrefix(string(module), "module "+repository+"\n") {
		t.Errorf("it copies %q", repository)
	}
	for _, name := range strings.Split(u.Query().Get("env"), ",") {
		if !strings.Contains(string(readme), "\n| `"+name+"` |") {
			t.Errorf("it asks for %q", name)
		}
	}
	var stores []struct{ Type, IntegrationSlug, ProductSlug, Protocol string }
	if err := json.Unmarshal([]byte(u.Query().Get("stores")), &stores); err != nil || len(stores) != 1 || stores[0].IntegrationSlug != "tursocloud" || stores[0].Protocol != "storage" {
		t.Errorf("its stores are %+v, %v", stores, err)
	}
}

// The tests of packages that run mostly without the race detector run under it where goroutines work at once, and every word of the
// pattern that names them names one.
func TestTheTestsWithGoroutinesRunUnderTheRaceDetector(t *testing.T) {
	pattern := regexp.MustCompile(racedElsewhere)
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	goroutine := regexp.MustCompile(`\.Go\(func|\bgo func`)
	var all []string
	for _, directory := range packagesRacedElsewhere {
		files, err := filepath.Glob(filepath.Join("../..", directory, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", directory, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range strings.Split(string(text), "\n}\n") { // a function, with what is before it
				name := function.FindStringSubmatch(part)
				if name == nil {
					continue
				}
				all = append(all, name[1])
				if goroutine.MatchString(part) && !pattern.MatchString(name[1]) {
					t.Errorf("%s: %s has goroutines and no word of racedElsewhere", file, name[1])
				}
			}
		}
	}
	for _, word := range strings.Split(racedElsewhere, "|") {
		if !slices.ContainsFunc(all, func(name string) bool { return strings.Contains(name, word) }) {
			t.Errorf("no test has the word %s", word)
		}
	}
}
