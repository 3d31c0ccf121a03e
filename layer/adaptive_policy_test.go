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
		limit  int64
		bounds [2]int
	}{
		{layer.AdaptivePolicy{}, "", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{}, "", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Max: 8}, "", 8, [2]int{1, 8}},
		{layer.AdaptivePolicy{Min: 30}, "", 30, [2]int{30, 1000}},
		{layer.AdaptivePolicy{Min: 2000}, "", 2000, [2]int{2000, 2000}},
		{layer.AdaptivePolicy{Min: 3, Max: 9, Initial: 5, Tolerance: 2, Window: time.Second}, "", 5, [2]int{3, 9}},
		{layer.AdaptivePolicy{Min: -1}, "Min is -1, must be at least 1", 0, [2]int{}},
		{layer.AdaptivePolicy{Min: 5, Max: 4}, "Max is 4, must be at least Min, 5", 0, [2]int{}},
		{layer.AdaptivePolicy{Max: -4}, "Max is -4, must be at least Min, 1", 0, [2]int{}},
		{layer.AdaptivePolicy{Max: 10, Initial: 11}, "Initial is 11, must be 1 to 10", 0, [2]int{}},
		{layer.AdaptivePolicy{Tolerance: 1}, "Tolerance is 1, must be 1.1 to 2", 0, [2]int{}},
		{layer.AdaptivePolicy{Tolerance: 2.5}, "Tolerance is 2.5, must be 1.1 to 2", 0, [2]int{}},
		{layer.AdaptivePolicy{Tolerance: nan}, "Tolerance is NaN, must be 1.1 to 2", 0, [2]int{}},
		{layer.AdaptivePolicy{Window: time.Microsecond}, "Window is 1µs, must be 1ms to 1m", 0, [2]int{}},
		{layer.AdaptivePolicy{Window: time.Hour}, "Window is 1h0m0s, must be 1ms to 1m", 0, [2]int{}},
	} {
		err := tt.policy.Validate()
		if tt.wrong != "" {
			require.EqualError(t, err, "AdaptivePolicy."+tt.wrong)
			continue
		}
		require.NoError(t, err, "%+v", tt.policy)
		state := layer.Describe(layer.AdaptiveLimit[int, int](tt.policy)(layer.Func[int, int](echo))).State
		require.Equal(t, tt.limit, state.Get("limit"), "%+v", tt.policy)
		bounds := [2]int{state.Get("min").(int), state.Get("max").(int)}
		require.Equal(t, tt.bounds, bounds)
	}
}
