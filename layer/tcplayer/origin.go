package tcplayer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer"
)

// Origin finds the destination address to which a client has connected. It returns a connection
// that wraps conn and reports this address; see [OverrideAddrs].
type Origin func(ctx context.Context, conn net.Conn) (net.Conn, error)

// SOOriginalDst returns the [Origin] for connections that iptables or nftables redirected
// (REDIRECT, DNAT). It reads the socket option SO_ORIGINAL_DST, for IPv4 and IPv6. A connection
// without redirection gets the listener's address. Without connection tracking the Origin returns
// an error. On systems other than Linux the error matches [errors.ErrUnsupported].
//
// The listener must not accept MPTCP, because the kernel does not return the original destination
// of an MPTCP connection. Note that listeners from net.Listen do. To disable it:
//
//	var cfg net.ListenConfig
//	cfg.SetMultipathTCP(false)
//	l, err := cfg.Listen(ctx, "tcp", "127.0.0.1:4140")
func SOOriginalDst() Origin {
	return func(_ context.Context, conn net.Conn) (net.Conn, error) {
		dst, err := originalDstOf(innermost(conn))
		if err != nil {
			return nil, err
		}
		return OverrideAddrs(conn, netip.AddrPort{}, dst), nil
	}
}

// FixedDst returns an [Origin] that gives every connection the destination address dst. An
// invalid dst panics.
func FixedDst(dst netip.AddrPort) Origin {
	if !dst.IsValid() {
		panic("tcplayer: invalid fixed destination")
	}
	return func(_ context.Context, conn net.Conn) (net.Conn, error) {
		return OverrideAddrs(conn, netip.AddrPort{}, dst), nil
	}
}

// ErrLoop reports that the original destination of a connection is the listener that
// accepted it.
var ErrLoop = errors.New("loop")

// Transparent returns a [Server] that calls the Origin for each connection, and passes the
// resulting connection to the server next. This connection's LocalAddr and [OriginalDst] return the
// original destination. [Forward] passes it on as the Server in its [Request].
//
// Forwarding to the listener itself would loop. A destination is the listener if the port is the
// listener's and the address belongs to this machine. Such a connection goes to the server direct.
// If that is nil, the connection is reset.
//
// Admission: the chosen server, next or direct, decides. Ready is forwarded to next.
//
// Cancellation: ctx is passed to the Origin and to the server.
//
// Body: a rejected connection stays open. It is reset if the Origin has read bytes from it, as
// [ProxyProtocol] does.
//
// Errors: errors from next and direct are returned unchanged. An error from the Origin, or
// [ErrLoop], is wrapped in a [layer.Error], and the connection is reset.
//
// Cost: two allocations and what the Origin costs. A nil Origin or a nil next panics.
func Transparent(origin Origin, next, direct Server) Server {
	if origin == nil {
		panic("tcplayer: nil origin")
	}
	notNil(next)
	return &transparent{Server: next, origin: origin, direct: direct}
}

// transparent is the Server that Transparent returns.
type transparent struct {
	Server
	origin Origin
	direct Server
}

// Call finds the original destination and passes the connection on.
func (o *transparent) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	if ctx.Err() != nil {
		return ByteCount{}, canceledError(ctx, "origin")
	}
	next, err := o.origin(ctx, conn)
	if err != nil {
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "origin", Reason: "no original destination", Err: err}
	}
	dst := addrPort(next.LocalAddr())
	svc := o.Server
	// The innermost connection has the listener's address, and next has the original destination.
	if isOwnAddress(addrPort(innermost(conn).LocalAddr()), dst) {
		if svc = o.direct; svc == nil {
			reset(next)
			return ByteCount{}, &layer.Error{
				Layer: "origin", Endpoint: dst.String(), Kind: ErrLoop, Reason: "the destination is the listener itself",
			}
		}
	}
	return serveNext(ctx, "origin", svc, conn, next)
}

// Next returns the server for all connections except those to the listener itself.
func (o *transparent) Next() Server { return o.Server }

// Describe shows direct, the server for connections to the listener itself.
func (o *transparent) Describe() layer.Node {
	n := layer.Node{Name: "origin"}
	if o.direct != nil {
		n.Children = []layer.Node{{Name: "direct", Children: []layer.Node{layer.Describe(o.direct)}}}
	}
	return n
}

// isOwnAddress reports whether a connection to dst would reach the listener at the address
// listener.
func isOwnAddress(listener, dst netip.AddrPort) bool {
	// Another port cannot be the listener's.
	if !listener.IsValid() || listener.Port() != dst.Port() {
		return false
	}
	ip := dst.Addr()
	// From the cheapest check to the slowest.
	return ip == listener.Addr() || ip.IsLoopback() || ip.IsUnspecified() || isLocalAddress(ip)
}

// isLocalAddress reports whether ip is an address of this machine. It makes a slow system call.
// Call it only if the port is the listener's port.
func isLocalAddress(ip netip.Addr) bool {
	ours, err := net.InterfaceAddrs()
	// The addresses of this machine, of all interfaces.
	return err == nil && slices.ContainsFunc(ours, func(a net.Addr) bool {
		network, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		local, ok := netip.AddrFromSlice(network.IP)
		return ok && local.Unmap() == ip.WithZone("")
	})
}
