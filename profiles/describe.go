package profiles

import (
	"context"
	"errors"
	"strings"

	"github.com/gotower/gotower/layer"
)

// Describe shows the profile in force and how the watch fares, with a child
// for each target, and one for each route that has a stack of its own.
func (r *Router[Req, Rsp]) Describe() layer.Node {
	s := r.current.Load()
	n := layer.Node{Name: layerName, State: layer.State{
		{Key: "target", Value: r.target},
		{Key: "source", Value: r.watched.Load().String()},
		{Key: "routes", Value: len(s.routes)},
	}}
	if s.profile.Name != "" {
		n.State = append(n.State, layer.Attr{Key: "name", Value: s.profile.Name})
	}
	if s.budget != nil {
		n.State = append(n.State, layer.Attr{Key: "retry_budget", Value: s.budget.Balance()})
	}
	for _, route := range s.routes {
		if route.stack == nil {
			continue
		}
		child := layer.Node{Name: "route"}
		if route.info != nil && route.info.Name != "" {
			child.State = layer.State{{Key: "name", Value: route.info.Name}}
		}
		child.Next = new(layer.Describe(route.stack))
		n.Children = append(n.Children, child)
	}
	if s.unrouted != nil {
		n.Children = append(n.Children, layer.Node{Name: "unrouted", Next: new(layer.Describe(s.unrouted))})
	}
	for _, part := range s.split.parts {
		child := layer.Node{Name: "target", State: layer.State{{Key: "authority", Value: part.Authority}}}
		if len(s.split.parts) > 1 {
			child.State = append(child.State, layer.Attr{Key: "weight", Value: part.Weight})
		}
		child.Next = new(layer.Describe(part.svc))
		n.Children = append(n.Children, child)
	}
	return n
}

// String says in a few words how the watch fares.
func (w *watched) String() string {
	switch {
	case w.err != nil && w.ended:
		return "ended: " + w.err.Error()
	case w.ended:
		return "ended"
	case w.err != nil:
		return "lost: " + w.err.Error()
	case w.profiles == 0:
		return "waiting"
	}
	return "watching"
}

// report serves the request and tells onResponse how it ended.
func (r *Router[Req, Rsp]) report(ctx context.Context, s *snapshot[Req, Rsp], route *served[Req, Rsp], req Req) (Rsp, error) {
	// The request may be changed by those below, so it is read now.
	grpc := isGRPC(r.access.RequestHeader(req).Get("content-type"))
	var info *layer.Route
	var classes classifier
	if route != nil {
		info, classes = route.info, route.classes
	}
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			r.onResponse(info, layer.Failure, errPanicked)
		}
	}()
	rsp, err := r.serve(ctx, s, route, req)
	returned = true
	switch {
	case err == nil:
		return r.access.Complete(ctx, rsp, &ending[Req, Rsp]{
			router: r, ctx: ctx, rsp: rsp, route: info,
			verdict: classes.head(grpc, r.access.Status(rsp), r.access.ResponseHeader(rsp)),
		}), nil
	case errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrTimeout), cancelled(ctx):
	default:
		r.onResponse(info, layer.Failure, err)
	}
	return rsp, err
}

var errPanicked = errors.New("the service panicked")

// ending waits for the end of one response.
type ending[Req, Rsp any] struct {
	router  *Router[Req, Rsp]
	ctx     context.Context //nolint:containedctx // the request's, asked at its end whether the caller left
	rsp     Rsp
	route   *layer.Route
	verdict verdict
}

// Data has no part in the class.
func (e *ending[Req, Rsp]) Data(int) {}

// End reports the class. Trailers are read only where the response came whole;
// elsewhere whoever receives it may still be writing them.
func (e *ending[Req, Rsp]) End(err error) {
	class := layer.Failure
	switch {
	case err == nil:
		class = e.verdict.end(e.router.access.ResponseTrailer(e.rsp))
	case errors.Is(err, layer.ErrBodyClosedEarly), cancelled(e.ctx):
		class = e.verdict.class
	}
	e.router.onResponse(e.route, class, err)
}

// cancelled reports whether the caller left of its own will; a deadline that
// ran out is somebody's failure, and so is a limit above, which cancels with
// that as its cause.
func cancelled(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// maxExplained bounds how many of the routes before the chosen one are shown.
const maxExplained = 16

// explain says which route was chosen, and of each one before it why it was
// not.
func (r *Router[Req, Rsp]) explain(to *layer.Explanation, s *snapshot[Req, Rsp], chosen *served[Req, Rsp], req Req) {
	q := search[Req, Rsp]{access: r.access, req: req}
	q.facts.method, q.facts.path = r.access.Method(req), r.access.Path(req)
	q.ask(needQuery | needAuthority | needHeader)
	d := layer.Node{Name: layerName, State: layer.State{
		{Key: "target", Value: r.target}, {Key: "route", Value: chosen.label()},
	}}
	passed := 0
	for _, route := range s.routes {
		if route == chosen {
			break
		}
		if passed++; passed <= maxExplained {
			d.Children = append(d.Children, layer.Node{Name: "route", State: layer.State{
				{Key: "route", Value: route.label()}, {Key: "failed", Value: failing(route.match, q.facts)},
			}})
		}
	}
	if passed > maxExplained {
		d.State = append(d.State, layer.Attr{Key: "not_shown", Value: passed - maxExplained})
	}
	to.Add(d)
}

// label is the name of a route, or what it asks for if it has none.
func (s *served[Req, Rsp]) label() string {
	switch {
	case s == nil:
		return "default"
	case s.info != nil && s.info.Name != "":
		return s.info.Name
	}
	return s.match.String()
}

// failing returns the part of a condition because of which it does not hold.
func failing(m matcher, f facts) string {
	switch m := m.(type) {
	case allOf:
		for _, member := range m {
			if !member.holds(f) {
				return failing(member, f)
			}
		}
	case anyOf:
		parts := make([]string, len(m))
		for i, member := range m {
			parts[i] = failing(member, f)
		}
		return "any (" + strings.Join(parts, ", ") + ")"
	}
	return m.String()
}

// explain says which part was drawn for a try, and what there was to draw from.
func (s *split[Req, Rsp]) explain(to *layer.Explanation, drawn int) {
	d := layer.Node{Name: "split", State: layer.State{
		{Key: "target", Value: s.apex}, {Key: "drawn", Value: s.parts[drawn].Authority},
	}}
	for i := range s.parts[:min(len(s.parts), maxExplained)] {
		p := &s.parts[i]
		d.Children = append(d.Children, layer.Node{Name: "target", State: layer.State{
			{Key: "authority", Value: p.Authority}, {Key: "weight", Value: p.Weight}, {Key: "ready", Value: layer.Poll(p.svc) == nil},
		}})
	}
	to.Add(d)
}
