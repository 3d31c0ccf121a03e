package tcplayer

import (
	"net"
	"syscall"
)

// awaitFirst waits until conn has something to be read, or is at its end, and
// leaves that where it is. It says no if it cannot do that.
//
// A Read would serve as well, were it not for what follows: the kernel moves
// whole pages from one socket to the other, and is several times slower once
// some bytes are missing from the first.
func awaitFirst(conn net.Conn) (ok, more bool, err error) {
	// No type that has a TCPConn in it: it may have bytes of its own.
	tcp, ok := unmetered(conn).(*net.TCPConn)
	if !ok {
		return false, false, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true, false, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		for {
			n, _, errno := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
			switch errno {
			case nil:
				more = n > 0
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false
			default:
				failed = &net.OpError{Op: "read", Net: "tcp", Source: tcp.LocalAddr(), Addr: tcp.RemoteAddr(), Err: errno}
			}
			return true
		}
	})
	if err == nil {
		err = failed
	}
	return true, more, err
}
