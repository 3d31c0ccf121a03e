package outbound

import (
	"context"
	"net/http"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// place is one endpoint that the profile of a target names. Profiles that name
// the same one have the same pointer.
type place struct {
	target   string
	endpoint *profiles.Endpoint
}

func (p place) String() string { return p.target + " at " + p.endpoint.String() }

// forward is where the requests of a target go whose profile says that it is
// served at one place, such as a pod that is asked for by its address: straight
// there.
func (o *outbound) forward(target string) layer.Make[*profiles.Endpoint, *http.Request, *http.Response] {
	return func(e *profiles.Endpoint) httplayer.Service { return o.forwards.Service(place{target, e}) }
}

// forwarded serves a place. There is nothing to balance over, but requests wait
// until it can be reached, as they do for a balancer's endpoints.
func (o *outbound) forwarded(ctx context.Context, p place) httplayer.Service {
	return httplayer.NewStack(layer.For[*http.Response](p.target)).
		Queue(o.QueueCapacity, o.FailFast).
		Service(o.endpoint(ctx, discover.Target{Name: p.target, Endpoint: endpointOf(p.endpoint)}))
}

func endpointOf(e *profiles.Endpoint) resolve.Endpoint {
	id := resolve.ID{
		Addr: e.Addr, ServerName: e.ServerName, Identity: e.Identity, Authority: e.Authority, OpaquePort: e.OpaquePort,
	}
	switch e.Protocol {
	case profiles.H2Protocol:
		id.Protocol = resolve.H2
	case profiles.OpaqueProtocol:
		id.Protocol = resolve.Opaque
	case profiles.UnknownProtocol:
	}
	return resolve.Endpoint{ID: id, Weight: e.Weight, Labels: e.Labels}
}
