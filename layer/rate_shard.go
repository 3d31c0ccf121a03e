package layer

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rateShard holds the buckets of those keys of a RateLimitBy that fall to it,
// in room places. A hand goes round the places, as in the clock algorithm of
// page replacement: with each new key it looks at the next few and forgets the
// keys whose buckets are full.
type rateShard[K comparable] struct {
	terms  *rateTerms
	target string
	room   int

	mu     sync.Mutex
	index  map[K]int // in places
	places []ratePlace[K]
	free   []int // places without a key, their buckets full
	hand   int

	_ [64]byte // so that no two shards share a cache line
}

type ratePlace[K comparable] struct {
	key    K
	taken  bool
	bucket *rate.Limiter // of this place for ever: a full one is as good as new
}

// rateLooks is how many places the hand passes for each new key. More than one
// and those to forget become fewer, however many keys come.
const rateLooks = 8

// take takes a token of key, or says why not. For the clock see
// [rateLimit.take].
func (s *rateShard[K]) take(key K) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	at, ok := s.index[key]
	if !ok {
		soonest := s.forget(now)
		if at, ok = s.place(key); !ok {
			return &Error{
				Layer: "rate_by", Target: s.target, Kind: errShed, RetryAfter: soonest,
				Reason: "no place for the key, all are taken",
			}
		}
	}
	if b := s.places[at].bucket; !b.AllowN(now, 1) {
		return s.terms.refusal(b, now)
	}
	return nil
}

// forget moves the hand on, and returns how long it takes until a key that it
// passed could be forgotten.
func (s *rateShard[K]) forget(now time.Time) (soonest time.Duration) {
	soonest = rateNever
	for range min(rateLooks, len(s.places)) {
		at := s.hand
		s.hand = (at + 1) % len(s.places)
		p := &s.places[at]
		if !p.taken {
			continue
		}
		if full := s.terms.until(float64(s.terms.burst), p.bucket, now); full > 0 {
			soonest = min(soonest, full)
			continue
		}
		delete(s.index, p.key)
		*p = ratePlace[K]{bucket: p.bucket}
		s.free = append(s.free, at)
	}
	return soonest
}

// place finds one for a new key.
func (s *rateShard[K]) place(key K) (at int, ok bool) {
	switch last := len(s.free) - 1; {
	case last >= 0:
		at, s.free = s.free[last], s.free[:last]
	case len(s.places) < s.room:
		at = len(s.places)
		s.places = append(s.places, ratePlace[K]{bucket: s.terms.bucket()})
	default:
		return 0, false
	}
	s.places[at].key, s.places[at].taken = key, true
	s.index[key] = at
	return at, true
}

func (s *rateShard[K]) known() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.index)
}
