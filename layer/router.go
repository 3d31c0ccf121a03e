package layer

import "context"

// Router sends each request to the service of its key. It keeps nothing: mk
// is asked for every request, so give it one that remembers, such as a
// discover.Cache.
//
// Admission: the service of the key decides. Ready returns nil, because the
// request is not known yet.
//
// Errors: an error of key comes back in an [Error] of kind [ErrNoRoute].
//
// Cost: key and mk.
func Router[K comparable, Req, Rsp any](key func(Req) (K, error), mk Make[K, Req, Rsp]) Service[Req, Rsp] {
	return &router[K, Req, Rsp]{key: key, mk: mk}
}

type router[K comparable, Req, Rsp any] struct {
	key func(Req) (K, error)
	mk  Make[K, Req, Rsp]
}

func (r *router[K, Req, Rsp]) Ready(context.Context) error { return nil }

func (r *router[K, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	k, err := r.key(req)
	if err != nil {
		var none Rsp
		return none, &Error{Layer: "router", Kind: ErrNoRoute, Err: err}
	}
	return r.mk(k).Call(ctx, req)
}

func (r *router[K, Req, Rsp]) Describe() Node { return Node{Name: "router"} }
