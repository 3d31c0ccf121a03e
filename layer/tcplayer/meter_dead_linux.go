package tcplayer

import (
	"net"

	"golang.org/x/sys/unix"
)

// closedState is TCP_CLOSE of the kernel: a connection that was reset, or given up.
const closedState = 7

// dead reports whether the TCP connection at the bottom of conn is no more,
// though nobody here closed it. A copy between two sockets fails with one error,
// which does not say whose it is.
func dead(conn net.Conn) bool {
	tcp, ok := socket(conn).(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	state := uint8(0)
	err = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	return err == nil && state == closedState
}
