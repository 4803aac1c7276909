package storetest

import (
	"fmt"
	"sort"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// model answers for one key of one policy by the definition of its algorithm. It keeps all that ever happened to the key
// and computes each answer anew from all of it; it shares no code with what it judges. Times are milliseconds since 1970.
// It knows no clock that steps back.
type model struct {
	policy  ratelimit.Policy
	history []event
	audits  []int64 // when a refusal was audited
	owed    place   // of a bucket, before its history
	word    ratelimit.Action
	until   int64 // the end of word
}

// event is a charge that was made, or one that was given back.
type event struct {
	at     int64
	charge *charge
	back   int64 // what was given back of a bucket's charge, in shares
	isBack bool
}

// charge is what one admitted request took.
type charge struct {
	at, cost int64
	given    bool // back, or forgotten by an operator
}

func (m *model) window() int64 { return m.policy.Window.Milliseconds() }

func (m *model) capacity() int64 {
	switch m.policy.Algorithm {
	case ratelimit.LeakyBucket:
		return m.policy.Queue + 1
	case ratelimit.TokenBucket:
		if m.policy.Burst > 0 {
			return m.policy.Burst
		}
	}
	return m.policy.Limit
}

// between sums the charges that stand of those made from one time to before another.
func (m *model) between(from, to int64) (units int64) {
	for _, e := range m.history {
		if !e.isBack && !e.charge.given && from <= e.at && e.at < to {
			units += e.charge.cost
		}
	}
	return units
}

// roomFor says whether cost units fit at a time, by the algorithm alone.
func (m *model) roomFor(cost, now int64) bool {
	limit, window := m.policy.Limit, m.window()
	opened := now - now%window
	switch m.policy.Algorithm {
	case ratelimit.FixedWindow:
		return m.between(opened, opened+window)+cost <= limit
	case ratelimit.SlidingWindow:
		// previous × (1 − elapsed) + current + cost ≤ limit, with elapsed a fraction of the window
		previous, current := m.between(opened-window, opened), m.between(opened, opened+window)
		return previous*(window-(now-opened))+(current+cost)*window <= limit*window
	case ratelimit.SlidingLog:
		return m.between(now-window+1, now+1)+cost <= limit
	case ratelimit.TokenBucket:
		return cost*window <= m.tokens(now)
	case ratelimit.LeakyBucket:
		for _, free := range m.line(now).vacant {
			if free.end-free.start >= cost*window {
				return true
			}
		}
		return m.roomAtTheEnd(cost, now)
	}
	panic("no such algorithm")
}

// tokens replays a token bucket: full at first, refilled at limit per window, never above full. In shares: a unit has as
// many as the window has milliseconds, so that one comes in limit times a millisecond.
func (m *model) tokens(now int64) int64 {
	full := m.capacity() * m.window()
	tokens, last := full-m.owed.shares, m.owed.at
	for _, e := range m.history {
		tokens = min(full, tokens+(e.at-last)*m.policy.Limit)
		if e.isBack {
			tokens = min(full, tokens+e.back)
		} else {
			tokens -= e.charge.cost * m.window()
		}
		last = e.at
	}
	return min(full, tokens+(now-last)*m.policy.Limit)
}

func (m *model) roomAtTheEnd(cost, now int64) bool {
	return m.backlog(now)+cost*m.window() <= (m.policy.Queue+1)*m.window()
}

// line is a leaky bucket's queue at one time: where it ends, where each charge was put, and what was given back since. All are
// shares that a queue which never stands still has served by then.
type line struct {
	end    int64
	slots  map[*charge]slot
	vacant []slot // in no order
}

type slot struct{ start, end int64 }

// line replays a leaky bucket as a queue with fixed places: a charge takes the first vacant place that is large enough, or the
// end of the queue, and leaves when the place's turn comes. A place that is given back before that is vacant.
func (m *model) line(now int64) line {
	l := line{end: m.owed.at*m.policy.Limit + m.owed.shares, slots: map[*charge]slot{}}
	pass := func(at int64) {
		served := at * m.policy.Limit
		l.end = max(l.end, served)
		var ahead []slot
		for _, free := range l.vacant {
			for free.start < served {
				free.start += m.window()
			}
			if free.start < free.end {
				ahead = append(ahead, free)
			}
		}
		l.vacant = ahead
	}
	for _, e := range m.history {
		pass(e.at)
		if e.isBack {
			if mine := l.slots[e.charge]; mine.start >= e.at*m.policy.Limit {
				l.vacant = append(l.vacant, mine)
			}
			continue
		}
		size, first := e.charge.cost*m.window(), -1
		for i, free := range l.vacant {
			if free.end-free.start >= size && (first < 0 || free.start < l.vacant[first].start) {
				first = i
			}
		}
		if first < 0 {
			l.slots[e.charge] = slot{l.end, l.end + size}
			l.end += size
			continue
		}
		start := l.vacant[first].start
		l.slots[e.charge] = slot{start, start + size}
		l.vacant[first].start += size
	}
	pass(now)
	return l
}

// place is what waits of one charge at a time.
type place struct {
	charge *charge
	shares int64
	at     int64
}

// queue replays a token bucket from behind: charges join its end, limit units in each window leave its front, and a charge that
// is given back leaves from where it stands.
func (m *model) queue(now int64) []place {
	var queue []place
	if m.owed.shares > 0 {
		queue = append(queue, m.owed)
	}
	last := m.owed.at
	pass := func(at int64) {
		served := (at - last) * m.policy.Limit
		for len(queue) > 0 && served > 0 {
			n := min(served, queue[0].shares)
			queue[0].shares -= n
			served -= n
			if queue[0].shares == 0 {
				queue = queue[1:]
			}
		}
		last = at
	}
	for _, e := range m.history {
		pass(e.at)
		if !e.isBack {
			queue = append(queue, place{e.charge, e.charge.cost * m.window(), e.at})
			continue
		}
		for i, place := range queue {
			if place.charge == e.charge {
				queue = append(queue[:i:i], queue[i+1:]...)
				break
			}
		}
	}
	pass(now)
	return queue
}

// backlog is how much of a bucket is charged: of a queue up to its end, vacant places included.
func (m *model) backlog(now int64) (shares int64) {
	if m.policy.Algorithm == ratelimit.LeakyBucket {
		return m.line(now).end - now*m.policy.Limit
	}
	for _, place := range m.queue(now) {
		shares += place.shares
	}
	return shares
}

// admits says whether the key takes cost units at a time, with what an operator said about it.
func (m *model) admits(cost, now int64) bool {
	if now < m.until {
		return m.word == ratelimit.Allow || cost == 0 && m.word != ratelimit.Ban
	}
	return cost == 0 || m.roomFor(cost, now)
}

// remaining is the largest cost that fits.
func (m *model) remaining(now int64) int64 {
	if m.word == ratelimit.Ban && now < m.until {
		return 0
	}
	if m.policy.Algorithm != ratelimit.LeakyBucket {
		return int64(sort.Search(int(m.capacity()), func(i int) bool { return !m.roomFor(int64(i)+1, now) }))
	}
	units := m.leftAtTheEnd(now)
	for _, free := range m.line(now).vacant {
		units += (free.end - free.start) / m.window()
	}
	return units
}

func (m *model) leftAtTheEnd(now int64) int64 {
	return int64(sort.Search(int(m.capacity()), func(i int) bool { return !m.roomAtTheEnd(int64(i)+1, now) }))
}

// wait is the shortest time, in milliseconds, after which cost units are admitted if nobody else comes.
func (m *model) wait(cost, now int64) int64 {
	if m.admits(cost, now) {
		return 0
	}
	return m.first(now, func(at int64) bool { return m.admits(cost, at) })
}

// reset is the time until more units are to be had; a fixed window names its end, full or not.
func (m *model) reset(now int64) int64 {
	remaining := m.remaining(now)
	banned := m.word == ratelimit.Ban && now < m.until
	switch {
	case m.policy.Algorithm == ratelimit.FixedWindow && !banned:
		return m.window() - now%m.window()
	case m.policy.Algorithm == ratelimit.LeakyBucket && !banned: // vacant places come to their turn; the end of the queue moves up
		if m.leftAtTheEnd(now) == m.capacity() {
			return 0
		}
		return m.first(now, func(at int64) bool { return m.leftAtTheEnd(at) > m.leftAtTheEnd(now) })
	case remaining == m.capacity():
		return 0
	}
	return m.first(now, func(at int64) bool { return m.remaining(at) > remaining })
}

// first finds when something that stays true becomes true, in milliseconds from now.
func (m *model) first(now int64, becomes func(at int64) bool) int64 {
	longest := 2*m.window() + max(m.until-now, 0) + 1
	if m.backlogged() {
		longest += (m.backlog(now) + m.capacity()*m.window()) / m.policy.Limit
	}
	return int64(sort.Search(int(longest), func(ms int) bool { return becomes(now + int64(ms)) }))
}

func (m *model) backlogged() bool {
	return m.policy.Algorithm == ratelimit.TokenBucket || m.policy.Algorithm == ratelimit.LeakyBucket
}

// take makes a charge and says how long its caller has to wait for its turn in a leaky bucket, in milliseconds.
func (m *model) take(cost, now int64) (made *charge, delay int64) {
	if m.policy.Algorithm == ratelimit.LeakyBucket {
		made = &charge{at: now, cost: cost}
		m.history = append(m.history, event{at: now, charge: made})
		delay = (m.line(now).slots[made].start - now*m.policy.Limit + m.policy.Limit - 1) / m.policy.Limit
		return made, delay
	}
	made = &charge{at: now, cost: cost}
	m.history = append(m.history, event{at: now, charge: made})
	return made, 0
}

// giveBack takes what still stands of a charge out of the key.
func (m *model) giveBack(c *charge, now int64) {
	if c.given {
		return
	}
	var stands int64
	if m.policy.Algorithm == ratelimit.TokenBucket {
		for _, place := range m.queue(now) {
			if place.charge == c {
				stands = place.shares
			}
		}
	}
	c.given = true
	m.history = append(m.history, event{at: now, charge: c, back: stands, isBack: true})
}

// operate does what an operator asks.
func (m *model) operate(action ratelimit.Action, until int64) {
	m.word, m.until = action, until
	if action == ratelimit.Reset {
		m.until = 0
		for _, e := range m.history {
			e.charge.given = true
		}
		m.history, m.owed = nil, place{}
	}
}

// refuse tells whether a refusal is the first of its window, and so audited.
func (m *model) refuse(now int64) {
	if len(m.audits) > 0 {
		last := m.audits[len(m.audits)-1]
		aligned := m.policy.Algorithm == ratelimit.FixedWindow || m.policy.Algorithm == ratelimit.SlidingWindow
		if aligned && last/m.window() == now/m.window() || !aligned && now-last < m.window() {
			return
		}
	}
	m.audits = append(m.audits, now)
}

// ask is one limit of a decision that the models take.
type ask struct {
	key  *model
	cost int64
}

// answer is what the models say to a decision; in each limit only the fields below are set.
type answer struct {
	ratelimit.Decision
	charges []*charge // of each limit; nil where none was made
}

// decide takes one decision: all or nothing, but for the limits that count every attempt.
func decide(now int64, asks []ask) answer {
	out := answer{charges: make([]*charge, len(asks))}
	out.Limits = make([]ratelimit.LimitResult, len(asks))
	out.Allowed = true
	for i, a := range asks {
		out.Limits[i].Policy = a.key.policy
		out.Limits[i].Allowed = a.key.admits(a.cost, now)
		out.Allowed = out.Allowed && out.Limits[i].Allowed
	}
	for i, a := range asks {
		limit := &out.Limits[i]
		switch {
		case !limit.Allowed:
			if a.cost > 0 {
				a.key.refuse(now)
			}
		case a.cost > 0 && (out.Allowed || a.key.policy.Count == ratelimit.EveryAttempt) && a.key.roomFor(a.cost, now):
			var delay int64
			out.charges[i], delay = a.key.take(a.cost, now)
			if a.key.word != ratelimit.Allow || now >= a.key.until { // who is exempt doesn't wait
				limit.Delay = milliseconds(delay)
			}
		}
	}
	for i, a := range asks {
		limit := &out.Limits[i]
		limit.Remaining = a.key.remaining(now)
		limit.Reset = milliseconds(a.key.reset(now))
		if !limit.Allowed {
			wait := milliseconds(a.key.wait(a.cost, now))
			limit.RetryAfter, limit.Reset = wait, wait
		}
	}
	if !out.Allowed {
		out.RetryAfter = milliseconds(waitForAll(now, asks))
	}
	return out
}

// waitForAll is the shortest time, in milliseconds, after which all admit the same once more, and still do when that time is
// told in whole seconds. Each begins to admit after its own wait, or, when it is exempt or has a vacant place, after one that
// begins when that is over.
func waitForAll(now int64, asks []ask) int64 {
	var waits []int64
	for _, a := range asks {
		waits = append(waits, a.key.wait(a.cost, now))
		ends := []int64{}
		if a.key.word == ratelimit.Allow && now < a.key.until {
			ends = append(ends, a.key.until)
		}
		if a.key.policy.Algorithm == ratelimit.LeakyBucket {
			for _, free := range a.key.line(now).vacant {
				for at := free.start; at < free.end; at += a.key.window() {
					ends = append(ends, at/a.key.policy.Limit+1) // when the place's turn is over
				}
			}
		}
		for _, end := range ends {
			if end > now {
				waits = append(waits, end-now+a.key.wait(a.cost, end))
			}
		}
	}
	sort.Slice(waits, func(i, j int) bool { return waits[i] < waits[j] })
	for _, wait := range waits {
		enough := true
		for _, a := range asks {
			enough = enough && a.key.admits(a.cost, now+wait) && a.key.admits(a.cost, now+(wait+999)/1000*1000)
		}
		if enough {
			return wait
		}
	}
	panic("some limit never admits")
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// differs compares a decision with another and describes the first difference; "" when there is none.
func differs(got, want ratelimit.Decision) string {
	if got.Allowed != want.Allowed || got.RetryAfter != want.RetryAfter || len(got.Limits) != len(want.Limits) {
		return fmt.Sprintf("allowed %t of %d limits, retry after %v; want %t of %d, %v",
			got.Allowed, len(got.Limits), got.RetryAfter, want.Allowed, len(want.Limits), want.RetryAfter)
	}
	for i := range got.Limits {
		if g, w := summary(got.Limits[i]), summary(want.Limits[i]); g != w {
			return fmt.Sprintf("limit %d, %s: %s; want %s", i, describe(want.Limits[i].Policy), g, w)
		}
	}
	return ""
}

func summary(r ratelimit.LimitResult) string {
	return fmt.Sprintf("allowed %t, %d left, reset in %v, retry after %v, delay %v", r.Allowed, r.Remaining, r.Reset, r.RetryAfter, r.Delay)
}

func describe(p ratelimit.Policy) string {
	text := fmt.Sprintf("%s of %d in %v", p.Algorithm, p.Limit, p.Window)
	if p.Burst > 0 {
		text += fmt.Sprintf(", burst %d", p.Burst)
	}
	if p.Queue > 0 {
		text += fmt.Sprintf(", queue %d", p.Queue)
	}
	if p.Count == ratelimit.EveryAttempt {
		text += ", every attempt"
	}
	return text
}
