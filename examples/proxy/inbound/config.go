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
	ClusterNetworks []netip.Prefix             // the cluster of DefaultPolicy
	Controller      grpc.ClientConnInterface   // the destination controller: for profiles
	Identity        *identity.Identity         // nil: TLS is not terminated
	ServerName      string                     // of this proxy, for other proxies
	Origin          tcplayer.Origin            // returns the original destination of a connection
	Refuse          func(netip.AddrPort) error // returns an error for addresses that must not be dialed; nil: no limit
	Ending          context.Context            //nolint:containedctx // when it ends, connections drain

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

	Requests httplayer.Service // of all connections that speak HTTP

	http     tcplayer.Server // of connections that speak HTTP
	opaque   tcplayer.Server // of all others
	profiles profiles.Source
	countTCP func(context.Context, net.Conn, error)
	clients  func(netip.AddrPort, meters.Client) *tcplayer.Meter
	decided  decisions
	watches  atomic.Int64 // profiles that are watched

	logicals  cache[logicalKey, *http.Request, *http.Response]
	endpoints cache[netip.AddrPort, *http.Request, *http.Response]
	ports     cache[netip.AddrPort, tcplayer.Request, net.Conn]
}

// Describe shows the layers of connections, and those of HTTP requests.
func (in *Inbound) Describe() layer.Node {
	return layer.Node{Name: "inbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(in.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(in.Requests)}},
	}}
}

func newInbound(c Config) *Inbound {
	if c.Refuse == nil {
		c.Refuse = func(netip.AddrPort) error { return nil }
	}
	in := &Inbound{Config: c, profiles: c.Control.Profiles(c.Controller, c.Log), decided: newDecisions(c)}
	in.clients = c.Meters.Clients(meters.Inbound, string(c.DefaultPolicy))
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

// connections returns an empty stack of connection layers.
func connections() layer.Stack[net.Conn, tcplayer.ByteCount] {
	return layer.NewStack[net.Conn, tcplayer.ByteCount]()
}

// maxProfiles limits the profiles that are watched, because clients choose the names.
const maxProfiles = 500

// acquireProfile reports whether one more profile may be watched, until ctx ends.
func (in *Inbound) acquireProfile(ctx context.Context) bool {
	if in.watches.Add(1) > maxProfiles {
		in.watches.Add(-1)
		return false
	}
	context.AfterFunc(ctx, func() { in.watches.Add(-1) })
	return true
}

// routeMetrics counts the requests of the routes in the profile of name.
func (in *Inbound) routeMetrics(name string) profiles.Option[*http.Request, *http.Response] {
	counts := in.Meters.Routes(meters.Inbound, name)
	return profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
		requests, _ := counts.Measured(route)
		return httplayer.NewStack().Metrics(requests).Service(next)
	})
}

// detectMetrics counts the protocols of connections.
func (in *Inbound) detectMetrics() tcplayer.DetectOption {
	return tcplayer.WithDetectMetrics(in.Meters.Detect(meters.Inbound, meters.Server(string(in.DefaultPolicy), netip.AddrPort{})))
}

const (
	minBodyRate = 240 // bytes a second
)

// dial connects to one port of the application and counts the connections.
func (in *Inbound) dial(dst netip.AddrPort) settings.Dial {
	d := tcplayer.Dialer{Timeout: in.Connect.Timeout, Sockets: in.Connect.Socket.Options(), Deny: in.Refuse}
	counted := in.Meters.Transport(meters.Inbound, meters.Destination, meters.Target(dst).With(meters.NoTLS("loopback")))
	return tcplayer.NewMeter(counted).WrapDial(d.DialContext)
}
