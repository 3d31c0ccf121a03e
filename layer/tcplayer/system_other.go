//go:build !linux

package tcplayer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
)

// peek returns false, because this system cannot peek.
func peek(net.Conn, peekSpec) (ok bool, data []byte, err error) { return false, nil, nil }

// isClosed returns false, because this system cannot report a connection's state.
func isClosed(net.Conn) bool { return false }

// errnoOf returns the number of the system error in err as text, or "".
func errnoOf(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return ""
	}
	return fmt.Sprint(uintptr(errno))
}

// originalDstOf returns an error, because this system knows no original destination.
func originalDstOf(net.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, fmt.Errorf("original destination on %s: %w (use FixedDst or ProxyProtocol)",
		runtime.GOOS, errors.ErrUnsupported)
}
