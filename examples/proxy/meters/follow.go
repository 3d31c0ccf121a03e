package meters

import (
	"context"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// Routes count what goes to one destination by the routes of its profile:
//
//	route_*                          each route that has a name or labels, see Route
//	outbound_http_route_*            each route, and the default one
//	outbound_http_route_retry_*      each route that is retryable
//	outbound_http_route_backend_*    each try of a request, by route and target
//	outbound_tcp_route_*             connections that nobody looked into
//	outbound_tcp_protocol_*          connections, by whether they are looked into
//	outbound_tcp_detect_http_*       connections that were, by what they speak
//
// All but the first are outbound only. The series follow the profile. Those of a
// removed route are shown for the retention time, and so are all of them when the
// profile has another name. Pass the methods OnProfile, Measured, PerRoute and Unrouted
// to the options of profiles.Router with these names, and the instruments of Detect to
// tcplayer.Detect.
//
// Routes are safe for concurrent use. Labels are bound at the first request of a route,
// and at its first request to a target. After that a request costs one allocation and
// two clock readings by route, as much by target, and two allocations more if the route
// is retryable.
type Routes struct {
	meters       *Meters
	ctx          context.Context //nolint:containedctx // of the destination
	direction    Direction
	conns        atomic.Pointer[connections] // by the name of the moment
	profileScope atomic.Pointer[profileScope]

	mu      sync.Mutex
	dst     string
	profile *profiles.Profile  // nil: none yet
	routes  map[string]*routed // by name and labels

	overLimit bool // too many destinations: no name, routes or backends of its own
}

// Routes returns the series of the destination with the name target, until the
// profile has another name. They are shown for the retention time after ctx. From the
// thousand-and-first outbound destination on, destinations, routes and targets have no
// names.
func (m *Meters) Routes(ctx context.Context, d Direction, target string) *Routes {
	r := &Routes{meters: m, ctx: ctx, direction: d}
	name := m.parent(ctx, d, target)
	r.overLimit = name != target
	r.rename(name)
	r.profileScope.Store(r.newProfileScope(nil))
	return r
}

// OnProfile sets the profile that is about to take effect, and the destination's
// name:port. The same profile as before changes nothing.
func (r *Routes) OnProfile(dst string, p *profiles.Profile) {
	if r.overLimit {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if dst == r.dst && r.profile != nil && reflect.DeepEqual(p, r.profile) {
		return // a stream of the controller was reopened
	}
	r.profile = p
	if dst != r.dst {
		r.letGo(nil)
		r.rename(dst)
	} else {
		stay := map[string]bool{routeKey("", nil): true}
		for _, route := range p.Routes {
			stay[routeKey(route.Name, route.Labels)] = true
		}
		r.letGo(stay)
	}
	r.profileScope.Swap(r.newProfileScope(p)).over()
}

// rename starts new series with another name.
func (r *Routes) rename(dst string) {
	r.dst, r.routes = dst, map[string]*routed{}
	if r.direction == Outbound {
		r.conns.Store(r.newConnections(dst))
	}
}

// letGo ends the routes that are not in stay.
func (r *Routes) letGo(stay map[string]bool) {
	for key, route := range r.routes {
		if !stay[key] {
			route.over()
			delete(r.routes, key)
		}
	}
	if c := r.conns.Load(); stay == nil && c != nil {
		c.over()
	}
}

// Measured returns the instruments of a route.
func (r *Routes) Measured(route profiles.Route) (requests, tries layer.Instruments) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.route(route.Name, route.Labels)
	requests, tries = of.measured()
	if route.Retryable && r.direction == Outbound {
		requests = of.now().retries().added(requests)
	}
	return requests, tries
}

// PerRoute is the layer of a route: request_statuses_total and
// request_duration_seconds.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: a request that its caller cancelled has the error CANCEL.
//
// Body: a response is over when it has ended, trailers included.
//
// Errors: passed as they are. A refusal counts as FAIL_FAST or LOAD_SHED: put
// nothing above that sends it elsewhere.
func (r *Routes) PerRoute(route profiles.Route, next httplayer.Service) httplayer.Service {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &routeMeter{next, r.route(route.Name, route.Labels), route.Retryable}
}

// Unrouted is PerRoute for the requests that match no route.
func (r *Routes) Unrouted(next httplayer.Service) httplayer.Service {
	return r.PerRoute(profiles.Route{}, next)
}

// route returns the series of a route.
func (r *Routes) route(name string, labels map[string]string) *routed {
	if r.overLimit {
		name, labels = "", nil
	}
	key := routeKey(name, labels)
	found := r.routes[key]
	if found == nil {
		found = r.newRouted(name, labels)
		r.routes[key] = found
	}
	return found
}

func routeKey(name string, labels Labels) string { return name + "\x00" + labels.key() }

// routeMeter is the layer of a route.
type routeMeter struct {
	httplayer.Service
	route     *routed
	retryable bool
}

func (m *routeMeter) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	m.route.now()
	s := &stream{of: m.route, ctx: ctx}
	if m.retryable {
		s.tries = &tries{of: m.route}
		s.ctx = context.WithValue(ctx, triesKey{}, s.tries)
	}
	return s.call(m.Service, req)
}

func (m *routeMeter) Next() httplayer.Service { return m.Service }

func (m *routeMeter) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// profileScope is the scope of one profile. The series of backends are bound in it, so
// that they end with the last profile that has the backend.
type profileScope struct {
	*scope
	over context.CancelFunc
	dst  string

	routes, backends map[string]bool // by name, and by authority; nil: there is no profile yet
}

// newProfileScope returns the scope of p, or of the time before the first profile if p
// is nil.
func (r *Routes) newProfileScope(p *profiles.Profile) *profileScope {
	ctx, over := context.WithCancel(r.ctx)
	n := &profileScope{scope: r.meters.scope(ctx), over: over, dst: r.dst}
	if p == nil {
		return n
	}
	n.routes, n.backends = map[string]bool{"": true}, map[string]bool{}
	for _, t := range p.Targets {
		if t.Weight > 0 && t.Validate() == nil {
			n.backends[t.Authority] = true
		}
	}
	if len(n.backends) == 0 {
		n.backends[r.dst] = true
	}
	if p.Endpoint != nil {
		n.backends[p.Endpoint.String()] = true
	}
	for _, route := range p.Routes {
		n.routes[route.Name] = true
		for _, m := range route.Mirrors {
			n.backends[m.Authority] = true
		}
	}
	return n
}

// has reports whether the profile has a route and a backend. A request that began
// with an earlier profile may use others.
func (r *profileScope) has(route, authority string) bool {
	return r.routes == nil || r.routes[route] && r.backends[authority]
}
