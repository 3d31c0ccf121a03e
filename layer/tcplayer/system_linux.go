package tcplayer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// peek reads the first bytes with MSG_PEEK, which leaves them in the kernel. ok
// is false if conn is not a TCP connection.
func peek(conn net.Conn, g peekSpec) (ok bool, seen []byte, err error) {
	// A type that embeds TCPConn may buffer bytes.
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return false, nil, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true, nil, err
	}
	p := peekState{peekSpec: g, conn: tcp, buf: make([]byte, min(g.max, peekSize))}
	if err := raw.Read(p.once); err != nil {
		return true, p.seen, err
	}
	return true, p.seen, p.err
}

// peekState is the state of a running peek.
type peekState struct {
	peekSpec
	conn      net.Conn
	buf, seen []byte
	err       error
}

// once peeks and reports whether the result is final.
func (p *peekState) once(fd uintptr) (done bool) {
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
		case n == p.max || p.enough(p.seen):
			return true
		case n == len(p.buf):
			p.buf = make([]byte, min(p.max, 2*n))
		case ended:
			p.err = io.EOF
			return true
		default:
			// The socket wakes its reader once for EOF, possibly now. All bytes
			// before EOF have arrived by then.
			if ended = hasEOF(int(fd)); !ended {
				return false
			}
		}
	}
}

// hasEOF reports whether the peer has ended its direction.
func hasEOF(fd int) bool {
	for {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n > 0
	}
}

// closedState is TCP_CLOSE of the kernel: reset or timed out.
const closedState = 7

// isClosed reports whether the TCP connection in conn was closed by the peer or by the kernel.
// The error of a copy between two sockets does not name the failed one.
func isClosed(conn net.Conn) bool {
	tcp, ok := innermost(conn).(*net.TCPConn)
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

// errnoOf returns the name of the system error in err, or "".
func errnoOf(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return ""
	}
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return unknownErrno
}

// unknownErrno is linkerd's text for an unnamed error.
const unknownErrno = "UNKNOWN_ERRNO"

// originalDst is also the socket option for IPv6: IP6T_SO_ORIGINAL_DST has the same
// value.
const originalDst = unix.SO_ORIGINAL_DST

// originalDstOf asks the kernel for the destination before redirection.
func originalDstOf(conn net.Conn) (netip.AddrPort, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("original destination of a %T: %w", conn, errors.ErrUnsupported)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var dst netip.AddrPort
	ask := originalDst6
	if addrPort(tcp.LocalAddr()).Addr().Is4() {
		ask = originalDst4
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { dst, failed = ask(int(fd)) }); err != nil {
		return netip.AddrPort{}, err
	}
	if failed != nil {
		failed = os.NewSyscallError("getsockopt SO_ORIGINAL_DST", failed)
		return netip.AddrPort{}, fmt.Errorf("%w (was the connection redirected by iptables or nftables?)", failed)
	}
	return dst, nil
}

// originalDst4 reads a sockaddr_in of 16 bytes into a struct of sufficient
// size, because package unix has no call for it.
func originalDst4(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := got.Multiaddr // family, port, address, padding
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

// originalDst6 reads a sockaddr_in6 into a larger struct, as originalDst4 does.
func originalDst6(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip := netip.AddrFrom16(got.Addr.Addr)
	if scope := got.Addr.Scope_id; scope != 0 && ip.IsLinkLocalUnicast() {
		ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
	}
	var port [2]byte // in network byte order
	binary.NativeEndian.PutUint16(port[:], got.Addr.Port)
	return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(port[:])), nil
}

func setUserTimeout(tcp *net.TCPConn, d time.Duration) error {
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
