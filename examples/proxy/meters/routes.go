package meters

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// Routes counts requests and connections to one destination by the routes in its profile:
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
// Inbound requests only count in route_*. Labels come from the profile that applied when a request
// began. Pass OnProfile, Measured, PerRoute and Unrouted to options of profiles.New, and Detect's
// result to an option of tcplayer.Detect.
//
// Routes is safe for concurrent use. A request costs two clock readings for its route and two for
// its target, and two more allocations if the route is retryable.
type Routes struct {
	meters    *Meters
	direction Direction
	current   atomic.Pointer[destination]
	retries   atomic.Bool // a profile had a retryable route
}

// destination contains the series in which a [Routes] counts while one profile applies.
// [Routes.OnProfile] replaces it.
type destination struct {
	parent      Labels              // the policy's labels parent_*; nil without a policy
	dst         string              // name:port in the profile
	connections func() *connections // returns nil for inbound

	mu     sync.Mutex
	routes map[string]*routeSeries // by name and labels
}

// Routes returns a Routes for the destination target, which is its name until a profile specifies
// another. Only 200 outbound and a thousand inbound destinations get series of their own. All
// others share series whose labels identify neither the destination nor the route or target.
func (m *Meters) Routes(d Direction, target string) *Routes {
	r := &Routes{meters: m, direction: d}
	r.current.Store(r.newDestination(target))
	return r
}

// newDestination returns r's series while one profile applies, in which the destination's name is
// dst.
func (r *Routes) newDestination(dst string) *destination {
	return &destination{
		dst: dst, routes: map[string]*routeSeries{},
		connections: sync.OnceValue(func() *connections { return r.newConnections(dst) }),
	}
}

// OnProfile makes later requests and connections count in new series with p's labels. dst is the
// destination in p, in the form name:port. OnProfile must be called before p takes effect.
func (r *Routes) OnProfile(dst string, p *profiles.Profile) {
	d := r.newDestination(dst)
	if p.Policy != nil {
		d.parent = p.Policy.Labels
	}
	// Requests that have begun keep counting in the previous destination.
	r.current.Store(d)
}

// Parent returns the resource to which the current profile belongs.
func (r *Routes) Parent() Parent {
	d := r.current.Load()
	return r.meters.parent(d.dst, d.parent)
}

// Measured returns the instruments for a route's requests and attempts. Like in linkerd's proxy,
// they count in route_* only if the route comes from a profile and not from a policy. Retries on
// outbound routes also count in outbound_*_route_retry_*.
func (r *Routes) Measured(route profiles.Route) (requests, attempts layer.Instruments) {
	if route.Backends == nil { // a policy's routes have their own
		requests, attempts = r.meters.Route(r.direction, r.current.Load().dst, route.Name, route.Labels)
	} else {
		// These are called without a check for nil, so they need counters that discard.
		requests.RetriesSkipped = discard.NewCounter()
		requests.Retries = discard.NewCounter()
	}
	if route.MayRetry() && r.direction == Outbound {
		requests = r.route(route).retries().added(requests)
	}
	return requests, attempts
}

// PerRoute returns next with a layer that counts a route's requests in
// outbound_http_route_request_statuses_total and outbound_http_route_request_duration_seconds.
//
// Admission: Ready is forwarded.
//
// Cancellation: a request that its caller cancels has the label error="CANCEL".
//
// Body: a response ends with its body and trailers.
//
// Errors: forwarded. A rejection has the label error="FAIL_FAST" or error="LOAD_SHED". Outer layers
// must not send rejected requests again, because each rejection counts as a request.
func (r *Routes) PerRoute(route profiles.Route, next httplayer.Service) httplayer.Service {
	// backend only counts attempts if some route may be retried.
	if route.MayRetry() {
		r.retries.Store(true)
	}
	return &routeMeter{measured{next}, r.route(route), route.MayRetry()}
}

// Unrouted returns next with a layer that counts requests that match no route, as [Routes.PerRoute]
// does, with the label route_name="default".
func (r *Routes) Unrouted(next httplayer.Service) httplayer.Service {
	return r.PerRoute(profiles.Route{}, next)
}

// routeSeries contains the series outbound_http_route_* for one route.
type routeSeries struct {
	streams *streams
	byHost  *byLabel[string, *streams] // by the label hostname; nil if it is always empty
	retries func() *retries            // makes the series at its first call
}

// streamsOf returns the series for req's host.
func (s *routeSeries) streamsOf(req *http.Request) *streams {
	// Without HostnameLabels, all hosts share the series.
	if s.byHost == nil {
		return s.streams
	}
	host := req.Host
	// The label has no port, and req.Host is only cut if it has one.
	if name, _, found := authority.CutPort(host); found {
		host = name
	}
	// Addresses and invalid names would make many series for clients that scan, so they have none of their own.
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || !authority.Valid(host) {
		return s.streams
	}
	// Host names are not case-sensitive, and a final dot does not change them.
	return s.byHost.get(strings.ToLower(strings.TrimSuffix(host, ".")))
}

// route returns the series for a route in the current profile. PerRoute's layer and Measured's
// instruments share them.
func (r *Routes) route(route profiles.Route) *routeSeries {
	d := r.current.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	// A profile may have several routes without a name, which differ only in their labels.
	key := route.Name + "\x00" + Labels(route.Labels).key()
	s := d.routes[key]
	if s == nil {
		families := r.meters.familiesOf(route.Labels)
		labels := r.labels(d, routeMeta(route.Name, route.Labels), hostname(), hostname)
		s = &routeSeries{
			streams: newStreams(families.requests, labels),
			// Most routes are never retried, so their series are made on demand.
			retries: sync.OnceValue(func() *retries { return families.retries.eager(labels) }),
		}
		if r.meters.hostnames && r.direction == Outbound {
			s.byHost = newByLabel(func(host string) *streams {
				hostLabels := r.parentLabels(d).With(routeMeta(route.Name, route.Labels), Labels{"hostname": host})
				// Beyond the limit, further hosts share labels, the series without a hostname.
				limited := r.meters.limited("hosts of routes", d.dst+" "+key+" "+host, hostLabels, func(Labels) labelSet { return labels })
				return newStreams(families.requests, limited)
			})
		}
		d.routes[key] = s
	}
	return s
}

// hostname returns an empty label hostname.
func hostname() Labels { return Labels{"hostname": ""} }

// labels returns the labels for a series: d's labels parent_*, and those in route and more.
// Destinations beyond [Meters.Routes]'s limit share series with an empty parent_name, the default
// route's labels, and rest's labels instead of more.
func (r *Routes) labels(d *destination, route, more Labels, rest func() Labels) labelSet {
	// The destination is the name that is limited: all of its routes are in or out together.
	return r.meters.limited(routeParents(r.direction), d.dst,
		r.parentLabels(d).With(route, more), func(Labels) labelSet {
			return fixed(r.meters.meta("parent", "").With(routeMeta("", nil), rest()))
		})
}

// parentLabels returns d's labels parent_*.
func (r *Routes) parentLabels(d *destination) Labels {
	if d.parent != nil {
		return d.parent
	}
	return r.meters.meta("parent", d.dst)
}

// routeMeter counts one route's requests.
type routeMeter struct {
	measured
	route     *routeSeries
	retryable bool
}

// Call counts the request for its route and, if the route has retries, also the retries.
func (m *routeMeter) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	// Only retryable routes pay for a context value that counts attempts.
	if !m.retryable {
		return m.route.streamsOf(req).call(ctx, m.Service, req, nil)
	}
	// Backends find a in the context, and count each attempt in it.
	a := &attempts{route: m.route}
	return m.route.streamsOf(req).call(reqctx.WithValue(ctx, attemptsKey{}, a), m.Service, req, a)
}

// Backend returns next with a layer that counts requests to one target by their route. authority is
// the target's name and port. The metrics are outbound_http_route_backend_requests_total,
// outbound_http_route_backend_response_statuses_total and
// outbound_http_route_backend_response_duration_seconds.
//
// Admission: Ready is forwarded.
//
// Cancellation, body and errors: as for [Routes.PerRoute]. A rejection counts as a request.
func (r *Routes) Backend(authority string, next httplayer.Service) httplayer.Service {
	return &backend{measured: measured{next}, routes: r, authority: authority}
}

// PolicyBackend returns next with a layer that counts requests to b, the backend of an outbound policy, by
// their route, as [Routes.Backend] does for a target. If b.Labels is not nil, it contains the labels
// backend_*.
func (r *Routes) PolicyBackend(b *profiles.Backend, next httplayer.Service) httplayer.Service {
	return &backend{measured: measured{next}, routes: r, authority: b.Authority, labels: b.Labels}
}

// backend counts the requests to one target by their route.
type backend struct {
	measured
	routes    *Routes
	authority string
	labels    Labels // a policy's labels backend_*; nil: derived from authority
	current   atomic.Pointer[backendRoutes]
}

// backendRoutes contains one backend's series for each route while one profile applies.
type backendRoutes struct {
	destination *destination
	routes      *byLabel[*layer.Route, backendSeries]
}

// backendSeries contains the series for one route's requests to one backend.
type backendSeries struct {
	streams  *streams
	requests counter
}

// Call counts the request for its route and this backend.
func (b *backend) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	// The router has put the route into the context.
	series := b.series(layer.RouteFromContext(ctx))
	series.requests.Add(1)
	rsp, err := series.streams.call(ctx, b.Service, req, nil)
	// A backend that was not ready has not received the request, so it is no attempt.
	if b.routes.retries.Load() && !errors.Is(err, layer.ErrNotReady) {
		if a, ok := ctx.Value(attemptsKey{}).(*attempts); ok {
			a.sent.Add(1)
		}
	}
	return rsp, err
}

// series returns the series for a route in the current profile. A nil route means the default
// route.
func (b *backend) series(route *layer.Route) backendSeries {
	current := b.current.Load()
	d := b.routes.current.Load()
	// A new profile has replaced the destination, so the cached series have old labels. Two goroutines may both
	// build new ones, which is harmless.
	if current == nil || current.destination != d {
		current = &backendRoutes{d, newByLabel(func(route *layer.Route) backendSeries { return b.newSeries(d, route) })}
		b.current.Store(current)
	}
	return current.routes.get(route)
}

// newSeries returns the series for a route of this backend. route is nil if the request has none.
func (b *backend) newSeries(d *destination, route *layer.Route) backendSeries {
	m := b.routes.meters
	// Requests without a route count for the default route.
	meta := routeMeta("", nil)
	if route != nil {
		meta = routeMeta(route.Name, route.Labels)
	}
	backendLabels := b.labels
	// Without a policy, the backend's labels are derived from its name.
	if backendLabels == nil {
		backendLabels = m.meta("backend", b.authority)
	}
	// Destinations beyond the limit share series that do not name the backend.
	l := b.routes.labels(d, meta, backendLabels, func() Labels { return m.meta("backend", "") })
	f := m.familiesOf(meta)
	return backendSeries{newStreams(f.responses, l), counter{f.sent.lazy(l)}}
}

// familiesOf returns outbound_grpc_route_* if the route's label route_kind is GRPCRoute, and
// otherwise outbound_http_route_*.
func (m *Meters) familiesOf(route Labels) httpRouteFamilies {
	if route["route_kind"] == "GRPCRoute" {
		return m.grpcRoutes
	}
	return m.httpRoutes
}

// httpRouteFamilies contains outbound_http_route_* or outbound_grpc_route_*.
type httpRouteFamilies struct {
	requests, responses streamFamilies // by route, and by route and backend
	sent                *family[*counterValue]
	retries             retryFamilies
}

// httpRouteFamilies makes the metrics for routes. protocol is "http" or "grpc".
func (m *Meters) httpRouteFamilies(protocol string) httpRouteFamilies {
	name := "outbound_" + protocol + "_route_"
	backend := name + "backend_"
	grpc := protocol == "grpc"
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
