package profiles

import (
	"context"
	"errors"

	"github.com/gotower/gotower/layer"
)

// report sends the request and reports its end to the function of WithOnResponse.
func (r *Router[Req, Rsp]) report(ctx context.Context, s *snapshot[Req, Rsp], route *liveRoute[Req, Rsp], req Req) (Rsp, error) {
	grpc := isGRPC(r.access.RequestHeader(req).Get("content-type")) // services below may change the request
	var info *layer.Route
	var classes classifier
	if route != nil {
		info, classes = route.info, route.classes
	}
	returned := false
	defer func() {
		if !returned { // a panic or Goexit
			r.onResponse(info, layer.Failure, errPanicked)
		}
	}()
	rsp, err := r.serve(ctx, s, route, req)
	returned = true
	switch {
	case err == nil:
		return r.access.Complete(ctx, rsp, &reporter[Req, Rsp]{
			router: r, ctx: ctx, rsp: rsp, route: info,
			class: classes.head(grpc, r.access.Status(rsp), r.access.ResponseHeader(rsp)),
		}), nil
	case errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrTimeout), canceled(ctx):
	default:
		r.onResponse(info, layer.Failure, err)
	}
	return rsp, err
}

var errPanicked = errors.New("the service panicked")

// reporter observes the end of one response.
type reporter[Req, Rsp any] struct {
	router *Router[Req, Rsp]
	ctx    context.Context //nolint:containedctx // of the request: at the end it shows whether the caller canceled
	rsp    Rsp
	route  *layer.Route
	class  headerClass
}

func (e *reporter[Req, Rsp]) Data(int) {}

// End implements [layer.Observer]. It reads the trailers only of complete responses,
// because the receiver may still write those of others.
func (e *reporter[Req, Rsp]) End(err error) {
	class := layer.Failure
	switch {
	case err == nil:
		class = e.class.end(e.router.access.ResponseTrailer(e.rsp))
	case errors.Is(err, layer.ErrBodyClosedEarly), canceled(e.ctx):
		class = e.class.class
	}
	e.router.onResponse(e.route, class, err)
}

// canceled reports whether the caller canceled the request. A deadline is a failure,
// also if a layer above canceled ctx with the deadline as cause.
func canceled(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}
