// Package migrations embeds the schema, which exists nowhere else.
package migrations

import "embed"

// FS holds the migrations: VERSION_NAME.up.sql and VERSION_NAME.down.sql.
//
//go:embed *.sql
var FS embed.FS

// RateLimits makes the limiter's own tables and nothing else, for programs that keep limits in a database of theirs: all
// those tables are named rate_limit…. The other migrations are of Weir's own application. It is several statements, with
// triggers, and no transaction around them.
//
//go:embed 000001_rate_limits.up.sql
var RateLimits string
