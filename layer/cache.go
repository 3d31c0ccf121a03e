package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Cache keeps one service per key. It makes a service on first use, shares it between all
// callers, and drops it once it was unused for the idle timeout. A service is in use while Call
// or Ready runs, and until its last response ends. A service that returns [ErrClosed] is dropped
// within an eighth of the idle timeout, and made again when it is next used.
//
// [Cache.Router] returns a service that sends each request to its key's service. [Cache.Service]
// is a [MakeService]. A Cache is safe for concurrent use. NaN must not be a key.
//
// Admission: a request with a new key is rejected if the cache already holds Capacity keys.
// Otherwise the key's service decides. Ready waits for capacity, then for the service.
//
// Cancellation: a request is rejected, and makes no service, if its context has ended.
//
// Body: a service is kept until its last response ends, see [WithCompletion].
//
// Errors: an [Error] with the key as Target. Its kind is [ErrNotReady] if the cache is full or
// the service returned ErrClosed. It is [ErrClosed] after the cache's context ended. It is
// [ErrNoRoute] if the key has no service, that is, if the MakeService returned nil.
//
// Cost: for an existing key a hash, a look-up without a lock and two atomic additions.
type Cache[K comparable, Req, Rsp any] struct {
	options[Rsp]
	policy CachePolicy
	mk     func(context.Context, K) Service[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the parent of the contexts of all services
	seed   maphash.Seed

	keys     atomic.Int64     // number of entries, including those being made
	swept    atomic.Int64     // completed sweeps
	freed    notify.Broadcast // wakes waiters when keys, swept or the state of ctx changes
	rejected tally            // requests rejected because the cache was full
	shards   [64]cacheShard[K, Req, Rsp]
}

// CachePolicy configures a [Cache].
type CachePolicy struct {
	// IdleTimeout is the time after which an unused service is dropped. The service may be
	// kept for an eighth longer. 0 means a minute.
	IdleTimeout time.Duration

	// Capacity is the largest number of keys. 0 means 10 000. The cache does not drop a
	// service before its idle timeout to make room for another one.
	Capacity int
}

// Validate returns an error that names the first field that is out of range, or nil.
func (p CachePolicy) Validate() error {
	switch {
	case p.IdleTimeout < 0:
		return fmt.Errorf("CachePolicy.IdleTimeout is %v, must be at least 0", p.IdleTimeout)
	case p.Capacity < 0:
		return fmt.Errorf("CachePolicy.Capacity is %d, must be at least 0", p.Capacity)
	}
	return nil
}

// filled returns p with the defaults in place of zero values.
func (p CachePolicy) filled() CachePolicy {
	p.IdleTimeout = cmp.Or(p.IdleTimeout, time.Minute)
	p.Capacity = cmp.Or(p.Capacity, 10_000)
	return p
}

// NewCache returns a cache of the services that mk makes. mk should return immediately, because all
// callers with the same key wait for it. If mk returns nil, the request fails with kind
// [ErrNoRoute], and the next request calls mk again.
//
// Each call of mk gets a new context for its service. This context ends when the cache has dropped
// the service and the service's last response has ended. It also ends with ctx, the cache's
// context. Once ctx has ended, all requests are rejected with [ErrClosed].
func NewCache[K comparable, Req, Rsp any](
	ctx context.Context, mk func(ctx context.Context, key K) Service[Req, Rsp], p CachePolicy, opts ...Option[Rsp],
) *Cache[K, Req, Rsp] {
	check(mk != nil, "NewCache: nil function")
	checkPolicy(p)
	c := &Cache[K, Req, Rsp]{
		options: newOptions(opts), policy: p.filled(), mk: mk, ctx: ctx, seed: maphash.MakeSeed(),
	}
	c.rejected.counter = c.instruments.LayerRejections.With("layer", "cache")
	// All shards are made at once, so that a key's shard needs no lock.
	for i := range c.shards {
		c.shards[i].init()
	}
	// Eight times in each IdleTimeout, so that an entry is dropped soon after it.
	go c.sweep(max(c.policy.IdleTimeout/8, time.Millisecond))
	return c
}

// Service returns the service for key, which the cache makes at the first Ready or Call. You may
// keep the result: if the cache has dropped the service, the next Ready or Call makes it again.
// Service does not allocate if key is already cached. Service is a [MakeService].
func (c *Cache[K, Req, Rsp]) Service(key K) Service[Req, Rsp] {
	if e := c.shard(key).find(key); e != nil {
		return e.handle
	}
	return &cacheHandle[K, Req, Rsp]{cache: c, key: key}
}

// Router returns a service that sends each request to its key's service, as a [Router] does.
// [Describe] shows the cache's entries as routes.
func (c *Cache[K, Req, Rsp]) Router(key func(Req) (K, error)) Service[Req, Rsp] {
	check(key != nil, "Cache.Router: nil key function")
	return &router[K, Req, Rsp]{key: key, mk: c.Service, routes: c.Describe}
}

// Describe returns a node with the cache's entries as its children, sorted by key.
func (c *Cache[K, Req, Rsp]) Describe() Node {
	n := Node{Name: "cache", State: State{
		{"keys", c.keys.Load()}, {"capacity", c.policy.Capacity}, {"idle", c.policy.IdleTimeout}, {"rejected", c.rejected.n.Load()},
	}}
	for i := range c.shards {
		for _, e := range c.shards[i].load() {
			n.Children = append(n.Children, Node{
				Name:  "entry",
				State: State{{"key", fmt.Sprint(e.handle.key)}, {"open", e.Open()}},
				Next:  e.describe(),
			})
		}
	}
	// By key, because maps have no order.
	slices.SortFunc(n.Children, func(a, b Node) int {
		return strings.Compare(fmt.Sprint(a.State.Get("key")), fmt.Sprint(b.State.Get("key")))
	})
	return n
}

// shard returns the shard for key. Several shards let goroutines make different services at the same
// time.
func (c *Cache[K, Req, Rsp]) shard(key K) *cacheShard[K, Req, Rsp] {
	return &c.shards[maphash.Comparable(c.seed, key)%uint64(len(c.shards))]
}

// open returns the entry for key, and makes it if there is none. If several callers want to make it,
// one does, and the others wait. If err is nil, the caller must call the entry's Done when it no longer
// uses the service.
func (c *Cache[K, Req, Rsp]) open(ctx context.Context, key K) (*cacheEntry[K, Req, Rsp], error) {
	s := c.shard(key)
	for {
		if e := s.find(key); e != nil && e.Begin() { // Begin fails if the entry is being dropped
			return e, nil
		}
		making, claimed, err := s.claim(c, key)
		switch {
		case err != nil:
			return nil, err
		case claimed:
			return c.build(s, key, making)
		case making == nil: // made just now
			continue
		}
		select {
		case <-making:
		case <-ctx.Done():
			return nil, c.rejectDone(ctx, key)
		}
	}
}

// build makes the service for key and adds its entry to the shard s. The caller has claimed the key
// with cacheShard.claim, which returned the channel making; others wait until build closes it. If err
// is nil, the caller must call the entry's Done.
func (c *Cache[K, Req, Rsp]) build(
	s *cacheShard[K, Req, Rsp], key K, making chan struct{},
) (e *cacheEntry[K, Req, Rsp], err error) {
	e = &cacheEntry[K, Req, Rsp]{handle: &cacheHandle[K, Req, Rsp]{cache: c, key: key}}
	e.handle.last.Store(e)
	ctx, cancel := context.WithCancel(c.ctx)
	// Ended is called when the entry was retired and its last response has ended. Only then may the service stop.
	e.Ended = func() {
		cancel()
		e.inner.Store(nil)
	}
	// This is the use of the caller, which it ends by Done.
	e.Begin()
	made := false
	defer func() { // if mk panics, the waiting callers make the service themselves
		// settle refuses the entry if no service was made, or if the cache has ended meanwhile.
		if !s.settle(key, e, made) {
			c.release(1)
			cancel()
			if err == nil {
				err = c.rejectEnded(key)
			}
			e = nil
		}
		close(making)
	}()
	inner := c.mk(ctx, key)
	e.inner.Store(&inner)
	if made = inner != nil; !made {
		err = c.reject(key, ErrNoRoute, "no service for this key", nil)
	}
	return e, err
}

// release makes room for more keys, after some entries were dropped, and wakes callers that wait for
// that.
func (c *Cache[K, Req, Rsp]) release(keys int) {
	c.keys.Add(-int64(keys))
	c.freed.Wake()
}

// hasRoom reports whether there is no reason to wait for room in the cache, because there is some or
// the cache has ended.
func (c *Cache[K, Req, Rsp]) hasRoom() bool {
	return c.keys.Load() < int64(c.policy.Capacity) || c.ctx.Err() != nil
}

// rejectDone returns the rejection of a request for key whose context has ended.
func (c *Cache[K, Req, Rsp]) rejectDone(ctx context.Context, key K) error {
	return rejectDone(ctx, "cache", fmt.Sprint(key))
}

// reject returns a rejection of a request for key. cause may be nil.
func (c *Cache[K, Req, Rsp]) reject(key K, kind error, reason string, cause error) error {
	return &Error{Layer: "cache", Target: fmt.Sprint(key), Kind: kind, Reason: reason, Err: cause}
}

// rejectClosed returns the rejection of a request whose service has returned [ErrClosed]. It matches
// [ErrNotReady] but not ErrClosed, because the cache will make another service for the key.
func (c *Cache[K, Req, Rsp]) rejectClosed(key K, err error) error {
	return c.reject(key, ErrNotReady, "closed until it is made again", notClosed{err})
}

// rejectEnded returns the rejection of a request after the cache's context has ended.
func (c *Cache[K, Req, Rsp]) rejectEnded(key K) error {
	return c.reject(key, ErrClosed, "the cache has ended", context.Cause(c.ctx))
}

// notClosed is an error that matches what err matches, except [ErrClosed]: see rejectClosed.
type notClosed struct{ err error } //nolint:errname // it hides a kind

// Error returns the text of the hidden error.
func (n notClosed) Error() string { return n.err.Error() }

// Is makes errors.Is find all errors in the tree but ErrClosed.
func (n notClosed) Is(target error) bool {
	return !errors.Is(target, ErrClosed) && errors.Is(n.err, target)
}

// As makes errors.As find the errors in the tree.
func (n notClosed) As(target any) bool { return errors.As(n.err, target) }

// errCacheFull is the kind of a rejection because the cache has as many entries as its Capacity allows.
var errCacheFull error = &kind{"full", ErrNotReady}

// cacheHandle is the [Service] that [Cache.Service] returns for a key. Users may keep it, while the
// cache drops and makes the service for the key. It remembers the last entry, so that most requests
// need no look-up.
type cacheHandle[K comparable, Req, Rsp any] struct {
	cache *Cache[K, Req, Rsp]
	key   K
	last  atomic.Pointer[cacheEntry[K, Req, Rsp]]
}

// open returns the entry for the handle's key, as Cache.open does.
func (h *cacheHandle[K, Req, Rsp]) open(ctx context.Context) (*cacheEntry[K, Req, Rsp], error) {
	// The usual case: the entry that this handle used last is still in use.
	if e := h.last.Load(); e != nil && e.Begin() {
		return e, nil
	}
	e, err := h.cache.open(ctx, h.key)
	if err == nil {
		h.last.Store(e)
	}
	return e, err
}

// Ready waits until the service of the key is ready. If there is none yet, it makes one, for which it
// waits for room in the cache.
func (h *cacheHandle[K, Req, Rsp]) Ready(ctx context.Context) error {
	for {
		// Read before looking, so that a sweep in between ends the wait below.
		swept := h.cache.swept.Load()
		e, err := h.open(ctx)
		if err == nil {
			err = h.ready(ctx, e)
		}
		// again reports whether it is worth looking again. The first form is for ErrNoRoute: mk made no service, and may
		// make one after the next sweep. Two other cases replace it by what they wait for.
		again := func() bool { return h.cache.swept.Load() != swept || h.cache.ctx.Err() != nil }
		switch {
		case h.cache.ctx.Err() != nil:
			return h.cache.rejectEnded(h.key)
		case e != nil && !errors.Is(err, ErrClosed):
			return err
		case e != nil:
			err = h.cache.rejectClosed(h.key, err)
			again = e.IsRetired // retired by the sweeper or at the end of the cache
		case errors.Is(err, errCacheFull):
			again = h.cache.hasRoom
		case !errors.Is(err, ErrNoRoute):
			// Open has no other error: the context has ended while another caller made the service.
			return context.Cause(ctx)
		}
		if cause := h.cache.freed.Wait(ctx, again); cause != nil {
			return &Error{Layer: "cache", Target: fmt.Sprint(h.key), Reason: "it waited for: " + err.Error(), Err: cause}
		}
	}
}

// ready waits until the service of the entry e is ready, or the cache has ended, and releases e.
func (h *cacheHandle[K, Req, Rsp]) ready(ctx context.Context, e *cacheEntry[K, Req, Rsp]) error {
	// The entry is in use while Ready waits, so that the sweep does not drop it.
	defer e.Done()
	err := ReadyWhile(ctx, h.cache.ctx, *e.inner.Load())
	e.recordError(err)
	return err
}

// Call sends req to the service of the key, which it makes if there is none yet. It rejects the request
// if the cache is full.
func (h *cacheHandle[K, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if reqctx.Ended(ctx) {
		return zero, h.cache.rejectDone(ctx, h.key)
	}
	e, err := h.open(ctx)
	if err != nil {
		if errors.Is(err, errCacheFull) {
			h.cache.rejected.inc()
		}
		return zero, err
	}
	rsp, err := callUntil(ctx, *e.inner.Load(), req, &h.cache.options, e)
	if err != nil && e.recordError(err) && h.cache.ctx.Err() == nil {
		// The service has returned ErrClosed, but the cache can make another one.
		err = h.cache.rejectClosed(h.key, err)
	}
	return rsp, err
}

// Describe returns the key and, if there is one, its service.
func (h *cacheHandle[K, Req, Rsp]) Describe() Node {
	n := Node{Name: "cache", State: State{{"key", fmt.Sprint(h.key)}}}
	if e := h.cache.shard(h.key).find(h.key); e != nil {
		n.Next = e.describe()
	}
	return n
}

// Pin keeps the service for key in the cache until ctx ends, as if a request were open. It makes
// the service if necessary. A service that returns [ErrClosed] is dropped in spite of Pin. Pin
// returns the same errors as a Call.
func (c *Cache[K, Req, Rsp]) Pin(ctx context.Context, key K) error {
	if ctx.Err() != nil {
		return c.rejectDone(ctx, key)
	}
	e, err := c.open(ctx, key)
	if err == nil {
		// Until ctx ends, the entry counts as in use.
		context.AfterFunc(ctx, e.Done)
	}
	return err
}
