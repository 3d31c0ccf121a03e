package outbound

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// keep makes services of a cache that stay there, once they were used, for as
// long as the profile of r is in force. Whoever has a connection open will send
// more requests by it, and is not to wait for endpoints and connections again
// because there was none for a while.
func keep[K comparable](r *router, in *layer.Cache[K, *http.Request, *http.Response]) layer.MakeService[K, *http.Request, *http.Response] {
	return func(key K) httplayer.Service {
		return &kept[K]{Service: in.Service(key), router: r, in: in, key: key}
	}
}

type kept[K comparable] struct {
	httplayer.Service

	router *router
	in     *layer.Cache[K, *http.Request, *http.Response]
	key    K
	by     atomic.Pointer[named] // whose profile it is kept for
}

func (k *kept[K]) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	old, now := k.by.Load(), k.router.named.Load()
	if old != now && now != nil && k.by.CompareAndSwap(old, now) {
		_ = k.in.Pin(now.inForce, k.key) // if it cannot be had, the next line says so
	}
	return k.Service.Call(ctx, req)
}

func (k *kept[K]) Describe() layer.Node { return layer.Describe(k.Service) }
