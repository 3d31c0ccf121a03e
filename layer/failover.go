package layer

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Failover returns a service that sends requests to the service primary. If primary has been
// unready for the duration in the argument after, they go to the service fallback. If this duration
// is 0, they go there as soon as primary rejects a request.
//
// Admission: each request goes to primary first, because that shows when primary has recovered. A
// request that primary rejects goes to fallback if primary has been unready for that duration, or
// if the rejection matches [ErrClosed]. Otherwise the rejection is returned, so that a [Queue]
// above waits. Ready waits for primary during that time, and then for either service.
//
// Cancellation: if primary rejects a request because the caller's context ended, primary
// does not count as unready.
//
// Body: not touched.
//
// Errors: passed unchanged. If both services reject a request, the result is an [Error] of kind
// [ErrNotReady]. Its cause is the rejection by primary. If that rejection matches [ErrClosed], the
// cause is the rejection by fallback instead.
//
// Cost: an atomic load while primary is ready; otherwise two clock readings and a rejection. A nil
// service or a negative duration panics.
func Failover[Req, Rsp any](primary, fallback Service[Req, Rsp], after time.Duration, opts ...Option[Rsp]) Service[Req, Rsp] {
	check(primary != nil && fallback != nil, "Failover: nil service")
	checkAtLeast("Failover: after", after, 0)
	return &failover[Req, Rsp]{
		primary: primary, fallback: fallback, after: after,
		target: newOptions(opts).target, begin: time.Now(),
	}
}

// failoverPoll is the interval at which Ready polls fallback while primary is not ready.
const failoverPoll = 50 * time.Millisecond

type failover[Req, Rsp any] struct {
	primary, fallback Service[Req, Rsp]
	after             time.Duration
	target            string

	begin    time.Time
	since    atomic.Int64 // when primary became unready, in ns after begin; 0 while it is ready
	fellBack atomic.Int64 // requests that fallback admitted
}

func (s *failover[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		err := Poll(s.primary)
		if err == nil {
			s.since.Store(0)
			return nil
		}
		if errors.Is(err, ErrClosed) {
			return s.fallback.Ready(ctx)
		}
		wait := s.unready()
		if wait <= 0 {
			if Poll(s.fallback) == nil {
				return nil
			}
			wait = failoverPoll
		}
		if ctx.Err() != nil {
			return s.primary.Ready(ctx)
		}
		until, cancel := context.WithTimeout(ctx, wait)
		_ = s.primary.Ready(until) // the next Poll decides
		cancel()
	}
}

func (s *failover[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var started int64
	if s.since.Load() != 0 {
		started = s.now()
	}
	rsp, err := s.primary.Call(ctx, req)
	if err != nil && errors.Is(err, ErrNotReady) {
		return s.callFallback(ctx, req, err)
	}
	// The response proves that primary was ready when the request started, which may be
	// long ago.
	if since := s.since.Load(); since != 0 && since <= started {
		s.since.CompareAndSwap(since, 0)
	}
	return rsp, err
}

// callFallback sends req to fallback, because primary has rejected it with the error in the
// argument rejection. It returns this error instead if ctx has ended. It also does so if primary
// has been unready for less than the time s.after, unless the error matches ErrClosed.
func (s *failover[Req, Rsp]) callFallback(ctx context.Context, req Req, rejection error) (Rsp, error) {
	var zero Rsp
	if ctx.Err() != nil {
		return zero, rejection
	}
	closed := errors.Is(rejection, ErrClosed)
	if s.unready() > 0 && !closed {
		return zero, rejection
	}
	rsp, err := s.fallback.Call(ctx, req)
	if err == nil || !errors.Is(err, ErrNotReady) {
		s.fellBack.Add(1)
		return rsp, err
	}
	if closed {
		rejection = err
	}
	return zero, &Error{
		Layer: "failover", Target: s.target, Kind: ErrNotReady,
		Reason: "neither primary nor fallback is ready", Err: rejection,
	}
}

// now returns the time since s.begin in nanoseconds, plus 1. The result is never 0, because
// 0 in the field since means that primary is ready.
func (s *failover[Req, Rsp]) now() int64 { return int64(time.Since(s.begin)) + 1 }

// unready records that primary is not ready now. It returns the time to wait until requests may go
// to fallback. The result is 0 or negative if they may go there now.
func (s *failover[Req, Rsp]) unready() time.Duration {
	now := s.now()
	s.since.CompareAndSwap(0, now)
	return s.after - time.Duration(now-cmp.Or(s.since.Load(), now))
}

func (s *failover[Req, Rsp]) Describe() Node {
	p, f := Describe(s.primary), Describe(s.fallback)
	state := State{{"after", s.after}, {"fell_back", s.fellBack.Load()}}
	if since := s.since.Load(); since != 0 {
		state = append(state, Attr{"unready_for", time.Duration(s.now() - since).Round(time.Millisecond)})
	}
	return Node{Name: "failover", State: state, Children: []Node{{Name: "primary", Next: &p}, {Name: "fallback", Next: &f}}}
}
