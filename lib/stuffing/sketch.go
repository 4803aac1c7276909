package stuffing

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
)

// A sketch counts distinct subjects by HyperLogLog (Flajolet, Fusy, Gandouet, Meunier 2007): each subject has a register and a
// rank, and a register keeps the highest rank that it was shown. Registers are rows, so that one statement of any process
// adds to a sketch, and sketches of several minutes are one by the highest rank of each register.

// registers is how many a sketch has: the standard error of a count is 1.04 ÷ √256, 6.5 %.
const registers = 256

// StandardErrorPercent is the standard error of a count of distinct accounts or addresses, rounded up.
const StandardErrorPercent = 7

// maxRank bounds a rank, and so what a sum of powers may be. A rank is over 32 for one subject in four thousand million.
const maxRank = 32

// position says which register a subject is in, and with which rank: the first byte of an HMAC, and the number of the first bit
// that is 1 in what follows. What is counted, such as "account", keeps subjects that are spelt alike apart.
func position(key []byte, kind, subject string) (register, rank int64) {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(kind + "\x00" + subject))
	sum := mac.Sum(nil)
	return int64(sum[0]), min(int64(bits.LeadingZeros64(binary.BigEndian.Uint64(sum[1:])))+1, maxRank)
}

// sketch is what estimate needs of a sketch: how many of its registers were ever shown anybody, and the sum of 2^(maxRank - rank)
// over these, which is exact.
type sketch struct {
	filled, powers int64
}

// estimate is the number of distinct subjects.
func (s sketch) estimate() int64 {
	const m = float64(registers)
	empty := m - float64(s.filled)
	raw := 0.7213 / (1 + 1.079/m) * m * m / (empty + float64(s.powers)/(1<<maxRank))
	if raw <= 2.5*m && empty > 0 { // few subjects are counted by the registers that are empty
		raw = m * math.Log(m/empty)
	}
	return int64(math.Round(raw))
}
