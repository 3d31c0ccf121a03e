package view

import (
	"math"
	"sync"
	"time"
)

// latency is how long requests took, of late. Durations fall into buckets each
// of which is 9 % wider than the one before, so that a quantile is off by at
// most 5 %.
type latency struct {
	mu    sync.Mutex
	now   histogram
	past  [window]histogram // a ring
	turns int
}

const (
	window    = 60 // turns that the distribution is over
	octaves   = 24 // from shortest, which is up to three minutes
	perOctave = 8  // buckets
	perBar    = 4  // buckets that the page shows as one
	shortest  = 10 * time.Microsecond
)

// histogram counts durations.
type histogram struct {
	n       uint64
	of      uint64 // requests, of which n were looked at
	longest time.Duration
	buckets [octaves * perOctave]uint32
}

func (h *histogram) add(d time.Duration) {
	h.n++
	h.longest = max(h.longest, d)
	h.buckets[bucketOf(d)]++
}

func bucketOf(d time.Duration) int {
	if d <= shortest {
		return 0
	}
	return min(int(perOctave*math.Log2(float64(d)/float64(shortest))), octaves*perOctave-1)
}

// quantile returns the middle of the bucket that q of the durations are not
// above.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(math.Ceil(q * float64(h.n)))
	for i, seen := 0, uint64(0); i < len(h.buckets); i++ {
		if seen += uint64(h.buckets[i]); seen >= rank && seen > 0 {
			middle := float64(shortest) * math.Exp2((float64(i)+0.5)/perOctave)
			return min(time.Duration(middle), h.longest)
		}
	}
	return 0
}

func (l *latency) add(d time.Duration) {
	l.mu.Lock()
	l.now.add(d)
	l.mu.Unlock()
}

// turn ends a turn in which so many requests ended, and returns its histogram.
func (l *latency) turn(ended uint64) histogram {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.now
	h.of = max(ended, h.n)
	l.now = histogram{}
	l.past[l.turns%window] = h
	l.turns++
	return h
}

// bars is the distribution over the last turns: From is the shortest duration
// in nanoseconds of the first, and each is the square root of two times as wide
// as the one before.
type bars struct {
	From   float64  `json:"from"`
	Counts []uint64 `json:"counts"`
	Of     uint64   `json:"of"` // requests there were; the counts are of all or of a sample
}

func (l *latency) bars() bars {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum [octaves * perOctave / perBar]uint64
	var of uint64
	for i := range l.past {
		of += l.past[i].of
		if l.past[i].n == 0 {
			continue
		}
		for j, n := range &l.past[i].buckets {
			sum[j/perBar] += uint64(n)
		}
	}
	first, end := 0, len(sum)
	for first < end && sum[first] == 0 {
		first++
	}
	for end > first && sum[end-1] == 0 {
		end--
	}
	return bars{
		From:   float64(shortest) * math.Exp2(float64(first*perBar)/perOctave),
		Counts: append([]uint64{}, sum[first:end]...),
		Of:     of,
	}
}
