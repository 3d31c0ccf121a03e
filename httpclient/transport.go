package httpclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// Transport is an [http.RoundTripper] for any host, in place of [http.DefaultTransport]. It keeps a [Client]
// for each scheme, host and port, which it makes when the first request arrives and removes once the host has
// been idle for as long as [WithIdleHosts] says. It is safe for concurrent use. "As http.Transport" in the
// package documentation lists the differences.
//
// The connections of a removed Client that serve a response stay open until its body is closed.
type Transport struct {
	ctx      context.Context //nolint:containedctx // that of NewTransport
	opts     []Option
	names    resolve.Resolver                      // for hosts without a resolver of their own; shared
	proxy    func(*http.Request) (*url.URL, error) // may be nil
	hosts    HostFunc                              // may be nil
	idle     time.Duration                         // see WithIdleHosts
	maxHosts int                                   // the number of clients from which a new one replaces another
	metrics  Metrics

	epoch  atomic.Uint32 // number of calls of sweep
	making sync.Mutex    // held while a client is made

	mu      sync.RWMutex
	clients map[hostKey]*hostClient
	timer   *time.Timer // calls sweep; nil if it is not running
}

// hostKey identifies a client of a Transport.
type hostKey struct {
	scheme, host, port string
	proxy              string // the URL of the proxy, or ""
}

// keyOf returns the key of u, without a proxy. It does not allocate for a URL in lower case.
func keyOf(u *url.URL) hostKey {
	k := hostKey{scheme: strings.ToLower(u.Scheme), host: strings.ToLower(u.Hostname()), port: u.Port()}
	switch {
	case k.port != "":
	case k.scheme == "https":
		k.port = "443"
	default:
		k.port = "80"
	}
	return k
}

// addr returns the host and the port.
func (k hostKey) addr() string { return net.JoinHostPort(k.host, k.port) }

// hostClient is a Client in a Transport, with what the Transport must know to remove it when it is
// idle.
type hostClient struct {
	*Client
	end    context.CancelFunc // ends the context of Client
	active atomic.Int64       // calls of RoundTrip in progress; less than 0 after the client was removed
	used   atomic.Uint32      // Transport.epoch when the last request ended, or when the client was made
}

// removed is the value of hostClient.active after the client was removed. It is so low that calls which
// still add 1 leave it below 0.
const removed = -1 << 62

// HostFunc returns the options for a host, which follow those of the Transport. It receives the host in
// the URL in lower case, with a port: "web.default:80". An error refuses the host: its requests fail
// with that error. See [OnlyHosts].
type HostFunc func(host string) ([]Option, error)

// WithHosts sets the function that [NewTransport] calls for each new host. By default every host is
// allowed, and is resolved by its own name. The function should return soon, because new hosts wait for
// each other. [New] ignores it.
func WithHosts(f HostFunc) Option { return func(o *options) { o.hosts = f } }

// OnlyHosts returns a [HostFunc] for the hosts in known, and refuses all others. A key is a host such
// as "web.default" or "[::1]", or one with a port, "web.default:8080", which takes precedence.
// OnlyHosts panics if a key is not of this form.
func OnlyHosts(known map[string][]Option) HostFunc {
	for key := range known {
		// A key that is only a host survives url.Parse unchanged, unlike one with a path, a user or a query.
		if u, err := url.Parse("http://" + key); err != nil || u.Host != key || key != strings.ToLower(key) || key == "" {
			panic(fmt.Sprintf("httpclient: OnlyHosts: key is %q, want a host in lower case, with or without a port", key))
		}
	}
	return func(host string) ([]Option, error) {
		if opts, ok := known[host]; ok {
			return opts, nil
		}
		name, _, _ := authority.CutPort(host)
		if opts, ok := known[name]; ok {
			return opts, nil
		}
		return nil, errors.New("not a known host")
	}
}

// WithTarget sets the name that is resolved instead of a URL's host, in the forms of [New]. TLS still
// uses that host as the server name. You can use it in a [HostFunc].
func WithTarget(target string) Option { return func(o *options) { o.target = target } }

// WithIdleHosts sets the time without a request after which [NewTransport] removes a host's client. The
// default is 90 s. At least d, and at most 1.5 d, pass. A d of 0 or less panics.
func WithIdleHosts(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("httpclient: WithIdleHosts is %v, want more than 0", d))
	}
	return func(o *options) { o.idleHosts = d }
}

const (
	defaultIdleHosts = 90 * time.Second // as IdleConnTimeout of http.DefaultTransport
	defaultMaxHosts  = 1000
)

// NewTransport returns a Transport. The options apply to each host. Its background work and its
// connections end with ctx. By default there is no time limit for the response headers, as in
// [http.DefaultTransport]; see [WithTimeout]. With more than 1000 hosts, a new one replaces the one
// that was unused for the longest time, if it has no request in progress.
func NewTransport(ctx context.Context, opts ...Option) *Transport {
	o := options{proxy: fromEnvironment(), idleHosts: defaultIdleHosts}
	option.Apply(&o, opts)
	t := &Transport{
		ctx: ctx, opts: slices.Clone(opts), names: dns.New(), proxy: o.proxy, hosts: o.hosts, idle: o.idleHosts,
		maxHosts: defaultMaxHosts, metrics: o.metrics, clients: make(map[hostKey]*hostClient),
	}
	context.AfterFunc(ctx, t.stop)
	return t
}

// RoundTrip implements [http.RoundTripper]. It sends req by the client for its host, which it makes if
// necessary.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, err := t.acquire(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	defer c.release(t)
	return c.RoundTrip(req)
}

// acquire returns the client for req, which the caller must release.
func (t *Transport) acquire(req *http.Request) (*hostClient, error) {
	if req.URL == nil {
		return nil, errors.New("httpclient: the request has no URL")
	}
	k := keyOf(req.URL)
	switch {
	case k.scheme != "http" && k.scheme != "https":
		return nil, fmt.Errorf("httpclient: %s: the scheme of the URL is %q, want http or https", req.URL.Redacted(), req.URL.Scheme)
	case k.host == "":
		return nil, fmt.Errorf("httpclient: %s: the URL has no host", req.URL.Redacted())
	}
	var proxy *url.URL
	if t.proxy != nil {
		var err error
		if proxy, err = t.proxy(req); err != nil {
			return nil, fmt.Errorf("httpclient: the proxy for %s: %w", k.addr(), err)
		}
		if proxy != nil {
			k.proxy = proxy.String()
		}
	}
	for {
		t.mu.RLock()
		c := t.clients[k]
		t.mu.RUnlock()
		if c == nil {
			var err error
			if c, err = t.add(k, proxy); err != nil {
				return nil, err
			}
		}
		// active stays negative after the client was removed, possibly since it was found. Then the loop makes a new one.
		if c.active.Add(1) > 0 {
			return c, nil
		}
	}
}

// release ends a use of c by t, and notes its time for sweep.
func (c *hostClient) release(t *Transport) {
	// Load first, because all requests of a host share this memory.
	if now := t.epoch.Load(); c.used.Load() != now {
		c.used.Store(now)
	}
	c.active.Add(-1)
}

// add makes the client for k, unless another call has done so.
func (t *Transport) add(k hostKey, by *url.URL) (*hostClient, error) {
	// Not mu, because WithHosts' function may be slow, and requests to known hosts need mu.
	t.making.Lock()
	defer t.making.Unlock()
	t.mu.RLock()
	c, count := t.clients[k], len(t.clients)
	t.mu.RUnlock()
	if c != nil {
		return c, nil
	}
	if t.ctx.Err() != nil {
		return nil, &layer.Error{Layer: "transport", Target: k.addr(), Kind: layer.ErrClosed, Err: context.Cause(t.ctx)}
	}
	if count >= t.maxHosts {
		t.removeOldest()
	}
	c, err := t.newClient(k, by)
	if err != nil {
		return nil, fmt.Errorf("httpclient: host %s: %w", k.addr(), err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients[k] = c
	if t.timer == nil && t.ctx.Err() == nil {
		t.timer = time.AfterFunc(t.idle/2, t.sweep)
	}
	return c, nil
}

// newClient returns the client for k. by is the URL of the proxy, or nil.
func (t *Transport) newClient(k hostKey, by *url.URL) (*hostClient, error) {
	o := options{anyHost: true}
	option.Apply(&o, t.opts)
	if t.hosts != nil {
		hostOptions, err := t.hosts(k.addr())
		if err != nil {
			return nil, err
		}
		option.Apply(&o, hostOptions)
	}
	// The name in the URL is verified, whatever the host's options resolve instead.
	o.serverName, o.proxyTLS = k.host, o.tls
	// The TLS options are meant for https only, which always uses TLS.
	switch {
	case k.scheme == "http":
		o.tls = nil
	case o.tls == nil:
		WithTLS(nil)(&o)
	}
	// A host with its own endpoints is reached directly.
	o.proxy = nil
	if o.resolver == nil && o.target == "" && by != nil {
		o.proxy = http.ProxyURL(by)
	}
	if o.names == nil {
		o.names = t.names
	}
	target := k.addr()
	if o.target != "" {
		target = o.target
	}
	ctx, end := context.WithCancel(t.ctx)
	c := &hostClient{end: end}
	c.used.Store(t.epoch.Load())
	var err error
	if c.Client, err = o.client(ctx, target); err != nil {
		end()
		return nil, err
	}
	return c, nil
}

// sweep removes the clients that are idle, and starts the timer again if clients are left. It runs
// twice in the idle time. A client without a request for more than two runs is idle.
func (t *Transport) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.epoch.Add(1)
	for k, c := range t.clients {
		if now-c.used.Load() > 2 {
			t.remove(k, c)
		}
	}
	// Without clients no timer runs; add starts it again.
	t.timer = nil
	if len(t.clients) > 0 && t.ctx.Err() == nil {
		t.timer = time.AfterFunc(t.idle/2, t.sweep)
	}
}

// removeOldest removes the client that was not used for the longest time, to make room for another one.
// It removes none if all have a request in progress.
func (t *Transport) removeOldest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, age := t.epoch.Load(), uint32(0)
	var oldest hostKey
	for k, c := range t.clients {
		// With 1 added, a client that was used since the last sweep can be the oldest, too.
		if unused := now - c.used.Load() + 1; unused > age && c.active.Load() == 0 {
			oldest, age = k, unused
		}
	}
	if age > 0 {
		t.remove(oldest, t.clients[oldest])
	}
}

// remove ends the client c, unless it has a request in progress. The caller holds mu.
func (t *Transport) remove(k hostKey, c *hostClient) {
	// From now on, acquire cannot use c.
	if !c.active.CompareAndSwap(0, removed) {
		return
	}
	delete(t.clients, k)
	c.end()
	if m, ok := t.metrics.(forgetter); ok {
		m.Forget(c.target)
	}
}

// forgetter is implemented by the Metrics of promtower and oteltower.
type forgetter interface{ Forget(target string) }

// stop forgets all clients. It is called when the Transport's context ends, which ends the clients.
func (t *Transport) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.clients)
	if t.timer != nil {
		t.timer.Stop()
	}
}

// Hosts returns the hosts for which there is a client, sorted. A host with clients for several schemes
// or proxies is listed once for each.
func (t *Transport) Hosts() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	hosts := make([]string, 0, len(t.clients))
	for k := range t.clients {
		hosts = append(hosts, k.addr())
	}
	slices.Sort(hosts)
	return hosts
}

// CloseIdleConnections closes the connections that serve no request. [http.Client.CloseIdleConnections]
// calls it.
func (t *Transport) CloseIdleConnections() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, c := range t.clients {
		c.CloseIdleConnections()
	}
}

// Describe shows the layers of each host.
func (t *Transport) Describe() layer.Node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := layer.Node{Name: "transport", State: layer.State{{Key: "hosts", Value: len(t.clients)}}}
	for _, c := range t.clients {
		n.Children = append(n.Children, layer.Describe(c.Client))
	}
	return n
}
