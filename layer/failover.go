package layer

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Failover sends requests to primary, and to fallback once primary has been
// unready for after.
//
// Admission: that of primary, then that of fallback. Rejections of primary
// within after are returned; a [Queue] above waits for it. A closed primary is
// skipped at once. Ready waits for primary, and for fallback too once after is
// over; it then polls fallback every 50 ms. Primary is always asked first, so
// requests detect its recovery. Place a Queue above the Failover and not into
// primary.
//
// Cancellation: the context is passed unchanged. A rejection because of the
// caller's context does not count.
//
// Body: not touched.
//
// Errors: passed unchanged. If both services reject a request, the result is an
// [Error] of kind [ErrNotReady]. Its cause is the rejection of primary, or that
// of fallback if primary is closed.
//
// Cost: an atomic load while primary is ready; two clock readings and the
// rejection otherwise.
//
// With an after of 0 fallback is used at once.
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
	since    atomic.Int64 // when primary became unready, from begin; 0 while it is ready
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
	// A response may take long. It proves that primary was ready when the request
	// started.
	if since := s.since.Load(); since != 0 && since <= started {
		s.since.CompareAndSwap(since, 0)
	}
	return rsp, err
}

// callFallback decides on a request that primary rejected.
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

// now returns the time since begin. It is never 0, which means ready.
func (s *failover[Req, Rsp]) now() int64 { return int64(time.Since(s.begin)) + 1 }

// unready records that primary is not ready, and returns the rest of after.
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
