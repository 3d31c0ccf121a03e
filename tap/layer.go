package tap

import (
	"context"
	"maps"
	"time"

	"github.com/gotower/gotower/layer"
)

// Layer returns a layer that shows requests to reg's watchers. You should build one Layer for
// each endpoint, with the endpoint's address and labels:
//
//	tap.Layer(reg, httplayer.HTTP{}, tap.Outbound, tap.WithDestination(addr, labels))
//
// Admission: Ready is forwarded. The layer should normally be below those that reject requests,
// unless it is to show what they reject, as at the front of a server.
//
// Cancellation: a request is not shown if its context has ended before Call.
//
// Body: the ResponseEnd is sent when the response body has ended, as access.ObserveResponse determines.
//
// Errors: forwarded.
//
// Cost: one atomic load without watchers. With watchers, comparing a request with their
// conditions does not allocate. Watchers never delay a request.
//
// Route labels come from [layer.RouteFromContext]; see [WithRouteBelow] for a router below. With a nil reg, nothing watches. A nil access
// panics.
func Layer[Req, Rsp any](reg *Registry, access Accessor[Req, Rsp], opts ...Option) layer.Layer[Req, Rsp] {
	if reg == nil {
		reg = new(Registry)
	}
	if access == nil {
		panic("tap: Layer: nil Accessor")
	}
	place := newPlace(opts)
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &tapped[Req, Rsp]{Service: next, reg: reg, access: access, place: place}
	}
}

// tapped is the service that [Layer] makes: it calls the service below and shows the request to
// watchers.
type tapped[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	reg    *Registry
	access Accessor[Req, Rsp]
	place  *place
}

// Call sends req. Without watchers, that costs one atomic load.
func (t *tapped[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	present := t.reg.active.Load()
	if present == nil {
		return t.Service.Call(ctx, req)
	}
	return t.watched(ctx, req, present)
}

// watched does the work of Call if there is at least one watcher or call of Top. It is a separate
// function, because a small Call is faster without watchers.
func (t *tapped[Req, Rsp]) watched(ctx context.Context, req Req, present *audience) (Rsp, error) {
	// A request whose context has ended is rejected below, and is not shown.
	if ctx.Err() != nil {
		return t.Service.Call(ctx, req)
	}
	if t.place.routeBelow {
		return (&pending[Req, Rsp]{tapped: t, ctx: ctx, req: req, present: present, arrival: time.Now()}).call()
	}
	x := t.startExchange(ctx, req, present, time.Time{})
	if x == nil {
		return t.Service.Call(ctx, req)
	}
	ctx, req = x.enter(ctx, req)
	defer x.abort()
	rsp, err := t.Service.Call(ctx, req)
	return x.result(ctx, rsp, err)
}

// startExchange selects the watchers and the calls of Top that see the request. It sends them the
// RequestInit, and counts the request in Top's rows. It returns nil if neither a watcher nor a
// call of Top sees the request. A zero arrival means now.
func (t *tapped[Req, Rsp]) startExchange(
	ctx context.Context, req Req, present *audience, arrival time.Time,
) *exchange[Req, Rsp] {
	// v gets the values that a condition needs, and keeps them for the other conditions.
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
			x = newExchange(t.access, ctx, req, &v, arrival)
		}
		// Only watchers need these, and Top's counters do not.
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
			x = newExchange(t.access, ctx, req, &v, arrival)
		}
		x.rows = append(x.rows, c.rows.begin(&v.common, &v.init, t.access.Pattern(req), x.start))
	}
	if x == nil || len(x.recipients)+len(x.rows) == 0 {
		return nil
	}
	return x
}

// matches reports whether the request meets c. v holds the values that were read so far, and gets those
// that c needs in addition.
func (t *tapped[Req, Rsp]) matches(c *condition, v *view, ctx context.Context, req Req) bool { //nolint:revive // v is the state
	if c.reads&^v.has != 0 {
		t.read(v, c.reads, ctx, req)
	}
	return c.holds(v)
}

// read reads the wanted groups of request values into v, except those that v already contains.
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

// sourceLabels returns the labels for req's client: those from WithSourceLabels and, for an
// inbound request, from the accessor. WithSourceLabels takes precedence.
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

// Describe returns a node that tells how many watchers the registry has and how many events were
// dropped.
func (t *tapped[Req, Rsp]) Describe() layer.Node { return t.reg.summary() }
