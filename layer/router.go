package layer

import (
	"context"
	"fmt"
)

// Router sends each request to the service of its key. It keeps nothing: mk is
// asked for every request, so give it one that remembers. With a [Cache], made
// when first used and dropped when idle, [Cache.Router] is the whole of it:
//
//	routes := layer.NewCache(ctx, mk, layer.CachePolicy{})
//	svc := routes.Router(keyOf)
//
// Admission: the service of the key decides. Ready returns nil, because the
// request is not known yet: put a [Queue] into what mk makes, so that nobody
// waits for the route of another.
//
// Cancellation: the service of the key has the request's context.
//
// Body: not touched.
//
// Errors: an [Error] of kind [ErrNoRoute] with the error of key; one that
// names the key where mk returns nil. What the service returns is passed.
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
	routes func() Node // nil where the router does not know them
}

func (r *router[K, Req, Rsp]) Ready(context.Context) error { return nil }

func (r *router[K, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	k, err := r.key(req)
	if err != nil {
		return none, &Error{Layer: "router", Kind: ErrNoRoute, Err: err}
	}
	svc := r.mk(k)
	if svc == nil {
		return none, &Error{Layer: "router", Target: fmt.Sprint(k), Kind: ErrNoRoute, Reason: "there is no service for this key"}
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
