// Package serve runs the servers of an example program, and drains them when the program
// ends.
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

// Group is a set of servers that run together. A server listens from the time when it is
// added, so that its address is known before [Group.Run]. If a server cannot listen, Run
// returns the error. The zero value is an empty set.
type Group struct {
	Listen func(network, addr string) (net.Listener, error) // opens the listeners; nil means net.Listen

	servers []server
	err     error // of the servers that could not listen
}

// server is one server of a [Group].
type server struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error    // serves on listener until drain is called
	drain    func(context.Context) error // waits for open requests until the context ends
}

// headerTimeout is how long a client may take to send the headers of a request.
const headerTimeout = 10 * time.Second

// idleTimeout is how long a connection without requests stays open.
const idleTimeout = 2 * time.Minute

// The limits of an HTTP/2 connection: its number of concurrent streams, and the time after
// which it is closed if the client does not read. The number is the minimum that RFC 9113
// recommends. The time is necessary, because deadlines of single responses do not limit a
// client that does not read.
const (
	maxStreams   = 100
	writeTimeout = 30 * time.Second
)

// HTTP adds an HTTP server with the handler h, and returns its address. Clients use HTTP/1.1, or
// HTTP/2 in cleartext with prior knowledge. If addr is in use, the server listens on the first
// address of fallback that is free. If h has a method Shutdown, the server calls this method at
// the start of a drain. The method must end streaming responses.
//
// An HTTP/2 connection has at most 100 concurrent requests. It is closed if the client reads
// nothing for 30 s.
func (g *Group) HTTP(name, addr string, h http.Handler, fallback ...string) string {
	return g.HTTPBehind(func(l net.Listener) net.Listener { return l }, name, addr, h, fallback...)
}

// HTTPBehind adds an HTTP server as [Group.HTTP] does. It passes the opened listener to the
// parameter wrap, a function. The server accepts connections from the listener that wrap
// returns. For example, wrap can add TLS.
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
	if stopper, ok := h.(interface{ Shutdown() }); ok {
		srv.RegisterOnShutdown(stopper.Shutdown)
	}
	serve := func(l net.Listener) error { return srv.Serve(wrap(l)) }
	return g.add(append([]string{addr}, fallback...), server{name: name, serve: serve, drain: func(ctx context.Context) error {
		err := srv.Shutdown(ctx)
		if err != nil {
			_ = srv.Close()
		}
		return err
	}})
}

// Front adds an [httplayer.Server] with its default limits, for clients that are not
// trusted, and returns its address. When the server drains, it waits at most the duration
// grace for open requests.
func (g *Group) Front(name, addr string, h http.Handler, grace time.Duration) string {
	ctx, stop := context.WithCancel(context.Background())
	srv := httplayer.NewServer(h, httplayer.WithDrainOnDone(ctx))
	return g.add([]string{addr}, server{
		name:  name,
		serve: func(l net.Listener) error { return tcplayer.Serve(ctx, l, srv, tcplayer.WithShutdownTimeout(grace)) },
		drain: func(context.Context) error { stop(); return nil },
	})
}

// GRPC adds a gRPC server with the services that register adds to it, and returns its
// address. When the server drains, it calls stop, which must end the open streams. If addr
// is in use, the server listens on the first address of fallback that is free.
func (g *Group) GRPC(name, addr string, register func(*grpc.Server), stop func(), fallback ...string) string {
	srv := grpc.NewServer()
	register(srv)
	return g.GRPCServer(name, addr, srv, stop, fallback...)
}

// GRPCServer does the same as [Group.GRPC], but with a server that the caller has made.
func (g *Group) GRPCServer(name, addr string, srv *grpc.Server, stop func(), fallback ...string) string {
	return g.add(append([]string{addr}, fallback...), server{name: name, serve: srv.Serve, drain: func(ctx context.Context) error {
		if stop != nil {
			stop()
		}
		cut := context.AfterFunc(ctx, srv.Stop)
		defer cut()
		srv.GracefulStop()
		return nil
	}})
}

// add listens on the first address of addrs that is free, adds the server s, and returns
// the address. If no address is free, it adds an error to g and returns "".
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
		failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
	}
	g.err = errors.Join(g.err, failed)
	return ""
}

// Err returns the joined errors of the servers that could not listen. It returns nil if all
// servers listen.
func (g *Group) Err() error { return g.err }

// Close closes the listeners of all servers. It is for a Group that will not run, because
// Run closes the listeners itself.
func (g *Group) Close() {
	for _, s := range g.servers {
		s.listener.Close()
	}
}

// Run serves until ctx ends or a server fails, and then drains all servers. The requests
// that are then open may take at most the duration grace.
func (g *Group) Run(ctx context.Context, grace time.Duration, log *slog.Logger) error {
	return g.RunWithin(ctx, func() time.Duration { return grace }, log)
}

// RunWithin serves until ctx ends or a server fails, and then drains all servers. It calls the
// function grace once, at the start of the drain. The requests that are then open may take at
// most the returned duration.
func (g *Group) RunWithin(ctx context.Context, grace func() time.Duration, log *slog.Logger) error {
	if g.err != nil {
		g.Close()
		return g.err
	}
	running, ctx := errgroup.WithContext(ctx)
	within := sync.OnceValue(grace) // the same for all servers
	for _, s := range g.servers {
		log.Info("listening", "for", s.name, "addr", s.listener.Addr().String())
		running.Go(func() error {
			err := s.serve(s.listener)
			early := errors.Is(err, grpc.ErrServerStopped) // ended before it began
			if err != nil && !early && !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
		running.Go(func() error {
			<-ctx.Done()
			left := within()
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), left)
			defer cancel()
			if err := s.drain(limit); err != nil {
				return fmt.Errorf("%s: requests were still open after %v: %w", s.name, left, err)
			}
			return nil
		})
	}
	return running.Wait()
}
