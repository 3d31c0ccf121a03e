package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/rawio"
	"github.com/gotower/gotower/layer"
)

// ForwardOption is an option of [Forward].
type ForwardOption func(*forward)

// WithServerName makes Forward read the client's ClientHello before it requests a connection, and
// set ServerName in the [Request]. ServerName is empty if the client does not use TLS, or sends no
// ClientHello within timeout. You should use it only for protocols in which the client sends
// first.
func WithServerName(timeout time.Duration) ForwardOption {
	return func(o *forward) { o.hello = timeout }
}

// Forward returns a [Server] that copies bytes in both directions between an accepted connection
// and one from svc. When one side closes its sending half, Forward closes the sending half to the
// other side. It closes both connections when both directions have ended, or without half-close
// when one has. It has no idle timeout: [WithUserTimeout] and [WithKeepAlive] end connections to a
// lost peer. A nil service panics.
//
// Admission: the service decides. A rejected connection stays open and unread. It is reset instead
// if WithServerName has read bytes from it, as in [Detect].
//
// Cancellation: ctx is passed to the service. When ctx ends, both sides are reset.
//
// Body: an admitted connection is closed when Call returns. After an error both sides are reset.
// TLS that ends without close_notify, or cannot send it within 5 s, is such an error.
//
// Errors: errors from the service are returned unchanged. Other errors are a [layer.Error] with
// the server's address and the direction that failed. The ByteCount is valid even with an error.
//
// Cost: one more goroutine. On Linux the kernel copies between two TCP connections (splice).
func Forward(svc Service, opts ...ForwardOption) Server {
	notNil(svc)
	f := &forward{svc: svc}
	option.Apply(f, opts)
	return f
}

// forward is the Server that Forward returns.
type forward struct {
	svc   Service
	hello time.Duration // maximum wait for a ClientHello; 0 means that none is read
}

// Ready forwards to the service that makes the connections.
func (f *forward) Ready(ctx context.Context) error { return f.svc.Ready(ctx) }

// Call forwards one accepted connection until it ends.
func (f *forward) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	if ctx.Err() != nil {
		return ByteCount{}, canceledError(ctx, "forward")
	}
	client := conn
	req := requestOf(conn)
	if f.hello > 0 {
		var h hello
		// Without a ClientHello the connection is forwarded too, so the error does not matter.
		h, client, _ = peekHello(ctx, client, f.hello)
		req.ServerName = h.name
	}
	server, err := f.svc.Call(ctx, req)
	switch {
	// After a rejection the caller may use the connection elsewhere, but not without the bytes that were read.
	case errors.Is(err, layer.ErrNotReady) && consumed(conn, client):
		return ByteCount{}, consumedError("forward", client, err)
	case errors.Is(err, layer.ErrNotReady):
		return ByteCount{}, err
	case err != nil:
		// The service has tried to connect, so the client learns of the failure by a reset.
		reset(client)
		return ByteCount{}, err
	}
	p := &pair{client: client, server: server}
	return p.join(ctx)
}

// Describe shows the service that makes the connections.
func (f *forward) Describe() layer.Node {
	return layer.Node{Name: "forward", Children: []layer.Node{layer.Describe(f.svc)}}
}

// pair holds the two connections that Forward copies between.
type pair struct {
	client, server net.Conn

	mu     sync.Mutex   // guards the fields below
	closed bool         // both connections were closed or reset
	err    *layer.Error // first error of either direction
}

// join copies until both directions have ended, and then closes both connections. When ctx ends,
// both are reset.
func (p *pair) join(ctx context.Context) (ByteCount, error) {
	// copyOneWay blocks in Read or Write, and only closing the connections ends it.
	stop := context.AfterFunc(ctx, func() {
		_ = panics.Contain(func() { p.fail(layer.Error{Reason: "canceled", Err: context.Cause(ctx)}) })
	})
	defer stop()
	// One direction has a goroutine of its own, and the other uses that of Call. The buffer lets it end
	// before it is waited for.
	sent := make(chan int64, 1)
	go func() { sent <- p.copyOneWay(p.server, p.client, "client to server") }()
	t := ByteCount{Received: p.copyOneWay(p.client, p.server, "server to client")}
	// This direction has ended; the other one may still be copying.
	t.Sent = <-sent
	p.finish()
	// p.err does not change any more, not even if ctx ends now, because p.closed is set. finish has held
	// mu since the last change, so that reading p.err without mu is no race.
	if p.err != nil {
		return t, p.err
	}
	return t, nil
}

// copyOneWay copies from src to dst until EOF, and then closes the sending half of dst. If a
// connection fails or panics, both are reset.
func (p *pair) copyOneWay(dst, src net.Conn, direction string) (n int64) {
	// A panic of a wrapped connection must not end the process, as one direction runs on a goroutine of its own.
	var panicked error
	defer func() {
		if panicked != nil {
			_ = panics.Contain(func() { p.fail(layer.Error{Reason: direction, Err: panicked}) })
		}
	}()
	defer panics.Recover(&panicked)
	n, err := io.Copy(dst, src)
	// A missing close_notify is an error, because an attacker can cut a connection off.
	if err == nil {
		err = truncation(src)
	}
	if err != nil {
		p.fail(layer.Error{Reason: direction, Err: err})
		return n
	}
	// The sending half of dst is closed, so that its peer sees the end. Any other error comes from a closed dst, which
	// ends the other direction.
	switch err := closeWrite(dst); {
	// Without half-close, the other side would wait for an end that cannot be sent.
	case errors.Is(err, errors.ErrUnsupported):
		p.finish()
	case isTimeout(err): // crypto/tls could not send close_notify, and dst would wait for it
		p.fail(layer.Error{Reason: direction, Err: err})
	}
	return n
}

// fail records the first error and resets both connections.
func (p *pair) fail(err layer.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Only the first error counts, and nothing is reset after a normal end.
	if p.closed {
		return
	}
	p.closed = true
	err.Layer = "forward"
	if addr := p.server.RemoteAddr(); addr != nil {
		err.Endpoint = addr.String()
	}
	p.err = &err
	defer reset(p.server) // also after a panic
	reset(p.client)
}

// finish closes both connections, unless they were reset.
func (p *pair) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// fail has reset both connections already.
	if p.closed {
		return
	}
	p.closed = true
	defer p.server.Close()
	_ = p.client.Close()
}

// eofConn is the connection below a TLS connection of this package. It records a TCP EOF that
// arrives without close_notify. crypto/tls returns io.EOF with and without close_notify. The
// difference matters, because an attacker can forge a TCP EOF, but not close_notify.
type eofConn struct {
	net.Conn
	io    io.ReadWriter // reads and writes Conn
	ended atomic.Bool   // a Read has returned io.EOF
}

// newEOFConn returns an eofConn that wraps conn, for crypto/tls.
func newEOFConn(conn net.Conn) *eofConn { return &eofConn{Conn: conn, io: rawio.New(conn)} }

// Read reads from the wrapped connection and notices an EOF.
func (u *eofConn) Read(p []byte) (int, error) {
	n, err := u.io.Read(p)
	// After close_notify crypto/tls reads no more. Bytes that come with EOF may
	// contain close_notify, so only an EOF alone counts.
	if n == 0 && errors.Is(err, io.EOF) {
		u.ended.Store(true)
	}
	return n, err
}

// Write writes to the wrapped connection.
func (u *eofConn) Write(p []byte) (int, error) { return u.io.Write(p) }

// NetConn returns the wrapped connection.
func (u *eofConn) NetConn() net.Conn { return u.Conn }

// truncation returns io.ErrUnexpectedEOF if conn is a TLS connection of this package that ended
// without close_notify. For any other connection it returns nil.
func truncation(conn net.Conn) error {
	for ; conn != nil; conn = unwrap(conn) {
		if u, ok := conn.(*eofConn); ok && u.ended.Load() {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
