package profiles

import (
	"cmp"
	"context"
	"fmt"
	"reflect"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// snapshot is a compiled profile. It is immutable once it is current.
type snapshot[Req, Rsp any] struct {
	profile      *Profile
	routes       []*liveRoute[Req, Rsp]
	index        index
	split        split[Req, Rsp]
	defaultRoute layer.Service[Req, Rsp] // nil means split
	budget       *layer.Budget           // nil: no retries and hedges
	provisional  bool                    // in place of a first profile that has not arrived
	replaced     chan struct{}           // closed when another snapshot is current
}

// liveRoute is a route and its stack. All snapshots with an equal route share it.
type liveRoute[Req, Rsp any] struct {
	compiledRoute
	def   Route
	key   string                  // routeKey of def
	stack layer.Service[Req, Rsp] // nil means split
}

// compile compiles p. Routes of old that are equal in p are used again, with the state
// of their stacks. The caller holds mu.
func (r *Router[Req, Rsp]) compile(p *Profile, old *snapshot[Req, Rsp]) *snapshot[Req, Rsp] {
	drop := r.invalid.Add
	defer r.invalid.End()
	s := &snapshot[Req, Rsp]{profile: p, budget: r.budgetFor(p, drop), replaced: make(chan struct{})}
	if r.onUpdate != nil {
		if err := panics.Contain(func() { r.onUpdate(p) }); err != nil {
			drop(fmt.Errorf("the function of WithOnUpdate: %w", err))
		}
	}
	known := make(routeSet[Req, Rsp])
	var same []*liveRoute[Req, Rsp] // routes that may be equal at the same position
	if old != nil && old.budget == s.budget && (r.onUpdate == nil || old.profile.Name == p.Name) {
		same = old.routes
		for _, route := range old.routes {
			known[route.key] = append(known[route.key], route)
		}
	}
	c := &compiler{drop: drop}
	for i, def := range p.Routes {
		var key string
		var route *liveRoute[Req, Rsp]
		if i < len(same) && same[i].isOf(&p.Routes[i]) {
			route = same[i]
		} else {
			key = routeKey(def)
			route = known.find(key, &p.Routes[i])
		}
		if route != nil {
			if err := c.add(route.repeats); err != nil {
				drop(routeError(i, def, err))
				continue
			}
		} else {
			var err error
			if route, err = r.makeRoute(c, i, def, s.budget); err != nil {
				drop(err)
				continue
			}
			route.key = key
			known[key] = append(known[key], route)
		}
		s.index.add(int32(len(s.routes)), route.match)
		s.routes = append(s.routes, route)
	}
	s.split = r.splitOf(p, drop)
	if r.defaultRoute != nil {
		if err := panics.Contain(func() { s.defaultRoute = r.defaultRoute(targets[Req, Rsp]{r, &s.split}) }); err != nil {
			drop(fmt.Errorf("the layers of WithDefaultRoute: %w", err))
		}
	}
	return s
}

// makeRoute compiles the route at position i and builds its stack.
func (r *Router[Req, Rsp]) makeRoute(c *compiler, i int, def Route, budget *layer.Budget) (*liveRoute[Req, Rsp], error) {
	compiled, err := c.route(i, def)
	if err != nil {
		return nil, err
	}
	route := &liveRoute[Req, Rsp]{compiledRoute: compiled, def: def}
	err = panics.Contain(func() {
		below := layer.Service[Req, Rsp](targets[Req, Rsp]{router: r})
		next := below
		if r.layers != nil {
			next = r.stackOf(def, budget, below)
		}
		if r.perRoute != nil {
			route.stack = r.perRoute(def, next)
		} else if next != below {
			route.stack = next
		}
	})
	if err != nil {
		return nil, fmt.Errorf("route %d: the layers of WithPerRoute: %w", i, err)
	}
	return route, nil
}

// budgetFor returns the budget of p. It is the previous one if the values are equal,
// and nil if p has no valid RetryBudget.
func (r *Router[Req, Rsp]) budgetFor(p *Profile, drop func(error)) *layer.Budget {
	b := p.RetryBudget
	if b == nil {
		return nil
	}
	if err := b.Validate(); err != nil {
		drop(err)
		return nil
	}
	if r.budget == nil || r.budgetOf != *b {
		r.budget, r.budgetOf = b.budget(), *b
	}
	return r.budget
}

// routeSet maps each routeKey to its routes.
type routeSet[Req, Rsp any] map[string][]*liveRoute[Req, Rsp]

// routeKey returns a text that is the same for equal routes.
func routeKey(r Route) string {
	if r.Name != "" {
		return r.Name
	}
	return fmt.Sprint(r.Match)
}

// find returns the route that is deeply equal to def, or nil.
func (s routeSet[Req, Rsp]) find(key string, def *Route) *liveRoute[Req, Rsp] {
	for _, route := range s[key] {
		if route.isOf(def) {
			return route
		}
	}
	return nil
}

// isOf reports whether the definition of l is deeply equal to def. It compares pointers to
// the routes, because DeepEqual would copy the routes.
func (l *liveRoute[Req, Rsp]) isOf(def *Route) bool { return reflect.DeepEqual(&l.def, def) }

// splitOf returns a split with the endpoint of p if requests go there. Otherwise the
// split has the valid targets of p, or the apex without valid targets.
func (r *Router[Req, Rsp]) splitOf(p *Profile, drop func(error)) split[Req, Rsp] {
	if s, ok := r.forwardOf(p, drop); ok {
		return s
	}
	apex, err := p.apex(r.target)
	if err != nil {
		drop(err)
	}
	s := split[Req, Rsp]{apex: apex}
	for _, t := range p.Targets {
		if t.Weight == 0 {
			continue
		}
		if err := t.Validate(); err != nil {
			drop(err)
			continue
		}
		s.add(t, r.service(t.Authority))
	}
	if len(s.parts) == 0 {
		s.add(Target{Authority: apex, Weight: 1}, r.service(apex))
	}
	return s
}

// service returns the service of an authority. It calls mk the first time. The caller holds mu.
func (r *Router[Req, Rsp]) service(authority string) layer.Service[Req, Rsp] {
	svc, ok := r.services[authority]
	if ok {
		return svc
	}
	err := panics.Contain(func() { svc = r.mk(authority) })
	if svc == nil {
		m := closedTarget[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Endpoint: authority,
			Kind: layer.ErrClosed, Reason: "no service was made", Err: cmp.Or(err, layer.ErrNoRoute),
		}}
		r.log.Warn("target without a service", "target", r.target, "err", m.err)
		svc = m
	}
	r.services[authority] = svc
	return svc
}

// closedTarget is the service of an authority for which mk returned nil.
type closedTarget[Req, Rsp any] struct{ err error }

func (m closedTarget[Req, Rsp]) Ready(context.Context) error { return m.err }

func (m closedTarget[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, m.err }

func (m closedTarget[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "missing"} }

// targets is the service at the bottom of the stack of each route. It sends a request to a
// backend of the split.
type targets[Req, Rsp any] struct {
	router *Router[Req, Rsp]
	split  *split[Req, Rsp] // nil means the split of the snapshot in the context
}

func (t targets[Req, Rsp]) Ready(ctx context.Context) error { return t.router.Ready(ctx) }

func (t targets[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if ctx.Err() != nil {
		var zero Rsp
		return zero, t.router.reject(ctx, 0)
	}
	if t.split != nil {
		return t.split.Call(ctx, req)
	}
	s, ok := ctx.Value(t.router).(*snapshot[Req, Rsp])
	if !ok {
		s = t.router.current.Load()
	}
	return s.split.Call(ctx, req)
}

// Describe returns a node without children. The targets are children of the Router.
func (t targets[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "targets"} }
