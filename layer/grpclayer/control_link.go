package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/rawio"
	"github.com/gotower/gotower/internal/usertimeout"
	"github.com/gotower/gotower/layer"
)

// controlLink is one connection of a ControlPlaneConn: a ClientConn that connects only
// once. layer.Reconnect makes further connections, because gRPC's own backoff hides the
// reasons of failures.
type controlLink struct {
	cc   *grpc.ClientConn
	addr string
	leaf Service
	lost *layer.Error // the rejection of a call after the connection was lost

	release context.CancelFunc // makes the connection close after its last call, as if it was lost

	dialled atomic.Bool // the dialer was called
	mu      sync.Mutex
	cause   error // the first error of TCP or TLS; guarded by mu
}

// connect connects to addr and returns the connection as a service. The service rejects
// new calls with layer.ErrClosed when the connection is lost, receives GOAWAY, or is
// dropped by layer.Reconnect. Open calls then continue. The connection is closed after
// the last open call, or when ctx ends.
func (c *ControlPlaneConn) connect(ctx context.Context, addr string) (Service, error) {
	l := &controlLink{addr: addr, leaf: c.leaf}
	l.lost = &layer.Error{
		Layer: "grpc", Target: c.cfg.Addr, Endpoint: addr, Kind: layer.ErrClosed, Reason: "the connection was lost before the call",
	}
	// The deadline covers TCP, TLS and HTTP/2.
	until := time.Now().Add(c.cfg.ConnectTimeout)
	limit, cancel := context.WithDeadlineCause(ctx, until, fmt.Errorf("not connected within %v", c.cfg.ConnectTimeout))
	defer cancel()
	// passthrough: the address is already resolved, and is dialed as it is.
	cc, err := grpc.NewClient("passthrough:///"+url.PathEscape(addr), c.dialOptions(until, l)...)
	if err != nil {
		return nil, &layer.Error{Layer: "grpc", Target: c.cfg.Addr, Endpoint: addr, Err: err}
	}
	l.cc = cc
	if !c.links.add(l) { // Close was called in the meantime
		_ = cc.Close()
		return nil, context.Canceled
	}
	// Reconnect gets the connection only when it is established.
	if err := l.awaitReady(limit); err != nil {
		c.links.remove(l)
		if ctx.Err() == nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "no connection to the control plane",
				slog.String("addr", c.cfg.Addr), slog.String("endpoint", addr), slog.Any("err", err))
		}
		return nil, &layer.Error{Layer: "grpc", Target: c.cfg.Addr, Endpoint: addr, Err: err}
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "connected to the control plane",
		slog.String("addr", c.cfg.Addr), slog.String("endpoint", addr))
	// The drainer lets open calls end after the connection was lost.
	d := layer.NewDrainer()
	// used ends when the connection must not get more calls, for any reason.
	used, release := context.WithCancel(ctx)
	l.release = release
	// A connection never becomes Ready again, so any other state is its end.
	c.links.watch(func() {
		// WaitForStateChange returns when the connection is lost, or when used ends by release.
		cc.WaitForStateChange(used, connectivity.Ready)
		release()
		if ctx.Err() == nil {
			_ = panics.Contain(func() {
				c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "disconnected from the control plane",
					slog.String("addr", c.cfg.Addr), slog.String("endpoint", addr))
			})
		}
		// Open calls may continue, for example after a GOAWAY.
		_ = d.Drain(ctx)
		c.links.remove(l)
	})
	// The Drain layer rejects new calls with ErrClosed as soon as d drains, by which Reconnect learns that it needs
	// another connection.
	return layer.Drain[*Call](d, layer.WithCompletion(Completion), layer.WithTarget[*Reply](addr))(l), nil
}

// awaitReady starts to connect and waits until the connection is established. It returns an error
// if connecting fails, or if the context in limit ends. It returns errLost if the
// connection is Idle, because the connection was then established and lost again.
func (l *controlLink) awaitReady(limit context.Context) error {
	l.cc.Connect()
	for {
		// The state is read before the wait, which then notices any change.
		s := l.cc.GetState()
		switch s {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return l.connectError(limit)
		case connectivity.Idle:
			return errLost
		case connectivity.Connecting:
		}
		if !l.cc.WaitForStateChange(limit, s) {
			return context.Cause(limit)
		}
	}
}

// connectError returns why connecting failed: the error from TCP or TLS, or else from gRPC. If
// the context limit has ended, it returns limit's cause.
func (l *controlLink) connectError(limit context.Context) error {
	l.mu.Lock()
	cause := l.cause
	l.mu.Unlock()
	switch {
	case limit.Err() != nil:
		return context.Cause(limit)
	case cause != nil:
		return cause
	}
	// gRPC has no other way to tell why the connection failed: a call returns the reason.
	_, err := l.cc.NewStream(limit, &grpc.StreamDesc{}, "/", grpc.WaitForReady(false))
	return errors.New(status.Convert(err).Message())
}

// failed records err as the reason why connecting failed. Only the first one counts, because later ones
// are usually its consequence.
func (l *controlLink) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = err
	}
}

// errLost is the error of a connection that would have to connect again.
var errLost = errors.New("the connection was lost")

// controlWindow is the flow-control window for streams and connections, in bytes. It is fixed,
// because otherwise gRPC measures the bandwidth with a PING for each message on a quiet stream.
const controlWindow = 1 << 20

// dialOptions returns the options of the ClientConn for the link l. until is the deadline for
// connecting.
func (c *ControlPlaneConn) dialOptions(until time.Time, l *controlLink) []grpc.DialOption {
	// Without TLS the connection is cleartext.
	secure := insecure.NewCredentials()
	if c.cfg.TLS != nil {
		secure = &controlTLS{config: c.cfg.TLS, until: until, failed: l.failed}
	}
	return slices.Concat([]grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithAuthority(c.cfg.Addr),
		grpc.WithUserAgent(c.cfg.UserAgent),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0), // never idle
		grpc.WithDisableServiceConfig(),
		grpc.WithStatsHandler(sentRecorder{}),
		grpc.WithStaticStreamWindowSize(controlWindow), grpc.WithStaticConnWindowSize(controlWindow),
		// Only the deadline in until limits connecting.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: c.cfg.ConnectTimeout}),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			// A second attempt of gRPC is refused, so that layer.Reconnect makes it.
			if l.dialled.Swap(true) {
				return nil, errLost
			}
			ctx, cancel := context.WithDeadline(ctx, until)
			defer cancel()
			conn, err := c.dial(ctx, addr)
			if err != nil {
				l.failed(err)
				return nil, err
			}
			return &rawConn{conn, rawio.New(conn)}, nil
		}),
	}, c.cfg.DialOptions)
}

// dial opens a TCP connection to addr by the configured function or, if there is none, with the
// configured keep-alive.
func (c *ControlPlaneConn) dial(ctx context.Context, addr string) (net.Conn, error) {
	if c.cfg.Dial != nil {
		return c.cfg.Dial(ctx, "tcp", addr)
	}
	// -1 disables the default keep-alive of net.Dialer.
	d, every := &net.Dialer{KeepAlive: -1}, c.cfg.KeepAlive
	if every > 0 {
		d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 3}
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if tcp, ok := conn.(*net.TCPConn); ok && every > 0 {
		// No probe is sent while sent data is not acknowledged. Only Linux has this timeout.
		_ = usertimeout.Set(tcp, 4*every)
	}
	return conn, err
}

// rawConn is a connection that is read and written with the raw system calls of package rawio. If an
// update arrives while the process is idle, they need a fifth less CPU time than package net's calls.
type rawConn struct {
	net.Conn
	io io.ReadWriter
}

// Read reads with a raw system call.
func (c *rawConn) Read(p []byte) (int, error) { return c.io.Read(p) }

// Write writes with a raw system call.
func (c *rawConn) Write(p []byte) (int, error) { return c.io.Write(p) }

// Ready returns nil at once. The Drain layer around the controlLink returns
// layer.ErrClosed when the connection is lost.
func (l *controlLink) Ready(ctx context.Context) error { return l.leaf.Ready(ctx) }

// Call sends the call on the connection. If the connection was lost before the call was
// sent, Call releases the connection.
func (l *controlLink) Call(ctx context.Context, call *Call) (*Reply, error) {
	rsp, err := l.leaf.Call(context.WithValue(ctx, linkKey{}, l), call)
	// The connection was lost, so that it must get no more calls.
	if err != nil && errors.Is(err, layer.ErrClosed) {
		l.release()
	}
	return rsp, err
}

// Describe returns the address and the state of the connection in gRPC.
func (l *controlLink) Describe() layer.Node {
	return layer.Node{Name: "grpc", State: layer.State{
		{Key: "endpoint", Value: l.addr}, {Key: "state", Value: l.cc.GetState().String()},
	}}
}

// controlLinks holds the open connections of a ControlPlaneConn, so that Close can close them.
type controlLinks struct {
	mu     sync.Mutex
	closed bool // close was called
	open   map[*controlLink]struct{}
	tasks  sync.WaitGroup // goroutines that wait for the loss of a connection
}

// add registers the open connection l, so that the method close closes it, and returns true. If close was
// already called, add returns false, and the caller must close l.
func (s *controlLinks) add(l *controlLink) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Close was called, so a new connection would stay open.
	if s.closed {
		return false
	}
	if s.open == nil {
		s.open = make(map[*controlLink]struct{})
	}
	s.open[l] = struct{}{}
	return true
}

// watch calls the function wait on a new goroutine. The method close waits for that goroutine.
// After close, watch does nothing.
func (s *controlLinks) watch(wait func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Go(wait)
	}
}

// remove closes l's connection and forgets it.
func (s *controlLinks) remove(l *controlLink) {
	_ = l.cc.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, l)
}

// close closes all connections and waits for the goroutines of watch. After close, add
// rejects new connections.
func (s *controlLinks) close() {
	s.mu.Lock()
	s.closed = true
	// The goroutines of watch notice the closed connections and end.
	for l := range s.open {
		_ = l.cc.Close()
	}
	s.open = nil
	s.mu.Unlock()
	s.tasks.Wait()
}
