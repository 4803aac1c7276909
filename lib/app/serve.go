package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
)

// Serve answers a request to a resource of the application that the process's environment describes. It is what the
// functions in api/ call. The environment is read, and the database opened, at the first request; a process whose
// environment is wrong answers 503 and says so in the log.
func Serve(route string, w http.ResponseWriter, r *http.Request) {
	app, err := process.load(r.Context())
	if err != nil {
		Unconfigured(route, os.Getenv("VERCEL") != "", processLog, err).ServeHTTP(w, r)
		return
	}
	app.Handler(route).ServeHTTP(w, r)
}

// A function has no other place to keep what it opened than its process.
var (
	process    loader
	processLog = NewLog()
)

// NewLog makes the application's log: JSON lines on standard error.
func NewLog() *slog.Logger {
	return slog.New(slog.NewJSONHandler(os.Stderr, nil))
}

// loader makes the App once. What fails is tried again at the next request: the file may have been locked.
type loader struct {
	mu  sync.Mutex
	app *App
}

func (l *loader) load(ctx context.Context) (*App, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.app != nil {
		return l.app, nil
	}
	settings, err := FromEnvironment()
	if err != nil {
		return nil, err
	}
	app, _, err := Open(ctx, settings, Config{Log: processLog})
	if err != nil {
		return nil, err
	}
	l.app = app
	return app, nil
}

// FromEnvironment reads the process's environment, and finds the project's folder from the working directory upwards
// where there is one. See LoadSettings.
func FromEnvironment() (Settings, error) {
	directory, err := os.Getwd()
	if err != nil {
		return Settings{}, fmt.Errorf("app: working directory: %w", err)
	}
	root, err := FindRoot(directory)
	if err != nil {
		root = "" // a deployed function has none
	}
	return LoadSettings(os.LookupEnv, root)
}

// Open makes an App and opens the databases of the settings for it. The caller closes the application's own, and the shards with
// App.Close. An embedded file is prepared first; a server is taken as it is, because instances that start must not change it.
func Open(ctx context.Context, settings Settings, config Config) (*App, *database.DB, error) {
	if isFile(settings.DatabaseURL) {
		if err := Prepare(ctx, settings, config); err != nil {
			return nil, nil, err
		}
	}
	app, dbs, err := open(settings, settings.StoreDeadline, config)
	return app, dbs.own, err
}

// prepareDeadline bounds each call that prepares a database. STORE_DEADLINE may be as short as requests need it.
const prepareDeadline = 30 * time.Second

// Prepare brings the database of the settings to the newest schema and fills what a new one lacks. Shards that are files are
// brought to that schema too.
func Prepare(ctx context.Context, settings Settings, config Config) error {
	app, dbs, err := open(settings, prepareDeadline, config)
	if err != nil {
		return err
	}
	defer dbs.Close()
	if _, err := migration.Up(ctx, dbs.own); err != nil {
		return err
	}
	if shards := slices.Concat(settings.Shards, settings.NextShards); len(shards) > 0 && isFile(shards[0].URL) {
		if err := dbs.migrateShards(ctx); err != nil {
			return err
		}
	}
	return app.Fill(ctx, PoolSize)
}

func open(settings Settings, deadline time.Duration, config Config) (*App, databases, error) {
	dbs, err := openDatabases(settings, deadline)
	if err != nil {
		return nil, databases{}, err
	}
	config.Shards, config.NextShards = dbs.now, dbs.next
	app, err := New(dbs.own, settings, config)
	if err == nil {
		app.close = dbs.closeShards
	} else {
		dbs.Close()
		return nil, databases{}, err
	}
	return app, dbs, nil
}
