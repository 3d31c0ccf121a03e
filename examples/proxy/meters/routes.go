package meters

import (
	"cmp"
	"context"
	"errors"
	"maps"
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
//	outbound_tcp_route_*             opaque connections, see [Connections]
//	outbound_tcp_protocol_*          connections, by [Handling]
//	outbound_tcp_detect_http_*       detected connections, by protocol
//
// [Routes.Attach] attaches a [Route] to each route of a profile. The Routes itself is made for the Value of the
// profile and of its backends: as long as [Routes.Is] returns true, later profiles should have the same one, so that
// their routes and backends remain equal.
//
// Routes is safe for concurrent use, except for Attach. A request costs two clock readings for its route and two for
// its target, and two more allocations if the route is retryable.
type Routes struct {
	meters      *Meters
	dst         string              // name:port in the profile
	parent      Labels              // the policy's labels parent_*; nil without a policy
	connections func() *connections // makes the series at its first call
	retryable   atomic.Bool         // a profile had a retryable route
	routes      map[string]*Route   // those of the last profile, by name and labels
}

// Routes returns a Routes for the outbound destination dst, a name or address with a port, whose profile has the
// given policy, which may be nil. Only 200 outbound destinations get series of their own. All others share series
// whose labels identify neither the destination nor the route or target.
func (m *Meters) Routes(dst string, policy *profiles.Policy) *Routes {
	r := &Routes{meters: m, dst: dst, parent: parentOf(policy)}
	r.connections = sync.OnceValue(func() *connections { return m.newConnections(dst) })
	return r
}

// parentOf returns the labels parent_* of policy, or nil without a policy.
func parentOf(policy *profiles.Policy) Labels {
	if policy == nil {
		return nil
	}
	return policy.Labels
}

// Is reports whether r counts for the destination dst with the given policy: see [Meters.Routes].
func (r *Routes) Is(dst string, policy *profiles.Policy) bool {
	return r.dst == dst && maps.Equal(r.parent, parentOf(policy))
}

// Parent returns the resource to which the profile belongs: that which the policy's labels describe, or otherwise
// the one in the destination's name.
func (r *Routes) Parent() Parent {
	l := r.parentLabels()
	return Parent{
		l["parent_group"], l["parent_kind"], l["parent_namespace"], l["parent_name"], l["parent_port"], l["parent_section_name"],
	}
}

// Attach sets the Value of each of the routes, which are all routes of a profile, to its [Route]. Routes with equal
// names and labels have the same one, and so do those in the profile before.
func (r *Routes) Attach(routes []profiles.Route) {
	all := make(map[string]*Route, len(routes))
	for i := range routes {
		route := &routes[i]
		// A profile may have several routes without a name, which differ only in their labels.
		key := route.Name + "\x00" + Labels(route.Labels).key()
		series := cmp.Or(all[key], r.routes[key])
		if series == nil {
			series = r.newRoute(route.Name, route.Labels)
		}
		all[key] = series
		route.Value = series
	}
	r.routes = all
}

// Unrouted returns next with a layer that counts requests that match no route, as [Route.Layer]
// does, with the label route_name="default".
func (r *Routes) Unrouted(next httplayer.Service) httplayer.Service {
	return r.newRoute("", nil).Layer(profiles.Route{}, next)
}

// Route counts the requests of one route, or of all routes with the same name and labels.
type Route struct {
	routes  *Routes
	name    string
	labels  Labels
	streams *streams
	byHost  *byLabel[string, *streams] // by the label hostname; nil if it is always empty
	retries func() *retries            // makes the series at its first call
}

// newRoute returns the series of a route.
func (r *Routes) newRoute(name string, labels Labels) *Route {
	families := r.meters.familiesOf(labels)
	l := r.labels(routeMeta(name, labels), hostname(), hostname)
	route := &Route{
		routes: r, name: name, labels: labels, streams: newStreams(families.requests, l),
		// Most routes are never retried, so their series are made on demand.
		retries: sync.OnceValue(func() *retries { return families.retries.eager(l) }),
	}
	if r.meters.hostnames {
		route.byHost = newByLabel(func(host string) *streams {
			hostLabels := r.parentLabels().With(routeMeta(name, labels), Labels{"hostname": host})
			// Beyond the limit, further hosts share labels, the series without a hostname.
			limited := r.meters.limited("hosts of routes", strings.Join([]string{r.dst, name, labels.key(), host}, " "), hostLabels,
				func(Labels) labelSet { return l })
			return newStreams(families.requests, limited)
		})
	}
	return route
}

// Measured returns the instruments for the requests and attempts of route, which r is attached to. Like in linkerd's
// proxy, they count in route_* only if the route comes from a profile and not from a policy. Retries also count in
// outbound_*_route_retry_*.
func (r *Route) Measured(route profiles.Route) (requests, attempts layer.Instruments) {
	if route.Backends == nil { // a policy's routes have their own
		requests, attempts = r.routes.meters.Route(Outbound, r.routes.dst, r.name, r.labels)
	} else {
		// These are called without a check for nil, so they need counters that discard.
		requests.RetriesSkipped = discard.NewCounter()
		requests.Retries = discard.NewCounter()
	}
	if route.MayRetry() {
		requests = r.retries().added(requests)
	}
	return requests, attempts
}

// Layer returns next with a layer that counts the requests of route, which r is attached to, in
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
func (r *Route) Layer(route profiles.Route, next httplayer.Service) httplayer.Service {
	// backend only counts attempts if some route may be retried.
	if route.MayRetry() {
		r.routes.retryable.Store(true)
	}
	return &routeMeter{measured{next}, r, route.MayRetry()}
}

// streamsOf returns the series for req's host.
func (r *Route) streamsOf(req *http.Request) *streams {
	// Without HostnameLabels, all hosts share the series.
	if r.byHost == nil {
		return r.streams
	}
	host := req.Host
	// The label has no port, and req.Host is only cut if it has one.
	if name, _, found := authority.CutPort(host); found {
		host = name
	}
	// Addresses and invalid names would make many series for clients that scan, so they have none of their own.
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || !authority.Valid(host) {
		return r.streams
	}
	// Host names are not case-sensitive, and a final dot does not change them.
	return r.byHost.get(strings.ToLower(strings.TrimSuffix(host, ".")))
}

// hostname returns an empty label hostname.
func hostname() Labels { return Labels{"hostname": ""} }

// labels returns the labels for a series: the destination's labels parent_*, and those in route and more.
// Destinations beyond [Meters.Routes]'s limit share series with an empty parent_name, the default
// route's labels, and rest's labels instead of more.
func (r *Routes) labels(route, more Labels, rest func() Labels) labelSet {
	// The destination is the name that is limited: all of its routes are in or out together.
	return r.meters.limited(routeParents(Outbound), r.dst,
		r.parentLabels().With(route, more), func(Labels) labelSet {
			return fixed(r.meters.meta("parent", "").With(routeMeta("", nil), rest()))
		})
}

// parentLabels returns the labels parent_*.
func (r *Routes) parentLabels() Labels {
	if r.parent != nil {
		return r.parent
	}
	return r.meters.meta("parent", r.dst)
}

// routeMeter counts one route's requests.
type routeMeter struct {
	measured
	route     *Route
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

// Backend returns next with a layer that counts requests to b by their route, which [Routes.Attach] has attached to
// the [layer.Route] in their context. If b.Labels is not nil, it contains the labels backend_*, which otherwise are
// derived from its authority. The metrics are outbound_http_route_backend_requests_total,
// outbound_http_route_backend_response_statuses_total and
// outbound_http_route_backend_response_duration_seconds.
//
// Admission: Ready is forwarded.
//
// Cancellation, body and errors: as for [Route.Layer]. A rejection counts as a request.
func (r *Routes) Backend(b *profiles.Backend, next httplayer.Service) httplayer.Service {
	authority := b.Authority
	labels := Labels(b.Labels)
	return &backend{measured{next}, r, newByLabel(func(route *Route) backendSeries {
		return r.newBackendSeries(authority, labels, route)
	})}
}

// backend counts the requests to one target by their route.
type backend struct {
	measured
	routes *Routes
	series *byLabel[*Route, backendSeries] // the key nil is the default route
}

// backendSeries contains the series for one route's requests to one backend.
type backendSeries struct {
	streams  *streams
	requests counter
}

// Call counts the request for its route and this backend.
func (b *backend) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	var route *Route
	// The router has put the route into the context, unless it has neither a name nor labels.
	if chosen := layer.RouteFromContext(ctx); chosen != nil {
		route, _ = chosen.Value.(*Route)
	}
	series := b.series.get(route)
	series.requests.Add(1)
	rsp, err := series.streams.call(ctx, b.Service, req, nil)
	// A backend that was not ready has not received the request, so it is no attempt.
	if b.routes.retryable.Load() && !errors.Is(err, layer.ErrNotReady) {
		if a, ok := ctx.Value(attemptsKey{}).(*attempts); ok {
			a.sent.Add(1)
		}
	}
	return rsp, err
}

// newBackendSeries returns the series for a route's requests to the backend with the given authority and labels.
// route is nil if the requests have none.
func (r *Routes) newBackendSeries(authority string, labels Labels, route *Route) backendSeries {
	// Requests without a route count for the default route.
	meta := routeMeta("", nil)
	if route != nil {
		meta = routeMeta(route.name, route.labels)
	}
	if labels == nil {
		labels = r.meters.meta("backend", authority)
	}
	// Destinations beyond the limit share series that do not name the backend.
	l := r.labels(meta, labels, func() Labels { return r.meters.meta("backend", "") })
	f := r.meters.familiesOf(meta)
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
