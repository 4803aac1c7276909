// Command dev runs the whole application in one process: every function and the page, on the embedded database file.
//
//	go run ./scripts/dev [-listen 127.0.0.1:3000] [-db URL]
//
// The database is migrated and filled with a pool of invite codes and, unless DEMO=0, the demo accounts. It is the embedded
// file unless -db names another: TURSO_DATABASE_URL, which may be production's, is not read. With VERCEL=1 in the
// environment the platform's address headers are believed, so that a test can play many clients.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/ratelimit/ratehttp"
)

const usage = `usage: go run ./scripts/dev [-listen ADDRESS] [-db URL]

  -listen ADDRESS   address to serve at (default 127.0.0.1:3000)
  -db URL           database, with TURSO_AUTH_TOKEN, instead of the embedded file .data/weir.db. It is MIGRATED AND
                    FILLED with invite codes and, unless DEMO=0, demo accounts: don't name production's. For that
                    reason TURSO_DATABASE_URL is not read

Other settings are those of README.md. With VERCEL=1 the platform's address headers are believed.
`

func main() {
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	listen := flag.String("listen", "127.0.0.1:3000", "")
	db := flag.String("db", "", "")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "dev: unexpected argument %q\n%s", flag.Arg(0), usage)
		os.Exit(2)
	}
	if err := validate(*db); err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *db); err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, db string) error {
	directory, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := app.FindRoot(directory)
	if err != nil {
		return err
	}
	log := app.NewLog()
	api, end, err := functions(ctx, root, db, log)
	if err != nil {
		return err
	}
	defer end()
	page, err := page(root)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("%w (another address: -listen 127.0.0.1:PORT)", err)
	}
	fmt.Printf("Weir is at http://%s\n", listener.Addr())
	return serve(ctx, listener, handler(api, page), log)
}

// functions opens the application and gives the handler of each of its routes. When a setting is wrong they answer what
// the deployed functions would: 503, with the reason in the log.
func functions(ctx context.Context, root, db string, log *slog.Logger) (api func(route string) http.Handler, end func() error, err error) {
	settings, wrong := app.LoadSettings(environment(db), root)
	if wrong != nil {
		fmt.Fprintf(os.Stderr, "dev: the functions answer 503 until this is mended:\n%v\n", wrong)
		unconfigured := func(route string) http.Handler { return app.Unconfigured(route, false, log, wrong) }
		return unconfigured, func() error { return nil }, nil
	}
	// Said here, not while loading: on the platform itself a file and a secret kept beside it are refused.
	settings.Platform = os.Getenv("VERCEL") != ""
	if err := app.Prepare(ctx, settings, app.Config{}); err != nil {
		return nil, nil, err
	}
	application, database, err := app.Open(ctx, settings, app.Config{Log: log})
	if err != nil {
		return nil, nil, err
	}
	return application.Handler, func() error { return errors.Join(application.Close(), database.Close()) }, nil
}

// validate says what is wrong with -db, by that name.
func validate(db string) error {
	if db == "" {
		return nil
	}
	err := database.Config{URL: db, AuthToken: os.Getenv("TURSO_AUTH_TOKEN")}.Validate()
	if err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "TURSO_DATABASE_URL", "-db"))
	}
	return nil
}

// environment is the process's, but for the database, which is -db's or the embedded file, and for VERCEL, which means
// here that the platform's headers are believed, not that nothing can be kept locally.
func environment(db string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, found := os.LookupEnv(name)
		switch {
		case name == "TURSO_DATABASE_URL":
			return db, db != ""
		case name == "TURSO_DATABASE_URLS", name == "TURSO_DATABASE_URLS_NEXT":
			return "", false
		case name == "TURSO_AUTH_TOKEN" && db == "":
			return "", false
		case name == "VERCEL" && strings.TrimSpace(value) == value:
			return "", false
		}
		return value, found
	}
}

// handler serves the functions below /api/ and the page everywhere else.
func handler(api func(route string) http.Handler, page http.Handler) http.Handler {
	mux := http.NewServeMux()
	for _, route := range app.Routes() {
		mux.Handle("/api/"+route, api(route))
	}
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		(&ratehttp.Problem{Status: http.StatusNotFound, Detail: "There is no such function."}).Write(w)
	})
	mux.Handle("/", page)
	return mux
}

// page serves public/ with the header fields that vercel.json gives it on the platform.
func page(root string) (http.Handler, error) {
	text, err := os.ReadFile(filepath.Join(root, "vercel.json"))
	if err != nil {
		return nil, err
	}
	var config struct {
		Headers []struct {
			Headers []struct{ Key, Value string }
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("vercel.json: %w", err)
	}
	files := http.FileServer(http.Dir(filepath.Join(root, "public")))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, rule := range config.Headers {
			for _, field := range rule.Headers {
				w.Header().Set(field.Key, field.Value)
			}
		}
		files.ServeHTTP(w, r)
	}), nil
}

// timeouts bound a connection: its header, a request as a whole, an answer, and the time between
// two requests. The functions bound bodies and answers more tightly by themselves.
type timeouts struct{ header, request, answer, idle time.Duration }

var serverTimeouts = timeouts{header: 5 * time.Second, request: 30 * time.Second, answer: time.Minute, idle: time.Minute}

func newServer(handler http.Handler, log *slog.Logger, bounds timeouts) *http.Server {
	return &http.Server{
		Handler:           handler,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: bounds.header,
		ReadTimeout:       bounds.request,
		WriteTimeout:      bounds.answer,
		IdleTimeout:       bounds.idle,
		MaxHeaderBytes:    32 << 10,
	}
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := newServer(handler, log, serverTimeouts)
	stopped := make(chan error, 1)
	go func() { stopped <- server.Serve(listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return err
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
