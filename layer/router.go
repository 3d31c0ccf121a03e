package layer

import (
	"context"
	"fmt"
)

// Router sends each request to its key's service. key returns a request's key, and mk the service
// for that key. Router calls mk for each request. [Cache.Router] returns a Router that keeps the
// services in a [Cache]:
//
//	routes := layer.NewCache(ctx, mk, layer.CachePolicy{})
//	svc := routes.Router(keyOf)
//
// Admission: the key's service decides. Ready returns nil, because the next request's key is
// unknown. You should place a [Queue] into the services that mk makes, not above the Router.
//
// Cancellation: the context is passed unchanged.
//
// Body: not touched.
//
// Errors: if key fails or mk returns nil, the error is an [Error] of kind [ErrNoRoute]. Errors of
// the service are passed unchanged.
//
// Cost: one call of key and of mk.
//
// It panics if key or mk is nil.
func Router[K comparable, Req, Rsp any](key func(Req) (K, error), mk MakeService[K, Req, Rsp]) Service[Req, Rsp] {
	check(key != nil, "Router: nil key function")
	check(mk != nil, "Router: nil Make")
	return &router[K, Req, Rsp]{key: key, mk: mk}
}

// router is the service of [Router] and [Cache.Router].
type router[K comparable, Req, Rsp any] struct {
	key    func(Req) (K, error)
	mk     MakeService[K, Req, Rsp]
	routes func() Node // describes the services as children; nil if they are unknown
}

// Ready returns nil: only a request tells which service would have to be ready.
func (r *router[K, Req, Rsp]) Ready(context.Context) error { return nil }

// Call sends req to the service for its key. It returns an error that matches ErrNoRoute if there is no
// key or no service.
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

// Describe returns the routes, if they are known.
func (r *router[K, Req, Rsp]) Describe() Node {
	if r.routes == nil {
		return Node{Name: "router"}
	}
	// The routes describe themselves as entries of a cache; here they are routes of a router.
	n := r.routes()
	n.Name = "router"
	for i := range n.Children {
		n.Children[i].Name = "route"
	}
	return n
}
