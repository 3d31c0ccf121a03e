package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformChaos(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	var thrown layer.KillSwitch
	thrown.Stop()
	on := layer.FaultPolicy[Q]{Fraction: 1, Err: layer.ErrInjected, TTL: time.Hour}
	others, killed := on, on
	others.Match = func(Q) bool { return false }
	killed.Kill = &thrown
	// What is injected fails what the kit expects to be served: there it is
	// shown that those who meet no fault notice nothing.
	for name, policy := range map[string]layer.FaultPolicy[Q]{"for others": others, "killed": killed} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{Layer: layer.FaultInjection[Q, R](policy), Transparent: true})
		})
	}
}
