package sqlstore

import (
	"context"
	"time"

	"github.com/weirlimits/weir/lib/ratelimit"
)

// Word is what an operator said last about a key.
type Word struct {
	Key    int64
	Policy string
	Said   time.Time
	Action ratelimit.Action // Reset, also of a ban or an exemption that is over
	Until  time.Time        // the end of a ban or an exemption
}

// words reads by the primary key.
var words = newText(`
SELECT policy, key, said_micros, CASE WHEN until_micros > ` + clock + ` THEN override ELSE 0 END, until_micros
FROM rate_limits
WHERE key >= ?
  AND said_micros > 0
ORDER BY key
LIMIT ?`)

// Words reads what operators said of the keys from one on, in the order of keys: at most limit of them. It goes through the
// whole table, for somebody who changes the shards. Config.Deadline bounds it.
func (s *Store) Words(ctx context.Context, from int64, limit int) ([]Word, error) {
	outcomes, err := s.run(ctx, call{words, []any{s.now(), from, int64(limit)}})
	if err != nil {
		return nil, wrap("words", err)
	}
	var all []Word
	for _, row := range outcomes[0].rows {
		if len(row) != 5 {
			return nil, errNonsense
		}
		word := Word{Policy: row[0]}
		var said, override, until int64
		if err := scan([][]string{row[1:]}, &word.Key, &said, &override, &until); err != nil {
			return nil, err
		}
		word.Said, word.Action = time.UnixMicro(said).UTC(), ratelimit.Reset
		switch ratelimit.Override(override) {
		case ratelimit.Banned:
			word.Action, word.Until = ratelimit.Ban, time.UnixMicro(until).UTC()
		case ratelimit.Exempt:
			word.Action, word.Until = ratelimit.Allow, time.UnixMicro(until).UTC()
		}
		all = append(all, word)
	}
	return all, nil
}
