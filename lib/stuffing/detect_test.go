package stuffing

import (
	"errors"
	"fmt"
	"testing"
)

// window is one of an hour that looks the same all through.
func window(failures, successes, accounts, addresses int64) Window {
	return Window{longMinutes, failures, successes, (failures + 3) / 4, successes / 4, accounts, addresses}
}

// usual is a day on which a time has so many sign-ins an hour.
func usual(failures, successes int64) Window {
	return Window{Minutes: aroundMinutes, Failures: failures * aroundMinutes / 60, Successes: successes * aroundMinutes / 60}
}

// Row D9.
func TestWhatIsASignDependsOnThePast(t *testing.T) {
	week := func(day Window) []Window { return []Window{day, day, day, day, day, day, day} }
	for _, c := range []struct {
		name   string
		now    Window
		before past
		want   string
	}{
		{"too few failures", window(49, 0, 49, 49), past{}, "[]"},
		{"just enough of them, on the first day", window(50, 0, 50, 50), past{}, "[failures accounts-and-addresses failure-ratio]"},
		{"of few accounts at few addresses", window(50, 0, 15, 15), past{}, "[]"},
		{"of few accounts at some addresses", window(50, 0, 15, 16), past{}, "[failures failure-ratio]"},
		{"of many accounts at few addresses", window(50, 0, 50, 15), past{}, "[failures failure-ratio]"},
		{"beside right passwords that explain them", window(100, 100, 45, 90), past{}, "[]"},
		{"beside fewer", window(100, 74, 45, 90), past{}, "[failures]"},
		{"one for each account is more of a sign", window(100, 100, 80, 90), past{}, "[accounts-and-addresses]"},
		{"a quarter succeeds", window(90, 30, 45, 40), past{}, "[failures failure-ratio]"},
		{"as ever", window(200, 20, 90, 90), past{days: week(usual(200, 20))}, "[]"},
		{"many times what is usual at this time", window(1000, 20, 90, 90), past{days: week(usual(200, 20))}, "[failures failure-ratio]"},
		{"most of the past was quiet", window(200, 20, 60, 90), past{days: []Window{usual(900, 20), usual(10, 20), usual(10, 20), usual(900, 20)}}, "[failures accounts-and-addresses failure-ratio]"},
		{"it grows slowly", window(200, 20, 90, 90), past{before: Window{Minutes: 60, Failures: 100, Successes: 20}}, "[failure-ratio]"},
		{"it is over", Window{60, 500, 400, 20, 100, 250, 250}, past{}, "[]"},
		{"it is nearly over", Window{60, 500, 200, 12, 0, 250, 250}, past{}, "[]"},
		{"it has just begun", Window{60, 500, 100, 499, 25, 250, 250}, past{}, "[failures accounts-and-addresses failure-ratio]"},
	} {
		if got := fmt.Sprint(Thresholds{}.withDefaults().judge(c.now, c.before)); got != c.want {
			t.Errorf("%s: the signs are %s, want %s", c.name, got, c.want)
		}
	}
	strict := Thresholds{MinFailures: 10, Factor: 10, RatioPercent: 95}
	if got := fmt.Sprint(strict.judge(window(90, 30, 30, 30), past{})); got != "[]" {
		t.Errorf("other thresholds: %s", got)
	}
}

// told is a source that has only attacks to tell of.
type told struct {
	*memory
	when []span
	err  error
}

func (s told) windows(spans []span) (windows []Window, err error) {
	for _, span := range spans {
		windows = append(windows, Window{Minutes: span.to - span.from, Failures: 1})
	}
	return windows, nil
}

func (s told) attacks(int64) ([]span, error) { return s.when, s.err }

func TestAnAttackIsNoPast(t *testing.T) {
	const now = 20 * dayMinutes
	w := span{now - shortMinutes, now}
	for _, c := range []struct {
		name string
		when []span
		days int
		hour bool // before is known
		old  bool
	}{
		{"none", nil, 7, true, false},
		{"a day ago at this time", []span{{now - dayMinutes, now - dayMinutes + 1}}, 6, true, false},
		{"two of a week", []span{{now - dayMinutes, now - dayMinutes + 1}, {now - 3*dayMinutes, now - 3*dayMinutes + 1}}, 5, true, false},
		{"a day ago at another time", []span{{now - dayMinutes - 300, now - dayMinutes - 200}}, 7, true, false},
		{"it may have begun an hour before it was seen", []span{{now - dayMinutes + 89, now - dayMinutes + 99}}, 6, true, false},
		{"but not two", []span{{now - dayMinutes + 90, now - dayMinutes + 99}}, 7, true, false},
		{"the one that is on", []span{{now - 50, now}}, 7, false, false},
	} {
		p, old, err := readPast(w, told{when: c.when})
		if err != nil || len(p.days) != c.days || (p.before.Minutes > 0) != c.hour || old != c.old {
			t.Errorf("%s: %d days, the hour before %+v, old %t, %v", c.name, len(p.days), p.before, old, err)
		}
	}
	long := span{now - longMinutes, now}
	for end, want := range map[int64]bool{now - 60: false, now - 59: true, now - 30: true, now - 29: false, now: false} {
		if _, old, err := readPast(long, told{when: []span{{now - 100, end}}}); old != want || err != nil {
			t.Errorf("an hour with an attack until %d minutes ago is old: %t, %v", now-end, old, err)
		}
	}
	if _, _, err := readPast(w, told{err: errors.New("no")}); err == nil {
		t.Error("what can't be read is no error")
	}
}
