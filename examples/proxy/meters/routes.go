package meters

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// Routes count the requests and connections to one destination by the routes of its
// profile:
//
//	route_*                          each route that has a name or labels, see Route
//	outbound_http_route_*            each route, and the default one
//	outbound_http_route_retry_*      each route that is retryable
//	outbound_http_route_backend_*    each attempt of a request, by route and target
//	outbound_tcp_route_*             opaque connections
//	outbound_tcp_protocol_*          connections, by Handling
//	outbound_tcp_detect_http_*       detected connections, by protocol
//
// All but the first are outbound only. The labels follow the profile. Requests that began
// with an earlier profile count with the labels of that profile. Pass the methods OnProfile,
// Measured, PerRoute and Unrouted to the options of profiles.Router with these names, and
// the instruments of Detect to tcplayer.Detect.
//
// Routes are safe for concurrent use. A request costs two clock readings by route, as much
// by target, and two allocations if the route is retryable.
type Routes struct {
	meters    *Meters
	direction Direction
	current   atomic.Pointer[destination]
	retries   atomic.Bool // a profile had a retryable route
}

// destination is the series of a destination with one profile.
type destination struct {
	dst         string
	connections *connections // nil inbound

	mu     sync.Mutex
	routes map[string]*routeSeries // by name and labels
}

// Routes returns the series of the destination target, which is its name until a profile
// provides another one. Destinations beyond the first thousand are counted together,
// without names of destinations, routes and targets.
func (m *Meters) Routes(d Direction, target string) *Routes {
	r := &Routes{meters: m, direction: d}
	r.current.Store(r.newDestination(target))
	return r
}

func (r *Routes) newDestination(dst string) *destination {
	d := &destination{dst: dst, routes: map[string]*routeSeries{}}
	if r.direction == Outbound {
		d.connections = r.newConnections(dst)
	}
	return d
}

// OnProfile sets the name:port that the destination has in the profile that is about to
// take effect.
func (r *Routes) OnProfile(dst string, _ *profiles.Profile) { r.current.Store(r.newDestination(dst)) }

// Measured returns the instruments of a route.
func (r *Routes) Measured(route profiles.Route) (requests, attempts layer.Instruments) {
	requests, attempts = r.meters.Route(r.direction, r.current.Load().dst, route.Name, route.Labels)
	if route.Retryable && r.direction == Outbound {
		requests = r.route(route).retries().added(requests)
	}
	return requests, attempts
}

// PerRoute is the layer of a route: request_statuses_total and
// request_duration_seconds.
//
// Admission: Ready is forwarded.
//
// Cancellation: a request that its caller canceled has the error CANCEL.
//
// Body: a response ends with its body, trailers included.
//
// Errors: forwarded. A rejection counts as FAIL_FAST or LOAD_SHED. No layer above may send
// the request elsewhere.
func (r *Routes) PerRoute(route profiles.Route, next httplayer.Service) httplayer.Service {
	if route.Retryable {
		r.retries.Store(true)
	}
	return &routeMeter{next, r.route(route), route.Retryable}
}

// Unrouted is PerRoute for the requests that match no route.
func (r *Routes) Unrouted(next httplayer.Service) httplayer.Service {
	return r.PerRoute(profiles.Route{}, next)
}

// routeSeries is outbound_http_route_* of one route.
type routeSeries struct {
	streams *streams
	retries func() *retries // shown from the first call
}

// route returns the series of a route. Layers and instruments of the same route share it.
func (r *Routes) route(route profiles.Route) *routeSeries {
	d := r.current.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	key := route.Name + "\x00" + Labels(route.Labels).key()
	s := d.routes[key]
	if s == nil {
		f := r.meters.httpRoutes
		l := r.labels(d.dst, route.Name, Labels{"hostname": ""}, Labels{"hostname": ""}) // hostnames are not enabled
		s = &routeSeries{newStreams(f.requests, l), sync.OnceValue(func() *retries { return f.retries.now(l) })}
		d.routes[key] = s
	}
	return s
}

// labels returns parent_*, route_* and more, or rest beyond the limit.
func (r *Routes) labels(dst, route string, more, rest Labels) labelSet {
	return r.meters.limited(routeParents(r.direction), dst,
		r.meters.meta("parent", dst).With(routeMeta(route)).With(more),
		r.meters.meta("parent", "").With(routeMeta("")).With(rest))
}

// routeMeter is the layer of a route.
type routeMeter struct {
	httplayer.Service
	route     *routeSeries
	retryable bool
}

func (m *routeMeter) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if !m.retryable {
		return m.route.streams.call(ctx, m.Service, req, nil)
	}
	a := &attempts{route: m.route}
	return m.route.streams.call(reqctx.WithValue(ctx, attemptsKey{}, a), m.Service, req, a)
}

func (m *routeMeter) Next() httplayer.Service { return m.Service }

func (m *routeMeter) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// Backend is the layer of one target of the profile, by its authority. It counts
// backend_requests_total, backend_response_statuses_total and
// backend_response_duration_seconds by the route of the request.
//
// Admission: Ready is forwarded.
//
// Cancellation, body and errors are those of PerRoute. A rejection counts as a request.
func (r *Routes) Backend(authority string, next httplayer.Service) httplayer.Service {
	return &backend{Service: next, routes: r, authority: authority}
}

type backend struct {
	httplayer.Service
	routes    *Routes
	authority string
	current   atomic.Pointer[backendRoutes]
}

// backendRoutes is the series of a backend by the routes of one profile.
type backendRoutes struct {
	destination *destination
	routes      *byLabel[*layer.Route, backendSeries]
}

// backendSeries is the series of one backend of a route.
type backendSeries struct {
	streams  *streams
	requests counter
}

func (b *backend) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	series := b.series(layer.RouteFromContext(ctx))
	series.requests.Add(1)
	rsp, err := series.streams.call(ctx, b.Service, req, nil)
	if b.routes.retries.Load() && !errors.Is(err, layer.ErrNotReady) {
		if a, ok := ctx.Value(attemptsKey{}).(*attempts); ok {
			a.sent.Add(1)
		}
	}
	return rsp, err
}

// series returns the series of a route; nil means the default route.
func (b *backend) series(route *layer.Route) backendSeries {
	now, d := b.current.Load(), b.routes.current.Load()
	if now == nil || now.destination != d {
		now = &backendRoutes{d, newByLabel(func(route *layer.Route) backendSeries { return b.newSeries(d.dst, route) })}
		b.current.Store(now)
	}
	return now.routes.of(route)
}

func (b *backend) newSeries(dst string, route *layer.Route) backendSeries {
	name := ""
	if route != nil {
		name = route.Name
	}
	m := b.routes.meters
	l := b.routes.labels(dst, name, m.meta("backend", b.authority), m.meta("backend", ""))
	return backendSeries{newStreams(m.httpRoutes.responses, l), counter{m.httpRoutes.sent.lazy(l)}}
}

func (b *backend) Next() httplayer.Service { return b.Service }

func (b *backend) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// httpRouteFamilies are outbound_http_route_*.
type httpRouteFamilies struct {
	requests, responses streamFamilies // of routes, and of their backends
	sent                *family[prometheus.Counter]
	retries             retryFamilies
}

func (m *Meters) httpRouteFamilies() httpRouteFamilies {
	const name, backend = "outbound_http_route_", "outbound_http_route_backend_"
	return httpRouteFamilies{
		requests: streamFamilies{
			statuses: m.counters(name+"request_statuses_total", "Completed request-response streams."),
			durations: m.histograms(name+"request_duration_seconds",
				"The time between request initialization and response completion.", 0.05, 0.5, 1, 10),
		},
		sent: m.counters(backend+"requests_total", "The total number of requests dispatched."),
		responses: streamFamilies{
			statuses: m.counters(backend+"response_statuses_total", "Completed responses."),
			durations: m.histograms(backend+"response_duration_seconds",
				"The time between request dispatch and response completion.", 0.025, 0.05, 0.1, 0.25, 0.5, 1, 10),
		},
		retries: m.retryFamilies(name + "retry_"),
	}
}
