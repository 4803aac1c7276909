// Package database opens the database that holds Weir's state: Turso over HTTP, or an embedded SQLite file. It is the
// only place that names the drivers and pragmas for that.
package database

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/tursodatabase/libsql-client-go/libsql"
	_ "modernc.org/sqlite" // the driver that libsql hands file: URLs to

	"github.com/weirlimits/weir/lib/hrana"
	"github.com/weirlimits/weir/lib/sqliteheap"
)

// DefaultDeadline bounds a call when Config.Deadline is zero. A commit on Turso may take 100 ms and commits queue, so it
// is well above one commit and below what a person waits for.
const DefaultDeadline = 2 * time.Second

const (
	// SQLite lets many connections read at once and one write; more connections would only wait for each other.
	fileConns = 8

	// A remote connection is a few strings. Idle ones are kept for every caller a busy process may have.
	remoteIdleConns = 64

	// A server forgets a stream that was idle for 10 seconds. Connections go before that.
	remoteIdleTime = 7 * time.Second
)

// urlHelp follows the reason in every error about a URL. The URL itself never does: it may hold a token.
const urlHelp = "allowed are libsql://HOST, https://HOST, http://HOST:PORT and file:/ABSOLUTE/PATH, with the token in TURSO_AUTH_TOKEN"

// Config says which database to open.
type Config struct {
	// URL is libsql://, https:// or http:// for a server, file:/absolute/path for an embedded file. Required.
	URL string

	// AuthToken is sent to a server as a bearer token. Empty sends none.
	AuthToken string

	// Deadline bounds every single call, beside the caller's own context. Zero means DefaultDeadline.
	Deadline time.Duration
}

// DB is a pool of guarded connections: no call on it outlives the deadline or ends in a panic. A
// call that the database was too busy for, so that nothing of it was carried out, is made again
// once within the deadline; any other call that may have reached the database is never repeated. A
// deadline passed is context.DeadlineExceeded by errors.Is. A connection that failed is not used
// again, so a text that opened a transaction and failed leaves none open.
//
// At a server, a DB has at most hrana.MaxOpen calls open at once, those of HTTP included. The wait
// for a place is part of a call.
//
// Interactive transactions are refused (ErrTransaction). The wait for a free connection is not a call: it is bounded by
// the caller's context only. A DB is safe for concurrent use.
type DB struct {
	*sql.DB

	// HTTP asks the same server without the driver, for single statements: one request in all, at a small part of the
	// driver's time. Nil for a file.
	HTTP *hrana.Client
}

// Close closes the pool and what HTTP keeps.
func (db *DB) Close() error {
	if db.HTTP != nil {
		db.HTTP.Close()
	}
	return db.DB.Close()
}

// Open opens the pool. It connects at the first call, so only a wrong Config, or a folder that can't be made, fails here.
// For a file it makes the folder the file is in, but not that folder's parents.
func Open(cfg Config) (*DB, error) {
	u, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	deadline := cfg.Deadline
	if deadline == 0 {
		deadline = DefaultDeadline
	}
	if u.Scheme == "file" {
		return openFile(u.Path, deadline)
	}
	return openRemote(u, cfg.AuthToken, deadline)
}

func openFile(path string, deadline time.Duration) (*DB, error) {
	sqliteheap.Install() // before SQLite is first used; what fails is told to who wants a bound
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("database: folder of the embedded file: %w", err)
	}
	dsn := url.URL{
		Scheme: "file",
		Path:   path,
		RawQuery: strings.Join([]string{
			// Shorter than the deadline, so that a writer who waits in vain is told that the file is busy.
			fmt.Sprintf("_pragma=busy_timeout(%d)", max(1, (deadline*9/10).Milliseconds())),
			"_pragma=journal_mode(WAL)",
			// In WAL mode a commit is in the file before it is acknowledged, so it survives the end of the process
			// whatever the setting. FULL would wait for the disk as well, a hundred times the cost of a decision, to
			// survive a loss of power too. NORMAL may then lose the newest commits, but never corrupts the file.
			"_pragma=synchronous(NORMAL)",
			"_pragma=foreign_keys(1)",
		}, "&"),
	}
	inner, err := libsql.NewConnector(dsn.String())
	if err != nil {
		return nil, fmt.Errorf("database: embedded file: %w", err)
	}
	db := sql.OpenDB(&guard{inner: inner, deadline: deadline})
	db.SetMaxOpenConns(fileConns)
	db.SetMaxIdleConns(fileConns)
	return &DB{DB: db}, nil
}

func openRemote(u *url.URL, token string, deadline time.Duration) (*DB, error) {
	var options []libsql.Option
	if token != "" {
		options = append(options, libsql.WithAuthToken(token))
	}
	inner, err := libsql.NewConnector(u.String(), options...)
	if err != nil {
		return nil, urlError("is refused by the driver") // the driver's own text may hold the URL
	}
	client := hrana.New(u.String(), token)
	db := sql.OpenDB(&guard{inner: inner, deadline: deadline, token: token, remote: true, gate: &client.Gate})
	db.SetMaxIdleConns(remoteIdleConns)
	db.SetConnMaxIdleTime(remoteIdleTime)
	return &DB{DB: db, HTTP: client}, nil
}

// Validate reports what is wrong with the configuration without opening anything. The error names TURSO_DATABASE_URL or
// TURSO_AUTH_TOKEN and what is allowed, and holds no part of either value.
func (cfg Config) Validate() error {
	_, err := cfg.parse()
	return err
}

func (cfg Config) parse() (*url.URL, error) {
	if cfg.Deadline < 0 {
		return nil, fmt.Errorf("database: deadline %v: it must not be negative", cfg.Deadline)
	}
	if strings.ContainsFunc(cfg.AuthToken, notPrintable) {
		return nil, errors.New("database: TURSO_AUTH_TOKEN holds a blank or a control character: a token has none")
	}
	if cfg.URL == "" {
		return nil, urlError("is empty")
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || strings.ContainsFunc(u.Path, unicode.IsControl) {
		return nil, urlError("is not a URL")
	}
	switch {
	case u.User != nil:
		return nil, urlError("holds a user name or password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, urlError("has something after ? or #")
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || u.Opaque != "" || !filepath.IsAbs(filepath.FromSlash(u.Path)) || strings.HasSuffix(u.Path, "/") {
			return nil, urlError("does not name a file by its absolute path")
		}
	case "http":
		if cfg.AuthToken != "" && !isLoopback(u.Hostname()) {
			return nil, urlError("would send the token unencrypted")
		}
		fallthrough
	case "libsql", "https":
		if u.Hostname() == "" {
			return nil, urlError("names no host")
		}
	default:
		return nil, urlError("has an unknown scheme")
	}
	return u, nil
}

func urlError(reason string) error {
	return fmt.Errorf("database: TURSO_DATABASE_URL %s: %s", reason, urlHelp)
}

func notPrintable(r rune) bool { return r <= ' ' || r > '~' }

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
