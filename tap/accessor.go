package tap

import (
	"context"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Accessor is an optional extension of [layer.Accessor] with methods that only a tap
// needs. httplayer.Accessor and grpclayer.Accessor implement it. If the accessor of a
// [Layer] does not, each response starts when Call returns it, bodies are not shown,
// and the destination is that of [WithDestination].
type Accessor[Req, Rsp any] interface {
	layer.Accessor[Req, Rsp]

	// DestinationAddr returns the address at which an inbound request arrived, or to which an
	// outbound one is sent. It returns the zero AddrPort if the address is unknown.
	DestinationAddr(ctx context.Context, req Req) netip.AddrPort

	// SourceLabels returns labels of the client of an inbound request, such as tls and
	// client_id, or nil. The caller may change the map.
	SourceLabels(req Req) map[string]string

	// RequestOverHTTP2 and ResponseOverHTTP2 report whether the message was sent over
	// HTTP/2. The pseudo-header fields of such a message are shown.
	RequestOverHTTP2(req Req) bool
	ResponseOverHTTP2(rsp Rsp) bool

	// OnResponseStart is called before Call. If response headers are sent before Call returns, as
	// by a handler, the accessor must call started once with them. It must then call data after
	// each part of the body, with its length n and its bytes p. p is nil if the bytes are unknown.
	// Neither function may be called after Call returned.
	OnResponseStart(ctx context.Context, req Req, started func(Rsp), data func(n int, p []byte))

	// OnDeferredResponse is called before Complete. If the headers of rsp have not arrived yet, it
	// arranges that started is called once when they arrive, and returns true. It returns false if
	// the headers are there. started is not called if rsp ends without headers.
	OnDeferredResponse(rsp Rsp, started func()) bool

	// ErrorResponse returns the response that an error of Call or of the body represents, such as a
	// gRPC status. It returns false if the error represents no response.
	ErrorResponse(ctx context.Context, req Req, err error) (Rsp, bool)

	// TeeRequestBody returns a copy of req whose body calls read with each part that is
	// read and its offset. The offset is 0 again if the body is sent again. read does
	// not keep p. TeeResponseBody does the same for rsp, and may change rsp in place.
	TeeRequestBody(req Req, read func(at int64, p []byte)) Req
	TeeResponseBody(rsp Rsp, read func(at int64, p []byte)) Rsp
}

// basicAccessor extends a layer.Accessor that does not implement [Accessor].
type basicAccessor[Req, Rsp any] struct{ layer.Accessor[Req, Rsp] }

func (basicAccessor[Req, Rsp]) DestinationAddr(context.Context, Req) netip.AddrPort {
	return netip.AddrPort{}
}
func (basicAccessor[Req, Rsp]) SourceLabels(Req) map[string]string  { return nil }
func (basicAccessor[Req, Rsp]) RequestOverHTTP2(Req) bool           { return false }
func (basicAccessor[Req, Rsp]) ResponseOverHTTP2(Rsp) bool          { return false }
func (basicAccessor[Req, Rsp]) OnDeferredResponse(Rsp, func()) bool { return false }

func (basicAccessor[Req, Rsp]) OnResponseStart(context.Context, Req, func(Rsp), func(int, []byte)) {}

func (basicAccessor[Req, Rsp]) ErrorResponse(context.Context, Req, error) (rsp Rsp, ok bool) {
	return rsp, false
}

func (basicAccessor[Req, Rsp]) TeeRequestBody(req Req, _ func(int64, []byte)) Req  { return req }
func (basicAccessor[Req, Rsp]) TeeResponseBody(rsp Rsp, _ func(int64, []byte)) Rsp { return rsp }

// completed returns a as an [Accessor], extended by basicAccessor if necessary.
func completed[Req, Rsp any](a layer.Accessor[Req, Rsp]) Accessor[Req, Rsp] {
	if full, ok := a.(Accessor[Req, Rsp]); ok {
		return full
	}
	return basicAccessor[Req, Rsp]{a}
}
