package tcplayer

import (
	"context"
	"iter"
	"net"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Access is what layers that look at requests see of connections: who asks, as
// Source, and at which address, as Authority. There is nothing else to see, so
// that of the conditions on requests only those hold that hold for anything. A
// connection that was made has status 0 and ends as [UntilClosed] says.
type Access struct{}

var _ layer.Access[Request, net.Conn] = Access{}

// Method returns "".
func (Access) Method(Request) string { return "" }

// Scheme returns "".
func (Access) Scheme(Request) string { return "" }

// Authority returns the address that the client asked for, or "" if that is
// not known.
func (Access) Authority(r Request) string {
	if !r.Server.IsValid() {
		return ""
	}
	return r.Server.String()
}

// Path returns "".
func (Access) Path(Request) string { return "" }

// Query returns "".
func (Access) Query(Request) string { return "" }

// Source returns the address of the client.
func (Access) Source(r Request) netip.AddrPort { return r.Client }

// RequestHeader has no fields.
func (Access) RequestHeader(Request) layer.Fields { return noFields{} }

// Status returns 0.
func (Access) Status(net.Conn) int { return 0 }

// ResponseHeader has no fields.
func (Access) ResponseHeader(net.Conn) layer.Fields { return noFields{} }

// ResponseTrailer has no fields.
func (Access) ResponseTrailer(net.Conn) layer.Fields { return noFields{} }

// Complete is [UntilClosed].
func (Access) Complete(ctx context.Context, conn net.Conn, o layer.Observer) net.Conn {
	return UntilClosed(ctx, conn, o)
}

type noFields struct{}

func (noFields) Get(string) string              { return "" }
func (noFields) All() iter.Seq2[string, string] { return func(func(string, string) bool) {} }
