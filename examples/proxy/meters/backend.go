package meters

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// Backend is the layer of one target of the profile, by its authority. It counts
// backend_requests_total, backend_response_statuses_total and
// backend_response_duration_seconds by the route of the request.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation, body and errors are those of PerRoute. A refusal counts as a request.
func (r *Routes) Backend(authority string, next httplayer.Service) httplayer.Service {
	if r.overLimit {
		authority = ""
	}
	return &backend{Service: next, routes: r, authority: authority}
}

type backend struct {
	httplayer.Service
	routes    *Routes
	authority string
	seen      atomic.Pointer[seen]
}

// seen are the routes of the requests under one profile.
type seen struct {
	under  *profileScope
	last   atomic.Pointer[dispatched] // most requests have the route of the one before
	routes sync.Map                   // *layer.Route → *dispatched
}

// dispatched is the series of one backend of a route, in one scope.
type dispatched struct {
	*streams
	*scope
	by    *backend
	route *layer.Route
	dst   string // of the profile scope
	sent  prometheus.Counter

	after atomic.Pointer[dispatched] // the successor after dst was renamed
}

// current returns the streams with the same labels that are shown now.
func (d *dispatched) current() *streams {
	if d.holds() {
		return d.streams
	}
	if d.by.routes.profileScope.Load().dst == d.dst {
		return d.by.of(d.route).streams
	}
	after := d.after.Load()
	if after == nil || !after.holds() {
		after = d.by.bind(d.by.routes.meters.lateScope(), d.dst, d.route)
		d.after.Store(after)
	}
	return after.streams
}

func (b *backend) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	d := b.of(layer.RouteFromContext(ctx))
	d.sent.Inc()
	s := &stream{of: d, ctx: ctx}
	rsp, err := s.call(b.Service, req)
	if errors.Is(err, layer.ErrNotReady) {
		return rsp, err
	}
	if t, ok := ctx.Value(triesKey{}).(*tries); ok {
		t.n.Add(1)
	}
	return rsp, err
}

// of returns the series of a route; nil means the default route.
func (b *backend) of(route *layer.Route) *dispatched {
	if b.routes.overLimit {
		route = nil
	}
	now, profileScope := b.seen.Load(), b.routes.profileScope.Load()
	if now == nil || now.under != profileScope {
		now = &seen{under: profileScope}
		b.seen.Store(now)
	}
	if d := now.last.Load(); d != nil && d.route == route && d.holds() {
		return d
	}
	var d *dispatched
	if found, ok := now.routes.Load(route); ok {
		d = found.(*dispatched) //nolint:errcheck,forcetypeassert // stored below
	}
	if d == nil || !d.holds() {
		d = b.bindUnder(profileScope, route)
		now.routes.Store(route, d)
	}
	now.last.Store(d)
	return d
}

// bindUnder binds the series in the scope of a profile, if the profile has them.
func (b *backend) bindUnder(r *profileScope, route *layer.Route) *dispatched {
	t := r.scope
	if !t.holds() || !r.has(nameOf(route), b.authority) {
		t = b.routes.meters.lateScope()
	}
	return b.bind(t, r.dst, route)
}

func (b *backend) bind(t *scope, dst string, route *layer.Route) *dispatched {
	labels := b.routes.meters.meta("parent", dst).With(routeMeta(nameOf(route))).With(b.routes.meters.meta("backend", b.authority))
	f := b.routes.meters.httpRoutes
	return &dispatched{
		streams: newStreams(f.responses, t.seriesLease, labels), scope: t,
		by: b, route: route, dst: dst, sent: f.sent.bind(t.seriesLease, labels),
	}
}

func nameOf(route *layer.Route) string {
	if route == nil {
		return ""
	}
	return route.Name
}

func (b *backend) Next() httplayer.Service { return b.Service }

func (b *backend) Describe() layer.Node { return layer.Node{Name: "metrics"} }
