package profiles

import (
	"slices"

	"github.com/gotower/gotower/layer"
)

// mirrorLayers are made once for a route: what they count holds for all places
// where they are put. It is called with the Router's mu held.
func (a *acting[Req, Rsp]) mirrorLayers() []layer.Layer[Req, Rsp] {
	if a.standard.edit == nil {
		return nil
	}
	var layers []layer.Layer[Req, Rsp]
	for _, m := range a.route.Mirrors {
		layers = append(layers, layer.Mirror(a.life, a.service(m.Authority), a.standard.edit, layer.MirrorPolicy[Req]{
			Target: m.Authority, Match: a.original, Fraction: m.Fraction,
			MaxBodyBytes: m.MaxBodyBytes, MaxInFlight: m.MaxInFlight, Rewrite: a.marked,
		}, a.options(a.errs, nil)...))
	}
	return layers
}

// mirrored adds the mirrors to a stack.
func (a *acting[Req, Rsp]) mirrored(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	for _, l := range a.mirrors {
		st = st.With("mirror", l)
	}
	return st
}

// original reports whether a request is not a copy itself.
func (a *acting[Req, Rsp]) original(req Req) bool {
	return a.access.RequestHeader(req).Get(MirrorHeader) == ""
}

// marked is a copy as it is forwarded.
func (a *acting[Req, Rsp]) marked(copied Req) Req {
	copied = a.standard.edit.EditRequest(copied, a.route.RequestHeader)
	return a.standard.edit.EditRequest(copied, layer.HeaderMutation{Set: []layer.HeaderField{{Name: MirrorHeader, Value: a.target}}})
}

// mirrorProblems returns an error for each mirror that is left out.
func mirrorProblems(mirrors []Mirror) []error {
	var problems []error
	for _, m := range mirrors {
		if err := m.Validate(); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// validMirrors are those that are not left out.
func validMirrors(mirrors []Mirror) []Mirror {
	return slices.DeleteFunc(slices.Clone(mirrors), func(m Mirror) bool { return m.Validate() != nil })
}
