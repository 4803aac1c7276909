package sqlstore

import (
	"encoding/binary"
	"encoding/hex"
	"testing"
)

// Whatever bytes a log holds, reading it fails or gives its entries, each moved by the shift.
func FuzzDecodeLog(f *testing.F) {
	f.Add("", int64(0))
	f.Add("00000000000000FF", int64(1))
	f.Add("00000000000000ff7fffffffffffffff", int64(-5))
	f.Add("0000", int64(0))
	f.Add("not hexadecimal!", int64(0))
	f.Fuzz(func(t *testing.T, text string, shift int64) {
		log, err := decodeLog(text, shift)
		raw, bad := hex.DecodeString(text)
		if whole := bad == nil && len(raw)%8 == 0; whole != (err == nil) {
			t.Fatalf("%q: error %v", text, err)
		}
		if err != nil {
			return
		}
		var again []byte
		for _, micros := range log {
			again = binary.BigEndian.AppendUint64(again, uint64(micros-shift))
		}
		if string(again) != string(raw) {
			t.Fatalf("%q: read as %v", text, log)
		}
	})
}
