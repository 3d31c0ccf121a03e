package layer_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// endCounter is a span that counts the admitted requests that ended.
type endCounter struct{ n *atomic.Int64 }

func (endCounter) Head(*layertest.Response)   {}
func (s endCounter) End(layer.Class, error)   { s.n.Add(1) }
func noSpan() layer.Span[*layertest.Response] { return nil }

func TestConformTrace(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	var ended atomic.Int64
	for name, spec := range map[string]layertest.Layer{
		"traced": {
			Layer: layer.Trace(func(ctx context.Context, _ Q) (context.Context, layer.Span[R]) { return ctx, endCounter{&ended} }),
			Ended: func() int { return int(ended.Load()) },
		},
		"not traced": {
			Layer:       layer.Trace(func(ctx context.Context, _ Q) (context.Context, layer.Span[R]) { return ctx, noSpan() }),
			Transparent: true,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
