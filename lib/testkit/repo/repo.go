// Package repo finds Weir's source tree and copies it, for tests that run tools which edit the tree they work on.
package repo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wd is the working directory the process started in; a test may have changed it since.
var wd, wdErr = os.Getwd()

// Root returns the absolute path of the folder that holds go.mod, looking from the directory in which the process started
// upwards. A test starts in its package's folder, so this works in any test.
func Root() (string, error) {
	if wdErr != nil {
		return "", fmt.Errorf("repo: %w", wdErr)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("repo: no go.mod in %s or above", wd)
		}
	}
}

// Project makes an empty folder that looks like the project's to the commands, and makes it the working directory until the
// test ends.
func Project(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(root, "api"), 0o755), os.WriteFile(filepath.Join(root, "vercel.json"), []byte("{}"), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	return root
}

// Files lists the tree's files as a commit of everything would hold them: tracked ones and new ones that are not ignored,
// as slash-separated paths relative to root. It needs git.
func Files(root string) ([]string, error) {
	listed, err := lsFiles(root, "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range listed {
		// A file that was deleted but is still in the index is not part of the tree.
		if info, err := os.Lstat(filepath.Join(root, name)); err == nil && info.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	return files, nil
}

// Deployed lists those of Files that a deployment uploads: all but what .vercelignore names, whose patterns are git's.
func Deployed(root string) ([]string, error) {
	files, err := Files(root)
	if err != nil {
		return nil, err
	}
	ignored, err := lsFiles(root, "--cached", "--others", "--ignored", "--exclude-from=.vercelignore")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(files, func(name string) bool { return slices.Contains(ignored, name) }), nil
}

func lsFiles(root string, flags ...string) ([]string, error) {
	cmd := exec.Command("git", append([]string{"ls-files", "-z"}, flags...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("repo: git ls-files: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}

// Copy copies the files, relative to root, into the folder dst.
func Copy(root, dst string, files []string) error {
	for _, name := range files {
		err := copyFile(filepath.Join(root, name), filepath.Join(dst, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted while we copied
		}
		if err != nil {
			return fmt.Errorf("repo: copy: %w", err)
		}
	}
	return nil
}

func copyFile(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
