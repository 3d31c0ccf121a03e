package balance

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// The ring changes during picks. Ten endpoints always stay: a pick is one of them or was
// ready a moment ago, and their own keys never fail.
func TestHashConcurrentChanges(t *testing.T) {
	es := members(40)
	h := hashOf(t, 0, es[:10]...)
	var random atomic.Uint64
	h.random = func() uint64 { return mix(random.Add(gamma)) }
	var done atomic.Bool
	var pickers sync.WaitGroup
	var picked atomic.Int64
	for p := range uint64(3) {
		pickers.Go(func() {
			for i := uint64(0); !done.Load() || i < 100; i++ {
				e := h.pick(query{affinity: i % (50*p + 1), hasAffinity: true, now: uint32(i / 64)})
				if e == nil {
					t.Error("ten are always there")
					return
				}
				if e.begin(0) {
					picked.Add(1)
					if i%8 != 0 {
						e.end()
					}
				}
			}
		})
	}
	for range 3 {
		for _, e := range es[10:] {
			h.join(e)
		}
		for _, e := range es[10:] {
			h.leave(e)
		}
	}
	done.Store(true)
	pickers.Wait()
	require.GreaterOrEqual(t, picked.Load(), int64(100))
	require.EqualValues(t, 10*pointsPerUnit, h.ring.points.Load())
}
