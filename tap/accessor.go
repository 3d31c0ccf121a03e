package tap

import (
	"context"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Accessor adds the methods that only a tap needs to [layer.Accessor]. httplayer.HTTP and
// grpclayer.GRPC implement it. A type that implements it should embed [BaseAccessor] and define the
// methods for which the defaults are wrong.
type Accessor[Req, Rsp any] interface { //nolint:interfacebloat // the parts of a message
	layer.Accessor[Req, Rsp]

	// ObserveResponse arranges that o is notified when rsp ends, and returns the response to pass
	// on, as a [layer.Completion] does. o.Data is called with the lengths of the body's pieces.
	ObserveResponse(ctx context.Context, rsp Rsp, o layer.Observer) Rsp

	// DestinationAddr returns the local address at which an inbound request arrived, or the
	// remote address to which an outbound request is sent. It returns the zero AddrPort if
	// the address is unknown.
	DestinationAddr(ctx context.Context, req Req) netip.AddrPort

	// Pattern returns the pattern or method by which req was routed, or "". [Registry.Top] counts
	// the requests with the same one in one row.
	Pattern(req Req) string

	// SourceLabels returns labels that describe an inbound request's client, such as tls and
	// client_id, or nil without labels. The caller may change the map.
	SourceLabels(req Req) map[string]string

	// RequestOverHTTP2 and ResponseOverHTTP2 report whether the request or the response is
	// sent over HTTP/2. For a message over HTTP/2, watchers that request headers also see
	// its pseudo-header fields, such as :path.
	RequestOverHTTP2(req Req) bool
	ResponseOverHTTP2(rsp Rsp) bool

	// OnResponseStart is called before the layer forwards req. If a handler serves req, the
	// accessor notifies o of the response headers and of each part of the body that is sent. For
	// other requests, the accessor ignores o. It must not notify o after the inner service's Call
	// has returned.
	OnResponseStart(ctx context.Context, req Req, o layer.ResponseObserver[Rsp])

	// OnDeferredResponse is called with the response from Call, before
	// ObserveResponse. If rsp's headers have not arrived yet, it returns true, and the accessor calls
	// o.ResponseStarted when they arrive. If the headers have arrived, it returns false and does
	// not notify o. ResponseStarted is not called if rsp ends without headers.
	OnDeferredResponse(rsp Rsp, o layer.ResponseObserver[Rsp]) bool

	// ErrorResponse returns the response that err represents, such as a gRPC status, and true. It
	// returns false if err represents no response. err comes from Call or from a response body.
	ErrorResponse(ctx context.Context, req Req, err error) (Rsp, bool)

	// TeeRequestBody returns a copy of req. When a part p of its body is read, read is called
	// with p and its offset in the body, which starts from 0 again if the body is sent again.
	// read does not keep p. TeeResponseBody does the same for rsp's body, and may change rsp in
	// place.
	TeeRequestBody(req Req, read func(offset int64, p []byte)) Req
	TeeResponseBody(rsp Rsp, read func(offset int64, p []byte)) Rsp
}

// BaseAccessor implements the methods that [Accessor] adds to a layer.Accessor. A response ends
// when Call returns, the destination in events is the address that [WithDestination] sets, and
// no bodies are shown.
type BaseAccessor[Req, Rsp any] struct{}

// ObserveResponse calls o.End, like [layer.AtReturn].
func (BaseAccessor[Req, Rsp]) ObserveResponse(ctx context.Context, rsp Rsp, o layer.Observer) Rsp {
	return layer.AtReturn(ctx, rsp, o)
}

// DestinationAddr returns the zero AddrPort: the messages do not tell the endpoint.
func (BaseAccessor[Req, Rsp]) DestinationAddr(context.Context, Req) netip.AddrPort {
	return netip.AddrPort{}
}

// Pattern returns "": how the request was routed is unknown.
func (BaseAccessor[Req, Rsp]) Pattern(Req) string { return "" }

// SourceLabels returns nil: nothing is known about the client but its address.
func (BaseAccessor[Req, Rsp]) SourceLabels(Req) map[string]string { return nil }

// RequestOverHTTP2 returns false, as for a protocol other than HTTP/2.
func (BaseAccessor[Req, Rsp]) RequestOverHTTP2(Req) bool { return false }

// ResponseOverHTTP2 returns false, as for a protocol other than HTTP/2.
func (BaseAccessor[Req, Rsp]) ResponseOverHTTP2(Rsp) bool { return false }

// OnResponseStart does nothing. Override it if a handler can serve requests, and its response starts
// before Call returns.
func (BaseAccessor[Req, Rsp]) OnResponseStart(context.Context, Req, layer.ResponseObserver[Rsp]) {}

// OnDeferredResponse returns false: the response headers are known when Call returns.
func (BaseAccessor[Req, Rsp]) OnDeferredResponse(Rsp, layer.ResponseObserver[Rsp]) bool {
	return false
}

// ErrorResponse returns the zero response and false: an error is not sent to a client as a
// response.
func (BaseAccessor[Req, Rsp]) ErrorResponse(context.Context, Req, error) (rsp Rsp, ok bool) {
	return rsp, false
}

// TeeRequestBody returns req unchanged, so that its body is not shown.
func (BaseAccessor[Req, Rsp]) TeeRequestBody(req Req, _ func(int64, []byte)) Req { return req }

// TeeResponseBody returns rsp unchanged, so that its body is not shown.
func (BaseAccessor[Req, Rsp]) TeeResponseBody(rsp Rsp, _ func(int64, []byte)) Rsp { return rsp }
