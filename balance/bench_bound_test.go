package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
)

// cell is the least state of an endpoint, in its own cache line.
type cell struct {
	inFlight atomic.Int64
	latency  atomic.Uint64 // the bits of a float64
	at       atomic.Int64
	_        [40]byte
}

func (c *cell) cost() float64 {
	return math.Float64frombits(c.latency.Load()) * float64(c.inFlight.Load()+1)
}

// least returns the cheapest of k cells, from i by a stride.
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

// The least work of a pick among as many endpoints as the default examines: two clock
// readings, the costs and an average. The cells are contiguous, without a set,
// weight, failure or service.
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
