package inbound

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/layer"
)

// cache caches one service per key. Clients choose the keys, so the number of services that are
// kept for the full idle timeout must be limited. These are in main. Further services are in
// overflow, which closes them after overflowIdle without a request.
type cache[K comparable, Req, Rsp any] struct{ main, overflow *layer.Cache[K, Req, Rsp] }

// Limits of a cache: how many services it keeps for the full idle timeout, and the idle timeout for
// all others.
const (
	cacheSize    = 1000
	overflowIdle = time.Second
)

// newCache returns a cache of the services that mk makes. An unused one is kept for idle, or for overflowIdle
// if there are more than cacheSize.
func newCache[K comparable, Req, Rsp any](
	ctx context.Context, mk func(context.Context, K) layer.Service[Req, Rsp], idle time.Duration, opts ...layer.Option[Rsp],
) cache[K, Req, Rsp] {
	return cache[K, Req, Rsp]{
		main:     layer.NewCache(ctx, mk, layer.CachePolicy{IdleTimeout: idle, Capacity: cacheSize}, opts...),
		overflow: layer.NewCache(ctx, mk, layer.CachePolicy{IdleTimeout: overflowIdle}, opts...),
	}
}

// Service returns a service that sends requests to key's service, and makes it at the first
// request.
func (c cache[K, Req, Rsp]) Service(key K) layer.Service[Req, Rsp] {
	return &orOverflow[Req, Rsp]{c.main.Service(key), c.overflow.Service(key)}
}

// Router returns a service that sends each request to the service for its key.
func (c cache[K, Req, Rsp]) Router(key func(Req) (K, error)) layer.Service[Req, Rsp] {
	return &orOverflow[Req, Rsp]{c.main.Router(key), c.overflow.Router(key)}
}

// orOverflow sends a request to the embedded Service, which uses the main cache, and to overflow if
// that cache is full.
type orOverflow[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	overflow layer.Service[Req, Rsp]
}

// Call sends the request through the main cache, or through the overflow if that is full.
func (o *orOverflow[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	rsp, err := o.Service.Call(ctx, req)
	// The main cache has no room for another key. Other errors are the request's own.
	if err != nil && isFull(err) {
		return o.overflow.Call(ctx, req)
	}
	return rsp, err
}

func (o *orOverflow[Req, Rsp]) Next() layer.Service[Req, Rsp] { return o.Service }

func (o *orOverflow[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "or overflow", Children: []layer.Node{{Name: "overflow", Children: []layer.Node{layer.Describe(o.overflow)}}}}
}

// isFull reports whether err is the rejection of a cache that has no room for another key.
func isFull(err error) bool {
	e, ok := errors.AsType[*layer.Error](err)
	return ok && e.Layer == "cache" && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}
