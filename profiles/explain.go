package profiles

import (
	"strings"

	"github.com/gotower/gotower/layer"
)

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
