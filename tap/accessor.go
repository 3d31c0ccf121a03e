package tap

import (
	"context"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Accessor is an optional extension of [layer.Accessor] with methods that only a tap needs.
// httplayer.Accessor and grpclayer.Accessor implement it. With a layer.Accessor that does not
// implement it, a [Layer] shows a response only when Call returns, and shows no bodies. The
// destination in its events is then always the address that [WithDestination] sets.
type Accessor[Req, Rsp any] interface {
	layer.Accessor[Req, Rsp]

	// DestinationAddr returns the local address at which an inbound request arrived, or the
	// remote address to which an outbound request is sent. It returns the zero AddrPort if
	// the address is unknown.
	DestinationAddr(ctx context.Context, req Req) netip.AddrPort

	// SourceLabels returns labels that describe the client of an inbound request, such as
	// tls and client_id, or nil without labels. The caller may change the map.
	SourceLabels(req Req) map[string]string

	// RequestOverHTTP2 and ResponseOverHTTP2 report whether the request or the response is
	// sent over HTTP/2. For a message over HTTP/2, watchers that request headers also see
	// its pseudo-header fields, such as :path.
	RequestOverHTTP2(req Req) bool
	ResponseOverHTTP2(rsp Rsp) bool

	// OnResponseStart is called before the layer forwards req. If a handler serves req, the
	// accessor notifies o of the response headers and of each part of the body that is
	// sent. For other requests, the accessor ignores o. It must not notify o after Call of
	// the inner service has returned.
	OnResponseStart(ctx context.Context, req Req, o layer.ResponseObserver[Rsp])

	// OnDeferredResponse is called with the response of Call, before the method Complete of
	// [layer.Accessor]. If the headers of rsp have not arrived yet, OnDeferredResponse
	// returns true, and the accessor calls ResponseStarted of o when they arrive. If the
	// headers have arrived, it returns false and does not notify o. ResponseStarted is not
	// called if rsp ends without headers.
	OnDeferredResponse(rsp Rsp, o layer.ResponseObserver[Rsp]) bool

	// ErrorResponse returns the response that err represents, such as a gRPC status, and
	// true. It returns false if err represents no response. err is an error of Call or of a
	// response body.
	ErrorResponse(ctx context.Context, req Req, err error) (Rsp, bool)

	// TeeRequestBody returns a copy of req. When a part p of the body is read from the
	// copy, the function read is called with p and its offset in the body. The offset is 0
	// again if the body is sent again. The function does not keep p. TeeResponseBody does
	// the same for the body of rsp, and may change rsp in place.
	TeeRequestBody(req Req, read func(offset int64, p []byte)) Req
	TeeResponseBody(rsp Rsp, read func(offset int64, p []byte)) Rsp
}

// basicAccessor implements [Accessor] for a layer.Accessor that has none of the additional methods.
// TeeRequestBody returns the request unchanged, and TeeResponseBody the response. The other methods
// that it adds return zero values or do nothing.
type basicAccessor[Req, Rsp any] struct{ layer.Accessor[Req, Rsp] }

func (basicAccessor[Req, Rsp]) DestinationAddr(context.Context, Req) netip.AddrPort {
	return netip.AddrPort{}
}
func (basicAccessor[Req, Rsp]) SourceLabels(Req) map[string]string { return nil }
func (basicAccessor[Req, Rsp]) RequestOverHTTP2(Req) bool          { return false }
func (basicAccessor[Req, Rsp]) ResponseOverHTTP2(Rsp) bool         { return false }

func (basicAccessor[Req, Rsp]) OnResponseStart(context.Context, Req, layer.ResponseObserver[Rsp]) {}
func (basicAccessor[Req, Rsp]) OnDeferredResponse(Rsp, layer.ResponseObserver[Rsp]) bool {
	return false
}

func (basicAccessor[Req, Rsp]) ErrorResponse(context.Context, Req, error) (rsp Rsp, ok bool) {
	return rsp, false
}

func (basicAccessor[Req, Rsp]) TeeRequestBody(req Req, _ func(int64, []byte)) Req  { return req }
func (basicAccessor[Req, Rsp]) TeeResponseBody(rsp Rsp, _ func(int64, []byte)) Rsp { return rsp }

// completed returns accessor itself if it implements [Accessor]. Otherwise it returns
// accessor wrapped in basicAccessor.
func completed[Req, Rsp any](accessor layer.Accessor[Req, Rsp]) Accessor[Req, Rsp] {
	if full, ok := accessor.(Accessor[Req, Rsp]); ok {
		return full
	}
	return basicAccessor[Req, Rsp]{accessor}
}
