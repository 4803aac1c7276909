// Command backup copies the embedded file to another one while functions use it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/backup FILE

copies the embedded database to FILE, which must not be there yet, as it is at one moment. Whatever uses it goes on meanwhile. The
copy is one SQLite file, readable by its owner alone, since it holds password hashes. How to put it back: docs/operations.md.

The database is TURSO_DATABASE_URL if that is a file: URL, or the file .data/weir.db of the project when it is unset. Exit codes
of the built program: 0 done, 1 failed, 2 wrong usage. go run turns every code but 0 into 1.
`

// totalDeadline is ample for some gigabytes, at 100 MB a second.
const totalDeadline = 5 * time.Minute

var errServer = errors.New("TURSO_DATABASE_URL is a server, of which Turso itself keeps backups: docs/operations.md tells how to take and restore them")

func main() {
	command.Main(totalDeadline, func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	})
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	if command.AsksForHelp(args) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if len(args) != 1 || args[0] == "" || strings.HasPrefix(args[0], "-") {
		fmt.Fprint(stderr, usage)
		return command.WrongUsage
	}
	version, err := backUp(ctx, args[0], lookup)
	if err != nil {
		fmt.Fprintf(stderr, "backup: %v\n", err)
		return command.Failed
	}
	fmt.Fprintf(stdout, "%s holds the database, at version %d of the schema\n", args[0], version)
	return 0
}

// backUp makes the copy, looks whether it is whole, and gives its schema's version. What failed leaves no file.
func backUp(ctx context.Context, name string, lookup func(string) (string, bool)) (version int, err error) {
	target, err := filepath.Abs(name)
	if err != nil {
		return 0, err
	}
	source, err := embedded(lookup)
	if err != nil {
		return 0, err
	}
	// Opening would make an empty one.
	if _, err := os.Stat(source); err != nil {
		return 0, fmt.Errorf("there is no database to copy: %w", err)
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return 0, fmt.Errorf("%s is there already: a backup overwrites nothing", name)
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(target))
		}
	}()
	if err := file.Close(); err != nil {
		return 0, err
	}
	// One statement in one read transaction: what commits before it begins is in the copy whole, what commits later not at all, and
	// in WAL mode nobody waits for it. A copy of the file alone would miss what is still in the WAL.
	err = command.WithDatabase(lookup, totalDeadline, func(db *database.DB) error {
		_, err := db.ExecContext(ctx, `VACUUM INTO ?`, target)
		return err
	})
	if err != nil {
		return 0, err
	}
	return inspect(ctx, target)
}

// embedded gives the path of the embedded file that the environment names.
func embedded(lookup func(string) (string, bool)) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	root, err := app.FindRoot(dir)
	if err != nil {
		return "", err
	}
	config, err := app.LoadDatabase(lookup, root)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(config.URL)
	if err != nil || u.Scheme != "file" {
		return "", errServer
	}
	return u.Path, nil
}

// inspect opens the copy as the functions would, and looks through all of it.
func inspect(ctx context.Context, path string) (version int, err error) {
	location := url.URL{Scheme: "file", Path: path}
	db, err := database.Open(database.Config{URL: location.String(), Deadline: totalDeadline})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var verdict string
	if err := db.QueryRowContext(ctx, `PRAGMA integrity_check(1)`).Scan(&verdict); err != nil {
		return 0, fmt.Errorf("look through the copy: %w", err)
	}
	if verdict != "ok" {
		return 0, fmt.Errorf("the copy is damaged, and so may be the database: %s", verdict)
	}
	version, err = migration.Check(ctx, db)
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the copy's version: %w", err)
	case version == migration.NilVersion:
		return 0, errors.New("the file holds no schema of ours: is it the right one?")
	}
	return version, nil
}
