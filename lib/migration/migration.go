// Package migration brings the schema up and down with golang-migrate, on Turso and on an embedded file, safely when
// several processes do so at once.
package migration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
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
}

func (e DirtyError) Error() string {
	return fmt.Sprintf("migration: version %d is dirty: another tool stopped in the middle of it. "+
		"If the schema has all of version %[1]d, run `go run ./scripts/migrate force %[1]d`; "+
		"if it has nothing of it, `force` the version before it (-1 for none); then `up` again", e.Version)
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

// Version returns the newest migration applied, NilVersion for none. It takes no lock.
func Version(ctx context.Context, db *database.DB) (version int, dirty bool, err error) {
	return (&store{ctx: ctx, db: db.DB}).Version()
}

// Force sets the version, NilVersion for none, and clears the dirty mark without running anything.
func Force(ctx context.Context, db *database.DB, version int) error {
	return force(ctx, db, migrations.FS, version)
}

func up(ctx context.Context, db *database.DB, files fs.FS) (bool, error) {
	all, err := versions(files)
	if err != nil {
		return false, err
	}
	version, dirty, err := Version(ctx, db)
	if err != nil {
		return false, err
	}
	newest := all[len(all)-1]
	switch {
	case dirty:
		return false, DirtyError{version}
	case version == newest:
		return false, nil
	case version > newest:
		return false, fmt.Errorf("migration: the database is at version %d, this build knows versions up to %d: use a newer build", version, newest)
	}
	return run(ctx, db, files, (*migrate.Migrate).Up)
}

func down(ctx context.Context, db *database.DB, files fs.FS, steps int) (bool, error) {
	if steps < 0 {
		return false, fmt.Errorf("migration: down %d: the number of steps must not be negative", steps)
	}
	return run(ctx, db, files, func(m *migrate.Migrate) error {
		if steps == 0 {
			return m.Down()
		}
		err := m.Steps(-steps)
		if short := (migrate.ErrShortLimit{}); errors.As(err, &short) {
			return nil // fewer were there, and all of them are gone
		}
		if errors.Is(err, fs.ErrNotExist) {
			return migrate.ErrNoChange
		}
		return err
	})
}

func force(ctx context.Context, db *database.DB, files fs.FS, version int) error {
	all, err := versions(files)
	if err != nil {
		return err
	}
	known := version == NilVersion
	for _, v := range all {
		known = known || v == version
	}
	if !known {
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
	dirty := migrate.ErrDirty{}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, migrate.ErrNoChange):
		return false, nil
	case errors.Is(err, migratedb.ErrLocked):
		return false, ErrLocked
	case errors.As(err, &dirty):
		return false, DirtyError{dirty.Version}
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
