// Package migration brings the schema up and down with golang-migrate, on Turso and on an embedded file, safely when
// several processes do so at once.
package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratedb "github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/weirlimits/weir/db/migrations"
	"github.com/weirlimits/weir/lib/database"
)

// ErrLocked says that another process was migrating for as long as the context lasted.
var ErrLocked = errors.New("migration: another process is migrating")

// NilVersion is the version of a database without any migration.
const NilVersion = migratedb.NilVersion

// DirtyError says that the version row is marked dirty. No run of this package leaves it so, since a migration and its
// version are written together; a tool that writes them apart can. Somebody has to look which of the two states the
// schema is in, and say so with Force.
type DirtyError struct {
	Version int
	// Newest is the newest version that this build knows. If Version isn't known, Force is for the
	// build that knows it.
	Newest int
	known  bool
}

func (e DirtyError) Error() string {
	if !e.known {
		return fmt.Sprintf("migration: version %d is dirty: another tool stopped in the middle of it, and this build knows versions up to %d: "+
			"mend it with the newer build, by `go run ./scripts/migrate force`", e.Version, e.Newest)
	}
	return fmt.Sprintf("migration: version %d is dirty: another tool stopped in the middle of it. "+
		"If the schema has all of version %[1]d, run `go run ./scripts/migrate force %[1]d`; "+
		"if it has nothing of it, `force` the version before it (-1 for none); then `up` again", e.Version)
}

// UnknownError says that the database is at a version that this build has no migration of: a newer
// build was there. Nothing is done to such a schema.
type UnknownError struct {
	Version int
	Newest  int // that this build knows
}

func (e UnknownError) Error() string {
	return fmt.Sprintf("migration: the database is at version %d, this build knows versions up to %d: use a newer build", e.Version, e.Newest)
}

// Up applies every migration that is missing and reports whether there was one. It is safe when several processes do it
// at once: one works, the others wait for it until ctx ends (ErrLocked). Nothing of a migration that fails stays. With
// nothing to do it costs one read and takes no lock.
func Up(ctx context.Context, db *database.DB) (changed bool, err error) {
	return up(ctx, db, migrations.FS)
}

// Down takes back the newest steps migrations, all of them if steps is zero, with the data in their tables. It reports
// whether there was one, and is as safe as Up.
func Down(ctx context.Context, db *database.DB, steps int) (changed bool, err error) {
	return down(ctx, db, migrations.FS, steps)
}

// Version returns the newest migration applied, NilVersion for none, and whether it is dirty. It
// takes no lock.
func Version(ctx context.Context, db *database.DB) (version int, dirty bool, err error) {
	return (&store{ctx: ctx, db: db.DB}).Version()
}

// Check returns the version as Version does. If the schema is dirty or unknown the error is a
// DirtyError or an UnknownError, which say what to do. Whatever works on a schema that it hasn't
// just brought up calls it first.
func Check(ctx context.Context, db *database.DB) (version int, err error) {
	version, _, err = state(ctx, db, migrations.FS)
	return version, err
}

// Force sets the version, NilVersion for none, and clears the dirty mark without running anything.
// It refuses a schema that this build doesn't know: an UnknownError, or a DirtyError that says so.
func Force(ctx context.Context, db *database.DB, version int) error {
	return force(ctx, db, migrations.FS, version)
}

// state reads the version, and judges it for every operation alike: it is clean and known, or the
// error is a DirtyError or an UnknownError.
func state(ctx context.Context, db *database.DB, files fs.FS) (version int, known []int, err error) {
	known, err = versions(files)
	if err != nil {
		return 0, nil, err
	}
	version, dirty, err := Version(ctx, db)
	if err != nil {
		return 0, nil, err
	}
	return version, known, judge(version, dirty, known)
}

func judge(version int, dirty bool, known []int) error {
	newest := known[len(known)-1]
	isKnown := version == NilVersion || slices.Contains(known, version)
	switch {
	case dirty:
		return DirtyError{version, newest, isKnown}
	case !isKnown:
		return UnknownError{version, newest}
	}
	return nil
}

func up(ctx context.Context, db *database.DB, files fs.FS) (bool, error) {
	version, known, err := state(ctx, db, files)
	if err != nil || version == known[len(known)-1] {
		return false, err
	}
	return run(ctx, db, files, (*migrate.Migrate).Up)
}

func down(ctx context.Context, db *database.DB, files fs.FS, steps int) (bool, error) {
	if steps < 0 {
		return false, fmt.Errorf("migration: down %d: the number of steps must not be negative", steps)
	}
	version, _, err := state(ctx, db, files)
	if err != nil || version == NilVersion {
		return false, err
	}
	return run(ctx, db, files, func(m *migrate.Migrate) error {
		if steps == 0 {
			return m.Down()
		}
		err := m.Steps(-steps)
		if short := (migrate.ErrShortLimit{}); errors.As(err, &short) {
			return nil // fewer were there, and all of them are gone
		}
		return err
	})
}

func force(ctx context.Context, db *database.DB, files fs.FS, version int) error {
	_, all, err := state(ctx, db, files)
	if dirty, found := errors.AsType[DirtyError](err); err != nil && !(found && dirty.known) {
		return err
	}
	if version != NilVersion && !slices.Contains(all, version) {
		return fmt.Errorf("migration: force %d: allowed are %v, and %d for none", version, all, NilVersion)
	}
	_, err = run(ctx, db, files, func(m *migrate.Migrate) error { return m.Force(version) })
	return err
}

// run gives do a golang-migrate for one use and translates its errors.
func run(ctx context.Context, db *database.DB, files fs.FS, do func(*migrate.Migrate) error) (changed bool, err error) {
	src, err := iofs.New(files, ".")
	if err != nil {
		return false, fmt.Errorf("migration: read the files: %w", err)
	}
	defer src.Close()
	m, err := migrate.NewWithInstance("iofs", src, "weir", &store{ctx: ctx, db: db.DB})
	if err != nil {
		return false, fmt.Errorf("migration: %w", err)
	}
	m.LockTimeout = time.Duration(math.MaxInt64) // ctx is the bound, see store.Lock
	err = do(m)
	if errors.Is(err, fs.ErrNotExist) { // since state was read another process has migrated, or gone all the way down
		if _, _, now := state(ctx, db, files); now != nil {
			return false, now
		}
	}
	dirty := migrate.ErrDirty{}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, migrate.ErrNoChange), errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, migratedb.ErrLocked):
		return false, ErrLocked
	case errors.As(err, &dirty):
		_, _, now := state(ctx, db, files)
		return false, cmp.Or(now, err)
	}
	return false, err
}

// versions lists the versions there are files for, in order.
func versions(files fs.FS) ([]int, error) {
	src, err := iofs.New(files, ".")
	if err != nil {
		return nil, fmt.Errorf("migration: read the files: %w", err)
	}
	defer src.Close()
	var all []int
	v, err := src.First()
	for err == nil {
		all = append(all, int(v))
		v, err = src.Next(v)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("migration: read the files: %w", err)
	}
	if len(all) == 0 {
		return nil, errors.New("migration: there are no migration files")
	}
	return all, nil
}
