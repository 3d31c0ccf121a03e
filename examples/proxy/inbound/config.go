package inbound

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// Config is what the path is made of.
type Config struct {
	settings.Inbound

	Control         settings.Control
	ClusterNetworks []netip.Prefix             // what DefaultPolicy calls the cluster
	Controller      grpc.ClientConnInterface   // the destination controller: for profiles
	Identity        *identity.Identity         // nil: no TLS ends here
	ServerName      string                     // by which other proxies ask for this one
	Origin          tcplayer.Origin            // where a connection was going to
	Refuse          func(netip.AddrPort) error // says what is not to be connected to; nil: nothing
	Ending          context.Context            //nolint:containedctx // when it ends, connections are to

	Taps     *tap.Registry
	Meters   *meters.Meters
	Log      *slog.Logger
	Access   settings.AccessFormat // how each request is logged to AccessTo
	AccessTo io.Writer
}

// Inbound is the path: a server of accepted connections.
type Inbound struct {
	tcplayer.Server
	Config

	Requests httplayer.Service // of all connections that speak HTTP

	http     tcplayer.Server // of connections that speak HTTP
	opaque   tcplayer.Server // of all others
	profiles profiles.Source
	countTCP func(context.Context, net.Conn, error)
	clients  meterOf
	decided  decisions
	pauses   *httplayer.SlowBodyQuota // of strangers

	// In pairs: those with room for so many, and for what comes beyond.
	logicals, nameless, uncounted *layer.Cache[logical, *http.Request, *http.Response]
	endpoints, endpointsBeyond    *layer.Cache[netip.AddrPort, *http.Request, *http.Response]
	ports, portsBeyond            *layer.Cache[netip.AddrPort, tcplayer.Request, net.Conn]
}

// Describe shows both ends of the path: what is done to connections, and to the
// requests on those that speak HTTP.
func (in *Inbound) Describe() layer.Node {
	return layer.Node{Name: "inbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(in.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(in.Requests)}},
	}}
}

func newInbound(ctx context.Context, c Config) *Inbound {
	if c.Refuse == nil {
		c.Refuse = func(netip.AddrPort) error { return nil }
	}
	in := &Inbound{Config: c, profiles: c.Control.Profiles(c.Controller, c.Log), decided: newDecisions(c)}
	in.clients = c.Meters.Clients(meters.Inbound, string(c.DefaultPolicy))
	in.pauses = httplayer.NewSlowBodyQuota(c.BodyPauses, pausingClients*c.BodyPauses)
	countTCP := c.Meters.TCPErrors(meters.Inbound)
	in.countTCP = func(_ context.Context, conn net.Conn, err error) {
		dst, ok := tcplayer.OriginalDst(conn)
		if own, tcp := conn.LocalAddr().(*net.TCPAddr); !ok && tcp { // it was made to this proxy
			dst = netip.AddrPortFrom(own.AddrPort().Addr().Unmap(), own.AddrPort().Port())
		}
		countTCP(dst, err)
	}
	idle := layer.CachePolicy{IdleTimeout: max(c.DiscoveryIdle, 1)}
	names, ports, brief := idle, idle, layer.CachePolicy{IdleTimeout: briefly}
	names.Capacity, ports.Capacity = mostNames, mostPorts
	in.logicals = layer.NewCache(ctx, in.logical, names)
	in.nameless = layer.NewCache(ctx, in.logical, names)
	in.uncounted = layer.NewCache(ctx, in.shownOnly, brief)
	in.endpoints = layer.NewCache(ctx, in.endpoint, ports)
	in.endpointsBeyond = layer.NewCache(ctx, in.endpointBeyond, brief)
	in.ports = layer.NewCache(ctx, in.port, ports, layer.WithCompletion(tcplayer.UntilClosed))
	in.portsBeyond = layer.NewCache(ctx, in.portBeyond, brief, layer.WithCompletion(tcplayer.UntilClosed))
	return in
}

// counted counts the requests of the routes that a profile has for name.
func (in *Inbound) counted(ctx context.Context, name string) profiles.Option[*http.Request, *http.Response] {
	counts := in.Meters.Routes(ctx, meters.Inbound, name)
	return profiles.Join(
		profiles.WithOnUpdate[*http.Request, *http.Response](func(p *profiles.Profile) { counts.OnProfile(name, p) }),
		profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
			requests, _ := counts.Measured(route)
			return httplayer.NewStack().Metrics(requests).Service(next)
		}))
}

// lookedAt counts what comes of looking which protocol clients speak.
func (in *Inbound) lookedAt() tcplayer.DetectOption {
	return tcplayer.WithDetectMetrics(in.Meters.Detect(meters.Inbound, meters.Server(string(in.DefaultPolicy), netip.AddrPort{})))
}

// meshed serves the connections of other proxies of the mesh that speak HTTP.
// They are told what went wrong, and the uploads of the applications behind them
// may pause for as long as they like, as in linkerd's proxy.
func (in *Inbound) meshed(requests httplayer.Service) tcplayer.Server {
	return in.server(requests, httplayer.WithErrorHeaders(true), httplayer.WithMinBodyRate(0, 0))
}

// strangers serves those of clients who proved nothing. They are not told what is
// inside, and hold little for long by sending next to nothing: uploads that are
// made as they are sent may pause, but not many of one client.
func (in *Inbound) strangers(requests httplayer.Service) tcplayer.Server {
	return in.pauses.Allow(
		in.server(requests, httplayer.WithErrorHeaders(false), httplayer.WithMinBodyRate(in.BodyIdle, leastBodyRate)))
}

const (
	leastBodyRate  = 240 // bytes a second
	pausingClients = 10  // who may have all the pauses of one at a time
)

func (in *Inbound) server(
	requests httplayer.Service, told httplayer.HandlerOption, pace httplayer.ServerOption,
) tcplayer.Server {
	h := httplayer.Handler(requests, httplayer.WithConnect(), told, httplayer.WithLogger(in.Log))
	if in.Access != settings.NoAccessLog {
		h = httplayer.AccessLog(in.AccessTo, httplayer.AccessLogFormat(in.Access), httplayer.WithClientName(clientID))(h)
	}
	return httplayer.NewServer(h,
		append(in.Config.Server.Options(), pace, httplayer.WithDrainOnDone(in.Ending), httplayer.WithServerLogger(in.Log))...)
}

// dial connects to the application.
func (in *Inbound) dial() settings.Dial {
	d := tcplayer.Dialer{Timeout: in.Connect.Timeout, Sockets: in.Connect.Socket.Options(), Deny: in.Refuse}
	return d.DialContext
}

// dialCounted counts the connections to one port.
func (in *Inbound) dialCounted(ctx context.Context, dst netip.AddrPort) settings.Dial {
	counted := in.Meters.Transport(ctx, meters.Inbound, meters.Destination, meters.Target(dst).With(meters.NoTLS("loopback")))
	return tcplayer.NewMeter(counted).WrapDial(in.dial())
}
