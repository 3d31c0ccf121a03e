package profiles

import (
	"fmt"

	"github.com/gotower/gotower/layer"
)

// Mirror sends copies of requests to another target and discards the responses. Requests neither wait for
// their copies nor fail with them. [layer.Mirror] documents which requests are copied, and when.
//
// The Route's Rewrite and RequestHeader apply to a copy, and [MirrorHeader] is added. A copy is canceled
// after 10 s. All header fields are copied, credentials included, unless RequestHeader removes them. The
// mirror target should receive no other requests, because copies and other requests share its queue and
// limits. If a Fault answers a request, the request is still copied, unless it has a body that is not
// read.
type Mirror struct {
	Authority    string  // target of the copies; see Target
	Fraction     float64 // share of the requests that are copied, from 0 to 1; 0 means all requests
	MaxBodyBytes int64   // largest body of a copied request; 0 means 64 KiB, -1 means no body
	MaxInFlight  int     // maximum number of concurrent copies; 0 means 100
}

// MirrorHeader is a header field that a Mirror adds to each copy. The field value is the original
// request's target. (Envoy changes the host instead, which may select another virtual host.)
//
// A request with this field is not copied, so that two targets can mirror each other. If a target
// trusts the field, a gateway must remove it from requests of clients.
const MirrorHeader = "Mirrored-From"

// Validate returns the reason why a Router would leave the mirror out of a route, or nil if
// the mirror is valid.
func (m Mirror) Validate() error {
	if err := (Target{Authority: m.Authority}).Validate(); err != nil {
		return err
	}
	switch {
	case !(m.Fraction >= 0 && m.Fraction <= 1):
		return fmt.Errorf("fraction %v is not from 0 to 1", m.Fraction)
	case m.MaxBodyBytes < -1:
		return fmt.Errorf("max body bytes %d is below -1", m.MaxBodyBytes)
	case m.MaxInFlight < 0:
		return fmt.Errorf("max in flight %d is below 0", m.MaxInFlight)
	}
	return nil
}

// mirrorLayers returns a layer for each of the route's mirrors. The caller must use the same
// layers in the stacks for gRPC and for other requests, so that both share the limits.
func (a *routeStack[Req, Rsp]) mirrorLayers() []layer.Layer[Req, Rsp] {
	edit := a.protocol
	layers := make([]layer.Layer[Req, Rsp], 0, len(a.route.Mirrors))
	for i, m := range a.route.Mirrors {
		layers = append(layers, layer.Mirror(a.life, a.copies[i], edit, layer.MirrorPolicy[Req]{
			Target: m.Authority, Fraction: m.Fraction, MaxBodyBytes: m.MaxBodyBytes, MaxInFlight: m.MaxInFlight,
			// A request that is a copy itself is not copied again.
			Match: func(req Req) bool { return a.access.RequestHeader(req).Get(MirrorHeader) == "" },
			// The copy gets the route's changes, as the original does below this layer.
			Rewrite: func(copied Req) Req {
				mark := layer.HeaderMutation{Set: []layer.HeaderField{{Name: MirrorHeader, Value: a.target}}}
				return edit.EditRequest(a.edited(copied), mark)
			},
		}, a.options(a.protocol.Classify)...))
	}
	return layers
}
