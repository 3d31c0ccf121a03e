package tcplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Endpoint makes TCP connections to one address. It is a [Service] and safe for concurrent use. It
// is ready unless the last connection attempt failed.
//
// Admission: Call connects. After a failed attempt, TLS included, Call rejects requests until a
// backoff ends. Then one attempt at a time is allowed, the probe. If a caller waits in Ready, Ready
// makes the probe and closes the new connection. Otherwise the next Call is the probe.
//
// Cancellation: when ctx ends, Call rejects the request. The attempt continues up to the limit of
// [WithConnectTimeout], because its result updates the endpoint's state. The end of ctx does not
// affect a returned connection; see [UntilClosed].
//
// Body: the caller must close the connection.
//
// Errors: each error is a rejection. It is a [layer.Error] with the address and the last failure.
// Its RetryAfter is the rest of the backoff.
//
// Cost: a dial, and one goroutine while it runs. A rejection costs one allocation and one lock.
type Endpoint struct {
	addr string
	opts endpointOptions
	ctx  context.Context  //nolint:containedctx // ctx of NewEndpoint, the parent of each attempt
	wake notify.Broadcast // wakes callers in Ready when the link changes or ctx ends
	link link             // whether the address can be reached, and when it is tried again

	connecting, connections atomic.Int64 // number of attempts in progress, and of connections made so far
}

// NewEndpoint returns an Endpoint for addr, "host:port". It does not connect yet. When ctx
// ends, attempts end and Call rejects requests with [layer.ErrClosed]. Open connections
// stay open, because they belong to the callers. NewEndpoint panics if addr is empty. The
// first Call returns an error if addr is malformed.
func NewEndpoint(ctx context.Context, addr string, opts ...EndpointOption) *Endpoint {
	if addr == "" {
		panic("tcplayer: empty address")
	}
	e := &Endpoint{addr: addr, opts: newEndpointOptions(addr, opts), ctx: ctx}
	e.link.backoff, e.link.timeout = e.opts.backoff, e.opts.connectTimeout
	context.AfterFunc(ctx, e.wake.Wake)
	return e
}

// Call makes a connection to the address. It uses the request only for [WithProxyHeader].
func (e *Endpoint) Call(ctx context.Context, req Request) (net.Conn, error) {
	switch {
	case e.ctx.Err() != nil:
		return nil, e.closedError()
	case ctx.Err() != nil:
		return nil, e.reject(ctxreason.Text(ctx), 0, context.Cause(ctx))
	}
	// While the address cannot be reached, only one request at a time may try it.
	isProbe, wait, err := e.link.admit()
	if err != nil {
		return nil, e.reject("no connection", wait, err)
	}
	// The attempt has its own goroutine, because it goes on after the end of ctx.
	// Not buffered, so that attempt knows whether Call has taken the connection.
	out := make(chan attempt)
	go e.attempt(req, isProbe, out, ctx.Done())
	select {
	case a := <-out:
		switch {
		case a.err == nil:
			return a.conn, nil
		// The attempt failed because the Endpoint was closed.
		case e.ctx.Err() != nil:
			return nil, e.closedError()
		}
		return nil, e.reject("no connection", 0, a.err)
	case <-ctx.Done():
		return nil, e.reject(ctxreason.Text(ctx), 0, context.Cause(ctx))
	}
}

// attempt is the result of one connection attempt of Call.
type attempt struct {
	conn net.Conn
	err  error
}

// attempt connects for a Call and sends the result to the channel out. If the channel done is
// closed, because the Call has ended, attempt closes the connection. isProbe is true if the attempt
// is a probe.
func (e *Endpoint) attempt(req Request, isProbe bool, out chan<- attempt, done <-chan struct{}) {
	conn, err := e.connect(req, isProbe)
	select {
	case out <- attempt{conn, err}:
	// Call has ended without the connection, so it must be closed here.
	case <-done:
		if err == nil {
			_ = panics.Contain(func() { _ = conn.Close() })
		}
	}
}

// probe connects without a request and closes the connection, to find out whether the
// address can be reached.
func (e *Endpoint) probe() {
	if conn, err := e.connect(Request{}, true); err == nil { // a probe
		_ = panics.Contain(func() { _ = conn.Close() })
	}
}

// connect makes a connection within the connect timeout and reports the result to e.link, the state
// of the path to the address. isProbe is true for a probe.
func (e *Endpoint) connect(req Request, isProbe bool) (net.Conn, error) {
	e.connecting.Add(1)
	// The Endpoint's context, and not that of the request: the result is also of use for later requests.
	ctx, cancel := context.WithTimeout(e.ctx, e.opts.connectTimeout)
	conn, err := e.dial(ctx, req)
	cancel()
	e.connecting.Add(-1)
	if err == nil {
		e.connections.Add(1)
	}
	// Callers that wait in Ready look at the link again.
	if e.link.report(isProbe, err) {
		e.wake.Wake()
	}
	return conn, err
}

// dial makes a TCP connection, sets the socket options, sends the header of the PROXY protocol with
// the addresses in req and does the TLS handshake. It returns a panic of a callback as an error,
// because it runs on a goroutine of the Endpoint.
func (e *Endpoint) dial(ctx context.Context, req Request) (_ net.Conn, err error) {
	var conn net.Conn
	defer func() {
		// A failed handshake or header leaves a connection that must be closed.
		if err != nil && conn != nil {
			_ = panics.Contain(func() { _ = conn.Close() })
		}
	}()
	defer panics.Recover(&err)
	if conn, err = e.opts.dial(ctx, "tcp", e.addr); err != nil {
		// The function may return a typed nil, or a connection, together with an error.
		conn = nil
		return nil, err
	}
	if conn == nil {
		return nil, errNoConn
	}
	if err := e.opts.sockets.set(conn); err != nil {
		return nil, err
	}
	// The header of the PROXY protocol comes before all other bytes.
	if e.opts.proxyHeader != nil {
		if err := write(ctx, conn, e.opts.proxyHeader(req.Client, req.Server)); err != nil {
			return nil, err
		}
	}
	if e.opts.tls == nil {
		return conn, nil
	}
	secure := tls.Client(newEOFConn(conn), e.opts.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure, nil
}

// errNoConn is the error of a dial function that does not do what it must.
var errNoConn = errors.New("the dial function returned neither a connection nor an error")

// Ready returns nil unless the last attempt failed. After a failure it starts probes, one
// after each backoff, and waits until an attempt succeeds.
func (e *Endpoint) Ready(ctx context.Context) error {
	for {
		// Read before the state, so that await notices a change in between.
		changes := e.link.changes.Load()
		switch {
		case e.ctx.Err() != nil:
			return e.closedError()
		case !e.link.down.Load():
			return nil
		case ctx.Err() != nil:
			return &layer.Error{
				Layer: "endpoint", Endpoint: e.addr, Kind: context.Cause(ctx), Reason: "no connection", Err: e.link.lastError(),
			}
		}
		// If another probe runs, wait is the time until the next one may begin.
		isProbe, wait, _ := e.link.admit()
		if isProbe {
			wait = e.link.timeout
			// The loop may start another probe after the time limit, even if this one is stuck.
			go e.probe()
		}
		e.await(ctx, wait, changes)
	}
}

// await waits until the link's state has changed, d has passed, ctx ends, or the Endpoint is
// closed. The state has changed if its change counter differs from changes.
func (e *Endpoint) await(ctx context.Context, d time.Duration, changes uint64) {
	// The wait ends at the next probe, or when something has changed.
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool { return e.link.changes.Load() != changes || e.ctx.Err() != nil })
}

// reject returns a rejection with the given reason and cause. retryAfter is the time after which
// another attempt may succeed, or 0 if it is unknown.
func (e *Endpoint) reject(reason string, retryAfter time.Duration, cause error) error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrNotReady, Reason: reason, RetryAfter: retryAfter, Err: cause}
}

// closedError returns the error of all requests after the Endpoint's context has ended.
func (e *Endpoint) closedError() error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrClosed, Err: context.Cause(e.ctx)}
}

// Describe shows the address, the number of attempts and connections, and the link's state.
func (e *Endpoint) Describe() layer.Node {
	return layer.Node{Name: "endpoint", State: e.link.describe(layer.State{
		{Key: "addr", Value: e.addr}, {Key: "connecting", Value: e.connecting.Load()}, {Key: "made", Value: e.connections.Load()},
	})}
}

// EndpointOption is an option of [NewEndpoint].
type EndpointOption interface{ apply(o *endpointOptions) }

// endpointOptions holds the options of an Endpoint.
type endpointOptions struct {
	connectTimeout time.Duration
	backoff        layer.Backoff
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	tls            *tls.Config
	sockets        sockets
	proxyHeader    func(client, server netip.AddrPort) []byte // nil means no header
}

// endpointOption is an EndpointOption that is only a function.
type endpointOption func(*endpointOptions)

func (f endpointOption) apply(o *endpointOptions) { f(o) }

// WithConnectTimeout limits how long a connection attempt may take, including the TLS handshake.
// The default is 1 s, as in linkerd's proxy. A d of 0 or less selects the default.
func WithConnectTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.connectTimeout = d })
}

// WithBackoff sets the backoff after a failed attempt. Without this option, or if b is zero, the
// backoff is 100 ms to 1 s with a jitter of 10 %. In any other b, a Min or Max of 0 means the value
// in [layer.DefaultBackoff]. Invalid values panic. Requests may be rejected until the end of the backoff
// although the address can be reached again, unless they wait in a Queue.
func WithBackoff(b layer.Backoff) EndpointOption {
	if err := backoff.Check(b); err != nil {
		panic("tcplayer: WithBackoff: " + err.Error())
	}
	return endpointOption(func(o *endpointOptions) { o.backoff = b })
}

// WithDialContext replaces the function that makes the TCP connection, for example by one
// for a Unix socket or a proxy. Its argument network is "tcp". The function must return
// when ctx ends, but ctx must not affect the returned connection. A nil dial panics.
func WithDialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	if dial == nil {
		panic("tcplayer: nil dial function")
	}
	return endpointOption(func(o *endpointOptions) { o.dial = dial })
}

// WithTLS makes the Endpoint use TLS with a clone of cfg. A nil cfg means no TLS. An empty
// ServerName is replaced by the host in the address.
func WithTLS(cfg *tls.Config) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.tls = cfg.Clone() })
}

// defaultConnectTimeout is the time limit for one attempt to connect, unless an option sets another.
const defaultConnectTimeout = time.Second

// newEndpointOptions returns the options in opts, with defaults for what they leave out.
func newEndpointOptions(addr string, opts []EndpointOption) endpointOptions {
	o := endpointOptions{dial: new(net.Dialer).DialContext}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.connectTimeout <= 0 {
		o.connectTimeout = defaultConnectTimeout
	}
	if o.backoff == (layer.Backoff{}) {
		o.backoff = backoff.Connect()
	}
	o.backoff = o.backoff.OrDefault()
	// crypto/tls needs a name to verify the certificate.
	if o.tls != nil && o.tls.ServerName == "" {
		o.tls.ServerName = addr
		if host, _, err := net.SplitHostPort(addr); err == nil {
			o.tls.ServerName = host
		}
	}
	return o
}

// link is the state of the path to an address. It is up at first, down after a failed
// attempt, and up again after a successful one. While it is down, one probe is allowed
// after each backoff.
type link struct {
	backoff layer.Backoff
	timeout time.Duration // limit of one attempt; the next probe starts after it at the earliest

	changes atomic.Uint64 // number of changes of the state
	down    atomic.Bool   // written with mu held

	mu       sync.Mutex
	failures int       // number of failed attempts since the last success
	next     time.Time // time of the next probe, while the link is down
	err      error     // error of the last failed attempt; nil while the link is up
}

// admit returns a nil error if a request may connect now. While the link is down, it
// returns the last error and the rest of the backoff. After the backoff it admits one
// request, or one waiting Ready, as the probe. The result isProbe is true for the probe.
func (l *link) admit() (isProbe bool, wait time.Duration, err error) {
	if !l.down.Load() {
		return false, 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Another goroutine may have brought the link up before the lock was taken.
	if !l.down.Load() {
		return false, 0, nil
	}
	now := time.Now()
	// The backoff is not over.
	if wait = l.next.Sub(now); wait > 0 {
		return false, wait, l.err
	}
	l.next = now.Add(l.timeout) // the next probe waits until the time limit of this one
	return true, 0, nil
}

// report records an attempt's result. It returns true if a waiting Ready must look at the link again,
// because the link came up or went down, or because a probe failed and a new backoff begins. While the
// link is down, report ignores the failure of an attempt that is not a probe: it began before the link
// went down.
func (l *link) report(isProbe bool, err error) (changed bool) {
	// Usually the link is up and stays so, which needs no lock.
	if err == nil && !l.down.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	down := l.down.Load()
	switch {
	case err == nil:
		l.failures, l.err = 0, nil
	case down && !isProbe:
		return false
	default:
		l.err = err
		l.next = time.Now().Add(l.backoff.Delay(l.failures))
		l.failures++
	}
	l.down.Store(err != nil)
	// A waiting Ready notices the change by this number.
	l.changes.Add(1)
	return true
}

// lastError returns the error of the last failed attempt, or nil if the link is up.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// describe appends the state of the link to s.
func (l *link) describe(s layer.State) layer.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	// down is also read without the mutex. With the mutex held, it fits the other fields.
	if !l.down.Load() {
		return append(s, layer.Attr{Key: "link", Value: "up"})
	}
	return append(s,
		layer.Attr{Key: "link", Value: "down"},
		layer.Attr{Key: "failures", Value: l.failures},
		layer.Attr{Key: "retry_in", Value: max(0, time.Until(l.next).Round(time.Millisecond))},
		layer.Attr{Key: "error", Value: fmt.Sprint(l.err)})
}
