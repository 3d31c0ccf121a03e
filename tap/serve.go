package tap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// DefaultAddress is where linkerd's proxy serves its tap, on this machine alone.
const DefaultAddress = "127.0.0.1:4190"

// stopPatience is how long the end of Serve waits for watchers to be told.
const stopPatience = 2 * time.Second

// Serve makes a process that has no gRPC server of its own one that can be
// watched: it listens on addr, and serves who watches reg until ctx ends.
//
//	go func() { log.Println(tap.Serve(ctx, "", registry)) }()
//
// An empty addr is [DefaultAddress]; "unix:" and a path is a socket. An address
// that other machines can reach is refused, before anything listens there,
// unless [WithCredentials] and [WithAllowedIdentities] say who may watch, or
// [WithAllowRemote] that anybody may.
//
// When ctx ends, streams end with Unavailable, and Serve returns nil after two
// seconds at most. Any other error says what to do. Use [NewServer] to serve on
// a gRPC server that is there already.
func Serve(ctx context.Context, addr string, reg *Registry, opts ...ServerOption) error {
	if addr == "" {
		addr = DefaultAddress
	}
	s := NewServer(reg, opts...)
	l, err := s.listen(ctx, addr)
	if err != nil {
		return fmt.Errorf("tap: serve on %s: %w", addr, err)
	}
	var options []grpc.ServerOption
	if s.listens.credentials != nil {
		options = append(options, grpc.Creds(s.listens.credentials))
	}
	server := grpc.NewServer(options...)
	s.Register(server)
	if s.listens.listening != nil {
		s.listens.listening(l.Addr())
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.end(server)
	})
	err = server.Serve(l)
	if !stop() {
		<-ended
		return nil
	}
	server.Stop()
	return fmt.Errorf("tap: serve on %s: %w", addr, err)
}

// end tells all watchers, and waits a little for those who do not listen, and for
// what is asked of the process: GracefulStop alone would wait for a tree that
// nobody can look at any more.
func (s *Server) end(server *grpc.Server) {
	s.Shutdown()
	told := make(chan struct{})
	go func() {
		defer close(told)
		server.GracefulStop()
	}()
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-told:
	case <-timer.C:
		server.Stop()
	}
}

// WithCredentials are what [Serve] serves with. They must ask for client
// certificates and check them, else nobody can prove who he is.
func WithCredentials(c credentials.TransportCredentials) ServerOption {
	return serverOption(func(s *Server) { s.listens.credentials = c })
}

// WithOnListen has [Serve] say where it listens, before it serves: for an address
// with port 0, which is any that is free.
func WithOnListen(at func(net.Addr)) ServerOption {
	return serverOption(func(s *Server) { s.listens.listening = at })
}

var (
	errReachable = errors.New("other machines can reach this address: " +
		"listen on 127.0.0.1, or name the clients by WithCredentials and WithAllowedIdentities")
	errNobody = errors.New("nobody of another machine could watch: " +
		"Credentials need WithAllowedIdentities, and WithAllowedIdentities needs Credentials")
	errNoPath = errors.New("the path of the socket is missing: unix:/run/web/tap.sock")
)

// listens is what options say of Serve.
type listens struct {
	credentials credentials.TransportCredentials // nil: in clear
	listening   func(net.Addr)                   // nil: nobody asks
}

func (s *Server) listen(ctx context.Context, addr string) (net.Listener, error) {
	network, address := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if path == "" {
			return nil, errNoPath // Linux would take a name of its own choice
		}
		network, address = "unix", path
	} else if err := s.mayListen(addr); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && network == "unix":
		return nil, fmt.Errorf("something listens there already, or did and was killed: remove the socket if it was: %w", err)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("something listens there already: take another port (0 is any that is free): %w", err)
	case err != nil:
		return nil, err
	}
	return l, nil
}

// mayListen returns why not.
func (s *Server) mayListen(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("an address is host:port, such as %s: %w", DefaultAddress, err)
	}
	ip, err := netip.ParseAddr(host)
	named, proven := len(s.access.identities) > 0, s.listens.credentials != nil
	switch {
	case err == nil && ip.IsLoopback(), host == "localhost", s.access.everybody, named && proven:
		return nil
	case named || proven:
		return errNobody
	}
	return errReachable
}
