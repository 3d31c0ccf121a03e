package layer

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// cacheShard has a part of the keys of a cache. A look-up takes no lock, because every
// change copies the map. The copies are small, because there are many shards.
type cacheShard[K comparable, Req, Rsp any] struct {
	made atomic.Pointer[map[K]*cacheEntry[K, Req, Rsp]]

	mu     sync.Mutex
	making map[K]chan struct{} // closed when the key's entry is made
}

func (s *cacheShard[K, Req, Rsp]) init() {
	s.made.Store(&map[K]*cacheEntry[K, Req, Rsp]{})
	s.making = make(map[K]chan struct{})
}

func (s *cacheShard[K, Req, Rsp]) find(key K) *cacheEntry[K, Req, Rsp] { return (*s.made.Load())[key] }

func (s *cacheShard[K, Req, Rsp]) all() map[K]*cacheEntry[K, Req, Rsp] { return *s.made.Load() }

// claim decides whether the caller makes the entry of key. If mine is true, the caller
// must make it and close making. Otherwise the caller waits for making, which is nil if
// the entry exists.
func (s *cacheShard[K, Req, Rsp]) claim(c *Cache[K, Req, Rsp], key K) (making chan struct{}, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, false, c.rejectEnded(key)
	}
	if e := s.find(key); e != nil && !e.IsGone() {
		return nil, false, nil
	}
	if making := s.making[key]; making != nil {
		return making, false, nil
	}
	if !c.reserve() {
		return nil, false, c.rejectFull(key)
	}
	making = make(chan struct{})
	s.making[key] = making
	return making, true, nil
}

// settle ends the creation of an entry. It adds the entry if keep is true and the cache
// has not ended, and reports whether it did.
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

// drop removes the entries over, except those that a newer entry has replaced.
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

// end retires and removes all entries and returns their number.
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

// cacheEntry is the service of one key with the state that the sweeper needs.
type cacheEntry[K comparable, Req, Rsp any] struct {
	cacheLife[Req, Rsp]
	handle *cacheHandle[K, Req, Rsp]
	inner  atomic.Pointer[Service[Req, Rsp]] // nil after the last response ended
	closed atomic.Bool                       // the service returned ErrClosed

	// Only the sweeper uses these.
	seen  uint64    // the state of the use count at the last change
	since time.Time // when seen changed
}

// describe returns the node of the service, or nil.
func (e *cacheEntry[K, Req, Rsp]) describe() *Node {
	inner := e.inner.Load()
	if inner == nil {
		return nil
	}
	return new(Describe(*inner))
}

// note records and reports whether err means that the service is closed.
func (e *cacheEntry[K, Req, Rsp]) note(err error) bool {
	closed := errors.Is(err, ErrClosed)
	if closed {
		e.closed.Store(true)
	}
	return closed
}

// isOver retires the entry if it is closed or idle, and reports whether it did.
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

// sweep drops idle entries until the cache ends.
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
