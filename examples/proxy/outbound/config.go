package outbound

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/linkerd"
	"github.com/gotower/gotower/resolve"
	destination "github.com/gotower/gotower/resolve/linkerd"
	"github.com/gotower/gotower/tap"
)

// Config configures [New].
type Config struct {
	settings.Outbound

	Control    settings.Control
	Controller grpc.ClientConnInterface   // the destination controller
	Policies   grpc.ClientConnInterface   // the policy controller; nil: policies are not used
	Workload   string                     // identifies this workload to the policy controller
	Identity   *identity.Identity         // nil: TLS is not used
	Own        []netip.Addr               // addresses of this pod; connections to them use cleartext
	Origin     tcplayer.Origin            // finds the original destination of a connection
	Refuse     func(netip.AddrPort) error // returns an error for addresses that must not be dialed
	Ending     context.Context            //nolint:containedctx // when it ends, connections drain

	// Dial makes the TCP connections. nil means the DialContext of a zero [net.Dialer].
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	SourceLabels map[string]string // labels of the application in tap
	Taps         *tap.Registry
	Meters       *meters.Meters
	Log          *slog.Logger
}

// Outbound is the server of the connections that the application makes.
type Outbound struct {
	tcplayer.Server
	Config

	Requests httplayer.Service // serves the requests of all HTTP connections

	http     tcplayer.Server // serves HTTP connections
	resolver resolve.Resolver
	profiles profiles.Source
	countTCP func(context.Context, net.Conn, error)

	destinations    *layer.Cache[netip.AddrPort, net.Conn, tcplayer.ByteCount]
	logicals        *layer.Cache[Authority, *http.Request, *http.Response]
	concretes       *layer.Cache[balancerKey, *http.Request, *http.Response]
	forwards        *layer.Cache[forwardTarget, *http.Request, *http.Response]
	opaqueConcretes *layer.Cache[balancerKey, tcplayer.Request, net.Conn]
	opaqueForwards  *layer.Cache[forwardTarget, tcplayer.Request, net.Conn]
}

// Describe shows the layers of connections and the layers of HTTP requests.
func (o *Outbound) Describe() layer.Node {
	return layer.Node{Name: "outbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(o.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(o.Requests)}},
	}}
}

// newOutbound returns an Outbound without caches and servers. [New] adds them.
func newOutbound(c Config) *Outbound {
	if c.Ingress {
		c.Refuse = notLoopback(c.Refuse)
	}
	o := &Outbound{Config: c, resolver: newResolver(c), profiles: newSource(c)}
	countTCP := c.Meters.TCPErrors(meters.Outbound)
	o.countTCP = func(_ context.Context, conn net.Conn, err error) {
		dst, _ := tcplayer.OriginalDst(conn)
		countTCP(dst, err)
	}
	return o
}

// newSource returns the source of profiles. With a policy controller, it also yields
// policies, and [linkerd.Prefer] chooses between the profile and the policy of a target.
// For a new target, the source waits for a policy before it yields the profile. The maximum
// wait is four fifths of ProfileInitial, so that the router does not time out first. The
// maximum is not less than minPolicyWait.
func newSource(c Config) profiles.Source {
	source := c.Control.Profiles(c.Controller, c.Log)
	if c.Policies == nil {
		return source
	}
	wait := max(c.Control.ProfileInitial*4/5, minPolicyWait)
	return linkerd.Prefer(source, c.Control.Policies(c.Policies, c.Workload, c.Log), wait, c.Log)
}

// minPolicyWait is the minimum time that the source of profiles waits for the policy of a
// target. After that, it uses the profile of the target.
const minPolicyWait = 100 * time.Millisecond

// notLoopback returns a function that returns an error for loopback addresses, and for
// addresses for which the argument own returns an error. It is for ingress mode, in which
// clients outside the pod can choose the target by a header.
func notLoopback(own func(netip.AddrPort) error) func(netip.AddrPort) error {
	return func(addr netip.AddrPort) error {
		if err := own(addr); err != nil {
			return err
		}
		return tcplayer.DenyLoopback(addr)
	}
}

// newResolver returns the resolver that watches the destination controller. During an
// outage of the controller, the resolver keeps the last endpoints. It reports that a name
// without one of the suffixes in GetSuffixes does not exist.
func newResolver(c Config) resolve.Resolver {
	return only(c.Control.GetSuffixes, resolve.ServeStale(
		destination.New(c.Controller,
			destination.WithContextToken(c.Control.ContextToken),
			destination.WithStreamLimits(destination.Limits(c.Control.Limits())),
			destination.WithBackoff(c.Control.Connect.Backoff),
			destination.WithLogger(c.Log)),
		resolve.StalePolicy{}))
}

// only returns a resolver that uses r for names with one of the suffixes. It reports that
// any other name does not exist.
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

// connections returns an empty stack, to which a caller adds layers of connections.
func connections() layer.Stack[net.Conn, tcplayer.ByteCount] {
	return layer.NewStack[net.Conn, tcplayer.ByteCount]()
}

// clients returns the meter that counts the application's connections to dst. For direct
// connections, which are made to an address of the proxy itself, dst is the zero AddrPort.
func (o *Outbound) clients(dst netip.AddrPort) *tcplayer.Meter {
	labels := meters.Target(dst).With(meters.NoTLS("loopback"))
	return tcplayer.NewMeter(o.Meters.Transport(meters.Outbound, meters.Source, labels))
}
