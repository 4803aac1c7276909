package codes

import (
	"errors"
	"strings"
	"testing"
)

func TestParseReadsACodeAsPeopleTypeIt(t *testing.T) {
	const want = Code("WEIR-0123-4567-89AB")
	for _, text := range []string{
		"WEIR-0123-4567-89AB",
		"weir-0123-4567-89ab",
		"  weir 0123 4567 89ab\n",
		"weir0123456789ab",
		"W E I R 0 1 2 3 4 5 6 7 8 9 A B",
		"WEIR-OI23-4567-89AB",
		"WEIR-ol23-4567-89AB",
		"we1r-0123-4567-89ab",
		"WEIR\u20130123\u20114567\u00a089AB", // en dash, non-breaking hyphen, non-breaking space
	} {
		if got, err := Parse(text); got != want || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestParseRefusesWhatIsNoCode(t *testing.T) {
	for _, text := range []string{
		"",
		" ",
		"WEIR",
		"WEIR-0123-4567-89A",
		"WEIR-0123-4567-89ABC",
		"0123-4567-89AB",
		"WEIR-0123-4567-89AU",
		"WEIR-0123-4567-89A_",
		"WEIR-0123-4567-89A\x00",
		"WEIR-0123-4567-89A\xff",
		"WEIR-0123-4567-89AB" + strings.Repeat(" ", maxTextBytes),
		strings.Repeat("WEIR-0123-4567-89AB", 10_000),
	} {
		got, err := Parse(text)
		if got != "" || !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), Form) {
			t.Errorf("%v doesn't say what a code looks like", err)
		}
	}
}

func TestNewCodesAreCodesAndDiffer(t *testing.T) {
	seen := map[Code]bool{}
	used := map[rune]bool{}
	for range 1000 {
		code := newCode()
		if got, err := Parse(string(code)); got != code || err != nil {
			t.Fatalf("%q parses as %q, %v", code, got, err)
		}
		if seen[code] {
			t.Fatalf("%q was made twice", code)
		}
		seen[code] = true
		for _, r := range code[len(prefix):] {
			used[r] = true
		}
	}
	if len(used) != len(alphabet)+1 { // and the hyphen
		t.Errorf("%d symbols in 1000 codes, want %d", len(used), len(alphabet)+1)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("WEIR-0123-4567-89AB")
	f.Add(" weir oil2 4567\u00a089ab")
	f.Add("WEIR-0123-4567-89A\xff")
	f.Fuzz(func(t *testing.T, text string) {
		code, err := Parse(text)
		if err != nil {
			if code != "" || !errors.Is(err, ErrUnknown) {
				t.Fatalf("%q: %q, %v", text, code, err)
			}
			return
		}
		if again, err := Parse(string(code)); again != code || err != nil {
			t.Fatalf("%q gives %q, which gives %q, %v", text, code, again, err)
		}
		if len(code) != len("WEIR-XXXX-XXXX-XXXX") {
			t.Fatalf("%q gives %q", text, code)
		}
	})
}
