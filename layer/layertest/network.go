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

// Network is a network in memory with TCP addresses. Only its own listeners can be dialed. The
// zero Network is ready to use.
//
// Its connections block durably in a testing/synctest bubble and use the bubble's clock, so that
// net/http and gRPC work there. Listen and DialContext should be called in the same bubble.
type Network struct {
	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	lastPort  uint16 // the last port that the Network chose
}

const firstPort = 49152 // the first of the ports that the Network chooses

// Listen returns a listener on address, for example "10.0.0.1:80". network is "tcp", "tcp4" or
// "tcp6". If the port is 0, Listen chooses a free one. If the host is empty or unspecified, the
// listener accepts connections to every IP address without its own listener. The error is a
// *net.OpError. It matches syscall.EADDRINUSE if the address is in use.
//
// The caller must close the listener. That also closes the connections that were not accepted.
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

// DialContext connects to a listener. http.Transport and gRPC accept it as their dial function.
// It waits only while the listener's backlog, 128 connections, is full. The error is a
// *net.OpError. It matches syscall.ECONNREFUSED if nothing listens at the address, and the cause
// of ctx if ctx has ended. It matches a *net.DNSError if the host is neither an IP address nor
// "localhost".
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
		return nil, &net.OpError{Op: "dial", Net: network, Addr: remote, Err: errRefused}
	}
	near, far := newConns(network, net.TCPAddrFromAddrPort(local), remote)
	if err := l.offer(ctx, far); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: remote, Err: err}
	}
	return near, nil
}

// reach returns the listener for the address ap and an unused address for the client. The
// listener is nil if no listener accepts connections to ap.
func (n *Network) reach(ap netip.AddrPort) (*listener, netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	self := loopback(ap.Addr())
	// A listener on the address itself comes before those on every address.
	for _, host := range []netip.Addr{ap.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if l := n.listeners[netip.AddrPortFrom(host, ap.Port())]; l != nil {
			return l, n.free(self)
		}
	}
	return nil, netip.AddrPort{}
}

// free returns an unused address of host. The caller must hold mu.
func (n *Network) free(host netip.Addr) netip.AddrPort {
	for {
		// After 65535 the sum wraps around to 0, and the search begins again at firstPort.
		n.lastPort = max(n.lastPort+1, firstPort)
		ap := netip.AddrPortFrom(host, n.lastPort)
		if _, taken := n.listeners[ap]; !taken {
			return ap
		}
	}
}

// remove frees the address of a closed listener.
func (n *Network) remove(l *listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, l.address)
}

var errRefused = os.NewSyscallError("connect", syscall.ECONNREFUSED)

// loopback returns the loopback address of the same IP version as like.
func loopback(like netip.Addr) netip.Addr {
	if like.Is6() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

var errNoPort = errors.New("port is not a number from 0 to 65535")

// parseAddress parses an address of the virtual network. The only host name is localhost.
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

const backlog = 128 // the largest number of connections that are not accepted yet

// listener passes connections from DialContext to Accept. Its channels belong to the
// synctest bubble in which Listen was called.
type listener struct {
	owner   *Network
	network string
	address netip.AddrPort
	queue   chan *conn
	closed  chan struct{}
	once    sync.Once
}

func newListener(owner *Network, network string, address netip.AddrPort) *listener {
	return &listener{
		owner: owner, network: network, address: address,
		queue: make(chan *conn, backlog), closed: make(chan struct{}),
	}
}

// offer adds c to the connections that wait for Accept. It waits while the backlog is full.
// It returns an error if the listener is closed or ctx ends.
func (l *listener) offer(ctx context.Context, c *conn) error {
	// A select among ready cases is random, and closed must come first.
	select {
	case <-l.closed:
		return errRefused
	default:
	}
	select {
	case l.queue <- c:
	case <-l.closed:
		return errRefused
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-l.closed:
		// Close may have emptied the backlog just before c was added.
		c.reset()
		return errRefused
	default:
		return nil
	}
}

// Accept waits for a connection. A closed listener accepts none, even if one is waiting.
func (l *listener) Accept() (net.Conn, error) {
	// The second select chooses at random if both cases are ready, so look for closed first.
	select {
	case <-l.closed:
		return nil, l.fail("accept")
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, l.fail("accept")
	}
}

// Close closes the listener and resets the connections that were not accepted, as the
// kernel does.
func (l *listener) Close() error {
	err := l.fail("close")
	l.once.Do(func() {
		err = nil
		l.owner.remove(l)
		close(l.closed)
		for {
			select {
			case c := <-l.queue:
				c.reset()
			default:
				return
			}
		}
	})
	return err
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.address) }

// fail returns the error of the operation op on a closed listener.
func (l *listener) fail(op string) error {
	return &net.OpError{Op: op, Net: l.network, Addr: l.Addr(), Err: net.ErrClosed}
}
