//go:build unix

package h1

import (
	"net"
	"syscall"
)

// socket looks at what a connection has received, without reading it.
type socket struct {
	raw   syscall.RawConn // nil without a socket
	peek  func(fd uintptr)
	b     [1]byte
	quiet bool // nothing has arrived
}

// init finds the socket below a connection.
func (s *socket) init(conn net.Conn) {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = outer.NetConn()
	}
	inner, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := inner.SyscallConn()
	if err != nil {
		return
	}
	s.raw = raw
	s.peek = func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), s.b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		s.quiet = err == syscall.EAGAIN || err == syscall.EINTR
	}
}

// readable reports whether bytes, the end, or an error have arrived.
func (s *socket) readable() bool {
	return s.raw != nil && (s.raw.Control(s.peek) != nil || !s.quiet)
}
