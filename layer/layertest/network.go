package layertest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// Network is a network in memory: what listens on it can be dialled on it, by
// addresses that look like those of TCP, and nothing else can. The zero
// Network is empty and ready to use.
//
// Its connections block only in ways that testing/synctest sees, and take
// their deadlines from its clock, so that net/http and gRPC run on them inside
// a bubble. Listen and dial inside the same bubble.
type Network struct {
	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	lastPort  uint16 // the last one given out by itself
}

const firstPort = 49152 // of those that are given out by themselves

// Listen announces address, "10.0.0.1:80" for example, on a network named
// "tcp", "tcp4" or "tcp6". Port 0 picks a free one. A listener with an empty or
// unspecified host has every address without another listener. The error is a
// *net.OpError, which matches syscall.EADDRINUSE if the address is in use.
//
// The caller closes the listener. That also closes the connections that were
// not accepted.
func (n *Network) Listen(network, address string) (net.Listener, error) {
	ap, err := parseAddress(network, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if ap.Port() == 0 {
		ap = n.free(ap.Addr())
	}
	if _, taken := n.listeners[ap]; taken {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: net.TCPAddrFromAddrPort(ap),
			Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := newListener(n, network, ap)
	if n.listeners == nil {
		n.listeners = make(map[netip.AddrPort]*listener)
	}
	n.listeners[ap] = l
	return l, nil
}

// DialContext connects to a listener, in the form that http.Transport and gRPC
// use. It waits, until ctx ends, only while the backlog of 128 connections is
// full. The error is a *net.OpError: it matches syscall.ECONNREFUSED without a
// listener, a *net.DNSError if the host is neither an IP address nor
// "localhost", and the cause of ctx.
func (n *Network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ap, err := parseAddress(network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	remote := net.TCPAddrFromAddrPort(ap)
	if ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: remote, Err: context.Cause(ctx)}
	}
	l, local := n.reach(ap)
	if l == nil {
		return nil, refused(network, remote)
	}
	near, far := newConns(network, net.TCPAddrFromAddrPort(local), remote)
	if err := l.offer(ctx, far); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: remote, Err: err}
	}
	return near, nil
}

// reach returns the listener on ap, and the address of the client.
func (n *Network) reach(ap netip.AddrPort) (*listener, netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	self := loopback(ap.Addr())
	for _, host := range []netip.Addr{ap.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if l := n.listeners[netip.AddrPortFrom(host, ap.Port())]; l != nil {
			return l, n.free(self)
		}
	}
	return nil, netip.AddrPort{}
}

// free returns an unused address of host. The caller holds mu.
func (n *Network) free(host netip.Addr) netip.AddrPort {
	for {
		n.lastPort = max(n.lastPort+1, firstPort)
		ap := netip.AddrPortFrom(host, n.lastPort)
		if _, taken := n.listeners[ap]; !taken {
			return ap
		}
	}
}

func (n *Network) remove(l *listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, l.address)
}

func refused(network string, remote net.Addr) error {
	return &net.OpError{Op: "dial", Net: network, Addr: remote, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

func loopback(like netip.Addr) netip.Addr {
	if like.Is6() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

var errNoPort = errors.New("port is not a number from 0 to 65535")

func parseAddress(network, address string) (netip.AddrPort, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return netip.AddrPort{}, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return netip.AddrPort{}, &net.AddrError{Err: errNoPort.Error(), Addr: address}
	}
	var ip netip.Addr
	switch host {
	case "":
		ip = netip.IPv4Unspecified()
	case "localhost":
		ip = loopback(netip.IPv4Unspecified())
	default:
		if ip, err = netip.ParseAddr(host); err != nil {
			return netip.AddrPort{}, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
}
