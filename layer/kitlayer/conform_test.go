package kitlayer_test

import (
	"context"
	"testing"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
	"github.com/gotower/gotower/layer/layertest"
)

type (
	request  = *layertest.Request
	response = *layertest.Response
)

func TestLayerConforms(t *testing.T) {
	nop := func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (any, error) { return next(ctx, request) }
	}
	layertest.Conform(t, layertest.Layer{Layer: kitlayer.Layer[request, response](nop), Transparent: true})
}

// A layer keeps its promises on the far side of go-kit and back.
func TestLimitConformsThroughGoKit(t *testing.T) {
	limit := layer.Limit[request, response](8)
	layertest.Conform(t, layertest.Layer{
		Layer: func(next layer.Service[request, response]) layer.Service[request, response] {
			inner := kitlayer.Layer[request, response](func(e endpoint.Endpoint) endpoint.Endpoint { return e })
			return limit(inner(next))
		},
		Limit: 8,
	})
}

func TestServiceConforms(t *testing.T) {
	layertest.Conform(t, layertest.Service{New: func(context.Context) layer.Service[request, response] {
		return kitlayer.Service[request, response](func(_ context.Context, request any) (any, error) {
			return &layertest.Response{ID: request.(*layertest.Request).ID}, nil
		})
	}})
}
