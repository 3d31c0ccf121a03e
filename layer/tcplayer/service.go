package tcplayer

import (
	"context"
	"iter"
	"net"
	"net/netip"
	"slices"
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
	// Client is the address of the client, for example for a limit or a consistent hash. It
	// is invalid if the client has no IP address.
	Client netip.AddrPort

	// Server is the destination address that the client connected to. It is invalid if
	// the address is unknown.
	Server netip.AddrPort

	// ServerName is the server name that a TLS client has sent, see [WithServerName].
	ServerName string
}

// ByteCount has the number of bytes that a closed connection has transferred.
type ByteCount struct {
	Sent     int64 // bytes from the client to the server
	Received int64 // bytes from the server to the client
}

// NewStack returns an empty stack for a [Service]. Its layers observe connections by
// [UntilClosed], and repeat requests by [Replayer]. The options opts are applied afterwards and
// may replace both.
func NewStack(opts ...layer.Option[net.Conn]) layer.Stack[Request, net.Conn] {
	protocol := []layer.Option[net.Conn]{layer.WithCompletion(UntilClosed), layer.WithReplayer[Request, net.Conn](Replayer{})}
	return layer.NewStack[Request](slices.Concat(protocol, opts)...)
}

// Replayer implements [layer.Replayer] for connections, so that retries and hedges can repeat a
// Request. Each Request can be repeated. Drain closes the connection of an attempt with an
// unused result.
type Replayer struct{}

var _ layer.Replayer[Request, net.Conn] = Replayer{}

// Idempotent returns true, because connecting again has no side effect.
func (Replayer) Idempotent(Request) bool { return true }

// Replay returns nil, because a Request needs no copy.
func (Replayer) Replay(Request, int64) layer.Replay[Request] { return nil }

// RetryAfter returns false.
func (Replayer) RetryAfter(net.Conn, error) (time.Duration, bool) { return 0, false }

// Peek returns conn unchanged and false, because a connection has no trailers.
func (Replayer) Peek(_ context.Context, conn net.Conn) (net.Conn, bool) { return conn, false }

// Drain closes conn.
func (Replayer) Drain(conn net.Conn) {
	if conn != nil {
		_ = conn.Close()
	}
}

// notNil panics for a nil service.
func notNil[Req, Rsp any](svc layer.Service[Req, Rsp]) {
	if svc == nil {
		panic("tcplayer: nil service")
	}
}

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

// Accessor implements [layer.Accessor], by which other packages read requests and responses. A
// Request has only a source and an authority. The status of a connection is 0.
type Accessor struct{}

var _ layer.Accessor[Request, net.Conn] = Accessor{}

// Method returns "".
func (Accessor) Method(Request) string { return "" }

// Scheme returns "".
func (Accessor) Scheme(Request) string { return "" }

// Authority returns the server name of r, or else its destination address as "host:port", or
// "" if both are unknown.
func (Accessor) Authority(r Request) string {
	if r.ServerName != "" {
		return r.ServerName
	}
	if !r.Server.IsValid() {
		return ""
	}
	return r.Server.String()
}

// Path returns "".
func (Accessor) Path(Request) string { return "" }

// Query returns "".
func (Accessor) Query(Request) string { return "" }

// Source returns the address of the client.
func (Accessor) Source(r Request) netip.AddrPort { return r.Client }

// RequestHeader returns a header without fields.
func (Accessor) RequestHeader(Request) layer.Header { return noFields{} }

// Status returns 0.
func (Accessor) Status(net.Conn) int { return 0 }

// ResponseHeader returns a header without fields.
func (Accessor) ResponseHeader(net.Conn) layer.Header { return noFields{} }

// ResponseTrailer returns a header without fields.
func (Accessor) ResponseTrailer(net.Conn) layer.Header { return noFields{} }

// Complete notifies o of the bytes and the end of conn, as [UntilClosed] does.
func (Accessor) Complete(ctx context.Context, conn net.Conn, o layer.Observer) net.Conn {
	return UntilClosed(ctx, conn, o)
}

type noFields struct{}

func (noFields) Get(string) string              { return "" }
func (noFields) All() iter.Seq2[string, string] { return func(func(string, string) bool) {} }
