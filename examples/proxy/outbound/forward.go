package outbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
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

func (p place) discovered() discover.Target {
	return discover.Target{Name: p.target, Endpoint: endpointOf(p.endpoint)}
}

// forward is where the requests of a target go whose profile says that it is
// served at one place, such as a pod that is asked for by its address: straight
// there.
func (o *Outbound) forward(r *router) layer.MakeService[*profiles.Endpoint, *http.Request, *http.Response] {
	to := keep(r, o.forwards)
	return func(e *profiles.Endpoint) httplayer.Service {
		return r.counts.Backend(e.String(), to(place{r.target, e}))
	}
}

// forwarded serves a place. There is nothing to balance over.
func (o *Outbound) forwarded(ctx context.Context, p place) httplayer.Service {
	return httplayer.NewStack(layer.WithTarget[*http.Response](p.target)).
		Queue(o.HTTPQueue.Capacity, o.HTTPQueue.MaxWait()).
		Service(o.alone(ctx, p.discovered()))
}

// opaqueForward is forward for connections.
func (o *Outbound) opaqueForward(target string) layer.MakeService[*profiles.Endpoint, tcplayer.Request, net.Conn] {
	return func(e *profiles.Endpoint) tcplayer.Service { return o.opaqueForwards.Service(place{target, e}) }
}

func (o *Outbound) opaqueForwarded(ctx context.Context, p place) tcplayer.Service {
	return tcplayer.NewStack(layer.WithTarget[net.Conn](p.target)).
		Queue(o.TCPQueue.Capacity, o.TCPQueue.MaxWait()).
		Service(o.opaqueEndpoint(ctx, p.discovered()))
}

// addressed is the endpoint that target is, if it is an address.
func addressed(target string) (discover.Target, bool) {
	addr, err := netip.ParseAddrPort(target)
	return discover.Target{Name: target, Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: addr}}}, err == nil
}

func endpointOf(e *profiles.Endpoint) resolve.Endpoint {
	id := resolve.ID{
		Addr: e.Addr, ServerName: e.ServerName, Identity: e.Identity, Authority: e.Authority, OpaquePort: e.OpaquePort,
		PingInterval: e.PingInterval, PingTimeout: e.PingTimeout,
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
