package layer

import (
	"context"
	"fmt"
)

// Router sends each request to the service of its key. The function key returns the key of
// a request, and mk returns the service of the key. Router calls mk for each request.
// [Cache.Router] returns a Router that keeps the services in a [Cache]:
//
//	routes := layer.NewCache(ctx, mk, layer.CachePolicy{})
//	svc := routes.Router(keyOf)
//
// Admission: the service of the key decides. Ready returns nil, because the key of the next
// request is unknown. Place a [Queue] into the services that mk makes.
//
// Cancellation: the context is passed unchanged.
//
// Body: not touched.
//
// Errors: if key fails or mk returns nil, the error is an [Error] of kind [ErrNoRoute].
// Errors of the service are passed unchanged.
//
// Cost: one call of key and of mk.
//
// It panics if key or mk is nil.
func Router[K comparable, Req, Rsp any](key func(Req) (K, error), mk MakeService[K, Req, Rsp]) Service[Req, Rsp] {
	check(key != nil, "Router: nil key function")
	check(mk != nil, "Router: nil Make")
	return &router[K, Req, Rsp]{key: key, mk: mk}
}

type router[K comparable, Req, Rsp any] struct {
	key    func(Req) (K, error)
	mk     MakeService[K, Req, Rsp]
	routes func() Node // describes the services as children; nil if they are unknown
}

func (r *router[K, Req, Rsp]) Ready(context.Context) error { return nil }

func (r *router[K, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	k, err := r.key(req)
	if err != nil {
		return zero, &Error{Layer: "router", Kind: ErrNoRoute, Err: err}
	}
	svc := r.mk(k)
	if svc == nil {
		return zero, &Error{Layer: "router", Target: fmt.Sprint(k), Kind: ErrNoRoute, Reason: "no service for this key"}
	}
	return svc.Call(ctx, req)
}

func (r *router[K, Req, Rsp]) Describe() Node {
	if r.routes == nil {
		return Node{Name: "router"}
	}
	n := r.routes()
	n.Name = "router"
	for i := range n.Children {
		n.Children[i].Name = "route"
	}
	return n
}
