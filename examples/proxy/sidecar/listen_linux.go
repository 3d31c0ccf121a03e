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

// listen listens on addr, for IPv4 too if addr is the unspecified IPv6 address. If backlog is above
// 0, it limits how many connections may wait to be accepted. With reuse, another process may listen
// on addr as well, if it sets the same socket option.
//
// MPTCP is off: the kernel does not report its connections' original destination, and supports only
// some socket options.
func listen(addr netip.AddrPort, backlog int, reuse bool) (net.Listener, error) {
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	// Control runs between socket(2) and bind(2), because the option must be set before the address is taken.
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
		err = controlListener(l, "listen", func(fd int) error { return unix.Listen(fd, backlog) }) // a second listen(2) sets the backlog
	}
	if err == nil && reuse {
		err = controlListener(l, "setsockopt", preferNewest)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// preferNewest gives all new connections to the newest of several listeners that share an address.
// None is lost when the older listener closes. For a single listener it changes nothing.
func preferNewest(fd int) error {
	second := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &second})
}

// waiting reports whether a connection waits to be accepted from l.
func waiting(l net.Listener) bool {
	fds := make([]unix.PollFd, 1)
	err := controlListener(l, "poll", func(fd int) error {
		// A listener is readable if a connection waits. A timeout of 0 only asks, and never blocks.
		fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		_, err := unix.Poll(fds, 0)
		return err
	})
	return err == nil && fds[0].Revents&unix.POLLIN != 0
}

// controlListener calls f with l's file descriptor. call names f's system call in errors.
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

// control calls f with raw's file descriptor. call names f's system call in errors.
func control(raw syscall.RawConn, call string, f func(fd int) error) error {
	// Two errors are possible: raw.Control could not use the descriptor, or f failed with it.
	var failed error
	err := raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	if err == nil {
		err = os.NewSyscallError(call, failed)
	}
	return err
}
