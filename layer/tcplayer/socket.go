package tcplayer

import (
	"net"
	"time"
)

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
	tcp, ok := socket(conn).(*net.TCPConn)
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
