// Package serve runs an example program's servers, and drains them when the program ends.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Group is a set of servers that run together. A server starts to listen when it is added, so
// that its address is known before [Group.Run]. If it cannot listen, Run returns the error. The
// zero value is an empty group.
type Group struct {
	Listen func(network, addr string) (net.Listener, error) // opens the listeners; nil means net.Listen

	servers []server
	err     error // from servers that could not listen
}

// server is one server in a [Group].
type server struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error    // serves on listener until drain is called
	drain    func(context.Context) error // waits for open requests until the context ends
}

// headerTimeout is how long a client may take to send a request's headers.
const headerTimeout = 10 * time.Second

// idleTimeout is how long a connection without requests stays open.
const idleTimeout = 2 * time.Minute

// Limits for an HTTP/2 connection: how many streams may be open at once, and after how long it is
// closed if the client does not read. RFC 9113 recommends to allow at least that many streams.
// The timeout is needed because deadlines for single responses do not catch a client that stops
// reading.
const (
	maxStreams   = 100
	writeTimeout = 30 * time.Second
)

// HTTP adds an HTTP server for h and returns its address. Clients use HTTP/1.1, or cleartext
// HTTP/2 with prior knowledge. If addr is in use, the server listens on the first free address in
// fallback. If h has a method Shutdown, a drain begins with a call to it, and it should end
// streaming responses.
//
// An HTTP/2 connection may carry 100 concurrent requests, and is closed if the client reads
// nothing for 30 s.
func (g *Group) HTTP(name, addr string, h http.Handler, fallback ...string) string {
	return g.HTTPBehind(func(l net.Listener) net.Listener { return l }, name, addr, h, fallback...)
}

// HTTPBehind is like [Group.HTTP], but accepts connections from the listener that wrap returns,
// which may add TLS, for example.
func (g *Group) HTTPBehind(
	wrap func(net.Listener) net.Listener, name, addr string, h http.Handler, fallback ...string,
) string {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler: h, Protocols: &protocols, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, WriteByteTimeout: writeTimeout},
	}
	// Shutdown does not end streaming responses by itself.
	if stopper, ok := h.(interface{ Shutdown() }); ok {
		srv.RegisterOnShutdown(stopper.Shutdown)
	}
	serve := func(l net.Listener) error { return srv.Serve(wrap(l)) }
	return g.add(append([]string{addr}, fallback...), server{name: name, serve: serve, drain: func(ctx context.Context) error {
		err := srv.Shutdown(ctx)
		// The grace period is over, so open connections are cut.
		if err != nil {
			_ = srv.Close()
		}
		return err
	}})
}

// Front adds an [httplayer.Server] with default limits, for clients that are not trusted, and
// returns its address. A drain waits up to grace for open requests.
func (g *Group) Front(name, addr string, h http.Handler, grace time.Duration) string {
	// ctx does not come from Run, because a drain must end it.
	ctx, stop := context.WithCancel(context.Background())
	srv := httplayer.NewServer(httplayer.FromHandler(h), httplayer.WithDrainOnDone(ctx))
	return g.add([]string{addr}, server{
		name:  name,
		serve: func(l net.Listener) error { return tcplayer.Serve(ctx, l, srv, tcplayer.WithShutdownTimeout(grace)) },
		// Serve then waits for open requests itself, and returns.
		drain: func(context.Context) error { stop(); return nil },
	})
}

// GRPC adds a gRPC server with the services that register adds to it, and returns its address. A
// drain calls stop, which must end open streams. If addr is in use, the server listens on the
// first free address in fallback.
func (g *Group) GRPC(name, addr string, register func(*grpc.Server), stop func(), fallback ...string) string {
	srv := grpc.NewServer()
	register(srv)
	return g.GRPCServer(name, addr, srv, stop, fallback...)
}

// GRPCServer is like [Group.GRPC], for a server that already exists.
func (g *Group) GRPCServer(name, addr string, srv *grpc.Server, stop func(), fallback ...string) string {
	return g.add(append([]string{addr}, fallback...), server{name: name, serve: srv.Serve, drain: func(ctx context.Context) error {
		if stop != nil {
			stop()
		}
		// GracefulStop has no timeout, so Stop interrupts it when ctx ends.
		cut := context.AfterFunc(ctx, srv.Stop)
		defer cut()
		srv.GracefulStop()
		return nil
	}})
}

// add listens on the first free address in addrs, adds the server s, and returns the address. If
// none is free, it records the error in g and returns "".
func (g *Group) add(addrs []string, s server) string {
	listen := g.Listen
	if listen == nil {
		listen = net.Listen
	}
	var failed error
	for _, addr := range addrs {
		l, err := listen("tcp", addr)
		if err == nil {
			s.listener = l
			g.servers = append(g.servers, s)
			return l.Addr().String()
		}
		// The errors only matter if no address is free.
		failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
	}
	g.err = errors.Join(g.err, failed)
	return ""
}

// Err returns the errors of servers that could not listen, or nil.
func (g *Group) Err() error { return g.err }

// Close closes all listeners. It is for a Group that will not run; Run closes them itself.
func (g *Group) Close() {
	for _, s := range g.servers {
		s.listener.Close()
	}
}

// Run serves until ctx ends or a server fails, and then drains all servers. Requests that are
// open by then may take up to grace.
func (g *Group) Run(ctx context.Context, grace time.Duration, log *slog.Logger) error {
	return g.RunWithin(ctx, func() time.Duration { return grace }, log)
}

// RunWithin is like [Group.Run], but asks grace once, when the drain begins, how long open
// requests may take.
func (g *Group) RunWithin(ctx context.Context, grace func() time.Duration, log *slog.Logger) error {
	// Servers that could listen must not keep their ports.
	if g.err != nil {
		g.Close()
		return g.err
	}
	// ctx now also ends if a server fails, so that the others are drained then.
	running, ctx := errgroup.WithContext(ctx)
	graceOnce := sync.OnceValue(grace) // all servers get the same answer
	for _, s := range g.servers {
		log.Info("listening", "for", s.name, "addr", s.listener.Addr().String())
		// One goroutine serves, and the other one waits for the drain.
		running.Go(func() error {
			err := s.serve(s.listener)
			early := errors.Is(err, grpc.ErrServerStopped) // it was stopped before it began to serve
			if err != nil && !early && !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
		running.Go(func() error {
			<-ctx.Done()
			limit := graceOnce()
			// ctx has ended, so a drain needs a context without its end.
			drainCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
			defer cancel()
			if err := s.drain(drainCtx); err != nil {
				return fmt.Errorf("%s: requests were still open after %v: %w", s.name, limit, err)
			}
			return nil
		})
	}
	return running.Wait()
}
