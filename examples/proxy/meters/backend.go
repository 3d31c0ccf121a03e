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

// Backend is the layer of one target of the profile, by its authority:
// backend_requests_total, backend_response_statuses_total and
// backend_response_duration_seconds, of the route that the request comes by.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation, body and errors are those of PerRoute. A refusal counts as a
// request, too.
func (r *Routes) Backend(authority string, next httplayer.Service) httplayer.Service {
	return &backend{Service: next, routes: r, authority: authority}
}

type backend struct {
	httplayer.Service
	routes    *Routes
	authority string
	seen      atomic.Pointer[seen]
}

// seen are the routes that requests came by under one profile.
type seen struct {
	under  *reign
	last   atomic.Pointer[dispatched] // most come by the route of the one before
	routes sync.Map                   // *layer.Route → *dispatched
}

// reign is the time of one profile. What backends count is bound for it, so that
// nothing is left of those that a profile has no more.
type reign struct {
	lease *lease
	over  context.CancelFunc
	dst   string
}

func (r *Routes) newReign() *reign {
	ctx, over := context.WithCancel(r.ctx)
	return &reign{r.meters.lease(ctx), over, r.dst}
}

// dispatched is the series of one backend of a route.
type dispatched struct {
	*streams
	route *layer.Route
	sent  prometheus.Counter
}

func (b *backend) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	route := layer.RouteOf(ctx)
	d := b.of(route)
	d.sent.Inc()
	s := &stream{of: d.streams, ctx: ctx}
	rsp, err := s.call(b.Service, req)
	if route == nil || errors.Is(err, layer.ErrNotReady) {
		return rsp, err
	}
	if t, ok := ctx.Value(triesKey{}).(*tries); ok {
		t.n.Add(1)
	}
	return rsp, err
}

// of returns the series of a route; nil is the default one.
func (b *backend) of(route *layer.Route) *dispatched {
	now, reign := b.seen.Load(), b.routes.reign.Load()
	if now == nil || now.under != reign {
		now = &seen{under: reign}
		b.seen.Store(now)
	}
	if d := now.last.Load(); d != nil && d.route == route {
		return d
	}
	found, ok := now.routes.Load(route)
	if !ok {
		found, _ = now.routes.LoadOrStore(route, b.bind(reign, route))
	}
	d := found.(*dispatched) //nolint:errcheck,forcetypeassert // stored above
	now.last.Store(d)
	return d
}

func (b *backend) bind(under *reign, route *layer.Route) *dispatched {
	name := ""
	if route != nil {
		name = route.Name
	}
	labels := meta("parent", under.dst).With(routeMeta(name)).With(meta("backend", b.authority))
	f := b.routes.meters.httpRoutes
	return &dispatched{newStreams(f.responses, under.lease, labels), route, f.sent.bind(under.lease, labels)}
}

func (b *backend) Next() httplayer.Service { return b.Service }

func (b *backend) Describe() layer.Node { return layer.Node{Name: "metrics"} }
