package layer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestShedPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy layer.ShedPolicy
		wrong  string
		shares [3]int // of 100: normal, low, bulk
	}{
		{layer.ShedPolicy{}, "", [3]int{90, 75, 50}},
		{layer.ShedPolicy{Normal: 1, Low: 1, Bulk: 1}, "", [3]int{100, 100, 100}},
		{layer.ShedPolicy{Normal: 0.4}, "", [3]int{40, 40, 40}},
		{layer.ShedPolicy{Bulk: 0.1}, "", [3]int{90, 75, 10}},
		{layer.ShedPolicy{Normal: -1}, "Normal is -1, must be 0 to 1", [3]int{}},
		{layer.ShedPolicy{Low: 2}, "Low is 2, must be 0 to 1", [3]int{}},
		{layer.ShedPolicy{Bulk: math.NaN()}, "Bulk is NaN, must be 0 to 1", [3]int{}},
		{layer.ShedPolicy{Normal: 0.5, Low: 0.6}, "Low is 0.6, must be at most Normal, 0.5", [3]int{}},
		{layer.ShedPolicy{Bulk: 0.8}, "Bulk is 0.8, must be at most Low, 0.75", [3]int{}},
	} {
		err := tt.policy.Validate()
		if tt.wrong != "" {
			require.EqualError(t, err, "ShedPolicy."+tt.wrong)
			continue
		}
		require.NoError(t, err, "%+v", tt.policy)
		r := newShedRig(t, 100)
		r.svc = layer.Shed[int, *response](tt.policy)(r.svc.(interface {
			Next() layer.Service[int, *response]
		}).Next())
		for i, p := range []layer.Priority{layer.PriorityNormal, layer.PriorityLow, layer.PriorityBulk} {
			n, _ := r.fill(p)
			require.Equal(t, tt.shares[i], n, "%v of %+v", p, tt.policy)
			r.end(n)
		}
	}
}
