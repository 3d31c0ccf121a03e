package discover

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/wake"
	"github.com/gotower/gotower/layer"
)

// Cache keeps one service for each key: made when first used, shared by all
// callers, dropped when it was idle for a while (see [Idle]; it may take an
// eighth longer). An entry is in use while a Call or a Ready of it runs and
// until its last response ended (see [Until]).
//
// A service that refuses with an error that matches [layer.ErrClosed] is
// dropped too, so that the key is tried again: not at once, which would be as
// often as it is asked for, but within an eighth of the idle time.
//
// A Cache is safe for concurrent use. It has one goroutine, for as long as the
// context lives that it was made with.
type Cache[K comparable, Req, Rsp any] struct {
	options[Rsp]
	mk   func(context.Context, K) layer.Service[Req, Rsp]
	ctx  context.Context //nolint:containedctx // the parent of every service's own
	seed maphash.Seed

	keys   atomic.Int64 // taken, those in the making included
	freed  wake.Broadcast
	shards [64]shard[K, Req, Rsp]
}

// NewCache returns a cache of what mk makes. mk should return at once, like
// every [layer.Make]; while it runs for one key, callers of that key wait for
// it as long as their context allows, and other keys are not concerned.
//
// The context given to mk ends when the entry was dropped and nothing of it is
// open any more, or when ctx ends. After that all calls are refused with an
// error that matches [layer.ErrClosed].
func NewCache[K comparable, Req, Rsp any](
	ctx context.Context, mk func(ctx context.Context, key K) layer.Service[Req, Rsp], opts ...Option[Rsp],
) *Cache[K, Req, Rsp] {
	c := &Cache[K, Req, Rsp]{options: newOptions(opts), mk: mk, ctx: ctx, seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].init()
	}
	go c.sweep(max(c.idle/8, time.Millisecond))
	return c
}

// Service returns the service of key. It makes nothing yet: that is left to
// its first Ready or Call, and again to the first one after the key was
// dropped. Its Call refuses when the cache is full. It may be kept or asked
// for again for each request; for a key that is in the cache this costs no
// allocation. The method fits [layer.Make].
func (c *Cache[K, Req, Rsp]) Service(key K) layer.Service[Req, Rsp] {
	if e := c.shard(key).find(key); e != nil {
		return e.handle
	}
	return &handle[K, Req, Rsp]{cache: c, key: key}
}

// Describe shows the services that there are, sorted by key.
func (c *Cache[K, Req, Rsp]) Describe() layer.Node {
	n := layer.Node{Name: "cache", State: layer.State{
		{Key: "keys", Value: c.keys.Load()}, {Key: "capacity", Value: c.capacity}, {Key: "idle", Value: c.idle},
	}}
	for i := range c.shards {
		for _, e := range c.shards[i].all() {
			next := layer.Describe(e.inner)
			n.Children = append(n.Children, layer.Node{
				Name:  "entry",
				State: layer.State{{Key: "key", Value: fmt.Sprint(e.handle.key)}, {Key: "open", Value: e.open()}},
				Next:  &next,
			})
		}
	}
	slices.SortFunc(n.Children, func(a, b layer.Node) int {
		return strings.Compare(fmt.Sprint(a.State.Get("key")), fmt.Sprint(b.State.Get("key")))
	})
	return n
}

func (c *Cache[K, Req, Rsp]) shard(key K) *shard[K, Req, Rsp] {
	return &c.shards[maphash.Comparable(c.seed, key)%uint64(len(c.shards))]
}

// open returns the entry of key with one more use begun, made if it has to be.
func (c *Cache[K, Req, Rsp]) open(ctx context.Context, key K) (*entry[K, Req, Rsp], error) {
	s := c.shard(key)
	for {
		if e := s.find(key); e != nil && e.begin() {
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
	s *shard[K, Req, Rsp], key K, making chan struct{},
) (e *entry[K, Req, Rsp], err error) {
	e = &entry[K, Req, Rsp]{handle: &handle[K, Req, Rsp]{cache: c, key: key}}
	e.handle.last.Store(e)
	e.complete = c.complete
	ctx, cancel := context.WithCancel(c.ctx)
	e.end = cancel
	e.begin()
	made := false
	defer func() { // after a panic of mk too: those who wait try for themselves
		if !s.settle(key, e, made) {
			c.release(1)
			cancel()
			e, err = nil, c.refuseEnded(key)
		}
		close(making)
	}()
	e.inner = c.mk(ctx, key)
	made = true
	return e, nil
}

func (c *Cache[K, Req, Rsp]) reserve() bool {
	if c.keys.Add(1) <= int64(c.capacity) {
		return true
	}
	c.release(1)
	return false
}

func (c *Cache[K, Req, Rsp]) release(keys int) {
	c.keys.Add(-int64(keys))
	c.freed.Wake()
}

func (c *Cache[K, Req, Rsp]) hasRoom() bool {
	return c.keys.Load() < int64(c.capacity) || c.ctx.Err() != nil
}

func (c *Cache[K, Req, Rsp]) refuseGone(ctx context.Context, key K) error {
	return refusal(fmt.Sprint(key), "", layer.ErrNotReady, "the caller has gone", context.Cause(ctx))
}

func (c *Cache[K, Req, Rsp]) refuseFull(key K) error {
	return refusal(fmt.Sprint(key), "", layer.ErrNotReady, fmt.Sprintf("the cache is full, it holds %d keys", c.capacity), errFull)
}

func (c *Cache[K, Req, Rsp]) refuseEnded(key K) error {
	return refusal(fmt.Sprint(key), "", layer.ErrClosed, "the cache has ended", context.Cause(c.ctx))
}

var errFull = errors.New("no room for another key")
