package tcplayer

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// peek is look by way of the kernel, which hands out a copy of what it has. It
// says no if conn is not a TCP connection.
func peek(conn net.Conn, g glance) (ok bool, seen []byte, err error) {
	// No type that has a TCPConn in it: it may have bytes of its own.
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return false, nil, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true, nil, err
	}
	p := peeking{glance: g, conn: tcp, buf: make([]byte, min(g.most, firstPeek))}
	if err := raw.Read(p.once); err != nil {
		return true, p.seen, err
	}
	return true, p.seen, p.err
}

// peeking is a look that is under way.
type peeking struct {
	glance
	conn      net.Conn
	buf, seen []byte
	err       error
}

// once looks at what there is, and says whether that is all.
func (p *peeking) once(fd uintptr) (done bool) {
	for ended := false; ; {
		n, _, err := unix.Recvfrom(int(fd), p.buf, unix.MSG_PEEK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			p.err = &net.OpError{Op: "read", Net: "tcp", Source: p.conn.LocalAddr(), Addr: p.conn.RemoteAddr(), Err: err}
			return true
		case n == 0:
			p.err = io.EOF
			return true
		}
		p.seen = p.buf[:n]
		switch {
		case n == p.most || p.enough(p.seen):
			return true
		case n == len(p.buf):
			p.buf = make([]byte, min(p.most, 2*n))
		case ended:
			p.err = io.EOF
			return true
		default:
			// The socket wakes its reader once for the end, which may be what
			// woke it now. What came before the end is there to be seen then.
			if ended = peerEnded(int(fd)); !ended {
				return false
			}
		}
	}
}

// peerEnded reports whether nothing more will come.
func peerEnded(fd int) bool {
	for {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n > 0
	}
}
