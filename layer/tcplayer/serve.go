package tcplayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/usertimeout"
	"github.com/gotower/gotower/layer"
)

// Serve accepts connections from l and calls svc for each connection on a new goroutine. It
// starts to accept when svc is ready. When ctx ends or l fails, it closes l, waits up to
// [WithShutdownTimeout] for open connections, and returns.
//
// Admission: svc decides. Serve resets a rejected connection, so that the client sees an error
// and not an empty response.
//
// Cancellation: Call's context carries the values from ctx. It ends after the shutdown timeout,
// with a cause that matches [layer.ErrTimeout]. Serve waits until svc returns.
//
// Body: Serve closes a connection after Call. Cost: one goroutine for each connection.
//
// Errors: Serve returns nil if ctx ended and every connection closed in time. Otherwise it
// returns a [layer.Error] that tells how many connections were canceled, or that wraps the error
// from Accept or Ready. Errors from svc and temporary errors from Accept are logged; after the
// latter, Serve tries again in 5 ms to 1 s.
//
// A panic of svc resets its connection and is logged at level Error. A nil l or svc panics.
func Serve(ctx context.Context, l net.Listener, svc Server, opts ...ServeOption) error {
	if l == nil {
		panic("tcplayer: nil listener")
	}
	notNil(svc)
	s := newServer(svc, opts)
	defer l.Close() // svc may panic in Ready
	s.addr = l.Addr().String()
	// The connections outlive ctx, until the shutdown timeout.
	serving, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	// Closing the listener ends a blocked Accept.
	stop := context.AfterFunc(ctx, func() { _ = panics.Contain(func() { _ = l.Close() }) })
	defer stop()

	err := s.accept(ctx, serving, l)
	_ = l.Close()
	// No new connections are accepted, and the open ones have their time to end.
	return errors.Join(err, s.drain(cancel))
}

// server is the state of one Serve.
type server struct {
	svc   Server
	addr  string
	grace time.Duration // of WithShutdownTimeout
	log   *slog.Logger
	sockets

	conns sync.WaitGroup // the connections being served, to wait for them
	open  atomic.Int64   // the number of connections being served
}

// acceptBackoff returns the backoff after a temporary error from Accept, with the same values as
// net/http.
func acceptBackoff() backoff.Backoff {
	return backoff.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
}

// accept waits until the server is ready and then accepts connections from l. serving is the
// context with which they are served. accept returns nil when ctx has ended, or the error from
// Ready or Accept.
func (s *server) accept(ctx, serving context.Context, l net.Listener) error {
	pause := acceptBackoff()
	// Clients are refused by the kernel as long as the server is not ready.
	if err := s.await(ctx); err != nil {
		return err
	}
	// failures counts temporary errors in a row.
	for failures := 0; ctx.Err() == nil; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			failures = 0
			s.open.Add(1)
			s.conns.Go(func() { _ = panics.Contain(func() { s.serve(serving, conn) }) }) // conn may panic
		case ctx.Err() != nil: // Serve closed l
		case !isTemporary(err):
			s.log.ErrorContext(ctx, "accept failed, stopping", "listener", s.addr, "error", err)
			return &layer.Error{Layer: "serve", Endpoint: s.addr, Reason: "accept", Err: err}
		default:
			s.log.WarnContext(ctx, "accept failed, retrying", "listener", s.addr, "error", err)
			_ = backoff.Sleep(ctx, pause.Delay(failures))
			failures++
		}
	}
	return nil
}

// notReadyInterval is the interval of log messages while svc is not ready, as in linkerd's
// proxy.
const notReadyInterval = 15 * time.Second

// await waits until svc is ready or ctx ends. It returns an error only if Ready of svc
// returns [layer.ErrClosed] before ctx ends.
func (s *server) await(ctx context.Context) error {
	// Each round waits for notReadyInterval, and then logs.
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, notReadyInterval)
		err := s.svc.Ready(waiting)
		closed := errors.Is(err, layer.ErrClosed)
		if err != nil && !closed {
			<-waiting.Done() // prevents a busy loop if Ready returns too early
		}
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil: // may have closed svc
		case closed:
			s.log.ErrorContext(ctx, "accept failed, stopping", "listener", s.addr, "error", err)
			return &layer.Error{Layer: "serve", Endpoint: s.addr, Reason: "not ready", Err: err}
		default:
			s.log.WarnContext(ctx, "server is not ready, not accepting connections", "listener", s.addr, "error", err)
		}
	}
	return nil
}

// isTemporary reports whether a later call of Accept may succeed after err.
func isTemporary(err error) bool {
	for _, e := range []error{syscall.ECONNABORTED, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// serve serves one connection and closes it.
func (s *server) serve(ctx context.Context, conn net.Conn) {
	// Deferred calls run in reverse order, so the connection is closed before it is no longer counted.
	defer s.open.Add(-1)
	defer conn.Close()
	// A connection without its socket options could stay open forever.
	if err := s.set(conn); err != nil {
		reset(conn)
		s.log.WarnContext(ctx, "socket options failed", "client", conn.RemoteAddr(), "error", err)
		return
	}
	traffic, err := s.call(ctx, conn)
	if err != nil {
		s.failed(ctx, conn, traffic, err)
	}
}

// failed logs that a Call returned err. It resets the connection after a rejection or a panic. It
// is separate from serve, because its variables would enlarge the stack of every connection.
func (s *server) failed(ctx context.Context, conn net.Conn, traffic ByteCount, err error) {
	// A panic and a rejection are unexpected for the client, so it gets a reset. Other errors have closed the
	// connection.
	panicked, _ := errors.AsType[*panics.Error](err)
	switch {
	case panicked != nil:
		reset(conn)
		s.log.ErrorContext(ctx, "panic while serving a connection", "client", conn.RemoteAddr(),
			"error", err, "stack", string(panicked.Stack))
	case errors.Is(err, layer.ErrNotReady):
		reset(conn)
		s.log.DebugContext(ctx, "connection rejected", "client", conn.RemoteAddr(), "error", err)
	default:
		s.log.DebugContext(ctx, "connection failed", "client", conn.RemoteAddr(),
			"sent", traffic.Sent, "received", traffic.Received, "error", err)
	}
}

// call calls the Server and returns a panic as an error.
func (s *server) call(ctx context.Context, conn net.Conn) (_ ByteCount, err error) {
	defer panics.Recover(&err)
	return s.svc.Call(ctx, conn)
}

// drain waits until all connections are closed. If some are still open after the shutdown timeout,
// it cancels their context with cancel, and waits until they are closed too. It then returns an
// error with their number. Otherwise it returns nil.
func (s *server) drain(cancel context.CancelCauseFunc) error {
	// WaitGroup has no wait with a limit, so a goroutine waits.
	drained := make(chan struct{})
	go func() {
		s.conns.Wait()
		close(drained)
	}()
	timer := time.NewTimer(s.grace)
	defer timer.Stop()
	select {
	case <-drained:
		return nil
	case <-timer.C:
	}
	open := s.open.Load()
	// The last connection was closed when the timer fired.
	if open == 0 {
		<-drained
		return nil
	}
	err := &layer.Error{
		Layer: "serve", Endpoint: s.addr, Kind: layer.ErrTimeout, Waited: s.grace,
		Reason: fmt.Sprintf("%d open connections were canceled", open),
	}
	cancel(err)
	<-drained
	return err
}

// ServeOption is an option of [Serve].
type ServeOption interface{ applyServe(s *server) }

// serveOption is a ServeOption that is only a function.
type serveOption func(*server)

func (f serveOption) applyServe(s *server) { f(s) }

// WithShutdownTimeout sets how long [Serve] waits for open connections once ctx has ended. It
// then cancels them. The default is 2 min, as in linkerd's proxy. With a d of 0 or less it
// cancels them at once.
func WithShutdownTimeout(d time.Duration) ServeOption {
	return serveOption(func(s *server) { s.grace = max(d, 0) })
}

// WithLogger sets the logger for [Serve]. The levels are:
//
//   - Error: Accept has failed, svc's Ready returned [layer.ErrClosed], or svc panicked;
//   - Warn: a temporary error from Accept, svc is not ready, or a socket option failed;
//   - Debug: a rejected or failed connection.
//
// Each Error or Warn message is logged at most ten times in ten seconds. A later record tells how
// many messages were left out. Without a logger Serve does not log.
func WithLogger(l *slog.Logger) ServeOption {
	return serveOption(func(s *server) { s.log = l })
}

// defaultGrace is how long connections may continue after the server was told to stop.
const defaultGrace = 2 * time.Minute

// newServer returns a server with the options in opts, and with defaults for what they leave out.
func newServer(svc Server, opts []ServeOption) *server {
	s := &server{svc: svc, grace: defaultGrace}
	for _, opt := range opts {
		if opt != nil {
			opt.applyServe(s)
		}
	}
	// A flood of failing connections must not fill the log, so equal lines are limited.
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	} else {
		s.log = slog.New(lograte.New(s.log.Handler()))
	}
	return s
}

// SocketOption is a socket option for TCP connections in [Serve], an [Endpoint] or a [Dialer].
// Other connections ignore it. If the option cannot be set, the connection fails.
type SocketOption interface {
	ServeOption
	EndpointOption
}

// WithKeepAlive sets the TCP keep-alive probes. By default the settings of the listener
// or of the dial function apply. Package net sends a probe after 15 s without data.
func WithKeepAlive(cfg net.KeepAliveConfig) SocketOption {
	return socketOption(func(s *sockets) { s.keepAlive = &cfg })
}

// WithUserTimeout closes a connection when sent data was not acknowledged for d
// (TCP_USER_TIMEOUT, RFC 5482). It works on Linux only. The minimum is one millisecond. A d of 0
// or less selects the system's value, about 15 min. This is the default.
//
// An MPTCP connection does not support the option and fails. A net.ListenConfig with
// SetMultipathTCP(false) does not accept MPTCP connections.
func WithUserTimeout(d time.Duration) SocketOption {
	return socketOption(func(s *sockets) { s.user = max(d, 0) })
}

// socketOption is a SocketOption that is only a function.
type socketOption func(*sockets)

func (f socketOption) applyServe(s *server)     { f(&s.sockets) }
func (f socketOption) apply(o *endpointOptions) { f(&o.sockets) }

// sockets holds the values of the socket options. The zero value sets none.
type sockets struct {
	keepAlive *net.KeepAliveConfig // nil means unchanged
	user      time.Duration        // TCP_USER_TIMEOUT; 0 means unchanged
}

// set sets the options on conn, if conn is a TCP connection below all its wrappers.
func (s *sockets) set(conn net.Conn) error {
	// The usual case: nothing to set.
	if s.keepAlive == nil && s.user == 0 {
		return nil
	}
	// The options belong to the TCP connection below TLS and the like.
	tcp, ok := innermost(conn).(*net.TCPConn)
	if !ok {
		return nil
	}
	if s.keepAlive != nil {
		if err := tcp.SetKeepAliveConfig(*s.keepAlive); err != nil {
			return err
		}
	}
	if s.user > 0 {
		return usertimeout.Set(tcp, s.user)
	}
	return nil
}
