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
	ServerName string                     // TLS server name of this proxy
	Origin     tcplayer.Origin            // finds the original destination of a connection
	Refuse     func(netip.AddrPort) error // returns an error for addresses that must not be dialed; nil: no limit
	Ending     context.Context            //nolint:containedctx // when it ends, connections drain

	// Dial makes the TCP connections. nil means the DialContext of a zero [net.Dialer].
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	Taps     *tap.Registry
	Meters   *meters.Meters
	Log      *slog.Logger
	Access   settings.AccessFormat // of the access log
	AccessTo io.Writer
}

// Inbound is the server of the connections that are made to the application.
type Inbound struct {
	tcplayer.Server
	Config

	Requests httplayer.Service // serves the requests of all HTTP connections

	http     tcplayer.Server // serves HTTP connections
	opaque   tcplayer.Server // serves all other connections
	profiles profiles.Source
	countTCP func(context.Context, net.Conn, error)
	policies *policies
	clients  func(netip.AddrPort, meters.Client, meters.Resource) *tcplayer.Meter
	decided  decisions
	watches  atomic.Int64 // number of profiles that are watched

	logicals  cache[logicalKey, *http.Request, *http.Response]
	endpoints cache[netip.AddrPort, *http.Request, *http.Response]
	ports     cache[netip.AddrPort, tcplayer.Request, net.Conn]
}

// decisions has two functions that count decisions of policies: http for requests, and tcp
// for connections.
type decisions struct{ http, tcp func(meters.Decision) }

// Describe shows the layers of connections and the layers of HTTP requests.
func (in *Inbound) Describe() layer.Node {
	return layer.Node{Name: "inbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(in.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(in.Requests)}},
	}}
}

// newInbound returns an Inbound without caches and servers. [New] adds them.
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
		if own, tcp := conn.LocalAddr().(*net.TCPAddr); !ok && tcp { // a direct connection
			dst = netip.AddrPortFrom(own.AddrPort().Addr().Unmap(), own.AddrPort().Port())
		}
		countTCP(dst, err)
	}
	return in
}

// connections returns an empty stack, to which a caller adds layers of connections.
func connections() layer.Stack[net.Conn, tcplayer.ByteCount] {
	return layer.NewStack[net.Conn, tcplayer.ByteCount]()
}

// maxProfiles is the maximum number of profiles that are watched at a time. Clients choose
// the names of profiles, and could otherwise cause any number of watches.
const maxProfiles = 500

// acquireProfile returns true if fewer than maxProfiles profiles are watched. The caller
// may then watch another profile, and acquireProfile counts this watch until ctx ends.
func (in *Inbound) acquireProfile(ctx context.Context) bool {
	if in.watches.Add(1) > maxProfiles {
		in.watches.Add(-1)
		return false
	}
	context.AfterFunc(ctx, func() { in.watches.Add(-1) })
	return true
}

// routeMetrics returns an option that counts requests by the routes of a profile. name is
// the name:port of the destination with this profile.
func (in *Inbound) routeMetrics(name string) profiles.Option[*http.Request, *http.Response] {
	counts := in.Meters.Routes(meters.Inbound, name)
	return profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
		requests, _ := counts.Measured(route)
		return httplayer.NewStack().Metrics(requests).Service(next)
	})
}

// detectMetrics returns an option that counts connections by their detected protocol.
func (in *Inbound) detectMetrics() tcplayer.DetectOption {
	server := meters.DefaultResource(string(in.DefaultPolicy))
	return tcplayer.WithDetectMetrics(in.Meters.Detect(meters.Inbound, meters.Server(server, netip.AddrPort{})))
}

// minBodyRate is the minimum rate of uploads of clients without an identity, in bytes per
// second.
const minBodyRate = 240

// dial returns a function that connects to the port dst of the application and counts the
// connections.
func (in *Inbound) dial(dst netip.AddrPort) settings.Dial {
	d := tcplayer.Dialer{Timeout: in.Connect.Timeout, Sockets: in.Connect.Socket.Options(), Deny: in.Refuse, Dial: in.Dial}
	counted := in.Meters.Transport(meters.Inbound, meters.Destination, meters.Target(dst).With(meters.NoTLS("loopback")))
	return tcplayer.NewMeter(counted).WrapDial(d.DialContext)
}
