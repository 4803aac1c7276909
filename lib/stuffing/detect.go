package stuffing

import (
	"math"
	"slices"
	"time"
)

// Sign is a reason to call what is seen an attack.
type Sign string

// The signs, as they are told. Each is about what is normal for this site.
const (
	// Spike: more failures, over many accounts or addresses, than there were before or than so many sign-ins explain.
	Spike Sign = "failures"
	// Spread: many accounts fail, from many addresses.
	Spread Sign = "accounts-and-addresses"
	// Ratio: a high share of the attempts fails, and higher than it did before.
	Ratio Sign = "failure-ratio"
)

// Thresholds say from when on a sign is one. Zero values are the defaults.
type Thresholds struct {
	// MinFailures is what has to fail, in five minutes or in an hour, for anything to be an attack: a course of twenty people who
	// sign in for the first time is less. A third of it is how many accounts or addresses it takes.
	MinFailures int64
	// Factor is how many times the normal failures are a spike. A sale brings people who forget twice as often as others.
	Factor int64
	// RatioPercent is the share of attempts that failed, in percent, from which on it is a sign by itself.
	RatioPercent int64
}

// The defaults of Thresholds. They hold on the days of the tests, see docs/design.md.
const (
	DefaultMinFailures  = 50
	DefaultFactor       = 4
	DefaultRatioPercent = 75
)

func (t Thresholds) withDefaults() Thresholds {
	if t.MinFailures == 0 {
		t.MinFailures = DefaultMinFailures
	}
	if t.Factor == 0 {
		t.Factor = DefaultFactor
	}
	if t.RatioPercent == 0 {
		t.RatioPercent = DefaultRatioPercent
	}
	return t
}

// Window is what was seen in some complete minutes.
type Window struct {
	Minutes             int64
	Failures, Successes int64
	// LateFailures and LateSuccesses are those of the last quarter of the time; of a short window all.
	LateFailures, LateSuccesses int64
	// Accounts and Addresses are how many distinct ones failed: estimates.
	Accounts, Addresses int64
}

// past is what was seen before, in minutes without an attack. Minutes is 0 where nothing is known.
type past struct {
	// days are the windows around the same time of day on each of the last days, in any order.
	days []Window
	// before is the hour before the window that is judged.
	before Window
}

// The lengths of the windows that are judged: an attack in a hurry is seen in the one, a slow one in the other. The past of a
// window is the time around its end on each of the last days, and the hour before it.
const (
	shortMinutes  = 5
	longMinutes   = 60
	lateMinutes   = longMinutes / 4
	pastDays      = 7
	dayMinutes    = 24 * 60
	aroundMinutes = 90
)

const (
	// leastOdds are wrong passwords for each right one, of a site where everybody remembers. No site counts as better: what
	// changes there by a single newsletter is a multiple, and means nothing.
	leastOdds = 0.25
	// priorSuccesses is how many right passwords a day has to have for its odds to count about as much as leastOdds.
	priorSuccesses = 50
	// triesPerAccount is how often people who forgot their password try, on average. Lists are tried once for each account, so
	// that many accounts are a sign at a half of the failures that are one.
	triesPerAccount = 2
	// What was in a window and is over is no sign: the last quarter of it has to look the same, with a quarter of the failures.
	lateShare = 4
)

// normal is what to expect in a window: as many failures as there used to be, or as that many right passwords come with.
type normal struct {
	odds     float64 // failures for each right password
	usual    float64 // failures in the window, by the days alone
	failures float64 // in the window
}

func (p past) normal(w Window) normal {
	var rates, odds []float64
	for _, day := range p.days {
		if day.Minutes > 0 {
			rates = append(rates, float64(day.Failures)/float64(day.Minutes))
			odds = append(odds, (float64(day.Failures)+leastOdds*priorSuccesses)/float64(day.Successes+priorSuccesses))
		}
	}
	rate := median(rates)
	if p.before.Minutes > 0 {
		rate = max(rate, float64(p.before.Failures)/float64(p.before.Minutes))
	}
	// The hour before says nothing of the odds, or else an attack that grows slowly would be its own excuse.
	n := normal{odds: max(leastOdds, median(odds)), usual: median(rates) * float64(w.Minutes)}
	n.failures = max(rate*float64(w.Minutes), n.odds*float64(w.Successes))
	return n
}

// median is 0 of nothing. It is the lower one of two: an attack that nobody saw moves neither of most days.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// suspicious says whether a window may show a sign, whatever the past was and whoever failed: without it neither is read.
func (t Thresholds) suspicious(w Window) bool {
	least := leastOdds * min(float64(t.Factor)/triesPerAccount, triesPerAccount)
	return w.Failures >= t.MinFailures && float64(w.Failures) >= least*float64(w.Successes) &&
		w.LateFailures*lateShare >= t.MinFailures && float64(w.LateFailures) >= least*float64(w.LateSuccesses)
}

// judge gives the signs that a window shows. It knows no clock: a window is complete, and its past lies before it.
func (t Thresholds) judge(w Window, before past) (signs []Sign) {
	few := max(t.MinFailures/3, 2)
	if !t.suspicious(w) || w.Accounts < few && w.Addresses < few {
		return nil
	}
	n := before.normal(w)
	factor := float64(t.Factor)
	if float64(w.Failures) >= beyond(factor*n.failures) {
		signs = append(signs, Spike)
	}
	if w.Accounts >= t.MinFailures && w.Addresses >= few && float64(w.Accounts) >= beyond(factor/triesPerAccount*n.failures) {
		signs = append(signs, Spread)
	}
	// Twice its own past, and more of them than then, for a site where most attempts always fail.
	if w.Failures*100 >= t.RatioPercent*(w.Failures+w.Successes) &&
		float64(w.Failures) >= beyond(max(2*n.odds*float64(w.Successes), n.usual)) {
		signs = append(signs, Ratio)
	}
	return signs
}

// beyond is what a count seldom reaches by chance where so many are to be expected: three standard deviations more.
func beyond(expected float64) float64 { return expected + 3*math.Sqrt(expected) }

// Figures are what an alert tells of an attack: of the window in which it was first seen.
type Figures struct {
	Signs             []Sign  `json:"signs"`
	Minutes           int64   `json:"minutes"` // of the window
	Failures          int64   `json:"failures"`
	Successes         int64   `json:"successes"`
	FailuresPerMinute float64 `json:"failuresPerMinute"`
	// Accounts and Addresses are estimates with a standard error of ErrorPercent.
	Accounts     int64 `json:"accounts"`
	Addresses    int64 `json:"addresses"`
	ErrorPercent int64 `json:"errorPercent"`
	RatioPercent int64 `json:"ratioPercent"` // of the attempts failed
	// What was normal before.
	NormalFailuresPerMinute float64 `json:"normalFailuresPerMinute"`
	NormalRatioPercent      int64   `json:"normalRatioPercent"`
}

func figures(signs []Sign, w Window, before past) Figures {
	n := before.normal(w)
	return Figures{
		Signs:                   signs,
		Minutes:                 w.Minutes,
		Failures:                w.Failures,
		Successes:               w.Successes,
		FailuresPerMinute:       tenths(float64(w.Failures) / float64(w.Minutes)),
		Accounts:                w.Accounts,
		Addresses:               w.Addresses,
		ErrorPercent:            StandardErrorPercent,
		RatioPercent:            100 * w.Failures / (w.Failures + w.Successes),
		NormalFailuresPerMinute: tenths(n.failures / float64(w.Minutes)),
		NormalRatioPercent:      int64(math.Round(100 * n.odds / (1 + n.odds))),
	}
}

func tenths(x float64) float64 { return math.Round(x*10) / 10 }

// span are the minutes from one up to another one, without that.
type span struct{ from, to int64 }

// source is where figures are read. Minutes are those since 1970.
type source interface {
	// windows gives what was counted in each span, in order; nothing of who failed.
	windows(spans []span) ([]Window, error)
	// attacks gives the times of the attacks that were seen since a minute, but for those that an operator ended.
	attacks(since int64) ([]span, error)
	// distinct gives the sketches of the accounts and addresses that failed in a span.
	distinct(w span) (accounts, addresses sketch, err error)
}

// look judges the windows that end where a minute begins. It is nil if they show no sign.
func (t Thresholds) look(minute int64, from source) (*Figures, error) {
	short, long := span{minute - shortMinutes, minute}, span{minute - longMinutes, minute}
	windows, err := from.windows([]span{short, long, {minute - lateMinutes, minute}})
	if err != nil {
		return nil, err
	}
	for i, late := range []Window{windows[0], windows[2]} {
		windows[i].LateFailures, windows[i].LateSuccesses = late.Failures, late.Successes
	}
	for i, in := range []span{short, long} {
		w := windows[i]
		if !t.suspicious(w) {
			continue
		}
		before, old, err := readPast(in, from)
		if err != nil {
			return nil, err
		}
		if old {
			continue
		}
		accounts, addresses, err := from.distinct(in)
		if err != nil {
			return nil, err
		}
		// Each failure is of one account and one address: an estimate beyond them is too high.
		w.Accounts, w.Addresses = min(accounts.estimate(), w.Failures), min(addresses.estimate(), w.Failures)
		if signs := t.judge(w, before); len(signs) > 0 {
			found := figures(signs, w, before)
			return &found, nil
		}
	}
	return nil, nil
}

// readPast reads the past of a window. What lies in an attack is none, nor is a day on which nobody tried to sign in. The window is
// old if there is something in it of an attack that is over and was told of.
func readPast(w span, from source) (p past, old bool, err error) {
	spans := []span{{w.from - longMinutes, w.from}}
	for day := range int64(pastDays) {
		end := w.to - (day+1)*dayMinutes
		spans = append(spans, span{end - aroundMinutes*2/3, end + aroundMinutes/3})
	}
	windows, err := from.windows(spans)
	if err != nil {
		return past{}, false, err
	}
	attacks, err := from.attacks(spans[pastDays].from)
	if err != nil {
		return past{}, false, err
	}
	for i, s := range spans {
		inAttack := slices.ContainsFunc(attacks, func(a span) bool {
			return s.from < a.to && a.from-longMinutes < s.to // it began up to a window before it was seen
		})
		switch {
		case inAttack:
		case i == 0:
			p.before = windows[i]
		case windows[i].Failures+windows[i].Successes > 0:
			p.days = append(p.days, windows[i])
		}
	}
	old = slices.ContainsFunc(attacks, func(a span) bool { return w.from < a.to && a.to+quietMinutes <= w.to })
	return p, old, nil
}

const (
	quietMinutes = int64(Quiet / time.Minute)
	// Quiet is how long an attack counts as going on after it was last seen: long enough that one with pauses is one.
	Quiet = 30 * time.Minute
	// Same is how long after it was last seen an attack is the same one when it is seen again: then it is on again, without another
	// alert. While every sign-in takes a CAPTCHA no guess is compared, so that one that goes on is not seen, and seen again when it is over.
	Same = 24 * time.Hour
	// Peace is how long no attack begins after an operator ended one: what was seen is still in the windows.
	Peace = time.Hour
)
