//go:build unix

package h1

import (
	"io"
	"net"
	"os"
	"syscall"
)

// socket gives access to the socket below a client connection. It is used by one goroutine
// at a time.
type socket struct {
	raw    syscall.RawConn // nil without a socket
	plain  bool            // the bytes of the connection are those of the socket
	meter  meter           // counts the bytes of an exchange; may be nil
	peekFD func(fd uintptr)
	stepFD func(fd uintptr) bool

	b     [1]byte
	quiet bool // nothing has arrived

	// The exchange in progress.
	check   bool   // peek first
	out, in []byte // not sent; space for the response
	written int
	n       int
	err     error
}

// meter is a wrapper of a connection that only counts bytes, such as that of
// tcplayer.Meter.
type meter interface {
	Transferred(read, written int, err error)
}

// init finds the socket of a connection, or the socket below it.
func (s *socket) init(conn net.Conn) {
	s.plain = true
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		m, counts := conn.(meter)
		s.plain = s.plain && counts && s.meter == nil
		s.meter = m
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
	s.raw, s.peekFD, s.stepFD = raw, s.peek, s.step
}

// peek sets quiet.
func (s *socket) peek(fd uintptr) {
	_, _, err := syscall.Recvfrom(int(fd), s.b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	s.quiet = err == syscall.EAGAIN || err == syscall.EINTR
}

// readable reports whether bytes, the end, or an error have arrived.
func (s *socket) readable() bool {
	return s.raw != nil && (s.raw.Control(s.peekFD) != nil || !s.quiet)
}

// canExchange reports whether the bytes of the connection are those of the socket, so that
// exchange may be called.
func (s *socket) canExchange() bool { return s.raw != nil && s.plain }

// exchange writes out and then reads once into in. If check is set and bytes or the end
// have arrived, it writes nothing and returns errStale. It does not try to read before the
// response has arrived, which saves a system call. No event is lost, because the wait is
// registered before the write.
func (s *socket) exchange(out, in []byte, check bool) (written, n int, err error) {
	s.out, s.in, s.check, s.written, s.n, s.err = out, in, check, 0, 0, nil
	err = s.raw.Read(s.stepFD)
	s.out, s.in = nil, nil
	if s.err != nil {
		err = s.err
	}
	if s.meter != nil {
		s.meter.Transferred(s.n, s.written, err)
	}
	return s.written, s.n, err
}

// step makes the next system calls of an exchange. It returns false to wait until fd is
// readable.
func (s *socket) step(fd uintptr) bool {
	if s.check {
		s.check = false
		if s.peek(fd); !s.quiet {
			s.err = errStale
			return true
		}
	}
	if s.written < len(s.out) {
		s.written, s.err = retry(syscall.Write, fd, s.out)
		if s.err == syscall.EAGAIN { //nolint:errorlint // set by retry
			s.err = nil
		} else if s.err != nil {
			s.err = os.NewSyscallError("write", s.err)
		}
		// The caller writes the rest after a short write.
		return s.written < len(s.out)
	}
	s.n, s.err = retry(syscall.Read, fd, s.in)
	switch {
	case s.err == syscall.EAGAIN: //nolint:errorlint // set by retry
		s.err = nil
		return false
	case s.err != nil:
		s.err = os.NewSyscallError("read", s.err)
	case s.n == 0:
		s.err = io.EOF
	}
	return true
}

// retry calls a system call until it is not interrupted. n is never negative.
func retry(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		n, err = call(int(fd), p)
		if err != syscall.EINTR { //nolint:errorlint // an error number
			return max(n, 0), err
		}
	}
}
