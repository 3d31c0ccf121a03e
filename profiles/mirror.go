package profiles

import (
	"fmt"
	"slices"

	"github.com/gotower/gotower/layer"
)

// Mirror sends copies of requests to another target, and drops what that
// answers. The requests themselves never wait for their copies, nor fail with
// them; see [layer.Mirror] for which requests are copied, and when.
//
// A fault does not keep a request from being copied, unless it leaves its body
// unread: the mirror stands in for the targets too.
//
// Copies are forwarded as the requests are, with the Route's RequestHeader, and
// one field beside that, [MirrorHeader]. Each may take 10 s. All header fields
// are in them, those by which users are known, too, unless RequestHeader removes
// them. The target should be one that gets no requests of its own, or the two
// share its queue and its limits.
type Mirror struct {
	Authority    string  // as that of a Target
	Fraction     float64 // of the requests, above 0 to 1; 0 is all of them
	MaxBodyBytes int64   // requests with larger bodies are not copied; 0 is 64 KiB, -1 those without one only
	MaxInFlight  int     // copies at a time, what is beyond is not sent; 0 is 100
}

// MirrorHeader is the header field that tells a copy from a request: its value
// is the target that the request was for. (Envoy changes the host instead, which
// other virtual hosts are then found by.)
//
// A request that has it is not copied, so that two targets that mirror each
// other do not do so without end. Nothing keeps a client from sending it: a
// gateway should take it out of what comes from outside if a target trusts it.
const MirrorHeader = "Mirrored-From"

// Validate says why a Router would leave the mirror out, or returns nil.
func (m Mirror) Validate() error {
	if err := (Target{Authority: m.Authority}).Validate(); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	switch {
	case !(m.Fraction >= 0 && m.Fraction <= 1):
		return fmt.Errorf("mirror %q: share %v is not above 0 to 1, or 0 for all", m.Authority, m.Fraction)
	case m.MaxBodyBytes < -1:
		return fmt.Errorf("mirror %q: body %d is below -1", m.Authority, m.MaxBodyBytes)
	case m.MaxInFlight < 0:
		return fmt.Errorf("mirror %q: in flight %d is below 0", m.Authority, m.MaxInFlight)
	}
	return nil
}

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
