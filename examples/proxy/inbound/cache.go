package inbound

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/layer"
)

// cache has one service per key. The field main has up to cacheSize services, and closes a
// service after the idle timeout without a request. The field overflow has all other
// services. It closes them after only overflowIdle without a request, because clients
// choose the keys and could otherwise fill the memory.
type cache[K comparable, Req, Rsp any] struct{ main, overflow *layer.Cache[K, Req, Rsp] }

// cacheSize is the number of services that a cache keeps for the full idle timeout.
// overflowIdle is the idle timeout of all other services.
const (
	cacheSize    = 1000
	overflowIdle = time.Second
)

func newCache[K comparable, Req, Rsp any](
	ctx context.Context, mk func(context.Context, K) layer.Service[Req, Rsp], idle time.Duration, opts ...layer.Option[Rsp],
) cache[K, Req, Rsp] {
	return cache[K, Req, Rsp]{
		main:     layer.NewCache(ctx, mk, layer.CachePolicy{IdleTimeout: idle, Capacity: cacheSize}, opts...),
		overflow: layer.NewCache(ctx, mk, layer.CachePolicy{IdleTimeout: overflowIdle}, opts...),
	}
}

// Service returns a service that sends requests to the service of key, which is made at the
// first request.
func (c cache[K, Req, Rsp]) Service(key K) layer.Service[Req, Rsp] {
	return &orOverflow[Req, Rsp]{c.main.Service(key), c.overflow.Service(key)}
}

// Router returns a service that sends each request to the service of its key, which the
// function key returns.
func (c cache[K, Req, Rsp]) Router(key func(Req) (K, error)) layer.Service[Req, Rsp] {
	return &orOverflow[Req, Rsp]{c.main.Router(key), c.overflow.Router(key)}
}

// orOverflow sends a request to the embedded Service, which uses the main cache. If that
// cache is full, it sends the request to overflow.
type orOverflow[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	overflow layer.Service[Req, Rsp]
}

func (o *orOverflow[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	rsp, err := o.Service.Call(ctx, req)
	if err != nil && isFull(err) {
		return o.overflow.Call(ctx, req)
	}
	return rsp, err
}

func (o *orOverflow[Req, Rsp]) Next() layer.Service[Req, Rsp] { return o.Service }

func (o *orOverflow[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "or overflow", Children: []layer.Node{{Name: "overflow", Children: []layer.Node{layer.Describe(o.overflow)}}}}
}

// isFull reports whether err rejects a request because the cache has no room for another
// key.
func isFull(err error) bool {
	e, ok := errors.AsType[*layer.Error](err)
	return ok && e.Layer == "cache" && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}
