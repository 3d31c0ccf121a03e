package layer

import (
	"context"
	"fmt"
)

// Router sends each request to the service of its key. It calls mk for each
// request. [Cache.Router] is a Router on a [Cache], which keeps services:
//
//	routes := layer.NewCache(ctx, mk, layer.CachePolicy{})
//	svc := routes.Router(keyOf)
//
// Admission: the service of the key decides. Ready returns nil, because the
// request is not known yet. Put a [Queue] into the services that mk makes.
//
// Cancellation: the service of the key has the request's context.
//
// Body: not touched.
//
// Errors: an [Error] of kind [ErrNoRoute] with the error of key, or with the
// key if mk returns nil. Errors of the service are passed unchanged.
//
// Cost: key and mk.
func Router[K comparable, Req, Rsp any](key func(Req) (K, error), mk MakeService[K, Req, Rsp]) Service[Req, Rsp] {
	check(key != nil, "Router: nil key function")
	check(mk != nil, "Router: nil Make")
	return &router[K, Req, Rsp]{key: key, mk: mk}
}

type router[K comparable, Req, Rsp any] struct {
	key    func(Req) (K, error)
	mk     MakeService[K, Req, Rsp]
	routes func() Node // nil if unknown
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
