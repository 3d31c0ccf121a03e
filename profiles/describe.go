package profiles

import "github.com/gotower/gotower/layer"

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
