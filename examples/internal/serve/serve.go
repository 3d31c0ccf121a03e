// Package serve runs the listeners of an example program, and drains them when
// it ends.
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

// Group is a set of servers. Each is bound when it is added, so that all
// addresses are known, and a bad one is an error, before any serves. The zero
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

// readHeader is how long a client may take to send the header of a request.
const readHeader = 10 * time.Second

// idle is how long a client may keep a connection that it does not use.
const idle = 2 * time.Minute

// What a connection of HTTP/2 may have: so many requests at a time, the least that
// RFC 9113 recommends, and so long with nothing read of what was sent on it. The
// limits of a response are its stream's, and cannot end it where the connection
// itself is stuck.
const (
	streams = 100
	unread  = 30 * time.Second
)

// HTTP adds a server of HTTP/1.1 and, by prior knowledge, cleartext HTTP/2, of
// which a connection has at most 100 requests at a time, and is closed where
// nothing that is sent is read for 30 s. It returns its address. A fallback is for
// where addr is taken. A handler with responses that do not end has a method
// Shutdown, which asks them to; what bounds those that do is up to it.
func (g *Group) HTTP(name, addr string, h http.Handler, fallback ...string) string {
	return g.HTTPBehind(func(l net.Listener) net.Listener { return l }, name, addr, h, fallback...)
}

// HTTPBehind is HTTP for the connections that what behind makes of the listener
// accepts.
func (g *Group) HTTPBehind(
	behind func(net.Listener) net.Listener, name, addr string, h http.Handler, fallback ...string,
) string {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler: h, Protocols: &protocols, ReadHeaderTimeout: readHeader, IdleTimeout: idle,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams, WriteByteTimeout: unread},
	}
	if endless, ok := h.(interface{ Shutdown() }); ok {
		srv.RegisterOnShutdown(endless.Shutdown)
	}
	serve := func(l net.Listener) error { return srv.Serve(behind(l)) }
	return g.add(append([]string{addr}, fallback...), server{name: name, serve: serve, drain: func(ctx context.Context) error {
		err := srv.Shutdown(ctx)
		if err != nil {
			_ = srv.Close() // what did not end by itself
		}
		return err
	}})
}

// Front adds a server of clients that are not trusted: an [httplayer.Server], with
// its limits and its guard against request smuggling. It returns its address. Its
// connections have grace to end.
func (g *Group) Front(name, addr string, h http.Handler, grace time.Duration) string {
	ctx, stop := context.WithCancel(context.Background())
	srv := httplayer.NewServer(h, httplayer.WithDrainOnDone(ctx))
	return g.add([]string{addr}, server{
		name:  name,
		serve: func(l net.Listener) error { return tcplayer.Serve(ctx, l, srv, tcplayer.WithShutdownTimeout(grace)) },
		drain: func(context.Context) error { stop(); return nil },
	})
}

// GRPC adds a gRPC server, and calls register for its services. It returns its
// address. Streams are let to end while it drains; stop, if not nil, is called
// to ask them to. A fallback is for where addr is taken.
func (g *Group) GRPC(name, addr string, register func(*grpc.Server), stop func(), fallback ...string) string {
	srv := grpc.NewServer()
	register(srv)
	return g.GRPCServer(name, addr, srv, stop, fallback...)
}

// GRPCServer is GRPC for a server that was made by the caller.
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

// Err says which servers could not be bound.
func (g *Group) Err() error { return g.err }

// Close lets the addresses of a Group go that will not run.
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

// RunWithin is Run with a grace that is known once ctx has ended, or a server
// failed: it is asked for then.
func (g *Group) RunWithin(ctx context.Context, grace func() time.Duration, log *slog.Logger) error {
	if g.err != nil {
		g.Close()
		return g.err
	}
	running, ctx := errgroup.WithContext(ctx)
	within := sync.OnceValue(grace) // for all of them
	for _, s := range g.servers {
		log.Info("listening", "for", s.name, "addr", s.listener.Addr().String())
		running.Go(func() error {
			err := s.serve(s.listener)
			early := errors.Is(err, grpc.ErrServerStopped) // it was to end before it began
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
