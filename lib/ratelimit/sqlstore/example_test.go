package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite"

	"github.com/weirlimits/weir/db/migrations"
	"github.com/weirlimits/weir/lib/hrana"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
)

// Down to Example this is the program in README.md; a test compares them.

var (
	signIn = ratelimit.Policy{
		Name: "sign-in", Algorithm: ratelimit.FixedWindow, Limit: 10, Window: time.Minute,
		Subject: ratelimit.Address, Count: ratelimit.EveryAttempt,
	}
	failedSignIns = ratelimit.Policy{
		Name: "failed-sign-ins", Algorithm: ratelimit.FixedWindow, Limit: 8, Window: 15 * time.Minute,
		Subject: ratelimit.Account, Private: true,
	}
)

// migrate makes the limiter's tables. It belongs among the application's own migrations, which run once.
func migrate(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "BEGIN; "+migrations.RateLimits+" COMMIT;")
	return err
}

// onFile keeps the limits in an SQLite file. Without the two pragmas, of writers at once all but one fail.
func onFile(path string, secret []byte) (*sql.DB, *ratelimit.Limiter, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(2000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return nil, nil, err
	}
	limiter, err := ratelimit.New(sqlstore.New(db, sqlstore.Config{}), secret, ratelimit.Config{})
	return db, limiter, err
}

// onTurso keeps them in Turso or libSQL: a decision is one HTTP request.
func onTurso(url, token string, secret []byte) (*ratelimit.Limiter, error) {
	store := sqlstore.NewRemote(hrana.New(url, token), sqlstore.Config{})
	return ratelimit.New(store, secret, ratelimit.Config{})
}

// attempt says how long a sign-in has to wait: 0 if its password may be looked at now.
func attempt(ctx context.Context, limiter *ratelimit.Limiter, address, name string, right func() bool) (time.Duration, error) {
	decision, err := limiter.Decide(ctx, signIn.Charge(address), failedSignIns.Charge(name))
	if err != nil || !decision.Allowed {
		return decision.RetryAfter, err // 503, or 429 with Retry-After
	}
	if right() {
		err = limiter.GiveBack(ctx, decision.Limits[1].Reservation) // it was no failure
	}
	return 0, err
}

// Twenty sign-ins at once from one address.
func Example() {
	dir, err := os.MkdirTemp("", "weir-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	secret := make([]byte, ratelimit.MinSecretBytes)
	rand.Read(secret)
	db, limiter, err := onFile(filepath.Join(dir, "app.db"), secret)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	signIn.Window = ratelimit.MaxWindow // no minute may end while this runs
	ctx := context.Background()
	if err := migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	var tried atomic.Int64
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			_, err := attempt(ctx, limiter, "192.0.2.7", fmt.Sprint("person", i), func() bool { return tried.Add(1) > 0 })
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	fmt.Println(tried.Load(), "passwords were looked at")
	// Output: 10 passwords were looked at
}
