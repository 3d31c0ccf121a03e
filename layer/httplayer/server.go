package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/h1"
	"github.com/gotower/gotower/layer/httplayer/internal/h2"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Server serves accepted connections by HTTP/1.1 and HTTP/2. It is the
// [tcplayer.Server] at the end of tcplayer.Serve, tcplayer.DetectTLS and
// tcplayer.Detect. The handler is a [Handler] or any other [http.Handler], such
// as a mux; its writer supports all of [http.ResponseController].
//
// HTTP/2 needs prior knowledge, because TLS ends before the Server.
// [ConnFromContext] returns the connection of a request. The context of a
// request has the values of the ctx given to Call and ends with the connection
// at the latest. A request that violates RFC 9112 or RFC 9113 is not served:
// see "Strictness" in the package documentation.
//
// Limits: see [ServerOption]. The defaults are 100 streams per HTTP/2
// connection, headers of 32 KiB within 5 s, and 100 stream resets per second. A
// request body may pause for 10 s, and the reading client for 5 minutes. Idle
// connections are kept, as in linkerd's proxy.
//
// A Server starts nothing that outlives its Calls. It is safe for concurrent
// use. For draining see [Server.Drain].
type Server struct {
	serverOptions
	handler http.Handler
	sweeper sweep.Sweeper

	draining atomic.Bool
	begun    context.Context //nolint:containedctx // ends when draining starts
	begin    context.CancelFunc

	conns atomic.Int64
	empty notify.Broadcast
}

var _ tcplayer.Server = (*Server)(nil)

// NewServer returns a Server that serves requests by h. It panics if h is nil.
func NewServer(h http.Handler, opts ...ServerOption) *Server {
	if h == nil {
		panic("httplayer: nil handler")
	}
	s := &Server{serverOptions: newServerOptions(opts), handler: h}
	s.Sweeper, s.ServerConfig.Draining = &s.sweeper, &s.draining
	if proxy, ok := h.(*handler); ok {
		s.Exchange = proxy.exchange
	} else {
		s.ServerConfig.Handler = h
	}
	s.begun, s.begin = context.WithCancel(context.Background())
	if s.drainOn != nil {
		context.AfterFunc(s.drainOn, s.drain)
	}
	return s
}

// Ready returns nil, also while draining, because accepted connections are
// still served.
func (s *Server) Ready(context.Context) error { return nil }

// Call serves the requests of conn until the connection is closed and its
// handlers have returned. A hijacked connection ends when its new owner closes
// it. When ctx ends, the connection is closed at once and the contexts of its
// requests end.
//
// Errors: a rejection ([layer.ErrNotReady]) if ctx has ended before; a
// [layer.Error] with the cause of ctx for a connection that was cut; one with
// [layer.ErrTimeout] for a connection without a first byte.
func (s *Server) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if ctx.Err() != nil {
		return tcplayer.ByteCount{}, &layer.Error{
			Layer: "server", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx),
		}
	}
	s.conns.Add(1)
	defer s.leave()
	c := &accepted{Conn: conn}
	defer context.AfterFunc(ctx, func() { _ = panics.Contain(func() { _ = conn.Close() }) })()
	err := s.serve(context.WithValue(ctx, connKey{}, conn), c)
	if cause := context.Cause(ctx); cause != nil {
		err = &layer.Error{Layer: "server", Reason: "broken off", Err: cause}
	}
	return tcplayer.ByteCount{Sent: c.sent.Load(), Received: c.received.Load()}, err
}

func (s *Server) serve(ctx context.Context, c *accepted) error {
	two, err := s.detect(c)
	if err != nil {
		_ = c.Close()
		return err
	}
	if two {
		e := h2.NewServerConn(ctx, c, &s.ServerConfig)
		defer context.AfterFunc(s.begun, func() { _ = panics.Contain(e.Drain) })()
		_ = e.Serve() // the requests were served, whatever ended the connection
		return nil
	}
	e := h1.NewServerConn(ctx, c, &s.ServerConfig)
	done := make(chan struct{})
	defer close(done)
	defer context.AfterFunc(s.begun, func() { _ = panics.Contain(func() { s.drainConn(e, done) }) })()
	if err := e.Serve(); err != nil {
		s.logMalformed(c, err)
	}
	return nil
}

// logMalformed logs why a request was answered with 400 or the like.
func (s *Server) logMalformed(c net.Conn, err error) {
	if malformed, ok := errors.AsType[*h1.SyntaxError](err); ok {
		s.Log.Debug("malformed request", "client", c.RemoteAddr(), "error", malformed)
	}
}

// drainConn drains an HTTP/1.1 connection: its responses close it, and after
// DrainTimeout it is closed when it is idle.
func (s *Server) drainConn(e *h1.ServerConn, done <-chan struct{}) {
	e.Drain()
	timer := time.NewTimer(s.DrainTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		e.CloseIdle()
	case <-done:
	}
}

// detect reads the bytes that distinguish HTTP/2 from HTTP/1.1.
func (s *Server) detect(c *accepted) (two bool, err error) {
	const enough = len("PRI * HTTP/2.0")
	var first [enough]byte
	n := 0
	start := &opening{conn: c.Conn}
	start.limit(s.HeaderTimeout)
	defer context.AfterFunc(s.begun, func() { start.hurry(max(s.DrainTimeout, leastDrain)) })()
	for n < enough && strings.HasPrefix(h2Preface, string(first[:n])) && err == nil {
		var more int
		more, err = c.Conn.Read(first[n:])
		if n == 0 && more > 0 {
			start.begins(s.HeaderTimeout)
		}
		n += more
	}
	c.sent.Add(int64(n))
	c.first = first[:n]
	if err != nil && (n == 0 || isTimeout(err)) {
		return false, noRequest(n, err)
	}
	start.begins(0)
	return n == enough && strings.HasPrefix(h2Preface, string(first[:])), nil
}

// opening is the read deadline of a connection before its protocol is known.
type opening struct {
	conn net.Conn

	mu    sync.Mutex
	by    time.Time // the deadline, or zero
	heard bool      // a byte has arrived
}

// limit sets the time until the next byte. 0 means no limit.
func (o *opening) limit(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limitLocked(d)
}

func (o *opening) limitLocked(d time.Duration) {
	by := time.Time{}
	if d > 0 {
		by = time.Now().Add(d)
	}
	if !by.Equal(o.by) {
		o.by = by
		_ = o.conn.SetReadDeadline(by)
	}
}

// begins sets the time limit that applies after the first byte.
func (o *opening) begins(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard = true
	o.limitLocked(d)
}

// hurry shortens the time limit to d when draining starts. It has no effect after the first
// byte.
func (o *opening) hurry(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.heard && (o.by.IsZero() || time.Until(o.by) > d) {
		o.limitLocked(d)
	}
}

// leastDrain is the time that a new connection has for its first byte when
// draining starts.
const leastDrain = 100 * time.Millisecond

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

var (
	errSilent    = errors.New("the client sent nothing")
	errBrokenOff = errors.New("the client sent only a part of a request line")
)

// noRequest returns the error of a connection that sent n bytes and no request.
func noRequest(n int, err error) error {
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

func (s *Server) leave() {
	if s.conns.Add(-1) == 0 {
		s.empty.Wake()
	}
}

// Drain starts draining, permanently, and waits until no connection is left.
// Every connection is still served, also new ones, until it can close. HTTP/2
// clients get a first GOAWAY, and after its PING returns, or after
// [WithDrainTimeout], the final one; streams finish. HTTP/1.1 responses carry
// Connection: close, and idle connections are closed after that timeout.
// Upgraded connections and tunnels are waited for. [WithDrainOnDone] does the
// same without waiting.
//
// If ctx ends first, the remaining connections continue, and Drain returns a
// [layer.Error] with their number and the cause of ctx. It may be called
// several times, also concurrently.
func (s *Server) Drain(ctx context.Context) error {
	start := time.Now()
	s.drain()
	none := func() bool { return s.conns.Load() == 0 }
	err := s.empty.Wait(ctx, none)
	if err == nil || none() {
		return nil
	}
	return &layer.Error{
		Layer: "server", Reason: fmt.Sprintf("%d connections are still open", s.conns.Load()),
		Waited: time.Since(start), Err: err,
	}
}

// Draining reports whether draining has started.
func (s *Server) Draining() bool { return s.draining.Load() }

func (s *Server) drain() {
	s.draining.Store(true)
	s.begin()
}

// Describe returns the number of connections and the limits.
func (s *Server) Describe() layer.Node {
	n := layer.Node{Name: "server", State: layer.State{
		{Key: "connections", Value: s.conns.Load()}, {Key: "draining", Value: s.Draining()},
		{Key: "streams", Value: s.MaxStreams},
	}}
	if d, ok := s.handler.(layer.Describer); ok {
		n.Children = []layer.Node{d.Describe()}
	}
	return n
}

// accepted is a connection of a Server. Its Read first returns the bytes that the protocol
// detection has read. It counts the bytes of both directions.
type accepted struct {
	net.Conn
	first          []byte // not yet read again
	sent, received atomic.Int64
}

func (c *accepted) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	c.sent.Add(int64(n))
	return n, err
}

func (c *accepted) Write(p []byte) (int, error) {
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

type connKey struct{}

// ConnFromContext returns the connection of a request to a [Server], or nil.
// Use it with tcplayer.OriginalDst and tcplayer.TLSState. It must not be read,
// written or closed.
func ConnFromContext(ctx context.Context) net.Conn {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	return conn
}
