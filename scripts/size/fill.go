package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/migration"
	"github.com/weirlimits/weir/lib/ratelimit"
	"github.com/weirlimits/weir/lib/ratelimit/sqlstore"
)

// measure fills a table with keys that are used up, and says how many bytes each takes: pages in use, of a file that is then deleted.
func measure(ctx context.Context, policy ratelimit.Policy, keys int64) (perKey float64, err error) {
	dir, err := os.MkdirTemp("", "weir-size-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := database.Open(database.Config{URL: "file:" + filepath.ToSlash(filepath.Join(dir, "weir.db"))})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := migration.Up(ctx, db); err != nil {
		return 0, err
	}
	// Whose keys these are is no secret: the secret is all zeros.
	limiter, err := ratelimit.New(sqlstore.New(db.DB, sqlstore.Config{}), make([]byte, ratelimit.MinSecretBytes), ratelimit.Config{})
	if err != nil {
		return 0, err
	}
	empty, err := used(ctx, db)
	if err != nil {
		return 0, err
	}
	for key := int64(0); key < keys; {
		var charges []ratelimit.Charge
		for ; len(charges) < ratelimit.MaxCharges && key < keys; key++ {
			charges = append(charges, policy.ChargeN(strconv.FormatInt(key, 10), policy.Capacity()))
		}
		decision, err := limiter.Decide(ctx, charges...)
		if err != nil {
			return 0, err
		}
		if !decision.Allowed {
			return 0, errors.New("a new key was refused")
		}
	}
	var full int64
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM rate_limits WHERE used = ?", policy.Capacity()).Scan(&full); err != nil {
		return 0, err
	}
	if full != keys {
		return 0, fmt.Errorf("%d keys are used up, of %d", full, keys)
	}
	filled, err := used(ctx, db)
	return float64(filled-empty) / float64(keys), err
}

func used(ctx context.Context, db *database.DB) (bytes int64, err error) {
	err = db.QueryRowContext(ctx, "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&bytes)
	return bytes, err
}
