package tap

import (
	"context"
	"maps"
	"net/netip"
)

// ResponseStarter is what a [layer.Accessor] may have besides, where a response goes out
// before Call returns it, as that of a handler does: httplayer.Accessor has it,
// for what stands in a Middleware, and grpclayer.Accessor for the streams of a
// server. It is asked for requests that somebody watches.
type ResponseStarter[Req, Rsp any] interface {
	// Early is called before Call. It arranges for begun to be called once,
	// when the response begins, and for data after n bytes of its body, with
	// these or, where they are not at hand, nil; both in the time of Call, and
	// neither where Call returns before anything goes out.
	OnResponseStart(ctx context.Context, req Req, begun func(Rsp), data func(n int, p []byte))
}

// DeferredResponder is what a [layer.Accessor] may have besides, where Call returns a response
// that has not begun: grpclayer.Accessor has it, for the streams of a client.
type DeferredResponder[Rsp any] interface {
	// Late is called before Complete. It has begun called once, when rsp begins
	// and before its end, or not at all if it ends before. It returns false if
	// rsp has begun.
	OnDeferredResponse(rsp Rsp, begun func()) bool
}

// ErrorResponder is what a [layer.Accessor] may have besides, where an error may be an
// answer: grpclayer.Accessor has it, since a call that fails has a status, and
// mostly one that the other side gave it.
type ErrorResponder[Req, Rsp any] interface {
	// Answer returns the response that err stands for: an error of Call, or one
	// that ended a response. It returns false where the other side did not
	// answer.
	ErrorResponse(ctx context.Context, req Req, err error) (Rsp, bool)
}

// Destinationer is what a [layer.Accessor] may have besides, to say where a request
// goes if the [Layer] was not told, by [WithDestination]: httplayer.Accessor and
// grpclayer.Accessor have it.
type Destinationer[Req any] interface {
	// Located returns the address that the request came to, or that it says it
	// goes to; not valid if that is not known.
	DestinationAddr(ctx context.Context, req Req) netip.AddrPort
}

// SourceLabeler is what an [layer.Accessor] may have besides, to say what is known of
// the client of a request beyond its address: httplayer.Accessor has it. It is
// asked for inbound requests that somebody watches.
type SourceLabeler[Req any] interface {
	// WithSourceLabels returns labels such as tls and client_id, or nil. The
	// result is not kept by it.
	SourceLabels(req Req) map[string]string
}

// sourceLabels are what is known of the client of this request. What all
// clients of the layer have in common was said by who built it, and holds.
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
