package layer

import "sync"

// limitShard holds those keys of a LimitBy that fall to it.
type limitShard[K comparable] struct {
	mu    sync.Mutex
	slots map[K]*limitSlots[K] // of the keys that are in flight
	spare *limitSlots[K]       // of keys that were, linked by next
	kept  int                  // how many are spare

	_ [64]byte // so that no two shards share a cache line
}

// limitSpares is how many a shard keeps, so that keys that come and go cost no
// allocation.
const limitSpares = 16

// limitSlots are the slots of one key. They are the Observer of every response
// of that key, so that none has to be made for each. When the last one ended
// they may serve another key: an Observer hears End once, and nothing that
// matters afterwards.
type limitSlots[K comparable] struct {
	shard *limitShard[K]
	next  *limitSlots[K]
	key   K
	n     int // in flight; with the shard's mu
}

// take returns a slot of key, or nil if max of them are taken.
func (s *limitShard[K]) take(key K, max int) *limitSlots[K] {
	s.mu.Lock()
	held := s.slots[key]
	if held == nil && max > 0 {
		held = s.fresh()
		held.key = key
		s.slots[key] = held
	}
	if held == nil || held.n >= max {
		s.mu.Unlock()
		return nil
	}
	held.n++
	s.mu.Unlock()
	return held
}

// fresh returns slots without a key. Call it with mu held.
func (s *limitShard[K]) fresh() *limitSlots[K] {
	held := s.spare
	if held == nil {
		return &limitSlots[K]{shard: s}
	}
	s.spare, held.next = held.next, nil
	s.kept--
	return held
}

// count returns how many keys, and requests of them, are in flight.
func (s *limitShard[K]) count() (keys, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, held := range s.slots {
		inFlight += held.n
	}
	return len(s.slots), inFlight
}

func (l *limitSlots[K]) Data(int) {}

// End gives one slot back, and forgets the key with the last one.
func (l *limitSlots[K]) End(error) {
	s := l.shard
	s.mu.Lock()
	if l.n--; l.n == 0 {
		s.forget(l)
	}
	s.mu.Unlock()
}

// forget takes a key out. Call it with mu held.
func (s *limitShard[K]) forget(l *limitSlots[K]) {
	delete(s.slots, l.key)
	var none K
	l.key = none // a string may be large
	if s.kept < limitSpares {
		l.next, s.spare = s.spare, l
		s.kept++
	}
}
