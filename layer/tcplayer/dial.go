package tcplayer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/gotower/gotower/layer"
)

// Dialer connects to an endpoint as the proxies of a mesh do it: TCP, then TLS,
// then a [TransportHeader] if the peer agreed to one. Its WithDialContext is given to
// an endpoint of this package or of httplayer, in place of their own TLS:
//
//	              TLS   connects to            ALPN offered         header sent
//	zero          no    the address            none                 no
//	TLS           yes   the address, or Port   none                 no
//	TLS, Header   yes   the address, or Port   TransportProtocol    if the peer picks it
//
// Without TLS, Header and Port mean nothing: both are for the proxy of the peer,
// which listens to them over TLS alone. With TLS nothing is ever sent in clear;
// what cannot shake hands is no connection.
//
// A connection that it makes is a *tls.Conn with TLS, and else what Dial returned,
// which is further down with TLS: it is found by NetConn of what NetConn returns.
// HTTP/2 on it is with prior knowledge: no protocol of an application is offered.
//
// It is safe for concurrent use, and must not be changed once it is used.
type Dialer struct {
	// TLS is how to be sure of the peer, and to be known to it; nil means in
	// clear. It is cloned. Its NextProtos are set here, and a ServerName that is
	// empty becomes the host of the address.
	TLS *tls.Config

	// Header is what to tell the proxy of the peer; nil means nothing. A Port of
	// 0 becomes that of the address. See [NewTransportHeader].
	Header *TransportHeader

	// Port takes the place of that of the address: the one at which the proxy of
	// the peer takes such connections. 0 means that of the address.
	Port uint16

	// Sockets is how TCP is set up.
	Sockets []SocketOption

	// Timeout bounds it all: TCP, TLS and the header. 0 or less means no bound
	// but that of the context.
	Timeout time.Duration

	// Refuse, if not nil, says why an address must not be connected to, or nil.
	// It is asked about the one that would be, with Port in it; if that has a
	// name in place of an IP address, then about the one that was connected to,
	// before anything is sent. See [DenyLoopback].
	Deny func(addr netip.AddrPort) error

	// Dial makes the connection that all the rest is done on. The default is
	// that of a zero [net.Dialer].
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// DialContext connects to addr, "host:port", or to Port of its host. Once it has,
// ctx has nothing more to do with the connection, which the caller closes. An
// error of what is done beyond plain TCP is a [layer.Error] that names the address
// that was connected to; a Timeout that ran out is of kind [layer.ErrTimeout].
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	within := ctx
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	p, err := d.plan(addr)
	if err != nil {
		return nil, dialError(addr, "", err)
	}
	conn, err := p.dial(within, network)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		err = &layer.Error{Layer: "dial", Endpoint: p.addr, Kind: layer.ErrTimeout, Waited: d.Timeout, Err: err}
	}
	return conn, err
}

func dialError(addr, reason string, err error) error {
	return &layer.Error{Layer: "dial", Endpoint: addr, Reason: reason, Err: err}
}

// plan is what a Dialer does to connect to an address.
type plan struct {
	*Dialer
	addr   string
	tls    *tls.Config // nil: in clear
	header []byte      // nil: none
}

func (d *Dialer) plan(addr string) (*plan, error) {
	p := &plan{Dialer: d, addr: addr}
	if d.TLS == nil {
		return p, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p.tls = d.TLS.Clone()
	p.tls.NextProtos = nil
	if p.tls.ServerName == "" {
		p.tls.ServerName = host
	}
	if d.Port != 0 {
		p.addr = net.JoinHostPort(host, strconv.Itoa(int(d.Port)))
	}
	if d.Header == nil {
		return p, nil
	}
	h := *d.Header
	if n, err := strconv.ParseUint(port, 10, 16); err == nil && h.Port == 0 {
		h.Port = uint16(n)
	}
	p.tls.NextProtos = []string{TransportProtocol}
	p.header = h.AppendTo(nil)
	return p, h.Validate()
}

func (p *plan) dial(ctx context.Context, network string) (net.Conn, error) {
	conn, err := p.connect(ctx, network)
	if err != nil {
		return nil, err
	}
	if p.tls == nil {
		return conn, nil
	}
	secure, done := tls.Client(&eofConn{Conn: conn}, p.tls), false
	defer func() {
		if !done { // a callback of TLS may have panicked
			_ = conn.Close()
		}
	}()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, dialError(p.addr, "TLS", err)
	}
	if p.header != nil && secure.ConnectionState().NegotiatedProtocol == TransportProtocol {
		if err := write(ctx, secure, p.header); err != nil {
			return nil, dialError(p.addr, "transport header", err)
		}
	}
	done = true
	return secure, nil
}

// connect makes a connection of which the socket is set up.
func (p *plan) connect(ctx context.Context, network string) (net.Conn, error) {
	known, err := netip.ParseAddrPort(p.addr)
	named := err != nil
	if !named {
		if err := p.refuses(known); err != nil {
			return nil, err
		}
	}
	dial := p.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, network, p.addr)
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return nil, dialError(p.addr, "", errNoConn)
	}
	done := false
	defer func() {
		if !done { // Refuse may have panicked
			_ = conn.Close()
		}
	}()
	if named {
		if err := p.refuses(addrPort(conn.RemoteAddr())); err != nil {
			return nil, err
		}
	}
	if err := p.setUp(conn); err != nil {
		return nil, err
	}
	done = true
	return conn, nil
}

func (p *plan) refuses(addr netip.AddrPort) error {
	if p.Deny == nil {
		return nil
	}
	if err := p.Deny(netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())); err != nil {
		return dialError(p.addr, "not to be connected to", err)
	}
	return nil
}

func (p *plan) setUp(conn net.Conn) error {
	var o endpointOptions
	for _, opt := range p.Sockets {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if err := o.sockets.set(conn); err != nil {
		return dialError(p.addr, "socket", err)
	}
	return nil
}

// write writes b before ctx ends.
func write(ctx context.Context, conn net.Conn, b []byte) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) })
	_, err := conn.Write(b)
	if !stop() && err == nil {
		err = fmt.Errorf("written too late: %w", context.Cause(ctx))
	}
	return err
}

// DenyLoopback is what a [Dialer] is to refuse that must not come back to its own
// machine, as one for the clients of a pod: addresses of the loopback, and those
// that are none, which the system takes for it. The error matches
// ECONNREFUSED, as if nobody were there.
func DenyLoopback(addr netip.AddrPort) error {
	if ip := addr.Addr().Unmap(); !ip.IsValid() || ip.IsLoopback() || ip.IsUnspecified() {
		return fmt.Errorf("no connections to the loopback from here: %w", syscall.ECONNREFUSED)
	}
	return nil
}
