package ratelimit_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the exported API to testdata/api.txt")

// Row F7. The file is what users rely on: a line that goes or changes breaks them, and belongs in CHANGELOG.md.
func TestTheExportedAPIIsTheOneThatIsWrittenDown(t *testing.T) {
	var got strings.Builder
	for _, dir := range []string{".", "ratehttp"} {
		got.WriteString(exported(t, dir))
	}
	golden := filepath.Join("testdata", "api.txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	gone, added := differences(string(want), got.String())
	for _, line := range gone {
		t.Errorf("no longer exported: %s", line)
	}
	for _, line := range added {
		t.Errorf("not in %s: %s", golden, line)
	}
	if t.Failed() {
		t.Log("if that is meant: go test ./lib/ratelimit -run ExportedAPI -update, and a line in CHANGELOG.md")
	}
}

// exported lists what the package in dir exports, one declaration on each line: functions, methods, types, fields of structs,
// methods of interfaces, constants and variables, with their types and values. The number before a constant is its place in
// its group, which is its value where that comes from iota.
func exported(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	var sources []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, source)
	}
	lines := list(t, files, sources)
	if len(lines) < 5 {
		t.Fatalf("only %d declarations in %s", len(lines), dir)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func list(t *testing.T, files *token.FileSet, sources []*ast.File) (lines []string) {
	t.Helper()
	name := sources[0].Name.Name
	all, err := doc.NewFromFiles(files, sources, name)
	if err != nil {
		t.Fatal(err)
	}
	add := func(prefix string, node any) {
		var text bytes.Buffer
		if err := printer.Fprint(&text, files, node); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, name+": "+prefix+regexp.MustCompile(`\s+`).ReplaceAllString(text.String(), " "))
	}
	functions := func(functions []*doc.Func) {
		for _, f := range functions {
			f.Decl.Body, f.Decl.Doc = nil, nil
			add("", f.Decl)
		}
	}
	values := func(word string, values []*doc.Value) {
		for _, value := range values {
			for place, spec := range value.Decl.Specs {
				for i, ident := range spec.(*ast.ValueSpec).Names {
					if ident.IsExported() {
						add(fmt.Sprintf("%s %d: ", word, place), one(spec.(*ast.ValueSpec), i))
					}
				}
			}
		}
	}
	functions(all.Funcs)
	values("const", all.Consts)
	values("var", all.Vars)
	for _, typ := range all.Types {
		functions(typ.Funcs)
		functions(typ.Methods)
		values("const", typ.Consts)
		values("var", typ.Vars)
		spec := typ.Decl.Specs[0].(*ast.TypeSpec)
		var members *ast.FieldList
		kind := ""
		switch of := spec.Type.(type) {
		case *ast.StructType:
			members, kind = of.Fields, "struct"
		case *ast.InterfaceType:
			members, kind = of.Methods, "interface"
		default:
			add("type ", spec)
			continue
		}
		lines = append(lines, name+": type "+typ.Name+" "+kind)
		for _, field := range members.List {
			for _, ident := range field.Names {
				if ident.IsExported() {
					tag := ""
					if field.Tag != nil {
						tag = field.Tag.Value + " "
					}
					add("type "+typ.Name+" "+kind+": "+ident.Name+" "+tag, field.Type)
				}
			}
			if len(field.Names) == 0 {
				add("type "+typ.Name+" "+kind+": ", field.Type)
			}
		}
	}
	return lines
}

// one is the declaration of the i-th name of a specification.
func one(spec *ast.ValueSpec, i int) *ast.ValueSpec {
	out := &ast.ValueSpec{Names: spec.Names[i : i+1], Type: spec.Type}
	if i < len(spec.Values) {
		out.Values = spec.Values[i : i+1]
	}
	return out
}

func differences(want, got string) (gone, added []string) {
	wanted, exported := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, line := range wanted {
		if !slices.Contains(exported, line) {
			gone = append(gone, line)
		}
	}
	for _, line := range exported {
		if !slices.Contains(wanted, line) {
			added = append(added, line)
		}
	}
	return gone, added
}

func TestAChangeOfTheExportedAPIIsSeen(t *testing.T) {
	const source = `package p
type T struct { A int; b int }
type I interface { M(n int) error }
const C, d = 1, 2
const (
	Zero = iota
	One
	Two
)
var E error
func F(n int) {}
func (T) G() string { return "" }
func (T) h() {}
`
	listing := func(source string) string {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "p.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(list(t, files, []*ast.File{file}), "\n")
	}
	before := listing(source)
	for change, seen := range map[string]bool{
		"A int;->A int64;": true, "A int;->": true, "b int->b, c int": false, "One\n\tTwo->Two\n\tOne": true, "M(n int)->M(n, m int)": true, "C, d = 1, 2->C, d = 3, 2": true,
		"C, d = 1, 2->C, d = 1, 3": false, "E error->E, E2 error": true, "F(n int)->F(n ...int)": true, "() string { return \"\" }->() {}": true,
		"func (T) h() {}->": false, "func (T) h() {}->func (T) H() {}": true, "func (T) G->func (*T) G": true,
	} {
		from, to, _ := strings.Cut(change, "->")
		if !strings.Contains(source, from) {
			t.Fatalf("nothing to change: %s", from)
		}
		gone, added := differences(before, listing(strings.Replace(source, from, to, 1)))
		if (len(gone)+len(added) > 0) != seen {
			t.Errorf("%s: gone %q, added %q", change, gone, added)
		}
	}
}
