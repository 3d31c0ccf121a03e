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
	"github.com/gotower/gotower/layer"
)

// Serve accepts connections from l and gives each to svc, in a goroutine of its
// own, until ctx ends. Then it closes l, lets the connections that are open end
// by themselves for as long as [WithShutdownTimeout] allows, and returns when all are over. It
// does the same once l fails for good. If ctx has ended already, nothing is
// accepted.
//
// It begins to accept once svc is ready, so that clients of a process that is
// starting wait instead of being refused. It does not ask again: those who are to
// wait later on, for a limit say, are held by a Queue in svc.
//
// Admission: that of svc, whose layers bound how many are served at a time
// (Limit) or wait for room (Queue). A connection that is refused is reset at
// once, so that its client sees an error and not an empty answer.
//
// Cancellation: the context of a Call has the values of ctx, but does not end
// with it: it ends when the grace is over, with a cause that matches
// [layer.ErrTimeout]. svc must return then; Serve waits for it.
//
// Body: svc closes what it admits; what it left open is closed after Call.
//
// Errors: nil when ctx ended and no connection had to be broken off; else an
// [layer.Error] that says how many were, or why nothing more could be accepted.
// An error of Accept that passes (no file descriptor left) is logged, and
// accepting goes on after a pause of 5 ms to 1 s. A svc that closes before it
// is ready ends Serve with that. What svc returns is logged.
//
// Panics: one of svc resets its connection and is logged at level Error, as in
// net/http. The other connections go on. A nil l or svc panics.
//
// Cost: a goroutine for each connection.
func Serve(ctx context.Context, l net.Listener, svc Server, opts ...ServeOption) error {
	if l == nil {
		panic("tcplayer: nil listener")
	}
	notNil(svc)
	s := newServer(svc, opts)
	defer l.Close() // svc may panic before it is ready
	s.at = l.Addr().String()
	serving, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()

	err := s.accept(ctx, serving, l)
	_ = l.Close()
	return errors.Join(err, s.drain(cut))
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

// acceptBackoff is that of net/http.
func acceptBackoff() backoff.Backoff {
	return backoff.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
}

// accept returns nil when ctx has ended.
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
			s.conns.Go(func() { s.serve(serving, conn) })
		case ctx.Err() != nil: // l was closed here
		case !isTemporary(err):
			s.log.ErrorContext(ctx, "no more connections are accepted", "listener", s.at, "error", err)
			return &layer.Error{Layer: "serve", Endpoint: s.at, Reason: "accept", Err: err}
		default:
			s.log.WarnContext(ctx, "a connection could not be accepted", "listener", s.at, "error", err)
			_ = backoff.Sleep(ctx, pause.Delay(failures))
			failures++
		}
	}
	return nil
}

// stillWaiting is how often Serve says that it is not accepting yet, as in
// linkerd's proxy.
const notReadyInterval = 15 * time.Second

// await waits for svc. It returns an error only if svc is closed.
func (s *server) await(ctx context.Context) error {
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, notReadyInterval)
		err := s.svc.Ready(waiting)
		closed := errors.Is(err, layer.ErrClosed)
		if err != nil && !closed {
			<-waiting.Done() // it is already, unless svc does not keep to its contract
		}
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil: // which may have closed svc, too
		case closed:
			s.log.ErrorContext(ctx, "no more connections are accepted", "listener", s.at, "error", err)
			return &layer.Error{Layer: "serve", Endpoint: s.at, Reason: "not ready", Err: err}
		default:
			s.log.WarnContext(ctx, "no connections are accepted yet: what serves them is not ready", "listener", s.at, "error", err)
		}
	}
	return nil
}

// passes reports whether accepting may work again later.
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
		s.log.WarnContext(ctx, "a connection could not be set up", "client", conn.RemoteAddr(), "error", err)
		return
	}
	traffic, err := s.call(ctx, conn)
	panicked, _ := errors.AsType[*panics.Error](err)
	switch {
	case panicked != nil:
		reset(conn)
		s.log.ErrorContext(ctx, "panic while a connection was served", "client", conn.RemoteAddr(),
			"error", err, "stack", string(panicked.Stack))
	case errors.Is(err, layer.ErrNotReady):
		reset(conn)
		s.log.DebugContext(ctx, "connection refused", "client", conn.RemoteAddr(), "error", err)
	case err != nil:
		s.log.DebugContext(ctx, "connection broken off", "client", conn.RemoteAddr(),
			"sent", traffic.Sent, "received", traffic.Received, "error", err)
	}
}

func (s *server) call(ctx context.Context, conn net.Conn) (_ ByteCount, err error) {
	defer panics.Recover(&err)
	return s.svc.Call(ctx, conn)
}

// drain waits until all connections are over. Once the grace is, it cuts those
// that are left, and says how many they were.
func (s *server) drain(cut context.CancelCauseFunc) error {
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
		Reason: fmt.Sprintf("%d connections were still open, and broken off", left),
	}
	cut(err)
	<-over
	return err
}

// ServeOption sets how [Serve] works.
type ServeOption interface{ applyServe(s *server) }

type serveOption func(*server)

func (f serveOption) applyServe(s *server) { f(s) }

// WithShutdownTimeout is how long connections that are open may go on once ctx has ended. The
// default is 2 min, as in linkerd's proxy; with a d of 0 or less they are broken
// off at once.
func WithShutdownTimeout(d time.Duration) ServeOption {
	return serveOption(func(s *server) { s.grace = max(d, 0) })
}

// WithLogger is where Serve says what went wrong: an Accept that failed at level Warn
// or, for good, Error; every 15 s that svc is not ready, at Warn; a panic of svc, with
// its stack, at Error; a connection that was refused or broken off at Debug. A message
// that repeats is written ten times in ten seconds at most, and then its count. The
// default, and nil, is nowhere.
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

// SocketOption sets the sockets of connections that [Serve] accepts or that an
// [Endpoint] makes. What are no TCP connections it leaves as they are. Where it
// cannot be set, the connection fails.
type SocketOption interface {
	ServeOption
	EndpointOption
}

// WithKeepAlive sets how an idle connection is probed for a peer that is gone. The
// default is that of the listener and the dialler: 15 s in package net.
func WithKeepAlive(cfg net.KeepAliveConfig) SocketOption {
	return socketOption(func(s *sockets) { s.keepAlive = &cfg })
}

// WithUserTimeout ends a connection over which what was sent is not acknowledged
// for d (TCP_USER_TIMEOUT, RFC 5482), on Linux; elsewhere it is an error. It is
// in whole milliseconds, at least one. A d of 0 or less, the default, leaves it
// to the system, which takes some 15 min.
//
// Connections of MPTCP have no such limit, and fail. A listener of net.Listen
// takes them, one of a net.ListenConfig with SetMultipathTCP(false) does not.
func WithUserTimeout(d time.Duration) SocketOption {
	return socketOption(func(s *sockets) { s.user = max(d, 0) })
}

type socketOption func(*sockets)

func (f socketOption) applyServe(s *server)     { f(&s.sockets) }
func (f socketOption) apply(o *endpointOptions) { f(&o.sockets) }

// sockets is how connections are set up.
type sockets struct {
	keepAlive *net.KeepAliveConfig
	user      time.Duration
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
		return setUserTimeout(tcp, s.user)
	}
	return nil
}
