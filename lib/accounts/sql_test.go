package accounts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Case B15: drivers drop surplus arguments and invent missing ones without a word, so the source is checked: every call names a
// constant with a single statement, as many plain placeholders as arguments, and no numbered ones.
func TestEveryStatementHasAsManyPlaceholdersAsArguments(t *testing.T) {
	for _, test := range []struct {
		folder string
		calls  int // at least, so that the check can't pass for having found nothing
	}{{".", 18}, {"../codes", 5}, {"../ailog", 4}, {"../evaluations", 2}, {"../mail", 2}, {"../partners", 5}, {"../stuffing", 11}} {
		paths, err := filepath.Glob(filepath.Join(test.folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var files []*ast.File
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		calls, faults := checkStatements(files)
		if calls < test.calls {
			t.Errorf("%s: %d calls were found, there are at least %d", test.folder, calls, test.calls)
		}
		for _, fault := range faults {
			t.Errorf("%s: %s", test.folder, fault)
		}
	}
}

func TestTheCheckOfStatementsFindsFaults(t *testing.T) {
	const declarations = "package p\nconst one = `SELECT ? -- why ?`\nconst two = `SELECT ?; SELECT ?`\nconst numbered = `SELECT ?1`\n"
	for call, want := range map[string]int{
		"db.QueryRowContext(ctx, one, 1)":       0,
		"db.QueryRowContext(ctx, one)":          1,
		"db.ExecContext(ctx, one, 1, 2)":        1,
		"db.ExecContext(ctx, one, args...)":     1,
		"db.QueryContext(ctx, numbered, 1)":     1,
		"db.QueryContext(ctx, two, 1, 2)":       1,
		"db.ExecContext(ctx, `SELECT ` + x, 1)": 1,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", declarations+"func f() { "+call+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if calls, faults := checkStatements([]*ast.File{file}); calls != 1 || len(faults) != want {
			t.Errorf("%s: %d calls, faults %q, want %d", call, calls, faults, want)
		}
	}
}

var (
	sqlComment          = regexp.MustCompile(`--.*`)
	databaseCall        = regexp.MustCompile(`^(Exec|Query|QueryRow|Prepare)Context$`)
	numberedPlaceholder = regexp.MustCompile(`\?\d|[:@$]\w`)
)

func checkStatements(files []*ast.File) (calls int, faults []string) {
	constants := map[string]string{}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.ValueSpec); ok && len(spec.Names) == 1 && len(spec.Values) == 1 {
				if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil {
						constants[spec.Names[0].Name] = sqlComment.ReplaceAllString(text, "")
					}
				}
			}
			return true
		})
	}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !databaseCall.MatchString(method.Sel.Name) || len(call.Args) < 2 {
				return true
			}
			calls++
			name, ok := call.Args[1].(*ast.Ident)
			if !ok {
				faults = append(faults, "a statement is not a constant")
				return true
			}
			statement := constants[name.Name]
			switch {
			case statement == "":
				faults = append(faults, name.Name+" is not a constant")
			case strings.Contains(statement, ";"):
				faults = append(faults, name.Name+" holds several statements")
			case numberedPlaceholder.MatchString(statement):
				faults = append(faults, name.Name+" has numbered or named placeholders")
			case call.Ellipsis.IsValid() || strings.Count(statement, "?") != len(call.Args)-2:
				faults = append(faults, name.Name+" has another number of placeholders than of arguments")
			}
			return true
		})
	}
	return calls, faults
}
