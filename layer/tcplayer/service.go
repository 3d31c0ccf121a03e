package tcplayer

import (
	"context"
	"iter"
	"net"
	"net/netip"
	"time"

	"github.com/gotower/gotower/layer"
)

// Service makes connections. The caller of Call must close them.
type Service = layer.Service[Request, net.Conn]

// Server serves accepted connections. Call returns when the connection is closed. If Call
// rejects a connection, the connection stays open and unread.
type Server = layer.Service[net.Conn, ByteCount]

// Request is a request to a [Service] for a connection. Both addresses are optional.
type Request struct {
	// Client is the client's address, usually for a limit or a consistent hash. It is invalid if
	// the client is not connected over IP.
	Client netip.AddrPort

	// Server is the destination address that the client connected to. It is invalid if
	// the address is unknown.
	Server netip.AddrPort

	// ServerName is the server name that a TLS client has sent, see [WithServerName].
	ServerName string
}

// ByteCount counts the bytes that were transferred over a closed connection.
type ByteCount struct {
	Sent     int64 // bytes from the client to the server
	Received int64 // bytes from the server to the client
}

// NewStack returns an empty stack for a [Service]. Its layers use [Bytes], unless opts replace it
// or parts of it.
func NewStack(opts ...layer.Option[net.Conn]) layer.Stack[Request, net.Conn] {
	return layer.NewStack[Request](append([]layer.Option[net.Conn]{layer.WithProtocol(Bytes{})}, opts...)...)
}

// notNil panics for a nil service.
func notNil[Req, Rsp any](svc layer.Service[Req, Rsp]) {
	if svc == nil {
		panic("tcplayer: nil service")
	}
}

// requestOf returns the Request for a connection that forwards conn.
func requestOf(conn net.Conn) Request {
	return Request{Client: addrPort(conn.RemoteAddr()), Server: addrPort(conn.LocalAddr())}
}

// addrPort converts a TCP address. It converts an IPv4-mapped IPv6 address to IPv4. The
// result is invalid for another type of address.
func addrPort(addr net.Addr) netip.AddrPort {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Bytes is the [layer.Protocol] of connections, and their [layer.Accessor]. A Request consists only of
// a source and an authority, and each one can be sent again, because connecting again does no harm. A
// connection's status is 0.
type Bytes struct {
	layer.BaseProtocol[Request, net.Conn]
}

var (
	_ layer.Protocol[Request, net.Conn] = Bytes{}
	_ layer.Accessor[Request, net.Conn] = Bytes{}
)

// RetryAfter returns false.
func (Bytes) RetryAfter(net.Conn, error) (time.Duration, bool) { return 0, false }

// Drain closes conn.
func (Bytes) Drain(conn net.Conn) {
	if conn != nil {
		_ = conn.Close()
	}
}

// Method returns "".
func (Bytes) Method(Request) string { return "" }

// Scheme returns "".
func (Bytes) Scheme(Request) string { return "" }

// Authority returns the server name of r, or else its destination address as "host:port", or
// "" if both are unknown.
func (Bytes) Authority(r Request) string {
	if r.ServerName != "" {
		return r.ServerName
	}
	if !r.Server.IsValid() {
		return ""
	}
	return r.Server.String()
}

// Path returns "".
func (Bytes) Path(Request) string { return "" }

// Query returns "".
func (Bytes) Query(Request) string { return "" }

// Source returns the client's address.
func (Bytes) Source(r Request) netip.AddrPort { return r.Client }

// RequestHeader returns a header without fields.
func (Bytes) RequestHeader(Request) layer.Header { return noFields{} }

// Status returns 0.
func (Bytes) Status(net.Conn) int { return 0 }

// ResponseHeader returns a header without fields.
func (Bytes) ResponseHeader(net.Conn) layer.Header { return noFields{} }

// ResponseTrailer returns a header without fields.
func (Bytes) ResponseTrailer(net.Conn) layer.Header { return noFields{} }

// Complete returns the result of [UntilClosed].
func (Bytes) Complete(ctx context.Context, conn net.Conn, o layer.Observer) net.Conn {
	return UntilClosed(ctx, conn, o)
}

// noFields is a header without fields.
type noFields struct{}

func (noFields) Get(string) string              { return "" }
func (noFields) Values(string) []string         { return nil }
func (noFields) All() iter.Seq2[string, string] { return func(func(string, string) bool) {} }
