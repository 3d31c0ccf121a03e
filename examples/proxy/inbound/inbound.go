// Package inbound is the path of requests to the application, from the connection
// of a client to the application's port. Read this file from top to bottom: each
// function is the next part of the path.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ orig-proto ─▶ client id ─▶ policy ─▶ name ─▶ queue ┐
//	connection ─▶ original ─▶ TLS for ─▶ protocol┤                                                                      ├▶ application
//	              address     our name           └▶ opaque ─▶ policy ──────────────────────────────────────────────────┘
//
// A connection that was made to this proxy itself must come from another proxy
// with an identity. Its transport header names the port of the application.
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

// New returns the server of the connections that are made to the application. Its
// background work ends with ctx.
func New(ctx context.Context, c Config) *Inbound {
	in := newInbound(c)
	idle := max(c.DiscoveryIdle, 1)
	in.logicals = newCache(ctx, in.logical, idle)
	in.endpoints = newCache(ctx, in.endpoint, idle)
	in.ports = newCache(ctx, in.port, idle, layer.WithCompletion(tcplayer.UntilClosed))

	in.Requests = in.requests()
	in.http = &byClient{Server: in.unmeshedServer(in.Requests), meshed: in.meshedServer(in.Requests)}
	in.opaque = in.forward()
	in.Server = tcplayer.Transparent(in.Origin, in.redirected(), in.direct())
	return in
}

// redirected serves connections by their original destination. TLS of other proxies
// ends here. On ports where the server may speak first, neither TLS nor the protocol
// is detected.
func (in *Inbound) redirected() tcplayer.Server {
	detected := connections().
		With("metrics", in.clientMetrics(false)).
		Service(tcplayer.Detect(tcplayer.Protocols{HTTP1: in.http, HTTP2: in.http, Opaque: in.opaque},
			tcplayer.WithDetectTimeout(in.DetectTimeout), tcplayer.WithSkipDetect(in.isOpaque), in.detectMetrics()))
	passthrough := connections().
		With("metrics", in.clientMetrics(true)).
		Service(in.opaque)
	return connections().
		With("errors", tcplayer.OnError(in.countTCP)).
		With("own addresses", layer.Filter[net.Conn, tcplayer.ByteCount](in.isOwn)).
		Service(in.terminate(tcplayer.TLSServers{Terminate: detected, Passthrough: passthrough, Cleartext: detected}))
}

// terminate terminates TLS for the server name of this proxy.
func (in *Inbound) terminate(to tcplayer.TLSServers) tcplayer.Server {
	if in.Identity == nil {
		return to.Cleartext
	}
	return tcplayer.DetectTLS(in.Identity.Server(), tcplayer.MatchServerName(in.ServerName), to,
		tcplayer.WithDetectTimeout(in.DetectTimeout), tcplayer.WithSkipDetect(in.isOpaque))
}

// direct serves connections that other proxies made to this proxy, for the port in
// their transport header. Without an identity all are reset.
func (in *Inbound) direct() tcplayer.Server {
	if in.Identity == nil {
		return nil
	}
	meshed := connections().
		With("meshed", layer.Filter[net.Conn, tcplayer.ByteCount](isMeshed)).
		Service(tcplayer.DetectTransport(tcplayer.TransportServers{Header: in.byHeader()},
			tcplayer.WithDetectTimeout(in.DetectTimeout)))
	return connections().
		With("errors", tcplayer.OnError(in.countTCP)).
		Service(tcplayer.DetectTLS(in.Identity.Server(tcplayer.TransportProtocol), tcplayer.MatchServerName(in.ServerName),
			tcplayer.TLSServers{Terminate: meshed}, tcplayer.WithDetectTimeout(in.DetectTimeout)))
}

// forward forwards connections as bytes to their original port.
func (in *Inbound) forward() tcplayer.Server {
	return connections().
		With("policy", layer.Filter[net.Conn, tcplayer.ByteCount](in.admit)).
		Service(tcplayer.Forward(in.ports.Router(serverPort)))
}

// port connects to one port of the application.
func (in *Inbound) port(ctx context.Context, dst netip.AddrPort) tcplayer.Service {
	return tcplayer.NewStack(layer.WithTarget[net.Conn](dst.String())).
		With("tap", tap.Connections(in.Taps, tap.Inbound, application(dst))).
		Service(tcplayer.NewEndpoint(ctx, dst.String(), in.Connect.Bytes(in.dial(dst))...))
}

// requests returns the service with the layers that apply to every request.
func (in *Inbound) requests() httplayer.Service {
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("explain", tap.Explain[*http.Request, *http.Response](in.Taps)).
		With("errors", in.Meters.HTTPErrors(meters.Inbound)).
		Limit(in.MaxInFlight).
		With("orig-proto", httplayer.DowngradeOrigProto()).
		With("trailers", httplayer.StripHeader("l5d-orig-proto")).
		With("client-id", httplayer.ClientID(clientID)).
		With("policy", layer.Filter[*http.Request, *http.Response](in.authorize)).
		Service(in.logicals.Router(in.logicalKey))
}

// logical counts and shows the requests of one client to one name, by the routes of
// the profile of that name. The profile does not change requests, because the
// client's proxy has applied it.
func (in *Inbound) logical(ctx context.Context, l logicalKey) httplayer.Service {
	svc := httplayer.NewStack().
		With("route metrics", in.Meters.InboundRoute(string(in.DefaultPolicy), l.dst)).
		With("metrics", in.Meters.Endpoint(ctx, meters.Inbound, in.labels(l))).
		With("tap", tap.Layer(in.Taps, httplayer.Accessor{}, tapOptions(l)...)).
		Service(in.endpoints.Service(l.dst))
	if l.name == "" || !in.acquireProfile(ctx) {
		return svc
	}
	return profiles.New(ctx, l.name, in.profiles, httplayer.Accessor{},
		func(string) httplayer.Service { return svc },
		in.routeMetrics(l.name),
		profiles.WithInitialWait[*http.Request, *http.Response](in.Control.ProfileInitial),
		profiles.WithLogger[*http.Request, *http.Response](in.Log))
}

// endpoint sends requests to one port of the application. Requests wait for the port,
// except when the connection is refused.
func (in *Inbound) endpoint(ctx context.Context, dst netip.AddrPort) httplayer.Service {
	opts := append(in.Connect.Requests(in.dial(dst), in.Pool), httplayer.KeepVersion())
	return httplayer.NewStack(layer.WithTarget[*http.Response](dst.String())).
		Queue(in.HTTPQueue.Capacity, in.HTTPQueue.MaxWait()).
		Service(httplayer.SingleEndpoint(httplayer.NewEndpoint(ctx, dst.String(), opts...)))
}

// meshedServer serves HTTP connections of other proxies. Like linkerd's proxy it
// sends them the cause of errors and does not limit the pauses of uploads.
func (in *Inbound) meshedServer(requests httplayer.Service) tcplayer.Server {
	return in.server(requests, httplayer.WithErrorHeaders(true), httplayer.WithMinBodyRate(0, 0))
}

// unmeshedServer serves HTTP connections of clients without an identity. It does not
// send them the cause of errors. Their uploads have a minimum rate.
func (in *Inbound) unmeshedServer(requests httplayer.Service) tcplayer.Server {
	return in.server(requests, httplayer.WithErrorHeaders(false), httplayer.WithMinBodyRate(in.BodyIdle, minBodyRate))
}

func (in *Inbound) server(
	requests httplayer.Service, errorHeaders httplayer.HandlerOption, bodyRate httplayer.ServerOption,
) tcplayer.Server {
	h := httplayer.Handler(requests, httplayer.WithConnect(), httplayer.WithErrorHandler(nil), errorHeaders, httplayer.WithLogger(in.Log))
	if in.Access != settings.NoAccessLog {
		h = httplayer.AccessLog(in.AccessTo, httplayer.AccessLogFormat(in.Access), httplayer.WithClientName(clientID))(h)
	}
	return httplayer.NewServer(h,
		append(in.Config.Server.Options(), bodyRate, httplayer.WithDrainOnDone(in.Ending), httplayer.WithServerLogger(in.Log))...)
}
