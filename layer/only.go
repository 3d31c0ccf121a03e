package layer

import "context"

// Only applies l to the requests for which match returns true. All others bypass it. For example, you can exempt health
// checks from a limit:
//
//	layer.Only(func(r *http.Request) bool { return r.URL.Path != "/healthz" }, httplayer.NewStack().Limit(100).Layer())
//
// Admission: that of l for matching requests. Ready is l's, because it sees no request: while l is full, a queue above
// lets the other requests wait too. To avoid this, place a layer above the queue.
//
// Cancellation, Body, Errors: as in l for matching requests. Nothing changes for others.
//
// Cost: one call of match. match must be safe for concurrent use, and must not change the request or read its body. A
// nil match or l panics.
func Only[Req, Rsp any](match func(Req) bool, l Layer[Req, Rsp]) Layer[Req, Rsp] {
	check(match != nil, "Only: nil function")
	check(l != nil, "Only: nil layer")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		svc := l(next)
		check(svc != nil, "Only: the layer returned nil")
		return &only[Req, Rsp]{wrapper: wrapper[Req, Rsp]{svc}, inner: next, match: match}
	}
}

// only is the service of Only. It embeds the layer's service.
type only[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	inner Service[Req, Rsp]
	match func(Req) bool
}

// Call sends req through the layer if it matches, and otherwise past it.
func (o *only[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if o.match(req) {
		return o.Service.Call(ctx, req)
	}
	return o.inner.Call(ctx, req)
}

// Describe returns a node without state.
func (o *only[Req, Rsp]) Describe() Node { return Node{Name: "only"} }
