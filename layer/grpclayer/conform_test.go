package grpclayer

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// A connection keeps the contract of a service.
func TestConnConforms(t *testing.T) {
	of := func(svc layer.Service[pick, *Pick]) *conn { return svc.(*conn) }
	layertest.Run(t, layertest.ServiceOf[pick, *Pick]{
		New: func(context.Context) layer.Service[pick, *Pick] {
			c := newConn("web", a1)
			c.set(connected, "", nil)
			return c
		},
		Request: func(int) pick { return pick{} },
		Fill: func(svc layer.Service[pick, *Pick]) func() {
			of(svc).set(connecting, "reconnecting", nil)
			return func() { of(svc).set(connected, "", nil) }
		},
		Close: func(svc layer.Service[pick, *Pick]) { of(svc).close() },
	})
}

// The innermost service of the layers keeps it as well.
func TestLeafConforms(t *testing.T) {
	layertest.Run(t, layertest.ServiceOf[*Call, *Reply]{
		New:     func(context.Context) layer.Service[*Call, *Reply] { return leaf() },
		Request: func(int) *Call { return &Call{Method: method, rpc: fixed{}} },
	})
}

type fixed struct{}

func (fixed) serve(context.Context, *Call) (*Reply, error) { return &Reply{}, nil }
