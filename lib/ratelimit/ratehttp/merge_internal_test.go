package ratehttp

import (
	"net/http"
	"testing"

	"github.com/dunglas/httpsfv"
)

// Issue 10, point 9: whatever another service writes, the lists stay readable, and each policy is
// in each of them once.
func FuzzMergedFieldsAreReadable(f *testing.F) {
	for _, text := range []string{
		`"a";q=1;w=2`, `"a";r=1;t=2, "b";r=0`, `a;r=1`, `"a", "a"`, `"a\\"b";c="d\\\\";e`, `1;r=2`, `("a" "b");q=1`, `"a";pk=:YQ==:`,
		`"a";d=@123;x=?1;y=1.5;z=-2;k*=v/w:x`, `limit=10, remaining=1`, `"a";q=1,`, `,"a"`, `"a" ; q=1`, `"a";  q=1`, `"`, `"a`, "\"\x7f\"",
		`"a";q=1234567890123456`, `"a";q=1.`, `"a";x=%"f%c3%bc"`, "\"a\"\t,\t\"b\"", `"a";q=:!:`, `"a";q=@1.5`, "", " ", ";", "*a;*b=1",
	} {
		f.Add(text, text)
	}
	ours := figures{old: &oldFigures{3, 2, 60}, policies: []figure{{
		name: "api", policy: `"api";q=3;w=60`, current: `"api";r=2;t=60`, known: true, remaining: 2, reset: 60,
	}}}
	f.Fuzz(func(t *testing.T, policy, current string) {
		header := http.Header{}
		header[http.CanonicalHeaderKey(fieldPolicy)] = []string{policy, current}
		header[http.CanonicalHeaderKey(fieldCurrent)] = []string{current}
		ours.merge(header)
		for _, name := range []string{fieldPolicy, fieldCurrent} {
			list, err := httpsfv.UnmarshalList(header.Values(name))
			if err != nil || len(header.Values(name)) != 1 {
				t.Fatalf("%s %q: %v", name, header.Values(name), err)
			}
			seen := map[string]bool{}
			for _, one := range list {
				text := ""
				switch value := one.(httpsfv.Item).Value.(type) {
				case string:
					text = value
				case httpsfv.Token:
					text = string(value)
				}
				if seen[text] {
					t.Errorf("%s names %q twice: %q", name, text, header.Values(name))
				}
				seen[text] = true
			}
			if !seen["api"] {
				t.Errorf("%s lacks our policy: %q", name, header.Values(name))
			}
		}
		before := header.Clone()
		if ours.merge(header); header.Get(fieldCurrent) != before.Get(fieldCurrent) || header.Get(fieldPolicy) != before.Get(fieldPolicy) {
			t.Errorf("merged once more: %v, %v before", header, before)
		}
	})
}
