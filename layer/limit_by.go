package layer

import (
	"context"
	"fmt"
)

// LimitBy admits at most n requests of each key at a time and refuses the rest
// at once: a limit for each tenant, client or route.
//
// Admission: exact for every key under any number of callers. Ready does not
// know the key of the request to come and is inner's.
//
// Cancellation: a request whose context is done is refused; one in flight
// keeps its slot until it ended.
//
// Body: a slot is held until the response ended, see [WithCompletion].
//
// Errors: a refusal is an [Error] of kind [ErrNotReady]. A key that is not
// equal to itself, such as a NaN, is refused.
//
// Cost: the key is hashed, and one of 64 locks taken twice, never during
// inner's Call. The memory is that of the keys in flight: a key is forgotten
// with its last request. No allocation for a key that is in flight already,
// nor, as a rule, for one that takes the place of another.
//
// key is called once for each request, before it is admitted; it must not
// change the request or keep it. With a nil key all requests have the same one. An
// n of 0 or less admits nothing.
func LimitBy[K comparable, Req, Rsp any](key func(Req) K, n int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	if key == nil {
		key = keyedAlike[K, Req]
	}
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		l := &limitBy[K, Req, Rsp]{
			Service: next,
			options: o,
			key:     key,
			hash:    newKeyedHash[K](keyedShards),
			full: &Error{
				Layer: "limit_by", Target: o.target, Kind: errShed,
				Reason: fmt.Sprintf("%d of %[1]d in flight for the key", max(n, 0)),
			},
			unequal: keyedRefusal("limit_by", o.target),
			max:     max(n, 0),
			refused: tally{to: o.to.LayerRejections.With("layer", "limit_by")},
		}
		for i := range l.shards {
			l.shards[i].slots = make(map[K]*limitSlots[K])
		}
		return l
	}
}

type limitBy[K comparable, Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	key           func(Req) K
	max           int
	hash          keyedHash[K]
	full, unequal *Error // shared by every refusal; never changed
	refused       tally
	shards        [keyedShards]limitShard[K]
}

func (l *limitBy[K, Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if gone(ctx) {
		return rsp, refuseDone(ctx, "limit_by", l.target)
	}
	key := l.key(req)
	if keyedUnequal(key) {
		l.refused.inc()
		return rsp, l.unequal
	}
	held := l.shards[l.hash.shard(key)].take(key, l.max)
	if held == nil {
		l.refused.inc()
		return rsp, l.full
	}
	return callUntil(ctx, l.Service, req, &l.options, held)
}

func (l *limitBy[K, Req, Rsp]) Next() Service[Req, Rsp] { return l.Service }

func (l *limitBy[K, Req, Rsp]) Describe() Node {
	keys, inFlight := 0, 0
	for i := range l.shards {
		k, n := l.shards[i].count()
		keys, inFlight = keys+k, inFlight+n
	}
	return Node{Name: "limit_by", State: State{
		{"keys", keys}, {"in_flight", inFlight}, {"max", l.max}, {"refused", l.refused.n.Load()},
	}}
}
