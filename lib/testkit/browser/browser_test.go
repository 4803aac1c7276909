//go:build unix

package browser

import (
	"slices"
	"strings"
	"testing"
)

func TestAScriptThatEndsEarlyIsNoSuccess(t *testing.T) {
	for output, want := range map[string]string{
		"":                                   "ended early",
		`{"name": "a"}` + "\n":               "ended early",
		`{"name": "a"}` + "\nnode: killed\n": "ended early",
		`{"name": "a"}` + "\n" + `{"ended": 2}` + "\n":                    "not every scenario",
		"noise\n" + `{"name": "a", "error": "x"}` + "\n" + `{"ended": 1}`: "",
	} {
		scenarios, err := read(output)
		switch {
		case want == "" && err == nil:
			if !slices.Equal(scenarios, []Scenario{{"a", "x"}}) {
				t.Errorf("%q: got %v", output, scenarios)
			}
		case want == "" || err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%q: got %v, want an error with %q", output, err, want)
		}
	}
}

func TestAProgramThatIsNotThereIsNamed(t *testing.T) {
	t.Setenv(Variable, "/nowhere/chromium")
	if _, err := chromium(); err == nil || !strings.Contains(err.Error(), "/nowhere/chromium") {
		t.Errorf("got %v, want an error that names it", err)
	}
}
