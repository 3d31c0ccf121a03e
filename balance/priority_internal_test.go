package balance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The tables in the documentation of Envoy: "Priority levels" and "Locality weighted load balancing".
func TestSharesOf(t *testing.T) {
	of := func(priority uint32, locality string, weight uint32, healthy, size int) level {
		return level{group: &group{key: groupKey{priority, locality}, size: size, weights: weight}, healthy: healthy, ready: healthy}
	}
	for _, tt := range []struct {
		levels []level
		want   []float64
	}{
		{[]level{of(0, "", 0, 100, 100), of(1, "", 0, 100, 100)}, []float64{1, 0}},
		{[]level{of(0, "", 0, 72, 100), of(1, "", 0, 72, 100)}, []float64{1, 0}},
		{[]level{of(0, "", 0, 71, 100), of(1, "", 0, 71, 100)}, []float64{0.994, 0.006}},
		{[]level{of(0, "", 0, 50, 100), of(1, "", 0, 50, 100)}, []float64{0.70, 0.30}},
		{[]level{of(0, "", 0, 25, 100), of(1, "", 0, 100, 100)}, []float64{0.35, 0.65}},
		{[]level{of(0, "", 0, 25, 100), of(1, "", 0, 25, 100)}, []float64{0.50, 0.50}},
		{[]level{of(0, "", 0, 25, 100), of(1, "", 0, 20, 100)}, []float64{0.556, 0.444}},
		{[]level{of(0, "", 0, 0, 100), of(1, "", 0, 100, 100)}, []float64{0, 1}},
		{[]level{of(0, "", 0, 0, 100), of(1, "", 0, 0, 100)}, []float64{0, 0}},
		{[]level{of(0, "x", 1, 100, 100), of(0, "y", 2, 100, 100)}, []float64{1. / 3, 2. / 3}},
		{[]level{of(0, "x", 1, 100, 100), of(0, "y", 2, 70, 100)}, []float64{0.338, 0.662}},
		{[]level{of(0, "x", 1, 100, 100), of(0, "y", 2, 50, 100)}, []float64{0.417, 0.583}},
		{[]level{of(0, "x", 1, 100, 100), of(0, "y", 2, 0, 100)}, []float64{1, 0}},
	} {
		got := sharesOf(tt.levels)
		require.InDeltaSlice(t, tt.want, got, 0.001, "%v", got)
	}
}
