package tcplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Endpoint makes connections to one address. It is a [Service], safe for
// concurrent use, and ready until a connection attempt fails.
//
// Admission: Call connects. After a failure, TLS included, requests are rejected until a
// backoff ends. Then one probe runs at a time. A waiting Ready starts it and closes the probe
// connection; without a waiting Ready, the next Call is the probe.
//
// Cancellation: when ctx ends, Call rejects the request. The attempt continues
// until [WithConnectTimeout], because its result updates the state of the
// endpoint. ctx does not affect a returned connection, see [UntilClosed].
//
// Body: the caller must close the connection.
//
// Errors: each error is a rejection, a [layer.Error] with the address, the last
// failure, and in RetryAfter the rest of the backoff.
//
// Cost: a dial, and one goroutine during it. A rejection costs one allocation and one lock.
type Endpoint struct {
	addr string
	opts endpointOptions
	life context.Context //nolint:containedctx // of NewEndpoint, the parent of each attempt
	wake notify.Broadcast
	link link

	connecting, made atomic.Int64
}

// NewEndpoint returns an Endpoint for addr, "host:port". It does not connect yet. When ctx
// ends, attempts end and Call rejects requests with [layer.ErrClosed]. Open connections stay
// open, because they belong to their callers. An empty addr panics. A malformed addr is an
// error of the first Call.
func NewEndpoint(ctx context.Context, addr string, opts ...EndpointOption) *Endpoint {
	if addr == "" {
		panic("tcplayer: empty address")
	}
	e := &Endpoint{addr: addr, opts: newEndpointOptions(addr, opts), life: ctx}
	e.link.backoff, e.link.timeout = e.opts.backoff, e.opts.connectTimeout
	context.AfterFunc(ctx, e.wake.Wake)
	return e
}

// Call connects.
func (e *Endpoint) Call(ctx context.Context, _ Request) (net.Conn, error) {
	switch {
	case e.life.Err() != nil:
		return nil, e.closedError()
	case ctx.Err() != nil:
		return nil, e.reject(ctxreason.Text(ctx), 0, context.Cause(ctx))
	}
	trial, wait, err := e.link.admit()
	if err != nil {
		return nil, e.reject("no connection", wait, err)
	}
	out := make(chan attempt)
	go e.attempt(trial, out, ctx.Done())
	select {
	case a := <-out:
		switch {
		case a.err == nil:
			return a.conn, nil
		case e.life.Err() != nil:
			return nil, e.closedError()
		}
		return nil, e.reject("no connection", 0, a.err)
	case <-ctx.Done():
		return nil, e.reject(ctxreason.Text(ctx), 0, context.Cause(ctx))
	}
}

// attempt is the result of a connection attempt.
type attempt struct {
	conn net.Conn
	err  error
}

// attempt connects for a request. It closes the connection if done is closed first.
func (e *Endpoint) attempt(trial bool, out chan<- attempt, done <-chan struct{}) {
	conn, err := e.connect(trial)
	select {
	case out <- attempt{conn, err}:
	case <-done:
		if err == nil {
			_ = panics.Contain(func() { _ = conn.Close() })
		}
	}
}

// probe connects and closes the connection.
func (e *Endpoint) probe() {
	if conn, err := e.connect(true); err == nil {
		_ = panics.Contain(func() { _ = conn.Close() })
	}
}

// connect makes a connection and reports the result to the link.
func (e *Endpoint) connect(trial bool) (net.Conn, error) {
	e.connecting.Add(1)
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	conn, err := e.dial(ctx)
	cancel()
	e.connecting.Add(-1)
	if err == nil {
		e.made.Add(1)
	}
	if e.link.report(trial, err) {
		e.wake.Wake()
	}
	return conn, err
}

// dial makes the connection, TLS included. It returns a panic of a callback as
// an error, because it runs on a goroutine of the Endpoint.
func (e *Endpoint) dial(ctx context.Context) (_ net.Conn, err error) {
	var conn net.Conn
	defer func() {
		if err != nil && conn != nil {
			_ = panics.Contain(func() { _ = conn.Close() })
		}
	}()
	defer panics.Recover(&err)
	if conn, err = e.opts.dial(ctx, "tcp", e.addr); err != nil {
		conn = nil
		return nil, err
	}
	if conn == nil {
		return nil, errNoConn
	}
	if err := e.opts.sockets.set(conn); err != nil {
		return nil, err
	}
	if e.opts.tls == nil {
		return conn, nil
	}
	secure := tls.Client(&eofConn{Conn: conn}, e.opts.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure, nil
}

var errNoConn = errors.New("the dial function returned neither a connection nor an error")

// Ready returns nil unless the last attempt failed. Then it waits and probes.
func (e *Endpoint) Ready(ctx context.Context) error {
	for {
		seen := e.link.changes.Load()
		switch {
		case e.life.Err() != nil:
			return e.closedError()
		case !e.link.down.Load():
			return nil
		case ctx.Err() != nil:
			return &layer.Error{
				Layer: "endpoint", Endpoint: e.addr, Kind: context.Cause(ctx), Reason: "no connection", Err: e.link.lastError(),
			}
		}
		trial, wait := e.link.startProbe()
		if trial {
			go e.probe()
		}
		e.await(ctx, wait, seen)
	}
}

// await waits for d, for ctx, or for a change of the link.
func (e *Endpoint) await(ctx context.Context, d time.Duration, seen uint64) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool { return e.link.changes.Load() != seen || e.life.Err() != nil })
}

// reject returns a rejection.
func (e *Endpoint) reject(reason string, after time.Duration, cause error) error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrNotReady, Reason: reason, RetryAfter: after, Err: cause}
}

func (e *Endpoint) closedError() error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrClosed, Err: context.Cause(e.life)}
}

// Describe shows the address, the number of attempts and connections, and the
// state of the link.
func (e *Endpoint) Describe() layer.Node {
	return layer.Node{Name: "endpoint", State: e.link.describe(layer.State{
		{Key: "addr", Value: e.addr}, {Key: "connecting", Value: e.connecting.Load()}, {Key: "made", Value: e.made.Load()},
	})}
}

// EndpointOption is an option of [NewEndpoint].
type EndpointOption interface{ apply(o *endpointOptions) }

type endpointOptions struct {
	connectTimeout time.Duration
	backoff        layer.Backoff
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	tls            *tls.Config
	sockets        sockets
}

type endpointOption func(*endpointOptions)

func (f endpointOption) apply(o *endpointOptions) { f(o) }

// WithConnectTimeout limits a connection attempt, TLS included. The default is
// 1 s, as in linkerd's proxy. A d of 0 or less means the default.
func WithConnectTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.connectTimeout = d })
}

// WithBackoff sets the backoff after a failed attempt. The default is 100 ms to 1 s with a
// jitter of 10 %. Zero fields have the values of [layer.DefaultBackoff]. Invalid values panic.
func WithBackoff(b layer.Backoff) EndpointOption {
	if err := backoff.Check(b); err != nil {
		panic("tcplayer: WithBackoff: " + err.Error())
	}
	return endpointOption(func(o *endpointOptions) { o.backoff = b })
}

// WithDialContext replaces the dial function, such as for a Unix socket or a
// proxy. The network is "tcp". The function must return when ctx ends, and ctx
// must not affect the returned connection. A nil dial panics.
func WithDialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	if dial == nil {
		panic("tcplayer: nil dial function")
	}
	return endpointOption(func(o *endpointOptions) { o.dial = dial })
}

// WithTLS makes the Endpoint use TLS. It clones cfg; nil means no TLS. An empty
// ServerName becomes the host of the address.
func WithTLS(cfg *tls.Config) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.tls = cfg.Clone() })
}

const defaultConnectTimeout = time.Second

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
	if o.tls != nil && o.tls.ServerName == "" {
		o.tls.ServerName = addr
		if host, _, err := net.SplitHostPort(addr); err == nil {
			o.tls.ServerName = host
		}
	}
	return o
}

// link is the state of the path to an address: up, or down after a failed
// attempt. While it is down, one probe runs after each backoff.
type link struct {
	backoff layer.Backoff
	timeout time.Duration // limit of one attempt

	changes atomic.Uint64 // count of reported changes
	down    atomic.Bool   // written with mu

	mu       sync.Mutex
	failures int       // in sequence
	next     time.Time // while down: time of the next probe
	err      error     // of the last failed attempt; nil while up
}

// admit asks to connect for a request. While the link is down, it returns the error and the
// remaining backoff. After the backoff it admits one request as the probe.
func (l *link) admit() (trial bool, wait time.Duration, err error) {
	if !l.down.Load() {
		return false, 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down.Load() {
		return false, 0, nil
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return false, wait, l.err
	}
	l.reserve(now)
	return true, 0, nil
}

// startProbe asks for a probe without a request. If trial is false, wait is the
// time until the next call: 0 if the link is up.
func (l *link) startProbe() (trial bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down.Load() {
		return false, 0
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return false, wait
	}
	l.reserve(now)
	return true, l.timeout
}

// reserve prevents another probe during the timeout of this one.
func (l *link) reserve(now time.Time) { l.next = now.Add(l.timeout) }

// report records the result of an attempt and reports whether the link changed.
// While the link is down, only the result of a probe counts as a failure.
func (l *link) report(trial bool, err error) (changed bool) {
	if err == nil && !l.down.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	down := l.down.Load()
	switch {
	case err == nil:
		l.failures, l.err = 0, nil
	case down && !trial:
		return false
	default:
		l.err = err
		l.next = time.Now().Add(l.backoff.Delay(l.failures))
		l.failures++
	}
	l.down.Store(err != nil)
	l.changes.Add(1)
	return true
}

// lastError returns the error of a link that is down, or nil.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) describe(s layer.State) layer.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down.Load() {
		return append(s, layer.Attr{Key: "link", Value: "up"})
	}
	return append(s,
		layer.Attr{Key: "link", Value: "down"},
		layer.Attr{Key: "failures", Value: l.failures},
		layer.Attr{Key: "retry_in", Value: max(0, time.Until(l.next).Round(time.Millisecond))},
		layer.Attr{Key: "error", Value: fmt.Sprint(l.err)})
}
