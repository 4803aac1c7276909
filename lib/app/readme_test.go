package app

import (
	"bytes"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// settingsRead are the variables that LoadSettings asks for, by its own asking.
func settingsRead() []string {
	asked := map[string]bool{}
	_, _ = LoadSettings(func(name string) (string, bool) {
		asked[name] = true
		return "", false
	}, "")
	return slices.Sorted(maps.Keys(asked))
}

// settingsTold are the variables of the README's table, and what is wrong with its rows.
func settingsTold(readme string) (names, faults []string) {
	_, section, _ := strings.Cut(readme, "\n## Settings\n")
	section, _, _ = strings.Cut(section, "\n#")
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)$").FindAllStringSubmatch(section, -1) {
		name := row[1]
		if slices.Contains(names, name) {
			faults = append(faults, name+" is there twice")
		}
		names = append(names, name)
		columns := strings.Split(strings.TrimSuffix(row[2], "|"), " | ")
		if len(columns) != 2 || strings.TrimSpace(columns[0]) == "" || strings.TrimSpace(columns[1]) == "" {
			faults = append(faults, name+" lacks its default or its effect")
		}
	}
	slices.Sort(names)
	return names, faults
}

// Row F8.
func TestTheReadmesTableHoldsEverySettingThatIsReadAndNoOther(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	read := settingsRead()
	told, faults := settingsTold(string(readme))
	for _, fault := range faults {
		t.Error("README.md: " + fault)
	}
	if !slices.Equal(told, read) {
		t.Errorf("README.md tells of\n%q, and what is read is\n%q", told, read)
	}
}

func TestAFaultOfTheSettingsTableIsFound(t *testing.T) {
	const head = "# x\n| `BEFORE` | none | no |\n## Settings\n\n| variable | default | effect |\n|---|---|---|\n"
	for rows, want := range map[string]struct{ names, faults int }{
		"| `ONE` | none | does |\n| `TWO` | `2s` | does |\n\n## Next\n| `THREE` | none | no |": {2, 0},
		"| `ONE` | none | does |\n| `ONE` | none | does |\n":                                   {2, 1},
		"| `ONE` | | does |\n":      {1, 1},
		"| `ONE` | none | |\n":      {1, 1},
		"| `ONE` | none |\n":        {1, 1},
		"the text says ONE\n":       {0, 0},
		"| ONE | none | does |\n\n": {0, 0},
	} {
		if names, faults := settingsTold(head + rows); len(names) != want.names || len(faults) != want.faults {
			t.Errorf("%q: got %q, %q; want %+v", rows, names, faults, want)
		}
	}
}

// Row F8: of each setting, blanks are a wrong value. What the first request does is Serve's, but for where the log goes.
func TestEverySettingThatIsWrongIsNamedAtTheFirstRequest(t *testing.T) {
	for _, wrong := range settingsRead() {
		t.Run(wrong, func(t *testing.T) {
			t.Chdir(t.TempDir()) // a deployed function has no project around it
			for _, name := range settingsRead() {
				t.Setenv(name, platform()[name])
			}
			if _, err := (&loader{}).load(t.Context()); err != nil {
				t.Fatalf("nothing is wrong yet: %v", err)
			}
			t.Setenv(wrong, "  ")
			_, err := (&loader{}).load(t.Context())
			if err == nil {
				t.Fatal("blanks are accepted")
			}
			var log bytes.Buffer
			answer := httptest.NewRecorder()
			Unconfigured("usernames", true, slog.New(slog.NewJSONHandler(&log, nil)), err).ServeHTTP(answer, httptest.NewRequest("GET", "/api/usernames", nil))
			if answer.Code != http.StatusServiceUnavailable || strings.Contains(answer.Body.String(), wrong) {
				t.Errorf("the answer is %d %s: want 503, without the name", answer.Code, answer.Body)
			}
			if !strings.Contains(log.String(), wrong+" ") || strings.Contains(log.String(), testSecret) {
				t.Errorf("the log says %s: want the name, and no value", log.String())
			}
		})
	}
}

// Rows D5, C14: the guide has one picture of all limits, and says when to take which algorithm and which key.
func TestTheGuideHasEveryLimitInItsPlaceAndEveryAlgorithmAndKey(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(guide), "\n## Where each limit belongs\n")
	_, picture, _ := strings.Cut(section, "```\n")
	picture, rest, found := strings.Cut(picture, "```\n")
	if !found {
		t.Fatal("there is no picture")
	}
	drawn := strings.FieldsFunc(picture, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
	for _, policy := range builtIn {
		if !slices.Contains(drawn, policy.Name) {
			t.Errorf("the picture lacks %s", policy.Name)
		}
	}
	for _, place := range []string{"edge", "gateway", "authentication", "outbound"} {
		if !strings.Contains(picture, "─ "+place+": ") {
			t.Errorf("the picture has no place %q", place)
		}
	}
	for _, part := range []string{"the rules at the edge", "an instance", "the database does not answer", "the SMS gateway", "the mail server", "the receiver of alerts"} {
		if !strings.Contains(rest, part) {
			t.Errorf("nothing says what happens while %s is down", part)
		}
	}
	for heading, words := range map[string][]string{
		"## Which algorithm": {"fixed window", "sliding window", "sliding log", "token bucket", "leaky bucket"},
		"## Which key":       {"address", "account", "API key", "phone"},
	} {
		_, section, _ := strings.Cut(string(guide), "\n"+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, word := range words {
			if !strings.Contains(section, word) {
				t.Errorf("%q says nothing of %s", heading, word)
			}
		}
	}
}
