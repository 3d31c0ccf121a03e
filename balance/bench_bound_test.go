package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
)

// cell is the least that can be known of an endpoint, in a line of its own.
type cell struct {
	inFlight atomic.Int64
	latency  atomic.Uint64 // the bits of a float64
	at       atomic.Int64
	_        [40]byte
}

func (c *cell) cost() float64 {
	return math.Float64frombits(c.latency.Load()) * float64(c.inFlight.Load()+1)
}

// least finds the cheapest of k cells, from i on by a stride.
func least(cells []cell, i, stride, k int) *cell {
	best := &cells[i]
	its := best.cost()
	for range k - 1 {
		if i += stride; i >= len(cells) {
			i -= len(cells)
		}
		if c := &cells[i]; c.cost() < its {
			best, its = c, c.cost()
		}
	}
	return best
}

// What a pick of as many as the default looks at cannot do without, to compare
// BenchmarkPick with: two clock readings, the costs, an average with its decay.
// The cells are in one piece, and never change: there is no set, no weight, no
// failure, nobody asks, and no service is called.
func BenchmarkBound(b *testing.B) {
	for _, n := range []int{2, 10, 16, 100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			cells, k, start := make([]cell, n), n, time.Now()
			if n > 16 {
				k = 5
			}
			for b.Loop() {
				random := rand.Uint64()
				i, stride := int(uint64(uint32(random))*uint64(n)>>32), 1
				if n > 16 {
					stride += int(random >> 32 * uint64(n-1) >> 32)
				}
				c := least(cells, i, stride, k)
				c.inFlight.Add(1)
				began := time.Since(start)
				now := time.Since(start)
				took, old := float64(now-began), math.Float64frombits(c.latency.Load())
				if took < old {
					w := math.Exp(-float64(int64(now)-c.at.Load()) / 1e10)
					took = old*w + took*(1-w)
				}
				c.latency.Store(math.Float64bits(took))
				c.at.Store(int64(now))
				c.inFlight.Add(-1)
			}
		})
	}
}
