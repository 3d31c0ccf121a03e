package tap

import (
	"math"
	"sync/atomic"
	"time"
)

// histogram counts durations in buckets that grow by a seventh of a power of
// two: an estimate from it is within 5 % of what it stands for, (γ−1)/(γ+1) for
// γ = 2^⅐ (Masson, Rim, Lee: DDSketch, 2019, §2). Buckets lie between 1 µs and
// 4.5 minutes; what is outside is in the first or the last.
type histogram [perOctave * octaves]atomic.Uint32

const (
	perOctave = 7
	octaves   = 28

	// foldAt is when a bucket is halved: it never overflows between two looks.
	foldAt = 1 << 30
)

func bucketOf(d time.Duration) int {
	if d <= time.Microsecond {
		return 0
	}
	return min(int(perOctave*math.Log2(float64(d)/float64(time.Microsecond))), perOctave*octaves-1)
}

func (h *histogram) add(d time.Duration) { h[bucketOf(d)].Add(1) }

// counts is a histogram at one time.
type counts struct {
	buckets [perOctave * octaves]uint32
	total   uint64
}

func (h *histogram) read(into *counts) {
	into.total = 0
	for i := range h {
		n := h[i].Load()
		into.buckets[i] = n
		into.total += uint64(n)
	}
}

// fold halves the buckets once one of them is large.
func (h *histogram) fold() {
	for i := range h {
		if h[i].Load() >= foldAt {
			h.halve()
			return
		}
	}
}

// absorb adds what another counted, which nobody changes any more.
func (h *histogram) absorb(from *histogram) {
	for i := range from {
		if n := from[i].Load(); n > 0 {
			h[i].Add(n)
		}
	}
	h.fold()
}

func (h *histogram) halve() {
	for i := range h {
		h[i].Add(-(h[i].Load() / 2))
	}
}

// quantile is the duration that a share q of the counted did not exceed. The
// highest bucket has no upper end, and most is returned for it.
func (c *counts) quantile(q float64, least, most time.Duration) time.Duration {
	rank := max(uint64(math.Ceil(q*float64(c.total))), 1)
	for i, n := range &c.buckets {
		if uint64(n) < rank {
			rank -= uint64(n)
			continue
		}
		if i == len(c.buckets)-1 {
			return most
		}
		lo, hi := math.Exp2(float64(i)/perOctave), math.Exp2(float64(i+1)/perOctave)
		middle := 2 * lo * hi / (lo + hi) * float64(time.Microsecond)   // as far from lo as from hi, in proportion
		return min(max(time.Duration(math.Round(middle)), least), most) // cut off, it would be beyond 5 % of some microseconds
	}
	return most
}
