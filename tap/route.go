package tap

import (
	"context"
	"sync"
	"time"

	"github.com/gotower/gotower/layer"
)

// WithRouteBelow is for a layer above a router. The layer of [Layer] then shows a request when a layer of
// [Routed] in the routes receives it, so that its events have the route that the router has chosen. A
// request that gets no route, or waits above the router, is shown when its response starts: a watcher's
// condition may depend on the route, so that until then it is not known who may see the request.
func WithRouteBelow() Option { return optionFunc(func(p *place) { p.routeBelow = true }) }

// Routed returns a layer for the routes of a router. It makes a [Layer] with [WithRouteBelow] above the router
// show the request. Other requests pass unchanged. With a nil reg, nothing watches.
//
// Admission: Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: only read as the [Layer] above does.
//
// Errors: forwarded.
//
// Cost: one atomic load without watchers.
func Routed[Req, Rsp any](reg *Registry) layer.Layer[Req, Rsp] {
	if reg == nil {
		reg = new(Registry)
	}
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &routed[Req, Rsp]{Service: next, reg: reg}
	}
}

// routed is the service that [Routed] makes. It stands where the route of a request is known.
type routed[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	reg *Registry
}

// Call sends req. If a layer above waits for the route, it begins to show req first.
func (r *routed[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if r.reg.active.Load() != nil {
		if p, ok := ctx.Value(pendingKey[Req, Rsp]{}).(*pending[Req, Rsp]); ok {
			ctx, req = p.start(ctx, req)
		}
	}
	return r.Service.Call(ctx, req)
}

// Next returns the inner service, for [layer.Describe].
func (r *routed[Req, Rsp]) Next() layer.Service[Req, Rsp] { return r.Service }

// Describe returns a node without attributes. Its name is "tap_route".
func (*routed[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "tap_route"} }

// pendingKey is the context key under which a layer with [WithRouteBelow] passes a *pending to the
// [Routed] layer below it.
type pendingKey[Req, Rsp any] struct{}

// pending is a request in a layer with [WithRouteBelow], which is shown only when it arrives at a
// [Routed] layer below, because its route is known there.
type pending[Req, Rsp any] struct {
	*tapped[Req, Rsp]

	ctx     context.Context //nolint:containedctx // of the call of tapped
	req     Req             // as tapped received it
	present *audience       // the watchers at that time
	arrival time.Time       // that time

	mu       sync.Mutex          // a call that outlives the one of tapped may still arrive at a route
	started  bool                // the first call of start has decided about exchange
	exchange *exchange[Req, Rsp] // nil before start, and if nobody sees the request
}

// call calls the inner service, which calls start if the request gets a route.
func (p *pending[Req, Rsp]) call() (Rsp, error) {
	defer func() {
		// Only after a panic: otherwise both calls have nothing left to do.
		p.start(p.ctx, p.req)
		p.exchange.abort()
	}()
	rsp, err := p.Service.Call(context.WithValue(p.ctx, pendingKey[Req, Rsp]{}, p), p.req)
	// A request that got no route is shown now.
	p.start(p.ctx, p.req)
	return p.exchange.result(p.ctx, rsp, err)
}

// start shows the request to the watchers, with the route in ctx. It returns what the inner service should
// be called with. Later calls do nothing.
func (p *pending[Req, Rsp]) start(ctx context.Context, req Req) (context.Context, Req) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started {
		return ctx, req
	}
	p.started = true
	// Watchers see the request as tapped received it, and not req, which layers in between may have changed.
	if p.exchange = p.startExchange(ctx, p.req, p.present, p.arrival); p.exchange == nil {
		return ctx, req
	}
	p.exchange.ctx = p.ctx // ctx may end before the response
	return p.exchange.enter(ctx, req)
}
