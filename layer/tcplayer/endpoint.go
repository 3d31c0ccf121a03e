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
// concurrent use, and it is ready until connecting fails.
//
// Admission: Call connects. If that fails, TLS included, the request is
// refused, and so are those that follow, at once, until a back-off is over.
// Then there is one trial at a time. Ready makes it, if somebody waits there:
// it connects, and closes that connection, so that no request pays for finding
// out. Where nobody waits in Ready, the first Call is the trial. Only those
// trials connect to a server without saying anything.
//
// Cancellation: when the context of a Call ends while it connects, the request
// is refused. The attempt goes on until [WithConnectTimeout], to learn whether the
// address can be reached; what comes of it is closed. A connection that was
// returned has nothing more to do with the context, see [UntilClosed].
//
// Body: there is none; the connection belongs to the caller, who closes it.
//
// Errors: each one is a refusal, a [layer.Error] that names the address, says
// what went wrong last, and in After how long it will be left alone.
//
// Cost: that of a dial, and a goroutine while it lasts. A refusal in a back-off
// is one allocation and one lock.
//
// When the context given to NewEndpoint ends, attempts end and Call refuses with
// [layer.ErrClosed]. Connections that were made live on: they are their
// callers', and an endpoint that is taken out of a set goes without breaking
// what it serves.
type Endpoint struct {
	addr string
	opts endpointOptions
	life context.Context //nolint:containedctx // the constructor's: attempts live no longer than it does
	wake notify.Broadcast
	link link

	connecting, made atomic.Int64
}

// NewEndpoint returns a Service that connects to addr, "host:port". It does
// nothing yet. It lives until ctx ends. An empty addr panics. Of one that is
// malformed the dial function tells, in the error of the first Call.
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
		return nil, e.refuse(ctxreason.Text(ctx), 0, context.Cause(ctx))
	}
	trial, wait, err := e.link.admit()
	if err != nil {
		return nil, e.refuse("no connection", wait, err)
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
		return nil, e.refuse("no connection", 0, a.err)
	case <-ctx.Done():
		return nil, e.refuse(ctxreason.Text(ctx), 0, context.Cause(ctx))
	}
}

// attempt is a connection that was just made, or the error.
type attempt struct {
	conn net.Conn
	err  error
}

// attempt connects for a request whose caller may go.
func (e *Endpoint) attempt(trial bool, out chan<- attempt, canceledError <-chan struct{}) {
	conn, err := e.connect(trial)
	select {
	case out <- attempt{conn, err}:
	case <-canceledError:
		if err == nil {
			_ = conn.Close()
		}
	}
}

// probe connects to find out whether that is possible.
func (e *Endpoint) probe() {
	if conn, err := e.connect(true); err == nil {
		_ = conn.Close()
	}
}

// connect makes a connection, and tells the link and all who wait.
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

// dial makes the connection, TLS included. A panic of a callback becomes its error,
// because it runs on a goroutine of the Endpoint.
func (e *Endpoint) dial(ctx context.Context) (_ net.Conn, err error) {
	var conn net.Conn
	defer func() {
		if err != nil && conn != nil {
			_ = conn.Close()
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

// Ready returns nil unless the address is known not to be reached. Then it waits
// and tries; see [Endpoint].
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

// await waits for d, for ctx, or until something has changed.
func (e *Endpoint) await(ctx context.Context, d time.Duration, seen uint64) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool { return e.link.changes.Load() != seen || e.life.Err() != nil })
}

// refuse is a refusal: nothing was sent.
func (e *Endpoint) refuse(reason string, after time.Duration, cause error) error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrNotReady, Reason: reason, RetryAfter: after, Err: cause}
}

func (e *Endpoint) closedError() error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrClosed, Err: context.Cause(e.life)}
}

// Describe returns the address, how many connections are being made and were
// made, and whether the link is up or, with the last error and the back-off,
// down.
func (e *Endpoint) Describe() layer.Node {
	return layer.Node{Name: "endpoint", State: e.link.describe(layer.State{
		{Key: "addr", Value: e.addr}, {Key: "connecting", Value: e.connecting.Load()}, {Key: "made", Value: e.made.Load()},
	})}
}

// EndpointOption sets how an [Endpoint] connects.
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

// WithConnectTimeout bounds the making of a connection, TLS included. The default
// is 1 s, as in linkerd's proxy; a d of 0 or less means that too.
func WithConnectTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.connectTimeout = d })
}

// WithBackoff is how long an Endpoint leaves an address alone that could not be
// reached. The default is 100 ms to 1 s with a tenth of jitter. Zero fields
// have the defaults of [layer.DefaultBackoff]; invalid values panic.
func WithBackoff(b layer.Backoff) EndpointOption {
	if err := backoff.Check(b); err != nil {
		panic("tcplayer: WithBackoff: " + err.Error())
	}
	return endpointOption(func(o *endpointOptions) { o.backoff = b })
}

// WithDialContext replaces the dialler, that of a zero [net.Dialer]: for a Unix
// socket, a network in memory, a proxy. The network is "tcp". It must return
// when ctx ends; the connection must not depend on ctx after that. A nil dial panics.
func WithDialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	if dial == nil {
		panic("tcplayer: nil dial function")
	}
	return endpointOption(func(o *endpointOptions) { o.dial = dial })
}

// WithTLS makes an Endpoint connect by TLS. It takes a copy of cfg; nil means no
// TLS. A ServerName that is empty becomes the host of the address: give it that
// of resolve.ID where there is one.
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

// link is what is known of the way to an address from the attempts to connect.
// While it is down there is one attempt at a time, after a back-off.
type link struct {
	backoff layer.Backoff
	timeout time.Duration // how long one attempt takes at most

	changes atomic.Uint64 // times that it went down, up, or stayed down after a trial
	down    atomic.Bool   // written with mu

	mu       sync.Mutex
	failures int       // in a row
	next     time.Time // while down: when there may be a trial
	err      error     // of the last attempt that failed, nil while up
}

// admit asks to connect for a request that is there. While the link is down it
// says no, with the reason and how long that is so, but for one trial after
// each back-off.
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

// claim asks for the trial without a request. If it says no, it says how long
// to wait before asking again: not at all if the link came up meanwhile.
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

// allow keeps others off for as long as a trial can take.
func (l *link) reserve(now time.Time) { l.next = now.Add(l.timeout) }

// report takes the outcome of an attempt, and says whether anything changed.
// Of attempts that fail together, begun while the link was up, only the first
// one counts.
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

// lastError is why the link is down, or nil.
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
