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

var (
	// The ends of the audit. Ids grow with time.
	auditEnds = newText(`
SELECT
  coalesce((SELECT id FROM rate_limit_audit ORDER BY id LIMIT 1), 1),
  coalesce((SELECT id FROM rate_limit_audit ORDER BY id DESC LIMIT 1), 0),
  ` + clock)

	// The last of some rows that are older than a time, 0 for none.
	auditBefore = newText(`
SELECT coalesce(max(a.id), 0)
FROM json_each(?) AS mark JOIN rate_limit_audit AS a ON a.id = mark.value
WHERE a.at_micros < ?`)

	// The refusals of a range, and of some rows, by policy and hour.
	refusalsOfRange = newText(`
SELECT policy, at_micros / 3600000000 AS hour, count(*)
FROM rate_limit_audit
WHERE id BETWEEN ? AND ?
  AND action = 'refusal'
  AND at_micros >= ?
  AND at_micros < ?
GROUP BY policy, hour
ORDER BY policy, hour`)
	refusalsOfRows = newText(`
SELECT a.policy, a.at_micros / 3600000000 AS hour, count(*)
FROM json_each(?) AS chosen JOIN rate_limit_audit AS a ON a.id = chosen.value
WHERE a.action = 'refusal'
  AND a.at_micros >= ?
  AND a.at_micros < ?
GROUP BY a.policy, hour
ORDER BY a.policy, hour`)
)

// refusal is how many first refusals a policy had in an hour since 1970.
type refusal struct {
	policy  string
	hour, n int64
}

// refusalsBetween returns the refusals of a stretch of time, which it is told the present for. It reads maxRead rows at most, and
// some hundred to find where the stretch begins, and says whether the figures are estimates.
func (s *Store) refusalsBetween(ctx context.Context, stretch func(now int64) (from, to int64)) (all []refusal, now int64, estimated bool, err error) {
	outcomes, err := s.run(ctx, call{auditEnds, []any{s.now()}})
	if err != nil {
		return nil, 0, false, err
	}
	var first, last int64
	if err := scan(outcomes[0].rows, &first, &last, &now); err != nil {
		return nil, 0, false, err
	}
	from, to := stretch(now)
	if first, err = s.firstSince(ctx, first, last, from); err != nil {
		return nil, 0, false, err
	}
	each := int64(1)
	read := call{refusalsOfRange, []any{first, last, from, to}}
	if last-first >= maxRead {
		each, estimated = (last-first)/maxRead+1, true
		read = call{refusalsOfRows, []any{evenly(first, last, each), from, to}}
	}
	if outcomes, err = s.run(ctx, read); err != nil {
		return nil, 0, false, err
	}
	for _, row := range outcomes[0].rows {
		if len(row) != 3 {
			return nil, 0, false, errNonsense
		}
		one := refusal{policy: row[0]}
		if err := scan([][]string{row[1:]}, &one.hour, &one.n); err != nil {
			return nil, 0, false, err
		}
		one.n *= each
		all = append(all, one)
	}
	return all, now, estimated, nil
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
// rows, however many are kept. Config.Deadline bounds each of its four calls.
func (s *Store) Refusals(ctx context.Context) (HourlyRefusals, error) {
	const before = RefusalHours - 1
	found, now, estimated, err := s.refusalsBetween(ctx, func(now int64) (from, to int64) {
		return (now/hourMicros - before) * hourMicros, (now/hourMicros + 1) * hourMicros
	})
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
// bounded number of rows, however many are kept. Config.Deadline bounds each of its six calls.
func (s *Store) Counts(ctx context.Context) ([]Count, error) {
	outcomes, err := s.run(ctx, call{activeKeysRead, []any{int64(maxRead)}})
	if err != nil {
		return nil, wrap("counts", err)
	}
	var last, read int64
	if err := scan(outcomes[0].rows, &last, &read); err != nil {
		return nil, err
	}
	share, estimated := 1.0, read == maxRead
	if estimated {
		share = (float64(last) + 1) / math.MaxInt64
	}
	if outcomes, err = s.run(ctx, call{activeKeys, []any{s.now(), int64(maxRead)}}); err != nil {
		return nil, wrap("counts", err)
	}
	var all []Count
	of := func(policy string) *Count {
		i := slices.IndexFunc(all, func(known Count) bool { return known.Policy == policy })
		if i < 0 {
			i = len(all)
			all = append(all, Count{Policy: policy})
		}
		return &all[i]
	}
	for _, row := range outcomes[0].rows {
		var n int64
		if len(row) != 2 {
			return nil, errNonsense
		}
		if err := scan([][]string{row[1:]}, &n); err != nil {
			return nil, err
		}
		*of(row[0]) = Count{Policy: row[0], ActiveKeys: int64(math.Round(float64(n) / share)), Estimated: estimated}
	}
	found, _, estimated, err := s.refusalsBetween(ctx, func(now int64) (from, to int64) {
		return now - RefusalHours*hourMicros + 1, math.MaxInt64
	})
	if err != nil {
		return nil, wrap("counts", err)
	}
	for _, one := range found {
		count := of(one.policy)
		count.Refusals += one.n
		count.Estimated = count.Estimated || estimated
	}
	slices.SortFunc(all, func(a, b Count) int { return strings.Compare(a.Policy, b.Policy) })
	return all, nil
}
