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
	profilesource "github.com/gotower/gotower/profiles/linkerd"
	"github.com/gotower/gotower/tap"
)

// Config is what the path is made of.
type Config struct {
	settings.Inbound

	Control         settings.Control
	ClusterNetworks []netip.Prefix           // what DefaultPolicy calls the cluster
	Controller      grpc.ClientConnInterface // the destination controller: for profiles
	Identity        *identity.Identity       // nil: no TLS ends here
	ServerName      string                   // by which other proxies ask for this one
	Origin          tcplayer.Origin          // where a connection was going to
	Refuse          func(netip.AddrPort) error
	Ending          context.Context //nolint:containedctx // when it ends, connections are to

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

	http      tcplayer.Server // of connections that speak HTTP
	profiles  profiles.Source
	countHTTP func(error) error
	countTCP  func(context.Context, net.Conn, error)
	decided   decisions

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
	in := &Inbound{Config: c, profiles: newProfiles(c), decided: newDecisions(c.Meters)}
	countHTTP, countTCP := c.Meters.HTTPErrors(meters.Inbound), c.Meters.TCPErrors(meters.Inbound)
	in.countHTTP = func(err error) error {
		countHTTP(err)
		return err
	}
	in.countTCP = func(_ context.Context, conn net.Conn, err error) {
		dst, _ := tcplayer.OriginalDst(conn)
		countTCP(dst, err)
	}
	idle := layer.CachePolicy{Idle: max(c.DiscoveryIdle, 1)}
	names, ports, brief := idle, idle, layer.CachePolicy{Idle: briefly}
	names.Capacity, ports.Capacity = mostNames, mostPorts
	in.logicals = layer.NewCache(ctx, in.logical, names)
	in.nameless = layer.NewCache(ctx, in.logical, names)
	in.uncounted = layer.NewCache(ctx, in.shownOnly, brief)
	in.endpoints = layer.NewCache(ctx, in.endpoint, ports)
	in.endpointsBeyond = layer.NewCache(ctx, in.endpointBeyond, brief)
	in.ports = layer.NewCache(ctx, in.port, ports, layer.Until(tcplayer.UntilClosed))
	in.portsBeyond = layer.NewCache(ctx, in.portBeyond, brief, layer.Until(tcplayer.UntilClosed))
	return in
}

func newProfiles(c Config) profiles.Source {
	return profilesource.New(c.Controller,
		profilesource.Names(c.Control.ProfileSuffixes...),
		profilesource.ContextToken(c.Control.ContextToken),
		profilesource.Backoff(c.Control.Connect.Backoff),
		profilesource.Logger(c.Log))
}

// clients counts the connections that are made to this pod.
func (in *Inbound) clients(ctx context.Context) *tcplayer.Meter {
	return tcplayer.NewMeter(in.Meters.Transport(ctx, meters.Inbound, meters.Source, nil))
}

// counted counts the requests of the routes that a profile has for name.
func (in *Inbound) counted(ctx context.Context, name string) func(profiles.Route, httplayer.Service) httplayer.Service {
	return func(route profiles.Route, next httplayer.Service) httplayer.Service {
		requests, _ := in.Meters.Route(ctx, meters.Inbound, name, route.Name, route.Labels)
		return httplayer.NewStack().Metrics(requests).Service(next)
	}
}

// server serves the connections that speak HTTP. Who is not known to be a proxy
// of the mesh is not told what is inside.
func (in *Inbound) server(requests httplayer.Service) tcplayer.Server {
	h := httplayer.Handler(requests, httplayer.Tunnels(),
		httplayer.InformationalHeadersIf(func(req *http.Request) bool { return clientID(req) != "" }),
		httplayer.Logger(in.Log))
	if in.Access != settings.NoAccessLog {
		h = httplayer.AccessLog(in.AccessTo, httplayer.AccessLogFormat(in.Access), httplayer.AccessLogClient(clientID))(h)
	}
	return httplayer.NewServer(h,
		append(in.Config.Server.Options(), httplayer.DrainOn(in.Ending), httplayer.ServerLogger(in.Log))...)
}

// dial connects to the application.
type dial = func(ctx context.Context, network, addr string) (net.Conn, error)

func (in *Inbound) dial() dial {
	d := tcplayer.Dialer{Timeout: in.Connect.Timeout, Sockets: in.Connect.Socket.Options(), Refuse: in.Refuse}
	return d.DialContext
}

// dialCounted counts the connections to one port.
func (in *Inbound) dialCounted(ctx context.Context, dst netip.AddrPort) dial {
	counted := in.Meters.Transport(ctx, meters.Inbound, meters.Destination, meters.Target(dst).With(meters.NoTLS("loopback")))
	return tcplayer.NewMeter(counted).Dialled(in.dial())
}

// connection is how requests get to the application.
func (in *Inbound) connection(by dial) []httplayer.EndpointOption {
	return []httplayer.EndpointOption{
		httplayer.DialContext(by),
		httplayer.ConnectTimeout(in.Connect.Timeout),
		httplayer.Backoff(in.Connect.Backoff),
		httplayer.IdleTimeout(max(in.Pool.Idle, 1)),
		httplayer.MaxIdleConns(in.Pool.MaxIdle),
	}
}

// opaqueConnection is how bytes do.
func (in *Inbound) opaqueConnection(by dial) []tcplayer.EndpointOption {
	return []tcplayer.EndpointOption{
		tcplayer.DialContext(by),
		tcplayer.ConnectTimeout(in.Connect.Timeout),
		tcplayer.Backoff(in.Connect.Backoff),
	}
}
