package usertimeout

import (
	"math"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Set makes tcp end with an error when sent data was not acknowledged for d. The minimum is one
// millisecond. Systems other than Linux return an error that matches [errors.ErrUnsupported].
func Set(tcp *net.TCPConn, d time.Duration) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	ms := int(min(max(d.Milliseconds(), 1), math.MaxInt32))
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms) })
	if err != nil {
		return err
	}
	return os.NewSyscallError("setsockopt TCP_USER_TIMEOUT", failed)
}
