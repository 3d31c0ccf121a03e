// Package inbound is the path of what comes to the application, from the
// connection of a client to the application's port. Read this file from top to
// bottom; each function is the next stretch of the way.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ orig-proto ─▶ client id ─▶ policy ─▶ name ─▶ queue ┐
//	connection ─▶ original ─▶ TLS for ─▶ protocol┤                                                                      ├▶ application
//	              address     our name           └▶ opaque ─▶ policy ──────────────────────────────────────────────────┘
//
// A connection that was made to this proxy itself must come from another proxy
// that proves an identity, and says by a transport header which port it is for.
package inbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// New returns the server of the connections that are made to the application.
// What it keeps up in the background lives as long as ctx.
func New(ctx context.Context, c Config) *Inbound {
	in := newInbound(ctx, c)
	in.Requests = in.requests()
	in.http = &byClient{Server: in.strangers(in.Requests), meshed: in.meshed(in.Requests)}
	in.opaque = in.forward()
	in.Server = tcplayer.Transparent(in.Origin,
		in.application(), // for a port of the application
		in.direct())      // for this proxy
	return in
}

// application serves connections for the application. Those that other proxies
// made by TLS end here; on ports where the server may speak first, nothing is
// looked at.
func (in *Inbound) application() tcplayer.Server {
	looked := in.measured(tcplayer.Detect(tcplayer.Protocols{HTTP1: in.http, HTTP2: in.http, Opaque: in.opaque},
		tcplayer.WithDetectTimeout(in.DetectTimeout), tcplayer.WithSkipDetect(in.isOpaque), in.lookedAt()), false)
	return layer.NewStack[net.Conn, tcplayer.ByteCount]().
		With("failures", tcplayer.OnError(in.countTCP)).
		With("own addresses", layer.Filter[net.Conn, tcplayer.ByteCount](in.isOwn)).
		Service(in.secured(tcplayer.TLSServers{Terminate: looked, Passthrough: in.measured(in.opaque, true), Cleartext: looked}))
}

// direct serves connections from other proxies, for the port that their
// transport header says. Without an identity there is nothing to prove, and all
// are reset.
func (in *Inbound) direct() tcplayer.Server {
	if in.Identity == nil {
		return nil
	}
	meshed := layer.NewStack[net.Conn, tcplayer.ByteCount]().
		With("meshed", layer.Filter[net.Conn, tcplayer.ByteCount](isMeshed)).
		Service(tcplayer.DetectTransport(tcplayer.TransportServers{Header: in.byHeader()},
			tcplayer.WithDetectTimeout(in.DetectTimeout)))
	return layer.NewStack[net.Conn, tcplayer.ByteCount]().
		With("failures", tcplayer.OnError(in.countTCP)).
		Service(tcplayer.DetectTLS(in.Identity.Server(tcplayer.TransportProtocol), tcplayer.MatchServerName(in.ServerName),
			tcplayer.TLSServers{Terminate: meshed}, tcplayer.WithDetectTimeout(in.DetectTimeout)))
}

// forward forwards connections, as bytes, to the port that they were made to.
func (in *Inbound) forward() tcplayer.Server {
	return layer.NewStack[net.Conn, tcplayer.ByteCount]().
		With("policy", layer.Filter[net.Conn, tcplayer.ByteCount](in.admit)).
		Service(tcplayer.Forward(withRoom(in.ports.Router(asked), in.portsBeyond.Router(asked))))
}

// requests is what every request goes through, wherever it is going.
func (in *Inbound) requests() httplayer.Service {
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("explain", tap.Explain[*http.Request, *http.Response](in.Taps)).
		With("errors", in.Meters.HTTPErrors(meters.Inbound)).
		Limit(in.MaxInFlight).
		With("orig-proto", httplayer.DowngradeOrigProto()).
		With("trailers", httplayer.StripHeader("l5d-orig-proto")).
		With("client-id", httplayer.ClientID(clientID)).
		With("policy", layer.Filter[*http.Request, *http.Response](in.authorize)).
		Service(withRoom(in.logicals.Router(in.logicalOf),
			withRoom(in.nameless.Router(namelessOf), in.uncounted.Router(namelessOf))))
}

// logical counts and shows the requests of one client to one name, by the
// routes of that name's profile. The profile changes nothing of their way: it
// was the client's proxy that retried, and split.
func (in *Inbound) logical(ctx context.Context, l logical) httplayer.Service {
	svc := httplayer.NewStack().
		With("route metrics", in.Meters.InboundRoute(ctx, string(in.DefaultPolicy), l.dst)).
		With("metrics", in.Meters.Endpoint(ctx, meters.Inbound, in.labels(l))).
		With("tap", tap.Layer(in.Taps, httplayer.Accessor{}, in.shown(l)...)).
		Service(in.sent(l.dst))
	if l.name == "" {
		return svc
	}
	return profiles.New(ctx, l.name, in.profiles, httplayer.Accessor{},
		func(string) httplayer.Service { return svc },
		in.counted(ctx, l.name),
		profiles.WithInitialWait[*http.Request, *http.Response](in.Control.ProfileInitial),
		profiles.WithLogger[*http.Request, *http.Response](in.Log))
}

// sent sends requests to one port of the application.
func (in *Inbound) sent(dst netip.AddrPort) httplayer.Service {
	return withRoom(in.endpoints.Service(dst), in.endpointsBeyond.Service(dst))
}

// endpoint is what one port is sent requests by.
func (in *Inbound) endpoint(ctx context.Context, dst netip.AddrPort) httplayer.Service {
	return in.queued(ctx, dst, in.dialCounted(ctx, dst))
}

// queued has requests wait for one port of the application. If nobody listens
// there, they are told at once.
func (in *Inbound) queued(ctx context.Context, dst netip.AddrPort, by settings.Dial) httplayer.Service {
	opts := append(in.Connect.Requests(by, in.Pool), httplayer.KeepVersion())
	return httplayer.NewStack(layer.WithTarget[*http.Response](dst.String())).
		Queue(in.HTTPQueue.Capacity, in.HTTPQueue.MaxWait()).
		Service(httplayer.SingleEndpoint(httplayer.NewEndpoint(ctx, dst.String(), opts...)))
}

// port connects to one port of the application.
func (in *Inbound) port(ctx context.Context, dst netip.AddrPort) tcplayer.Service {
	return in.connected(ctx, dst, in.dialCounted(ctx, dst))
}

func (in *Inbound) connected(ctx context.Context, dst netip.AddrPort, by settings.Dial) tcplayer.Service {
	return tcplayer.NewStack(layer.WithTarget[net.Conn](dst.String())).
		With("tap", tap.Connections(in.Taps, tap.Inbound, application(dst))).
		Service(tcplayer.NewEndpoint(ctx, dst.String(), in.Connect.Bytes(by)...))
}

// secured ends TLS that asks for the name of this pod's proxy.
func (in *Inbound) secured(to tcplayer.TLSServers) tcplayer.Server {
	if in.Identity == nil {
		return to.Cleartext
	}
	return tcplayer.DetectTLS(in.Identity.Server(), tcplayer.MatchServerName(in.ServerName), to,
		tcplayer.WithDetectTimeout(in.DetectTimeout), tcplayer.WithSkipDetect(in.isOpaque))
}
