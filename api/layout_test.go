package handler

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirlimits/weir/lib/testkit/repo"
)

// These tests hold the tree to what Vercel's Go builder and vercel dev take. Both rewrite sources as text, so much that is
// good Go breaks there, most of it only in a deployment.

const (
	modulePath = "github.com/weirlimits/weir"

	// maxFunctions is what a deployment on the Hobby plan may hold.
	maxFunctions = 12
)

// packageText is how vercel dev finds the package clause that it replaces: the first match wins.
var packageText = regexp.MustCompile(`\bpackage\W+\S+\b`)

// judge returns what is wrong with a file of api/, and the name of its handler.
func judge(file string, src []byte) (handler string, faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	// Case D17: a dynamic segment's value can't be told from a query parameter.
	if strings.ContainsAny(file, "[]") {
		fault("the file name has a dynamic segment")
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments)
	if err != nil {
		fault("%v", err)
		return "", faults
	}
	if f.Name.Name != "handler" {
		fault("package %s, must be handler", f.Name.Name)
	}
	// Case D07.
	if m := packageText.FindIndex(src); m == nil || m[0] != fset.Position(f.Package).Offset {
		fault("the first text that looks like a package clause is not the clause")
	}
	// Case D06: files to embed are not there under vercel dev; a build constraint may leave the function out.
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:") || strings.HasPrefix(c.Text, "// +build") {
				fault("directive %s", c.Text)
			}
		}
	}
	// Cases D01, D03: the builder's main package is outside this module, and its analysis knows net/http by that name only.
	for _, imp := range f.Imports {
		path := strings.Trim(imp.Path.Value, `"`)
		if path != "net/http" && path != modulePath+"/lib/app" {
			fault("import of %s, must be net/http or %s/lib/app", path, modulePath)
		}
		if imp.Name != nil {
			fault("import of %s as %s, must keep its name", path, imp.Name.Name)
		}
	}
	// Cases D02, D03, D05: one handler and nothing else.
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if handler != "" || !isHandler(d) {
				fault("func %s, must be the only one and an exported func(http.ResponseWriter, *http.Request)", d.Name.Name)
				continue
			}
			handler = d.Name.Name
		case *ast.GenDecl:
			if d.Tok != token.IMPORT {
				fault("%s declaration, must be none", d.Tok)
			}
		}
	}
	if handler == "" {
		fault("no handler")
		return "", faults
	}
	if !strings.HasSuffix(handler, "Handler") || handler == "Handler" {
		fault("handler %s, must be named SomethingHandler", handler)
	}
	// Case D04: the builder renames text, also in comments and string literals.
	if n := strings.Count(string(src), handler); n != 1 {
		fault("%s occurs %d times as text, must be once", handler, n)
	}
	return handler, faults
}

func isHandler(d *ast.FuncDecl) bool {
	if d.Recv != nil || d.Type.TypeParams != nil || d.Type.Results != nil || !d.Name.IsExported() {
		return false
	}
	var params []string
	for _, field := range d.Type.Params.List {
		for range max(1, len(field.Names)) {
			params = append(params, typeName(field.Type))
		}
	}
	return slices.Equal(params, []string{"http.ResponseWriter", "*http.Request"})
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return "*" + typeName(e.X)
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

const goodFile = `// Package handler has the functions.
package handler

import (
	"net/http"

	"github.com/weirlimits/weir/lib/app"
)

// Signs in and out.
func SignInHandler(w http.ResponseWriter, r *http.Request) { app.SignIn(w, r) }
`

func TestTheJudgeOfFilesAcceptsAGoodOneAndFindsEachFault(t *testing.T) {
	if handler, faults := judge("sign-in.go", []byte(goodFile)); handler != "SignInHandler" || faults != nil {
		t.Errorf("the good file: handler %q, faults %q", handler, faults)
	}
	replace := func(old, new string) string {
		if !strings.Contains(goodFile, old) {
			t.Fatalf("%q is not in the good file", old)
		}
		return strings.Replace(goodFile, old, new, 1)
	}
	body := "{ app.SignIn(w, r) }"
	for name, c := range map[string]struct{ file, src, want string }{
		"syntax error":       {"a.go", replace("func SignIn", "fun SignIn"), "expected"},
		"other package":      {"a.go", replace("package handler", "package api"), "must be handler"},
		"package in comment": {"a.go", "// This package signs in.\n" + goodFile, "package clause"},
		"embed":              {"a.go", goodFile + "\n//go:embed x\n", "directive"},
		"build constraint":   {"a.go", "//go:build linux\n\n" + goodFile, "directive"},
		"internal import":    {"a.go", replace("/lib/app", "/lib/app/internal/x"), "must be net/http or"},
		"standard import":    {"a.go", replace(`"net/http"`, `"net/http"`+"\n\t\"os\""), "must be net/http or"},
		"alias":              {"a.go", replace(`"net/http"`, `http "net/http"`), "must keep its name"},
		"dot import":         {"a.go", replace(`"net/http"`, `. "net/http"`), "must keep its name"},
		"helper":             {"a.go", goodFile + "\nfunc help() {}\n", "func help"},
		"exported helper":    {"a.go", goodFile + "\nfunc Limited(w http.ResponseWriter, r *http.Request) bool { return true }\n", "func Limited"},
		"second handler":     {"a.go", goodFile + "\nfunc OtherHandler(w http.ResponseWriter, r *http.Request) {}\n", "func OtherHandler"},
		"init":               {"a.go", goodFile + "\nfunc init() {}\n", "func init"},
		"method":             {"a.go", replace("func SignIn", "func (x X) SignIn"), "no handler"},
		"handler as var":     {"a.go", replace("func SignInHandler(w http.ResponseWriter, r *http.Request) "+body, "var SignInHandler = app.SignIn"), "var declaration"},
		"constant":           {"a.go", goodFile + "\nconst x = 1\n", "const declaration"},
		"result":             {"a.go", replace("*http.Request) {", "*http.Request) error {"), "no handler"},
		"other parameter":    {"a.go", replace("*http.Request", "http.Request"), "no handler"},
		"unexported":         {"a.go", replace("SignInHandler", "signInHandler"), "no handler"},
		"other name":         {"a.go", replace("SignInHandler", "SignIn2"), "must be named"},
		"bare name":          {"a.go", replace("SignInHandler", "Handler"), "must be named"},
		"name in comment":    {"a.go", replace("// Signs", "// SignInHandler signs"), "as text"},
		"name in string":     {"a.go", replace(body, `{ w.Write([]byte("the SignInHandler ran")) }`), "as text"},
		"name in code":       {"a.go", replace("app.SignIn(", "app.SignInHandler("), "as text"},
		"dynamic segment":    {"[id].go", goodFile, "dynamic"},
	} {
		if _, faults := judge(c.file, []byte(c.src)); !strings.Contains(strings.Join(faults, "\n"), c.want) {
			t.Errorf("%s: faults %q, want one with %q", name, faults, c.want)
		}
	}
}

// functionFiles lists the files of api/ that become functions.
func functionFiles(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := slices.DeleteFunc(found, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	if len(files) == 0 {
		t.Fatal("no functions in api/")
	}
	return files
}

// Cases D02, D03, D04, D05, D07, D17.
func TestEveryFileIsOneFunctionAsTheBuilderTakesIt(t *testing.T) {
	files := functionFiles(t)
	if len(files) > maxFunctions {
		t.Errorf("%d functions, must be %d at most", len(files), maxFunctions)
	}
	owner := make(map[string]string)
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		handler, faults := judge(file, src)
		for _, fault := range faults {
			t.Errorf("%s: %s", file, fault)
		}
		if other, taken := owner[handler]; taken && handler != "" {
			t.Errorf("%s and %s both have %s", other, file, handler)
		}
		owner[handler] = file
	}
}

// Case D05: the builder takes files in folders below api/ for functions too.
func TestTheFolderHasNoFolderInIt(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() || filepath.Ext(e.Name()) != ".go" {
			t.Errorf("%s, must be a Go file", e.Name())
		}
	}
}

// run runs a command in dir and returns what it printed.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Cases B22, D01: every function builds without cgo after the builder's rewriting, where api/ belongs to a module named
// handler and everything else to this one.
func TestEveryFunctionBuildsAfterTheBuildersRewriting(t *testing.T) {
	root, dir := root(t), t.TempDir()
	files, err := repo.Deployed(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Copy(root, dir, files); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "go.mod"), strings.Replace(string(mod), "module "+modulePath, "module handler", 1)+
		"require "+modulePath+" v0.0.0-unpublished\nreplace "+modulePath+" => ./\n")
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=-mod=mod"}
	for _, file := range functionFiles(t) {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		handler, _ := judge(file, src)
		renamed := handler + "_api_" + strings.NewReplacer("-", "_", ".", "_").Replace(file)
		write(t, filepath.Join(dir, "api", file), strings.ReplaceAll(string(src), " "+handler, " "+renamed))
		write(t, filepath.Join(dir, "main.go"), `package main

import (
	"net/http"

	"github.com/vercel/go-bridge/go/bridge"

	"handler/api"
)

func main() { bridge.Start(http.HandlerFunc(handler.`+renamed+`)) }
`)
		// Naming a second package makes go build check the main package without linking it; vercel build links it.
		run(t, dir, env, "go", "build", ".", "./api")
		write(t, filepath.Join(dir, "api", file), string(src))
	}
}

// Case D06: vercel dev compiles the one file alone, as package main beside a main function of its own.
func TestEveryFileCompilesAlone(t *testing.T) {
	root := root(t)
	for _, file := range functionFiles(t) {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		handler, _ := judge(file, src)
		at := packageText.FindIndex(src)
		if at == nil {
			t.Errorf("%s has no package clause", file)
			continue
		}
		write(t, filepath.Join(dir, "entrypoint.go"), string(src[:at[0]])+"package main"+string(src[at[1]:]))
		write(t, filepath.Join(dir, "main.go"), "package main\n\nimport \"net/http\"\n\n"+
			"func main() { http.HandleFunc(\"/\", "+handler+") }\n")
		// go vet type-checks the files as one package of this module, without linking.
		run(t, root, nil, "go", "vet", "-composites=false", filepath.Join(dir, "entrypoint.go"), filepath.Join(dir, "main.go"))
	}
}

// judgeModule returns what is wrong with a go.mod file, given as go mod edit -json prints it.
func judgeModule(mod string) (faults []string) {
	var m struct {
		Module    struct{ Path string }
		Go        string
		Toolchain string
		Require   []struct{ Path string }
		Replace   []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal([]byte(mod), &m); err != nil {
		return []string{err.Error()}
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if host, _, ok := strings.Cut(m.Module.Path, "/"); !ok || !strings.Contains(host, ".") {
		fault("module %s, must be a full path", m.Module.Path)
	}
	if m.Toolchain == "" {
		fault("no toolchain, without which vercel dev looks for a newer Go")
	}
	if m.Go == "" {
		fault("no go version")
	}
	if len(m.Replace) != 0 {
		fault("replaces %s, must replace nothing", m.Replace[0].Old.Path)
	}
	bridge := false
	for _, r := range m.Require {
		bridge = bridge || r.Path == "github.com/vercel/go-bridge"
		if strings.Contains(r.Path, m.Module.Path) {
			fault("requires %s, which contains the module's own path", r.Path)
		}
	}
	if !bridge {
		fault("doesn't pin github.com/vercel/go-bridge")
	}
	return faults
}

func TestTheJudgeOfGoModFindsEachFault(t *testing.T) {
	for want, mod := range map[string]string{
		"invalid character": `x`,
		"full path":         `{"Module": {"Path": "weir"}}`,
		"no toolchain":      `{"Module": {"Path": "example.org/weir"}}`,
		"no go version":     `{"Module": {"Path": "example.org/weir"}}`,
		"replace nothing":   `{"Replace": [{"Old": {"Path": "example.org/x"}}]}`,
		"own path":          `{"Module": {"Path": "example.org/weir"}, "Require": [{"Path": "example.org/weir-more"}]}`,
		"doesn't pin":       `{"Module": {"Path": "example.org/weir"}, "Require": [{"Path": "example.org/x"}]}`,
	} {
		if faults := strings.Join(judgeModule(mod), "\n"); !strings.Contains(faults, want) {
			t.Errorf("%s: faults %q, want one with %q", mod, faults, want)
		}
	}
}

// Case D08.
func TestGoModIsAsTheBuilderNeedsIt(t *testing.T) {
	for _, fault := range judgeModule(run(t, root(t), nil, "go", "mod", "edit", "-json")) {
		t.Errorf("go.mod %s", fault)
	}
}

// Cases D08, D10: files whose mere presence changes what a deployment is.
func TestTheRootHoldsOnlyWhatADeploymentExpects(t *testing.T) {
	root := root(t)
	unwanted := []string{"*.go", "cmd/api/main.go", "cmd/server/main.go", "package.json", "go.work", "vendor"}
	for _, pattern := range unwanted {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			t.Errorf("%s must not exist", f)
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, "public"))
	if err != nil || len(entries) == 0 {
		t.Errorf("public/ holds %d files (%v): without any, the sources would be published", len(entries), err)
	}
}

// judgeConfig returns what is wrong with a vercel.json.
func judgeConfig(config string) (faults []string) {
	var c map[string]any
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return []string{err.Error()}
	}
	if framework, ok := c["framework"]; !ok || framework != nil {
		faults = append(faults, fmt.Sprintf("framework %v, must be null", framework))
	}
	functions, _ := c["functions"].(map[string]any)
	for pattern, f := range functions {
		settings, _ := f.(map[string]any)
		if runtime, ok := settings["runtime"]; ok {
			faults = append(faults, fmt.Sprintf("runtime %v for %s, must be none", runtime, pattern))
		}
	}
	crons, _ := c["crons"].([]any)
	for _, each := range crons {
		cron, _ := each.(map[string]any)
		path, _, _ := strings.Cut(fmt.Sprint(cron["path"]), "?")
		if _, err := os.Stat(strings.TrimPrefix(path, "/api/") + ".go"); err != nil {
			faults = append(faults, fmt.Sprintf("cron of %s, which is no function", path))
		}
		// What the Hobby plan takes; with more, the deployment fails.
		if schedule := fmt.Sprint(cron["schedule"]); !regexp.MustCompile(`^\d+ \d+ `).MatchString(schedule) {
			faults = append(faults, fmt.Sprintf("cron at %s, must be once a day at most", schedule))
		}
	}
	return faults
}

// Case D09.
func TestTheDeploymentsConfigurationHasNoFrameworkAndNoRuntime(t *testing.T) {
	for want, config := range map[string]string{
		"unexpected end": `{`,
		"must be null":   `{}`,
		"framework go":   `{"framework": "go"}`,
		"must be none":   `{"framework": null, "functions": {"api/*.go": {"runtime": "go1.x"}}}`,
		"no function":    `{"framework": null, "crons": [{"path": "/api/sweep", "schedule": "0 4 * * *"}]}`,
		"once a day":     `{"framework": null, "crons": [{"path": "/api/limits", "schedule": "0 * * * *"}]}`,
	} {
		if faults := strings.Join(judgeConfig(config), "\n"); !strings.Contains(faults, want) {
			t.Errorf("%s: faults %q, want one with %q", config, faults, want)
		}
	}
	config, err := os.ReadFile(filepath.Join(root(t), "vercel.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range judgeConfig(string(config)) {
		t.Errorf("vercel.json: %s", fault)
	}
}

// importFault returns why the package from may not depend on the package to, or "". Both are paths within the module, and
// paths of other modules stand as they are.
func importFault(from, to string, standard bool) string {
	below := func(path string, dirs ...string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
	}
	tests := below(from, "lib/testkit", "scripts", "lib/ratelimit/storetest")
	switch {
	case from == to || standard:
		return ""
	case from == "lib/ratelimit":
		return "the limiter uses the standard library only"
	case below(from, "lib/hrana") && below(to, "lib"):
		return "the client of servers knows nothing of Weir"
	case below(from, "lib/ratelimit/sqlstore") && !below(to, "lib/ratelimit", "lib/hrana", "github.com/go-json-experiment/json"):
		return "the SQL store uses the limiter, the client of servers and the standard library only"
	case below(to, "lib/testkit") && !tests:
		return "test support stays out of what is deployed"
	case below(to, "api", "scripts") && !below(from, "scripts"):
		return "nothing builds on the functions or the commands"
	case below(to, "lib/app") && !below(from, "lib/app", "api", "scripts"):
		return "only the functions and the commands use the wiring"
	case below(to, "lib/web") && !below(from, "lib/web", "lib/app", "api", "scripts"):
		return "no rule of the application knows HTTP"
	case below(from, "lib/web") && below(to, "lib") && !below(to, "lib/web", "lib/ratelimit"):
		return "the HTTP layer knows the limiter only"
	}
	return ""
}

func TestImportsPointOneWay(t *testing.T) {
	for _, c := range []struct {
		from, to string
		wrong    bool
	}{
		{"lib/ratelimit", "modernc.org/sqlite", true},
		{"lib/ratelimit", "lib/database", true},
		{"lib/ratelimit/sqlstore", "lib/ratelimit", false},
		{"lib/ratelimit/sqlstore", "lib/database", true},
		{"lib/ratelimit/sqlstore", "lib/hrana", false},
		{"lib/hrana", "lib/ratelimit", true},
		{"lib/ratelimit/sqlstore", "github.com/tursodatabase/libsql-client-go/libsql", true},
		{"lib/codes", "lib/ratelimit", false},
		{"lib/codes", "lib/web", true},
		{"lib/codes", "lib/app", true},
		{"lib/codes", "lib/testkit/hrana", true},
		{"lib/web", "lib/ratelimit", false},
		{"lib/web", "lib/codes", true},
		{"lib/app", "lib/codes", false},
		{"lib/app", "api", true},
		{"api", "lib/app", false},
		{"scripts/dev", "api", false},
		{"lib/testkit/vercel", "lib/testkit/repo", false},
	} {
		if got := importFault(c.from, c.to, false); (got != "") != c.wrong {
			t.Errorf("the judge says %q of %s importing %s", got, c.from, c.to)
		}
	}

	std := make(map[string]bool)
	for line := range strings.Lines(run(t, root(t), nil, "go", "list", "-deps", "-f", "{{if .Standard}}{{.ImportPath}}{{end}}", "./...")) {
		std[strings.TrimSpace(line)] = true
	}
	packages := 0
	for line := range strings.Lines(run(t, root(t), nil, "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...")) {
		fields := strings.Fields(line)
		from := strings.TrimPrefix(fields[0], modulePath+"/")
		packages++
		for _, dep := range fields[1:] {
			if fault := importFault(from, strings.TrimPrefix(dep, modulePath+"/"), std[dep]); fault != "" {
				t.Errorf("%s depends on %s: %s", from, dep, fault)
			}
		}
	}
	if packages < 3 || !std["net/http"] {
		t.Errorf("judged %d packages against %d of the standard library", packages, len(std))
	}
}

// What git leaves out, such as the local database, its secret and backups, is not uploaded by a deployment either: the CLI reads
// .vercelignore alone.
func TestWhatGitLeavesOutIsNotDeployed(t *testing.T) {
	patterns := func(name string) (all []string) {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
		return all
	}
	ignored, deployed := patterns(".gitignore"), patterns(".vercelignore")
	for _, pattern := range ignored {
		if !slices.Contains(deployed, pattern) {
			t.Errorf("%s is in .gitignore and not in .vercelignore", pattern)
		}
	}
	for _, pattern := range []string{"/.data/", "/.env", "/*.db*"} {
		if !slices.Contains(ignored, pattern) {
			t.Errorf("%s is not in .gitignore", pattern)
		}
	}
}
