package profiles

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// snapshot is a profile made ready for requests. It does not change once it is
// published.
type snapshot[Req, Rsp any] struct {
	profile     *Profile
	routes      []*served[Req, Rsp]
	index       *index
	split       split[Req, Rsp]
	unrouted    layer.Service[Req, Rsp] // of requests without a route; nil: straight to the split
	budget      *layer.Budget           // for retries and hedges; nil: there are none
	provisional bool                    // stands for a profile that is still waited for
	replaced    chan struct{}           // closed when another snapshot is in force
}

// served is a route with what serves it. It is shared by all snapshots that
// have the route.
type served[Req, Rsp any] struct {
	compiledRoute
	key    string                  // the route's identity
	growth int                     // of its regular expressions
	stack  layer.Service[Req, Rsp] // nil: straight to the targets
}

// compile makes p ready. Routes that were in force before are taken over from
// old as they are: their stacks keep their state, and their regular
// expressions need not be compiled again.
func (r *Router[Req, Rsp]) compile(p *Profile, old *snapshot[Req, Rsp]) *snapshot[Req, Rsp] {
	s := &snapshot[Req, Rsp]{profile: p, index: newIndex(), replaced: make(chan struct{})}
	drop := r.amiss.Add
	defer r.amiss.End()
	before := make(map[string]*served[Req, Rsp])
	if r.onProfile != nil {
		if err := panics.Contain(func() { r.onProfile(p) }); err != nil {
			drop(fmt.Errorf("the function of WithOnUpdate: %w", err))
		}
	}
	if r.takesOver(p, old) {
		for _, route := range old.routes {
			before[route.key] = route
		}
	}
	var key []byte
	left := room(maxGrowth)
	for i, def := range p.Routes {
		key = def.appendIdentity(key[:0])
		route := before[string(key)]
		var growth int
		if route != nil {
			growth = route.growth
		} else {
			growth = def.growth()
		}
		if err := left.take(i, def, growth); err != nil {
			drop(err)
			continue
		}
		if route == nil {
			compiled, err := compileRoute(i, def, drop)
			if err != nil {
				drop(err)
				continue
			}
			route = &served[Req, Rsp]{compiledRoute: compiled, key: string(key), growth: growth}
			if r.perRoute != nil {
				if err := panics.Contain(func() { route.stack = r.perRoute(def, below[Req, Rsp]{r}) }); err != nil {
					drop(fmt.Errorf("route %d: the layers of WithPerRoute: %w", i, err))
					continue
				}
			}
			before[route.key] = route
		}
		s.index.add(int32(len(s.routes)), route.match)
		s.routes = append(s.routes, route)
	}
	s.split = r.splitOf(p, drop)
	if r.unrouted != nil {
		if err := panics.Contain(func() { s.unrouted = r.unrouted(drawn[Req, Rsp]{r, &s.split}) }); err != nil {
			drop(fmt.Errorf("the layers of WithDefaultRoute: %w", err))
		}
	}
	return s
}

// takesOver reports whether routes of old that p has, too, stay as they are.
// Whoever is told of profiles has bound names to them.
func (r *Router[Req, Rsp]) takesOver(p *Profile, old *snapshot[Req, Rsp]) bool {
	return old != nil && (r.onProfile == nil || old.profile.Name == p.Name)
}

// splitOf returns the targets of p, or its apex if there are none; or the
// endpoint that all goes to.
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

// service asks mk once for each authority, and remembers the answer for as
// long as the Router lives. Nothing tells a service to go away; a Make that
// starts something would start it anew each time a target comes back. It is
// called by one goroutine at a time.
func (r *Router[Req, Rsp]) service(authority string) layer.Service[Req, Rsp] {
	svc, ok := r.services[authority]
	if ok {
		return svc
	}
	err := panics.Contain(func() { svc = r.mk(authority) })
	if svc == nil {
		none := missing[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Endpoint: authority,
			Kind: layer.ErrClosed, Reason: "no service was made for it", Err: cmp.Or(err, layer.ErrNoRoute),
		}}
		r.log.Warn("a target without a service", "target", r.target, "err", none.err)
		svc = none
	}
	r.services[authority] = svc
	return svc
}

// missing is the service of an authority that nothing was made for.
type missing[Req, Rsp any] struct{ err error }

func (m missing[Req, Rsp]) Ready(context.Context) error { return m.err }

func (m missing[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, m.err }

// Describe says that it is none.
func (m missing[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "missing"} }

// below is what a per-route stack stands on: the targets of the profile that
// the request began with. The stack may be older than that profile, so the
// profile comes with the request.
type below[Req, Rsp any] struct{ router *Router[Req, Rsp] }

// Ready is the Router's.
func (b below[Req, Rsp]) Ready(ctx context.Context) error { return b.router.Ready(ctx) }

// Call draws a target.
func (b below[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if ctx.Err() != nil {
		var none Rsp
		return none, b.router.refuse(ctx, 0)
	}
	s, ok := ctx.Value(b.router).(*snapshot[Req, Rsp])
	if !ok {
		s = b.router.current.Load()
	}
	return s.split.Call(ctx, req)
}

// drawn is what the stack of requests without a route stands on: the targets of
// the profile that it was made for.
type drawn[Req, Rsp any] struct {
	router *Router[Req, Rsp]
	split  *split[Req, Rsp]
}

// Ready is the Router's.
func (d drawn[Req, Rsp]) Ready(ctx context.Context) error { return d.router.Ready(ctx) }

// Call draws a target.
func (d drawn[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if ctx.Err() != nil {
		var none Rsp
		return none, d.router.refuse(ctx, 0)
	}
	return d.split.Call(ctx, req)
}

// Describe is that of below.
func (d drawn[Req, Rsp]) Describe() layer.Node { return below[Req, Rsp]{d.router}.Describe() }

// Describe says where the stack ends; the targets are the Router's children.
func (b below[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "targets"} }
