package profiles

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
)

// snapshot is a compiled profile. It is not modified after it has become current.
type snapshot[Req, Rsp any] struct {
	profile      *Profile
	routes       []*liveRoute[Req, Rsp]
	candidates   []candidate[Req, Rsp] // in the order of precedence
	index        index
	split        split[Req, Rsp]
	defaultRoute layer.Service[Req, Rsp] // nil means that requests without a route go to split
	budget       *layer.Budget           // nil means no retries and no hedges
	provisional  bool                    // whether the first profile has not arrived yet
	replaced     chan struct{}           // closed when another snapshot is current
}

// liveRoute is a compiled route with its stack. All snapshots with an equal route share the
// same liveRoute.
type liveRoute[Req, Rsp any] struct {
	compiledRoute
	def   Route
	key   string                  // the result of routeKey(def), or "" if not computed
	stack layer.Service[Req, Rsp] // nil means that requests go to the split
	outer *layer.Route            // info, unless the split adds a route to the context, with labels of the backend
	split *split[Req, Rsp]        // over the Backends of def; nil means the split of the snapshot
}

// compile converts p to a snapshot. old is the current snapshot. If it contains an equal route,
// compile uses that liveRoute, with its stack's state. It makes all routes again if the retry
// budget or the Policy's labels changed. The caller must hold mu.
func (r *Router[Req, Rsp]) compile(p *Profile, old *snapshot[Req, Rsp]) *snapshot[Req, Rsp] {
	// drop logs each part that is left out, unless the previous profile had the same mistake.
	drop := r.invalid.Add
	defer r.invalid.End()
	s := &snapshot[Req, Rsp]{profile: p, budget: r.budgetFor(p, drop), replaced: make(chan struct{})}
	// The user's function sees the profile as it was received.
	if r.config.OnUpdate != nil {
		if err := panics.Contain(func() { r.config.OnUpdate(p) }); err != nil {
			drop(fmt.Errorf("OnUpdate: %w", err))
		}
	}
	var routes routeSet[Req, Rsp]
	var candidates []*liveRoute[Req, Rsp] // the routes of old that may be equal in p
	// Routes can be kept only if nothing outside of them, on which their layers depend, has changed.
	if old != nil && old.budget == s.budget && maps.Equal(old.profile.Policy.labels(), p.Policy.labels()) {
		candidates = old.routes
	}
	// Usually most routes are unchanged and in the same order, so the next one is compared first.
	next := 0 // the position in candidates that probably has the next route of p
	for i := range p.Routes {
		def := &p.Routes[i]
		var key string
		var route *liveRoute[Req, Rsp]
		if next < len(candidates) && candidates[next].isOf(def) {
			route = candidates[next]
		} else {
			// Made only if the order has changed or routes are new.
			if routes == nil {
				routes = routeSetOf(candidates)
			}
			key = routeKey(def)
			if route = routes.find(key, def); route != nil {
				next = slices.Index(candidates, route)
			}
		}
		// An equal route keeps its layers with their state, such as limits and breakers.
		if route != nil {
			next++
		} else {
			if route = r.makeRoute(i, def, s, drop); route == nil {
				continue
			}
			// A later route of this profile may be equal to this one, and then shares it.
			route.key = key
			routes[key] = append(routes[key], route)
		}
		s.routes = append(s.routes, route)
	}
	s.candidates = candidatesOf(s.routes, p.Precedence)
	for i, c := range s.candidates {
		// The index must be built in the order of precedence.
		s.index.add(int32(i), c.match)
	}
	s.split = r.splitOf(s, drop)
	r.forgetBackends(s)
	if r.defaultRoute != nil {
		if err := panics.Contain(func() { s.defaultRoute = r.defaultRoute(p, targets[Req, Rsp]{r, &s.split}) }); err != nil {
			drop(fmt.Errorf("the layers of WithDefaultRoute: %w", err))
		}
	}
	return s
}

// makeRoute makes the route def, which is at the position i of the profile of s. It calls drop for each
// part that it leaves out, and returns nil if it leaves out the whole route. The caller must hold mu.
func (r *Router[Req, Rsp]) makeRoute(i int, def *Route, s *snapshot[Req, Rsp], drop func(error)) *liveRoute[Req, Rsp] {
	inRoute := func(err error) { drop(routeError(i, def, err)) }
	var problems FieldErrors
	compiled, ok := compileRoute(def, &problems)
	if ok {
		compiled.classes = s.classesOf(def.Classes, &problems)
	}
	for _, err := range problems {
		inRoute(err)
	}
	if !ok {
		return nil
	}
	route := &liveRoute[Req, Rsp]{compiledRoute: compiled, def: *def}
	err := panics.Contain(func() {
		route.split = r.routeSplit(route, s.profile.Policy.labels(), drop)
		inner := layer.Service[Req, Rsp](targets[Req, Rsp]{router: r, split: route.split})
		next := inner
		if r.protocol != nil {
			next = r.stackOf(route, s.budget, inner, inRoute)
		}
		// The user's function may return nil, which means that it adds nothing.
		if r.perRoute != nil {
			route.stack = r.perRoute(*def, next)
		}
		// A route without layers and without backends needs no stack: Call sends its requests to the split.
		if route.stack == nil && (next != inner || route.split != nil) {
			route.stack = next
		}
	})
	if err != nil {
		inRoute(fmt.Errorf("the layers of WithPerRoute: %w", err))
		return nil
	}
	return route
}

// classesOf compiles classes. If they are those of the last route, it returns its classifier, which has
// the same mistakes. Routes that a program makes from common defaults often share their classes.
func (s *snapshot[Req, Rsp]) classesOf(classes []ResponseClass, problems *FieldErrors) classifier {
	if n := len(s.routes); n > 0 && len(classes) > 0 {
		last := s.routes[n-1]
		if len(last.def.Classes) == len(classes) && &last.def.Classes[0] == &classes[0] {
			return last.classes
		}
	}
	return compileClasses(classes, problems)
}

// budgetFor returns p's retry budget, or nil if p contains no valid RetryBudget. If the
// RetryBudget has not changed, it returns the same budget as before. It calls drop for an invalid
// RetryBudget. The caller must hold mu.
func (r *Router[Req, Rsp]) budgetFor(p *Profile, drop func(error)) *layer.Budget {
	b := p.RetryBudget
	if b == nil {
		return nil
	}
	if err := b.Validate(); err != nil {
		drop(&FieldError{"RetryBudget", err})
		return nil
	}
	// An equal RetryBudget keeps its balance.
	if r.budget == nil || r.budgetOf != *b {
		r.budget, r.budgetOf = b.budget(), *b
	}
	return r.budget
}

// routeSet maps the routeKey of each route to all routes with this key.
type routeSet[Req, Rsp any] map[string][]*liveRoute[Req, Rsp]

// routeSetOf returns the given routes by their keys.
func routeSetOf[Req, Rsp any](routes []*liveRoute[Req, Rsp]) routeSet[Req, Rsp] {
	s := make(routeSet[Req, Rsp], len(routes))
	for _, route := range routes {
		s[route.key] = append(s[route.key], route)
	}
	return s
}

// routeKey returns r's key in a [routeSet]: its name, or else its condition as a text. Equal
// routes share a key, and different routes may do so too.
func routeKey(r *Route) string {
	if r.Name != "" {
		return r.Name
	}
	return fmt.Sprint(r.Match)
}

// find returns the route with the given routeKey that is deeply equal to def, or nil.
func (s routeSet[Req, Rsp]) find(key string, def *Route) *liveRoute[Req, Rsp] {
	for _, route := range s[key] {
		if route.isOf(def) {
			return route
		}
	}
	return nil
}

// isOf reports whether l was made from a Route that is deeply equal to def. It passes pointers to
// DeepEqual, which saves the allocation of copies.
func (l *liveRoute[Req, Rsp]) isOf(def *Route) bool {
	// First the Values, so that DeepEqual does not follow pointers in them.
	return equalValues(&l.def, def) && reflect.DeepEqual(&l.def, def)
}

// equalValues reports whether the Values of r and other, and of their backends, are equal. If so,
// reflect.DeepEqual does not follow pointers in them, to memory that may change.
func equalValues(r, other *Route) bool {
	return r.Value == other.Value &&
		slices.EqualFunc(r.Backends, other.Backends, func(a, b Backend) bool { return a.Value == b.Value })
}

// splitOf returns the split of the profile of s. If requests go to its endpoint (see [WithBackends]), that
// contains only the endpoint. Otherwise it contains the valid targets, or without any only the apex: the
// profile's Name, or else the Router's target. It calls drop for each part that it leaves out. The caller
// must hold mu.
func (r *Router[Req, Rsp]) splitOf(s *snapshot[Req, Rsp], drop func(error)) split[Req, Rsp] {
	p := s.profile
	if p.Endpoint != nil && r.backends != nil {
		if err := p.Endpoint.Validate(); err != nil {
			drop(&FieldError{"Endpoint", err})
		}
		// An endpoint replaces all targets.
		if d := p.Dispatch(r.target); d.To == ToEndpoint {
			all := split[Req, Rsp]{apex: d.Authority}
			r.addTarget(&all, &Backend{Target: Target{Authority: d.Authority, Weight: 1}, Endpoint: d.Endpoint, Value: p.Value}, drop)
			return all
		}
	}
	apex, err := p.apex(r.target)
	if err != nil {
		drop(&FieldError{"Name", err})
	}
	if all := r.routesSplit(s); len(all.parts) > 0 {
		all.apex = apex
		return all
	}
	all := split[Req, Rsp]{apex: apex, distribution: p.Distribution}
	for i, t := range p.Targets {
		// A target with the weight 0 gets no requests.
		if t.Weight == 0 {
			continue
		}
		if err := t.Validate(); err != nil {
			drop(&FieldError{item("Targets", i), err})
			continue
		}
		r.addTarget(&all, &Backend{Target: t, Value: p.Value}, drop)
	}
	// Without a valid target, requests go to the apex.
	if len(all.parts) == 0 {
		r.addTarget(&all, &Backend{Target: Target{Authority: apex, Weight: 1}, Value: p.Value}, drop)
	}
	return all
}

// addTarget adds b, which is a target of a profile, to its split s. The caller must hold mu.
func (r *Router[Req, Rsp]) addTarget(s *split[Req, Rsp], b *Backend, drop func(error)) {
	key := b.key()
	s.add(b.Target, r.backend(b, key, drop), key)
}

// service returns an authority's service. At the first call for an authority, it makes the
// service by the function mk of [New]. The caller must hold mu.
func (r *Router[Req, Rsp]) service(authority string) layer.Service[Req, Rsp] {
	svc, ok := r.services[authority]
	if ok {
		return svc
	}
	err := panics.Contain(func() { svc = r.mk(authority) })
	// The authority is not asked for again, so its requests are rejected from now on.
	if svc == nil {
		m := closedTarget[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Endpoint: authority,
			Kind: layer.ErrClosed, Reason: "no service was made", Err: cmp.Or(err, layer.ErrNoRoute),
		}}
		r.config.Log.Warn("target without a service", "target", r.target, "err", m.err)
		svc = m
	}
	r.services[authority] = svc
	return svc
}

// closedTarget is a service that rejects all requests with err. It replaces an authority's
// service if the function mk of [New] returned nil or panicked.
type closedTarget[Req, Rsp any] struct{ err error }

func (m closedTarget[Req, Rsp]) Ready(context.Context) error { return m.err }

func (m closedTarget[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, m.err }

// Describe returns a node without state.
func (m closedTarget[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "missing"} }

// targets is the service below a route's layers. It sends a request to one of the profile's
// targets, or to a backend if the route defines backends.
type targets[Req, Rsp any] struct {
	router *Router[Req, Rsp]
	split  *split[Req, Rsp] // nil means the split of the snapshot in the context
}

func (t targets[Req, Rsp]) Ready(ctx context.Context) error { return t.router.Ready(ctx) }

func (t targets[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if reqctx.Ended(ctx) {
		var zero Rsp
		return zero, t.router.reject(ctx, 0)
	}
	if t.split != nil {
		return t.split.Call(ctx, req)
	}
	// A route's stack passes the snapshot with which the request began, so that it sees one profile only.
	s, ok := ctx.Value(t.router).(*snapshot[Req, Rsp])
	if !ok {
		s = t.router.current.Load()
	}
	return s.split.Call(ctx, req)
}

// Describe returns a node without children. The targets are children of the Router.
func (t targets[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "targets"} }
