//go:build unix

package vercel

import (
	"os"
	"sync"
	"testing"
)

// BuildVariable names the environment variable with the folder of a finished BuildInto. scripts/check sets it, so that all the
// test processes of a run share one build.
const BuildVariable = "WEIR_VERCEL_BUILD"

// Build returns the output of vercel build: the run's, or one made once in this test process. Where the CLI is missing, it
// does what Require does. The folder of a build made here is removed by Main.
func Build(t testing.TB) *Output {
	t.Helper()
	if dir := os.Getenv(BuildVariable); dir != "" {
		out, err := open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	Require(t)
	out, err := own()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var ownDir string

// own builds once; every later call returns the same.
var own = sync.OnceValues(func() (*Output, error) {
	dir, err := os.MkdirTemp("", "weir-build-")
	if err != nil {
		return nil, err
	}
	ownDir = dir
	return BuildInto(dir)
})

// Main runs a package's tests and removes what Build left. Packages that call Build call it in their TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	if ownDir != "" {
		os.RemoveAll(ownDir)
	}
	return code
}
