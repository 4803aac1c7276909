package ratelimit

import (
	"slices"
	"sort"
)

// State is what a store keeps of one key. The zero value is a key that was never charged. Times are microseconds since
// 1970 by the store's clock, in whole milliseconds.
//
// A state is relative to the key's own time, HighMicros − BehindMicros: Used units stood then, just after the last write.
// The key's time is the store's, except after that stepped back: then the state comes along to the earlier time as it
// stands, so that nobody gains units and nobody is kept waiting for the clock to come back. Time that is passed again is
// credited once more, not more often: PassedMicros says up to where, and when the clock steps back further into it, the
// key's time stands still until the clock is out of it.
//
// Used means the same for every algorithm, so that a policy may change its algorithm: the units that stood under the old
// one stand under the new one, a part of a unit as a whole one, as if they had all been charged at the last write. A log
// may still keep units that have expired, fewer than stand; they carry over too.
type State struct {
	Algorithm     Algorithm // that wrote the state
	WindowMicros  int64     // of the policy that wrote it
	Per           int64     // the limit of that policy
	HighMicros    int64     // the latest time the key has seen; never goes back
	BehindMicros  int64     // how far the key's time lies before HighMicros: 0 unless the clock stepped back
	PassedMicros  int64     // up to where time before HighMicros has been passed again, 0 for never; while behind, where the clock stepped back to, 0 if some time before that was passed twice
	Epoch         int64     // begins at random, and grows when the key's time or policy changes or an operator resets it: charges of another epoch are gone
	Sequence      int64     // grows with each write, and is never below HighMicros: orders charges and refunds, also across a sweep
	Used          int64     // units that stood just after the last write
	Rest          int64     // SlidingWindow: units of the previous window. Buckets: beyond Used, in Window-milliseconds
	Log           []int64   // SlidingLog: the time of each unit, oldest first, as of the last write
	Place         int64     // LeakyBucket: where what was charged last ends in the queue, in Window-milliseconds from its front
	Vacant        []Vacancy // LeakyBucket: places that were given back
	RefusedMicros int64     // when the newest audited refusal was; 0 for never
	Override      Override  // what an operator said about the key
	UntilMicros   int64     // when Override ends
	SaidMicros    int64     // when an operator last said something; 0 for never. The later word counts of a subject's two states
}

// Override is an operator's word about one key, for a time.
type Override uint8

const (
	None   Override = iota
	Banned          // refused whatever is left
	Exempt          // admitted and counted, whatever is left
)

// Vacancy is a place in a LeakyBucket's queue that was given back before its turn. Those behind it keep theirs, so that the
// queue keeps its pace; who comes next gets the first one that is large enough.
type Vacancy struct {
	ChargedMicros int64 // when it was charged
	End           int64 // where it ended in the queue then, in Window-milliseconds from the front
	Units         int64 // that are vacant, up to End
}

// maxVacancies bounds the vacancies of one key. What is given back beyond it stays taken until its turn is over.
const maxVacancies = 1000

// standing is a state brought to the present, before a charge.
type standing struct {
	nowMicros  int64 // the key's time
	highMicros int64
	passed     int64
	epoch      int64
	stepped    bool // the clock has stepped back since the key's last write
	// What stands: units, and for the buckets their debt in fractions of 1 / Window in milliseconds.
	units    int64
	previous int64   // SlidingWindow
	log      []int64 // SlidingLog: all that is kept, expired ones included
	vacant   []Vacancy
}

// step is what one limit says to one charge at one moment, by itself.
type step struct {
	standing
	fits        bool
	place       int64 // LeakyBucket: what is before the charge in the queue, in units times milliseconds of the window
	vacancy     int   // LeakyBucket: which vacancy the charge takes; -1 for a place at the end
	counts      bool  // the charge fits by the algorithm, so it is counted; an exemption may admit others
	remaining   int64
	resetMicros int64 // until more units are to be had; 0 when none is in use
	retryMicros int64 // until the charge fits, leaving an exemption aside; 0 when it does
	exempt      int64 // microseconds for which an exemption or a vacancy admits it besides; 0 for neither
	exempted    bool  // by an operator
	first       bool  // a refusal now is the first of its window, and is to be audited
}

// moved gives the moment up to which a state's units have been counted, for a store whose clock shows nowMicros.
func (s State) moved(nowMicros int64) int64 {
	switch {
	case s.HighMicros == 0:
		return nowMicros
	case s.BehindMicros == 0 && nowMicros < s.HighMicros:
		return min(max(nowMicros, s.PassedMicros), s.HighMicros)
	case s.fresh() && nowMicros < s.PassedMicros:
		return nowMicros
	}
	return s.HighMicros - s.BehindMicros
}

// fresh says that no time has been passed again since the clock stepped back, nor before: it may step back further.
func (s State) fresh() bool {
	return s.BehindMicros > 0 && s.PassedMicros == s.HighMicros-s.BehindMicros
}

// passed gives the PassedMicros of a state that has come to at by a step of the clock, if any, and on to nowMicros.
func (s State) passed(at, nowMicros, clockMicros int64) int64 {
	switch {
	case nowMicros >= s.HighMicros && s.BehindMicros > 0:
		return s.HighMicros
	case nowMicros >= s.HighMicros:
		return s.PassedMicros
	case s.BehindMicros == 0 && s.PassedMicros == 0, s.fresh() && clockMicros < s.PassedMicros:
		return at
	case s.BehindMicros == 0:
		return 0
	}
	return s.PassedMicros
}

// bring brings a state to nowMicros, for a policy whose algorithm may be another than the state's.
func (p Policy) bring(s State, nowMicros int64) standing {
	at, window, ms := s.moved(nowMicros), p.Window.Microseconds(), p.Window.Milliseconds()
	clockMicros := nowMicros
	nowMicros = max(nowMicros, at)
	out := standing{
		nowMicros:  nowMicros,
		highMicros: max(s.HighMicros, nowMicros),
		passed:     s.passed(at, nowMicros, clockMicros),
		epoch:      s.Epoch,
		stepped:    s.HighMicros != 0 && at < s.HighMicros-s.BehindMicros,
	}
	if s.HighMicros != 0 && (at != s.HighMicros-s.BehindMicros || p.reshapes(s)) {
		out.epoch++
	} else if p.Algorithm == LeakyBucket {
		out.vacant = s.Vacant
	}
	used := max(s.Used, 0)
	var rest int64
	switch wasBucket := s.Algorithm == TokenBucket || s.Algorithm == LeakyBucket; {
	case s.Algorithm == p.Algorithm || wasBucket && p.bucket():
		rest = max(s.Rest, 0)
	case wasBucket && s.Rest > 0:
		used = addUnits(used, 1) // a part of a unit carries over as a whole one
	}
	switch p.Algorithm {
	case FixedWindow, SlidingWindow:
		switch nowMicros/window - at/window {
		case 0:
			out.units, out.previous = used, rest
		case 1:
			out.previous = used
		}
	case SlidingLog:
		if s.Algorithm == SlidingLog {
			shift := at - (s.HighMicros - s.BehindMicros)
			for _, micros := range s.Log {
				out.log = append(out.log, micros+shift)
			}
		} else {
			out.log = appendTimes(nil, at, min(used, p.Limit))
		}
		out.units = int64(len(out.log))
	default:
		debt := min(used, maxProduct/ms)*ms + min(rest, ms-1)
		out.units = max(debt-min((nowMicros-at)/1000, maxProduct/p.Limit)*p.Limit, 0)
	}
	return out
}

// reshapes says whether the policy counts otherwise than the one that wrote a state: how much of an older charge stands then
// can't be told.
func (p Policy) reshapes(s State) bool {
	return s.Algorithm != p.Algorithm || s.WindowMicros != p.Window.Microseconds() || p.bucket() && s.Per != p.Limit
}

func (p Policy) bucket() bool { return p.Algorithm == TokenBucket || p.Algorithm == LeakyBucket }

// step asks one limit for cost units at nowMicros. It is a pure function; cost is between 0 and Capacity.
func (p Policy) step(s State, nowMicros, cost int64) step {
	out := step{standing: p.bring(s, nowMicros)}
	clockMicros := nowMicros
	nowMicros = out.nowMicros
	switch p.Algorithm {
	case FixedWindow:
		p.fixedWindow(&out, cost)
	case SlidingWindow:
		p.slidingWindow(&out, cost)
	case SlidingLog:
		p.slidingLog(&out, cost)
	default:
		p.bucketStep(&out, cost)
	}
	if out.fits {
		out.retryMicros = 0
	}
	p.findVacancy(&out, cost)
	if ahead := nowMicros - clockMicros; ahead > 0 { // the key's time waits for the clock
		if out.retryMicros > 0 {
			out.retryMicros += ahead
		}
		if out.exempt > 0 {
			out.exempt += ahead
		}
		if out.resetMicros > 0 {
			out.resetMicros += ahead
		}
	}
	out.counts = out.fits
	banned := false
	if ends := s.UntilMicros - clockMicros; s.Override != None && ends > 0 {
		if s.Override == Exempt {
			out.fits, out.exempted, out.exempt = true, true, max(out.exempt, ends)
		} else {
			banned = true
			if out.remaining > 0 {
				out.resetMicros = ends
			}
			out.resetMicros, out.retryMicros = max(out.resetMicros, ends), max(out.retryMicros, ends)
			out.fits, out.counts, out.remaining, out.exempt = false, false, 0, 0
		}
	}
	if cost == 0 && !banned {
		out.fits, out.retryMicros = true, 0
	}
	out.remaining = max(out.remaining, 0)
	window := p.Window.Microseconds()
	switch {
	case s.RefusedMicros == 0:
		out.first = true
	case p.Algorithm == FixedWindow || p.Algorithm == SlidingWindow:
		out.first = s.RefusedMicros/window != nowMicros/window
	default:
		out.first = nowMicros-s.RefusedMicros >= window || nowMicros < s.RefusedMicros
	}
	return out
}

func (p Policy) fixedWindow(out *step, cost int64) {
	window := p.Window.Microseconds()
	out.fits = cost <= p.Limit-out.units
	out.remaining = p.Limit - out.units
	out.resetMicros = window - out.nowMicros%window
	out.retryMicros = out.resetMicros
}

// slidingWindow counts in products of units and milliseconds: previous × (1 − elapsed) + current ≤ limit, times window.
func (p Policy) slidingWindow(out *step, cost int64) {
	ms := p.Window.Milliseconds()
	elapsed := out.nowMicros % p.Window.Microseconds() / 1000
	previous, current := min(out.previous, maxProduct/ms), min(out.units, maxProduct/ms)
	weight := previous*(ms-elapsed) + current*ms
	out.fits = weight <= (p.Limit-cost)*ms
	out.remaining = (p.Limit*ms - weight) / ms
	// until waits for the estimate to leave room: within this window while the previous one fades, or in the next while
	// this one does, at the latest at its end.
	until := func(room int64) int64 {
		switch {
		case room >= current && previous*(ms-elapsed) <= (room-current)*ms:
			return 0
		case room >= current:
			return ms - elapsed - (room-current)*ms/previous
		}
		return ms - elapsed + ms - room*ms/current
	}
	if weight > 0 {
		out.resetMicros = until(p.Limit-1-max(out.remaining, 0)) * 1000
	}
	out.retryMicros = until(p.Limit-cost) * 1000
}

func (p Policy) slidingLog(out *step, cost int64) {
	window := p.Window.Microseconds()
	expired := sort.Search(len(out.log), func(i int) bool { return out.log[i] > out.nowMicros-window })
	stands := int64(len(out.log) - expired)
	out.fits = cost <= p.Limit-stands
	out.remaining = p.Limit - stands
	if stands > 0 {
		// More is to be had when the newest of those that must go for one more unit has gone.
		out.resetMicros = out.log[expired+int(max(stands-p.Limit, 0))] + window - out.nowMicros
	}
	if !out.fits {
		out.retryMicros = out.log[expired+int(stands+cost-p.Limit)-1] + window - out.nowMicros
	}
}

// bucketStep serves both buckets: what a token bucket has given out is the length of a leaky bucket's queue.
func (p Policy) bucketStep(out *step, cost int64) {
	ms := p.Window.Milliseconds()
	full := p.Capacity() * ms
	out.fits = out.units <= full-cost*ms
	out.remaining = (full - out.units) / ms
	until := func(debt int64) int64 { // for the debt to fall to this
		return min((max(out.units-debt, 0)+p.Limit-1)/p.Limit, MaxWindow.Milliseconds()) * 1000
	}
	out.resetMicros = until(full - (max(out.remaining, 0)+1)*ms)
	if out.units == 0 {
		out.resetMicros = 0
	}
	out.retryMicros = until(full - cost*ms)
}

// findVacancy looks for a place that was given back and is large enough for the charge: it takes the first one.
func (p Policy) findVacancy(out *step, cost int64) {
	ms := p.Window.Milliseconds()
	out.place, out.vacancy = out.units, -1
	out.remaining = max(out.remaining, 0)
	for i, vacancy := range out.vacant {
		start, units := p.turn(vacancy, out.nowMicros)
		if units <= 0 {
			continue
		}
		// Of a place only what lies within the queue counts: that may be shorter now than when the place was given.
		units = min(units, (p.Capacity()*ms-start)/ms)
		if units <= 0 {
			continue
		}
		out.remaining += units
		if cost == 0 || units < cost {
			continue
		}
		if out.vacancy < 0 || start < out.place {
			out.place, out.vacancy = start, i
		}
		out.fits = true
		out.exempt = max(out.exempt, ((start+(units-cost)*ms)/p.Limit+1)*1000)
	}
}

// turn returns where a vacancy begins in the queue at nowMicros, and how many units are vacant from there. Those whose turn
// has come are not.
func (p Policy) turn(v Vacancy, nowMicros int64) (start, units int64) {
	ms := p.Window.Milliseconds()
	start = v.End - v.Units*ms - min((nowMicros-v.ChargedMicros)/1000, maxProduct/p.Limit)*p.Limit
	passed := max((ms-1-start)/ms, 0)
	return start + passed*ms, v.Units - passed
}

// without returns the vacancies that are left after cost units were charged, without those whose turn has come.
func (p Policy) without(step step, cost int64) (left []Vacancy) {
	for i, vacancy := range step.vacant {
		_, vacancy.Units = p.turn(vacancy, step.nowMicros)
		if i == step.vacancy {
			vacancy.Units -= cost
		}
		if vacancy.Units > 0 {
			left = append(left, vacancy)
		}
	}
	return left
}

// after gives the state after cost units were charged to a limit that answered with step; 0 after a refusal that is written.
func (p Policy) after(s State, step step, cost int64) State {
	next := State{
		Algorithm:     p.Algorithm,
		WindowMicros:  p.Window.Microseconds(),
		Per:           p.Limit,
		HighMicros:    step.highMicros,
		BehindMicros:  step.highMicros - step.nowMicros,
		PassedMicros:  step.passed,
		Epoch:         step.epoch,
		Sequence:      min(max(s.Sequence, step.highMicros-1), 1<<62) + 1, // a stored number may be anything
		RefusedMicros: s.RefusedMicros,
		Override:      s.Override,
		UntilMicros:   s.UntilMicros,
		SaidMicros:    s.SaidMicros,
	}
	switch p.Algorithm {
	case FixedWindow:
		next.Used = addUnits(step.units, cost)
	case SlidingWindow:
		next.Used, next.Rest = addUnits(step.units, cost), step.previous
	case SlidingLog:
		next.Log = appendTimes(append([]int64(nil), step.log[p.dropped(step, cost):]...), step.nowMicros, cost)
		next.Used = int64(len(next.Log))
	default:
		ms := p.Window.Milliseconds()
		debt := step.units
		if p.Algorithm == LeakyBucket {
			next.Place, next.Vacant = step.place+cost*ms, p.without(step, cost)
		}
		if p.Algorithm != LeakyBucket || step.vacancy < 0 {
			debt += cost * ms
		}
		next.Used, next.Rest = debt/ms, debt%ms
	}
	return next
}

// dropped is how many of a log's entries go when it is written: expired ones only, so many that fewer are kept than twice
// those that stand, and those that have to make room for a charge.
func (p Policy) dropped(step step, cost int64) int64 {
	n := step.units
	var room int64
	if cost > 0 {
		room = max(n+cost-p.Limit, 0)
	}
	expired := func(count int64) bool {
		return count > 0 && step.log[count-1] <= step.nowMicros-p.Window.Microseconds()
	}
	if expired(n) {
		return n
	}
	for kept := int64(1); kept < MaxLogLimit; kept *= 2 {
		if expired(n - kept) {
			return max(n-kept, room)
		}
	}
	return room
}

// refused gives the state after a refusal was written down: the first of its window, or one that saw the clock step back.
func (p Policy) refused(s State, step step) State {
	next := p.after(s, step, 0)
	if step.first {
		next.RefusedMicros = step.nowMicros
	}
	return next
}

// delay is how long a unit waits that was the last to join a queue, whose state was s just after.
func (p Policy) delayMicros(s State, cost int64) int64 {
	if p.Algorithm != LeakyBucket {
		return 0
	}
	before := s.Place - cost*p.Window.Milliseconds()
	return min((max(before, 0)+p.Limit-1)/p.Limit, MaxWindow.Milliseconds()) * 1000
}

// addUnits saturates, since a stored number may be anything.
func addUnits(units, cost int64) int64 {
	return min(units, 1<<62) + cost
}

func appendTimes(log []int64, micros, n int64) []int64 {
	for range n {
		log = append(log, micros)
	}
	return log
}

// stands returns how much of a bucket's charge can be given back at nowMicros. For a TokenBucket that is what stands of it, in
// units times milliseconds of the window: its own part of what is charged, less what has been refilled since, less what was
// given back since of the charges in front of it. For a LeakyBucket it is all of its units up to its turn, and none after.
func (r Refund) stands(nowMicros, front int64) int64 {
	ms := r.Policy.Window.Milliseconds()
	passed := min((nowMicros-r.ChargedMicros)/1000, maxProduct/r.Policy.Limit) * r.Policy.Limit
	if r.Policy.Algorithm == LeakyBucket {
		if r.Debt-r.Cost*ms < passed {
			return 0
		}
		return r.Cost
	}
	return max(min(r.Cost*ms, r.Debt-front-passed), 0)
}

// givenBack returns the state after what stands of a charge was given back; for a bucket that is amount.
func (s State) givenBack(r Refund, amount int64) State {
	window, ms := r.Policy.Window.Microseconds(), r.Policy.Window.Milliseconds()
	switch r.Policy.Algorithm {
	case FixedWindow, SlidingWindow:
		switch (s.HighMicros-s.BehindMicros)/window - r.ChargedMicros/window {
		case 0:
			s.Used = max(s.Used-r.Cost, 0)
		case 1:
			if r.Policy.Algorithm == SlidingWindow {
				s.Rest = max(s.Rest-r.Cost, 0)
			}
		}
	case SlidingLog:
		// Entries of one time are alike, and so many of them are this charge's.
		first := sort.Search(len(s.Log), func(i int) bool { return s.Log[i] >= r.ChargedMicros })
		end := first + int(r.Cost)
		if r.Cost > 0 && end <= len(s.Log) && s.Log[first] == r.ChargedMicros && s.Log[end-1] == r.ChargedMicros {
			s.Log = append(append([]int64(nil), s.Log[:first]...), s.Log[end:]...)
			s.Used = int64(len(s.Log))
		}
	case LeakyBucket:
		if amount > 0 && len(s.Vacant) < maxVacancies {
			s.Vacant = append(slices.Clone(s.Vacant), Vacancy{r.ChargedMicros, r.Debt, amount})
		}
	default:
		debt := max(s.Used*ms+s.Rest-amount, 0)
		s.Used, s.Rest = debt/ms, debt%ms
	}
	return s
}

// operated gives the state after an operator's change.
func (s State) operated(o Operation, nowMicros int64) State {
	s.Override, s.UntilMicros, s.SaidMicros = None, o.UntilMicros, nowMicros
	s.Sequence++
	switch o.Action {
	case Reset:
		s.Used, s.Rest, s.Log, s.Vacant = 0, 0, nil, nil
		s.Epoch++
	case Ban:
		s.Override = Banned
	case Allow:
		s.Override = Exempt
	}
	return s
}

// lifeMicros is longer than anything of a charge, or of one that came behind it while it stood, can stand.
func (p Policy) lifeMicros() int64 {
	life := 3 * p.Window.Microseconds()
	if p.bucket() {
		life += 2 * (p.Capacity() * p.Window.Milliseconds() / p.Limit) * 1000
	}
	return life
}

// expiresMicros is the time from which on a state can refuse nothing under the policy that wrote it: it may be swept. A policy
// whose window is lengthened, or whose rate is lowered, afterwards may find it gone.
func (p Policy) expiresMicros(s State) int64 {
	window := p.Window.Microseconds()
	var expires int64
	switch p.Algorithm {
	case FixedWindow, SlidingWindow:
		expires = (s.HighMicros/window + int64(p.Algorithm)) * window
	case SlidingLog:
		expires = s.HighMicros + window
	default:
		// As if the bucket were full: of a subject's two rows the newer one must not go first, or the older one's debt, of which
		// something may have been given back, would stand again.
		ms := p.Window.Milliseconds()
		debt := max(min(s.Used, maxProduct/ms)*ms+s.Rest, p.Capacity()*ms)
		expires = s.HighMicros + max(window, min(debt/p.Limit+1, 900_000_000_000_000)*1000)
	}
	return max(expires, s.UntilMicros)
}
