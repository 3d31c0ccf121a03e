package layer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// Failover sends requests to primary, and to fallback once primary has been
// unready for after.
//
// Admission: that of primary, then that of fallback. Rejections of primary
// within after are returned; a [Queue] above waits for it. A closed primary is
// skipped at once. Ready waits for the service that a Call would use now.
// Primary is always asked first, so requests themselves detect its recovery and
// nothing runs in the background. Place a Queue above the Failover and not into
// primary.
//
// Primary counts as unready from its first to its latest rejection, with no
// admission in between.
//
// Cancellation: the context is passed unchanged. A rejection because of the
// caller's context does not count.
//
// Body: not touched.
//
// Errors: passed unchanged. If both services reject a request, the result is an
// [Error] of kind [ErrNotReady] with both causes. It matches [ErrClosed] if
// both do. Its RetryAfter is the shorter one.
//
// Cost: an atomic load while primary is ready; two clock readings and the
// rejection otherwise.
//
// With an after of 0 fallback is used at once.
func Failover[Req, Rsp any](primary, fallback Service[Req, Rsp], after time.Duration, opts ...Option[Rsp]) Service[Req, Rsp] {
	check(primary != nil && fallback != nil, "Failover: nil service")
	checkAtLeast("Failover: after", after, 0)
	return &switched[Req, Rsp]{
		primary: primary, fallback: fallback, after: after,
		target: newOptions(opts).target, begin: time.Now(),
	}
}

type switched[Req, Rsp any] struct {
	primary, fallback Service[Req, Rsp]
	after             time.Duration
	target            string

	// Times are counted from begin.
	begin   time.Time
	since   atomic.Int64 // primary is unready from then on; 0 while it is ready
	refused atomic.Int64 // the last time that it was found so
	fell    atomic.Int64 // requests that fallback admitted
}

func (s *switched[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if s.since.Load() == 0 {
		rsp, err := s.primary.Call(ctx, req)
		if err == nil || !errors.Is(err, ErrNotReady) {
			return rsp, err
		}
		return s.fall(ctx, req, err)
	}
	asked := s.now()
	rsp, err := s.primary.Call(ctx, req)
	if err != nil && errors.Is(err, ErrNotReady) {
		return s.fall(ctx, req, err)
	}
	s.admitted(asked)
	return rsp, err
}

// fall decides on a request that primary has refused.
func (s *switched[Req, Rsp]) fall(ctx context.Context, req Req, refusal error) (Rsp, error) {
	var none Rsp
	if ctx.Err() != nil {
		return none, refusal
	}
	if s.unready() > 0 && !errors.Is(refusal, ErrClosed) {
		return none, refusal
	}
	rsp, err := s.fallback.Call(ctx, req)
	if err != nil && errors.Is(err, ErrNotReady) {
		return none, s.neither(refusal, err)
	}
	s.fell.Add(1)
	return rsp, err
}

// neither is the refusal of both. One of them alone does not close the switch.
func (s *switched[Req, Rsp]) neither(primary, fallback error) error {
	e := &Error{Layer: "switch", Target: s.target, Kind: ErrNotReady, Reason: "neither primary nor fall-back"}
	first, _ := RetryAfter(primary)
	second, _ := RetryAfter(fallback)
	e.RetryAfter = min(first, second)
	if closed := errors.Is(primary, ErrClosed); closed != errors.Is(fallback, ErrClosed) {
		// Only the one that is not closed may be back.
		if e.RetryAfter = first; closed {
			e.RetryAfter = second
		}
		primary, fallback = mapHiddenError{primary, ErrClosed}, mapHiddenError{fallback, ErrClosed}
	}
	e.Err = switchCausesError{errors.Join(primary, fallback)}
	return e
}

// switchCausesError are both refusals. They match what either does, but when it is worth
// trying again is not for one of them to say: the error around them does.
type switchCausesError struct{ both error }

func (c switchCausesError) Error() string        { return c.both.Error() }
func (c switchCausesError) Is(target error) bool { return errors.Is(c.both, target) }

func (c switchCausesError) As(target any) bool {
	_, ours := target.(**Error)
	return !ours && errors.As(c.both, target)
}

// now is never 0, which stands for ready.
func (s *switched[Req, Rsp]) now() int64 { return int64(time.Since(s.begin)) + 1 }

// unready takes down that primary is not ready, and returns how long it may
// still remain so.
func (s *switched[Req, Rsp]) unready() time.Duration {
	now := s.now()
	s.refused.Store(now)
	if s.since.CompareAndSwap(0, now) {
		return s.after
	}
	since := s.since.Load()
	if since == 0 { // ready again, just now
		return s.after
	}
	return s.after - time.Duration(now-since)
}

// admitted takes down that primary was ready after it had been found unready:
// not now, because the response may have taken long, but when it was asked.
func (s *switched[Req, Rsp]) admitted(asked int64) {
	since := s.since.Load()
	switch {
	case since == 0 || since > asked:
	case s.refused.Load() > asked:
		s.since.CompareAndSwap(since, asked)
	default:
		s.since.CompareAndSwap(since, 0)
	}
}

func (s *switched[Req, Rsp]) Describe() Node {
	p, f := Describe(s.primary), Describe(s.fallback)
	state := State{{"after", s.after}, {"fell_back", s.fell.Load()}}
	if since := s.since.Load(); since != 0 {
		state = append(state, Attr{"unready_for", time.Duration(s.now() - since).Round(time.Millisecond)})
	}
	return Node{Name: "switch", State: state, Children: []Node{{Name: "primary", Next: &p}, {Name: "fallback", Next: &f}}}
}

// Ready waits for primary while its time is not over, and from then on for
// whichever of the two is ready first.
func (s *switched[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		err := Poll(s.primary)
		switch {
		case err == nil:
			s.since.Store(0)
			return nil
		case errors.Is(err, ErrClosed):
			return s.fallback.Ready(ctx)
		}
		left := s.unready()
		if left <= 0 {
			return s.either(ctx)
		}
		if ctx.Err() != nil {
			return s.primary.Ready(ctx)
		}
		until, cancel := context.WithTimeoutCause(ctx, left, errSwitchOver)
		err = s.primary.Ready(until)
		cancel()
		switch {
		case err == nil:
			s.since.Store(0)
			return nil
		case errors.Is(err, ErrClosed):
			return s.fallback.Ready(ctx)
		case ctx.Err() != nil && !errors.Is(err, errSwitchOver):
			return err
		}
	}
}

var (
	errSwitchOver = errors.New("primary was unready for too long")
	errSwitchMet  = errors.New("the other one is ready")
)

// either waits for primary or fallback. A service that closed leaves it to the
// other; the error is ErrClosed only if both did.
func (s *switched[Req, Rsp]) either(ctx context.Context) error {
	err := Poll(s.fallback)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, ErrClosed) {
		return s.primary.Ready(ctx)
	}
	until, met := context.WithCancelCause(ctx)
	defer met(nil)
	over := make(chan struct{})
	first := ErrClosed // should its Ready end the goroutine
	go func() {
		defer close(over)
		panicked := panics.Contain(func() { first = s.primary.Ready(until) })
		switch {
		case panicked != nil:
			first = panicked
			met(errSwitchMet)
		case first == nil:
			s.since.Store(0)
			met(errSwitchMet)
		}
	}()
	second := s.fallback.Ready(until)
	if second == nil {
		met(errSwitchMet)
	}
	<-over
	switch {
	case first == nil || second == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(first, ErrClosed):
		return second
	}
	return first
}
