package tap

import (
	"context"
	"maps"

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
// Cost: one atomic load without watchers. With watchers, a request that matches
// none costs the reading of its fields, without allocation. Watchers never delay
// a request.
//
// Route labels come from [layer.RouteFromContext]. A nil reg has no watchers. A
// nil access panics.
func Layer[Req, Rsp any](reg *Registry, access layer.Accessor[Req, Rsp], opts ...Option) layer.Layer[Req, Rsp] {
	if reg == nil {
		reg = new(Registry)
	}
	if access == nil {
		panic("tap: Layer: nil Accessor")
	}
	place, full := newPlace(opts), completed(access)
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &tapped[Req, Rsp]{Service: next, reg: reg, access: full, place: place}
	}
}

type tapped[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	reg    *Registry
	access Accessor[Req, Rsp]
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
		return t.Service.Call(ctx, req)
	}
	t.access.OnResponseStart(ctx, req, x.begun, x.early)
	if x.bodied {
		req = t.access.TeeRequestBody(req, x.readRequest)
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
	x.rsp = rsp
	if x.responded.IsZero() && !t.access.OnDeferredResponse(rsp, x.begin) {
		x.respond(rsp)
	}
	if x.bodied {
		rsp = t.access.TeeResponseBody(rsp, x.readResponse)
	}
	return t.access.Complete(ctx, rsp, x), nil
}

// look shows the request to the watchers that want it, and begins to count it.
// It returns nil if no watcher and no counter wants it.
func (t *tapped[Req, Rsp]) look(ctx context.Context, req Req, present *audience) *exchange[Req, Rsp] {
	var v view
	var x *exchange[Req, Rsp]
	d := draw{reg: t.reg}
	for _, w := range present.watchers {
		if !w.admits(&d) || !w.match.holds(t.view(&v, ctx, req)) {
			continue
		}
		if w.isClogged() {
			w.miss() // without the cost of an event that would not fit
			continue
		}
		if x == nil {
			x = newExchange(t.access, ctx, req, &v)
		}
		if x.init.plain == nil {
			x.init.plain = v.requestInit()
			x.common.SourceLabels = t.sourceLabels(req)
		}
		x.show(w)
	}
	for _, c := range present.counters {
		if !c.match.holds(t.view(&v, ctx, req)) {
			continue
		}
		if x == nil {
			x = newExchange(t.access, ctx, req, &v)
		}
		x.rows = append(x.rows, c.rows.begin(&v.common, &v.init))
	}
	if x == nil || len(x.seats)+len(x.rows) == 0 {
		return nil
	}
	return x
}

// view reads the request into v, once.
func (t *tapped[Req, Rsp]) view(v *view, ctx context.Context, req Req) *view { //nolint:revive // v is the result
	if v.header != nil {
		return v
	}
	v.common = t.place.event(ctx, t.access.Source(req))
	if !v.common.Destination.IsValid() {
		v.common.Destination = plain(t.access.DestinationAddr(ctx, req))
	}
	v.init = RequestInit{
		Method: t.access.Method(req), Scheme: t.access.Scheme(req),
		Authority: withoutUser(t.access.Authority(req)), Path: t.access.Path(req),
	}
	v.header = t.access.RequestHeader(req)
	return v
}

// sourceLabels returns the labels of the client. Those of the layer take
// precedence.
func (t *tapped[Req, Rsp]) sourceLabels(req Req) map[string]string {
	if t.place.direction != Inbound {
		return t.place.sourceLabels
	}
	labels := t.access.SourceLabels(req)
	if len(labels) == 0 {
		return t.place.sourceLabels
	}
	maps.Copy(labels, t.place.sourceLabels)
	return labels
}

// Next returns the inner service, for [layer.Describe].
func (t *tapped[Req, Rsp]) Next() layer.Service[Req, Rsp] { return t.Service }

// Describe returns the number of watchers and of dropped events.
func (t *tapped[Req, Rsp]) Describe() layer.Node { return t.reg.brief() }
