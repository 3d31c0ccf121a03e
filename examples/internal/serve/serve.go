// Package serve runs the servers of an example program and drains them at its end.
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

// Group is a set of servers. Each is bound when it is added, so that all addresses are
// known before a server serves, and an address that cannot be bound is an error. The zero
// Group is empty.
type Group struct {
	servers []server
	err     error
}

type server struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error
	drain    func(context.Context) error
}

// headerTimeout is the time limit of the headers of a request.
const headerTimeout = 10 * time.Second

// idleTimeout is the time after which an idle connection is closed.
const idleTimeout = 2 * time.Minute

// The limits of an HTTP/2 connection. maxStreams is the minimum that RFC 9113 recommends.
// writeTimeout closes a connection whose client does not read. The deadlines of single
// responses do not apply then.
const (
	maxStreams   = 100
	writeTimeout = 30 * time.Second
)

// HTTP adds a server of HTTP/1.1 and, by prior knowledge, cleartext HTTP/2, and returns
// its address. A connection has at most 100 concurrent requests, and is closed if its
// client reads nothing for 30 s. A fallback is used if addr is taken. A handler with
// streaming responses has a method Shutdown that ends them.
func (g *Group) HTTP(name, addr string, h http.Handler, fallback ...string) string {
	return g.HTTPBehind(func(l net.Listener) net.Listener { return l }, name, addr, h, fallback...)
}

// HTTPBehind is HTTP with a listener that wrap returns for the bound one.
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

// Front adds a server for untrusted clients, an [httplayer.Server] with its default
// limits, and returns the address. Open requests get the time grace when the server
// drains.
func (g *Group) Front(name, addr string, h http.Handler, grace time.Duration) string {
	ctx, stop := context.WithCancel(context.Background())
	srv := httplayer.NewServer(h, httplayer.WithDrainOnDone(ctx))
	return g.add([]string{addr}, server{
		name:  name,
		serve: func(l net.Listener) error { return tcplayer.Serve(ctx, l, srv, tcplayer.WithShutdownTimeout(grace)) },
		drain: func(context.Context) error { stop(); return nil },
	})
}

// GRPC adds a gRPC server with the services that register adds, and returns its address.
// stop is called when the server drains, and asks streams to end. A fallback is used if
// addr is taken.
func (g *Group) GRPC(name, addr string, register func(*grpc.Server), stop func(), fallback ...string) string {
	srv := grpc.NewServer()
	register(srv)
	return g.GRPCServer(name, addr, srv, stop, fallback...)
}

// GRPCServer is GRPC for an existing server.
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

func (g *Group) add(addrs []string, s server) string {
	var failed error
	for _, addr := range addrs {
		l, err := net.Listen("tcp", addr)
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

// Err returns the errors of the servers that could not be bound.
func (g *Group) Err() error { return g.err }

// Close releases the addresses of a Group that will not run.
func (g *Group) Close() {
	for _, s := range g.servers {
		s.listener.Close()
	}
}

// Run serves until ctx ends or a server fails, then drains all of them for up
// to grace.
func (g *Group) Run(ctx context.Context, grace time.Duration, log *slog.Logger) error {
	return g.RunWithin(ctx, func() time.Duration { return grace }, log)
}

// RunWithin is Run with a grace that is determined when ctx ends or a server fails.
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
