package kitlayer_test

import (
	"context"
	"testing"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/ratelimit"
	"golang.org/x/time/rate"

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
	layertest.Run(t, layertest.Layer{Layer: kitlayer.Layer[request, response](nop)})
}

// A limiter of go-kit returns the cause of a context that has ended.
func TestLimitersConform(t *testing.T) {
	for name, mw := range map[string]endpoint.Middleware{
		"delaying": ratelimit.NewDelayingLimiter(rate.NewLimiter(rate.Inf, 1)),
		"erroring": ratelimit.NewErroringLimiter(rate.NewLimiter(rate.Inf, 1)),
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{Layer: kitlayer.Layer[request, response](mw)})
		})
	}
}

// A layer keeps the contract inside go-kit.
func TestLimitConformsThroughGoKit(t *testing.T) {
	limit := layer.Limit[request, response](8)
	layertest.Run(t, layertest.Layer{
		Layer: func(next layer.Service[request, response]) layer.Service[request, response] {
			inner := kitlayer.Layer[request, response](func(e endpoint.Endpoint) endpoint.Endpoint { return e })
			return limit(inner(next))
		},
		Limit: 8,
	})
}

func TestServiceConforms(t *testing.T) {
	layertest.Run(t, layertest.Service{New: func(context.Context) layer.Service[request, response] {
		return kitlayer.Service[request, response](func(_ context.Context, request any) (any, error) {
			return &layertest.Response{ID: request.(*layertest.Request).ID}, nil
		})
	}})
}
