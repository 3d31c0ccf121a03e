// Package outbound is the path of the application's requests, from the
// connection that the application made to the endpoint that serves it. Read this
// file from top to bottom: each function is the next part of the path.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ route ─▶ split ┐
//	connection ─▶ original ─▶ profile ─▶ protocol┤                                  ├▶ queue ─▶ balancer ─▶ endpoint
//	              address                        └▶ opaque ───────────────▶ split ──┘
//
// A connection that was not redirected was made to this proxy itself. Its
// requests name their target by l5d-dst-override, authority or Host.
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

// New returns the server of the connections that the application makes. Its
// background work (watches of the controller, connections) ends with ctx.
func New(ctx context.Context, c Config) *Outbound {
	o := newOutbound(c)
	idle := layer.CachePolicy{IdleTimeout: max(c.DiscoveryIdle, 1)}
	untilClosed := layer.WithCompletion(tcplayer.UntilClosed)
	o.destinations = layer.NewCache(ctx, o.destination, idle)
	o.logicals = layer.NewCache(ctx, o.logical, idle)
	o.concretes = layer.NewCache(ctx, o.concrete, idle)
	o.forwards = layer.NewCache(ctx, o.forwarded, idle)
	o.opaqueConcretes = layer.NewCache(ctx, o.opaqueConcrete, idle, untilClosed)
	o.opaqueForwards = layer.NewCache(ctx, o.opaqueForwarded, idle, untilClosed)

	o.Requests = o.requests()
	o.http = o.server(o.Requests)
	o.Server = tcplayer.Transparent(o.Origin, o.redirected(), o.direct())
	return o
}

// redirected serves connections by their original destination.
func (o *Outbound) redirected() tcplayer.Server {
	return connections().
		With("errors", tcplayer.OnError(o.countTCP)).
		Service(o.destinations.Router(originalDst))
}

// direct serves connections that were made to this proxy. They must be HTTP,
// because only requests name a target.
func (o *Outbound) direct() tcplayer.Server {
	return connections().
		With("metrics", o.clients(netip.AddrPort{}).WrapServer).
		With("errors", tcplayer.OnError(o.countTCP)).
		Service(o.detect(o.http, nil, o.Meters.Detect(meters.Outbound, nil)))
}

// destination serves the connections to one address: by the profile of that
// address, and by the protocol of the client.
func (o *Outbound) destination(ctx context.Context, dst netip.AddrPort) tcplayer.Server {
	profile := share(o.profiles)
	requests := o.router(ctx, dst.String(), profile)
	opaque := connections().
		With("metrics", requests.counts.Forwarded).
		Service(tcplayer.Forward(layer.Lazy(func() tcplayer.Service {
			return o.opaque(ctx, dst.String(), replay{profile})
		})))
	return connections().
		With("metrics", o.clients(dst).WrapServer).
		Service(o.byProfile(dst, requests, opaque, o.detect(o.http, opaque, requests.counts.Detect())))
}

// server serves the connections that speak HTTP. The application's uploads may
// pause without limit, because the application is trusted.
func (o *Outbound) server(requests httplayer.Service) tcplayer.Server {
	return httplayer.NewServer(
		httplayer.Handler(requests, httplayer.WithConnect(), httplayer.WithErrorHandler(nil),
			httplayer.WithErrorHeaders(!o.Quiet), httplayer.WithLogger(o.Log)),
		append(o.Config.Server.Options(),
			httplayer.WithMinBodyRate(0, 0), httplayer.WithDrainOnDone(o.Ending), httplayer.WithServerLogger(o.Log))...)
}

// requests has the layers of all requests.
func (o *Outbound) requests() httplayer.Service {
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("explain", tap.Explain[*http.Request, *http.Response](o.Taps)).
		With("errors", o.Meters.HTTPErrors(meters.Outbound)).
		Limit(o.MaxInFlight).
		Service(o.byConnection(o.logicals.Router(Target)))
}

// logical is the router of a target that a request named.
func (o *Outbound) logical(ctx context.Context, target Authority) httplayer.Service {
	return o.router(ctx, target.String(), o.profiles)
}

// router sends the requests of a target by its profile: l5d-dst-canonical, then
// the layers of the route, then a split over targets or one forward. The layers of
// a route are metrics, timeout, retry and header changes, see
// [profiles.WithRouteLayers].
func (o *Outbound) router(ctx context.Context, target string, source profiles.Source) *router {
	r := &router{ctx: ctx, target: target, counts: o.Meters.Routes(meters.Outbound, target)}
	r.Router = profiles.New(ctx, target, source, httplayer.Accessor{}, r.backends(pin(r, o.concretes)),
		profiles.WithForward(r.forwards(pin(r, o.forwards))),
		profiles.WithRouteLayers(httplayer.Replayer{}, httplayer.Editor{}, httplayer.Classify),
		r.metrics(),
		profiles.WithInitialWait[*http.Request, *http.Response](o.Control.ProfileInitial),
		profiles.WithLogger[*http.Request, *http.Response](o.Log))
	return r
}

// concrete balances the requests of a target over the endpoints of its name. An
// address is its own endpoint. This is the only place where requests wait.
func (o *Outbound) concrete(ctx context.Context, target string) httplayer.Service {
	balancer, queue := o.Meters.Balancer(ctx, "http", target)
	stack := httplayer.NewStack(layer.WithTarget[*http.Response](target), layer.WithMetrics[*http.Response](queue)).
		Queue(o.HTTPQueue.Capacity, o.HTTPQueue.MaxWait())
	if t, ok := literalTarget(target); ok {
		return stack.Service(o.single(ctx, t))
	}
	return stack.Service(balance.Resolve(ctx, o.resolver, target, atFirstCall(o.endpoint),
		balance.WithClassifier(httplayer.Classify), balance.WithMetrics[*http.Response](balancer)))
}

// forwarded sends requests to the endpoint that a profile names.
func (o *Outbound) forwarded(ctx context.Context, f forwardTarget) httplayer.Service {
	return httplayer.NewStack(layer.WithTarget[*http.Response](f.target)).
		Queue(o.HTTPQueue.Capacity, o.HTTPQueue.MaxWait()).
		Service(o.single(ctx, f.discovered()))
}

// endpoint sends requests to one of the endpoints of a balancer.
func (o *Outbound) endpoint(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	return o.endpointStack(ctx, p).Service(o.client(ctx, p, balanced))
}

// single sends requests to the only endpoint of a target. The client chose the
// address, so the endpoint is assumed to accept the client's HTTP version.
func (o *Outbound) single(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	p.h2 = true
	return o.endpointStack(ctx, p, p.proxyErrors()...).Service(o.client(ctx, p, httplayer.SingleEndpoint))
}

// endpointStack has the layers of the requests to one endpoint.
func (o *Outbound) endpointStack(
	ctx context.Context, p peer, opts ...httplayer.ProxyErrorsOption,
) layer.Stack[*http.Request, *http.Response] {
	s := httplayer.NewStack()
	if p.authority != "" {
		s = s.With("authority", httplayer.OverrideAuthority(p.authority))
	}
	return s.With("require-id", httplayer.RequireID(p.identity)).
		With("metrics", o.Meters.Endpoint(ctx, meters.Outbound, p.labels)).
		With("tap", tap.Layer(o.Taps, httplayer.Accessor{}, p.tapOptions...)).
		With("override", httplayer.StripHeader(overrideHeader, origProtoHeader)).
		With("proxy-errors", httplayer.ProxyErrors(append(opts, httplayer.WithProxyErrorLogger(o.Log))...))
}

// client is the HTTP client of one endpoint, wrapped by as. A proxy and an endpoint
// that is known to accept HTTP/2 receive each request by its own version. If the
// transport header announces the protocol, each version has its own client.
func (o *Outbound) client(ctx context.Context, p peer, as func(*httplayer.Endpoint) httplayer.Service) httplayer.Service {
	newClient := func(p peer, version ...httplayer.EndpointOption) httplayer.Service {
		opts := append(o.Connect.Requests(o.dial(p), o.Pool), version...)
		opts = append(opts, httplayer.WithPing(p.Endpoint.PingInterval, p.Endpoint.PingTimeout))
		return as(httplayer.NewEndpoint(ctx, p.Endpoint.Addr.String(), opts...))
	}
	switch {
	case p.announcesProtocol():
		return &byVersion{
			h1: version{svc: newClient(p.withProtocol(tcplayer.HTTP1), httplayer.WithHTTP1())},
			h2: version{svc: newClient(p.withProtocol(tcplayer.HTTP2), httplayer.WithHTTP2())},
		}
	case p.tls != nil || p.h2:
		return newClient(p, httplayer.KeepVersion())
	}
	return newClient(p)
}

// opaque connects to a target by its profile. The split is drawn, and the endpoint
// picked, once per connection.
func (o *Outbound) opaque(ctx context.Context, target string, source profiles.Source) tcplayer.Service {
	return profiles.New(ctx, target, source, tcplayer.Accessor{}, o.opaqueConcretes.Service,
		profiles.WithForward(func(e *profiles.Endpoint) tcplayer.Service {
			return o.opaqueForwards.Service(forwardTarget{target, e})
		}),
		profiles.WithInitialWait[tcplayer.Request, net.Conn](o.Control.ProfileInitial),
		profiles.WithLogger[tcplayer.Request, net.Conn](o.Log))
}

// opaqueConcrete balances the connections of a target. A connection counts as
// pending for the balancer until it is established.
func (o *Outbound) opaqueConcrete(ctx context.Context, target string) tcplayer.Service {
	balancer, queue := o.Meters.Balancer(ctx, "tcp", target)
	stack := tcplayer.NewStack(layer.WithTarget[net.Conn](target), layer.WithMetrics[net.Conn](queue)).
		Queue(o.TCPQueue.Capacity, o.TCPQueue.MaxWait())
	if t, ok := literalTarget(target); ok {
		return stack.Service(o.opaqueEndpoint(ctx, t))
	}
	return stack.Service(balance.Resolve(ctx, o.resolver, target, atFirstCall(o.opaqueEndpoint),
		balance.WithCompletion(layer.AtReturn[net.Conn]), balance.WithMetrics[net.Conn](balancer)))
}

// opaqueForwarded connects to the endpoint that a profile names.
func (o *Outbound) opaqueForwarded(ctx context.Context, f forwardTarget) tcplayer.Service {
	return tcplayer.NewStack(layer.WithTarget[net.Conn](f.target)).
		Queue(o.TCPQueue.Capacity, o.TCPQueue.MaxWait()).
		Service(o.opaqueEndpoint(ctx, f.discovered()))
}

// opaqueEndpoint connects to one endpoint.
func (o *Outbound) opaqueEndpoint(ctx context.Context, t discover.Target) tcplayer.Service {
	p := o.peer(t)
	return tcplayer.NewStack().
		With("tap", tap.Connections(o.Taps, p.tapOptions...)).
		Service(tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String(), o.Connect.Bytes(o.dial(p))...))
}
