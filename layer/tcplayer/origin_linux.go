package tcplayer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The option is 80 for IPv6, too (IP6T_SO_ORIGINAL_DST).
const originalDst = unix.SO_ORIGINAL_DST

// redirectedFrom asks the kernel which address conn was made to.
func redirectedFrom(conn net.Conn) (netip.AddrPort, error) {
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

// originalDst4 reads a sockaddr_in of 16 bytes into a struct that has room for
// it: there is no call that takes just any.
func originalDst4(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := got.Multiaddr // family, port, address, padding
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

// originalDst6 reads a sockaddr_in6, with which the struct begins.
func originalDst6(fd int) (netip.AddrPort, error) {
	got, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip := netip.AddrFrom16(got.Addr.Addr)
	if scope := got.Addr.Scope_id; scope != 0 && ip.IsLinkLocalUnicast() {
		ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
	}
	var port [2]byte // in network order, whatever the machine's is
	binary.NativeEndian.PutUint16(port[:], got.Addr.Port)
	return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(port[:])), nil
}
