// Package histogram estimates quantiles of durations.
package histogram

import (
	"math"
	"time"
)

// There are PerOctave buckets for each doubling of the duration, and Octaves doublings: from
// Shortest, 1 µs, to 4.5 minutes. A shorter duration counts in the first bucket, and a longer one
// in the last bucket. In all other buckets, the result of Quantile is within 5 % of the true value.
// The bound is (γ−1)/(γ+1) for γ = 2^⅛ (Masson, Rim, Lee: DDSketch, 2019, §2).
const (
	PerOctave = 8
	Octaves   = 28
	Shortest  = time.Microsecond
)

// Histogram counts durations in buckets. A bucket's count stops at the maximum of a uint32.
type Histogram [PerOctave * Octaves]uint32

// Add counts one measured duration, d, in its bucket.
func (h *Histogram) Add(d time.Duration) {
	i := 0
	if d > Shortest {
		i = min(bucket(float64(d)/float64(Shortest)), len(h)-1)
	}
	if h[i] < math.MaxUint32 {
		h[i]++
	}
}

// bounds holds the upper end v of each bucket in one octave: 2^(1/8), 2^(2/8), and so on to 2. Each
// element is the difference math.Float64bits(v) - math.Float64bits(1), because bucket compares this
// difference with a number's mantissa.
var bounds = func() (b [PerOctave]uint64) { //nolint:gochecknoglobals // a constant table
	for i := range b {
		b[i] = math.Float64bits(math.Exp2(float64(i+1)/PerOctave)) - math.Float64bits(1)
	}
	return b
}()

// bucket returns the integral part of PerOctave*log2(x), for x >= 1. It does not call math.Log2,
// because that is slower. Let x = 2ⁿ·(1+f) with 0 ≤ f < 1. Then 8*log2(1+f) exceeds 8f by 0.7 at
// most, so its integral part is the same as for 8f, or one more. The table bounds decides between
// the two.
func bucket(x float64) int {
	bits := math.Float64bits(x) - math.Float64bits(1)
	mantissa := bits & (1<<52 - 1)
	// The three highest bits of the mantissa are the integral part of 8f.
	i := mantissa >> 49
	if mantissa >= bounds[i] {
		i++
	}
	return int(bits>>52)*PerOctave + int(i)
}

// Quantile estimates the q-quantile of the counted durations, such as the median if q is 0.5. The
// result is between shortest and longest. In the last bucket, Quantile returns longest, because
// that bucket is open-ended.
func (h *Histogram) Quantile(q float64, shortest, longest time.Duration) time.Duration {
	var total uint64
	for _, n := range h {
		total += uint64(n)
	}
	// The rank of the wanted duration among all, from the shortest. It becomes its rank in its bucket.
	rank := max(uint64(math.Ceil(q*float64(total))), 1)
	for i, n := range h[:len(h)-1] {
		if uint64(n) < rank {
			rank -= uint64(n)
			continue
		}
		lo := math.Exp2(float64(i) / PerOctave)
		hi := math.Exp2(float64(i+1) / PerOctave)
		middle := 2 * lo * hi / (lo + hi) * float64(Shortest) // has the same relative error to lo and hi
		return min(max(time.Duration(math.Round(middle)), shortest), longest)
	}
	return longest
}
