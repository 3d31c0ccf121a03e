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
// all but the first of the outbound side alone. They follow the profile: the series
// of a route that it has no more are shown for a while, and so are all of them
// when it says another name. Give a profiles.Router the methods of the same name
// as the options: OnProfile, Measured, PerRoute and Unrouted; and a tcplayer.Detect the
// instruments of Detect.
//
// Routes are safe for concurrent use. Labels are bound when the first request
// comes by a route, and when the first of it comes to a target; after that a
// request costs an allocation and two clock readings by route, as much by target,
// and two allocations more of a route that is retryable.
type Routes struct {
	meters    *Meters
	ctx       context.Context //nolint:containedctx // of the destination
	direction Direction
	conns     atomic.Pointer[connections] // by the name of the moment
	reign     atomic.Pointer[reign]

	mu      sync.Mutex
	dst     string
	profile *profiles.Profile  // nil: none yet
	routes  map[string]*routed // by name and labels

	beyond bool // there was no room: it has neither a name nor routes and backends of its own
}

// Routes returns the series of the destination that target names, until its
// profile says another name. They are shown until a while after ctx. Beyond a
// thousand destinations outbound they have no name, and neither have routes and
// targets, whatever the profile says.
func (m *Meters) Routes(ctx context.Context, d Direction, target string) *Routes {
	r := &Routes{meters: m, ctx: ctx, direction: d}
	name := m.parent(ctx, d, target)
	r.beyond = name != target
	r.rename(name)
	r.reign.Store(r.newReign(nil))
	return r
}

// OnProfile says which profile is about to be in force, and which name:port it
// gives to the destination. The same as before changes nothing.
func (r *Routes) OnProfile(dst string, p *profiles.Profile) {
	if r.beyond {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if dst == r.dst && r.profile != nil && reflect.DeepEqual(p, r.profile) {
		return // a stream of the controller began anew
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
	r.reign.Swap(r.newReign(p)).over()
}

// rename begins anew by another name.
func (r *Routes) rename(dst string) {
	r.dst, r.routes = dst, map[string]*routed{}
	if r.direction == Outbound {
		r.conns.Store(r.newConnections(dst))
	}
}

// letGo ends the routes that do not stay.
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

// route returns what there is of a route.
func (r *Routes) route(name string, labels map[string]string) *routed {
	if r.beyond {
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
