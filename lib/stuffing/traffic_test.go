package stuffing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// attempt is a sign-in whose password was compared.
type attempt struct {
	account, address int
	failed           bool
}

// traffic is what a site sees, by minute. It is made from a seed, so that it is the same each time.
type traffic struct {
	random  *rand.Rand
	minutes [][]attempt
	people  int
	next    int // an address that nobody has had
}

// site is one of some size. Its days begin on a Monday.
type site struct {
	name    string
	visits  float64 // sign-ins of a day, about
	days    int
	seeds   int     // how many such sites are tried
	forgets float64 // the share of visits by people who forgot their password
}

// sites are from a club's to a shop's that many know.
var sites = []site{
	{"a few an hour", 60, 9, 60, 0.15},
	{"a thousand a day", 1_000, 9, 40, 0.12},
	{"ten thousand a day", 10_000, 9, 20, 0.12},
	{"two hundred thousand a day", 200_000, 9, 2, 0.10},
}

func newTraffic(s site, seed uint64) *traffic {
	t := &traffic{
		random:  rand.New(rand.NewPCG(seed, uint64(s.visits))),
		minutes: make([][]attempt, s.days*dayMinutes),
		people:  int(s.visits) * 20,
		next:    1 << 30,
	}
	for day := range s.days {
		begin := day * dayMinutes
		level := s.visits * (0.8 + 0.4*t.random.Float64())
		if day%7 >= 5 {
			level *= 0.6
		}
		for minute := range dayMinutes {
			rate := level * rhythm(minute)
			if day%7 == 2 && minute >= 14*60 && minute < 14*60+25 {
				continue // an outage: nobody gets as far as to a password
			}
			if day%7 == 2 && minute >= 14*60+25 && minute < 14*60+35 {
				rate *= 15 // all who were signed out by it
			}
			forgets := s.forgets
			if day%7 == 4 && minute >= 20*60 && minute < 20*60+40 {
				rate *= 10 // a sale, which also brings those who come once a year
				forgets *= 2
			}
			for range t.poisson(rate) {
				t.visit(begin+minute, t.random.IntN(t.people), t.address(), forgets)
			}
		}
		if day%7 == 0 { // on Monday morning, offices behind one address
			for range 1 + int(s.visits)/5_000 {
				office := t.address()
				for range min(int(s.visits/2), 300) {
					t.visit(begin+8*60+45+t.random.IntN(25), t.random.IntN(t.people), office, s.forgets*1.5)
				}
			}
		}
		// Somebody who mistypes the same password five times and gives up, somewhere in the day.
		at, account, address := begin+t.random.IntN(dayMinutes-10), t.random.IntN(t.people), t.address()
		for i := range 5 {
			t.add(at+i/3, attempt{account, address, true})
		}
		// A course whose 20 people sign in for the first time, with passwords on slips of paper.
		if day%7 == 3 {
			room := t.address()
			for i := range 20 {
				for range t.random.IntN(3) {
					t.add(begin+10*60+t.random.IntN(4), attempt{t.people + i, room, true})
				}
				t.add(begin+10*60+4, attempt{t.people + i, room, false})
			}
		}
	}
	return t
}

// rhythm is the share of a day's visits in a minute of it: few at night, most at noon and in the evening.
func rhythm(minute int) float64 {
	hour := float64(minute) / 60
	weight := 0.15 + math.Exp(-(hour-11)*(hour-11)/12) + 1.2*math.Exp(-(hour-20)*(hour-20)/6)
	return weight / (60 * (0.15*24 + math.Sqrt(12*math.Pi) + 1.2*0.98*math.Sqrt(6*math.Pi)))
}

func (t *traffic) poisson(mean float64) int {
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*t.random.NormFloat64())))
	}
	n, p := 0, t.random.Float64()
	for limit := math.Exp(-mean); p > limit; n++ {
		p *= t.random.Float64()
	}
	return n
}

func (t *traffic) address() int {
	t.next++
	return t.next
}

func (t *traffic) add(minute int, a attempt) {
	if minute < len(t.minutes) {
		t.minutes[minute] = append(t.minutes[minute], a)
	}
}

// visit is one of a person who knows the password, mistypes it, or has forgotten it: then they try one to six times in the next
// minutes, and half of them give up or take the link for a new one.
func (t *traffic) visit(minute, account, address int, forgets float64) {
	switch p := t.random.Float64(); {
	case p < forgets:
		tries := 1
		for tries < 6 && t.random.Float64() < 0.5 {
			tries++
		}
		for i := range tries {
			t.add(minute+i/2, attempt{account, address, true})
		}
		if t.random.Float64() < 0.5 {
			return
		}
		minute += tries / 2
	case p < forgets+0.05:
		t.add(minute, attempt{account, address, true})
	}
	t.add(minute, attempt{account, address, false})
}

// attack adds guesses at some rate: of every 200 one is right. Each is at another account, from addresses in turn.
func (t *traffic) attack(begin, minutes int, perMinute float64, addresses int) {
	first, account, due := t.next+1, t.people*2, 0.0
	t.next += addresses
	for minute := begin; minute < begin+minutes; minute++ {
		for due += perMinute; due >= 1; due-- {
			account++
			t.add(minute, attempt{account, first + account%addresses, account%200 > 0})
		}
	}
}

// memory is a source over traffic: what the database would have counted of it, by the same registers and ranks.
type memory struct {
	failures, successes []int64 // up to each minute
	ranks               []*[2 * registers]uint8
	found               []span
}

func remember(t *traffic, key []byte) *memory {
	m := &memory{make([]int64, len(t.minutes)+1), make([]int64, len(t.minutes)+1), make([]*[2 * registers]uint8, len(t.minutes)), nil}
	for minute, attempts := range t.minutes {
		m.failures[minute+1], m.successes[minute+1] = m.failures[minute], m.successes[minute]
		for _, a := range attempts {
			if !a.failed {
				m.successes[minute+1]++
				continue
			}
			m.failures[minute+1]++
			if m.ranks[minute] == nil {
				m.ranks[minute] = new([2 * registers]uint8)
			}
			for kind, subject := range []int{a.account, a.address} {
				register, rank := position(key, []string{"account", "address"}[kind], fmt.Sprint(subject))
				slot := &m.ranks[minute][kind*registers+int(register)]
				*slot = max(*slot, uint8(rank))
			}
		}
	}
	return m
}

func (m *memory) windows(spans []span) (windows []Window, err error) {
	for _, s := range spans {
		from, to := max(s.from, 0), max(s.to, 0)
		to = min(to, int64(len(m.ranks)))
		windows = append(windows, Window{
			Minutes: s.to - s.from, Failures: m.failures[to] - m.failures[from], Successes: m.successes[to] - m.successes[from],
		})
	}
	return windows, nil
}

func (m *memory) attacks(since int64) (attacks []span, err error) {
	for _, a := range m.found {
		if a.to > since {
			attacks = append(attacks, a)
		}
	}
	return attacks, nil
}

func (m *memory) distinct(s span) (accounts, addresses sketch, err error) {
	var ranks [2 * registers]uint8
	for minute := max(s.from, 0); minute < s.to; minute++ {
		if m.ranks[minute] != nil {
			for i, rank := range m.ranks[minute] {
				ranks[i] = max(ranks[i], rank)
			}
		}
	}
	var sketches [2]sketch
	for i, rank := range ranks {
		if rank > 0 {
			sketches[i/registers].filled++
			sketches[i/registers].powers += 1 << (maxRank - rank)
		}
	}
	return sketches[0], sketches[1], nil
}

// episode is an attack that was found.
type episode struct {
	minute  int // in which it was
	figures Figures
}

// watch looks at each minute in which anybody signs in, as processes do, and gives the attacks that are found.
func watch(t *testing.T, traffic *traffic, key []byte) (episodes []episode) {
	t.Helper()
	m, thresholds := remember(traffic, key), Thresholds{}.withDefaults()
	for minute, attempts := range traffic.minutes {
		if len(attempts) == 0 {
			continue
		}
		found, err := thresholds.look(int64(minute), m)
		if err != nil {
			t.Fatal(err)
		}
		if found == nil {
			continue
		}
		if last := len(m.found) - 1; last >= 0 && int64(minute)-m.found[last].to < quietMinutes {
			m.found[last].to = int64(minute) + 1
			continue
		}
		m.found = append(m.found, span{int64(minute), int64(minute) + 1})
		episodes = append(episodes, episode{minute, *found})
	}
	return episodes
}

func clockText(minute int) string {
	return fmt.Sprintf("day %d %02d:%02d", minute/dayMinutes, minute/60%24, minute%60)
}

// Row D9.
func TestNormalDaysRaiseNoAlert(t *testing.T) {
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			attempts, failures := 0, 0
			for seed := range uint64(s.seeds) {
				days := newTraffic(s, seed)
				for _, minute := range days.minutes {
					for _, a := range minute {
						if attempts++; a.failed {
							failures++
						}
					}
				}
				for _, e := range watch(t, days, []byte("the key of a site")) {
					t.Errorf("seed %d, %s: %+v", seed, clockText(e.minute), e.figures)
				}
			}
			t.Logf("%d days, %d attempts, %.0f %% of which failed", s.seeds*s.days, attempts, 100*float64(failures)/float64(attempts))
		})
	}
}

// Tuesday of the second week, at three in the afternoon: there is a past.
const attackBegins = 8*dayMinutes + 15*60

// attacks are what is added to the days that raise none.
var attacks = []struct {
	name      string
	begin     int
	minutes   int
	perMinute float64
	addresses int
	// within are the minutes in which it is seen at each of sites; 0 where it is not.
	within [4]int
}{
	{"a thousand addresses, two guesses each in an hour", attackBegins, 60, 33, 1000, [4]int{2, 2, 4, 0}},
	{"a thousand addresses, as many guesses as a large site has sign-ins", attackBegins, 60, 250, 1000, [4]int{1, 1, 1, 3}},
	{"one password over all accounts, from three addresses at their limit", attackBegins, 60, 30, 3, [4]int{2, 2, 4, 0}},
	{"two thousand guesses in two minutes", attackBegins, 2, 1000, 2000, [4]int{1, 1, 1, 1}},
	{"slow: two a minute for nine hours, each from another address", attackBegins, 9 * 60, 2, 1080, [4]int{30, 45, 0, 0}},
	{"slower: one in two minutes, for nine hours", attackBegins, 9 * 60, 0.5, 270, [4]int{0, 0, 0, 0}},
	{"at night", attackBegins - 12*60, 60, 20, 1000, [4]int{4, 4, 4, 10}},
	{"on the first day, without a past", 12 * 60, 60, 50, 1000, [4]int{2, 2, 4, 0}},
	{"in a sale's rush", 4*dayMinutes + 20*60 + 5, 30, 50, 1000, [4]int{2, 2, 15, 0}},
	{"twice, with ten minutes between", attackBegins, 10, 50, 1000, [4]int{2, 2, 4, 0}},
}

// Row D9.
func TestTheSameDaysWithAnAttackRaiseOneAlert(t *testing.T) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			var latest [4]int
			for i, s := range sites {
				for seed := range uint64(min(s.seeds/2, 3)) {
					days := newTraffic(s, seed)
					days.attack(a.begin, a.minutes, a.perMinute, a.addresses)
					if a.minutes == 10 {
						days.attack(a.begin+20, a.minutes, a.perMinute, a.addresses)
					}
					episodes := watch(t, days, []byte("the key of a site"))
					want := min(a.within[i], 1)
					if len(episodes) != want {
						t.Errorf("%s, seed %d: %d alerts, want %d: %+v", s.name, seed, len(episodes), want, episodes)
						continue
					}
					if want == 0 {
						continue
					}
					after := episodes[0].minute - a.begin
					latest[i] = max(latest[i], after)
					if after < 0 || after > a.within[i] {
						t.Errorf("%s, seed %d: seen after %d minutes, want %d: %+v", s.name, seed, after, a.within[i], episodes[0].figures)
					}
				}
			}
			t.Logf("seen after %v minutes at the latest, of at most %v", latest, a.within)
		})
	}
}
