//go:build tools

// Package tools names the modules that Weir's own code never imports but its deployment is compiled with: Vercel's Go
// builder writes a main file that imports the bridge, and go.mod has to pin the version it gets.
package tools

import _ "github.com/vercel/go-bridge/go/bridge"
