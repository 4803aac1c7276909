package sqlstore

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"
)

// RefusalHours is how far Refusals looks back: the hour that runs and the 23 before it.
const RefusalHours = 24

// HourlyRefusals are first refusals of keys in their windows, by policy and hour. An hour without any counts 0.
type HourlyRefusals struct {
	From     time.Time // when the first hour began
	Policies []PolicyRefusals
	// Estimated says that the figures are reckoned from a sample of the rows, because there are too many to read.
	Estimated bool
}

// PolicyRefusals are those of one policy, oldest hour first.
type PolicyRefusals struct {
	Policy string
	Hours  [RefusalHours]int64
}

const (
	// maxRead is how many rows of the audit, or keys, an operator's view reads. Up to so many it tells exactly, and it takes
	// some milliseconds, whatever is kept. Of more it reads as many at even distances: a policy with a tenth of a hundred
	// thousand refusals is told with a standard error of 7 %.
	maxRead = 2048
	// marks is how many rows tell where a time begins in the audit, in each of two steps.
	marks = 256

	hourMicros = 3_600_000_000
)

// stretch is the time that figures are of, by the clock named now: whole hours, the one that runs included, or the last 24
// hours. Its argument says which.
const stretch = `
  AND at_micros >= CASE ? WHEN 1 THEN (now / 3600000000 - 23) * 3600000000 ELSE now - 86400000000 + 1 END
  AND at_micros < (now / 3600000000 + 1) * 3600000000`

var (
	// The ends of the audit, whose ids grow with time; how many of its newest rows are read, and the time of the oldest of those.
	auditEnds = newText(`
SELECT
  coalesce((SELECT id FROM rate_limit_audit ORDER BY id LIMIT 1), 1),
  coalesce((SELECT id FROM rate_limit_audit ORDER BY id DESC LIMIT 1), 0),
  count(*),
  coalesce(min(at_micros), 0),
  ` + clock + `
FROM (SELECT at_micros FROM rate_limit_audit ORDER BY id DESC LIMIT ?)`)

	// The refusals of the newest rows, and of some rows, by policy and hour.
	newestRefusals = newText(`
SELECT policy, at_micros / 3600000000 AS hour, count(*)
FROM
  (SELECT policy, action, at_micros FROM rate_limit_audit ORDER BY id DESC LIMIT ?)
  CROSS JOIN (SELECT ` + clock + ` AS now)
WHERE action = 'refusal'` + stretch + `
GROUP BY policy, hour
ORDER BY policy, hour`)
	someRefusals = newText(`
SELECT policy, at_micros / 3600000000 AS hour, count(*)
FROM
  json_each(?) AS chosen
  JOIN rate_limit_audit AS a ON a.id = chosen.value
  CROSS JOIN (SELECT ` + clock + ` AS now)
WHERE action = 'refusal'` + stretch + `
GROUP BY policy, hour
ORDER BY policy, hour`)

	// The last of some rows that are older than a time, 0 for none.
	auditBefore = newText(`
SELECT coalesce(max(a.id), 0)
FROM json_each(?) AS mark JOIN rate_limit_audit AS a ON a.id = mark.value
WHERE a.at_micros < ?`)
)

// refusal is how many first refusals a policy had in an hour since 1970.
type refusal struct {
	policy  string
	hour, n int64
}

// refusalsOf returns a day's refusals, of whole hours or of the last 24, the store's present, and whether the figures are estimates.
// It is one request, in which other calls go along, where the newest rows reach back so far, and at most three more otherwise.
func (s *Store) refusalsOf(ctx context.Context, hours bool, others ...call) (all []refusal, now int64, estimated bool, outcomes []outcome, err error) {
	which := int64(0)
	if hours {
		which = 1
	}
	calls := append(others,
		call{auditEnds, []any{s.now(), int64(maxRead)}}, call{newestRefusals, []any{int64(maxRead), s.now(), which}})
	if outcomes, err = s.run(ctx, calls...); err != nil {
		return nil, 0, false, nil, err
	}
	found := outcomes[len(others)+1]
	var first, last, read, oldest int64
	if err := scan(outcomes[len(others)].rows, &first, &last, &read, &oldest, &now); err != nil {
		return nil, 0, false, nil, err
	}
	from := now - RefusalHours*hourMicros + 1
	if hours {
		from = (now/hourMicros - RefusalHours + 1) * hourMicros
	}
	each := int64(1)
	if read == maxRead && oldest >= from {
		if first, err = s.firstSince(ctx, first, last, from); err != nil {
			return nil, 0, false, nil, err
		}
		each = (last-first)/maxRead + 1
		some, err := s.run(ctx, call{someRefusals, []any{evenly(first, last, each), s.now(), which}})
		if err != nil {
			return nil, 0, false, nil, err
		}
		found = some[0]
	}
	for _, row := range found.rows {
		if len(row) != 3 {
			return nil, 0, false, nil, errNonsense
		}
		one := refusal{policy: row[0]}
		if err := scan([][]string{row[1:]}, &one.hour, &one.n); err != nil {
			return nil, 0, false, nil, err
		}
		one.n *= each
		all = append(all, one)
	}
	return all, now, each > 1, outcomes, nil
}

// firstSince moves the first of many rows on towards the first one of a time. Where the clock stepped back, ids are not quite in
// the order of time; that moves it too far by no more than was written meanwhile.
func (s *Store) firstSince(ctx context.Context, first, last, from int64) (int64, error) {
	end := last
	for range 2 {
		if last-first < maxRead {
			break
		}
		distance := max((end-first)/marks, 1)
		outcomes, err := s.run(ctx, call{auditBefore, []any{evenly(first, end, distance), from}})
		if err != nil {
			return 0, err
		}
		var before int64
		if err := scan(outcomes[0].rows, &before); err != nil {
			return 0, err
		}
		if before >= first {
			first = before
		}
		end = min(first+distance, last)
	}
	return first, nil
}

// evenly lists numbers from first to last at a distance, as a JSON array.
func evenly(first, last, distance int64) string {
	var list array
	for n := first; n <= last; n += distance {
		list.number(n)
	}
	return list.String()
}

// Refusals tells of each policy that refused something, in the order of names. It names no key, and reads a bounded number of
// rows, however many are kept. Config.Deadline bounds each of its requests: one, and at most three more where there are many.
func (s *Store) Refusals(ctx context.Context) (HourlyRefusals, error) {
	const before = RefusalHours - 1
	found, now, estimated, _, err := s.refusalsOf(ctx, true)
	if err != nil {
		return HourlyRefusals{}, wrap("refusals", err)
	}
	first := now/hourMicros - before
	all := HourlyRefusals{From: time.Unix(first*3600, 0).UTC(), Estimated: estimated}
	for _, one := range found {
		place := one.hour - first
		if place < 0 || place >= RefusalHours {
			return HourlyRefusals{}, errNonsense
		}
		if end := len(all.Policies) - 1; end < 0 || all.Policies[end].Policy != one.policy {
			all.Policies = append(all.Policies, PolicyRefusals{Policy: one.policy})
		}
		all.Policies[len(all.Policies)-1].Hours[place] = one.n
	}
	return all, nil
}

// Count says how much a policy is used.
type Count struct {
	Policy     string
	ActiveKeys int64 // rows of keys that are not expired
	Refusals   int64 // first refusals of a key in a window, in the last 24 hours
	// Estimated says that one of the figures is reckoned from a sample of the rows, because there are too many to read.
	Estimated bool
}

// Keys are hashes, so that the first ones are a fair sample of all of them.
var (
	activeKeys = newText(`
WITH
  clock AS MATERIALIZED (
    SELECT ` + clock + ` AS now
  )
SELECT policy, count(*)
FROM (SELECT policy, expires_micros FROM rate_limits ORDER BY key LIMIT ?) CROSS JOIN clock
WHERE expires_micros > now
GROUP BY policy
ORDER BY policy`)
	activeKeysRead = newText(`
SELECT coalesce(max(key), 0), count(*) FROM (SELECT key FROM rate_limits ORDER BY key LIMIT ?)`)
)

// Counts tells of every policy that has a key or a refusal, in the order of names. It names no key, changes nothing, and reads a
// bounded number of rows, however many are kept. Config.Deadline bounds each of its requests, as many as those of Refusals.
func (s *Store) Counts(ctx context.Context) ([]Count, error) {
	found, _, estimated, outcomes, err := s.refusalsOf(ctx, false,
		call{activeKeysRead, []any{int64(maxRead)}}, call{activeKeys, []any{s.now(), int64(maxRead)}})
	if err != nil {
		return nil, wrap("counts", err)
	}
	var last, read int64
	if err := scan(outcomes[0].rows, &last, &read); err != nil {
		return nil, err
	}
	share := 1.0
	if read == maxRead {
		share = (float64(last) + 1) / math.MaxInt64
	}
	var all []Count
	for _, row := range outcomes[1].rows {
		var n int64
		if len(row) != 2 {
			return nil, errNonsense
		}
		if err := scan([][]string{row[1:]}, &n); err != nil {
			return nil, err
		}
		all = append(all, Count{Policy: row[0], ActiveKeys: int64(math.Round(float64(n) / share)), Estimated: read == maxRead})
	}
	for _, one := range found {
		i := slices.IndexFunc(all, func(known Count) bool { return known.Policy == one.policy })
		if i < 0 {
			i = len(all)
			all = append(all, Count{Policy: one.policy})
		}
		all[i].Refusals += one.n
		all[i].Estimated = all[i].Estimated || estimated
	}
	slices.SortFunc(all, func(a, b Count) int { return strings.Compare(a.Policy, b.Policy) })
	return all, nil
}
