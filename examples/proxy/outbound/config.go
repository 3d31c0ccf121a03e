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

// Config is what the path is made of.
type Config struct {
	settings.Outbound

	Control    settings.Control
	Controller grpc.ClientConnInterface   // the destination controller
	Identity   *identity.Identity         // nil: nothing is sent by TLS
	Own        []netip.Addr               // addresses of this pod: spoken to in clear
	Origin     tcplayer.Origin            // where a connection was going to
	Refuse     func(netip.AddrPort) error // says what is not to be connected to
	Ending     context.Context            //nolint:containedctx // when it ends, connections are to

	SourceLabels map[string]string // what tap shows of the clients of this proxy
	Taps         *tap.Registry
	Meters       *meters.Meters
	Log          *slog.Logger
}

// Outbound is the path: a server of accepted connections.
type Outbound struct {
	tcplayer.Server
	Config

	Requests httplayer.Service // of all connections that speak HTTP

	http     tcplayer.Server // of connections that speak HTTP
	resolver resolve.Resolver
	profiles profiles.Source
	countTCP func(context.Context, net.Conn, error)
	detected tcplayer.DetectInstruments // of connections that nobody redirected

	destinations    *layer.Cache[netip.AddrPort, net.Conn, tcplayer.ByteCount]
	logicals        *layer.Cache[string, *http.Request, *http.Response]
	concretes       *layer.Cache[string, *http.Request, *http.Response]
	forwards        *layer.Cache[place, *http.Request, *http.Response]
	opaqueConcretes *layer.Cache[string, tcplayer.Request, net.Conn]
	opaqueForwards  *layer.Cache[place, tcplayer.Request, net.Conn]
}

// Describe shows both ends of the path: what is done to connections, and to the
// requests on those that speak HTTP.
func (o *Outbound) Describe() layer.Node {
	return layer.Node{Name: "outbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(o.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(o.Requests)}},
	}}
}

func newOutbound(ctx context.Context, c Config) *Outbound {
	if c.Ingress {
		c.Refuse = notLoopback(c.Refuse)
	}
	o := &Outbound{
		Config: c, resolver: newResolver(c), profiles: c.Control.Profiles(c.Controller, c.Log),
		detected: c.Meters.Detect(meters.Outbound, nil),
	}
	countTCP := c.Meters.TCPErrors(meters.Outbound)
	o.countTCP = func(_ context.Context, conn net.Conn, err error) {
		dst, _ := tcplayer.OriginalDst(conn)
		countTCP(dst, err)
	}
	idle := layer.CachePolicy{IdleTimeout: max(c.DiscoveryIdle, 1)}
	open := layer.WithCompletion(tcplayer.UntilClosed)
	o.destinations = layer.NewCache(ctx, o.destination, idle)
	o.logicals = layer.NewCache(ctx, o.logical, idle)
	o.concretes = layer.NewCache(ctx, o.concrete, idle)
	o.forwards = layer.NewCache(ctx, o.forwarded, idle)
	o.opaqueConcretes = layer.NewCache(ctx, o.opaqueConcrete, idle, open)
	o.opaqueForwards = layer.NewCache(ctx, o.opaqueForwarded, idle, open)
	return o
}

// notLoopback refuses this machine besides what own does: in ingress mode anybody
// whose requests the application passes on may say where they go.
func notLoopback(own func(netip.AddrPort) error) func(netip.AddrPort) error {
	return func(addr netip.AddrPort) error {
		if err := own(addr); err != nil {
			return err
		}
		return tcplayer.DenyLoopback(addr)
	}
}

// newResolver resolves by the controller, and keeps the endpoints through its outages.
func newResolver(c Config) resolve.Resolver {
	return only(c.Control.GetSuffixes, resolve.ServeStale(
		destination.New(c.Controller,
			destination.WithContextToken(c.Control.ContextToken),
			destination.WithStreamLimits(destination.Limits(c.Control.Limits())),
			destination.WithBackoff(c.Control.Connect.Backoff),
			destination.WithLogger(c.Log)),
		resolve.StalePolicy{}))
}

// only has r asked for those names alone that are below the suffixes. The others
// do not exist.
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

// clients counts the connections that the application makes to dst; one that is
// not valid is this proxy.
func (o *Outbound) clients(ctx context.Context, dst netip.AddrPort) *tcplayer.Meter {
	labels := meters.Target(dst).With(meters.NoTLS("loopback"))
	return tcplayer.NewMeter(o.Meters.Transport(ctx, meters.Outbound, meters.Source, labels))
}
