package tap

import (
	"context"

	"github.com/gotower/gotower/layer"
)

// Layer shows requests to the watchers of reg. Build one for each endpoint,
// with its address and labels:
//
//	tap.Layer(reg, httplayer.Accessor{}, tap.Outbound, tap.WithDestination(addr, labels))
//
// Admission: Ready is forwarded. Place the layer below layers that reject,
// because a rejected request was not sent to this endpoint.
//
// Cancellation: a request whose context is already done is not shown.
//
// Body: a response ends where the Complete method of access says.
//
// Errors: forwarded.
//
// Cost: one atomic load without watchers. A request that matches no watcher is
// inspected only as far as the conditions need, without allocation. Watchers
// never delay a request.
//
// Route labels come from [layer.RouteFromContext]. A nil reg has no watchers.
func Layer[Req, Rsp any](reg *Registry, access layer.Accessor[Req, Rsp], opts ...Option) layer.Layer[Req, Rsp] {
	if reg == nil {
		reg = new(Registry)
	}
	place := newPlace(opts)
	along, _ := access.(BodyTee[Req, Rsp])
	early, _ := access.(ResponseStarter[Req, Rsp])
	late, _ := access.(DeferredResponder[Rsp])
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &tapped[Req, Rsp]{
			Service: next, reg: reg, access: access, along: along, early: early, late: late, place: place,
		}
	}
}

type tapped[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	reg    *Registry
	access layer.Accessor[Req, Rsp]
	along  BodyTee[Req, Rsp]         // nil: bodies cannot be shown
	early  ResponseStarter[Req, Rsp] // nil: no response begins before Call returns it
	late   DeferredResponder[Rsp]    // nil: nor later
	place  *place
}

func (t *tapped[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	present := t.reg.active.Load()
	if present == nil {
		return t.Service.Call(ctx, req)
	}
	return t.watched(ctx, req, present)
}

// watched is apart from Call so that Call stays small.
func (t *tapped[Req, Rsp]) watched(ctx context.Context, req Req, present *audience) (rsp Rsp, err error) {
	if ctx.Err() != nil {
		return t.Service.Call(ctx, req)
	}
	x := t.look(ctx, req, present)
	if x == nil {
		return t.count(ctx, req, present.counters)
	}
	x.bodied = x.bodied && t.along != nil
	if t.early != nil {
		t.early.OnResponseStart(ctx, req, x.begun, x.early)
	}
	if x.bodied {
		req = t.along.TeeRequestBody(req, x.readRequest)
	}
	defer func() {
		if !x.returned { // a panic, or Goexit
			x.returned = true
			x.fail(nil)
		}
	}()
	rsp, err = t.Service.Call(ctx, req)
	x.returned = true
	if err != nil {
		x.broken(err)
		return rsp, err
	}
	t.came(x, rsp)
	if x.bodied {
		rsp = t.along.TeeResponseBody(rsp, x.readResponse)
	}
	return t.access.Complete(ctx, rsp, x), nil
}

// came handles a response of Call, which may have begun before, or begin later.
func (t *tapped[Req, Rsp]) came(x *exchange[Req, Rsp], rsp Rsp) {
	x.rsp = rsp
	if x.responded.IsZero() && (t.late == nil || !t.late.OnDeferredResponse(rsp, x.begin)) {
		x.respond(rsp)
	}
}

// look shows the request to the watchers that want it, and then counts it. It
// returns nil if no watcher wants it.
func (t *tapped[Req, Rsp]) look(ctx context.Context, req Req, present *audience) *exchange[Req, Rsp] {
	if len(present.watchers) == 0 {
		return nil
	}
	v := view[Req, Rsp]{access: t.access, place: t.place, ctx: ctx, req: req}
	var x *exchange[Req, Rsp]
	for _, w := range present.watchers {
		if !wants(w, &v) {
			continue
		}
		if x == nil {
			x = newExchange(&v)
		}
		x.show(w, req)
	}
	if x == nil || len(x.seats) == 0 {
		return nil
	}
	about := v.event()
	for _, c := range present.counters {
		if holds(c.match, &v) {
			x.counted = append(x.counted, c.rows.begin(&about, x.init.plain))
		}
	}
	return x
}

// wants reports whether w is to be shown a request.
func wants[Req, Rsp any](w *watcher, v *view[Req, Rsp]) bool {
	if w.full() || w.limited() || w.sample > 0 && v.draw(w.reg) >= w.sample || !holds(w.match, v) {
		return false
	}
	if w.clogged() {
		w.miss() // without the cost of an event that would not fit
		return false
	}
	return true
}

// Next returns the inner service, for [layer.Describe].
func (t *tapped[Req, Rsp]) Next() layer.Service[Req, Rsp] { return t.Service }

// Describe returns the number of watchers and of dropped events.
func (t *tapped[Req, Rsp]) Describe() layer.Node { return t.reg.brief() }
