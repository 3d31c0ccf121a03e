// Package outbound is the path of what the application sends, from the
// connection that it made to the endpoint that serves it. Read this file from
// top to bottom; each function is the next stretch of the way.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ route ─▶ split ┐
//	connection ─▶ original ─▶ profile ─▶ protocol┤                                  ├▶ queue ─▶ balancer ─▶ endpoint
//	              address                        └▶ opaque ───────────────▶ split ──┘
//
// A connection that nobody redirected was made to this proxy itself. Its
// requests go where they say: by l5d-dst-override, authority or Host.
package outbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// New returns the server of the connections that the application makes. What it
// keeps up in the background (watches of the controller, connections) lives as
// long as ctx.
func New(ctx context.Context, c Config) *Outbound {
	o := newOutbound(ctx, c)
	o.Requests = o.requests()
	o.http = o.server(o.Requests)
	counted := tcplayer.OnError(o.countTCP)
	o.Server = tcplayer.Transparent(o.Origin,
		counted(o.destinations.Router(originalDst)),                                             // redirected
		o.clients(ctx, netip.AddrPort{}).WrapServer(counted(o.detect(o.http, nil, o.detected)))) // not redirected: requests by name
	return o
}

// destination serves the connections to one address that the application asked
// for: as the profile of that address says, and as the client speaks.
func (o *Outbound) destination(ctx context.Context, dst netip.AddrPort) tcplayer.Server {
	profile := tell(o.profiles) // both ask for it
	requests := o.router(ctx, dst.String(), profile)
	opaque := requests.counts.Forwarded(tcplayer.Forward(layer.Lazy(func() (tcplayer.Service, error) {
		return o.opaque(ctx, dst.String(), again{profile}), nil
	})))
	return o.clients(ctx, dst).WrapServer(o.byProfile(dst, requests, opaque, o.detect(o.http, opaque, requests.counts.Detect())))
}

// requests is what every request goes through, wherever it is going.
func (o *Outbound) requests() httplayer.Service {
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("explain", tap.Explain[*http.Request, *http.Response](o.Taps)).
		With("errors", o.Meters.HTTPErrors(meters.Outbound)).
		Limit(o.MaxInFlight).
		Service(o.byConnection(o.logicals.Router(Target)))
}

// router sends the requests of a target by its profile, which says the route,
// how long a request may take, whether one that failed is sent again, and how
// the traffic is split.
func (o *Outbound) router(ctx context.Context, target string, source profiles.Source) *router {
	r := &router{life: ctx, target: target, counts: o.Meters.Routes(ctx, meters.Outbound, target)}
	r.Router = profiles.New(ctx, target, source, httplayer.Accessor{}, r.backends(keep(r, o.concretes)),
		profiles.WithForward(o.forward(r)),
		profiles.WithRouteLayers(httplayer.Replayer{}, httplayer.Editor{}, httplayer.Classify),
		r.counted(),
		profiles.WithInitialWait[*http.Request, *http.Response](o.Control.ProfileInitial),
		profiles.WithLogger[*http.Request, *http.Response](o.Log))
	return r
}

// concrete serves a target by its endpoints: those that its name resolves to,
// or itself if it is an address. Here, and only here, requests wait.
func (o *Outbound) concrete(ctx context.Context, target string) httplayer.Service {
	balancer, queue := o.Meters.Balancer(ctx, "http", target)
	stack := httplayer.NewStack(layer.WithTarget[*http.Response](target), layer.WithMetrics[*http.Response](queue)).
		Queue(o.HTTPQueue.Capacity, o.HTTPQueue.MaxWait())
	if t, ok := addressed(target); ok {
		return stack.Service(o.alone(ctx, t))
	}
	return stack.Service(balance.Resolve(ctx, o.resolver, target, o.endpoint,
		balance.WithMetrics[*http.Response](balancer)))
}

// endpoint sends requests to one of a target's addresses.
func (o *Outbound) endpoint(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	return o.through(ctx, p).Service(o.client(ctx, p, balanced))
}

// alone sends requests to the only address that a target has. The client asked for
// that address, and knows which version is spoken there.
func (o *Outbound) alone(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	p.h2 = true
	return o.through(ctx, p, p.errors()...).Service(o.client(ctx, p, httplayer.SingleEndpoint))
}

// through is what is done to requests on their way to one address.
func (o *Outbound) through(ctx context.Context, p peer, said ...httplayer.ProxyErrorsOption) layer.Stack[*http.Request, *http.Response] {
	s := httplayer.NewStack()
	if p.authority != "" {
		s = s.With("authority", httplayer.OverrideAuthority(p.authority))
	}
	return s.With("require-id", httplayer.RequireID(p.identity)).
		With("metrics", o.Meters.Endpoint(ctx, meters.Outbound, p.labels)).
		With("tap", tap.Layer(o.Taps, httplayer.Accessor{}, p.shown...)).
		With("override", httplayer.StripHeader(overrideHeader, origProtoHeader)).
		With("proxy-errors", httplayer.ProxyErrors(append(said, httplayer.WithProxyErrorLogger(o.Log))...))
}

// opaque connects to a target as its profile says, over bytes that nobody looks
// into: a split is drawn, and an endpoint chosen, once for a connection.
func (o *Outbound) opaque(ctx context.Context, target string, source profiles.Source) tcplayer.Service {
	return profiles.New(ctx, target, source, tcplayer.Accessor{}, o.opaqueConcretes.Service,
		profiles.WithForward(o.opaqueForward(target)),
		profiles.WithInitialWait[tcplayer.Request, net.Conn](o.Control.ProfileInitial),
		profiles.WithLogger[tcplayer.Request, net.Conn](o.Log))
}

// opaqueConcrete connects to one of a target's endpoints. A connection counts
// for the balancer while it is being made.
func (o *Outbound) opaqueConcrete(ctx context.Context, target string) tcplayer.Service {
	balancer, queue := o.Meters.Balancer(ctx, "tcp", target)
	stack := tcplayer.NewStack(layer.WithTarget[net.Conn](target), layer.WithMetrics[net.Conn](queue)).
		Queue(o.TCPQueue.Capacity, o.TCPQueue.MaxWait())
	if t, ok := addressed(target); ok {
		return stack.Service(o.opaqueEndpoint(ctx, t))
	}
	return stack.Service(balance.Resolve(ctx, o.resolver, target, o.opaqueEndpoint,
		balance.WithCompletion(layer.AtReturn[net.Conn]), balance.WithMetrics[net.Conn](balancer)))
}

// opaqueEndpoint connects to one address.
func (o *Outbound) opaqueEndpoint(ctx context.Context, t discover.Target) tcplayer.Service {
	p := o.peer(t)
	return tcplayer.NewStack().
		With("tap", tap.Connections(o.Taps, p.shown...)).
		Service(tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String(), o.Connect.Bytes(o.dial(ctx, p))...))
}
