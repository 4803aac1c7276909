package sqlstore

import (
	"slices"
	"strings"
	"sync"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// shape is what the texts of a decision depend on. A text says only what its algorithms need: compiling it takes a server
// several times as long as running it.
type shape struct {
	limits     int
	algorithms uint8 // a bit for each that occurs
	rotating   bool
	refused    bool // by a limit elsewhere: see ratelimit.Entry
}

// judged says whether a limit's charge depends on more than the limit itself.
func (s shape) judged() bool { return s.limits > 1 || s.refused }

func shapeOf(entries []ratelimit.Entry) shape {
	s := shape{limits: len(entries)}
	for _, entry := range entries {
		s.algorithms |= 1 << entry.Policy.Algorithm
		s.rotating = s.rotating || entry.Rotating
		s.refused = s.refused || entry.Refused
	}
	return s
}

func (s shape) has(algorithms ...ratelimit.Algorithm) bool {
	return slices.ContainsFunc(algorithms, func(a ratelimit.Algorithm) bool { return s.algorithms&(1<<a) != 0 })
}

// by gives the expression of the only kind of algorithm that occurs, or the choice between those that do.
func (s shape) by(fixedWindow, slidingWindow, slidingLog, bucket string) string {
	var whens []string
	var only string
	same := true
	for _, kind := range []struct {
		algorithms []ratelimit.Algorithm
		when, then string
	}{
		{[]ratelimit.Algorithm{ratelimit.FixedWindow}, "algorithm = 1", fixedWindow},
		{[]ratelimit.Algorithm{ratelimit.SlidingWindow}, "algorithm = 2", slidingWindow},
		{[]ratelimit.Algorithm{ratelimit.SlidingLog}, "algorithm = 3", slidingLog},
		{[]ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.LeakyBucket}, "algorithm >= 4", bucket},
	} {
		if s.has(kind.algorithms...) {
			whens = append(whens, "WHEN "+kind.when+" THEN "+kind.then)
			same = same && (only == "" || only == kind.then)
			only = kind.then
		}
	}
	if same {
		return only
	}
	return "CASE " + strings.Join(whens, " ") + " END"
}

// statements are the texts of one shape.
type statements struct{ decide, read *text }

// texts keeps the statements of the shapes that were asked for: there are at most 16 × 31 × 4.
var texts sync.Map

func (s shape) statements() statements {
	if known, found := texts.Load(s); found {
		return known.(statements)
	}
	made := statements{newText(s.decide()), newText(s.read())}
	texts.Store(s, made)
	return made
}

// clock is the time of the database, or the argument that replaces it.
const clock = "coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)"

// barrier keeps SQLite from copying the expressions of a subquery to each place that uses them, of which there are many; the
// rows go from one to the next in registers. 16 is MaxCharges.
const barrier = "\n  WHERE true\n  LIMIT 16"

// decide carries out a decision. It is one INSERT, so the engine runs it under its write lock from the first read to the
// last write: no other decision sees or changes a key in between, and it happens whole or not at all.
//
// From the inside out: the entries and the time, read once for all of them; the state of each key (held); that state with
// the key's time, brought along if the clock stepped back, and with the entry's algorithm (found); what stands now, which is units (and,
// for the sliding window, those of the previous one), or a bucket's debt in fractions of a unit, one for each millisecond of the
// window (standing); whether the charge fits (step). Several limits are looked at twice, for their common verdict: a table
// holds their steps meanwhile. A log lets entries go when it is written: expired ones only, so many that fewer are kept
// than twice those that stand, and those that have to make room (room, dropped).
//
// The rows that are inserted are the charges and the first refusals of a window; a trigger turns each of those into its
// audit row inside the same statement. What is not to be written is filtered before the upsert, so a later refusal
// touches no row.
//
// The arithmetic is that of the package ratelimit's step functions, and so are its bounds: 576460752303423488 is 2⁵⁹.
func (s shape) decide() string {
	steps := "(" + s.step() + ")"
	with, allowed, each := "", "fits", "fits"
	from := steps + " AS step"
	switch {
	case s.refused:
		allowed, each = "0", "every_attempt"
	case s.limits > 1:
		with = "\nWITH step AS MATERIALIZED " + steps
		from = "step CROSS JOIN (SELECT min(fits) AS allowed FROM step) AS verdict"
		allowed, each = "verdict.allowed", "allowed OR every_attempt"
	}
	written := "cost > 0 AND CASE WHEN fits THEN " + each + " ELSE first OR stepped" + s.orElsewhere() + " END"
	if s.has(ratelimit.SlidingLog) {
		from = `(
  SELECT
    *,
    ` + s.by("0", "0", dropped, "0") + ` AS dropped
  FROM (
    SELECT
      step.*,
      ` + allowed + ` AS allowed,
      CASE WHEN fits = 2 THEN max(units + cost - most, 0) ELSE 0 END AS room
    FROM ` + from + `
    WHERE true
    LIMIT 16
  )
  WHERE ` + written + `
  LIMIT 16
)`
		written = "true"
	}
	return with + `
INSERT INTO rate_limits (
  key, policy, algorithm, window_micros, per, high_micros, behind_micros, used, rest, log,` + s.queue(" place, vacancy,") + ` charged,
  refused_micros, expires_micros, passed_micros, epoch, sequence, override, until_micros, said_micros
)
SELECT
  key,
  policy,
  algorithm,
  window,
  per,
  high,
  high - now,
  ` + s.by(
		"min(units, 4611686018427387904) + CASE WHEN fits = 2 THEN cost ELSE 0 END",
		"min(units, 4611686018427387904) + CASE WHEN fits = 2 THEN cost ELSE 0 END",
		"units - dropped + CASE WHEN fits = 2 THEN cost ELSE 0 END",
		"(units + "+s.joins()+") / ms",
	) + `,
  ` + s.by("0", "previous", "shift", "(units + "+s.joins()+") % ms") + `,
  ` + s.by("NULL", "NULL", `unhex( -- joined as text, since the Turso engine joins blobs as if they were UTF-8
    hex(substr(entries, 8 * dropped + 1)) || replace(hex(zeroblob(CASE WHEN fits = 2 THEN cost ELSE 0 END)), '00', printf('%016x', now - shift)))`, "NULL") + `,` + s.queue(`
  CASE WHEN fits = 2 THEN coalesce(vacant, units) + cost * ms END,
  CASE WHEN fits = 2 THEN vacancy END,`) + `
  CASE fits WHEN 2 THEN cost WHEN 1 THEN -2 ELSE CASE WHEN first THEN 0 ELSE -1 END END,
  CASE WHEN NOT fits AND first THEN now ELSE refused END,
  max(until, ` + s.by(
		"(min(high, 8000000000000000000) / window + 1) * window",
		"(min(high, 8000000000000000000) / window + 2) * window",
		"min(high, 8000000000000000000) + window",
		"min(high, 8000000000000000000) + max(window, min(max(units + "+s.joins()+", most * ms) / per + 1, 900000000000000) * 1000)",
	) + `),
  passed,
  epoch,
  sequence,
  override,
  until,
  said
FROM ` + from + `
WHERE ` + written + `
ON CONFLICT (key) DO UPDATE SET
  policy         = excluded.policy,
  algorithm      = excluded.algorithm,
  window_micros  = excluded.window_micros,
  per            = excluded.per,
  high_micros    = excluded.high_micros,
  behind_micros  = excluded.behind_micros,
  used           = excluded.used,
  rest           = excluded.rest,
  log            = excluded.log,` + s.queue(`
  place          = excluded.place,
  vacancy        = excluded.vacancy,`) + `
  charged        = excluded.charged,
  refused_micros = excluded.refused_micros,
  expires_micros = excluded.expires_micros,
  passed_micros  = excluded.passed_micros,
  epoch          = excluded.epoch,
  sequence       = excluded.sequence,
  override       = excluded.override,
  until_micros   = excluded.until_micros,
  said_micros    = excluded.said_micros
RETURNING ` + packed("key", "high_micros", "behind_micros", "epoch", "sequence", "used", "rest", "override", "until_micros", "charged",
		s.orElse("coalesce(place, 0)", "0"), s.by("''", "''", "hex(log)", "''")) + ` AS row`
}

// queue returns text where a leaky bucket is among the algorithms, and nothing elsewhere.
func (s shape) queue(text string) string { return s.orElse(text, "") }

func (s shape) orElse(queue, other string) string {
	if s.has(ratelimit.LeakyBucket) {
		return queue
	}
	return other
}

// joins is what a charge adds to a bucket: nothing where it takes a vacant place of a queue.
func (s shape) joins() string {
	return "CASE WHEN fits = 2" + s.queue(" AND vacant IS NULL") + " THEN cost * ms ELSE 0 END"
}

// The vacant places of a key's queue are the refunds of its epoch: each begins start fractions from the queue's front, where
// the turn of so many of its units has come (passed).
const (
	vacantStart  = "(r.debt - r.given * q.ms - min((q.now - r.charged_micros) / 1000, 576460752303423488 / q.per) * q.per)"
	vacantPassed = "max((q.ms - 1 - " + vacantStart + ") / q.ms, 0)"
	vacantTurn   = vacantStart + " + " + vacantPassed + " * q.ms"
)

// vacancies adds the first vacant place that is large enough for a charge (vacant), and the refund that it is (vacancy). It may
// be taken when the key's own row is there, for the trigger that takes it.
func (s shape) vacancies(from string) string {
	if !s.has(ratelimit.LeakyBucket) {
		return from
	}
	keys := "r.key = q.key"
	if s.rotating {
		keys = "r.key IN (q.key, q.other_key)"
	}
	find := func(what, besides string) string {
		return `(
      SELECT min(` + what + `)
      FROM rate_limit_refunds AS r
      WHERE ` + keys + ` AND r.algorithm >= 4 AND r.algorithm = 5 AND r.epoch = q.epoch AND r.given > 0
        AND r.given - ` + vacantPassed + ` >= q.cost
        AND ` + vacantTurn + ` + q.cost * q.ms <= q.most * q.ms` + besides + `
    )`
	}
	return `
  SELECT
    *,
    CASE WHEN vacant IS NOT NULL THEN ` + find("r.id", " AND "+vacantTurn+" = q.vacant") + ` END AS vacancy
  FROM (
  SELECT
    *,
    CASE WHEN algorithm = 5` + s.orKnown() + ` THEN ` + find(vacantTurn, "") + ` END AS vacant
  FROM (` + from + barrier + `) AS q` + barrier + `) AS q`
}

func (s shape) orKnown() string {
	if s.rotating {
		return " AND known"
	}
	return ""
}

// packed gives a row as one text: half the work for whoever sends and reads it.
func packed(columns ...string) string { return strings.Join(columns, " || ' ' || ") }

// dropped is how many of a log's entries go when it is written.
const dropped = `CASE
      WHEN substr(entries, 8 * units - 7, 8) <= expired THEN units
      WHEN units > 1 AND substr(entries, 8 * (units - 1) - 7, 8) <= expired THEN max(units - 1, room)
      WHEN units > 2 AND substr(entries, 8 * (units - 2) - 7, 8) <= expired THEN max(units - 2, room)
      WHEN units > 4 AND substr(entries, 8 * (units - 4) - 7, 8) <= expired THEN max(units - 4, room)
      WHEN units > 8 AND substr(entries, 8 * (units - 8) - 7, 8) <= expired THEN max(units - 8, room)
      WHEN units > 16 AND substr(entries, 8 * (units - 16) - 7, 8) <= expired THEN max(units - 16, room)
      WHEN units > 32 AND substr(entries, 8 * (units - 32) - 7, 8) <= expired THEN max(units - 32, room)
      WHEN units > 64 AND substr(entries, 8 * (units - 64) - 7, 8) <= expired THEN max(units - 64, room)
      WHEN units > 128 AND substr(entries, 8 * (units - 128) - 7, 8) <= expired THEN max(units - 128, room)
      WHEN units > 256 AND substr(entries, 8 * (units - 256) - 7, 8) <= expired THEN max(units - 256, room)
      WHEN units > 512 AND substr(entries, 8 * (units - 512) - 7, 8) <= expired THEN max(units - 512, room)
      ELSE room
    END`

// step decides each charge by itself: fits is 2 when the algorithm admits it, 1 when only an exemption does, which counts
// nothing, and 0 when it is refused. A ban refuses every cost, 0 included.
func (s shape) step() string {
	return `
  SELECT
    *,
    CASE
      WHEN overridden AND override = 1 THEN 0
      WHEN cost = 0 OR ` + s.by(
		"cost <= most - units",
		`min(previous, 576460752303423488 / ms) * (ms - now % window / 1000) + min(units, 576460752303423488 / ms) * ms <= (most - cost) * ms`,
		"units + cost <= most OR substr(entries, 8 * (units + cost - most) - 7, 8) <= expired",
		s.queue("vacant IS NOT NULL OR ")+"units <= (most - cost) * ms",
	) + ` THEN 2
      ELSE overridden
    END AS fits,
    refused = 0 OR ` + s.by(
		"refused / window <> now / window",
		"refused / window <> now / window",
		"now - refused >= window OR now < refused",
		"now - refused >= window OR now < refused",
	) + ` AS first
  FROM (` + s.vacancies(s.standing()) + barrier + `)` + barrier
}

func (s shape) standing() string {
	var besides string
	if s.has(ratelimit.SlidingWindow) {
		besides += `,
    CASE
      WHEN at / window = now / window THEN max(rest, 0)
      WHEN at / window = now / window - 1 THEN used
      ELSE 0
    END AS previous`
	}
	if s.has(ratelimit.SlidingLog) {
		// Only a log's own row makes entries: of others used may be millions.
		besides += `,
    ` + s.by("NULL", "NULL", `CASE
      WHEN log IS NULL THEN unhex(replace(hex(zeroblob(min(used, most))), '00', printf('%016x', at)))
      ELSE log
    END`, "NULL") + ` AS entries,
    CASE WHEN log IS NOT NULL THEN rest + at - written ELSE 0 END AS shift,
    unhex(printf('%016x', max(now - window - CASE WHEN log IS NOT NULL THEN rest + at - written ELSE 0 END, 0))) AS expired`
	}
	return `
  SELECT
    *,
    ` + s.by(
		"CASE WHEN at / window = now / window THEN used ELSE 0 END",
		"CASE WHEN at / window = now / window THEN used ELSE 0 END",
		"CASE WHEN log IS NULL THEN min(used, most) ELSE length(log) / 8 END",
		`max(
      min(used, 576460752303423488 / ms) * ms + min(max(rest, 0), ms - 1)
        - min((now - at) / 1000, 576460752303423488 / per) * per,
      0)`,
	) + ` AS units` + besides + `
  FROM (` + s.found() + barrier + `)`
}

func (s shape) found() string {
	var besides string
	if s.has(ratelimit.SlidingLog) {
		besides = `
    CASE WHEN algorithm = 3 AND had = 3 THEN log END AS log,
    written,`
	}
	if s.rotating {
		besides += `
    coalesce(clock < until AND override = 1 AND word <> key, 0) AS elsewhere, -- a ban to be written, or it goes with the other secret`
	}
	var changedRate string
	if s.has(ratelimit.TokenBucket, ratelimit.LeakyBucket) {
		changedRate = " OR algorithm >= 4 AND had_per <> per"
	}
	return `
  SELECT
    key,` + s.queue(s.known()) + ` policy, algorithm, most, per, window, window / 1000 AS ms, cost,` + s.everyAttempt() + ` at,` + besides + `
    max(clock, at) AS now,
    max(coalesce(high, 0), clock) AS high,
    CASE
      WHEN high IS NULL THEN 0
      WHEN max(clock, at) >= high THEN CASE WHEN behind > 0 THEN high ELSE passed END
      WHEN CASE WHEN behind = 0 THEN passed = 0 ELSE passed = written AND clock < passed END THEN at
      WHEN behind = 0 THEN 0
      ELSE passed
    END AS passed,
    CASE -- another life of a key must not begin with the epoch of the last one
      WHEN high IS NULL THEN random() & 2147483647
      ELSE epoch + (at <> written OR had <> algorithm OR had_window <> window` + changedRate + `)
    END AS epoch,
    min(max(coalesce(sequence, 0), coalesce(high, 0) - 1, clock - 1), 4611686018427387904) + 1 AS sequence, -- above every one that a sweep took
    coalesce(at < written, 0) AS stepped,
    coalesce(refused, 0) AS refused,
    coalesce(override, 0) AS override,
    coalesce(until, 0) AS until,
    coalesce(said, 0) AS said,
    coalesce(clock < until AND override <> 0, 0) AS overridden,
    coalesce(max(used, 0) + (had >= 4 AND algorithm < 4 AND rest > 0), 0) AS used, -- a part of a unit carries over as a whole one
    CASE WHEN had = algorithm OR had >= 4 AND algorithm >= 4 THEN rest ELSE 0 END AS rest
  FROM (` + s.held() + barrier + `)`
}

// held is the state of each key, with what an operator said last. A row that only holds what was said has no time yet.
func (s shape) held() string {
	var log string
	if s.has(ratelimit.SlidingLog) {
		log = " a.log,"
	}
	from := "(" + s.asked() + ") AS asked LEFT JOIN rate_limits AS a ON a.key = asked.key"
	said := "a"
	if s.rotating {
		from = "(" + homes(true, "("+s.asked()+") AS asked") + barrier + ") AS asked" + `
    LEFT JOIN rate_limits AS a ON a.key = asked.home
    LEFT JOIN rate_limits AS o ON o.key = asked.word`
		said = "o"
	}
	return `
  SELECT
    asked.*,
    a.algorithm AS had, a.window_micros AS had_window, a.per AS had_per,
    nullif(a.high_micros, 0) AS high, a.behind_micros AS behind, a.passed_micros AS passed, a.epoch, a.sequence, a.used, a.rest,` + log + `
    a.refused_micros AS refused, ` + said + `.override, ` + said + `.until_micros AS until, ` + said + `.said_micros AS said,
    nullif(a.high_micros, 0) - a.behind_micros AS written,
    CASE
      WHEN a.high_micros IS NULL OR a.high_micros = 0 THEN clock
      WHEN a.behind_micros = 0 AND clock < a.high_micros THEN min(max(clock, a.passed_micros), a.high_micros)
      WHEN a.behind_micros > 0 AND a.passed_micros = a.high_micros - a.behind_micros AND clock < a.passed_micros THEN clock
      ELSE a.high_micros - a.behind_micros
    END AS at
  FROM ` + from
}

// homes adds to the keys asked for where the newest state of each lies (home), and an operator's last word (word): under
// the key, or while there are two secrets perhaps under the other one. The time decides before the sequence, since an instance
// that no longer reads the old key begins a sequence of its own.
func homes(rotating bool, asked string) string {
	if !rotating {
		return "SELECT *, key AS home, key AS word FROM " + asked
	}
	return `
    SELECT
      asked.*,
      CASE
        WHEN b.key IS NOT NULL AND (a.key IS NULL OR (b.high_micros, b.sequence) > (a.high_micros, a.sequence)) THEN b.key
        ELSE asked.key
      END AS home,
      a.key IS NOT NULL AS known,
      CASE WHEN coalesce(b.said_micros, 0) > coalesce(a.said_micros, 0) THEN b.key ELSE asked.key END AS word
    FROM ` + asked + `
      LEFT JOIN rate_limits AS a ON a.key = asked.key
      LEFT JOIN rate_limits AS b ON b.key = asked.other_key`
}

// read gives the states of the keys that decide left alone, which an upsert returns no row for. It decides nothing.
func (s shape) read() string {
	asked := "SELECT ? AS key"
	said, log := "a", "''"
	if s.has(ratelimit.SlidingLog) {
		log = "coalesce(hex(a.log), '')"
	}
	if s.rotating {
		asked += ", ? AS other_key"
		said = "o"
	}
	asked = strings.Repeat(asked+" UNION ALL ", s.limits-1) + asked
	from := "(" + asked + barrier + ") AS asked LEFT JOIN rate_limits AS a ON a.key = asked.key"
	if s.rotating {
		from = "(" + homes(true, "("+asked+barrier+") AS asked") + barrier + ") AS asked" + `
  LEFT JOIN rate_limits AS a ON a.key = asked.home
  LEFT JOIN rate_limits AS o ON o.key = asked.word`
	}
	columns := []string{"asked.key"}
	for _, column := range []string{
		"a.algorithm", "a.window_micros", "a.per", "a.high_micros", "a.behind_micros", "a.passed_micros", "a.epoch", "a.sequence", "a.used",
		"a.rest", "a.refused_micros", said + ".override", said + ".until_micros", said + ".said_micros",
	} {
		columns = append(columns, "coalesce("+column+", 0)")
	}
	return "SELECT " + packed(append(columns, clock, s.vacant(), log)...) + " AS row\nFROM " + from
}

// vacant lists the vacant places of a queue, each as when it was charged, where it ends and how many units it has.
func (s shape) vacant() string {
	if !s.has(ratelimit.LeakyBucket) {
		return "''"
	}
	keys := "r.key = asked.key"
	if s.rotating {
		keys = "r.key IN (asked.key, asked.other_key)"
	}
	return `coalesce((
  SELECT group_concat(r.charged_micros || ':' || r.debt || ':' || r.given)
  FROM rate_limit_refunds AS r
  WHERE ` + keys + ` AND r.algorithm >= 4 AND r.algorithm = 5 AND r.epoch = a.epoch AND r.given > 0
    AND r.debt > min((a.high_micros - a.behind_micros - r.charged_micros) / 1000, 576460752303423488 / a.per) * a.per
), '')`
}

// decideArguments are the entries, then the time that replaces the database's.
func (s shape) decideArguments(entries []ratelimit.Entry, now any) []any {
	args := make([]any, 0, 9*len(entries)+1)
	for _, entry := range entries {
		policy := entry.Policy
		args = append(args, entry.Key)
		if s.rotating {
			args = append(args, entry.OtherKey)
		}
		args = append(args, policy.Name, int64(policy.Algorithm), policy.Capacity(), policy.Limit, policy.Window.Microseconds(), entry.Cost)
		if s.judged() {
			args = append(args, policy.Count == ratelimit.EveryAttempt)
		}
	}
	return append(args, now)
}

// readArguments are the time, which comes first in that text, then the keys.
func (s shape) readArguments(entries []ratelimit.Entry, now any) []any {
	args := append(make([]any, 0, 2*len(entries)+1), now)
	for _, entry := range entries {
		args = append(args, entry.Key)
		if s.rotating {
			args = append(args, entry.OtherKey)
		}
	}
	return args
}

// asked are the entries, each with the time.
func (s shape) asked() string {
	one := "\n    SELECT ? AS key," + s.otherKey() + " ? AS policy, ? AS algorithm, ? AS most, ? AS per, ? AS window, ? AS cost"
	if s.judged() {
		one += ", ? AS every_attempt"
	}
	if s.limits == 1 {
		return one + ", " + clock + " AS clock" + barrier
	}
	entries := one
	for range s.limits - 1 {
		entries += " UNION ALL" + one
	}
	return "\n    SELECT * FROM (" + entries + barrier + "), (SELECT " + clock + " AS clock" + barrier + ")" + barrier
}

// known are the columns that a vacant place is found by while there are two secrets.
func (s shape) known() string {
	if s.rotating {
		return " other_key, known,"
	}
	return ""
}

func (s shape) otherKey() string {
	if s.rotating {
		return " ? AS other_key,"
	}
	return ""
}

func (s shape) everyAttempt() string {
	if s.judged() {
		return " every_attempt,"
	}
	return ""
}

func (s shape) orElsewhere() string {
	if s.rotating {
		return " OR elsewhere"
	}
	return ""
}
