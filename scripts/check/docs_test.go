package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A row that names a test which isn't there would claim what nothing shows.
func TestEveryRequirementNamesATestThatExistsOrSaysNotYet(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "requirements.md"))
	if err != nil {
		t.Fatal(err)
	}
	source := sources(t)
	rows := regexp.MustCompile(`(?m)^\| ([A-F]\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(string(text), -1)
	if len(rows) < 60 {
		t.Fatalf("only %d rows", len(rows))
	}
	seen := map[string]bool{}
	for _, row := range rows {
		if seen[row[1]] {
			t.Errorf("row %s is there twice", row[1])
		}
		seen[row[1]] = true
		names := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(row[2], -1)
		if len(names) == 0 && !strings.HasPrefix(row[2], "not yet") {
			t.Errorf("row %s names no test and doesn't say not yet: %s", row[1], row[2])
		}
		for _, name := range names {
			if !strings.Contains(source, "func "+name[1]+"(") {
				t.Errorf("row %s names %s, which isn't there", row[1], name[1])
			}
		}
	}
}

// sources are all tests of the repository in one text.
func sources(t *testing.T) string {
	t.Helper()
	list := exec.Command("git", "ls-files", "-co", "--exclude-standard", "*_test.go")
	list.Dir = filepath.Join("..", "..")
	files, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for name := range strings.Lines(string(files)) {
		text, err := os.ReadFile(filepath.Join(list.Dir, strings.TrimSpace(name)))
		if err != nil {
			continue // deleted and not yet committed
		}
		all.Write(text)
	}
	return all.String()
}
