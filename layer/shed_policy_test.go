package layer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestShedPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy   layer.ShedPolicy
		wrong    string
		ceilings [3]float64 // of 100, of the layer that is made all the same
	}{
		{layer.ShedPolicy{}, "", [3]float64{90, 75, 50}},
		{layer.ShedPolicy{Normal: 1, Low: 1, Bulk: 1}, "", [3]float64{100, 100, 100}},
		{layer.ShedPolicy{Normal: 0.4}, "", [3]float64{40, 40, 40}},
		{layer.ShedPolicy{Bulk: 0.1}, "", [3]float64{90, 75, 10}},
		{layer.ShedPolicy{Normal: -1}, "normal -1 must be from 0 (for the default) to 1", [3]float64{90, 75, 50}},
		{layer.ShedPolicy{Low: 2}, "low 2 must be from 0 (for the default) to 1", [3]float64{90, 75, 50}},
		{layer.ShedPolicy{Bulk: math.NaN()}, "bulk NaN must be from 0 (for the default) to 1", [3]float64{90, 75, 50}},
		{layer.ShedPolicy{Normal: 0.5, Low: 0.6}, "low 0.6 must be at most normal 0.5", [3]float64{50, 50, 50}},
		{layer.ShedPolicy{Bulk: 0.8}, "bulk 0.8 must be at most low 0.75", [3]float64{90, 75, 75}},
	} {
		if err := tt.policy.Validate(); tt.wrong == "" {
			require.NoError(t, err, "%+v", tt.policy)
		} else {
			require.EqualError(t, err, "shed: "+tt.wrong)
		}
		r := newShedRig(t, 100)
		r.svc = layer.Shed[int, *response](tt.policy)(r.svc.(interface {
			Next() layer.Service[int, *response]
		}).Next())
		r.fill(layer.PriorityNormal)
		require.Equal(t, "limit", r.send(layer.PriorityCritical))
		for i, name := range []string{"normal", "low", "bulk"} {
			require.InDelta(t, tt.ceilings[i], r.state("ceiling_"+name), 0.1, "%s of %+v", name, tt.policy)
		}
	}
}
