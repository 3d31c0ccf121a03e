package layer

import (
	"context"
	"fmt"
)

// open returns the entry of key with one more use begun, made if it has to be.
func (c *Cache[K, Req, Rsp]) open(ctx context.Context, key K) (*cacheEntry[K, Req, Rsp], error) {
	if keyedUnequal(key) {
		return nil, &Error{Layer: "cache", Target: fmt.Sprint(key), Kind: ErrNoRoute, Reason: "the key is not equal to itself"}
	}
	s := c.shard(key)
	for {
		if e := s.find(key); e != nil && e.Begin() {
			return e, nil
		}
		making, mine, err := s.claim(c, key)
		switch {
		case err != nil:
			return nil, err
		case mine:
			return c.build(s, key, making)
		case making == nil: // made just now
			continue
		}
		select {
		case <-making:
		case <-ctx.Done():
			return nil, c.refuseGone(ctx, key)
		}
	}
}

// build makes the entry that was claimed, with one use begun.
func (c *Cache[K, Req, Rsp]) build(
	s *cacheShard[K, Req, Rsp], key K, making chan struct{},
) (e *cacheEntry[K, Req, Rsp], err error) {
	e = &cacheEntry[K, Req, Rsp]{handle: &cacheHandle[K, Req, Rsp]{cache: c, key: key}}
	e.handle.last.Store(e)
	e.options = &c.options
	ctx, cancel := context.WithCancel(c.ctx)
	e.Ended = func() {
		cancel()
		e.inner.Store(nil)
	}
	e.Begin()
	made := false
	defer func() { // after a panic of mk too: those who wait try for themselves
		if !s.settle(key, e, made) {
			c.release(1)
			cancel()
			if err == nil {
				err = c.refuseEnded(key)
			}
			e = nil
		}
		close(making)
	}()
	inner := c.mk(ctx, key)
	e.inner.Store(&inner)
	if made = inner != nil; !made {
		err = &Error{Layer: "cache", Target: fmt.Sprint(key), Kind: ErrNoRoute, Reason: "nothing was made for this key"}
	}
	return e, err
}

func (c *Cache[K, Req, Rsp]) reserve() bool {
	for n := c.keys.Load(); n < int64(c.policy.Capacity); n = c.keys.Load() {
		if c.keys.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (c *Cache[K, Req, Rsp]) release(keys int) {
	c.keys.Add(-int64(keys))
	c.freed.Wake()
}

func (c *Cache[K, Req, Rsp]) hasRoom() bool {
	return c.keys.Load() < int64(c.policy.Capacity) || c.ctx.Err() != nil
}

func (c *Cache[K, Req, Rsp]) refuseGone(ctx context.Context, key K) error {
	return refuseDone(ctx, "cache", fmt.Sprint(key))
}

func (c *Cache[K, Req, Rsp]) refuseFull(key K) error {
	return &Error{
		Layer: "cache", Target: fmt.Sprint(key), Kind: errCacheFull,
		Reason: fmt.Sprintf("it holds %d keys", c.policy.Capacity),
	}
}

// refuseClosed takes what closed the service of a key for what it is to those
// above: another one will be made.
func (c *Cache[K, Req, Rsp]) refuseClosed(key K, err error) error {
	return &Error{
		Layer: "cache", Target: fmt.Sprint(key), Kind: ErrNotReady,
		Reason: "closed until it is made again", Err: mapHiddenError{err, ErrClosed},
	}
}

func (c *Cache[K, Req, Rsp]) refuseEnded(key K) error {
	return &Error{
		Layer: "cache", Target: fmt.Sprint(key), Kind: ErrClosed,
		Reason: "the cache has ended", Err: context.Cause(c.ctx),
	}
}

var errCacheFull error = &kind{"full", ErrNotReady}
