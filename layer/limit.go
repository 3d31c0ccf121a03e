package layer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Limit admits at most n requests at a time and rejects others at once. Place a [Queue]
// above it to let requests wait.
//
// Admission: the count is exact under concurrency. Ready waits for a free slot, then for inner.
//
// Cancellation: a request whose context has ended is rejected. The slot of a canceled
// request stays taken until the request ends.
//
// Body: a slot is held until the response ends, see [WithCompletion].
//
// Errors: a rejection is an [Error] of kind [ErrNotReady].
//
// Cost: two atomic operations per request and no allocation. All rejections return the
// same error.
//
// With 0 every request is rejected. A negative n panics. See [LimitBy] for a limit per
// key and [AdaptiveLimit] for a limit that follows the latency.
func Limit[Req, Rsp any](n int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Limit", n, 0)
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &limit[Req, Rsp]{
			Service:  next,
			options:  o,
			max:      int64(n),
			rejected: tally{to: o.to.LayerRejections.With("layer", "limit")},
			full: &Error{
				Layer: "limit", Target: o.target, Kind: errShed,
				Reason: fmt.Sprintf("%d of %[1]d in flight", n),
			},
		}
	}
}

type limit[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	max      int64
	inFlight atomic.Int64
	freed    notify.Broadcast
	full     *Error // returned by every rejection; immutable
	rejected tally
}

func (l *limit[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if err := l.freed.Wait(ctx, l.hasRoom); err != nil {
			return err
		}
		if err := l.Service.Ready(ctx); err != nil {
			return err
		}
		if l.hasRoom() {
			return nil
		}
	}
}

func (l *limit[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "limit", l.target)
	}
	if !l.take() {
		l.rejected.inc()
		return rsp, l.full
	}
	return callUntil(ctx, l.Service, req, &l.options, l)
}

func (l *limit[Req, Rsp]) take() bool {
	for {
		n := l.inFlight.Load()
		if n >= l.max {
			return false
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (l *limit[Req, Rsp]) hasRoom() bool { return l.inFlight.Load() < l.max }

// Data and End implement Observer for every response, so that no response allocates one.
func (l *limit[Req, Rsp]) Data(int) {}

func (l *limit[Req, Rsp]) End(error) {
	l.inFlight.Add(-1)
	l.freed.Wake()
}

func (l *limit[Req, Rsp]) Next() Service[Req, Rsp] { return l.Service }

func (l *limit[Req, Rsp]) Describe() Node {
	state := State{{"in_flight", l.inFlight.Load()}, {"max", l.max}}
	if n := l.rejected.n.Load(); n > 0 {
		state = append(state, Attr{"rejected", n})
	}
	return Node{Name: "limit", State: state}
}

// LimitBy admits at most n requests of each key at a time, and rejects others at once.
// A key may be a tenant, a client or a route.
//
// Admission: the count of each key is exact under concurrency. Ready is forwarded,
// because the key of the next request is unknown.
//
// Cancellation: a request whose context has ended is rejected. The slot of a canceled
// request stays taken until the request ends.
//
// Body: a slot is held until the response ends, see [WithCompletion].
//
// Errors: a rejection is an [Error] of kind [ErrNotReady]. A key that is not
// equal to itself, such as NaN, is rejected.
//
// Cost: a hash and two acquisitions of one of 64 locks, which is not held during
// inner's Call. A key uses memory only while it has requests in flight.
//
// key is called once per request before admission, and must not modify or keep the
// request. With an n of 0 every request is rejected.
func LimitBy[K comparable, Req, Rsp any](key func(Req) K, n int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(key != nil, "LimitBy: nil key function")
	checkAtLeast("LimitBy", n, 0)
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		l := &limitBy[K, Req, Rsp]{
			Service: next,
			options: o,
			key:     key,
			hash:    newKeyedHash[K](keyedShards),
			full: &Error{
				Layer: "limit_by", Target: o.target, Kind: errShed,
				Reason: fmt.Sprintf("%d of %[1]d in flight for the key", n),
			},
			unequal:  rejectUnequalKey("limit_by", o.target),
			max:      n,
			rejected: tally{to: o.to.LayerRejections.With("layer", "limit_by")},
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
	full, unequal *Error // returned by every rejection; immutable
	rejected      tally
	shards        [keyedShards]limitShard[K]
}

func (l *limitBy[K, Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "limit_by", l.target)
	}
	key := l.key(req)
	if isUnequalKey(key) {
		l.rejected.inc()
		return rsp, l.unequal
	}
	held := l.shards[l.hash.shard(key)].take(key, l.max)
	if held == nil {
		l.rejected.inc()
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
		{"keys", keys}, {"in_flight", inFlight}, {"max", l.max}, {"rejected", l.rejected.n.Load()},
	}}
}

// limitShard has the slots of a part of the keys.
type limitShard[K comparable] struct {
	mu    sync.Mutex
	slots map[K]*limitSlots[K] // of keys with requests in flight
	spare *limitSlots[K]       // unused slots, linked by next
	kept  int                  // number of spare slots

	_ [64]byte // so that no two shards share a cache line
}

// limitSpares is the largest number of unused slots that a shard keeps for new keys, to
// avoid allocations.
const limitSpares = 16

// limitSlots has the slots of one key. It is the Observer of all responses of the key,
// so that a response needs no allocation. After the last response ended, it may be
// reused for another key.
type limitSlots[K comparable] struct {
	shard *limitShard[K]
	next  *limitSlots[K]
	key   K
	n     int // requests in flight; guarded by the mutex of the shard
}

// take takes a slot of key. It returns nil if max slots are taken.
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

// fresh returns unused slots. The caller must hold mu.
func (s *limitShard[K]) fresh() *limitSlots[K] {
	held := s.spare
	if held == nil {
		return &limitSlots[K]{shard: s}
	}
	s.spare, held.next = held.next, nil
	s.kept--
	return held
}

// count returns the number of keys and the number of requests in flight.
func (s *limitShard[K]) count() (keys, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, held := range s.slots {
		inFlight += held.n
	}
	return len(s.slots), inFlight
}

func (l *limitSlots[K]) Data(int) {}

// End releases one slot, and removes the key if that was its last one.
func (l *limitSlots[K]) End(error) {
	s := l.shard
	s.mu.Lock()
	if l.n--; l.n == 0 {
		s.forget(l)
	}
	s.mu.Unlock()
}

// forget removes the key of l. The caller must hold mu.
func (s *limitShard[K]) forget(l *limitSlots[K]) {
	delete(s.slots, l.key)
	var zero K
	l.key = zero // a string may be large
	if s.kept < limitSpares {
		l.next, s.spare = s.spare, l
		s.kept++
	}
}
