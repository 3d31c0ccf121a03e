package tap

import (
	"context"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Accessor is an optional interface of the [layer.Accessor] of a [Layer], for
// what only a tap reads. httplayer.Accessor and grpclayer.Accessor implement it.
// Without it, each response begins when Call returns it, bodies are not shown,
// and the destination is that of [WithDestination].
type Accessor[Req, Rsp any] interface { //nolint:interfacebloat // each protocol has all of it
	layer.Accessor[Req, Rsp]

	// DestinationAddr returns the address at which the request arrived, or to
	// which it is sent. An unknown address is not valid.
	DestinationAddr(ctx context.Context, req Req) netip.AddrPort

	// SourceLabels returns labels of the client of an inbound request, such as
	// tls and client_id, or nil. It does not keep the result.
	SourceLabels(req Req) map[string]string

	// The pseudo-header fields of HTTP/2 messages are shown.
	RequestOverHTTP2(req Req) bool
	ResponseOverHTTP2(rsp Rsp) bool

	// OnResponseStart is called before Call. If the response begins before Call
	// returns, as that of a handler does, it arranges for one call of begun, and
	// of data after n bytes of the body, with the bytes or nil. Neither may be
	// called after Call has returned.
	OnResponseStart(ctx context.Context, req Req, begun func(Rsp), data func(n int, p []byte))

	// OnDeferredResponse is called before Complete. If rsp has not begun, it
	// returns true and arranges for one call of begun, or none if rsp ends before.
	OnDeferredResponse(rsp Rsp, begun func()) bool

	// ErrorResponse returns the response that an error of Call or of the body
	// represents, such as a gRPC status. It returns false if there is none.
	ErrorResponse(ctx context.Context, req Req, err error) (Rsp, bool)

	// TeeRequestBody returns a copy of req with a body that calls read for each
	// part that is read, with its offset. A body that is sent again begins at 0
	// again. read does not keep p. TeeResponseBody may change rsp in place.
	TeeRequestBody(req Req, read func(at int64, p []byte)) Req
	TeeResponseBody(rsp Rsp, read func(at int64, p []byte)) Rsp
}

// basicAccessor completes a layer.Accessor that is not an [Accessor].
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

func completed[Req, Rsp any](a layer.Accessor[Req, Rsp]) Accessor[Req, Rsp] {
	if full, ok := a.(Accessor[Req, Rsp]); ok {
		return full
	}
	return basicAccessor[Req, Rsp]{a}
}
