package layer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/refcount"
)

// cacheShard has the entries for some of the keys of a cache. Each change replaces the map by a
// changed copy, so that a look-up takes no lock. The copies are small, because a cache has 64
// shards.
type cacheShard[K comparable, Req, Rsp any] struct {
	made atomic.Pointer[map[K]*cacheEntry[K, Req, Rsp]]

	mu     sync.Mutex
	making map[K]chan struct{} // keys of entries that are being made; build closes the channel
}

func (s *cacheShard[K, Req, Rsp]) init() {
	s.made.Store(&map[K]*cacheEntry[K, Req, Rsp]{})
	s.making = make(map[K]chan struct{})
}

func (s *cacheShard[K, Req, Rsp]) find(key K) *cacheEntry[K, Req, Rsp] { return (*s.made.Load())[key] }

func (s *cacheShard[K, Req, Rsp]) all() map[K]*cacheEntry[K, Req, Rsp] { return *s.made.Load() }

// claim decides which of several callers makes the entry of key. If mine is true, this
// caller must make the entry and close the channel making. Otherwise the caller must wait
// until making is closed, and then look up the entry again. If the entry exists already,
// making is nil. If the cache is full or has ended, claim returns the rejection.
func (s *cacheShard[K, Req, Rsp]) claim(c *Cache[K, Req, Rsp], key K) (making chan struct{}, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, false, c.rejectEnded(key)
	}
	if e := s.find(key); e != nil && !e.IsRetired() {
		return nil, false, nil
	}
	if making := s.making[key]; making != nil {
		return making, false, nil
	}
	if !acquire(&c.keys, int64(c.policy.Capacity)) {
		return nil, false, c.reject(key, errCacheFull, fmt.Sprintf("it holds %d keys", c.policy.Capacity), nil)
	}
	making = make(chan struct{})
	s.making[key] = making
	return making, true, nil
}

// settle removes key from the map s.making, because the creation of the entry e has ended. If the
// argument keep is true and the context of the cache has not ended, settle adds e to the shard and
// returns true. Otherwise it returns false, and the shard does not get e.
func (s *cacheShard[K, Req, Rsp]) settle(key K, e *cacheEntry[K, Req, Rsp], keep bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.making, key)
	if !keep || e.handle.cache.ctx.Err() != nil {
		return false
	}
	with := maps.Clone(s.all())
	with[key] = e
	s.made.Store(&with)
	return true
}

// drop removes the entries in the argument over from the shard. If another entry has replaced one
// of them for the same key, the other entry remains.
func (s *cacheShard[K, Req, Rsp]) drop(over []*cacheEntry[K, Req, Rsp]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	without := maps.Clone(s.all())
	for _, e := range over {
		if without[e.handle.key] == e {
			delete(without, e.handle.key)
		}
	}
	s.made.Store(&without)
}

// end retires and removes all entries of the shard, and returns their number.
func (s *cacheShard[K, Req, Rsp]) end() int {
	s.mu.Lock() // a later settle sees that the cache has ended
	over := slices.Collect(maps.Values(s.all()))
	s.mu.Unlock()
	for _, e := range over {
		e.Retire()
	}
	s.drop(over)
	return len(over)
}

// cacheEntry is the service of one key. Its Count counts running calls and open responses. It also
// records when Cache.sweep last found the service in use, so that sweep can drop idle services.
type cacheEntry[K comparable, Req, Rsp any] struct {
	refcount.Count
	handle *cacheHandle[K, Req, Rsp]
	inner  atomic.Pointer[Service[Req, Rsp]] // nil after the entry was retired and its last response ended
	closed atomic.Bool                       // the service returned ErrClosed

	// seen and since are used only by Cache.sweep, to find out for how long the service has
	// been unused.
	seen  uint64    // the value of Count.Word at the last sweep that found the entry in use
	since time.Time // the time of that sweep
}

// Data does nothing. The entry has the methods of an [Observer] and observes each response itself,
// because a separate Observer would be an allocation.
func (e *cacheEntry[K, Req, Rsp]) Data(int) {}

func (e *cacheEntry[K, Req, Rsp]) End(error) { e.Done() }

// describe returns the description of the service. It returns nil if the entry is retired
// and its last use has ended.
func (e *cacheEntry[K, Req, Rsp]) describe() *Node {
	inner := e.inner.Load()
	if inner == nil {
		return nil
	}
	return new(Describe(*inner))
}

// note reports whether err matches [ErrClosed]. If so, it marks the service as closed, so that
// Cache.sweep drops the entry.
func (e *cacheEntry[K, Req, Rsp]) note(err error) bool {
	closed := errors.Is(err, ErrClosed)
	if closed {
		e.closed.Store(true)
	}
	return closed
}

// isOver retires the entry if its service returned [ErrClosed], or has been unused for the duration
// in the argument idle. It reports whether it retired the entry.
func (e *cacheEntry[K, Req, Rsp]) isOver(now time.Time, idle time.Duration) bool {
	word := e.Word()
	switch {
	case e.closed.Load():
		e.Retire()
		return true
	case word != e.seen || e.Open() > 0:
		e.seen, e.since = word, now
		return false
	}
	return now.Sub(e.since) >= idle && e.RetireUnused(word)
}

// sweep is the goroutine of the cache. It drops services that returned [ErrClosed], and services
// that were unused for the idle timeout. The argument every is the interval at which it looks for
// them. When the context of the cache ends, sweep drops all services and returns.
func (c *Cache[K, Req, Rsp]) sweep(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			for i := range c.shards {
				c.sweepShard(&c.shards[i], now)
			}
			c.swept.Add(1)
			c.freed.Wake()
		case <-c.ctx.Done():
			for i := range c.shards {
				c.release(c.shards[i].end())
			}
			return
		}
	}
}

func (c *Cache[K, Req, Rsp]) sweepShard(s *cacheShard[K, Req, Rsp], now time.Time) {
	var over []*cacheEntry[K, Req, Rsp]
	for _, e := range s.all() {
		if e.isOver(now, c.policy.IdleTimeout) {
			over = append(over, e)
		}
	}
	if len(over) == 0 {
		return
	}
	s.drop(over)
	for _, e := range over {
		e.handle.last.CompareAndSwap(e, nil)
	}
	c.release(len(over))
}
