package tcplayer

import (
	"context"
	"iter"
	"net"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

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
