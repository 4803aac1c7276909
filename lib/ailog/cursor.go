package ailog

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
)

// list is what a cursor is a place in: the entries of one account, or of all, or those of all that a search finds.
type list struct {
	all   bool
	owner int64  // the account; 0 if all
	demo  bool   // of all: those that demo accounts added
	query string // what is searched for; "" for all entries
}

// A cursor is the place of the last entry of a page and a tag, in base64url. Places are never used again, and lower ones are
// of older entries: so it stays good whatever is added, and when the entry itself is gone.
const (
	placeBytes = 8
	tagBytes   = 8
)

var cursorEncoding = base64.RawURLEncoding.Strict()

// cursor gives the cursor of the entries below a place.
func (l list) cursor(place int64) string {
	data := binary.BigEndian.AppendUint64(nil, uint64(place))
	return cursorEncoding.EncodeToString(append(data, l.tag(data)...))
}

// tag tells the cursors of one list from those of others, and from texts that are none. It keeps no secret and needs no
// key: whatever a cursor says, a page is of the list that was asked for.
func (l list) tag(place []byte) []byte {
	text := fmt.Appendf(nil, "weir ai-log cursor, all %t, demo %t, account %d, place %x", l.all, l.demo, l.owner, place)
	if l.query != "" {
		text = fmt.Appendf(text, ", query %s", l.query)
	}
	sum := sha256.Sum256(text)
	return sum[:tagBytes]
}

// place reads a cursor. The error is ErrCursor.
func (l list) place(cursor string) (int64, error) {
	if len(cursor) != cursorEncoding.EncodedLen(placeBytes+tagBytes) {
		return 0, ErrCursor
	}
	data, err := cursorEncoding.DecodeString(cursor)
	if err != nil || len(data) != placeBytes+tagBytes { // shorter where the text has line breaks
		return 0, ErrCursor
	}
	place := binary.BigEndian.Uint64(data)
	if place < 1 || place > math.MaxInt64 || !bytes.Equal(data[placeBytes:], l.tag(data[:placeBytes])) {
		return 0, ErrCursor
	}
	return int64(place), nil
}

// start gives the place below which a page begins.
func (l list) start(cursor string, limit int) (int64, error) {
	if limit < 1 || limit > MaxPageEntries {
		return 0, fmt.Errorf("%w: %d: allowed are 1 to %d", ErrLimit, limit, MaxPageEntries)
	}
	if cursor == "" {
		return math.MaxInt64, nil
	}
	return l.place(cursor)
}
