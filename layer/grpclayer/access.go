package grpclayer

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// Method returns "POST".
func (GRPC) Method(*Call) string { return "POST" }

// Scheme returns "", because gRPC does not report the scheme.
func (GRPC) Scheme(*Call) string { return "" }

// Authority returns the call's authority. On a server it is the authority that the client sent.
// On a client it is the default authority of gRPC, which is the target without its scheme. If the
// target is a name with SRV records, it is the domain in that name (see [NewResolver]).
func (GRPC) Authority(c *Call) string {
	if !c.incoming {
		return authorityOf(c.conn())
	}
	return c.Get(":authority")
}

// Path returns the full name of the method, "/package.Service/Method".
func (GRPC) Path(c *Call) string { return c.Method }

// Pattern returns the full name of the method, as Path does.
func (GRPC) Pattern(c *Call) string { return c.Method }

// Query returns "", because a call is made without a query.
func (GRPC) Query(*Call) string { return "" }

// Source returns the client's address, if the call is on a server that listens on TCP. Otherwise
// it returns the zero value.
func (GRPC) Source(c *Call) netip.AddrPort {
	if p := c.peer(); p != nil {
		return caller.Addr(p.Addr)
	}
	return netip.AddrPort{}
}

// RequestHeader returns a copy of the call's metadata.
func (GRPC) RequestHeader(c *Call) layer.Header { return fields(c.Header()) }

// RequestOverHTTP2 returns true, because gRPC uses HTTP/2.
func (GRPC) RequestOverHTTP2(*Call) bool { return true }

// ResponseOverHTTP2 returns true, because gRPC uses HTTP/2.
func (GRPC) ResponseOverHTTP2(*Reply) bool { return true }

// Status returns 200, the HTTP status of every gRPC response.
func (GRPC) Status(*Reply) int { return 200 }

// ResponseHeader returns the header of the reply r. It never waits: for a client's stream the header is
// empty until it has arrived, and for a unary call on a server it is always empty, because gRPC does
// not show it there.
func (GRPC) ResponseHeader(r *Reply) layer.Header {
	switch {
	case r == nil:
		return fields(nil)
	// Only after the header has arrived, because ClientStream.Header would wait for it.
	case r.stream != nil && r.stream.started.Load():
		header, _ := r.stream.ClientStream.Header()
		return fields(header)
	}
	return fields(r.Header)
}

// ResponseTrailer returns the trailer of a reply that has ended, including the field grpc-status with
// the status code, as if it were an HTTP trailer. Until the reply has ended, the trailer is empty.
func (GRPC) ResponseTrailer(r *Reply) layer.Header {
	// A reply to a unary call has its trailer at once, and that of a stream has it at the end.
	switch {
	case r == nil:
		return fields(nil)
	case r.stream == nil:
		return (*trailer)(r)
	case r.stream.hasEnded():
		return &trailer{Trailer: r.stream.Trailer(), status: r.status}
	}
	return fields(nil)
}

// ObserveResponse notifies o of the reply's messages and its end, as [Completion] does. But where
// Completion calls o.Data with 1 for each message, ObserveResponse passes the message's length,
// uncompressed, so that bytes can be counted.
func (GRPC) ObserveResponse(ctx context.Context, r *Reply, o layer.Observer) *Reply {
	switch {
	// o needs the length of each message, see sizeObserver.
	case r != nil && r.stream != nil:
		o = sizeObserver{o}
	case r != nil && r.Message != nil:
		o.Data(sizeOf(r.Message))
	}
	return Completion(ctx, r, o)
}

// DestinationAddr returns the local address of the connection, if the call is on a server
// that listens on TCP. On a client it returns the target, if the target is an IP address
// with a port. Otherwise it returns the zero value.
func (GRPC) DestinationAddr(_ context.Context, c *Call) netip.AddrPort {
	if p := c.peer(); p != nil {
		return caller.Addr(p.LocalAddr)
	}
	// On a server without a peer, or outside of a call, the address is unknown.
	if c.ctx == nil || c.incoming {
		return netip.AddrPort{}
	}
	_, endpoint := targetOf(c.conn())
	addr, _ := netip.ParseAddrPort(endpoint)
	return addr
}

// SourceLabels returns the labels that linkerd's proxy gives to a call's client. The label tls is
// "true" with TLS. Without TLS it is "loopback" for a loopback address, and otherwise
// "no_tls_from_remote". The label client_id is the name in the verified client certificate. For a
// call on a client, SourceLabels returns nil.
func (g GRPC) SourceLabels(c *Call) map[string]string {
	// The identity of the caller comes from its certificate, if the connection has one.
	p := c.peer()
	if p == nil {
		return nil
	}
	if secure, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		return caller.Labels(g.Source(c), &secure.State)
	}
	return caller.Labels(g.Source(c), nil)
}

// OnResponseStart observes a streaming call on a server. It notifies o when the handler
// sends its header, and of each message that the handler sends. OnResponseStart does
// nothing for unary calls and for calls on a client.
func (GRPC) OnResponseStart(_ context.Context, c *Call, o layer.ResponseObserver[*Reply]) {
	if s, ok := c.rpc.(*serverStream); ok {
		s.observers = append(s.observers, o)
	}
}

// OnDeferredResponse arranges for o to be notified when the header of a client's stream arrives.
// It returns false for any other reply, because then the header is already complete.
func (GRPC) OnDeferredResponse(r *Reply, o layer.ResponseObserver[*Reply]) bool {
	if r == nil || r.stream == nil {
		return false
	}
	r.stream.begins = append(r.stream.begins, func() { o.ResponseStarted(r) })
	return true
}

// TeeRequestBody returns c unchanged, because taps do not show messages of gRPC.
func (GRPC) TeeRequestBody(c *Call, _ func(at int64, p []byte)) *Call { return c }

// TeeResponseBody returns r unchanged, because taps do not show messages of gRPC.
func (GRPC) TeeResponseBody(r *Reply, _ func(at int64, p []byte)) *Reply { return r }

// ErrorResponse returns the reply to a call that failed with err. On a client, the reply is the
// server's response, and ok is false if the server did not respond. On a server, it is the reply
// to the client, and ok is false if the client has canceled the call.
func (GRPC) ErrorResponse(ctx context.Context, c *Call, err error) (*Reply, bool) {
	if c.incoming {
		// The client no longer waits for a reply.
		if c.ctx == nil || c.ctx.Err() != nil {
			return nil, false
		}
		r := &Reply{status: Code(err)}
		if s, ok := c.rpc.(*serverStream); ok {
			// The handler has returned, so its metadata does not change any more.
			r.Header, r.Trailer = s.header, s.trailer
		}
		return r, true
	}
	// Without metadata, the server has not responded.
	call, ok := errors.AsType[*callError](err)
	if !ok || len(call.header) == 0 && len(call.trailer) == 0 {
		return nil, false
	}
	code := Code(err)
	// gRPC reports these codes also without a response when the caller's context has ended, so that
	// they do not show what the server sent.
	if ctx.Err() != nil && (code == codes.Canceled || code == codes.DeadlineExceeded) {
		return nil, false
	}
	return &Reply{status: code, Header: call.header, Trailer: call.trailer}, true
}

// peer returns the client of a call on a server. On a client it returns nil.
func (c *Call) peer() *peer.Peer {
	if c.ctx == nil || !c.incoming {
		return nil
	}
	p, _ := peer.FromContext(c.ctx)
	return p
}

// conn returns the ClientConn of a call on a client. On a server it returns nil.
func (c *Call) conn() *grpc.ClientConn {
	switch rpc := c.rpc.(type) {
	case *clientUnary:
		return rpc.cc
	case *clientStream:
		return rpc.cc
	}
	return nil
}

// authorityOf returns the authority that gRPC sends with calls through cc if no option sets another
// one.
func authorityOf(cc *grpc.ClientConn) string {
	scheme, endpoint := targetOf(cc)
	if strings.HasPrefix(scheme, "unix") {
		return "localhost"
	}
	// This package's resolver uses the domain of an SRV name, see OverrideAuthority.
	switch resolver.Get(scheme).(type) {
	case nil, *resolverBuilder: // ours is a dial option and not registered
		endpoint = authority.Domain(endpoint)
	}
	return defaultAuthority(endpoint)
}

// targetOf returns the scheme and the endpoint in the target of cc. Both are "" if cc is
// nil.
func targetOf(cc *grpc.ClientConn) (scheme, endpoint string) {
	if cc == nil {
		return "", ""
	}
	scheme, rest, _ := strings.Cut(cc.CanonicalTarget(), "://")
	// The rest is "authority/endpoint"; the endpoint may be escaped.
	_, endpoint, _ = strings.Cut(rest, "/")
	if plain, err := url.PathUnescape(endpoint); err == nil {
		endpoint = plain
	}
	return scheme, endpoint
}

// fields is metadata that implements [layer.Header]. Its names are in lower case.
type fields metadata.MD

// Get returns the first value of the field with the given name, or "".
func (f fields) Get(name string) string { return first(f.Values(name)) }

// first returns the first of values, or "".
func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// Values returns all values of the field with the given name. The caller must not modify them.
func (f fields) Values(name string) []string { return f[strings.ToLower(name)] }

// All returns all fields, each value on its own.
func (f fields) All() iter.Seq2[string, string] {
	// A field may have several values: each is yielded with its name.
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

// trailer makes an ended reply's trailer a [layer.Header]. It includes the field grpc-status,
// which gRPC removes from the metadata.
type trailer Reply

// Get returns the first value of the field with the given name, or "".
func (t *trailer) Get(name string) string { return first(t.Values(name)) }

// Values returns all values of the field with the given name. The caller must not modify them.
func (t *trailer) Values(name string) []string {
	// gRPC removes grpc-status from the metadata, unless a handler has set it.
	if values := fields(t.Trailer).Values(name); len(values) > 0 || !strings.EqualFold(name, grpcStatus) {
		return values
	}
	if t.status == codes.OK {
		return statusOK()
	}
	return []string{strconv.Itoa(int(t.status))}
}

// All returns all fields, each value on its own, and grpc-status.
func (t *trailer) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, value := range fields(t.Trailer).All() {
			if !yield(name, value) {
				return
			}
		}
		// All values are in the trailer already, except grpc-status.
		if len(t.Trailer[grpcStatus]) == 0 {
			yield(grpcStatus, t.Get(grpcStatus))
		}
	}
}

// grpcStatus is in lower case, as HTTP/2 sends it.
const grpcStatus = "grpc-status" // the field with a call's status code

// statusOK returns the usual value of grpc-status.
func statusOK() []string { return []string{"0"} }

// sizeObserver marks an observer to which reportMessage must pass each message's length. Computing it
// costs time, so other observers get 1 for each message.
type sizeObserver struct{ layer.Observer }

// reportMessage reports the message m to o. It calls o.Data with the length of m if o is a
// sizeObserver, and with 1 otherwise.
func reportMessage(o layer.Observer, m any) {
	if s, ok := o.(sizeObserver); ok {
		s.Data(sizeOf(m))
		return
	}
	o.Data(1)
}

// frameHeader is the length in bytes of the prefix that gRPC puts before each message.
const frameHeader = 5

// sizeOf returns the length of the message m on the wire, without compression. If m is not a
// protobuf message, it returns only the prefix's length.
func sizeOf(m any) int {
	if p, ok := m.(proto.Message); ok {
		return frameHeader + proto.Size(p)
	}
	return frameHeader
}
