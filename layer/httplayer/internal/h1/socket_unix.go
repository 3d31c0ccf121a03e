//go:build unix && !portable

package h1

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/gotower/gotower/internal/rawio"
)

// socket gives access to the file descriptor of a client connection. It is used to find out whether an
// idle connection was closed, and to save system calls: see exchange. One goroutine at a time uses it.
type socket struct {
	raw    syscall.RawConn       // nil if the connection has no file descriptor
	plain  bool                  // bytes reach the socket unchanged, as without TLS
	meter  meter                 // counts the bytes of exchange; may be nil
	secure *tls.Conn             // TLS on the socket; may be nil
	peekFD func(fd uintptr)      // s.peek; kept because a method value allocates
	stepFD func(fd uintptr) bool // s.step

	b     [1]byte
	quiet bool // set by peek: no bytes, end or error have arrived

	// State of the exchange in progress.

	out           *writer
	in            *source
	written, read int   // results of the last system calls
	err           error // why the exchange has failed
}

// meter is implemented by a connection that counts the bytes of an inner connection, such as the
// one from tcplayer.Meter. exchange uses the inner connection directly, and reports the bytes to
// the meter.
type meter interface {
	Transferred(read, written int, err error)
}

// init finds the socket of conn. If conn is a wrapper with a NetConn method, it looks for
// the socket in the wrapped connection.
func (s *socket) init(conn net.Conn) {
	s.plain = true
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		if secure, ok := conn.(*tls.Conn); ok {
			s.secure = secure
		}
		m, isMeter := conn.(meter)
		s.plain = s.plain && isMeter && s.meter == nil // only one wrapper is allowed: a meter
		s.meter = m
		conn = outer.NetConn()
	}
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default: // a type that embeds one of them may encrypt
		s.plain = false
	}
	inner, ok := conn.(syscall.Conn)
	if !ok {
		return // no file descriptor, for example a net.Pipe
	}
	raw, err := inner.SyscallConn()
	if err != nil {
		return
	}
	s.raw, s.peekFD, s.stepFD = raw, s.peek, s.step
}

// peek sets s.quiet, which is true if nothing has arrived on the socket. It does not
// consume bytes.
func (s *socket) peek(fd uintptr) {
	_, err := rawio.Peek(fd, s.b[:])
	s.quiet = err == syscall.EAGAIN //nolint:errorlint // an error number
}

// exists reports whether there is a file descriptor.
func (s *socket) exists() bool { return s.raw != nil }

// readable reports whether bytes, the end of the stream or an error have arrived on the socket.
// With TLS, bytes may have been read from the socket already. Without a socket the result is
// false.
func (s *socket) readable() bool {
	switch {
	case s.raw == nil:
		return false
	case s.raw.Control(s.peekFD) != nil || !s.quiet:
		return true
	case s.secure == nil:
		return false
	}
	_ = s.secure.SetReadDeadline(time.Unix(1, 0)) // so that Read does not wait
	n, err := s.secure.Read(s.b[:])
	_ = s.secure.SetReadDeadline(time.Time{})
	return n > 0 || !errors.Is(err, os.ErrDeadlineExceeded)
}

// canExchange reports whether exchange may be called: there is a socket, and it carries the same bytes
// as the connection. With TLS it does not.
func (s *socket) canExchange() bool { return s.raw != nil && s.plain }

// exchange sends a request and waits for the response, with fewer system calls than a Write and a Read.
// It writes out's bytes, and as soon as the socket is readable, reads once into the buffer of in. It
// writes nothing if the socket is readable before, because then the server has closed the connection,
// and the poller would not report it again. After a short write it does not read, and the caller writes
// the rest.
//
// While it waits, it holds no buffer: out's goes back to the pool after the write, and in gets one when
// the socket is readable.
func (s *socket) exchange(out *writer, in *source) error {
	s.out, s.in, s.written, s.read, s.err = out, in, 0, 0, nil
	// Read calls step until it returns true. Between two calls, this goroutine sleeps until fd is readable.
	err := s.raw.Read(s.stepFD)
	if s.err != nil {
		err = s.err
	}
	if s.meter != nil {
		s.meter.Transferred(s.read, s.written, err)
	}
	return err
}

// step makes the next system calls of an exchange. The poller calls it, first immediately and then when
// fd is readable, until it returns true.
func (s *socket) step(fd uintptr) bool {
	if s.out.buf != nil {
		if s.peek(fd); !s.quiet {
			s.err = errServerClosed
			return true
		}
		return !s.write(fd)
	}
	// The request was sent, and fd may be readable.
	s.in.reserve()
	s.read, s.err = rawio.Read(fd, s.in.space())
	s.in.w += s.read
	s.in.release() // does nothing if bytes were read
	switch {
	case s.err == syscall.EAGAIN: //nolint:errorlint // an error number
		s.err = nil
		return false
	case s.err != nil:
		s.err = os.NewSyscallError("read", s.err)
	case s.read == 0:
		s.err = io.EOF
	}
	return true
}

// write writes the bytes of s.out once, and reports whether it has written all of them. If so, it
// returns the buffer to the pool.
func (s *socket) write(fd uintptr) bool {
	out := s.out
	s.written, s.err = rawio.Write(fd, out.b)
	out.sent = s.written > 0
	switch {
	case s.written == len(out.b):
		out.end()
		return true
	case s.err == syscall.EAGAIN: //nolint:errorlint // an error number
		s.err = nil
	case s.err != nil:
		s.err = os.NewSyscallError("write", s.err)
	}
	// Keep the unsent bytes at the start of the buffer for the caller.
	out.b = append(out.b[:0], out.b[s.written:]...)
	return false
}
