package histogram

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBucket(t *testing.T) {
	for i := range PerOctave * Octaves {
		require.Equal(t, i, bucket(math.Exp2(float64(i)/PerOctave)))
	}
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(1, 1<<Octaves).Draw(t, "x")
		exact := PerOctave * math.Log2(x)
		require.InDelta(t, exact-0.5, bucket(x), 0.5+1e-9)
	})
}

func BenchmarkAdd(b *testing.B) {
	var h Histogram
	for b.Loop() {
		h.Add(1234567 * time.Nanosecond)
	}
}
