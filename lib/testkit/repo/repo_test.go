package repo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weirlimits/weir/lib/testkit/repo"
)

func TestRootHoldsThisModuleEvenAfterATestChangedItsFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "lib", "testkit", "repo", "repo.go")); err != nil {
		t.Error(err)
	}
}

func TestFilesAreWhatACommitWouldHoldAndDeployedWhatIsNotIgnoredThere(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	write(".gitignore", "/ignored\n")
	write(".vercelignore", "/.gitignore\n*_test.go\n/a/c\n")
	write("ignored", "no")
	write("a/tracked file", "yes")
	write("a/b_test.go", "yes")
	write("deleted", "no")
	git("init", "-q")
	git("add", ".")
	write("new", "yes")
	write("a/c/d", "yes")
	if err := os.Remove(filepath.Join(root, "deleted")); err != nil {
		t.Fatal(err)
	}

	files, err := repo.Files(root)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	if want := []string{".gitignore", ".vercelignore", "a/b_test.go", "a/c/d", "a/tracked file", "new"}; !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
	deployed, err := repo.Deployed(root)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(deployed)
	if want := []string{".vercelignore", "a/tracked file", "new"}; !slices.Equal(deployed, want) {
		t.Errorf("deployed %q, want %q", deployed, want)
	}

	dst := t.TempDir()
	if err := repo.Copy(root, dst, append(deployed, "gone meanwhile")); err != nil {
		t.Fatal(err)
	}
	for _, name := range deployed {
		want, _ := os.ReadFile(filepath.Join(root, name))
		if got, err := os.ReadFile(filepath.Join(dst, name)); err != nil || string(got) != string(want) {
			t.Errorf("copy of %s: %q and %v, want %q", name, got, err, want)
		}
	}
}

func TestFilesOutsideAGitRepositoryIsAnError(t *testing.T) {
	if _, err := repo.Files(t.TempDir()); err == nil {
		t.Error("no error")
	}
}
