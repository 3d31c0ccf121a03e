package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformHedge(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	plenty := layer.NewBudget(0, 0, 1_000_000)
	for name, spec := range map[string]layertest.Layer{
		"no samples": {Layer: layer.Hedge[Q, R](layer.HedgePolicy[Q]{})},
		"not yet":    {Layer: layer.Hedge[Q, R](after[Q](100 * time.Hour))},
		"samples":    {Layer: layer.Hedge[Q, R](layer.HedgePolicy[Q]{MinSamples: 1, MinDelay: 100 * time.Hour})},
		"for others": {
			Layer:       layer.Hedge[Q, R](layer.HedgePolicy[Q]{HedgeIf: func(Q) bool { return false }}),
			Transparent: true,
		},
		"copies": {
			Layer:       layer.Hedge[Q, R](layer.HedgePolicy[Q]{Budget: plenty, MinDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}),
			MaxAttempts: 2, Pause: 10 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
