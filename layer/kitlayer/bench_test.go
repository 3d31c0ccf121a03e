package kitlayer_test

import (
	"context"
	"testing"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/layer/kitlayer"
)

func BenchmarkCall(b *testing.B) {
	rsp := &struct{ n int }{}
	e := endpoint.Endpoint(func(context.Context, any) (any, error) { return rsp, nil })
	nop := func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (any, error) { return next(ctx, request) }
	}
	svc := kitlayer.Service[*int, *struct{ n int }](e)
	for _, bench := range []struct {
		name string
		call func(context.Context, *int)
	}{
		{"endpoint", func(ctx context.Context, i *int) { _, _ = e(ctx, i) }},
		{"service", func(ctx context.Context, i *int) { _, _ = svc.Call(ctx, i) }},
		{"middleware", func(ctx context.Context, i *int) {}},
	} {
		if bench.name == "middleware" {
			wrapped := kitlayer.Layer[*int, *struct{ n int }](nop)(svc)
			bench.call = func(ctx context.Context, i *int) { _, _ = wrapped.Call(ctx, i) }
		}
		b.Run(bench.name, func(b *testing.B) {
			i := new(int)
			b.ReportAllocs()
			for b.Loop() {
				bench.call(b.Context(), i)
			}
		})
	}
}
