package profiles

import (
	"context"
	"errors"

	"github.com/gotower/gotower/layer"
)

// report serves the request and tells onResponse how it ended.
func (r *Router[Req, Rsp]) report(ctx context.Context, s *snapshot[Req, Rsp], route *served[Req, Rsp], req Req) (Rsp, error) {
	// The request may be changed by those below, so it is read now.
	grpc := isGRPC(r.access.RequestHeader(req).Get("content-type"))
	var info *layer.Route
	var classes classifier
	if route != nil {
		info, classes = route.info, route.classes
	}
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			r.onResponse(info, layer.Failure, errPanicked)
		}
	}()
	rsp, err := r.serve(ctx, s, route, req)
	returned = true
	switch {
	case err == nil:
		return r.access.Complete(ctx, rsp, &ending[Req, Rsp]{
			router: r, ctx: ctx, rsp: rsp, route: info,
			verdict: classes.head(grpc, r.access.Status(rsp), r.access.ResponseHeader(rsp)),
		}), nil
	case errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrTimeout), cancelled(ctx):
	default:
		r.onResponse(info, layer.Failure, err)
	}
	return rsp, err
}

var errPanicked = errors.New("the service panicked")

// ending waits for the end of one response.
type ending[Req, Rsp any] struct {
	router  *Router[Req, Rsp]
	ctx     context.Context //nolint:containedctx // the request's, asked at its end whether the caller left
	rsp     Rsp
	route   *layer.Route
	verdict verdict
}

// Data has no part in the class.
func (e *ending[Req, Rsp]) Data(int) {}

// End reports the class. Trailers are read only where the response came whole;
// elsewhere whoever receives it may still be writing them.
func (e *ending[Req, Rsp]) End(err error) {
	class := layer.Failure
	switch {
	case err == nil:
		class = e.verdict.end(e.router.access.ResponseTrailer(e.rsp))
	case errors.Is(err, layer.ErrBodyClosedEarly), cancelled(e.ctx):
		class = e.verdict.class
	}
	e.router.onResponse(e.route, class, err)
}

// cancelled reports whether the caller left of its own will; a deadline that
// ran out is somebody's failure, and so is a limit above, which cancels with
// that as its cause.
func cancelled(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}
