package discover

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// handle is the service of one key, whichever entry it has. It remembers the
// last one, so that a handle that is kept does not look it up.
type handle[K comparable, Req, Rsp any] struct {
	cache *Cache[K, Req, Rsp]
	key   K
	last  atomic.Pointer[entry[K, Req, Rsp]]
}

func (h *handle[K, Req, Rsp]) open(ctx context.Context) (*entry[K, Req, Rsp], error) {
	if e := h.last.Load(); e != nil && e.begin() {
		return e, nil
	}
	e, err := h.cache.open(ctx, h.key)
	if err == nil {
		h.last.Store(e)
	}
	return e, err
}

func (h *handle[K, Req, Rsp]) Ready(ctx context.Context) error {
	for {
		e, err := h.open(ctx)
		switch {
		case err == nil:
			return h.ready(ctx, e)
		case errors.Is(err, layer.ErrClosed):
			return err
		case !errors.Is(err, errFull):
			return context.Cause(ctx)
		}
		if err := h.cache.freed.Wait(ctx, h.cache.hasRoom); err != nil {
			return err
		}
	}
}

func (h *handle[K, Req, Rsp]) ready(ctx context.Context, e *entry[K, Req, Rsp]) error {
	defer e.done()
	err := e.inner.Ready(ctx)
	e.note(err)
	return err
}

func (h *handle[K, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if ctx.Err() != nil {
		return none, h.cache.refuseGone(ctx, h.key)
	}
	e, err := h.open(ctx)
	if err != nil {
		return none, err
	}
	rsp, err := e.call(ctx, req)
	if err != nil {
		e.note(err)
	}
	return rsp, err
}

func (h *handle[K, Req, Rsp]) Describe() layer.Node {
	n := layer.Node{Name: "cache", State: layer.State{{Key: "key", Value: fmt.Sprint(h.key)}}}
	if e := h.cache.shard(h.key).find(h.key); e != nil {
		next := layer.Describe(e.inner)
		n.Next = &next
	}
	return n
}
