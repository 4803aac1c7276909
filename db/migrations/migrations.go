// Package migrations embeds the schema, which exists nowhere else.
package migrations

import "embed"

// FS holds the migrations: VERSION_NAME.up.sql and VERSION_NAME.down.sql.
//
//go:embed *.sql
var FS embed.FS
