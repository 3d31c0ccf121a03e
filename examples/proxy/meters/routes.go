package meters

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// Routes counts the requests and connections to one destination by the routes of its
// profile:
//
//	route_*                          each route that has a name or labels, see [Meters.Route]
//	outbound_http_route_*            each route, and the default route
//	outbound_http_route_retry_*      each route that is retryable
//	outbound_http_route_backend_*    each attempt of a request, by route and target
//	outbound_grpc_route_*            each GRPCRoute, instead of outbound_http_route_*
//	outbound_tcp_route_*             opaque connections
//	outbound_tcp_protocol_*          connections, by [Handling]
//	outbound_tcp_detect_http_*       detected connections, by protocol
//
// For inbound requests, only route_* is counted. Labels come from the current profile. A
// request keeps the labels of the profile that applied when it began. Pass OnProfile,
// Measured, PerRoute and Unrouted to options of profiles.New, and the result of Detect to
// an option of tcplayer.Detect.
//
// Routes is safe for concurrent use. A request costs two clock readings for its route and
// two for its target. It costs two more allocations if the route is retryable.
type Routes struct {
	meters    *Meters
	direction Direction
	current   atomic.Pointer[destination]
	retries   atomic.Bool // true after a profile with a retryable route
}

// destination has the series in which a [Routes] counts while one profile applies. When
// another profile applies, [Routes.OnProfile] replaces the destination.
type destination struct {
	parent      Labels              // labels parent_* of the policy; nil without a policy
	dst         string              // name:port of the destination in the profile
	connections func() *connections // makes the series at its first call; returns nil for inbound

	mu     sync.Mutex
	routes map[string]*routeSeries // by name and labels
}

// Routes returns a Routes for one destination. target is the name of the destination,
// until a profile specifies another name. Destinations beyond the limit (200 outbound, a
// thousand inbound) share series. The labels of these series do not identify the
// destination, the route or the target.
func (m *Meters) Routes(d Direction, target string) *Routes {
	r := &Routes{meters: m, direction: d}
	r.current.Store(r.newDestination(target))
	return r
}

// newDestination returns the series of the destination of r while one profile applies. dst
// is the name of the destination in this profile.
func (r *Routes) newDestination(dst string) *destination {
	return &destination{
		dst: dst, routes: map[string]*routeSeries{},
		connections: sync.OnceValue(func() *connections { return r.newConnections(dst) }),
	}
}

// OnProfile makes later requests and connections count in new series, with the labels of
// the profile p. dst is the name:port of the destination in p. The caller must call
// OnProfile before p takes effect.
func (r *Routes) OnProfile(dst string, p *profiles.Profile) {
	d := r.newDestination(dst)
	if p.Policy != nil {
		d.parent = p.Policy.Labels
	}
	r.current.Store(d)
}

// Parent returns the resource to which the current profile is attached.
func (r *Routes) Parent() Parent {
	d := r.current.Load()
	return r.meters.parent(d.dst, d.parent)
}

// Measured returns the instruments for the requests and for the attempts of a route. The
// requests and attempts on a route of a profile count in route_*. Those on a route of a
// policy do not, as in linkerd's proxy. Retries of outbound routes also count in
// outbound_*_route_retry_*.
func (r *Routes) Measured(route profiles.Route) (requests, attempts layer.Instruments) {
	if route.Policy == nil {
		requests, attempts = r.meters.Route(r.direction, r.current.Load().dst, route.Name, route.Labels)
	} else {
		requests.RetriesSkipped, requests.Retries = discard.NewCounter(), discard.NewCounter()
	}
	if route.MayRetry() && r.direction == Outbound {
		requests = r.route(route).retries().added(requests)
	}
	return requests, attempts
}

// PerRoute returns next with a layer that counts the requests of a route. The metrics are
// outbound_http_route_request_statuses_total and
// outbound_http_route_request_duration_seconds.
//
// Admission: Ready is forwarded.
//
// Cancellation: a request that its caller cancels has the label error="CANCEL".
//
// Body: a response ends with its body and trailers.
//
// Errors: forwarded. A rejection has the label error="FAIL_FAST" or error="LOAD_SHED". No
// outer layer may send a rejected request again, because each rejection counts as a
// request.
func (r *Routes) PerRoute(route profiles.Route, next httplayer.Service) httplayer.Service {
	if route.MayRetry() {
		r.retries.Store(true)
	}
	return &routeMeter{measured{next}, r.route(route), route.MayRetry()}
}

// Unrouted returns next with a layer that counts the requests that match no route of the
// profile. The metrics are those of [Routes.PerRoute], with the label
// route_name="default".
func (r *Routes) Unrouted(next httplayer.Service) httplayer.Service {
	return r.PerRoute(profiles.Route{}, next)
}

// routeSeries has the series outbound_http_route_* of one route.
type routeSeries struct {
	streams *streams
	retries func() *retries // makes the series at its first call
}

// route returns the series of the given route in the current profile. The layer of PerRoute
// and the instruments of Measured share them.
func (r *Routes) route(route profiles.Route) *routeSeries {
	d := r.current.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	key := route.Name + "\x00" + Labels(route.Labels).key()
	s := d.routes[key]
	if s == nil {
		f := r.meters.familiesOf(route.Labels)
		l := r.labels(d, routeMeta(route.Name, route.Labels), hostname(), hostname)
		s = &routeSeries{newStreams(f.requests, l), sync.OnceValue(func() *retries { return f.retries.now(l) })}
		d.routes[key] = s
	}
	return s
}

// hostname returns an empty label hostname, because this proxy does not count by host
// name.
func hostname() Labels { return Labels{"hostname": ""} }

// labels returns the labels of a series of the destination d: the labels parent_* of d, and
// the labels in the arguments route and more. Destinations beyond the limit of
// [Meters.Routes] share series. A shared series has an empty parent_name and the labels of
// the default route. The function rest returns the labels that replace those of the
// argument more.
func (r *Routes) labels(d *destination, route, more Labels, rest func() Labels) labelSet {
	parent := d.parent
	if parent == nil {
		parent = r.meters.meta("parent", d.dst)
	}
	return r.meters.limited(routeParents(r.direction), d.dst,
		parent.With(route, more), func(Labels) labelSet {
			return fixed(r.meters.meta("parent", "").With(routeMeta("", nil), rest()))
		})
}

// routeMeter is a service that counts the requests of one route.
type routeMeter struct {
	measured
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

// Backend returns next with a layer that counts the requests to one target of the profile,
// by the route of each request. authority is the name and port of the target. The metrics
// are outbound_http_route_backend_requests_total,
// outbound_http_route_backend_response_statuses_total and
// outbound_http_route_backend_response_duration_seconds.
//
// Admission: Ready is forwarded.
//
// Cancellation, body and errors are those of [Routes.PerRoute]. A rejection counts as a
// request.
func (r *Routes) Backend(authority string, next httplayer.Service) httplayer.Service {
	return &backend{measured: measured{next}, routes: r, authority: authority}
}

// PolicyBackend returns next with a layer that counts the requests to b, a backend of an
// outbound policy. The layer is that of [Routes.Backend]. If b.Labels is not nil, the
// labels backend_* come from b.Labels.
func (r *Routes) PolicyBackend(b *profiles.Backend, next httplayer.Service) httplayer.Service {
	return &backend{measured: measured{next}, routes: r, authority: b.Authority, labels: b.Labels}
}

// backend is a service that counts the requests to one target, by route.
type backend struct {
	measured
	routes    *Routes
	authority string
	labels    Labels // labels backend_* of a policy; nil: they follow from authority
	current   atomic.Pointer[backendRoutes]
}

// backendRoutes has the series of one backend while one profile applies, with a
// [backendSeries] for each route.
type backendRoutes struct {
	destination *destination
	routes      *byLabel[*layer.Route, backendSeries]
}

// backendSeries has the series of the requests of one route to one backend.
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

// series returns the series of a route in the current profile. A nil route means the
// default route.
func (b *backend) series(route *layer.Route) backendSeries {
	now, d := b.current.Load(), b.routes.current.Load()
	if now == nil || now.destination != d {
		now = &backendRoutes{d, newByLabel(func(route *layer.Route) backendSeries { return b.newSeries(d, route) })}
		b.current.Store(now)
	}
	return now.routes.of(route)
}

func (b *backend) newSeries(d *destination, route *layer.Route) backendSeries {
	m, of := b.routes.meters, routeMeta("", nil)
	if route != nil {
		of = routeMeta(route.Name, route.Labels)
	}
	own := b.labels
	if own == nil {
		own = m.meta("backend", b.authority)
	}
	l := b.routes.labels(d, of, own, func() Labels { return m.meta("backend", "") })
	f := m.familiesOf(of)
	return backendSeries{newStreams(f.responses, l), counter{f.sent.lazy(l)}}
}

// familiesOf returns the metrics of the route with the given labels. They are
// outbound_grpc_route_* if the label route_kind is GRPCRoute, and outbound_http_route_*
// otherwise.
func (m *Meters) familiesOf(route Labels) httpRouteFamilies {
	if route["route_kind"] == "GRPCRoute" {
		return m.grpcRoutes
	}
	return m.httpRoutes
}

// httpRouteFamilies has the metrics outbound_http_route_*, or outbound_grpc_route_*.
type httpRouteFamilies struct {
	requests, responses streamFamilies // of routes, and of the backends of routes
	sent                *family[*counterValue]
	retries             retryFamilies
}

func (m *Meters) httpRouteFamilies(protocol string) httpRouteFamilies {
	name := "outbound_" + protocol + "_route_"
	backend, grpc := name+"backend_", protocol == "grpc"
	return httpRouteFamilies{
		requests: streamFamilies{
			grpc:     grpc,
			statuses: m.counters(name+"request_statuses_total", "Completed request-response streams."),
			durations: m.histograms(name+"request_duration_seconds",
				"The time between request initialization and response completion.", 0.05, 0.5, 1, 10),
		},
		sent: m.counters(backend+"requests_total", "The total number of requests dispatched."),
		responses: streamFamilies{
			grpc:     grpc,
			statuses: m.counters(backend+"response_statuses_total", "Completed responses."),
			durations: m.histograms(backend+"response_duration_seconds",
				"The time between request dispatch and response completion.", 0.025, 0.05, 0.1, 0.25, 0.5, 1, 10),
		},
		retries: m.retryFamilies(name + "retry_"),
	}
}
