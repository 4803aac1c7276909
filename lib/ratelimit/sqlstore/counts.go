package sqlstore

import (
	"context"
)

// Count says how much a policy is used.
type Count struct {
	Policy     string
	ActiveKeys int64 // rows of keys that are not expired
	Refusals   int64 // first refusals of a key in a window, in the last 24 hours
}

// counts reads both tables once, as they are at one moment.
var counts = newText(`
WITH
  clock AS MATERIALIZED (
    SELECT ` + clock + ` AS now
  )
SELECT policy, sum(active), sum(refused)
FROM (
  SELECT policy, 1 AS active, 0 AS refused
  FROM rate_limits CROSS JOIN clock
  WHERE expires_micros > now
  UNION ALL
  SELECT policy, 0 AS active, 1 AS refused
  FROM rate_limit_audit CROSS JOIN clock
  WHERE action = 'refusal' AND at_micros > now - 86400000000
)
GROUP BY policy
ORDER BY policy`)

// Counts tells of every policy that has a key or a refusal, in the order of names. It names no key, changes nothing, and
// reads every row of two tables: a view for an operator, not for every request. Config.Deadline bounds it.
func (s *Store) Counts(ctx context.Context) ([]Count, error) {
	outcomes, err := s.run(ctx, call{counts, []any{s.now()}})
	if err != nil {
		return nil, wrap("counts", err)
	}
	var all []Count
	for _, row := range outcomes[0].rows {
		if len(row) != 3 {
			return nil, errNonsense
		}
		count := Count{Policy: row[0]}
		if err := scan([][]string{row[1:]}, &count.ActiveKeys, &count.Refusals); err != nil {
			return nil, err
		}
		all = append(all, count)
	}
	return all, nil
}
