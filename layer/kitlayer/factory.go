package kitlayer

import (
	"context"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Factory returns a function that makes a service with the go-kit factory f, one for each instance.
// An instance is any text, such as "10.0.0.1:80" or a URL. You can use it in a discover.MakeService
// to balance over the instances:
//
//	service := kitlayer.Factory[SumRequest, SumResponse](factory)
//	makeSvc := func(ctx context.Context, t discover.Target) layer.Service[SumRequest, SumResponse] {
//		return service(ctx, kit.Instance(t.Endpoint))
//	}
//	resolver := kit.New(newInstancer, kit.WithParse(kit.Opaque)) // package resolve/kit
//	svc := balance.Resolve(ctx, resolver, balance.Config{Target: "sum"}, makeSvc)
//
// The instance's [io.Closer] is closed once, when ctx ends, and its error is ignored. The ctx that
// a discover.MakeService gets ends when the instance is removed and its last response has ended.
//
// If f returns an error or no endpoint, the service rejects all requests with [layer.ErrClosed],
// and the rejections wrap f's error. f is called again when the instance returns after a removal,
// as in go-kit. The returned function calls f, and must return at once in a discover.MakeService.
// An f that blocks delays later changes of the instances, but no calls.
func Factory[Req, Rsp any](f sd.Factory) func(ctx context.Context, instance string) layer.Service[Req, Rsp] {
	if f == nil {
		panic("kitlayer: nil factory")
	}
	return func(ctx context.Context, instance string) layer.Service[Req, Rsp] {
		e, closer, err := f(instance)
		if closer != nil {
			context.AfterFunc(ctx, func() { _ = panics.Contain(func() { _ = closer.Close() }) }) // a panic has no caller
		}
		if err != nil || e == nil {
			return failedInstance[Req, Rsp]{&layer.Error{
				Layer: "factory", Endpoint: instance, Kind: layer.ErrClosed, Reason: "the factory made no endpoint", Err: err,
			}}
		}
		return Service[Req, Rsp](e)
	}
}

// failedInstance is the service of an instance for which the factory returned no endpoint.
// It rejects every request.
type failedInstance[Req, Rsp any] struct{ err *layer.Error }

func (f failedInstance[Req, Rsp]) Ready(context.Context) error { return f.err }

func (f failedInstance[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, f.err }

func (f failedInstance[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "factory", State: layer.State{{Key: "error", Value: f.err.Error()}}}
}
