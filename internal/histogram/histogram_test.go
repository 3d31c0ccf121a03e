package histogram_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/histogram"
)

// The estimate of a quantile is within 5 % of the true value.
func TestQuantileError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Int64Range(int64(time.Microsecond), int64(4*time.Minute)), 1, 200).Draw(t, "samples")
		var h histogram.Histogram
		for _, s := range samples {
			h.Add(time.Duration(s))
		}
		slices.Sort(samples)
		for _, q := range []float64{0.01, 0.5, 0.95, 0.99, 1} {
			want := float64(samples[max(int(math.Ceil(q*float64(len(samples)))), 1)-1])
			got := h.Quantile(q, time.Duration(samples[0]), time.Duration(samples[len(samples)-1]))
			assert.InEpsilon(t, want, float64(got), 0.05, "quantile %v", q)
		}
	})
}

// The first buckets are as precise.
func TestQuantileOfMicroseconds(t *testing.T) {
	for want := time.Microsecond; want < 20*time.Microsecond; want++ {
		var h histogram.Histogram
		h.Add(want)
		require.InEpsilon(t, want, h.Quantile(0.5, 0, time.Hour), 0.05)
	}
}

func TestQuantileOutsideBuckets(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 999, time.Hour, math.MaxInt64} {
		var h histogram.Histogram
		h.Add(d)
		require.Equal(t, d, h.Quantile(0.5, d, d))
	}
	require.Equal(t, time.Duration(0), new(histogram.Histogram).Quantile(0.5, 0, 0))
}
