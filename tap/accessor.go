package tap

import (
	"context"
	"maps"
	"net/netip"
)

// ResponseStarter is an optional interface of a [layer.Accessor], for responses
// that are sent before Call returns, as by a handler. httplayer.Accessor
// implements it for Middleware, and grpclayer.Accessor for server streams.
type ResponseStarter[Req, Rsp any] interface {
	// OnResponseStart is called before Call, for watched requests. begun must
	// be called once when the response begins, and data after n bytes of its
	// body, with the bytes or nil. Neither may be called after Call has
	// returned.
	OnResponseStart(ctx context.Context, req Req, begun func(Rsp), data func(n int, p []byte))
}

// DeferredResponder is an optional interface of a [layer.Accessor], for
// responses that begin after Call has returned. grpclayer.Accessor implements
// it for client streams.
type DeferredResponder[Rsp any] interface {
	// OnDeferredResponse is called before Complete. It calls begun once when
	// rsp begins, and never if rsp ends before. It returns false if rsp has
	// begun.
	OnDeferredResponse(rsp Rsp, begun func()) bool
}

// ErrorResponder is an optional interface of a [layer.Accessor], for errors
// that stand for a response. grpclayer.Accessor implements it, because a failed
// call has a status.
type ErrorResponder[Req, Rsp any] interface {
	// ErrorResponse returns the response that err stands for: an error of Call,
	// or one that ended a response. It returns false if there was no answer.
	ErrorResponse(ctx context.Context, req Req, err error) (Rsp, bool)
}

// Destinationer is an optional interface of a [layer.Accessor] that returns the
// destination of a request for a [Layer] without [WithDestination].
// httplayer.Accessor and grpclayer.Accessor implement it.
type Destinationer[Req any] interface {
	// DestinationAddr returns the address at which the request arrived, or to
	// which it is sent. An unknown address is not valid.
	DestinationAddr(ctx context.Context, req Req) netip.AddrPort
}

// SourceLabeler is an optional interface of a [layer.Accessor] that returns
// labels of the client of an inbound request. httplayer.Accessor implements it.
type SourceLabeler[Req any] interface {
	// SourceLabels returns labels such as tls and client_id, or nil. It does
	// not keep the result.
	SourceLabels(req Req) map[string]string
}

// sourceLabels returns the labels of the client of this request. The labels of
// the layer take precedence.
func (v *view[Req, Rsp]) sourceLabels() map[string]string {
	of, ok := v.access.(SourceLabeler[Req])
	if !ok || v.place.direction != Inbound {
		return v.place.sourceLabels
	}
	labels := of.SourceLabels(v.req)
	if len(labels) == 0 {
		return v.place.sourceLabels
	}
	maps.Copy(labels, v.place.sourceLabels)
	return labels
}
