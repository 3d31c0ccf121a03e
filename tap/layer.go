package tap

import (
	"context"

	"github.com/gotower/gotower/layer"
)

// Layer shows requests to who watches reg. Build one for each endpoint, with
// all that is known of it:
//
//	tap.Layer(reg, httplayer.Access{}, tap.Outbound, tap.Destination(addr, labels))
//
// Admission: none of its own; Ready is forwarded. Put the layer below those
// that refuse: what they turn away was not sent to this endpoint.
//
// Cancellation: a request whose context is already done is not shown.
//
// Body: a response ends where the Complete method of access says.
//
// Errors: passed as they are.
//
// Cost: one atomic load while nobody watches. A request that no watcher wants
// is looked at only as far as their conditions need, without allocation. A
// watched request is never delayed by its watchers.
//
// Route labels come from [layer.RouteOf]. A nil reg is one that nobody can
// watch.
func Layer[Req, Rsp any](reg *Registry, access layer.Access[Req, Rsp], opts ...Option) layer.Layer[Req, Rsp] {
	if reg == nil {
		reg = new(Registry)
	}
	place := newPlace(opts)
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &tapped[Req, Rsp]{Service: next, reg: reg, access: access, place: place}
	}
}

type tapped[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	reg    *Registry
	access layer.Access[Req, Rsp]
	place  *place
}

func (t *tapped[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	watchers := t.reg.active.Load()
	if watchers == nil {
		return t.Service.Call(ctx, req)
	}
	return t.watched(ctx, req, *watchers)
}

// watched is apart from Call so that Call stays small.
func (t *tapped[Req, Rsp]) watched(ctx context.Context, req Req, watchers []*watcher) (rsp Rsp, err error) {
	if ctx.Err() != nil {
		return t.Service.Call(ctx, req)
	}
	v := view[Req, Rsp]{access: t.access, place: t.place, ctx: ctx, req: req}
	var x *exchange[Req, Rsp]
	for _, w := range watchers {
		if w.full() || !holds(w.match, &v) {
			continue
		}
		if x == nil {
			x = newExchange(&v)
		}
		x.show(w, req)
	}
	if x == nil || len(x.seats) == 0 {
		return t.Service.Call(ctx, req)
	}

	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			x.fail(nil)
		}
	}()
	rsp, err = t.Service.Call(ctx, req)
	returned = true
	if err != nil {
		x.fail(err)
		return rsp, err
	}
	x.respond(rsp)
	return t.access.Complete(ctx, rsp, x), nil
}

// Next returns the inner service, for [layer.Describe].
func (t *tapped[Req, Rsp]) Next() layer.Service[Req, Rsp] { return t.Service }

// Describe says how many watch the registry and how many of their events were
// dropped.
func (t *tapped[Req, Rsp]) Describe() layer.Node {
	n := t.reg.Describe()
	n.Children = nil
	return n
}
