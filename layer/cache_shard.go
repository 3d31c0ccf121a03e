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

// cacheShard holds the entries for some of a cache's keys. Each change replaces the map by a
// changed copy, so that a look-up takes no lock. The copies are small, because a cache has 64
// shards.
type cacheShard[K comparable, Req, Rsp any] struct {
	entries atomic.Pointer[map[K]*cacheEntry[K, Req, Rsp]]

	mu     sync.Mutex
	making map[K]chan struct{} // keys of entries that are being made; build closes the channel
}

// init makes the shard ready to use, without entries.
func (s *cacheShard[K, Req, Rsp]) init() {
	s.entries.Store(&map[K]*cacheEntry[K, Req, Rsp]{})
	s.making = make(map[K]chan struct{})
}

// find returns the entry for key, or nil.
func (s *cacheShard[K, Req, Rsp]) find(key K) *cacheEntry[K, Req, Rsp] {
	return (*s.entries.Load())[key]
}

// load returns all entries. The map must not be changed.
func (s *cacheShard[K, Req, Rsp]) load() map[K]*cacheEntry[K, Req, Rsp] { return *s.entries.Load() }

// claim decides which of several callers makes the entry for key. If claimed is true, this caller must
// make it, with build, which closes the channel making. If making is not nil, another caller is making
// it; this one must wait until making is closed and look again. If both are unset, the entry exists. If
// the cache is full or has ended, err is the rejection.
func (s *cacheShard[K, Req, Rsp]) claim(c *Cache[K, Req, Rsp], key K) (making chan struct{}, claimed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, false, c.rejectEnded(key)
	}
	// Another caller may have made it since this one has looked. A retired entry is about to be dropped.
	if e := s.find(key); e != nil && !e.IsRetired() {
		return nil, false, nil
	}
	if making := s.making[key]; making != nil {
		return making, false, nil
	}
	// The key takes its place now, although the service does not exist yet. release gives it back.
	if !acquire(&c.keys, int64(c.policy.Capacity)) {
		return nil, false, c.reject(key, errCacheFull, fmt.Sprintf("it holds %d keys", c.policy.Capacity), nil)
	}
	making = make(chan struct{})
	s.making[key] = making
	return making, true, nil
}

// settle ends an attempt to make the entry e for key. If retain is true and the cache has not ended, it
// adds e to the shard and returns true. Otherwise e must not be used, and settle returns false.
func (s *cacheShard[K, Req, Rsp]) settle(key K, e *cacheEntry[K, Req, Rsp], retain bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.making, key)
	if !retain || e.handle.cache.ctx.Err() != nil {
		return false
	}
	// Readers use the old map without a lock, so it is replaced and not changed.
	entries := maps.Clone(s.load())
	entries[key] = e
	s.entries.Store(&entries)
	return true
}

// drop removes entries from the shard. An entry that was replaced by another for the same key is
// skipped.
func (s *cacheShard[K, Req, Rsp]) drop(entries []*cacheEntry[K, Req, Rsp]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A copy, because readers use the old map without a lock.
	without := maps.Clone(s.load())
	for _, e := range entries {
		// The key may meanwhile have a newer entry, which stays.
		if without[e.handle.key] == e {
			delete(without, e.handle.key)
		}
	}
	s.entries.Store(&without)
}

// end retires and removes all entries of the shard when the cache has ended. It returns their number.
func (s *cacheShard[K, Req, Rsp]) end() int {
	s.mu.Lock() // a later settle sees that the cache has ended
	entries := slices.Collect(maps.Values(s.load()))
	s.mu.Unlock()
	for _, e := range entries {
		e.Retire()
	}
	s.drop(entries)
	return len(entries)
}

// cacheEntry is the service for one key and the count of its uses: running calls and open responses. It
// also holds what Cache.sweep needs to find out whether it was unused for the idle timeout.
type cacheEntry[K comparable, Req, Rsp any] struct {
	refcount.Count
	handle *cacheHandle[K, Req, Rsp]
	inner  atomic.Pointer[Service[Req, Rsp]] // nil after the entry was retired and its last response ended
	closed atomic.Bool                       // the service returned ErrClosed

	// lastWord and idleStart belong to Cache.sweep, which uses them to find out how long the
	// service was unused.
	lastWord  uint64    // the value of Count.Word at the last sweep that found the entry in use
	idleStart time.Time // the time of that sweep
}

// Data does nothing. The entry itself implements [Observer] for each response, because a separate
// Observer would be an allocation.
func (e *cacheEntry[K, Req, Rsp]) Data(int) {}

// End implements [Observer]. A response through the entry has ended.
func (e *cacheEntry[K, Req, Rsp]) End(error) { e.Done() }

// describe returns the description of the service. It returns nil once the entry is retired and unused.
func (e *cacheEntry[K, Req, Rsp]) describe() *Node {
	inner := e.inner.Load()
	if inner == nil {
		return nil
	}
	return new(Describe(*inner))
}

// recordError reports whether err matches [ErrClosed]. If so, it marks the service as closed, so
// that Cache.sweep drops the entry.
func (e *cacheEntry[K, Req, Rsp]) recordError(err error) bool {
	closed := errors.Is(err, ErrClosed)
	if closed {
		e.closed.Store(true)
	}
	return closed
}

// isOver retires the entry if its service has returned [ErrClosed] or was unused for the duration idle,
// and reports whether it did. Only the sweep calls it.
func (e *cacheEntry[K, Req, Rsp]) isOver(now time.Time, idle time.Duration) bool {
	// Count.Word changes with each use.
	word := e.Word()
	switch {
	case e.closed.Load():
		e.Retire()
		return true
	case word != e.lastWord || e.Open() > 0: // used since the last sweep, or in use now
		e.lastWord, e.idleStart = word, now
		return false
	}
	// RetireUnused fails if a request began since word was read.
	return now.Sub(e.idleStart) >= idle && e.RetireUnused(word)
}

// sweep is the function of the cache's goroutine. At the interval every, it drops the services that
// have returned [ErrClosed] and those that were unused for the idle timeout. When the cache's context
// ends, it drops all services and returns.
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
			// Requests that wait for room try again after each sweep.
			c.freed.Wake()
		// The cache has ended: each entry is retired, and its service ends after its last response.
		case <-c.ctx.Done():
			for i := range c.shards {
				c.release(c.shards[i].end())
			}
			return
		}
	}
}

// sweepShard drops the services of the shard s that are not needed any more.
func (c *Cache[K, Req, Rsp]) sweepShard(s *cacheShard[K, Req, Rsp], now time.Time) {
	var expired []*cacheEntry[K, Req, Rsp]
	for _, e := range s.load() {
		if e.isOver(now, c.policy.IdleTimeout) {
			expired = append(expired, e)
		}
	}
	if len(expired) == 0 {
		return
	}
	s.drop(expired)
	for _, e := range expired {
		// The handle would otherwise keep the dropped service in memory.
		e.handle.last.CompareAndSwap(e, nil)
	}
	c.release(len(expired))
}
