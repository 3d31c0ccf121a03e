//go:build unix

package h1

import (
	"net"
	"syscall"
)

// Stale reports whether the server has closed an idle connection or has sent
// bytes without a request. It does not block.
func (c *ClientConn) Stale() bool {
	if c.cause.Load() != nil {
		return true
	}
	conn := c.conn
	for {
		inner, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = inner.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	stale := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		stale = err != syscall.EAGAIN && err != syscall.EINTR //nolint:errorlint // a system call returns it as it is
	})
	return err != nil || stale
}
