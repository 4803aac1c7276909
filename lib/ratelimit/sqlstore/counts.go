package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
)

// Count says how much a policy is used.
type Count struct {
	Policy     string
	ActiveKeys int64 // rows of keys that are not expired
	Refusals   int64 // first refusals of a key in a window, in the last 24 hours
}

// counts reads both tables once, as they are at one moment.
const counts = `
WITH
  clock AS MATERIALIZED (
    SELECT coalesce(?, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) AS now
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
ORDER BY policy`

// Counts tells of every policy that has a key or a refusal, in the order of names. It names no key, changes nothing, and
// reads every row of two tables: a view for an operator, not for every request. Config.Deadline bounds it.
func (s *Store) Counts(ctx context.Context) ([]Count, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Deadline)
	defer cancel()
	rows, err := s.db.QueryContext(ctx, counts, s.now())
	if err != nil {
		return nil, fmt.Errorf("sqlstore: counts: %w", err)
	}
	var all []Count
	err = scanAll(rows, func(rows *sql.Rows) error {
		var count Count
		err := rows.Scan(&count.Policy, &count.ActiveKeys, &count.Refusals)
		all = append(all, count)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqlstore: counts: %w", err)
	}
	return all, nil
}
