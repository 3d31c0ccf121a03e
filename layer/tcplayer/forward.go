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

// ForwardOption is an option of [Forward].
type ForwardOption interface{ apply(o *forward) }

type forwardOption func(*forward)

func (f forwardOption) apply(o *forward) { f(o) }

// WithIdleTimeout closes a connection after no Read and no Write in either direction ended for
// d. A d of 0 or less, the default, means no limit. With a limit the kernel cannot copy by
// itself. A Write has up to 32 KiB, so d must be longer than the slowest reader needs for them.
func WithIdleTimeout(d time.Duration) ForwardOption {
	return forwardOption(func(o *forward) { o.idle = max(d, 0) })
}

// Forward returns a [Server] that gets a connection from the service to for each
// accepted connection, and copies in both directions. When one side ends its direction,
// so does the other side (half-close). The connection ends after both directions, or
// after one if half-close is not supported.
//
// Admission: the service to decides. A rejected connection stays open and unread.
//
// Cancellation: ctx is passed to the service. When it ends, both sides are reset.
//
// Body: an admitted connection is closed when Call returns. After an error both sides
// are reset, also after TLS without close_notify.
//
// Errors: errors of the service are returned unchanged. Other errors are a
// [layer.Error] with the server address, and the direction or [layer.ErrIdleTimeout].
// The ByteCount is valid with an error.
//
// Cost: one more goroutine. On Linux the kernel copies between two TCP connections
// (splice). A nil to panics.
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

// Ready forwards to the service behind.
func (f *forward) Ready(ctx context.Context) error { return f.to.Ready(ctx) }

// Call forwards one connection until its end.
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

// Describe shows the service behind.
func (f *forward) Describe() layer.Node {
	n := layer.Node{Name: "forward", Children: []layer.Node{layer.Describe(f.to)}}
	if f.idle > 0 {
		n.State = layer.State{{Key: "idle_timeout", Value: f.idle}}
	}
	return n
}

// pair is two joined connections.
type pair struct {
	client, server net.Conn
	idle           time.Duration
	timer          *time.Timer // of the idle timeout

	mu   sync.Mutex // guards the fields below
	over bool
	err  *layer.Error
}

// join copies until both directions ended, and closes both sides.
func (p *pair) join(ctx context.Context) (ByteCount, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = panics.Contain(func() { p.fail(layer.Error{Reason: "canceled", Err: context.Cause(ctx)}) })
	})
	defer stop()
	if p.idle > 0 {
		p.timer = time.AfterFunc(p.idle, func() {
			_ = panics.Contain(func() {
				p.fail(layer.Error{Kind: layer.ErrIdleTimeout, Reason: fmt.Sprintf("no data for %v", p.idle)})
			})
		})
		defer p.timer.Stop()
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

// pump copies one direction and then ends it. A panic of a connection is an
// error of its direction.
func (p *pair) pump(dst, src net.Conn, direction string) (n int64) {
	var panicked error
	defer func() {
		if panicked != nil {
			_ = panics.Contain(func() { p.fail(layer.Error{Reason: direction, Err: panicked}) })
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
	// Any other error comes from a closed dst, which ends the other direction.
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

// activityConn restarts the idle timeout after each Read and Write. It has no
// other methods, because they would copy without a restart.
type activityConn struct {
	pair *pair
	conn net.Conn
}

func (m activityConn) Read(b []byte) (int, error) {
	n, err := m.conn.Read(b)
	m.pair.timer.Reset(m.pair.idle)
	return n, err
}

func (m activityConn) Write(b []byte) (int, error) {
	n, err := m.conn.Write(b)
	m.pair.timer.Reset(m.pair.idle)
	return n, err
}

// fail resets both sides for the first error.
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
	defer reset(p.server) // also after a panic
	reset(p.client)
}

// finish closes both sides, unless they were reset.
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

// eofConn is the connection below TLS of this package. It records a TCP EOF, because crypto/tls
// does not distinguish it from close_notify, and an attacker can forge it.
type eofConn struct {
	net.Conn
	ended atomic.Bool
}

func (u *eofConn) Read(p []byte) (int, error) {
	n, err := u.Conn.Read(p)
	// After close_notify crypto/tls reads no more. Bytes that come with EOF may
	// contain close_notify, so only an EOF alone counts.
	if n == 0 && errors.Is(err, io.EOF) {
		u.ended.Store(true)
	}
	return n, err
}

// NetConn returns the wrapped connection.
func (u *eofConn) NetConn() net.Conn { return u.Conn }

// truncation returns io.ErrUnexpectedEOF if TLS ended without close_notify.
func truncation(conn net.Conn) error {
	for ; conn != nil; conn = unwrap(conn) {
		if u, ok := conn.(*eofConn); ok && u.ended.Load() {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
