package httpclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// Option configures [New].
type Option func(*options)

// options holds the settings of a Client.
type options struct {
	resolver      resolve.Resolver // nil means DNS, by names
	profiles      profiles.Source  // may be nil
	log           *slog.Logger     // may be nil
	tls           *tls.Config      // nil means cleartext
	timeout       time.Duration    // limits a request with all its attempts: see WithTimeout
	resolveWait   time.Duration    // longest wait for the resolver's first answer; 0 means no limit
	retry         httplayer.RetryPolicy
	policy        balance.Policy
	metrics       Metrics                    // nil means none
	endpoints     []httplayer.EndpointOption // see WithEndpointOptions
	endpointLayer httplayer.Layer            // nil means none
	healthCheck   HealthCheck                // nil means none
	healthPolicy  discover.HealthPolicy
	sticky        string                                // name of the cookie; "" means none
	proxy         func(*http.Request) (*url.URL, error) // nil means none
	hosts         HostFunc                              // of a Transport
	idleHosts     time.Duration                         // of a Transport
	target        string                                // "" means the argument of New, or the host of a URL
	names         resolve.Resolver                      // resolves names by DNS; nil means a new one
	proxyTLS      *tls.Config                           // for connections to a proxy with TLS; may be nil
	absolute      httplayer.Layer                       // sends requests to a proxy; nil means none
	serverName    string                                // default server name of TLS; "" means the target
	anyHost       bool                                  // see Client
	keepsGzip     bool                                  // see WithoutDecompression
	queue         *queue                                // nil means the default
	waitForReady  bool                                  // see WithWaitForReady
	hedge         *httplayer.HedgePolicy                // nil means none
	breaker       *layer.BreakerPolicy                  // nil means none
	limit         int                                   // 0 means none, as for endpointLimit
	endpointLimit int
	layers        []named                           // see WithLayer
	preconnect    bool                              // see WithPreconnect
	tlsOf         func(discover.Target) *tls.Config // see WithEndpointTLS; may be nil
	events        func(Event)                       // may be nil
}

// WithResolver sets the target's resolver, such as the resolver of package linkerd or k8s. The
// resolver gets the target unchanged: no default port is added. A nil resolver panics.
func WithResolver(r resolve.Resolver) Option {
	if r == nil {
		panic("httpclient: nil resolver")
	}
	return func(o *options) { o.resolver = r }
}

// WithAddrs sets the endpoints: host names or IP addresses, each with a port. A host name is
// resolved by DNS and /etc/hosts, and may stand for several addresses. The target is then only
// the default TLS server name and a name for display. WithAddrs panics without an address, or if
// an address lacks a port.
func WithAddrs(addrs ...string) Option {
	if len(addrs) == 0 {
		panic("httpclient: WithAddrs: no address")
	}
	names := dns.New()
	all := make([]resolve.Resolver, 0, len(addrs))
	for _, addr := range addrs {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
			panic(fmt.Sprintf("httpclient: WithAddrs: address is %q, must be host:port", addr))
		}
		// The merged resolver's target is ignored: each of these resolves its own address.
		all = append(all, resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
			return names.Resolve(ctx, addr)
		}))
	}
	return WithResolver(resolve.Merge(all...))
}

// WithTLS connects to the endpoints with TLS. nil means crypto/tls's default configuration. An
// empty ServerName in cfg is replaced by the endpoint's server name, if the resolver specifies
// one, or else by the target's host, which for an SRV name is the domain in it. Without WithTLS,
// an endpoint uses TLS only if the resolver specifies a server name. A request with an https URL
// to a cleartext endpoint fails.
func WithTLS(cfg *tls.Config) Option {
	if cfg == nil {
		cfg = new(tls.Config)
	}
	return func(o *options) { o.tls = cfg }
}

// WithTimeout limits the time from Call to the response headers, including all attempts. The default
// is 15 s, and 0 means no limit. A request that comes before the target is resolved may first wait as
// long for that; this limit's default is 30 s. The response body is not limited, so that downloads and
// streams may take longer. Set http.Client.Timeout to limit all. A negative d panics.
func WithTimeout(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("httpclient: WithTimeout is %v, must be at least 0", d))
	}
	return func(o *options) {
		o.timeout = d
		o.resolveWait = d
	}
}

// WithRetry sets the retry policy. The zero policy, which is the default, attempts an idempotent
// request up to 3 times, within a budget. MaxAttempts 1 disables retries. An invalid policy
// panics.
func WithRetry(p httplayer.RetryPolicy) Option {
	if err := p.Validate(); err != nil {
		panic("httpclient: " + err.Error())
	}
	return func(o *options) { o.retry = p }
}

// WithPolicy sets the balancer's policy, such as consistent hashing for sticky sessions, zones or
// outlier detection. [New] panics if the policy is invalid.
func WithPolicy(p balance.Policy) Option {
	return func(o *options) { o.policy = p }
}

// WithStickySession sends all requests in a session to the same endpoint, by consistent hashing.
// The session is a random number in the given cookie: see [httplayer.StickySession]. The option
// replaces the Picker from [WithPolicy]. An invalid cookie name panics.
func WithStickySession(cookie string) Option {
	httplayer.StickySession(cookie) // panics if the name is invalid
	return func(o *options) { o.sticky = cookie }
}

// Metrics provides instruments for each target. A Client records its measurements in its target's
// instruments. Packages promtower and oteltower implement it.
type Metrics interface {
	Layer(target string) layer.Instruments
	Balance(target string) balance.Instruments
}

// WithMetrics records metrics for requests, layers and the client's balancer in the instruments
// from m. A nil m records nothing. If m implements Forget(target string), a [Transport] calls it
// for each target that it removes.
func WithMetrics(m Metrics) Option { return func(o *options) { o.metrics = m } }

// WithEndpointOptions adds options to each endpoint, such as [httplayer.WithHTTP2] or
// [httplayer.WithMaxConns].
func WithEndpointOptions(opts ...httplayer.EndpointOption) Option {
	return func(o *options) { o.endpoints = append(o.endpoints, opts...) }
}

// WithEndpointLayer sets a layer above each endpoint, such as a limit, a circuit breaker or
// a tap. To set several layers, combine them into one by the method Layer of
// [httplayer.Stack]. Health checks do not pass the layer, because a full limit does not mean that
// the endpoint is unhealthy.
func WithEndpointLayer(l httplayer.Layer) Option {
	return func(o *options) { o.endpointLayer = l }
}
