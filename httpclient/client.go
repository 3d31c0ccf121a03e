package httpclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/idna"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// Client sends requests to one target's endpoints. It is a [httplayer.Service], and an
// [http.RoundTripper] for [http.Client.Transport]. It is safe for concurrent use.
//
// The host in a request's URL does not select the endpoint: every request goes to the target, and a
// redirect to another host fails. For a client that serves any host, use [NewTransport].
//
// Admission: a request waits for the first answer of the resolver, as one of net/http waits for its
// dialer: for up to 30 s, or as long as [WithTimeout] says. Then, while the endpoints are busy or the
// target has none, up to 1000 requests wait in the queue. A request that has waited there for 3 s
// fails. When the queue is full, further requests are rejected. If every endpoint has failed or the
// target does not exist, requests fail at once; see [WithWaitForReady].
//
// Cancellation: a request ends with its context.
//
// Body: the caller must close the response body.
//
// Errors: a [layer.Error] from the layer or endpoint that failed; the package documentation lists the
// layers.
//
// Cost: the sum of the layers' costs.
type Client struct {
	target  string
	stack   httplayer.Service
	backend *backend // nil with WithProfiles
	routed  *routed  // nil without WithProfiles
	trip    http.RoundTripper

	sticky    bool     // see WithStickySession
	anyHost   bool     // a Transport checks the host of a request
	keepsGzip bool     // see WithoutDecompression
	endpoints sync.Map // the *httplayer.Endpoint of each endpoint
}

// New returns a client for target. It starts to resolve target at once, and connects when
// requests arrive. Its background work and its connections end with ctx.
//
// The target is a host name or an IP address with an optional port: "web.default:80",
// "10.0.0.1:8080". Without a port, the port is 80, or 443 with [WithTLS]. The name is resolved by
// DNS and /etc/hosts (see package dns), unless [WithAddrs] or [WithResolver] is set.
//
// New panics if target is empty or cannot be resolved by DNS because of its form, such as a URL,
// or if an option is invalid.
func New(ctx context.Context, target string, opts ...Option) *Client {
	o := options{timeout: defaultTimeout, resolveWait: resolveTimeout}
	option.Apply(&o, opts)
	c, err := o.client(ctx, cmp.Or(o.target, target))
	if err != nil {
		panic("httpclient: " + err.Error())
	}
	return c
}

// client returns a client of target, or an error if an option or target is invalid.
func (o *options) client(ctx context.Context, target string) (*Client, error) {
	if target == "" {
		return nil, errors.New("empty target")
	}
	if err := o.policy.Validate(); err != nil {
		return nil, err
	}
	if o.sticky != "" {
		// 0 is the default bound for the load of one endpoint.
		o.policy.Picker = balance.ConsistentHash(0)
	}
	if o.names == nil {
		o.names = dns.New()
	}
	// The copy is made before resolve sets a resolver for target.
	backends := *o // of which each resolves a name of its own
	if o.resolver == nil {
		var err error
		if target, err = o.resolve(target); err != nil {
			return nil, err
		}
	}
	// A request passes these layers from the first to the last.
	stack := o.stack(target, layer.WithLogger[*http.Response](o.log))
	if o.metrics != nil {
		stack = stack.Metrics(o.metrics.Layer(target))
	}
	if o.events != nil {
		stack = stack.With("events", o.observeRequests(target))
	}
	for _, l := range o.layers {
		stack = stack.With(l.name, l.layer)
	}
	if o.sticky != "" {
		stack = stack.With("sticky_session", httplayer.StickySession(o.sticky))
	}
	c := &Client{target: target, sticky: o.sticky != "", anyHost: o.anyHost, keepsGzip: o.keepsGzip}
	// With a profile, each route has its own timeouts and retries.
	if o.profiles != nil {
		c.routed = backends.routed(ctx, c, target)
		c.stack = stack.Service(c.routed.Service)
	} else {
		c.backend = o.backend(ctx, c, o.resolver, target)
		c.stack = o.attemptLayers(stack).Service(c.backend.Service)
	}
	c.trip = httplayer.RoundTripper(c)
	return c, nil
}

// attemptLayers adds the layers that a request passes once, however often it is sent: the time limit,
// the retries and the hedges, which share a budget.
func (o *options) attemptLayers(stack httplayer.Stack) httplayer.Stack {
	retry := o.retry
	// Retries and hedges share one budget, so that together they do not multiply the load.
	retry.Budget = cmp.Or(retry.Budget, layer.NewBudget(0, 0, 0)) // the defaults
	stack = stack.ResponseHeaderTimeout(o.timeout).Retry(retry)
	if o.hedge != nil {
		hedge := *o.hedge
		hedge.Budget = cmp.Or(hedge.Budget, retry.Budget)
		stack = stack.Hedge(hedge)
	}
	return stack
}

// endpointLayers adds the layers that a request passes after an endpoint was picked.
func (o *options) endpointLayers(
	mk discover.MakeService[*http.Request, *http.Response],
) discover.MakeService[*http.Request, *http.Response] {
	// Most clients have none of these layers, and then need no stack for each endpoint.
	if o.endpointLayer == nil && o.breaker == nil && o.endpointLimit == 0 {
		return mk
	}
	return func(ctx context.Context, t discover.Target) httplayer.Service {
		stack := o.stack(t.Name)
		if o.breaker != nil {
			stack = stack.Breaker(*o.breaker)
		}
		if o.endpointLimit > 0 {
			stack = stack.Limit(o.endpointLimit)
		}
		return stack.With("endpoint_layer", o.endpointLayer).Service(mk(ctx, t))
	}
}

// resolve sets the resolver for target, by DNS, or for the proxy if there is one. It returns target
// with a port.
func (o *options) resolve(target string) (string, error) {
	o.resolver, target = o.names, o.withPort(target)
	// Without a proxy, or if WithTarget names another place, the endpoints are reached directly.
	if err := dns.Validate(target); err != nil || o.proxy == nil || o.target != "" {
		return target, err
	}
	// The proxy is chosen once, for a request to the target's root.
	u := &url.URL{Scheme: "http", Host: target}
	if o.proxyTLS = cmp.Or(o.proxyTLS, o.tls); o.tls != nil {
		u.Scheme = "https"
	}
	proxy, err := o.proxy(&http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: make(http.Header)})
	if err != nil || proxy == nil {
		return target, err
	}
	return target, o.by(proxy, target)
}

// These are a Client's default limits: the time to the response headers, the time to the resolver's
// first answer, the queue's length, and the longest wait in the queue. Envoy's route timeout is also
// 15 s, and the timeout of net/http's dialer 30 s.
const (
	defaultTimeout = 15 * time.Second
	resolveTimeout = 30 * time.Second
	queueCapacity  = 1000
	queueMaxWait   = 3 * time.Second
	connectTimeout = 10 * time.Second // TCP and TLS together; http.DefaultTransport has 30 s and 10 s
	idleTimeout    = 90 * time.Second // as IdleConnTimeout of http.DefaultTransport
)

// Call sends req to an endpoint of the target.
func (c *Client) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if c.backend != nil {
		c.backend.awaitResolved(ctx)
	}
	return c.stack.Call(ctx, req)
}

// Ready waits until there is room in the queue. Unlike [Client.WaitReady], it does not wait for
// an endpoint.
func (c *Client) Ready(ctx context.Context) error { return c.stack.Ready(ctx) }

// CloseIdleConnections closes the connections to the endpoints that serve no request.
// [http.Client.CloseIdleConnections] calls it.
func (c *Client) CloseIdleConnections() {
	c.endpoints.Range(func(e, _ any) bool {
		e.(*httplayer.Endpoint).CloseIdleConnections() //nolint:errcheck,forcetypeassert // the map has nothing else
		return true
	})
}

// WaitReady waits until the target is resolved and an endpoint is ready. It returns the
// cause of ctx if ctx ends first, and an error that matches [layer.ErrClosed] if the target
// cannot be resolved. WaitReady does not connect: an endpoint is ready until a connection
// to it fails. A caller need not call WaitReady before a request, because requests wait in
// the queue. With [WithProfiles], one backend must be ready.
func (c *Client) WaitReady(ctx context.Context) error {
	if c.routed != nil {
		return c.routed.Ready(ctx)
	}
	return c.backend.balancer.WaitReady(ctx)
}

// Endpoints returns the endpoints' states, in the order of their addresses.
func (c *Client) Endpoints() []balance.EndpointState {
	if c.routed != nil {
		return c.routed.endpoints()
	}
	return c.backend.balancer.Snapshot()
}

// SetPolicy replaces the balancer's policy, which [WithPolicy] has set. Connections and
// statistics stay. The option for sticky sessions still replaces the Picker. The error comes from
// [balance.Policy.Validate].
func (c *Client) SetPolicy(p balance.Policy) error {
	if c.sticky {
		p.Picker = balance.ConsistentHash(0)
	}
	if c.routed != nil {
		return c.routed.setPolicy(p)
	}
	return c.backend.balancer.SetPolicy(p)
}

// Next returns the outermost layer of the client. [layer.Describe] calls it to show all layers.
func (c *Client) Next() httplayer.Service { return c.stack }

// Describe returns a node with the target. [layer.Describe] adds the layers and the
// endpoints.
func (c *Client) Describe() layer.Node {
	return layer.Node{Name: "client", State: layer.State{{Key: "target", Value: c.target}}}
}

// withPort adds a port to target: 443 with WithTLS, and 80 otherwise. It returns target unchanged
// if it already includes a port, is an SRV name, or is a URL.
func (o *options) withPort(target string) string {
	if _, _, err := net.SplitHostPort(target); err == nil || strings.HasPrefix(target, "_") || strings.Contains(target, "/") {
		return target
	}
	port := "80"
	if o.tls != nil {
		port = "443"
	}
	return net.JoinHostPort(strings.Trim(target, "[]"), port)
}

// endpoint returns the service of the endpoint t: a connection pool with the options for what the
// resolver knows about t, such as TLS and HTTP/2. If the resolver specifies an authority for the
// endpoint, a layer sets it.
func (o *options) endpoint(ctx context.Context, t discover.Target, c *Client, reachable *families) httplayer.Service {
	id := t.Endpoint.ID
	// To ignore what the ID requires would send cleartext to an endpoint that expects TLS or its own
	// protocol.
	if id.Identity != "" && o.tlsOf == nil || id.OpaquePort != 0 || id.Protocol == resolve.Opaque {
		return rejecting(id)
	}
	// The caller's options follow the defaults and replace them. What the resolver knows comes last, and counts most.
	opts := append([]httplayer.EndpointOption{
		httplayer.WithConnectTimeout(connectTimeout), httplayer.WithIdleTimeout(idleTimeout),
		reachable.withDialer(ctx, id.Addr.Addr()),
	}, o.endpoints...)
	if cfg := o.tlsFor(t); cfg != nil {
		opts = append(opts, httplayer.WithTLS(cfg))
	}
	if id.Protocol == resolve.H2 {
		opts = append(opts, httplayer.WithHTTP2())
	}
	if id.PingInterval > 0 {
		opts = append(opts, httplayer.WithPing(id.PingInterval, id.PingTimeout))
	}
	if id.PingWhileIdle {
		opts = append(opts, httplayer.WithPingWhileIdle())
	}
	stack := httplayer.NewStack().WithTarget(t.Name)
	if id.Authority != "" {
		stack = stack.With("override_authority", httplayer.OverrideAuthority(id.Authority))
	}
	stack = stack.With("proxy", o.absolute)
	e := httplayer.NewEndpoint(ctx, id.Addr.String(), opts...)
	if o.preconnect {
		connect(ctx, e)
	}
	// For CloseIdleConnections, until the endpoint is removed.
	c.endpoints.Store(e, nil)
	context.AfterFunc(ctx, func() { c.endpoints.Delete(e) })
	return stack.Service(e)
}

// tlsFor returns the TLS configuration for an endpoint, or nil for cleartext. The server name
// comes from WithTLS, or else from the endpoint, or else from the target's host.
func (o *options) tlsFor(t discover.Target) *tls.Config {
	cfg, name := o.tls, t.Endpoint.ServerName
	if o.tlsOf != nil {
		if cfg = o.tlsOf(t); cfg == nil {
			return nil
		}
	}
	switch {
	case cfg == nil && name == "":
		return nil
	case cfg == nil:
		// The endpoint has a server name, so it uses TLS even without WithTLS.
		cfg = new(tls.Config)
	// The name from WithTLS replaces all others.
	case cfg.ServerName != "":
		return cfg
	}
	if name == "" {
		name = hostOf(cmp.Or(o.serverName, t.Name))
	}
	cfg = cfg.Clone()
	cfg.ServerName = name
	return cfg
}

// hostOf returns the host in target as certificates name it: without the port and the trailing dot
// of a DNS name, and in ASCII. For an SRV name, that is the domain in it.
func hostOf(target string) string {
	// Domain removes the labels of an SRV name, such as _http._tcp, and changes no other name.
	target = authority.Domain(target)
	if host, _, err := net.SplitHostPort(target); err == nil {
		target = host
	}
	if ascii, err := idna.Lookup.ToASCII(target); err == nil {
		target = ascii
	}
	return strings.TrimSuffix(target, ".")
}

// rejecting returns a service that rejects all requests to the endpoint id, because nothing
// verifies its mesh identity, or because it accepts only opaque connections (not HTTP).
func rejecting(id resolve.ID) httplayer.Service {
	err := &layer.Error{
		Layer: "endpoint", Endpoint: id.Addr.String(), Kind: layer.ErrClosed,
		Reason: "the endpoint has a mesh identity, which needs WithEndpointTLS, or an opaque connection, which is not supported",
	}
	return unsupported{err}
}

// unsupported is a service that rejects all requests with err.
type unsupported struct{ err error }

func (u unsupported) Ready(context.Context) error { return u.err }

func (u unsupported) Call(context.Context, *http.Request) (*http.Response, error) { return nil, u.err }
