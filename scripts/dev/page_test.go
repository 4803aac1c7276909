//go:build unix

package main

import (
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlimits/weir/lib/database"
	"github.com/weirlimits/weir/lib/testkit/browser"
	"github.com/weirlimits/weir/lib/testkit/repo"
)

// screenshots makes the pictures of docs/screenshots anew:
//
//	go test ./scripts/dev -run ThePage -screenshots
var screenshots = flag.Bool("screenshots", false, "take the pictures of docs/screenshots instead of testing the page")

// pagePolicies have windows that are over within seconds, so that a browser really waits for the end of one. A log refuses
// whatever the moment, where a fixed window might end between two attempts.
const pagePolicies = `[
	{"name": "sign-up", "algorithm": "sliding-log", "limit": 3, "window": "4s"},
	{"name": "sign-in", "algorithm": "sliding-log", "limit": 3, "window": "4s"}
]`

// The page, in a browser. What is played is in scripts/_tools/page.mjs; each scenario is a test of its own here, all on one
// server, so that a later one sees what an earlier one did.
func TestThePageInABrowser(t *testing.T) {
	browser.Require(t)
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	environ(t, map[string]string{"VERCEL": "1"}) // each scenario is a client with an address of its own
	t.Setenv("RATE_LIMIT_POLICIES", pagePolicies)
	t.Setenv("SMTP_URL", "")
	folder := project(t)
	server := startWith(t, folder, root)
	if *screenshots {
		remember(t, folder, pictured)
		browser.Play(t, "page.mjs", server.URL, filepath.Join(root, "docs", "screenshots"))
		return
	}
	remember(t, folder, earlier)
	forget(t, folder, "page-forgetful", strings.Repeat("R", 43))
	forget(t, folder, "page-reminded", strings.Repeat("F", 43))
	for _, scenario := range browser.Play(t, "page.mjs", server.URL) {
		t.Run(scenario.Name, func(t *testing.T) {
			if scenario.Error != "" {
				t.Error(scenario.Error)
			}
		})
	}
}

// refusals are first refusals of a policy by the hours since they were.
type refusals map[string][]float64

// earlier are some that page.mjs looks for. Three of one subject within an hour raise an alert.
var earlier = refusals{
	"borrow-code":     {5, 5, 9},
	"failed-sign-ins": {3.1, 3.3, 3.6},
}

// pictured are those of a day on which something happened.
var pictured = refusals{
	"sign-in": {
		1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7, 7, 8, 8, 9, 12, 15, 16, 16, 17, 21,
	},
	"failed-sign-ins": {3.1, 3.3, 3.6, 4, 4.2, 4.5, 4.7, 5, 5.2, 5.5, 5.8, 6, 6.3},
	"borrow-code":     {2, 9, 9, 10, 18, 19, 19, 19},
}

// remember puts refusals into the audit of a project's file, as if they had been.
func remember(t *testing.T, folder string, all refusals) {
	t.Helper()
	db, err := database.Open(database.Config{URL: "file:" + filepath.Join(folder, ".data", "weir.db"), Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for policy, hours := range all {
		for _, ago := range hours {
			_, err := db.ExecContext(t.Context(), `
				INSERT INTO rate_limit_audit (at_micros, policy, key, used, action, until_micros)
				VALUES (CAST((unixepoch('subsec') - ? * 3600) * 1000000 AS INTEGER), ?, 1, 8, 'refusal', 0)`, ago, policy)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// forget makes an account that nobody knows the password of, with a token for a new one.
func forget(t *testing.T, folder, name, token string) {
	t.Helper()
	db, err := database.Open(database.Config{URL: "file:" + filepath.Join(folder, ".data", "weir.db"), Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sum := sha256.Sum256([]byte(token))
	for _, statement := range []string{
		"INSERT INTO accounts (username, role, email, created_micros) VALUES (?, 'member', ? || '@example.org', 0)",
		"INSERT INTO password_resets (account, token_hash, expires_micros) SELECT id, ?, (unixepoch() + 1800) * 1000000 FROM accounts WHERE username = ?",
	} {
		arguments := []any{name, name}
		if strings.Contains(statement, "token_hash") {
			arguments[0] = base64.RawURLEncoding.EncodeToString(sum[:])
		}
		if _, err := db.ExecContext(t.Context(), statement, arguments...); err != nil {
			t.Fatal(err)
		}
	}
}

// The pictures are part of every clone.
func TestTheScreenshotsAreSmall(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	pictures, err := filepath.Glob(filepath.Join(root, "docs", "screenshots", "*"))
	if err != nil || len(pictures) != 4 {
		t.Fatalf("there are %d pictures (%v), want 4", len(pictures), err)
	}
	for _, picture := range pictures {
		info, err := os.Stat(picture)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() >= 100_000 {
			t.Errorf("%s has %d bytes", filepath.Base(picture), info.Size())
		}
	}
}
