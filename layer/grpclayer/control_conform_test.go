package grpclayer

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer/layertest"
)

// A connection to a control plane keeps the contract.
func TestControlLinkConforms(t *testing.T) {
	layertest.Run(t, layertest.ServiceOf[*Call, *Reply]{
		New:     func(context.Context) Service { return &controlLink{leaf: leaf()} },
		Request: func(int) *Call { return &Call{Method: method, rpc: fixed{}} },
	})
}
