package sqlstore

import (
	"context"
	"time"
)

// AuditRow is one row of the audit: the first refusal of a key in a window, or what an operator did to a key.
type AuditRow struct {
	ID     int64 // grows with time
	At     time.Time
	Policy string
	Key    int64     // of the subject: see ratelimit.Entry
	Used   int64     // units that stood; 0 for what an operator did
	Action string    // refusal, or a ratelimit.Action
	Until  time.Time // the end of a ban or an exemption, or zero
}

// audit reads by the primary key, whatever the size of the table.
var audit = newText(`
SELECT policy, action, id, at_micros, key, used, until_micros
FROM rate_limit_audit
WHERE id < ?
ORDER BY id DESC
LIMIT ?`)

// Audit reads the audit, newest first: at most limit rows whose ids are below one. Config.Deadline bounds it.
func (s *Store) Audit(ctx context.Context, below int64, limit int) ([]AuditRow, error) {
	outcomes, err := s.run(ctx, call{audit, []any{below, int64(limit)}})
	if err != nil {
		return nil, wrap("audit", err)
	}
	var all []AuditRow
	for _, columns := range outcomes[0].rows {
		if len(columns) != 7 {
			return nil, errNonsense
		}
		row := AuditRow{Policy: columns[0], Action: columns[1]}
		var at, until int64
		if err := scan([][]string{columns[2:]}, &row.ID, &at, &row.Key, &row.Used, &until); err != nil {
			return nil, err
		}
		row.At = time.UnixMicro(at).UTC()
		if until > 0 {
			row.Until = time.UnixMicro(until).UTC()
		}
		all = append(all, row)
	}
	return all, nil
}

// auditSweepRows bounds one statement of SweepAudit: few enough that no decision waits long for the writer.
const auditSweepRows = 1000

// sweepAudit looks at the oldest rows and deletes those whose time is over. Ids grow, so that they are in the order of time
// and no index is needed.
const sweepAudit = `
DELETE FROM rate_limit_audit
WHERE id IN (SELECT id FROM rate_limit_audit ORDER BY id LIMIT ?)
  AND at_micros <= ` + clock + ` - ?`

// As of sweep, for the same reasons.
var (
	sweepAuditText      = newText(sweepAudit + "\nRETURNING id")
	sweepAuditInPassing = newBestEffort(sweepAudit + "\n  AND changes() > 0")
)

func (s *Store) sweepAuditArgs(rows int) []any {
	return []any{int64(rows), s.now(), s.config.AuditRetention.Microseconds()}
}

// SweepAudit deletes the rows of the audit that are older than Config.AuditRetention, as long as ctx lasts, and says how many,
// and whether none is left. Config.Deadline bounds each step. What was deleted until an error is gone.
func (s *Store) SweepAudit(ctx context.Context) (deleted int64, done bool, err error) {
	if s.config.AuditRetention <= 0 {
		return 0, true, nil
	}
	for ctx.Err() == nil {
		gone, err := s.run(ctx, call{sweepAuditText, s.sweepAuditArgs(auditSweepRows)})
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return deleted, false, wrap("sweep the audit", err)
		}
		n := len(gone[0].rows)
		deleted += int64(n)
		if n < auditSweepRows {
			return deleted, true, nil
		}
	}
	return deleted, false, nil
}
