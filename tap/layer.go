package tap

import (
	"context"
	"maps"

	"github.com/gotower/gotower/layer"
)

// Layer returns a layer that shows requests to the watchers of reg. Build one Layer for
// each endpoint, with the address and labels of the endpoint:
//
//	tap.Layer(reg, httplayer.Accessor{}, tap.Outbound, tap.WithDestination(addr, labels))
//
// Admission: Ready is forwarded. Place the layer below layers that reject requests.
// Otherwise it also shows the requests that those layers reject.
//
// Cancellation: a request is not shown if its context has ended before Call.
//
// Body: the ResponseEnd is sent when the response body has ended. The method Complete of
// access determines this time.
//
// Errors: forwarded.
//
// Cost: one atomic load without watchers. With watchers, comparing a request with their
// conditions does not allocate. Watchers never delay a request.
//
// Route labels come from [layer.RouteFromContext]. A nil reg has no watchers. A nil access
// panics.
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

// watched does the work of Call if there is at least one watcher or call of Top. It is a
// separate function, because a small Call is faster without watchers.
func (t *tapped[Req, Rsp]) watched(ctx context.Context, req Req, present *audience) (rsp Rsp, err error) {
	if ctx.Err() != nil {
		return t.Service.Call(ctx, req)
	}
	x := t.startExchange(ctx, req, present)
	if x == nil {
		return t.Service.Call(ctx, req)
	}
	t.access.OnResponseStart(ctx, req, x)
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
	if x.responded.IsZero() {
		x.deferred = true // before the headers may arrive
		if !t.access.OnDeferredResponse(rsp, x) {
			x.deferred = false
			x.respond(rsp)
		}
	}
	if x.bodied {
		rsp = t.access.TeeResponseBody(rsp, x.readResponse)
	}
	return t.access.Complete(ctx, rsp, x), nil
}

// startExchange selects the watchers and the calls of Top that see the request. It sends
// the RequestInit to the watchers, and counts the request in the rows of Top. It returns
// nil if neither a watcher nor a call of Top sees the request.
func (t *tapped[Req, Rsp]) startExchange(ctx context.Context, req Req, present *audience) *exchange[Req, Rsp] {
	var v view
	var x *exchange[Req, Rsp]
	d := draw{reg: t.reg}
	for _, w := range present.watchers {
		if !w.admits(&d) || !t.matches(w.match, &v, ctx, req) {
			continue
		}
		if w.bufferFull() {
			w.dropRequest() // does not build an event that would not fit
			continue
		}
		if x == nil {
			t.read(&v, readsCommon|readsMethod|readsTarget, ctx, req)
			x = newExchange(t.access, ctx, req, &v)
		}
		if x.init.withoutFields == nil {
			x.init.withoutFields = v.requestInit()
			x.common.SourceLabels = t.sourceLabels(req)
		}
		x.show(w)
	}
	for _, c := range present.counters {
		if !t.matches(c.match, &v, ctx, req) {
			continue
		}
		if x == nil {
			t.read(&v, readsCommon|readsMethod|readsTarget, ctx, req)
			x = newExchange(t.access, ctx, req, &v)
		}
		x.rows = append(x.rows, c.rows.begin(&v.common, &v.init, x.start))
	}
	if x == nil || len(x.recipients)+len(x.rows) == 0 {
		return nil
	}
	return x
}

// matches reports whether the request matches c. v has the values of the request that earlier
// calls have read. If c compares a value that is missing in v, matches first reads it into v.
func (t *tapped[Req, Rsp]) matches(c *condition, v *view, ctx context.Context, req Req) bool { //nolint:revive // v is the state
	if c.reads&^v.has != 0 {
		t.read(v, c.reads, ctx, req)
	}
	return c.holds(v)
}

// read reads values of the request into v. The argument wanted selects the groups of values to
// read. read skips groups that v already has.
func (t *tapped[Req, Rsp]) read(v *view, wanted reads, ctx context.Context, req Req) { //nolint:revive // v is the result
	wanted &^= v.has
	v.has |= wanted
	if wanted&readsCommon != 0 {
		t.place.fill(ctx, &v.common, t.access.Source(req))
		if !v.common.Destination.IsValid() {
			v.common.Destination = normalizeAddr(t.access.DestinationAddr(ctx, req))
		}
	}
	if wanted&readsMethod != 0 {
		v.init.Method, v.init.Path = t.access.Method(req), t.access.Path(req)
	}
	if wanted&readsTarget != 0 {
		v.init.Scheme, v.init.Authority = t.access.Scheme(req), withoutUser(t.access.Authority(req))
	}
	if wanted&readsHeader != 0 {
		v.header = t.access.RequestHeader(req)
	}
}

// sourceLabels returns the labels of the client of req: those of WithSourceLabels and, for
// an inbound request, those of the accessor. WithSourceLabels takes precedence over a label
// of the accessor with the same name.
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

// Describe returns a node with the number of watchers and the number of dropped events of
// the registry.
func (t *tapped[Req, Rsp]) Describe() layer.Node { return t.reg.summary() }
