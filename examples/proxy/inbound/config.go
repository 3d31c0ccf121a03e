package inbound

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/internal/spans"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// Config configures [New].
type Config struct {
	settings.Inbound

	Control         settings.Control
	ClusterNetworks []netip.Prefix  // client networks that a cluster-* DefaultPolicy permits
	Policy          settings.Policy // only Controller and Workload are used

	PolicyController grpc.ClientConnInterface // nil: DefaultPolicy applies to all ports

	Controller grpc.ClientConnInterface   // the destination controller, for profiles
	Identity   *identity.Identity         // nil: TLS is not terminated
	ServerName string                     // this proxy's TLS server name
	ID         string                     // this proxy's identity
	Gateway    Gateway                    // for clients in other clusters; nil: none is served
	Origin     tcplayer.Origin            // finds the original destination of a connection
	Refuse     func(netip.AddrPort) error // returns an error for addresses that must not be dialed; nil: no limit
	Ending     context.Context            //nolint:containedctx // when it ends, connections drain

	// Dial makes TCP connections. nil means a zero [net.Dialer]'s DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	Taps      *tap.Registry
	Spans     *spans.Exporter // nil: spans are not recorded
	Meters    *meters.Meters
	Log       *slog.Logger
	Access    settings.AccessFormat // the access log's format
	AccessLog io.Writer
}

// Inbound serves the connections that clients make to the application.
type Inbound struct {
	tcplayer.Server
	Config

	Requests httplayer.Service // serves the requests on all HTTP connections

	http     tcplayer.Server // serves HTTP connections
	opaque   tcplayer.Server // serves all other connections
	profiles profiles.Source
	countTCP func(context.Context, net.Conn, error)
	policies *policies
	clients  func(netip.AddrPort, meters.Client, meters.Resource) *tcplayer.Meter
	decided  decisions
	watches  atomic.Int64 // how many profiles are watched

	logicals  cache[logicalKey, *http.Request, *http.Response]
	endpoints cache[netip.AddrPort, *http.Request, *http.Response]
	ports     cache[netip.AddrPort, tcplayer.Request, net.Conn]
}

// decisions contains functions that count a policy's decisions about requests (http) and
// connections (tcp).
type decisions struct{ http, tcp func(meters.Decision) }

// Describe shows the layers for connections and those for HTTP requests.
func (in *Inbound) Describe() layer.Node {
	return layer.Node{Name: "inbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(in.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(in.Requests)}},
	}}
}

// newInbound returns an Inbound without the caches and servers that [New] adds.
func newInbound(c Config) *Inbound {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Refuse == nil {
		c.Refuse = func(netip.AddrPort) error { return nil }
	}
	in := &Inbound{Config: c, profiles: c.Control.Profiles(c.Controller, c.Log)}
	in.decided = decisions{http: c.Meters.Authz("http"), tcp: c.Meters.Authz("tcp")}
	in.clients = c.Meters.Clients(meters.Inbound)
	countTCP := c.Meters.TCPErrors(meters.Inbound)
	in.countTCP = func(_ context.Context, conn net.Conn, err error) {
		dst, ok := tcplayer.OriginalDst(conn)
		if local, tcp := conn.LocalAddr().(*net.TCPAddr); !ok && tcp { // a direct connection has no original destination
			dst = netip.AddrPortFrom(local.AddrPort().Addr().Unmap(), local.AddrPort().Port())
		}
		countTCP(dst, err)
	}
	return in
}

// connections returns an empty stack for connections.
func connections() layer.Stack[net.Conn, tcplayer.ByteCount] {
	return layer.NewStack[net.Conn, tcplayer.ByteCount]()
}

// maxProfiles limits how many profiles are watched at a time. Clients choose the names, and could
// otherwise cause any number of watches.
const maxProfiles = 500

// acquireProfile reports whether one more profile may be watched. If so, the watch counts until ctx
// ends.
func (in *Inbound) acquireProfile(ctx context.Context) bool {
	if in.watches.Add(1) > maxProfiles {
		in.watches.Add(-1)
		return false
	}
	context.AfterFunc(ctx, func() { in.watches.Add(-1) })
	return true
}

// routeMetrics returns an option that counts requests by the routes in the profile of name, which
// has the form name:port.
func (in *Inbound) routeMetrics(name string) profiles.Option[*http.Request, *http.Response] {
	return profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
		requests, _ := in.Meters.Route(meters.Inbound, name, route.Name, route.Labels)
		return httplayer.NewStack().Metrics(requests).Service(next)
	})
}

// detectMetrics returns an option that counts connections by their detected protocol.
func (in *Inbound) detectMetrics() tcplayer.DetectOption {
	server := meters.DefaultResource(string(in.DefaultPolicy))
	return tcplayer.WithDetectMetrics(in.Meters.Detect(meters.Inbound, meters.Server(server, netip.AddrPort{})))
}

// dial returns a function that connects to dst, a port of the application, and counts the
// connections.
func (in *Inbound) dial(dst netip.AddrPort) settings.Dial {
	d := tcplayer.Dialer{Timeout: in.Connect.Timeout, Sockets: in.Connect.Socket.Options(), Deny: in.Refuse, Dial: in.Dial}
	counted := in.Meters.Transport(meters.Inbound, meters.Destination, meters.Target(dst).With(meters.NoTLS("loopback")))
	return tcplayer.NewMeter(counted).WrapDial(d.DialContext)
}
