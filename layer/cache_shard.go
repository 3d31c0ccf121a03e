package layer

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// cacheShard is a part of a cache's keys. Its map is copied for every change,
// so that a look-up takes no lock; with many shards the copies stay small.
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

// claim reports whether the caller makes the entry of key and closes making.
// Otherwise the caller waits for making, which is nil if the entry exists.
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

// settle ends the creation of key's entry, and keeps the entry if keep is true
// and the cache has not ended. It reports whether the entry is kept.
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

// drop removes retired entries that no newer entry has replaced.
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

// end retires all entries and returns their number.
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

// cacheEntry is what a cache keeps for a key.
type cacheEntry[K comparable, Req, Rsp any] struct {
	cacheLife[Req, Rsp]
	handle *cacheHandle[K, Req, Rsp]
	inner  atomic.Pointer[Service[Req, Rsp]] // nil after the last response ended
	closed atomic.Bool                       // the service returned ErrClosed

	// Used by the sweeper only.
	seen  uint64 // the use count of the last sweep
	since time.Time
}

// describe returns the node of the service, or nil.
func (e *cacheEntry[K, Req, Rsp]) describe() *Node {
	inner := e.inner.Load()
	if inner == nil {
		return nil
	}
	return new(Describe(*inner))
}

// note records whether err closes the service, and reports it.
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
