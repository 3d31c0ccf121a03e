package layer

import (
	"context"
	"errors"
)

// watchState is one configuration and its service.
type watchState[C, Req, Rsp any] struct {
	cacheLife[Req, Rsp]
	inner    Service[Req, Rsp]
	config   C
	replaced context.Context //nolint:containedctx // ends when another configuration has taken over
	replace  context.CancelFunc
}

// state makes the service of c. Where mk panics, nothing is left of it.
func (w *Reloadable[C, Req, Rsp]) state(c C) *watchState[C, Req, Rsp] {
	s := &watchState[C, Req, Rsp]{config: c}
	s.options = &w.options
	life, end := context.WithCancel(w.ctx)
	s.Ended = end
	made := false
	defer func() {
		if !made {
			end()
		}
	}()
	s.inner = w.mk(life, c)
	made = true
	s.replaced, s.replace = context.WithCancel(context.Background()) //nolint:gosec // retire calls it
	return s
}

// retire lets go of those who wait for s, and of its context when the last
// response ended.
func (s *watchState[C, Req, Rsp]) retire() {
	s.replace()
	s.Retire()
}

// Ready waits for the current inner service, and moves on when that is
// replaced.
func (w *Reloadable[C, Req, Rsp]) Ready(ctx context.Context) error {
	for {
		s := w.current.Load()
		if !s.Begin() {
			if s == w.current.Load() {
				return w.ended()
			}
			continue
		}
		err := s.ready(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil && s.replaced.Err() != nil:
			continue
		case errors.Is(err, ErrClosed):
			return &Error{
				Layer: "watch", Target: w.target, Reason: "closed until the configuration changes: " + err.Error(),
				Err: context.Cause(ctx),
			}
		case errors.Is(err, errWatchReplaced):
			return context.Cause(ctx)
		}
		return err
	}
}

// ready waits for the inner service until s is replaced or ctx is done.
func (s *watchState[C, Req, Rsp]) ready(ctx context.Context) error {
	defer s.Done()
	if ctx.Err() != nil {
		return s.inner.Ready(ctx)
	}
	if err := Poll(s.inner); err == nil {
		return nil
	}
	until, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	stop := context.AfterFunc(s.replaced, func() { leave(errWatchReplaced) })
	defer stop()
	err := s.inner.Ready(until)
	if errors.Is(err, ErrClosed) {
		<-until.Done() // for the next configuration
	}
	return err
}

var (
	errWatchReplaced = errors.New("the configuration was replaced")
	errWatchNothing  = errors.New("there is no service for the configuration")
)

// watchNothing stands where nothing was made.
type watchNothing[Req, Rsp any] struct{ target string }

func (*watchNothing[Req, Rsp]) Ready(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (n *watchNothing[Req, Rsp]) Call(context.Context, Req) (Rsp, error) {
	var none Rsp
	return none, &Error{Layer: "watch", Target: n.target, Kind: ErrNotReady, Err: errWatchNothing}
}

func (*watchNothing[Req, Rsp]) Describe() Node { return Node{Name: "nothing"} }
