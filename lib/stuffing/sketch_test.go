package stuffing

import (
	"fmt"
	"math"
	"testing"
)

// sketchOf is what the database makes of the positions of so many subjects, each of which comes twice.
func sketchOf(key []byte, kind string, n int) (s sketch) {
	var ranks [registers]int64
	for i := range 2 * n {
		register, rank := position(key, kind, fmt.Sprint("subject ", i%n))
		ranks[register] = max(ranks[register], rank)
	}
	for _, rank := range ranks {
		if rank > 0 {
			s.filled++
			s.powers += 1 << (maxRank - rank)
		}
	}
	return s
}

// Row D9: with the keys of a hundred sites. The standard error of a hundred samples' own is 7 % of it.
func TestDistinctSubjectsAreCountedWithinTheStatedError(t *testing.T) {
	const sites = 100
	for _, n := range []int{0, 1, 2, 10, 30, 100, 300, 600, 1000, 10_000} {
		var squares, sum, worst float64
		for site := range sites {
			if n == 10_000 && site%4 > 0 {
				continue
			}
			got := sketchOf([]byte(fmt.Sprint("key ", site)), "account", n).estimate()
			off := float64(got - int64(n))
			if n > 0 {
				off /= float64(n)
			}
			squares, sum, worst = squares+off*off, sum+off, max(worst, math.Abs(off))
		}
		samples := float64(sites)
		if n == 10_000 {
			samples /= 4
		}
		deviation, bias := math.Sqrt(squares/samples), sum/samples
		t.Logf("%5d subjects: standard error %.1f %%, bias %+.1f %%, worst %.1f %%", n, 100*deviation, 100*bias, 100*worst)
		if deviation > 1.25*StandardErrorPercent/100 || math.Abs(bias) > 0.03 || worst > 0.3 {
			t.Errorf("%d subjects: standard error %.3f, bias %.3f, worst %.3f", n, deviation, bias, worst)
		}
	}
}

func TestWhoIsInARegisterDependsOnTheKeyAndOnWhatIsCounted(t *testing.T) {
	same := 0
	for i := range 100 {
		subject := fmt.Sprint(i)
		a, _ := position([]byte("one"), "account", subject)
		b, _ := position([]byte("two"), "account", subject)
		c, _ := position([]byte("one"), "address", subject)
		if a == b || a == c || b == c {
			same++
		}
	}
	if same > 10 {
		t.Errorf("%d of 100 are in one register", same)
	}
}
