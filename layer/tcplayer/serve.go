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
// Admission: svc decides. Serve resets a rejected connection, so that the client sees an
// error and not an empty response.
//
// Cancellation: the context of a Call has the values of ctx. It ends after the shutdown
// timeout, with a cause that matches [layer.ErrTimeout]. Serve waits until svc returns.
//
// Body: Serve closes a connection after Call. Cost: one goroutine for each connection.
//
// Errors: Serve returns nil if ctx ended and every connection closed in time. Otherwise it
// returns a [layer.Error] with the number of canceled connections, or with the error of
// Accept or of Ready. It logs errors of svc and temporary errors of Accept. It retries
// Accept after 5 ms to 1 s.
//
// A panic of svc resets its connection and is logged at level Error. A nil l or svc panics.
func Serve(ctx context.Context, l net.Listener, svc Server, opts ...ServeOption) error {
	if l == nil {
		panic("tcplayer: nil listener")
	}
	notNil(svc)
	s := newServer(svc, opts)
	defer l.Close() // svc may panic in Ready
	s.at = l.Addr().String()
	serving, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = panics.Contain(func() { _ = l.Close() }) })
	defer stop()

	err := s.accept(ctx, serving, l)
	_ = l.Close()
	return errors.Join(err, s.drain(cancel))
}

type server struct {
	svc   Server
	at    string
	grace time.Duration
	log   *slog.Logger
	sockets

	conns sync.WaitGroup
	open  atomic.Int64
}

// acceptBackoff returns the backoff after a temporary error of Accept, with the values of
// net/http.
func acceptBackoff() backoff.Backoff {
	return backoff.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
}

// accept waits until the server is ready and then accepts connections from l. The argument serving
// is the context with which they are served. accept returns nil when ctx has ended, or the error of
// Ready or of Accept.
func (s *server) accept(ctx, serving context.Context, l net.Listener) error {
	pause := acceptBackoff()
	if err := s.await(ctx); err != nil {
		return err
	}
	for failures := 0; ctx.Err() == nil; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			failures = 0
			s.open.Add(1)
			s.conns.Go(func() { _ = panics.Contain(func() { s.serve(serving, conn) }) }) // conn may panic
		case ctx.Err() != nil: // Serve closed l
		case !isTemporary(err):
			s.log.ErrorContext(ctx, "accept failed, stopping", "listener", s.at, "error", err)
			return &layer.Error{Layer: "serve", Endpoint: s.at, Reason: "accept", Err: err}
		default:
			s.log.WarnContext(ctx, "accept failed, retrying", "listener", s.at, "error", err)
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
			s.log.ErrorContext(ctx, "accept failed, stopping", "listener", s.at, "error", err)
			return &layer.Error{Layer: "serve", Endpoint: s.at, Reason: "not ready", Err: err}
		default:
			s.log.WarnContext(ctx, "server is not ready, not accepting connections", "listener", s.at, "error", err)
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

func (s *server) serve(ctx context.Context, conn net.Conn) {
	defer s.open.Add(-1)
	defer conn.Close()
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

// failed logs the error err of a Call. It resets the connection after a rejection or a panic. It is
// not a part of the method serve, because its variables would enlarge the stack of every
// connection.
func (s *server) failed(ctx context.Context, conn net.Conn, traffic ByteCount, err error) {
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

func (s *server) call(ctx context.Context, conn net.Conn) (_ ByteCount, err error) {
	defer panics.Recover(&err)
	return s.svc.Call(ctx, conn)
}

// drain waits until all connections are closed. If some are still open after the shutdown timeout,
// it cancels their context by the function cancel, and waits until they are closed too. It then
// returns an error with their number. Otherwise it returns nil.
func (s *server) drain(cancel context.CancelCauseFunc) error {
	over := make(chan struct{})
	go func() {
		s.conns.Wait()
		close(over)
	}()
	timer := time.NewTimer(s.grace)
	defer timer.Stop()
	select {
	case <-over:
		return nil
	case <-timer.C:
	}
	left := s.open.Load()
	if left == 0 {
		<-over
		return nil
	}
	err := &layer.Error{
		Layer: "serve", Endpoint: s.at, Kind: layer.ErrTimeout, Waited: s.grace,
		Reason: fmt.Sprintf("%d open connections were canceled", left),
	}
	cancel(err)
	<-over
	return err
}

// ServeOption is an option of [Serve].
type ServeOption interface{ applyServe(s *server) }

type serveOption func(*server)

func (f serveOption) applyServe(s *server) { f(s) }

// WithShutdownTimeout sets how long [Serve] waits for open connections after the end of
// ctx. It then cancels them. The default is 2 min, as in linkerd's proxy. With a d of 0
// or less it cancels them at once.
func WithShutdownTimeout(d time.Duration) ServeOption {
	return serveOption(func(s *server) { s.grace = max(d, 0) })
}

// WithLogger sets the logger of [Serve]. The levels are:
//
//   - Error: Accept has failed, Ready of svc returned [layer.ErrClosed], or svc panicked;
//   - Warn: a temporary error of Accept, svc is not ready, or a socket option failed;
//   - Debug: a rejected or failed connection.
//
// Each Error or Warn message is logged at most ten times in ten seconds. A later record
// has the number of messages that were not logged. Without a logger Serve does not log.
func WithLogger(l *slog.Logger) ServeOption {
	return serveOption(func(s *server) { s.log = l })
}

const defaultGrace = 2 * time.Minute

func newServer(svc Server, opts []ServeOption) *server {
	s := &server{svc: svc, grace: defaultGrace}
	for _, opt := range opts {
		if opt != nil {
			opt.applyServe(s)
		}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	} else {
		s.log = slog.New(lograte.New(s.log.Handler()))
	}
	return s
}

// SocketOption is a socket option for the TCP connections of [Serve], of an [Endpoint] or
// of a [Dialer]. It has no effect on other types of connections. If the option cannot be
// set, the connection fails.
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
// (TCP_USER_TIMEOUT, RFC 5482). It works on Linux only. The minimum is one millisecond. A d
// of 0 or less selects the value of the system, about 15 min. This is the default.
//
// An MPTCP connection does not support the option and fails. A net.ListenConfig with
// SetMultipathTCP(false) does not accept MPTCP connections.
func WithUserTimeout(d time.Duration) SocketOption {
	return socketOption(func(s *sockets) { s.user = max(d, 0) })
}

type socketOption func(*sockets)

func (f socketOption) applyServe(s *server)     { f(&s.sockets) }
func (f socketOption) apply(o *endpointOptions) { f(&o.sockets) }

// sockets has the values of the socket options. The zero value sets none.
type sockets struct {
	keepAlive *net.KeepAliveConfig // nil means unchanged
	user      time.Duration        // TCP_USER_TIMEOUT; 0 means unchanged
}

func (s *sockets) set(conn net.Conn) error {
	if s.keepAlive == nil && s.user == 0 {
		return nil
	}
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
