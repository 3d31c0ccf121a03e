package tcplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// ForwardOption sets how [Forward] works.
type ForwardOption interface{ apply(o *forward) }

type forwardOption func(*forward)

func (f forwardOption) apply(o *forward) { f(o) }

// WithIdleTimeout ends a connection over which no Read and no Write was completed
// for d, in either direction. A d of 0 or less, the default, means no limit. The
// limit has its price: the kernel cannot copy by itself then. Writes are of up
// to 32 KiB, so d should be longer than the slowest reader takes for that.
func WithIdleTimeout(d time.Duration) ForwardOption {
	return forwardOption(func(o *forward) { o.idle = max(d, 0) })
}

// Forward is the [Server] that connects each accepted connection with one of
// to's, and copies both ways. Where one side ends its direction, so does the
// other (half-close); it is over when both directions ended. A side that cannot
// close one direction alone ends both.
//
// Admission: that of to. A refusal leaves the connection open and unread.
//
// Cancellation: to is called with ctx, which lives until the connection is over.
// When ctx ends, both sides are reset.
//
// Body: a connection that was admitted is closed when Call returns. If either
// side broke, TLS that did not say its end included, or there is any other error,
// both sides are reset.
//
// Errors: what to returned; else a [layer.Error] that names the server, says in
// which direction copying failed, or is of kind [layer.ErrIdleTimeout]. The
// ByteCount is valid with an error, too.
//
// Cost: one goroutine beside that of Call. Between two TCP connections on Linux
// bytes are moved by the kernel (splice). A nil to panics.
func Forward(to Service, opts ...ForwardOption) Server {
	notNil(to)
	f := &forward{to: to}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(f)
		}
	}
	return f
}

type forward struct {
	to   Service
	idle time.Duration
}

// Ready is that of the service which makes connections.
func (f *forward) Ready(ctx context.Context) error { return f.to.Ready(ctx) }

// Call forwards one connection until it is over.
func (f *forward) Call(ctx context.Context, client net.Conn) (ByteCount, error) {
	if ctx.Err() != nil {
		return ByteCount{}, &layer.Error{
			Layer: "forward", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx),
		}
	}
	server, err := f.to.Call(ctx, requestOf(client))
	switch {
	case errors.Is(err, layer.ErrNotReady):
		return ByteCount{}, err
	case err != nil:
		reset(client)
		return ByteCount{}, err
	}
	p := &pair{client: client, server: server, idle: f.idle}
	return p.join(ctx)
}

// Describe shows the service that makes connections as what this one made.
func (f *forward) Describe() layer.Node {
	n := layer.Node{Name: "forward", Children: []layer.Node{layer.Describe(f.to)}}
	if f.idle > 0 {
		n.State = layer.State{{Key: "idle_timeout", Value: f.idle}}
	}
	return n
}

// pair is two connections that are joined.
type pair struct {
	client, server net.Conn
	idle           time.Duration

	start time.Time    // with a limit on idle time
	moved atomic.Int64 // since start, when a byte last moved

	mu   sync.Mutex // of what follows, and of setting the timer
	over bool
	err  *layer.Error
}

// join copies until both directions ended, and leaves both sides closed.
func (p *pair) join(ctx context.Context) (ByteCount, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = panics.Contain(func() { p.fail(layer.Error{Reason: "broken off", Err: context.Cause(ctx)}) })
	})
	defer stop()
	if p.idle > 0 {
		p.start = time.Now()
		timer := p.watch()
		defer timer.Stop()
	}
	sent := make(chan int64, 1)
	go func() { sent <- p.pump(p.server, p.client, "client to server") }()
	t := ByteCount{Received: p.pump(p.client, p.server, "server to client")}
	t.Sent = <-sent
	p.finish()
	if p.err != nil {
		return t, p.err
	}
	return t, nil
}

// pump copies one direction, and passes its end on. A panic of a connection is an
// error of its direction.
func (p *pair) pump(dst, src net.Conn, direction string) (n int64) {
	var panicked error
	defer func() {
		if panicked != nil {
			p.fail(layer.Error{Reason: direction, Err: panicked})
		}
	}()
	defer panics.Recover(&panicked)
	n, err := p.copy(dst, src)
	if err == nil {
		err = truncation(src)
	}
	if err != nil {
		p.fail(layer.Error{Reason: direction, Err: err})
		return n
	}
	// Any other error is of a dst that is gone already: the other direction
	// hears of it.
	if errors.Is(closeWrite(dst), errors.ErrUnsupported) {
		p.finish()
	}
	return n
}

func (p *pair) copy(dst, src net.Conn) (int64, error) {
	if p.idle == 0 {
		return io.Copy(dst, src)
	}
	return io.Copy(activityConn{p, dst}, activityConn{p, src})
}

// marked notes when bytes move. It hides what a connection has beyond Read and
// Write, by which they would move unseen.
type activityConn struct {
	pair *pair
	conn net.Conn
}

func (m activityConn) Read(b []byte) (int, error) {
	n, err := m.conn.Read(b)
	m.pair.moved.Store(int64(time.Since(m.pair.start)))
	return n, err
}

func (m activityConn) Write(b []byte) (int, error) {
	n, err := m.conn.Write(b)
	m.pair.moved.Store(int64(time.Since(m.pair.start)))
	return n, err
}

// watch ends the pair once nothing has moved for as long as is allowed.
func (p *pair) watch() *time.Timer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(p.idle, func() {
		left := p.idle - (time.Since(p.start) - time.Duration(p.moved.Load()))
		if left <= 0 {
			_ = panics.Contain(func() {
				p.fail(layer.Error{Kind: layer.ErrIdleTimeout, Reason: fmt.Sprintf("nothing for %v", p.idle)})
			})
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.over {
			timer.Reset(left)
		}
	})
	return timer
}

// fail ends both directions for the first thing that went wrong.
func (p *pair) fail(err layer.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	err.Layer = "forward"
	if addr := p.server.RemoteAddr(); addr != nil {
		err.Endpoint = addr.String()
	}
	p.err = &err
	defer reset(p.server) // even if the other one panics
	reset(p.client)
}

// finish closes both sides in good order, unless they were reset.
func (p *pair) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	defer p.server.Close()
	_ = p.client.Close()
}

// underTLS is what TLS of this package is made on. It notes the end of what is
// below, which to crypto/tls is as good as one that the peer says (close_notify),
// though anybody on the way can make it, and a peer that is killed does.
type eofConn struct {
	net.Conn
	ended atomic.Bool
}

func (u *eofConn) Read(p []byte) (int, error) {
	n, err := u.Conn.Read(p)
	// What comes with the end may be what says so. TLS that was told so reads no
	// more, and else comes again.
	if n == 0 && errors.Is(err, io.EOF) {
		u.ended.Store(true)
	}
	return n, err
}

// NetConn returns the connection below.
func (u *eofConn) NetConn() net.Conn { return u.Conn }

// endOf returns what the end was that was read from conn: nil if it was in good
// order, io.ErrUnexpectedEOF if TLS was cut short.
func truncation(conn net.Conn) error {
	for ; conn != nil; conn = unwrap(conn) {
		if u, ok := conn.(*eofConn); ok && u.ended.Load() {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
