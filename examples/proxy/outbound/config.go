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

	"github.com/gotower/gotower/examples/internal/spans"
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
	Profiles   profiles.Source            // nil: the controllers' profiles and policies
	Resolver   resolve.Resolver           // of the profiles' backends; nil: the destination controller's endpoints
	Identity   *identity.Identity         // nil: TLS is not used
	PodIPs     []netip.Addr               // this pod's addresses; connections to them use cleartext
	Origin     tcplayer.Origin            // finds the original destination of a connection
	Refuse     func(netip.AddrPort) error // returns an error for addresses that must not be dialed
	Ending     context.Context            //nolint:containedctx // when it ends, connections drain

	// Dial makes TCP connections. nil means a zero [net.Dialer]'s DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	SourceLabels map[string]string // the application's labels in tap
	Taps         *tap.Registry
	Spans        *spans.Exporter // nil: spans are not recorded
	Meters       *meters.Meters
	Log          *slog.Logger
}

// Outbound serves the connections that the application makes.
type Outbound struct {
	tcplayer.Server
	Config

	Requests httplayer.Service // serves the requests on all HTTP connections

	http     tcplayer.Server // serves HTTP connections
	countTCP func(context.Context, net.Conn, error)

	balanced, opaqueBalanced backends

	destinations    *layer.Cache[netip.AddrPort, net.Conn, tcplayer.ByteCount]
	logicals        *layer.Cache[Authority, *http.Request, *http.Response]
	concretes       *layer.Cache[*backend, *http.Request, *http.Response]
	forwards        *layer.Cache[forwardTarget, *http.Request, *http.Response]
	opaqueConcretes *layer.Cache[*backend, tcplayer.Request, net.Conn]
	opaqueForwards  *layer.Cache[forwardTarget, tcplayer.Request, net.Conn]
	opaqueNames     *layer.Cache[string, tcplayer.Request, net.Conn]
}

// Describe shows the layers for connections and those for HTTP requests.
func (o *Outbound) Describe() layer.Node {
	return layer.Node{Name: "outbound", Children: []layer.Node{
		{Name: "connections", Children: []layer.Node{layer.Describe(o.Server)}},
		{Name: "requests", Children: []layer.Node{layer.Describe(o.Requests)}},
	}}
}

// newOutbound returns an Outbound without the caches and servers that [New] adds.
func newOutbound(c Config) *Outbound {
	// In ingress mode, clients choose targets, which must not reach the pod itself.
	if c.Ingress {
		c.Refuse = notLoopback(c.Refuse)
	}
	if c.Profiles == nil {
		c.Profiles = newSource(c)
	}
	if c.Resolver == nil {
		c.Resolver = newResolver(c)
	}
	o := &Outbound{Config: c}
	countTCP := c.Meters.TCPErrors(meters.Outbound)
	o.countTCP = func(_ context.Context, conn net.Conn, err error) {
		dst, _ := tcplayer.OriginalDst(conn)
		countTCP(dst, err)
	}
	return o
}

// newSource returns the source of profiles. With a policy controller, it also yields policies, and
// [linkerd.Prefer] chooses between a target's profile and its policy. A new target's profile has to
// wait for the policy. The wait ends after four fifths of ProfileInitial, but not before
// minPolicyWait, so that the router usually does not time out first.
func newSource(c Config) profiles.Source {
	source := c.Control.Profiles(c.Controller, c.Log)
	if c.Policies == nil {
		return source
	}
	wait := max(c.Control.ProfileInitial*4/5, minPolicyWait)
	return linkerd.Prefer(source, c.Control.Policies(c.Policies, c.Workload, c.Log), wait, c.Log)
}

// minPolicyWait is how long at least the source waits for a target's policy before it uses the
// profile.
const minPolicyWait = 100 * time.Millisecond

// notLoopback extends check to also reject loopback addresses. It is for ingress mode, where
// clients outside the pod can choose the target with a header.
func notLoopback(check func(netip.AddrPort) error) func(netip.AddrPort) error {
	return func(addr netip.AddrPort) error {
		if err := check(addr); err != nil {
			return err
		}
		return tcplayer.DenyLoopback(addr)
	}
}

// newResolver returns the resolver that watches the destination controller. It keeps the last
// endpoints during an outage of the controller. Names outside of GetSuffixes do not exist for it.
func newResolver(c Config) resolve.Resolver {
	return only(c.Control.GetSuffixes, resolve.ServeStale(
		destination.New(c.Controller,
			destination.WithContextToken(c.Control.ContextToken),
			destination.WithStreamLimits(destination.Limits(c.Control.Limits())),
			destination.WithBackoff(c.Control.Connect.Backoff),
			destination.WithLogger(c.Log)),
		resolve.StalePolicy{}))
}

// only limits r to targets whose host is at or below one of the suffixes. For all others it yields once
// that they do not exist, without asking r.
func only(suffixes settings.Suffixes, r resolve.Resolver) resolve.Resolver {
	// The empty suffix contains every name, so there is nothing to limit.
	if suffixes.Contains("") {
		return r
	}
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		if host, _, err := net.SplitHostPort(target); err == nil && suffixes.Contains(host) {
			return r.Resolve(ctx, target)
		}
		return func(yield func(resolve.Update, error) bool) {
			// Tell the consumer once that the target does not exist.
			if yield(resolve.Update{Kind: resolve.DoesNotExist}, nil) {
				<-ctx.Done() // a resolver's sequence does not end before
			}
		}
	})
}

// connections returns an empty stack for connections.
func connections() layer.Stack[net.Conn, tcplayer.ByteCount] {
	return layer.NewStack[net.Conn, tcplayer.ByteCount]()
}

// clients returns the meter for the application's connections to dst. Direct connections, which are
// made to the proxy's own address, use the zero AddrPort.
func (o *Outbound) clients(dst netip.AddrPort) *tcplayer.Meter {
	labels := meters.Target(dst).With(meters.NoTLS("loopback"))
	return tcplayer.NewMeter(o.Meters.Transport(meters.Outbound, meters.Source, labels))
}
