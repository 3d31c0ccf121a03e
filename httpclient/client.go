package httpclient

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// Client sends requests to the endpoints of one target. It is a [httplayer.Service], and an
// [http.RoundTripper] for [http.Client.Transport]. It is safe for concurrent use.
//
// The host of a request's URL does not select the endpoint: every request goes to the
// target. Use [Hosts] if a client calls several hosts or follows redirects.
//
// Admission: while no endpoint is ready, up to 1000 requests wait in the queue. A request that has
// waited for 3 s fails. When the queue is full, further requests are rejected.
//
// Cancellation: the end of a request's context ends the request.
//
// Body: the caller must close the response body.
//
// Errors: a [layer.Error] of the layer or endpoint that failed. The package documentation lists the
// layers.
//
// Cost: the sum of the costs of the layers.
type Client struct {
	target   string
	stack    httplayer.Service
	balancer *balance.Balancer[*http.Request, *http.Response]
	trip     http.RoundTripper
}

// New returns a client of target. It starts to resolve target at once, and connects when
// requests arrive. Its background work and its connections end with ctx.
//
// The target is a host name or an IP address with an optional port: "web.default:80",
// "10.0.0.1:8080". Without a port, the port is 80, or 443 with [WithTLS]. The name is
// resolved by DNS and /etc/hosts (see package dns), unless [WithAddrs] or [WithResolver] is
// set.
//
// New panics if target is empty or an option is invalid.
func New(ctx context.Context, target string, opts ...Option) *Client {
	if target == "" {
		panic("httpclient: empty target")
	}
	o := &options{timeout: defaultTimeout}
	option.Apply(o, opts)
	if o.resolver == nil {
		target = o.withPort(target)
		o.resolver = dns.New()
	}
	if o.sticky != "" {
		o.policy.Picker = balance.ConsistentHash(0)
	}
	balancing := []balance.Option[*http.Response]{
		balance.WithCompletion(httplayer.Completion), balance.WithPolicy[*http.Response](o.policy),
	}
	stack := httplayer.NewStack(httplayer.WithTarget(target))
	if o.metrics != nil {
		to := o.metrics.Layer(target)
		stack = httplayer.NewStack(httplayer.WithTarget(target), httplayer.WithMetrics(to)).Metrics(to)
		balancing = append(balancing, balance.WithMetrics[*http.Response](o.metrics.Balance(target)))
	}
	if o.sticky != "" {
		stack = stack.With("sticky_session", httplayer.StickySession(o.sticky))
	}
	mk := discover.MakeService[*http.Request, *http.Response](o.endpoint)
	if o.healthCheck != nil {
		mk = discover.WithHealthCheck(mk, o.healthCheck, o.healthPolicy)
	}
	if o.endpointLayer != nil {
		endpoint := mk
		mk = func(ctx context.Context, t discover.Target) httplayer.Service {
			return httplayer.NewStack(httplayer.WithTarget(t.Name)).With("endpoint_layer", o.endpointLayer).Service(endpoint(ctx, t))
		}
	}
	c := &Client{target: target, balancer: balance.Resolve(ctx, o.resolver, target, mk, balancing...)}
	c.stack = stack.
		ResponseHeaderTimeout(o.timeout).
		Retry(o.retry).
		Queue(queueCapacity, queueMaxWait).
		Service(c.balancer)
	c.trip = httplayer.RoundTripper(c.stack)
	return c
}

// The default limits of a Client: the time to the response headers, the length of the
// queue, and the longest wait in the queue. Envoy's route timeout is also 15 s.
const (
	defaultTimeout = 15 * time.Second
	queueCapacity  = 1000
	queueMaxWait   = 3 * time.Second
)

// Call sends req to an endpoint of the target.
func (c *Client) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	return c.stack.Call(ctx, req)
}

// Ready waits until the queue has room. Unlike [Client.WaitReady], it does not wait for an
// endpoint.
func (c *Client) Ready(ctx context.Context) error { return c.stack.Ready(ctx) }

// RoundTrip implements [http.RoundTripper].
func (c *Client) RoundTrip(req *http.Request) (*http.Response, error) { return c.trip.RoundTrip(req) }

// WaitReady waits until the target is resolved and an endpoint is ready. It returns the
// cause of ctx if ctx ends first, and an error that matches [layer.ErrClosed] if the target
// cannot be resolved. WaitReady does not connect: an endpoint is ready until a connection
// to it fails. A caller need not call WaitReady before a request, because requests wait in
// the queue.
func (c *Client) WaitReady(ctx context.Context) error { return c.balancer.Ready(ctx) }

// Endpoints returns the states of the endpoints, in the order of their addresses.
func (c *Client) Endpoints() []balance.EndpointState { return c.balancer.Snapshot() }

// Next returns the outermost layer of the client. [layer.Describe] calls it to show all layers.
func (c *Client) Next() httplayer.Service { return c.stack }

// Describe returns a node with the target. [layer.Describe] adds the layers and the
// endpoints.
func (c *Client) Describe() layer.Node {
	return layer.Node{Name: "client", State: layer.State{{Key: "target", Value: c.target}}}
}

// withPort adds a port to target: 443 with WithTLS, and 80 otherwise. It returns target
// unchanged if target has a port already or is the name of an SRV record.
func (o *options) withPort(target string) string {
	if _, _, err := net.SplitHostPort(target); err == nil || strings.HasPrefix(target, "_") {
		return target
	}
	port := "80"
	if o.tls != nil {
		port = "443"
	}
	return net.JoinHostPort(strings.Trim(target, "[]"), port)
}

// endpoint returns the service of the endpoint t: a connection pool. If the resolver specifies an
// authority for the endpoint, a layer sets it.
func (o *options) endpoint(ctx context.Context, t discover.Target) httplayer.Service {
	id := t.Endpoint.ID
	if id.Identity != "" || id.OpaquePort != 0 || id.Protocol == resolve.Opaque {
		return rejecting(id)
	}
	opts := append([]httplayer.EndpointOption{}, o.endpoints...)
	if cfg := o.tlsFor(t); cfg != nil {
		opts = append(opts, httplayer.WithTLS(cfg))
	}
	if id.Protocol == resolve.H2 {
		opts = append(opts, httplayer.WithHTTP2())
	}
	if id.PingInterval > 0 {
		opts = append(opts, httplayer.WithPing(id.PingInterval, id.PingTimeout))
	}
	stack := httplayer.NewStack(httplayer.WithTarget(t.Name))
	if id.Authority != "" {
		stack = stack.With("override_authority", httplayer.OverrideAuthority(id.Authority))
	}
	return stack.Service(httplayer.NewEndpoint(ctx, id.Addr.String(), opts...))
}

// tlsFor returns the TLS configuration for an endpoint, or nil for cleartext. The server
// name is that of WithTLS, or else that of the endpoint, or else the host of the target.
func (o *options) tlsFor(t discover.Target) *tls.Config {
	cfg, name := o.tls, t.Endpoint.ServerName
	switch {
	case cfg == nil && name == "":
		return nil
	case cfg == nil:
		cfg = new(tls.Config)
	case cfg.ServerName != "":
		return cfg
	}
	if name == "" {
		name = hostOf(t.Name)
	}
	cfg = cfg.Clone()
	cfg.ServerName = name
	return cfg
}

// hostOf returns the host in target, without the port and without the trailing dot of a DNS
// name. The host of SRV records is the domain in their name.
func hostOf(target string) string {
	target = authority.Domain(target)
	if host, _, err := net.SplitHostPort(target); err == nil {
		target = host
	}
	return strings.TrimSuffix(target, ".")
}

// rejecting returns a service that rejects all requests to the endpoint id. The client does not
// support such an endpoint, because it requires a mesh identity (mutual TLS) or an opaque
// connection (not HTTP).
func rejecting(id resolve.ID) httplayer.Service {
	err := &layer.Error{
		Layer: "endpoint", Endpoint: id.Addr.String(), Kind: layer.ErrClosed,
		Reason: "the endpoint requires a mesh identity or an opaque connection, which httpclient does not support",
	}
	return unsupported{err}
}

type unsupported struct{ err error }

func (u unsupported) Ready(context.Context) error { return u.err }

func (u unsupported) Call(context.Context, *http.Request) (*http.Response, error) { return nil, u.err }
