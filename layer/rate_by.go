package layer

import (
	"container/list"
	"context"
	"hash/maphash"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gotower/gotower/internal/reqctx"
)

// RateLimitBy is a [RateLimit] for each key. key returns a request's key, for example its tenant,
// client or route. Each key gets its own limit of perSecond requests per second, with bursts of up
// to burst.
//
// Admission: a request takes a token from its key's bucket. Ready is forwarded, because the next
// request's key is unknown. keys limits the number of buckets approximately; 0 means 65536. At the
// limit, a new key replaces the least recently used one, which starts with a full bucket when it is
// used again.
//
// Cancellation: a request is rejected, and takes no token, if its context has ended.
//
// Body: not touched.
//
// Errors: as for RateLimit.
//
// Cost: a hash, one shard's lock and a clock reading. There is no allocation for a known key.
//
// key is called once per request before admission, and must not modify or keep the request. It must
// not return NaN. All callers of the service share the buckets.
//
// The compiler cannot infer Rsp from key, so you have to write all three types: the key, the
// request and the response.
func RateLimitBy[K comparable, Req, Rsp any](
	key func(Req) K, perSecond float64, burst, keys int, opts ...Option[Rsp],
) Layer[Req, Rsp] {
	check(key != nil, "RateLimitBy: nil key function")
	checkAtLeast("RateLimitBy: rate", perSecond, 0)
	checkAtLeast("RateLimitBy: burst", burst, 0)
	checkAtLeast("RateLimitBy: keys", keys, 0)
	o := newOptions(opts)
	if keys == 0 {
		keys = 1 << 16
	}
	// All buckets share the terms, in particular the prepared rejections.
	terms := newRateTerms(perSecond, burst, "rate_by", o.target)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		parts := rateParts(keys)
		l := &rateLimitBy[K, Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			target:   o.target,
			terms:    terms,
			keys:     keys,
			key:      key,
			hash:     newKeyedHash[K](parts),
			shards:   make([]rateShard[K], parts),
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "rate_by")},
		}
		for i := range l.shards {
			// Rounded up, so that all shards together have room for keys.
			l.shards[i] = rateShard[K]{terms: terms, room: (keys-1)/parts + 1, buckets: make(map[K]*list.Element)}
		}
		return l
	}
}

// rateParts returns how many shards a layer with the given number of keys uses: a power of two, but at
// least 256 keys per shard, so that all shards fill about evenly.
func rateParts(keys int) int {
	// Doubling keeps the number a power of two, which keyedHash needs.
	n := 1
	for n < keyedShards && keys/(2*n) >= 256 {
		n *= 2
	}
	return n
}

// rateLimitBy is the service of [RateLimitBy].
type rateLimitBy[K comparable, Req, Rsp any] struct {
	wrapper[Req, Rsp]
	target   string
	terms    *rateTerms
	keys     int
	key      func(Req) K
	hash     keyedHash[K]
	shards   []rateShard[K]
	rejected tally
}

// Call takes a token of the request's key and sends req. Without a token it rejects the request.
func (l *rateLimitBy[K, Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "rate_by", l.target)
	}
	key := l.key(req)
	if rejection := l.shards[l.hash.shard(key)].take(key); rejection != nil {
		l.rejected.inc()
		return rsp, rejection
	}
	return l.Service.Call(ctx, req)
}

// Describe returns the limits, and the numbers of keys and rejected requests.
func (l *rateLimitBy[K, Req, Rsp]) Describe() Node {
	count := 0
	for i := range l.shards {
		count += l.shards[i].size()
	}
	return Node{Name: "rate_by", State: State{
		{"per_second", l.terms.perSecond}, {"burst", l.terms.burst},
		{"keys", count}, {"max_keys", l.keys}, {"rejected", l.rejected.n.Load()},
	}}
}

// rateShard holds the buckets for some of the keys. A key's hash determines its shard.
type rateShard[K comparable] struct {
	terms *rateTerms
	room  int // the largest number of buckets

	mu      sync.Mutex
	buckets map[K]*list.Element // of *rateBucket[K], the elements of recent
	recent  list.List           // the buckets, the last used one at the front

	_ [64]byte // so that no two shards share a cache line
}

// rateBucket is the token bucket of a key.
type rateBucket[K comparable] struct {
	*rate.Limiter
	key K
}

// rateLooks is the largest number of full buckets that are removed for each new key. It is above 1,
// so that full buckets are removed faster than new keys arrive.
const rateLooks = 8

// take takes a token from key's bucket and returns nil, or returns the rejection if there is none. It
// reads the clock with mu held; see rateLimit.take.
func (s *rateShard[K]) take(key K) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	e := s.buckets[key]
	if e == nil {
		e = s.add(key, now)
	} else {
		// The bucket is in use, so that it is the last one to be dropped.
		s.recent.MoveToFront(e)
	}
	// The list holds only this type.
	if b := e.Value.(*rateBucket[K]); !b.AllowN(now, 1) {
		return s.terms.rejection(b.Limiter, now)
	}
	return nil
}

// add adds a bucket for a new key. It first removes some of the buckets that were not used for the
// longest time, if they are full, because a full bucket is as good as none. If there is still no room,
// it removes the oldest one even if it is not full. The caller must hold mu.
func (s *rateShard[K]) add(key K, now time.Time) *list.Element {
	var spare *rateBucket[K]
	for range rateLooks {
		oldest := s.recent.Back()
		// A bucket is full if it need not wait for burst tokens.
		if oldest == nil || s.terms.waitFor(float64(s.terms.burst), oldest.Value.(*rateBucket[K]).Limiter, now) > 0 {
			break
		}
		spare = s.remove(oldest) // reused below, which saves an allocation
	}
	if len(s.buckets) >= s.room {
		s.remove(s.recent.Back())
	}
	if spare == nil {
		spare = &rateBucket[K]{Limiter: s.terms.bucket()}
	}
	spare.key = key
	e := s.recent.PushFront(spare)
	s.buckets[key] = e
	return e
}

// remove removes the bucket in the list element e and returns it. The caller must hold mu.
func (s *rateShard[K]) remove(e *list.Element) *rateBucket[K] {
	b := s.recent.Remove(e).(*rateBucket[K])
	delete(s.buckets, b.key)
	return b
}

// size returns the number of keys with a bucket.
func (s *rateShard[K]) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.buckets)
}

// keyedShards is the largest number of shards in a RateLimitBy, each with its own lock. It must
// be a power of two.
const keyedShards = 64

// keyedHash chooses the shard of a key by its hash. It panics if a key cannot be compared, such as an
// interface that holds a slice; that happens before a lock is taken.
type keyedHash[K comparable] struct {
	seed maphash.Seed
	mask uint64
}

// newKeyedHash returns a keyedHash for n shards. n must be a power of two.
func newKeyedHash[K comparable](n int) keyedHash[K] {
	return keyedHash[K]{maphash.MakeSeed(), uint64(n - 1)}
}

// shard returns the index of key's shard.
func (h keyedHash[K]) shard(key K) uint64 { return maphash.Comparable(h.seed, key) & h.mask }
