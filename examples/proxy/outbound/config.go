package outbound

import (
	"context"
	"iter"
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
	"github.com/gotower/gotower/resolve"
	destination "github.com/gotower/gotower/resolve/linkerd"
	"github.com/gotower/gotower/tap"
)

// Config configures [New].
type Config struct {
	settings.Outbound

	Control    settings.Control
	Controller grpc.ClientConnInterface   // the destination controller
	Identity   *identity.Identity         // nil: TLS is not used
	Own        []netip.Addr               // addresses of this pod, which are connected to in cleartext
	Origin     tcplayer.Origin            // returns the original destination of a connection
	Refuse     func(netip.AddrPort) error // returns an error for addresses that must not be dialed
	Ending     context.Context            //nolint:containedctx // when it ends, connections drain

	SourceLabels map[string]string // for tap: the labels of the application
	Taps         *tap.Registry
	Meters       *meters.Meters
	Log          *slog.Logger
}

// Outbound is the server of the connections that the application makes.
type Outbound struct {
	tcplayer.Server
	Config

	Requests httplayer.Service // of all connections that speak HTTP

	http     tcplayer.Server // of connections that speak HTTP
	resolver resolve.Resolver
	profiles profiles.Source
	countTCP func(context.Context, net.Conn, error)

	destinations    *layer.Cache[netip.AddrPort, net.Conn, tcplayer.ByteCount]
	logicals        *layer.Cache[Authority, *http.Request, *http.Response]
	concretes       *layer.Cache[string, *http.Request, *http.Response]
	forwards        *layer.Cache[forwardTarget, *http.Request, *http.Response]
	opaqueConcretes *layer.Cache[string, tcplayer.Request, net.Conn]
	opaqueForwards  *layer.Cache[forwardTarget, tcplayer.Request, net.Conn]
}

// Describe shows the layers of connections, and those of HTTP requests.
func (o *Outbound) Describe() layer.Node {
	return layer.Node{Name: "outbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(o.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(o.Requests)}},
	}}
}

func newOutbound(c Config) *Outbound {
	if c.Ingress {
		c.Refuse = notLoopback(c.Refuse)
	}
	o := &Outbound{Config: c, resolver: newResolver(c), profiles: c.Control.Profiles(c.Controller, c.Log)}
	countTCP := c.Meters.TCPErrors(meters.Outbound)
	o.countTCP = func(_ context.Context, conn net.Conn, err error) {
		dst, _ := tcplayer.OriginalDst(conn)
		countTCP(dst, err)
	}
	return o
}

// notLoopback returns an error for the addresses of own and for loopback addresses. In
// ingress mode the clients of the application may choose the target.
func notLoopback(own func(netip.AddrPort) error) func(netip.AddrPort) error {
	return func(addr netip.AddrPort) error {
		if err := own(addr); err != nil {
			return err
		}
		return tcplayer.DenyLoopback(addr)
	}
}

// newResolver resolves by the controller. Endpoints stay during its outages.
func newResolver(c Config) resolve.Resolver {
	return only(c.Control.GetSuffixes, resolve.ServeStale(
		destination.New(c.Controller,
			destination.WithContextToken(c.Control.ContextToken),
			destination.WithStreamLimits(destination.Limits(c.Control.Limits())),
			destination.WithBackoff(c.Control.Connect.Backoff),
			destination.WithLogger(c.Log)),
		resolve.StalePolicy{}))
}

// only returns a resolver that resolves the names below the suffixes by r. For it, other
// names do not exist.
func only(suffixes settings.Suffixes, r resolve.Resolver) resolve.Resolver {
	if suffixes.Contains("") {
		return r
	}
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		if host, _, err := net.SplitHostPort(target); err == nil && suffixes.Contains(host) {
			return r.Resolve(ctx, target)
		}
		return func(yield func(resolve.Update, error) bool) {
			if yield(resolve.Update{Kind: resolve.DoesNotExist}, nil) {
				<-ctx.Done()
			}
		}
	})
}

// connections returns an empty stack of connection layers.
func connections() layer.Stack[net.Conn, tcplayer.ByteCount] {
	return layer.NewStack[net.Conn, tcplayer.ByteCount]()
}

// clients returns the meter of the application's connections to dst. An invalid dst
// means this proxy.
func (o *Outbound) clients(dst netip.AddrPort) *tcplayer.Meter {
	labels := meters.Target(dst).With(meters.NoTLS("loopback"))
	return tcplayer.NewMeter(o.Meters.Transport(meters.Outbound, meters.Source, labels))
}
