package tcplayer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer"
)

// Origin finds the address that the client of a connection asked for. It
// returns conn as one to that address, see [OverrideAddrs]. An error means that it
// cannot be known.
type Origin func(ctx context.Context, conn net.Conn) (net.Conn, error)

// SOOriginalDst is the [Origin] of connections that rules of iptables or nftables
// sent here (REDIRECT, DNAT): it asks the kernel what the address was before
// (SO_ORIGINAL_DST), for IPv4 and IPv6. A connection that no rule has touched
// was made to the listener itself, which is found to be so where connections
// are tracked, and otherwise an error. So is any system but Linux, of kind
// [errors.ErrUnsupported].
//
// The listener must not take MPTCP, of which the kernel does not say where a
// connection was going: each from such a client would be an error. net.Listen
// takes it, since Go 1.24. What does not:
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

// FixedDst is the [Origin] of connections that all are for dst, as where nothing
// redirects them. An invalid dst panics.
func FixedDst(dst netip.AddrPort) Origin {
	if !dst.IsValid() {
		panic("tcplayer: invalid fixed destination")
	}
	return func(_ context.Context, conn net.Conn) (net.Conn, error) {
		return OverrideAddrs(conn, netip.AddrPort{}, dst), nil
	}
}

// ErrLoop says of a connection that it was for the listener that accepted it.
var ErrLoop = errors.New("loop")

// Transparent is the [Server] that finds with from which address each connection
// was made to, and lets next serve it as one to there: its LocalAddr is that address, and
// the Server of a [Request] that [Forward] makes of it; [OriginalDst] says
// whether it is known.
//
// A connection for this listener itself is served by direct, or reset if that
// is nil: to forward it would make it come back, and again. It is for us if its
// port is that of the listener, and its address an address of this machine.
//
// Admission: that of next and direct. Ready is that of next.
//
// Cancellation: ctx is passed on; from may wait for the client no longer than
// that.
//
// Body: a refusal leaves the connection open, and unread unless from has read of
// it, as [ProxyProtocol] does: then it is reset.
//
// Errors: those of next and direct; a [layer.Error] with that of from, or of kind
// [ErrLoop]. The connection is reset.
//
// Cost: two allocations, and what from costs. A nil from or next panics.
func Transparent(from Origin, next, direct Server) Server {
	if from == nil {
		panic("tcplayer: nil origin")
	}
	notNil(next)
	return &transparent{Server: next, from: from, direct: direct}
}

type transparent struct {
	Server
	from   Origin
	direct Server
}

func (o *transparent) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	if ctx.Err() != nil {
		return ByteCount{}, canceledError(ctx, "origin")
	}
	next, err := o.from(ctx, conn)
	if err != nil {
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "origin", Reason: "no original destination", Err: err}
	}
	dst := addrPort(next.LocalAddr())
	svc := o.Server
	if isOwnAddress(addrPort(innermost(conn).LocalAddr()), dst) {
		if svc = o.direct; svc == nil {
			reset(next)
			return ByteCount{}, &layer.Error{
				Layer: "origin", Endpoint: dst.String(), Kind: ErrLoop, Reason: "the connection is for its own listener",
			}
		}
	}
	return serveNext(ctx, "origin", svc, conn, next)
}

// Next returns the server of the connections.
func (o *transparent) Next() Server { return o.Server }

// Describe shows the server of connections that are for the listener itself.
func (o *transparent) Describe() layer.Node {
	n := layer.Node{Name: "origin"}
	if o.direct != nil {
		n.Children = []layer.Node{{Name: "direct", Children: []layer.Node{layer.Describe(o.direct)}}}
	}
	return n
}

// here reports whether a connection to dst would come to the listener that
// accepted one at own.
func isOwnAddress(own, dst netip.AddrPort) bool {
	if !own.IsValid() || own.Port() != dst.Port() {
		return false
	}
	ip := dst.Addr()
	return ip == own.Addr() || ip.IsLoopback() || ip.IsUnspecified() || isLocalAddress(ip)
}

// ofThisMachine asks the system, which takes a while: it is asked for one port
// only.
func isLocalAddress(ip netip.Addr) bool {
	ours, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(ours, func(a net.Addr) bool {
		network, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		our, ok := netip.AddrFromSlice(network.IP)
		return ok && our.Unmap() == ip.WithZone("")
	})
}
