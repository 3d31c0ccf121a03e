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

// Accessor is the [layer.Accessor] of gRPC. It lets the packages for routes and taps read calls as
// if they were HTTP requests. It presents a call as an HTTP/2 POST request with the name of the
// method as its path. It presents a reply as a response with status 200.
type Accessor struct{}

var _ layer.Accessor[*Call, *Reply] = Accessor{}

// Method returns "POST".
func (Accessor) Method(*Call) string { return "POST" }

// Scheme returns "", because gRPC does not report the scheme.
func (Accessor) Scheme(*Call) string { return "" }

// Authority returns the authority of the call. On a server it is the authority that the
// client sent. On a client it is the default authority of gRPC, which is the target
// without its scheme. If the target is a name of SRV records, it is the domain in that
// name (see [NewResolver]).
func (Accessor) Authority(c *Call) string {
	if !c.incoming {
		return authorityOf(c.conn())
	}
	return c.Get(":authority")
}

// Path returns the full name of the method, "/package.Service/Method".
func (Accessor) Path(c *Call) string { return c.Method }

// Query returns "", because calls have no query.
func (Accessor) Query(*Call) string { return "" }

// Source returns the address of the client, if the call is on a server that listens on TCP.
// Otherwise it returns the zero value.
func (Accessor) Source(c *Call) netip.AddrPort {
	if p := c.peer(); p != nil {
		return caller.Addr(p.Addr)
	}
	return netip.AddrPort{}
}

// RequestHeader returns a copy of the metadata of the call.
func (Accessor) RequestHeader(c *Call) layer.Header { return fields(c.Header()) }

// RequestOverHTTP2 returns true, because gRPC uses HTTP/2.
func (Accessor) RequestOverHTTP2(*Call) bool { return true }

// ResponseOverHTTP2 returns true, because gRPC uses HTTP/2.
func (Accessor) ResponseOverHTTP2(*Reply) bool { return true }

// Status returns 200, the HTTP status of every gRPC response.
func (Accessor) Status(*Reply) int { return 200 }

// ResponseHeader returns the header of the reply r. The header of a client's stream is
// empty until it has arrived. The header of a unary call on a server is always empty.
func (Accessor) ResponseHeader(r *Reply) layer.Header {
	switch {
	case r == nil:
		return fields(nil)
	case r.stream != nil && r.stream.started.Load():
		header, _ := r.stream.ClientStream.Header() // has arrived
		return fields(header)
	}
	return fields(r.Header)
}

// ResponseTrailer returns the trailer of a reply that has ended. It includes the field
// grpc-status, which has the status code. Before the end it returns an empty trailer.
func (Accessor) ResponseTrailer(r *Reply) layer.Header {
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

// Complete notifies o of the messages and the end of the reply r, as [Completion] does. For each
// message it calls o.Data with the uncompressed length, where Completion calls o.Data with 1.
func (Accessor) Complete(ctx context.Context, r *Reply, o layer.Observer) *Reply {
	switch {
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
func (Accessor) DestinationAddr(_ context.Context, c *Call) netip.AddrPort {
	if p := c.peer(); p != nil {
		return caller.Addr(p.LocalAddr)
	}
	if c.ctx == nil || c.incoming {
		return netip.AddrPort{}
	}
	_, endpoint := targetOf(c.conn())
	addr, _ := netip.ParseAddrPort(endpoint)
	return addr
}

// SourceLabels returns the labels that linkerd's proxy gives to the client of a call. The
// label tls is "true" with TLS. Without TLS it is "loopback" for a loopback address, and
// otherwise "no_tls_from_remote". The label client_id is the name in the verified client
// certificate. For a call on a client, SourceLabels returns nil.
func (a Accessor) SourceLabels(c *Call) map[string]string {
	p := c.peer()
	if p == nil {
		return nil
	}
	if secure, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		return caller.Labels(a.Source(c), &secure.State)
	}
	return caller.Labels(a.Source(c), nil)
}

// OnResponseStart observes a streaming call on a server. It notifies o when the handler
// sends its header, and of each message that the handler sends. OnResponseStart does
// nothing for unary calls and for calls on a client.
func (Accessor) OnResponseStart(_ context.Context, c *Call, o layer.ResponseObserver[*Reply]) {
	if s, ok := c.rpc.(*serverStream); ok {
		s.observers = append(s.observers, o)
	}
}

// OnDeferredResponse arranges that o is notified when the header of a client's stream
// arrives. It returns false if r is not the reply of a client's stream, because the
// header of r is then complete.
func (Accessor) OnDeferredResponse(r *Reply, o layer.ResponseObserver[*Reply]) bool {
	if r == nil || r.stream == nil {
		return false
	}
	r.stream.begins = append(r.stream.begins, func() { o.ResponseStarted(r) })
	return true
}

// TeeRequestBody returns c unchanged, because taps do not show messages of gRPC.
func (Accessor) TeeRequestBody(c *Call, _ func(at int64, p []byte)) *Call { return c }

// TeeResponseBody returns r unchanged, because taps do not show messages of gRPC.
func (Accessor) TeeResponseBody(r *Reply, _ func(at int64, p []byte)) *Reply { return r }

// ErrorResponse returns the reply to a call that failed with err. On a client, the reply
// is the response of the server, and ok is false if the server did not respond. On a
// server, it is the reply to the client, and ok is false if the client has canceled the
// call.
func (Accessor) ErrorResponse(ctx context.Context, c *Call, err error) (*Reply, bool) {
	if c.incoming {
		if c.ctx == nil || c.ctx.Err() != nil {
			return nil, false
		}
		r := &Reply{status: Code(err)}
		if s, ok := c.rpc.(*serverStream); ok {
			r.Header, r.Trailer = s.header, s.trailer
		}
		return r, true
	}
	call, ok := errors.AsType[*callError](err)
	if !ok || len(call.header) == 0 && len(call.trailer) == 0 {
		return nil, false
	}
	code := Code(err)
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

func (c *Call) conn() *grpc.ClientConn {
	switch rpc := c.rpc.(type) {
	case *clientUnary:
		return rpc.cc
	case *clientStream:
		return rpc.cc
	}
	return nil
}

// authorityOf returns the default authority of gRPC for calls through cc.
func authorityOf(cc *grpc.ClientConn) string {
	scheme, endpoint := targetOf(cc)
	if strings.HasPrefix(scheme, "unix") {
		return "localhost"
	}
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
	_, endpoint, _ = strings.Cut(rest, "/")
	if plain, err := url.PathUnescape(endpoint); err == nil {
		endpoint = plain
	}
	return scheme, endpoint
}

// fields is metadata that implements [layer.Header]. Its names are in lower case.
type fields metadata.MD

func (f fields) Get(name string) string { return first(f.Values(name)) }

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// Values returns all values of the field with the given name. The caller must not modify them.
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

// trailer is the trailer of a reply that has ended, as a [layer.Header]. It includes the
// field grpc-status, which gRPC removes from the metadata.
type trailer Reply

func (t *trailer) Get(name string) string { return first(t.Values(name)) }

// Values returns all values of the field with the given name. The caller must not modify them.
func (t *trailer) Values(name string) []string {
	if values := fields(t.Trailer).Values(name); len(values) > 0 || !strings.EqualFold(name, grpcStatus) {
		return values
	}
	if t.status == codes.OK {
		return statusOK()
	}
	return []string{strconv.Itoa(int(t.status))}
}

func (t *trailer) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, value := range fields(t.Trailer).All() {
			if !yield(name, value) {
				return
			}
		}
		if len(t.Trailer[grpcStatus]) == 0 {
			yield(grpcStatus, t.Get(grpcStatus))
		}
	}
}

const grpcStatus = "grpc-status"

func statusOK() []string { return []string{"0"} }

// sizeObserver wraps an observer for reportMessage. Its method Data gets the length of each
// message. The method Data of other observers gets 1 for each message.
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

// sizeOf returns the length of the message m on the wire, without compression. If m is not
// a protobuf message, it returns only the length of the prefix.
func sizeOf(m any) int {
	if p, ok := m.(proto.Message); ok {
		return frameHeader + proto.Size(p)
	}
	return frameHeader
}
