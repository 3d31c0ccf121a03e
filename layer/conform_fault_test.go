package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformFaultInjection(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	others := layer.FaultPolicy[Q]{Fraction: 1, Err: layer.ErrInjected, TTL: time.Hour}
	others.Match = func(Q) bool { return false }
	// The kit expects that requests are served, so no request gets a fault.
	layertest.Run(t, layertest.Layer{Layer: layer.FaultInjection[Q, R](others), Transparent: true})
}
