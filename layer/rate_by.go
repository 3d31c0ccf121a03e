package layer

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gotower/gotower/internal/reqctx"
)

// RateLimitBy is a [RateLimit] for each key. The function key returns the key of a request, for
// example a tenant, a client or a route. The arguments perSecond and burst are the limits of each
// key: the requests per second and the largest burst.
//
// Admission: a request takes a token from the bucket of its key. Ready is forwarded, because the
// key of the next request is unknown. The argument keys is the approximate limit of the number of
// buckets; 0 means 65536. For a new key the layer examines up to eight buckets and removes those
// that are full. If the limit is reached and no bucket can be removed, the request is rejected.
//
// Cancellation: a request is rejected, and takes no token, if its context has ended.
//
// Body: not touched.
//
// Errors: as for RateLimit. If no bucket can be removed, RetryAfter is the time until one
// of the examined buckets is full.
//
// Cost: a hash, the lock of one shard and a clock reading. No allocation.
//
// The function key is called once per request before admission, and must not modify or keep
// the request. It must not return NaN. All callers of the service share the buckets.
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
			rejected: tally{to: o.to.LayerRejections.With("layer", "rate_by")},
		}
		for i := range l.shards {
			l.shards[i] = rateShard[K]{terms: terms, target: o.target, room: (keys-1)/parts + 1, buckets: make(map[K]*rate.Limiter)}
		}
		return l
	}
}

// rateParts returns the number of shards for a layer that keeps the given number of keys.
// It is a power of two, and small enough that the shards fill evenly.
func rateParts(keys int) int {
	n := 1
	for n < keyedShards && keys/(2*n) >= 256 {
		n *= 2
	}
	return n
}

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

func (l *rateLimitBy[K, Req, Rsp]) Describe() Node {
	known := 0
	for i := range l.shards {
		known += l.shards[i].known()
	}
	return Node{Name: "rate_by", State: State{
		{"per_second", l.terms.perSecond}, {"burst", l.terms.burst},
		{"keys", known}, {"max_keys", l.keys}, {"rejected", l.rejected.n.Load()},
	}}
}

// rateShard has the buckets for some of the keys. The hash of a key determines its shard.
type rateShard[K comparable] struct {
	terms  *rateTerms
	target string
	room   int // the largest number of buckets

	mu      sync.Mutex
	buckets map[K]*rate.Limiter
	spare   *rate.Limiter // a full bucket for the next new key, or nil

	_ [64]byte // so that no two shards share a cache line
}

// rateLooks is the number of buckets that are examined for each new key. It is above 1, so
// that full buckets are removed faster than new keys arrive.
const rateLooks = 8

// take takes a token from the bucket of key and returns nil. If that bucket has no token, or no
// bucket can be made for a new key, it returns the rejection. It reads the clock with mu held, as
// the method take of rateLimit does.
func (s *rateShard[K]) take(key K) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	b := s.buckets[key]
	if b == nil {
		soonest := s.removeFull(now)
		if len(s.buckets) >= s.room {
			return &Error{
				Layer: "rate_by", Target: s.target, Kind: errShed, RetryAfter: soonest,
				Reason: "no place for the key, all are taken",
			}
		}
		if b, s.spare = s.spare, nil; b == nil {
			b = s.terms.bucket()
		}
		s.buckets[key] = b
	}
	if !b.AllowN(now, 1) {
		return s.terms.rejection(b, now)
	}
	return nil
}

// removeFull examines up to rateLooks random buckets and removes those that are full,
// because a full bucket equals a new one. It returns the shortest time until another of
// them is full. The caller must hold mu.
func (s *rateShard[K]) removeFull(now time.Time) (soonest time.Duration) {
	soonest = rateNever
	looks := 0
	for key, b := range s.buckets {
		if looks++; looks > rateLooks {
			break
		}
		if full := s.terms.until(float64(s.terms.burst), b, now); full > 0 {
			soonest = min(soonest, full)
		} else {
			delete(s.buckets, key)
			s.spare = b
		}
	}
	return soonest
}

func (s *rateShard[K]) known() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.buckets)
}

// keyedShards is the largest number of shards of a RateLimitBy. Each shard
// has its own lock. The number must be a power of two.
const keyedShards = 64

// keyedHash maps keys to shards by their hash. It panics if a key cannot be compared, such
// as an interface that holds a slice. The panic happens before a lock is taken.
type keyedHash[K comparable] struct {
	seed maphash.Seed
	mask uint64
}

// newKeyedHash returns a keyedHash for n shards. n must be a power of two.
func newKeyedHash[K comparable](n int) keyedHash[K] {
	return keyedHash[K]{maphash.MakeSeed(), uint64(n - 1)}
}

func (h keyedHash[K]) shard(key K) uint64 { return maphash.Comparable(h.seed, key) & h.mask }
