package layer

import "context"

// RateLimitBy is a [RateLimit] for each key: perSecond requests a second, and
// up to burst of them at once, for each tenant, client or route.
//
// Admission: as RateLimit. Ready does not know the key of the request to come
// and is inner's. There are places for so many keys. Each new key looks at the
// next eight places, going round, and those whose buckets are full again are
// forgotten: a new bucket is the same. No other key ever is, so none gets more
// than its rate. When all places are taken, and none of those eight is full
// again, the new key is refused. The keys are spread over at most 64 parts by
// their hash, each with its share of the places, rounded up.
//
// Cancellation: a request whose context is done is refused and takes no token.
//
// Body: not touched.
//
// Errors: as RateLimit. One for want of a place says so, with the time until
// one of those buckets is full as its After. A key that is not equal to
// itself, such as a NaN, is refused.
//
// Cost: the key is hashed, a lock of one of the parts, a clock reading. No
// allocation for a key that is known, nor for one that takes the place of
// another.
//
// The buckets are shared by all callers of the service. key is called once for
// each request, before it is admitted; it must not change the request or keep
// it. With a nil key all requests have the same one. perSecond and burst are those
// of RateLimit; keys of 0 or less are 65 536.
func RateLimitBy[K comparable, Req, Rsp any](
	key func(Req) K, perSecond float64, burst, keys int, opts ...Option[Rsp],
) Layer[Req, Rsp] {
	o := newOptions(opts)
	if key == nil {
		key = keyedAlike[K, Req]
	}
	if keys <= 0 {
		keys = 1 << 16
	}
	terms := newRateTerms(perSecond, burst, "rate_by", o.target)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		parts := rateParts(keys)
		l := &rateLimitBy[K, Req, Rsp]{
			Service: next,
			target:  o.target,
			terms:   terms,
			keys:    keys,
			key:     key,
			hash:    newKeyedHash[K](parts),
			shards:  make([]rateShard[K], parts),
			unequal: keyedRefusal("rate_by", o.target),
			refused: tally{to: o.to.LayerRejections.With("layer", "rate_by")},
		}
		for i := range l.shards {
			l.shards[i] = rateShard[K]{terms: terms, target: o.target, room: (keys-1)/parts + 1, index: make(map[K]int)}
		}
		return l
	}
}

// rateParts is the number of shards for so many keys: a power of two, so that
// chance fills none of them much before the others.
func rateParts(keys int) int {
	n := 1
	for n < keyedShards && keys/(2*n) >= 256 {
		n *= 2
	}
	return n
}

type rateLimitBy[K comparable, Req, Rsp any] struct {
	Service[Req, Rsp]
	target  string
	terms   *rateTerms
	keys    int
	key     func(Req) K
	hash    keyedHash[K]
	shards  []rateShard[K]
	unequal *Error // shared by every refusal of such a key
	refused tally
}

func (l *rateLimitBy[K, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if gone(ctx) {
		return none, refuseDone(ctx, "rate_by", l.target)
	}
	key := l.key(req)
	if keyedUnequal(key) {
		l.refused.inc()
		return none, l.unequal
	}
	if refusal := l.shards[l.hash.shard(key)].take(key); refusal != nil {
		l.refused.inc()
		return none, refusal
	}
	return l.Service.Call(ctx, req)
}

func (l *rateLimitBy[K, Req, Rsp]) Next() Service[Req, Rsp] { return l.Service }

func (l *rateLimitBy[K, Req, Rsp]) Describe() Node {
	known := 0
	for i := range l.shards {
		known += l.shards[i].known()
	}
	return Node{Name: "rate_by", State: State{
		{"per_second", l.terms.perSecond}, {"burst", l.terms.burst},
		{"keys", known}, {"max_keys", l.keys}, {"refused", l.refused.n.Load()},
	}}
}
