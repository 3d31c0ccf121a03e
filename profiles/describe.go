package profiles

import (
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
)

// Describe describes the current profile and its watch's state. Its children are the routes with
// a stack, the default route, and the targets.
func (r *Router[Req, Rsp]) Describe() layer.Node {
	s := r.current.Load()
	n := layer.Node{Name: layerName, State: layer.State{
		{Key: "target", Value: r.target},
		{Key: "source", Value: r.watch.Load().String()},
		{Key: "routes", Value: len(s.routes)},
	}}
	if s.profile.Name != "" {
		n.State = append(n.State, layer.Attr{Key: "name", Value: s.profile.Name})
	}
	if s.profile.Policy != nil {
		n.State = append(n.State, layer.Attr{Key: "policy", Value: s.profile.Policy.Name})
	}
	if s.budget != nil {
		n.State = append(n.State, layer.Attr{Key: "retry_budget", Value: s.budget.Balance()})
	}
	for _, route := range s.routes {
		// Requests of such a route go to the targets, which are shown below.
		if route.stack == nil {
			continue
		}
		child := layer.Node{Name: "route", Next: new(layer.Describe(route.stack))}
		if route.info != nil && route.info.Name != "" {
			child.State = layer.State{{Key: "name", Value: route.info.Name}}
		}
		if route.split != nil {
			child.State = append(child.State, layer.Attr{Key: "targets", Value: route.split.describeTargets()})
		}
		n.Children = append(n.Children, child)
	}
	if s.defaultRoute != nil {
		n.Children = append(n.Children, layer.Node{Name: "default_route", Next: new(layer.Describe(s.defaultRoute))})
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

// maxExplained limits how many routes, and how many targets, an explanation lists.
const maxExplained = 16

// explain adds the route chosen for req to the explanation. chosen is nil for the
// default route. For each condition that was tried before, up to maxExplained, explain adds the
// route and the part of the condition that did not hold.
func (r *Router[Req, Rsp]) explain(explanation *layer.Explanation, s *snapshot[Req, Rsp], chosen *liveRoute[Req, Rsp], req Req) {
	// The search evaluates each condition in the order of precedence, without the index.
	q := search[Req, Rsp]{access: r.access, req: req}
	q.facts.method, q.facts.path = r.access.Method(req), escaped(r.access.Path(req))
	// All values are read, because the text of a condition may show any of them.
	q.read(needQuery | needAuthority | needHeader | needSource)
	d := layer.Node{Name: layerName, State: layer.State{
		{Key: "target", Value: r.target}, {Key: "route", Value: chosen.label()},
	}}
	passed := 0
	for _, c := range s.candidates {
		// The chosen route is the first whose condition holds.
		if c.match.holds(q.facts) {
			break
		}
		if passed++; passed <= maxExplained {
			d.Children = append(d.Children, layer.Node{Name: "route", State: layer.State{
				{Key: "route", Value: c.route.label()}, {Key: "failed", Value: failing(c.match, q.facts)},
			}})
		}
	}
	if passed > maxExplained {
		d.State = append(d.State, layer.Attr{Key: "not_shown", Value: passed - maxExplained})
	}
	explanation.Add(d)
}

// label returns the route name, or else its condition. A nil route is "default".
func (s *liveRoute[Req, Rsp]) label() string {
	switch {
	case s == nil:
		return "default"
	case s.def.Name != "":
		return s.def.Name
	}
	return s.match.String()
}

// failing returns the text of that part of the condition m that does not hold for f. m as a whole
// must not hold for f.
func failing(m matcher, f facts) string {
	// The first member that does not hold is the reason.
	switch m := m.(type) {
	case allOf:
		for _, member := range m {
			if !member.holds(f) {
				return failing(member, f)
			}
		}
	// All members must have failed.
	case anyOf:
		parts := make([]string, len(m))
		for i, member := range m {
			parts[i] = failing(member, f)
		}
		return "any (" + strings.Join(parts, ", ") + ")"
	}
	return m.String()
}

// explain adds the split to the explanation: the target that was drawn for an attempt, and up to
// maxExplained targets with their weights. drawn is the drawn target's index.
func (s *split[Req, Rsp]) explain(explanation *layer.Explanation, drawn int) {
	d := layer.Node{Name: "split", State: layer.State{
		{Key: "target", Value: s.apex}, {Key: "drawn", Value: s.parts[drawn].Authority},
	}}
	// With many targets, the first ones are shown.
	for i := range s.parts[:min(len(s.parts), maxExplained)] {
		p := &s.parts[i]
		d.Children = append(d.Children, layer.Node{Name: "target", State: layer.State{
			{Key: "authority", Value: p.Authority}, {Key: "weight", Value: p.Weight}, {Key: "ready", Value: layer.Poll(p.svc) == nil},
		}})
	}
	explanation.Add(d)
}

// describeTargets returns the targets of the split with their weights as a text, such as
// "web-v1:80 90, web-v2:80 10".
func (s *split[Req, Rsp]) describeTargets() string {
	texts := make([]string, 0, min(len(s.parts), maxExplained))
	for _, p := range s.parts[:min(len(s.parts), maxExplained)] {
		texts = append(texts, p.Authority+" "+strconv.FormatUint(uint64(p.Weight), 10))
	}
	return strings.Join(texts, ", ")
}
