package layer

import (
	"context"
	"errors"

	"github.com/gotower/gotower/internal/panics"
)

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
