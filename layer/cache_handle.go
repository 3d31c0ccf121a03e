package layer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// cacheHandle is the service of one key, whichever entry it has. It remembers
// the last one, so that a handle that is kept does not look it up.
type cacheHandle[K comparable, Req, Rsp any] struct {
	cache *Cache[K, Req, Rsp]
	key   K
	last  atomic.Pointer[cacheEntry[K, Req, Rsp]]
}

func (h *cacheHandle[K, Req, Rsp]) open(ctx context.Context) (*cacheEntry[K, Req, Rsp], error) {
	if e := h.last.Load(); e != nil && e.Begin() {
		return e, nil
	}
	e, err := h.cache.open(ctx, h.key)
	if err == nil {
		h.last.Store(e)
	}
	return e, err
}

func (h *cacheHandle[K, Req, Rsp]) Ready(ctx context.Context) error {
	for {
		swept := h.cache.swept.Load()
		e, err := h.open(ctx)
		if err == nil {
			err = h.ready(ctx, e)
		}
		again := func() bool { return h.cache.swept.Load() != swept || h.cache.ctx.Err() != nil }
		switch {
		case h.cache.ctx.Err() != nil:
			return h.cache.refuseEnded(h.key)
		case e != nil && !errors.Is(err, ErrClosed):
			return err
		case e != nil:
			err = h.cache.refuseClosed(h.key, err)
			again = e.IsGone // the sweeper's doing, and at the end of the cache as well
		case errors.Is(err, errCacheFull):
			again = h.cache.hasRoom
		case keyedUnequal(h.key):
			return &Error{Layer: "cache", Kind: ErrClosed, Err: err}
		case !errors.Is(err, ErrNoRoute):
			return context.Cause(ctx)
		}
		if cause := h.cache.freed.Wait(ctx, again); cause != nil {
			return &Error{Layer: "cache", Target: fmt.Sprint(h.key), Reason: "it waited for: " + err.Error(), Err: cause}
		}
	}
}

func (h *cacheHandle[K, Req, Rsp]) ready(ctx context.Context, e *cacheEntry[K, Req, Rsp]) error {
	defer e.Done()
	err := readyWhile(ctx, h.cache.ctx, *e.inner.Load())
	e.note(err)
	return err
}

func (h *cacheHandle[K, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if ctx.Err() != nil {
		return none, h.cache.refuseGone(ctx, h.key)
	}
	e, err := h.open(ctx)
	if err != nil {
		if errors.Is(err, errCacheFull) {
			h.cache.refused.inc()
		}
		return none, err
	}
	rsp, err := e.call(ctx, *e.inner.Load(), req)
	if err != nil && e.note(err) && h.cache.ctx.Err() == nil {
		err = h.cache.refuseClosed(h.key, err)
	}
	return rsp, err
}

func (h *cacheHandle[K, Req, Rsp]) Describe() Node {
	n := Node{Name: "cache", State: State{{"key", fmt.Sprint(h.key)}}}
	if e := h.cache.shard(h.key).find(h.key); e != nil {
		n.Next = e.describe()
	}
	return n
}
