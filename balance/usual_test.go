package balance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// First samples update the median, in a large group once in a tick.
func TestMedianFirstSamples(t *testing.T) {
	for _, n := range []int{medianSize, medianSize + 1} {
		ns := make([]*endpoint, n)
		for i := range ns {
			ns[i] = unknown()
		}
		g := groupOf(ns...)
		learn := func(i int, now uint32) {
			g.refresh(ns[i], now, ns[i].latency.record(time.Duration(i+1)*time.Millisecond, now, g.decayCurve.decay, sampleWeight))
		}
		learn(0, 1)
		require.InDelta(t, 1*ms, g.median.read(), 1)
		learn(2, 1)
		learn(3, 1)
		if n <= medianSize {
			require.InDelta(t, 3*ms, g.median.read(), 1)
			continue
		}
		require.InDelta(t, 1*ms, g.median.read(), 1)
		learn(4, 2)
		require.Greater(t, float64(g.median.read()), 2*ms)
	}
}
