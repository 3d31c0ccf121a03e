package tap

import (
	"math"
	"time"
)

// histogram counts durations in buckets that grow by a seventh of a power of
// two: an estimate from it is within 5 % of the true value, (γ−1)/(γ+1) for
// γ = 2^⅐ (Masson, Rim, Lee: DDSketch, 2019, §2). Buckets lie between 1 µs and
// 4.5 minutes. Other durations count in the first or the last one.
type histogram [perOctave * octaves]uint32

const (
	perOctave = 7
	octaves   = 28
)

func bucketOf(d time.Duration) int {
	if d <= time.Microsecond {
		return 0
	}
	return min(int(perOctave*math.Log2(float64(d)/float64(time.Microsecond))), perOctave*octaves-1)
}

// add counts d. A full bucket stays full.
func (h *histogram) add(d time.Duration) {
	if i := bucketOf(d); h[i] < math.MaxUint32 {
		h[i]++
	}
}

// quantile returns the duration that a share q of the counted did not exceed,
// within least and most. It returns most for the last bucket, which has no upper
// end.
func (h *histogram) quantile(q float64, least, most time.Duration) time.Duration {
	var total uint64
	for _, n := range h {
		total += uint64(n)
	}
	rank := max(uint64(math.Ceil(q*float64(total))), 1)
	for i, n := range h[:len(h)-1] {
		if uint64(n) < rank {
			rank -= uint64(n)
			continue
		}
		lo, hi := math.Exp2(float64(i)/perOctave), math.Exp2(float64(i+1)/perOctave)
		middle := 2 * lo * hi / (lo + hi) * float64(time.Microsecond) // with the same relative error to lo and hi
		return min(max(time.Duration(math.Round(middle)), least), most)
	}
	return most
}
