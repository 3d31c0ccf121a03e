package sidecar

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// listen listens on addr. A backlog above 0 limits the number of connections that wait to
// be accepted. A listener on the unspecified IPv6 address also accepts IPv4. If reuse is
// true, another process may also listen on addr, if it sets the same socket option.
//
// MPTCP is off, because for MPTCP connections the kernel does not report the original
// destination, and does not support all socket options.
func listen(addr netip.AddrPort, backlog int, reuse bool) (net.Listener, error) {
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	if reuse {
		c.Control = func(_, _ string, raw syscall.RawConn) error {
			return control(raw, "setsockopt", func(fd int) error {
				return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			})
		}
	}
	l, err := c.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	if backlog > 0 {
		err = controlListener(l, "listen", func(fd int) error { return unix.Listen(fd, backlog) }) // a second listen sets the backlog
	}
	if err == nil && reuse {
		err = controlListener(l, "setsockopt", toNewest)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// toNewest sets a socket option for listeners that share an address. The newest listener
// then receives all new connections, so that none is lost when the older listener closes.
// With one listener, the option has no effect.
func toNewest(fd int) error {
	second := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &second})
}

// waiting reports whether l has a connection that waits to be accepted.
func waiting(l net.Listener) bool {
	fds := make([]unix.PollFd, 1)
	err := controlListener(l, "poll", func(fd int) error {
		fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		_, err := unix.Poll(fds, 0)
		return err
	})
	return err == nil && fds[0].Revents&unix.POLLIN != 0
}

// controlListener calls f with the file descriptor of l. call is the name of the system
// call that f makes, for errors.
func controlListener(l net.Listener, call string, f func(fd int) error) error {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, call, f)
}

// control calls f with the file descriptor of raw. call is the name of the system call
// that f makes, for errors.
func control(raw syscall.RawConn, call string, f func(fd int) error) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	if err == nil {
		err = os.NewSyscallError(call, failed)
	}
	return err
}
