package layer

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/wake"
)

// Cache keeps one service for each key: made when first used, shared by all
// callers, dropped when it was idle for a while. An entry is in use while a
// Call or a Ready of it runs and until its last response ended.
//
// A service that refuses with an error that matches [ErrClosed] is dropped
// too, so that the key is tried again: not at once, which would be as often as
// it is asked for, but within an eighth of the idle time. Until then the key is
// not ready, which is not for good.
//
// A Cache is safe for concurrent use. It has one goroutine, for as long as the
// context lives that it was made with. [Cache.Router] puts a router on top;
// [Cache.Service] is the [MakeService] of its services.
//
// Admission: a key more than the cache may hold is refused; whatever else the
// service of the key decides. Ready waits for room, then for that service, and
// for another one if it has closed; for a key that nothing was made for, it asks
// again every eighth of the idle time.
//
// Cancellation: a request whose context is done is refused, and makes nothing.
//
// Body: an entry is kept until its last response ended, see [WithCompletion].
//
// Errors: a refusal for want of room is an [Error] of kind [ErrNotReady], and so is
// that of a service that has closed; after the end of the cache's context, one of
// kind [ErrClosed]; for a key that nothing was made for, and for one that is not
// equal to itself (a NaN), one of kind [ErrNoRoute]. Its Target is the key.
//
// Cost: for a key that is there, a hash, a look-up in a map that is never
// locked, and two atomic additions; no allocation but for the body's Observer.
type Cache[K comparable, Req, Rsp any] struct {
	options[Rsp]
	policy CachePolicy
	mk     func(context.Context, K) Service[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the parent of every service's own
	seed   maphash.Seed

	keys    atomic.Int64   // taken, those in the making included
	swept   atomic.Int64   // how often the sweeper has looked
	freed   wake.Broadcast // of keys, swept and ctx
	refused tally          // for want of room
	shards  [64]cacheShard[K, Req, Rsp]
}

// CachePolicy is what a [Cache] keeps, and for how long.
type CachePolicy struct {
	// Idle is how long a service that nobody uses is kept; it may take an
	// eighth longer. 0 is a minute.
	IdleTimeout time.Duration

	// Capacity is the most keys at a time. 0 is 10 000. What is in use is never
	// dropped to make room, nor is what is not idle yet.
	Capacity int
}

// Validate returns an error that names the field that is out of its range.
func (p CachePolicy) Validate() error {
	switch {
	case p.IdleTimeout < 0:
		return fmt.Errorf("cache policy: idle %v must be at least 0", p.IdleTimeout)
	case p.Capacity < 0:
		return fmt.Errorf("cache policy: capacity %d must be at least 0", p.Capacity)
	}
	return nil
}

func (p CachePolicy) orDefault() CachePolicy {
	if p.IdleTimeout <= 0 {
		p.IdleTimeout = time.Minute
	}
	if p.Capacity <= 0 {
		p.Capacity = 10_000
	}
	return p
}

// NewCache returns a cache of what mk makes. mk should return at once, like
// every [MakeService]; while it runs for one key, callers of that key wait for it as
// long as their context allows, and other keys are not concerned. Where it
// returns nil, there is no service for the key: requests fail with an error of
// kind [ErrNoRoute], and each asks again.
//
// The context given to mk ends when the entry was dropped and nothing of it is
// open any more, or when ctx ends. After that all calls are refused with an
// error that matches [ErrClosed].
//
// A field of p that is below 0 is taken as 0, the default.
func NewCache[K comparable, Req, Rsp any](
	ctx context.Context, mk func(ctx context.Context, key K) Service[Req, Rsp], p CachePolicy, opts ...Option[Rsp],
) *Cache[K, Req, Rsp] {
	check(mk != nil, "NewCache: nil function")
	c := &Cache[K, Req, Rsp]{
		options: newOptions(opts), policy: p.orDefault(), mk: mk, ctx: ctx, seed: maphash.MakeSeed(),
	}
	c.refused.to = c.to.LayerRejections.With("layer", "cache")
	for i := range c.shards {
		c.shards[i].init()
	}
	go c.sweep(max(c.policy.IdleTimeout/8, time.Millisecond))
	return c
}

// Service returns the service of key. It makes nothing yet: that is left to
// its first Ready or Call, and again to the first one after the key was
// dropped. It may be kept or asked for again for each request; for a key that
// is in the cache this costs no allocation. The method fits [MakeService].
func (c *Cache[K, Req, Rsp]) Service(key K) Service[Req, Rsp] {
	if e := c.shard(key).find(key); e != nil {
		return e.handle
	}
	return &cacheHandle[K, Req, Rsp]{cache: c, key: key}
}

// Router returns the [Router] that sends each request to the service of its
// key, and shows the services that there are as its routes.
func (c *Cache[K, Req, Rsp]) Router(key func(Req) (K, error)) Service[Req, Rsp] {
	check(key != nil, "Cache.Router: nil key function")
	return &router[K, Req, Rsp]{key: key, mk: c.Service, routes: c.Describe}
}

// Describe shows the services that there are, sorted by key.
func (c *Cache[K, Req, Rsp]) Describe() Node {
	n := Node{Name: "cache", State: State{
		{"keys", c.keys.Load()}, {"capacity", c.policy.Capacity}, {"idle", c.policy.IdleTimeout}, {"refused", c.refused.n.Load()},
	}}
	for i := range c.shards {
		for _, e := range c.shards[i].all() {
			n.Children = append(n.Children, Node{
				Name:  "entry",
				State: State{{"key", fmt.Sprint(e.handle.key)}, {"open", e.Open()}},
				Next:  e.describe(),
			})
		}
	}
	slices.SortFunc(n.Children, func(a, b Node) int {
		return strings.Compare(fmt.Sprint(a.State.Get("key")), fmt.Sprint(b.State.Get("key")))
	})
	return n
}

func (c *Cache[K, Req, Rsp]) shard(key K) *cacheShard[K, Req, Rsp] {
	return &c.shards[maphash.Comparable(c.seed, key)%uint64(len(c.shards))]
}
