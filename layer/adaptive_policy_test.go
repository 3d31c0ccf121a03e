package layer_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestAdaptivePolicy(t *testing.T) {
	nan := math.NaN()
	for _, tt := range []struct {
		policy layer.AdaptivePolicy
		wrong  string
		limit  int64 // of the layer that is made all the same
		bounds [2]int
	}{
		{layer.AdaptivePolicy{}, "", 20, [2]int{1, 1000}},
		{layer.DefaultAdaptivePolicy(), "", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Max: 8}, "", 8, [2]int{1, 8}},
		{layer.AdaptivePolicy{Min: 30}, "", 30, [2]int{30, 1000}},
		{layer.AdaptivePolicy{Min: 2000}, "", 2000, [2]int{2000, 2000}},
		{layer.AdaptivePolicy{Min: 3, Max: 9, Initial: 5, Tolerance: 2, Window: time.Second}, "", 5, [2]int{3, 9}},
		{layer.AdaptivePolicy{Min: -1}, "min -1 must be at least 1, or 0 for the default", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Min: 5, Max: 4}, "max 4 must be at least min 5", 5, [2]int{5, 5}},
		{layer.AdaptivePolicy{Max: -4}, "max -4 must be at least min 1", 1, [2]int{1, 1}},
		{layer.AdaptivePolicy{Max: 10, Initial: 11}, "initial 11 must be from 1 to 10", 10, [2]int{1, 10}},
		{layer.AdaptivePolicy{Tolerance: 1}, "tolerance 1 must be from 1.1 to 2", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Tolerance: 2.5}, "tolerance 2.5 must be from 1.1 to 2", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Tolerance: nan}, "tolerance NaN must be from 1.1 to 2", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Window: time.Microsecond}, "window 1µs must be from 1ms to 1m", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Window: time.Hour}, "window 1h0m0s must be from 1ms to 1m", 20, [2]int{1, 1000}},
	} {
		if err := tt.policy.Validate(); tt.wrong == "" {
			require.NoError(t, err, "%+v", tt.policy)
		} else {
			require.EqualError(t, err, "adaptive limit: "+tt.wrong)
		}
		state := layer.Describe(layer.AdaptiveLimit[int, int](tt.policy)(layer.Func[int, int](echo))).State
		require.Equal(t, tt.limit, state.Get("limit"), "%+v", tt.policy)
		bounds := [2]int{state.Get("min").(int), state.Get("max").(int)}
		require.Equal(t, tt.bounds, bounds)
	}
}
