package tcplayer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// peek waits for the first bytes of conn, as g specifies, and reads them with MSG_PEEK, which
// leaves them in the kernel. The result ok is false if conn is not a TCP connection.
func peek(conn net.Conn, g peekSpec) (ok bool, data []byte, err error) {
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
	// Read calls tryPeek again each time the socket becomes readable, until it returns true or the
	// deadline passes.
	if err := raw.Read(p.tryPeek); err != nil {
		return true, p.data, err
	}
	return true, p.data, p.err
}

// peekState holds one peek's parameters, buffer and results.
type peekState struct {
	peekSpec
	conn      net.Conn
	buf, data []byte
	err       error
}

// tryPeek peeks without waiting. It returns true if the peek is done, with the result in p.data and
// p.err. It returns false if more bytes are needed.
func (p *peekState) tryPeek(fd uintptr) (done bool) {
	for ended := false; ; {
		// The call does not block, because the runtime's sockets are non-blocking.
		n, _, err := unix.Recvfrom(int(fd), p.buf, unix.MSG_PEEK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			// Nothing has arrived, so raw.Read waits until the socket is readable.
			return false
		case err != nil:
			p.err = &net.OpError{Op: "read", Net: "tcp", Source: p.conn.LocalAddr(), Addr: p.conn.RemoteAddr(), Err: err}
			return true
		// The peer has closed its sending half without another byte.
		case n == 0:
			p.err = io.EOF
			return true
		}
		p.data = p.buf[:n]
		switch {
		case n == p.max || p.enough(p.data):
			return true
		// The buffer is full, so more bytes may have arrived.
		case n == len(p.buf):
			p.buf = make([]byte, min(p.max, 2*n))
		// No more bytes came before the end.
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

// hasEOF reports whether the peer has closed its sending half.
func hasEOF(fd int) bool {
	for {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds[:], 0)
		// A signal has interrupted the call. It says nothing about the connection.
		if errors.Is(err, unix.EINTR) {
			continue
		}
		// The peer has closed its side, or the connection has failed.
		return err == nil && n > 0
	}
}

// closedState is the kernel's TCP_CLOSE, the state of a connection after a reset or a timeout.
const closedState = 7

// isClosed reports whether the TCP connection in conn was closed by a reset or a timeout.
// It is called after a failed copy between two sockets, because the error of the copy
// does not specify which socket failed.
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
		// The type of the error does not tell the socket, but the state in the kernel does.
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	return err == nil && state == closedState
}

// errnoOf returns the name of the system error in err, such as ECONNRESET. It returns "" if there
// is none.
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

// unknownErrno is the text that linkerd's proxy uses for a system error without a name.
const unknownErrno = "UNKNOWN_ERRNO"

// originalDst is the socket option that returns where a connection went before a redirection. It
// is also the option for IPv6, because IP6T_SO_ORIGINAL_DST has the same value.
const originalDst = unix.SO_ORIGINAL_DST

// originalDstOf returns the destination that conn had before a redirection by the kernel.
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
	// An IPv4-mapped connection has the option of IPv4.
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

// originalDst4 reads the original destination of an IPv4 socket. The kernel returns a sockaddr_in
// of 16 bytes, for which package unix lacks a call. Therefore originalDst4 uses a call with a
// larger struct and decodes its first bytes.
func originalDst4(fd int) (netip.AddrPort, error) {
	mreq, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	// The struct of 20 bytes begins with the 16 bytes of sockaddr_in.
	b := mreq.Multiaddr // family, port, address, padding
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

// originalDst6 reads the original destination of an IPv6 socket. The kernel returns a
// sockaddr_in6, which is the first field in IPv6MTUInfo, for which package unix has a call.
func originalDst6(fd int) (netip.AddrPort, error) {
	info, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip := netip.AddrFrom16(info.Addr.Addr)
	// Only link-local addresses need a zone.
	if scope := info.Addr.Scope_id; scope != 0 && ip.IsLinkLocalUnicast() {
		ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
	}
	var port [2]byte // in network byte order
	// The kernel's port is in network byte order, but package unix reads it as a native number.
	binary.NativeEndian.PutUint16(port[:], info.Addr.Port)
	return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(port[:])), nil
}
