package ailog

import (
	"errors"
	"math"
	"strings"
	"testing"
)

var lists = []list{{owner: 1}, {owner: 2}, {all: true}, {all: true, demo: true}}

func TestACursorIsOfOneListOnly(t *testing.T) {
	for _, made := range lists {
		for _, place := range []int64{1, 2, 1 << 40, math.MaxInt64} {
			cursor := made.cursor(place)
			for _, asked := range lists {
				got, err := asked.place(cursor)
				if asked == made && (got != place || err != nil) {
					t.Errorf("%+v: %d became %d, %v", made, place, got, err)
				}
				if asked != made && !errors.Is(err, ErrCursor) {
					t.Errorf("%+v reads a cursor of %+v: %d, %v", asked, made, got, err)
				}
			}
		}
	}
}

func TestWhatIsNoCursorIsRefused(t *testing.T) {
	l := list{owner: 1}
	good := l.cursor(7)
	for name, text := range map[string]string{
		"a word":               "next",
		"a number":             "7",
		"one too short":        good[1:],
		"one too long":         good + "A",
		"padding":              good + "==",
		"a line break within":  good[:4] + "\n" + good[5:],
		"a line break at last": good[:len(good)-1] + "\n",
		"line breaks alone":    strings.Repeat("\n", len(good)),
		"another alphabet":     strings.Repeat("+", len(good)),
		"another last bit":     good[:len(good)-1] + string(good[len(good)-1]+1),
		"another place":        "AAAAAAAAAAg" + good[11:],
		"no place":             l.cursor(0),
		"less than no place":   l.cursor(-1),
	} {
		if place, err := l.place(text); !errors.Is(err, ErrCursor) {
			t.Errorf("%s: %q is the place %d, %v", name, text, place, err)
		}
	}
	if place, err := l.start(good, 1); place != 7 || err != nil {
		t.Errorf("a good one: %d, %v", place, err)
	}
}

func FuzzACursorIsOneTextOfOneListOrNone(f *testing.F) {
	f.Add("", int64(1))
	f.Add(list{owner: 1}.cursor(7), int64(1))
	f.Add(list{owner: 2}.cursor(math.MaxInt64), int64(2))
	f.Add("AAAAAAAAAAAAAAAAAAAAAA", int64(0))
	f.Fuzz(func(t *testing.T, text string, owner int64) {
		for _, l := range []list{{owner: owner}, {all: true, demo: owner%2 == 0}} {
			place, err := l.place(text)
			if err != nil {
				if place != 0 || !errors.Is(err, ErrCursor) {
					t.Fatalf("%q: %d, %v", text, place, err)
				}
				continue
			}
			if place < 1 || l.cursor(place) != text {
				t.Fatalf("%q is the place %d, whose cursor is %q", text, place, l.cursor(place))
			}
			for _, other := range append(lists, list{owner: owner + 1}) {
				if _, err := other.place(text); other != l && err == nil {
					t.Fatalf("%q is a cursor of %+v and of %+v", text, l, other)
				}
			}
		}
	})
}
