package grpclayer

import (
	"context"
	"iter"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/gotower/gotower/layer"
)

// Accessor is the [layer.Accessor] of gRPC: how routes and taps look at calls. A
// call is what it is in HTTP/2: a POST to the path that is its method, answered
// with 200.
type Accessor struct{}

var _ layer.Accessor[*Call, *Reply] = Accessor{}

// Method returns "POST".
func (Accessor) Method(*Call) string { return "POST" }

// Scheme returns "": gRPC does not say.
func (Accessor) Scheme(*Call) string { return "" }

// Authority returns what the client sent, on a server. On a client it is the
// target without its scheme, or its domain where [NewResolver] takes that: what
// gRPC sends unless it is told otherwise.
func (Accessor) Authority(c *Call) string {
	if !c.incoming {
		return authorityOf(c.conn())
	}
	return c.Get(":authority")
}

// Path returns the method: "/package.Service/Method".
func (Accessor) Path(c *Call) string { return c.Method }

// Query returns "": calls have none.
func (Accessor) Query(*Call) string { return "" }

// Source returns the client's address, on a server that listens on TCP.
func (Accessor) Source(c *Call) netip.AddrPort {
	if c.ctx == nil || !c.incoming {
		return netip.AddrPort{}
	}
	if p, ok := peer.FromContext(c.ctx); ok {
		return addrPort(p.Addr)
	}
	return netip.AddrPort{}
}

// RequestHeader returns the metadata of the call, a copy.
func (Accessor) RequestHeader(c *Call) layer.Header { return fields(c.Header()) }

// RequestOverHTTP2 returns true.
func (Accessor) RequestOverHTTP2(*Call) bool { return true }

// ResponseOverHTTP2 returns true.
func (Accessor) ResponseOverHTTP2(*Reply) bool { return true }

// Status returns 200.
func (Accessor) Status(*Reply) int { return 200 }

// ResponseHeader returns the header of a reply: that of a client's unary call,
// and that of a stream once it began. What a server's unary handler sets is not
// known here.
func (Accessor) ResponseHeader(r *Reply) layer.Header {
	switch {
	case r == nil:
		return fields(nil)
	case r.stream != nil && r.stream.begun.Load():
		header, _ := r.stream.ClientStream.Header() // it is there
		return fields(header)
	}
	return fields(r.Header)
}

// ResponseTrailer returns the trailer of a reply, once that ended, and the
// status as the field grpc-status.
func (Accessor) ResponseTrailer(r *Reply) layer.Header {
	switch {
	case r == nil:
		return fields(nil)
	case r.stream == nil:
		return (*ending)(r)
	case r.stream.over():
		return &ending{Trailer: r.stream.Trailer(), status: r.status}
	}
	return fields(nil)
}

// Complete is [Completion], but that it tells o how long messages are, as they
// would be on the wire without compression.
func (Accessor) Complete(ctx context.Context, r *Reply, o layer.Observer) *Reply {
	switch {
	case r != nil && r.stream != nil:
		o = sized{o}
	case r != nil && r.Message != nil:
		o.Data(sizeOf(r.Message))
	}
	return Completion(ctx, r, o)
}

// fields is metadata as layers see it. Its names are in lower case.
type fields metadata.MD

func (f fields) Get(name string) string {
	if values := f[strings.ToLower(name)]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// Values returns all values of name; they are not to be changed.
func (f fields) Values(name string) []string { return f[strings.ToLower(name)] }

func (f fields) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, values := range f {
			for _, v := range values {
				if !yield(name, v) {
					return
				}
			}
		}
	}
}
