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

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Dialer connects to an endpoint in a mesh. It makes a TCP connection, then does a TLS handshake,
// and then sends a [TransportHeader] if the peer accepts it. You should pass its DialContext to
// an endpoint, from this package or httplayer, without a TLS option:
//
//	fields set    TLS   connects to            ALPN offered         header sent
//	none          no    the address            none                 no
//	TLS           yes   the address, or Port   none                 no
//	TLS, Header   yes   the address, or Port   TransportProtocol    if the peer selects it
//
// Without TLS, Header and Port are ignored, because the peer's proxy accepts them over TLS only.
// With TLS the Dialer never falls back to cleartext: a failed handshake is an error.
//
// With TLS the connection is a *tls.Conn, otherwise it is what Dial returned. An HTTP/2 client
// must use prior knowledge on it, because ALPN offers no application protocol.
//
// A Dialer is safe for concurrent use. Its fields must not change after the first use.
type Dialer struct {
	// TLS holds the client certificate and verifies the peer. Nil means cleartext. The Dialer
	// uses a clone and replaces NextProtos in it. An empty ServerName is replaced by the host in
	// the address.
	TLS *tls.Config

	// Header is sent to the peer's proxy. Nil means no header. A Header.Port of 0 is replaced by
	// the port in the address. See [NewTransportHeader].
	Header *TransportHeader

	// Port is the port of the peer's proxy, and replaces the one in the address unless it is 0.
	Port uint16

	// Sockets holds the socket options of the TCP connection.
	Sockets []SocketOption

	// Timeout limits the total time for TCP, TLS and the header. 0 or less means no limit.
	Timeout time.Duration

	// Deny returns an error for an address to which the Dialer must not connect. Nil allows all
	// addresses. The port of addr is the one to which the Dialer connects. For a host name, Deny
	// is called with the remote address of the TCP connection, before any byte is sent. See
	// [DenyLoopback].
	Deny func(addr netip.AddrPort) error

	// Dial makes the TCP connection. Nil means the DialContext of a zero [net.Dialer].
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// DialContext connects to addr, "host:port". If TLS and Port are set, it connects to Port on that
// host. Once DialContext has returned, ctx no longer affects the connection, which the caller
// must close. An error from Dial is returned unchanged. Other errors are a [layer.Error] with the
// address. An exceeded Timeout matches [layer.ErrTimeout].
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	// The time limit ends the dial, but must not end the connection.
	dialCtx := ctx
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		dialCtx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	p, err := d.plan(addr)
	if err != nil {
		return nil, dialError(addr, "", err)
	}
	conn, err := p.dial(dialCtx, network)
	// The time limit was exceeded, unless the caller's context has ended.
	if err != nil && dialCtx.Err() != nil && ctx.Err() == nil {
		err = &layer.Error{Layer: "dial", Endpoint: p.addr, Kind: layer.ErrTimeout, Waited: d.Timeout, Err: err}
	}
	return conn, err
}

// dialError returns an error about the connection to addr. reason may be empty.
func dialError(addr, reason string, err error) error {
	return &layer.Error{Layer: "dial", Endpoint: addr, Reason: reason, Err: err}
}

// plan holds the settings for one connection of a Dialer, for which the Dialer's own fields have been
// completed.
type plan struct {
	*Dialer
	addr   string
	tls    *tls.Config // nil means cleartext
	header []byte      // encoded transport header; nil means no header
}

// plan returns the settings for a connection to addr, or an error if addr or the header is invalid.
func (d *Dialer) plan(addr string) (*plan, error) {
	p := &plan{Dialer: d, addr: addr}
	if d.TLS == nil {
		return p, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	// A clone, because the configuration belongs to the caller.
	p.tls = d.TLS.Clone()
	// ALPN offers nothing but the transport header, below.
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
	// An unset port of the header means the port of the address, which is that of the server behind the proxy.
	if n, err := strconv.ParseUint(port, 10, 16); err == nil && h.Port == 0 {
		h.Port = uint16(n)
	}
	p.tls.NextProtos = []string{TransportProtocol}
	p.header = h.AppendTo(nil)
	return p, h.Validate()
}

// dial makes the connection of the plan: TCP, then TLS, and then the transport header, which it sends if
// the plan has one and the peer has accepted it by ALPN. network is that of DialContext, such as "tcp".
func (p *plan) dial(ctx context.Context, network string) (net.Conn, error) {
	conn, err := p.connect(ctx, network)
	if err != nil {
		return nil, err
	}
	if p.tls == nil {
		return conn, nil
	}
	secure := tls.Client(newEOFConn(conn), p.tls)
	// Everything up to the header must succeed, or the connection is closed.
	done := false
	defer func() {
		if !done { // a callback of TLS may have panicked
			_ = conn.Close()
		}
	}()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, dialError(p.addr, "TLS", err)
	}
	// A peer that did not select the protocol would take the header for the bytes of the connection.
	if p.header != nil && secure.ConnectionState().NegotiatedProtocol == TransportProtocol {
		if err := write(ctx, secure, p.header); err != nil {
			return nil, dialError(p.addr, "transport header", err)
		}
	}
	done = true
	return secure, nil
}

// connect makes a TCP connection and sets the socket options. It returns an error if Deny rejects
// the address. Deny checks an IP address before the dial. For a host name it checks the remote
// address after the dial, because the address is unknown before.
func (p *plan) connect(ctx context.Context, network string) (net.Conn, error) {
	// A literal address can be checked before any packet is sent.
	literal, err := netip.ParseAddrPort(p.addr)
	named := err != nil
	if !named {
		if err := p.denied(literal); err != nil {
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
		if !done { // Deny may have panicked
			_ = conn.Close()
		}
	}()
	if named {
		if err := p.denied(addrPort(conn.RemoteAddr())); err != nil {
			return nil, err
		}
	}
	if err := p.setUp(conn); err != nil {
		return nil, err
	}
	done = true
	return conn, nil
}

// denied returns an error if Deny rejects addr.
func (p *plan) denied(addr netip.AddrPort) error {
	if p.Deny == nil {
		return nil
	}
	if err := p.Deny(netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())); err != nil {
		return dialError(p.addr, "address denied", err)
	}
	return nil
}

// setUp sets the socket options of a new TCP connection.
func (p *plan) setUp(conn net.Conn) error {
	// The options are those of an endpoint, of which only the sockets matter here.
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

// write writes b to conn, but no longer than until ctx ends. After an error, the write deadline of conn
// may be set.
func write(ctx context.Context, conn net.Conn, b []byte) error {
	stop := context.AfterFunc(ctx, func() {
		_ = panics.Contain(func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) })
	})
	_, err := conn.Write(b)
	// stop returns false if ctx has ended. Even if everything was written, the connection is then of no use: the
	// function may have set its write deadline or may yet do so, and the caller no longer wants it.
	if !stop() && err == nil {
		err = fmt.Errorf("write timeout: %w", context.Cause(ctx))
	}
	return err
}

// DenyLoopback is a function for a [Dialer]'s Deny. It rejects loopback, unspecified and invalid
// addresses, so that clients in a pod cannot reach the loopback interface of their proxy. The
// error matches ECONNREFUSED.
func DenyLoopback(addr netip.AddrPort) error {
	if ip := addr.Addr().Unmap(); !ip.IsValid() || ip.IsLoopback() || ip.IsUnspecified() {
		return fmt.Errorf("loopback is not allowed: %w", syscall.ECONNREFUSED)
	}
	return nil
}
