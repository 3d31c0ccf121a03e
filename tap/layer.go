package tap

import (
	"context"
	"maps"

	"github.com/gotower/gotower/layer"
)

// Layer shows requests to the watchers of reg. Build one Layer for each endpoint, with
// the address and labels of the endpoint:
//
//	tap.Layer(reg, httplayer.Accessor{}, tap.Outbound, tap.WithDestination(addr, labels))
//
// Admission: Ready is forwarded. Place the layer below layers that reject, because a
// rejected request was not sent to this endpoint.
//
// Cancellation: a request whose context has already ended is not shown.
//
// Body: a response ends when the Complete method of access reports its end.
//
// Errors: forwarded.
//
// Cost: one atomic load without watchers. With watchers, a request that matches none
// costs the reading of its fields, without allocation. Watchers never delay a request.
//
// Route labels come from [layer.RouteFromContext]. A nil reg has no watchers. A nil access panics.
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

// watched serves a request while there are watchers. It is a separate function to keep Call small.
func (t *tapped[Req, Rsp]) watched(ctx context.Context, req Req, present *audience) (rsp Rsp, err error) {
	if ctx.Err() != nil {
		return t.Service.Call(ctx, req)
	}
	x := t.startExchange(ctx, req, present)
	if x == nil {
		return t.Service.Call(ctx, req)
	}
	t.access.OnResponseStart(ctx, req, x.responseStarted, x.responseData)
	if x.bodied {
		req = t.access.TeeRequestBody(req, x.readRequest)
	}
	defer func() {
		if !x.returned { // a panic, or Goexit
			x.returned = true
			x.endWithoutResponse(nil)
		}
	}()
	rsp, err = t.Service.Call(ctx, req)
	x.returned = true
	if err != nil {
		x.callFailed(err)
		return rsp, err
	}
	x.rsp = rsp
	if x.responded.IsZero() && !t.access.OnDeferredResponse(rsp, x.deferredResponse) {
		x.respond(rsp)
	}
	if x.bodied {
		rsp = t.access.TeeResponseBody(rsp, x.readResponse)
	}
	return t.access.Complete(ctx, rsp, x), nil
}

// startExchange sends the RequestInit to the watchers whose condition the request
// matches, and starts to count it. It returns nil if no watcher or counter matches.
func (t *tapped[Req, Rsp]) startExchange(ctx context.Context, req Req, present *audience) *exchange[Req, Rsp] {
	var v view
	var x *exchange[Req, Rsp]
	d := draw{reg: t.reg}
	for _, w := range present.watchers {
		if !w.admits(&d) || !w.match.holds(t.view(&v, ctx, req)) {
			continue
		}
		if w.bufferFull() {
			w.dropRequest() // does not build an event that would not fit
			continue
		}
		if x == nil {
			x = newExchange(t.access, ctx, req, &v)
		}
		if x.init.withoutFields == nil {
			x.init.withoutFields = v.requestInit()
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
		x.rows = append(x.rows, c.rows.begin(&v.common, &v.init, x.start))
	}
	if x == nil || len(x.recipients)+len(x.rows) == 0 {
		return nil
	}
	return x
}

// view fills v from the request the first time it is called, and returns v.
func (t *tapped[Req, Rsp]) view(v *view, ctx context.Context, req Req) *view { //nolint:revive // v is the result
	if v.header != nil {
		return v
	}
	v.common = t.place.event(ctx, t.access.Source(req))
	if !v.common.Destination.IsValid() {
		v.common.Destination = normalizeAddr(t.access.DestinationAddr(ctx, req))
	}
	v.init = RequestInit{
		Method: t.access.Method(req), Scheme: t.access.Scheme(req),
		Authority: withoutUser(t.access.Authority(req)), Path: t.access.Path(req),
	}
	v.header = t.access.RequestHeader(req)
	return v
}

// sourceLabels returns the labels of the client. WithSourceLabels takes precedence over
// the accessor.
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
func (t *tapped[Req, Rsp]) Describe() layer.Node { return t.reg.summary() }
