package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestDeadlinesConform(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	allow := func(left time.Duration, ok bool) func(Q) (time.Duration, bool) {
		return func(Q) (time.Duration, bool) { return left, ok }
	}
	keep := func(req Q, _ time.Duration) Q { return req }
	for name, spec := range map[string]layertest.Layer{
		"in":            {Layer: layer.DeadlineFromRequest[Q, R](allow(time.Hour, true))},
		"in, not given": {Layer: layer.DeadlineFromRequest[Q, R](allow(0, false)), NoAllocs: true},
		"out":           {Layer: layer.DeadlineToRequest[Q, R](keep, 0), NoAllocs: true},
		"out of in": {Layer: layer.NewStack[Q, R]().
			With("in", layer.DeadlineFromRequest[Q, R](allow(time.Hour, true))).
			With("out", layer.DeadlineToRequest[Q, R](keep, time.Millisecond)).Layer()},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
