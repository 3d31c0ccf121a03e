package profiles

import (
	"cmp"
	"errors"
	"reflect"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Target is one part of a split.
type Target struct {
	// Authority is the service's key: the argument of the function that was passed to [New], and a
	// name in metrics. That function determines its form, such as "web", "web-v2.default:80" or
	// "default/backend/rule/0".
	Authority string

	Weight uint32 // share of the requests; a target with 0 receives none
}

// Validate returns the reason why a Router would leave the target out of a split, or nil if
// the target is valid.
func (t Target) Validate() error {
	if t.Authority == "" {
		return errors.New("no authority")
	}
	return nil
}

// WithForward sends requests to the profile's Endpoint if [Profile.Dispatch] returns
// [ToEndpoint], instead of to its targets. Routes still apply, unlike in linkerd's proxy, because
// linkerd's controller sends no routes together with an endpoint. An invalid endpoint is ignored.
// Without this option a Router ignores all endpoints.
//
// mk makes an endpoint's service. It is called for each endpoint that is not deeply equal to the
// previous one, and must release the services of earlier endpoints.
func WithForward[Req, Rsp any](mk layer.MakeService[*resolve.Endpoint, Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.forward = mk }
}

// endpointService is an endpoint, and the service that WithForward's function made for it. A
// Router keeps them until a profile names another endpoint.
type endpointService[Req, Rsp any] struct {
	endpoint *resolve.Endpoint
	svc      layer.Service[Req, Rsp]
}

// forwardOf returns a split that contains only p's endpoint. It returns false if requests must
// not be forwarded to an endpoint. It calls drop for an invalid endpoint. The caller must hold
// mu.
func (r *Router[Req, Rsp]) forwardOf(p *Profile, drop func(error)) (s split[Req, Rsp], ok bool) {
	if r.forward == nil || p.Endpoint == nil {
		return s, false
	}
	if err := p.Endpoint.Validate(); err != nil {
		drop(&FieldError{"Endpoint", err})
		return s, false
	}
	d := p.Dispatch(r.target)
	// The profile has an endpoint, but requests must not go to it.
	if d.To != ToEndpoint {
		return s, false
	}
	// An equal endpoint keeps its service and connections.
	if r.forwarded.endpoint == nil || !reflect.DeepEqual(r.forwarded.endpoint, d.Endpoint) {
		var svc layer.Service[Req, Rsp]
		err := panics.Contain(func() { svc = r.forward(d.Endpoint) })
		if svc == nil {
			drop(&FieldError{"Endpoint", cmp.Or(err, errors.New("WithForward returned no service"))})
			return s, false
		}
		r.forwarded = endpointService[Req, Rsp]{d.Endpoint, svc}
	}
	s.apex = d.Authority
	s.add(Target{Authority: d.Authority, Weight: 1}, r.forwarded.svc)
	return s, true
}
