package kitlayer

import (
	"context"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/layer"
)

// Factory makes services of the endpoints of a go-kit factory: one for each
// instance, which is the text that the factory is given, "10.0.0.1:80". Make a
// discover.MakeService of it to have the instances balanced:
//
//	service := kitlayer.Factory[SumRequest, SumResponse](factory)
//	svc := balance.Resolve(ctx, resolver, "sum", func(ctx context.Context, t discover.Target) layer.Service[SumRequest, SumResponse] {
//		return service(ctx, t.Endpoint.Addr.String())
//	})
//
// The [io.Closer] of an instance is closed when ctx ends, once; what it returns is
// ignored. That of a discover.MakeService ends when the instance is gone and its last
// response has ended.
//
// The service of an instance for which the factory returns an error, or no
// endpoint, is closed from the start: its refusals wrap that error. As with go-kit's
// own endpointer, the factory is called again when the instance went and came back.
// A factory that blocks, to connect, delays neither calls nor other instances of a
// balancer.
func Factory[Req, Rsp any](f sd.Factory) func(ctx context.Context, instance string) layer.Service[Req, Rsp] {
	if f == nil {
		panic("kitlayer: nil factory")
	}
	return func(ctx context.Context, instance string) layer.Service[Req, Rsp] {
		e, closer, err := f(instance)
		if closer != nil {
			context.AfterFunc(ctx, func() {
				defer func() { _ = recover() }() // a panic here has no caller to reach
				_ = closer.Close()
			})
		}
		if err != nil || e == nil {
			return unmade[Req, Rsp]{&layer.Error{
				Layer: "factory", Endpoint: instance, Kind: layer.ErrClosed, Reason: "the factory made no endpoint", Err: err,
			}}
		}
		return Service[Req, Rsp](e)
	}
}

// unmade is the service of an instance without an endpoint.
type unmade[Req, Rsp any] struct{ refusal *layer.Error }

func (u unmade[Req, Rsp]) Ready(context.Context) error { return u.refusal }

func (u unmade[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, u.refusal }

func (u unmade[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "factory", State: layer.State{{Key: "error", Value: u.refusal.Error()}}}
}
