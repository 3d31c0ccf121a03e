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

// Service makes connections. Who gets one closes it.
type Service = layer.Service[Request, net.Conn]

// Server serves connections that somebody else made. Call returns when the
// connection is over and closed. A refusal leaves it open, and nothing was read
// from it.
type Server = layer.Service[net.Conn, ByteCount]

// Request asks for a connection. Its zero value is one that nobody else is
// behind.
type Request struct {
	// Client is the address of the one for whom the connection is, as where a
	// limit or a consistent hash goes by client. It is not valid if that has
	// no IP address.
	Client netip.AddrPort

	// Server is the address at which Client asked for it.
	Server netip.AddrPort
}

// ByteCount is what went over a connection that is over.
type ByteCount struct {
	Sent     int64 // bytes from the client to the server
	Received int64 // bytes from the server to the client
}

// NewStack returns an empty stack for services that make connections. Its
// layers hold a connection [UntilClosed], and those that send a request again
// connect anew ([Replayer]); opts come after that.
func NewStack(opts ...layer.Option[net.Conn]) layer.Stack[Request, net.Conn] {
	protocol := []layer.Option[net.Conn]{layer.WithCompletion(UntilClosed), layer.WithReplayer[Request, net.Conn](Replayer{})}
	return layer.NewStack[Request](slices.Concat(protocol, opts)...)
}

// Replayer is what layers that send a request more than once are told of
// connections: asking for one twice does no harm, and one that lost a race is
// closed.
type Replayer struct{}

var _ layer.Replayer[Request, net.Conn] = Replayer{}

// Idempotent returns true.
func (Replayer) Idempotent(Request) bool { return true }

// Replay returns nil: a Request can be sent as it is.
func (Replayer) Replay(Request, int64) layer.Replay[Request] { return nil }

// RetryAfter says nothing: a connection does not ask to wait.
func (Replayer) RetryAfter(net.Conn, error) (time.Duration, bool) { return 0, false }

// Drain closes conn.
func (Replayer) Drain(conn net.Conn) {
	if conn != nil {
		_ = conn.Close()
	}
}

// notNil panics for a nil service, which is an error of the program.
func notNil[Req, Rsp any](svc layer.Service[Req, Rsp]) {
	if svc == nil {
		panic("tcplayer: nil service")
	}
}

// requestOf is the Request for a connection that was accepted.
func requestOf(conn net.Conn) Request {
	return Request{Client: addrPort(conn.RemoteAddr()), Server: addrPort(conn.LocalAddr())}
}

// addrPort returns addr with an IPv4 address as such, even where the socket is
// one of IPv6.
func addrPort(addr net.Addr) netip.AddrPort {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Accessor is what layers that look at requests see of connections: who asks, as
// Source, and at which address, as Authority. There is nothing else to see, so
// that of the conditions on requests only those hold that hold for anything. A
// connection that was made has status 0 and ends as [UntilClosed] says.
type Accessor struct{}

var _ layer.Accessor[Request, net.Conn] = Accessor{}

// Method returns "".
func (Accessor) Method(Request) string { return "" }

// Scheme returns "".
func (Accessor) Scheme(Request) string { return "" }

// Authority returns the address that the client asked for, or "" if that is
// not known.
func (Accessor) Authority(r Request) string {
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

// RequestHeader has no fields.
func (Accessor) RequestHeader(Request) layer.Header { return noFields{} }

// Status returns 0.
func (Accessor) Status(net.Conn) int { return 0 }

// ResponseHeader has no fields.
func (Accessor) ResponseHeader(net.Conn) layer.Header { return noFields{} }

// ResponseTrailer has no fields.
func (Accessor) ResponseTrailer(net.Conn) layer.Header { return noFields{} }

// Complete is [UntilClosed].
func (Accessor) Complete(ctx context.Context, conn net.Conn, o layer.Observer) net.Conn {
	return UntilClosed(ctx, conn, o)
}

type noFields struct{}

func (noFields) Get(string) string              { return "" }
func (noFields) All() iter.Seq2[string, string] { return func(func(string, string) bool) {} }
