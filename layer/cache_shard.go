package layer

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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

// claim returns whether the caller is to make key's entry and then to close
// making, or else what to wait for: nothing if the entry is there already.
func (s *cacheShard[K, Req, Rsp]) claim(c *Cache[K, Req, Rsp], key K) (making chan struct{}, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, false, c.refuseEnded(key)
	}
	if e := s.find(key); e != nil && !e.IsGone() {
		return nil, false, nil
	}
	if making := s.making[key]; making != nil {
		return making, false, nil
	}
	if !c.reserve() {
		return nil, false, c.refuseFull(key)
	}
	making = make(chan struct{})
	s.making[key] = making
	return making, true, nil
}

// settle ends the making of key's entry, and keeps it if keep is true and the
// cache goes on. It reports whether it is kept.
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

// drop forgets entries that are gone, where no newer one has taken the place.
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

// end retires everything for good, and returns how many entries that were.
func (s *cacheShard[K, Req, Rsp]) end() int {
	s.mu.Lock() // what is settled after this sees that the cache has ended
	over := slices.Collect(maps.Values(s.all()))
	s.mu.Unlock()
	for _, e := range over {
		e.Retire()
	}
	s.drop(over)
	return len(over)
}
