package layer

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Failover sends requests to primary. When primary has not been ready for the duration
// after, it sends them to fallback; if after is 0, at once.
//
// Admission: primary decides first, so that requests detect its recovery. Before the
// duration has passed, a rejection by primary is returned, and a [Queue] above waits.
// Later, or at once if primary is closed, fallback decides. Ready waits for primary.
// When the duration has passed, it waits for either service, and polls fallback every
// 50 ms.
//
// Cancellation: the context is passed unchanged. A rejection after the caller's context
// ended does not count.
//
// Body: not touched.
//
// Errors: passed unchanged. If both services reject a request, the result is an
// [Error] of kind [ErrNotReady]. Its cause is the rejection of primary, or that
// of fallback if primary is closed.
//
// Cost: an atomic load while primary is ready; two clock readings and the rejection otherwise.
//
// It panics if a service is nil or after is negative.
func Failover[Req, Rsp any](primary, fallback Service[Req, Rsp], after time.Duration, opts ...Option[Rsp]) Service[Req, Rsp] {
	check(primary != nil && fallback != nil, "Failover: nil service")
	checkAtLeast("Failover: after", after, 0)
	return &failover[Req, Rsp]{
		primary: primary, fallback: fallback, after: after,
		target: newOptions(opts).target, begin: time.Now(),
	}
}

// failoverPoll is the interval at which Ready polls fallback.
const failoverPoll = 50 * time.Millisecond

type failover[Req, Rsp any] struct {
	primary, fallback Service[Req, Rsp]
	after             time.Duration
	target            string

	begin    time.Time
	since    atomic.Int64 // when primary became unready, relative to begin; 0 while it is ready
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

// callFallback sends a request that primary rejected to fallback, or returns rejection.
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

// now returns the time since begin. It never returns 0, because 0 means ready.
func (s *failover[Req, Rsp]) now() int64 { return int64(time.Since(s.begin)) + 1 }

// unready records that primary is not ready. It returns the remaining time until
// fallback is used.
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
