package httplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// accepted is a connection of a Server, and the net.Conn for net/http.
type accepted struct {
	net.Conn
	server *Server
	ctx    context.Context //nolint:containedctx // parent of the contexts of the requests
	cancel context.CancelFunc

	first []byte   // bytes read during detection
	h2    *goodbye // nil in HTTP/1.1

	sent, received atomic.Int64
	tunnel         atomic.Bool // hijacked
	hushed         atomic.Bool // the pace of the body was violated, see take
	bounded        atomic.Bool // a read deadline is set
	left           atomic.Bool // that deadline is for the unread rest of a body

	body atomic.Pointer[paced] // HTTP/1.1: body of the current request, if it has a minimum rate

	writing sync.Mutex // HTTP/1.1: guards the fields below
	by      time.Time  // write deadline, if the Server set it
	theirs  bool       // the handler set the write deadline

	mu       sync.Mutex
	handlers int
	closed   bool
	over     chan struct{} // closed after Close and the last handler
}

func newAccepted(ctx context.Context, s *Server, conn net.Conn) *accepted {
	c := &accepted{Conn: conn, server: s, over: make(chan struct{})}
	ctx, c.cancel = context.WithCancel(ctx)
	c.ctx = context.WithValue(ctx, connKey{}, c)
	return c
}

// serve returns when the connection has ended.
func (c *accepted) serve() error {
	h2, err := c.look()
	if err != nil {
		_ = c.Close()
		return err
	}
	s, conn := c.server, net.Conn(c)
	if h2 {
		c.h2 = newGoodbye(c)
		_ = c.h2.http.Serve(&oneConn{conn: c, c: c})
	} else {
		if s.guard != nil {
			conn = s.guard.Conn(c)
		}
		_ = s.h1.Serve(&oneConn{conn: conn, c: c})
	}
	c.await()
	return nil
}

// await waits for the end of the connection.
func (c *accepted) await() {
	select {
	case <-c.over:
		return
	case <-c.server.begun.Done():
	}
	enough := time.NewTimer(c.server.patience)
	defer enough.Stop()
	if c.h2 == nil {
		select {
		case <-c.over:
			return
		case <-enough.C:
			c.server.closeIdle()
		}
	} else {
		c.h2.say(enough.C)
	}
	<-c.over
}

// look reads the bytes that distinguish HTTP/2 from HTTP/1.1.
func (c *accepted) look() (h2 bool, err error) {
	const enough = len("PRI * HTTP/2.0")
	first, n := make([]byte, enough), 0
	until := opening{conn: c.Conn}
	until.allow(c.server.headerTimeout)
	stop := context.AfterFunc(c.server.begun, func() { until.hurry(c.server.patience) })
	defer func() {
		stop()
		until.over()
	}()
	for n < enough && strings.HasPrefix(h2Preface, string(first[:n])) {
		more, err := c.Conn.Read(first[n:])
		if n == 0 && more > 0 {
			until.begins(c.server.headerTimeout) // net/http limits the rest of the headers
		}
		n += more
		if err != nil && (n == 0 || isTimeout(err)) { // an incomplete request would start another timeout in net/http
			return false, unsaid(n, err)
		}
		if err != nil {
			break
		}
	}
	c.sent.Add(int64(n))
	c.first = first[:n]
	return n == enough && strings.HasPrefix(h2Preface, string(first)), nil
}

// unsaid returns the error of a connection that sent n bytes and no request.
func unsaid(n int, err error) error {
	e := &layer.Error{Layer: "server", Reason: "no first byte", Err: err}
	switch {
	case errors.Is(err, io.EOF):
		e.Err = io.ErrUnexpectedEOF
	case isTimeout(err):
		e.Kind, e.Err = layer.ErrTimeout, errSilent
	}
	if n > 0 {
		e.Reason, e.Err = "no request", errBrokenOff
	}
	return e
}

func isTimeout(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}

// enter counts a handler, unless the connection is closed.
func (c *accepted) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.handlers++
	return true
}

func (c *accepted) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handlers--; c.closed && c.handlers == 0 {
		close(c.over)
	}
}

// Close closes the connection and cancels the contexts of its requests.
func (c *accepted) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	if c.handlers == 0 {
		close(c.over)
	}
	c.mu.Unlock()
	c.cancel()
	return c.Conn.Close()
}

func (c *accepted) Read(p []byte) (int, error) {
	if c.h2 != nil {
		return c.h2.read(p)
	}
	return c.take(p)
}

// take reads from the connection. It hides the timeout of a slow body, because
// net/http would cancel the request before the handler could respond.
func (c *accepted) take(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
		return n, nil
	}
	if b := c.body.Load(); b != nil && len(p) > 1 && b.unread() {
		// The response starts, and net/http reads the unread rest of the body.
		_ = c.SetReadDeadline(time.Now().Add(b.idle))
	}
	n, err := c.Conn.Read(p)
	c.sent.Add(int64(n))
	// net/http reads one byte to detect that the client disconnected, which is
	// false here.
	if n == 0 && (c.hushed.Load() || len(p) == 1 && c.left.Load()) && errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, nil
	}
	return n, err
}

func (c *accepted) Write(p []byte) (n int, err error) {
	if c.h2 != nil {
		return c.h2.write(p)
	}
	for len(p) > atOnce { // each deadline is for this number of bytes
		c.hold()
		some, err := c.put(p[:atOnce])
		if n += some; err != nil {
			return n, err
		}
		p = p[atOnce:]
	}
	c.hold()
	some, err := c.put(p)
	return n + some, err
}

// put writes to the connection.
func (c *accepted) put(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.received.Add(int64(n))
	return n, err
}

// NetConn returns the wrapped connection.
func (c *accepted) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the sending direction, if supported.
func (c *accepted) CloseWrite() error {
	if half, ok := c.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SetDeadline is called by net/http only for a hijacked connection, with the
// zero time.
func (c *accepted) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.tunnel.Store(true)
	}
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline records whether a deadline is set.
func (c *accepted) SetReadDeadline(t time.Time) error {
	c.bounded.Store(!t.IsZero())
	if t.IsZero() && c.left.Load() {
		c.left.Store(false)
	}
	return c.Conn.SetReadDeadline(t)
}

// oneConn is the listener of one connection.
type oneConn struct {
	conn net.Conn // nil after Accept
	c    *accepted
}

func contextOf(l net.Listener) context.Context {
	if one, ok := l.(*oneConn); ok {
		return one.c.ctx
	}
	return context.Background()
}

func (l *oneConn) Accept() (net.Conn, error) {
	if l.conn == nil {
		return nil, net.ErrClosed
	}
	conn := l.conn
	l.conn = nil
	return conn, nil
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.c.LocalAddr() }
