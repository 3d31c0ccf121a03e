package profiles

import (
	"context"
	"errors"
	"sync"

	"github.com/gotower/gotower/layer"
)

// Ready waits until one of the profile's targets is ready. It cannot know the
// route of the next request, so it says nothing of per-route stacks. It
// returns an error that matches [layer.ErrClosed] when every target does and no
// other profile will come.
func (r *Router[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		s := r.current.Load()
		if err := s.poll(); err == nil || errors.Is(err, layer.ErrClosed) && r.isOver() {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.ready(ctx, r.over); !errors.Is(err, errReplaced) {
			return err
		}
	}
}

// errReplaced tells Ready to look at the profile that is in force by now.
var errReplaced = errors.New("profile replaced")

// poll returns nil if a part is ready, an error that matches ErrClosed if all
// are closed, and another one otherwise.
func (s *snapshot[Req, Rsp]) poll() error {
	answer := layer.ErrNotReady // without parts: the profile is still waited for
	for i := range s.split.parts {
		err := layer.Poll(s.split.parts[i].svc)
		if err == nil {
			return nil
		}
		if i == 0 || !errors.Is(err, layer.ErrClosed) {
			answer = err
		}
	}
	return answer
}

// ready waits until a part is ready, all are closed for good, which they are once
// it is over, ctx is done or the profile is replaced. A goroutine waits for each
// part; all have ended when ready returns.
func (s *snapshot[Req, Rsp]) ready(ctx context.Context, over <-chan struct{}) error {
	waiting, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	parts := s.split.parts
	answers := make(chan error, len(parts))
	for i := range parts {
		group.Go(func() { answers <- parts[i].svc.Ready(waiting) })
	}
	var closed error
	var end <-chan struct{} // over, once all are closed
	for left := len(parts); ; {
		select {
		case err := <-answers:
			if !errors.Is(err, layer.ErrClosed) {
				return err
			}
			if left--; left == 0 {
				closed, end = err, over
			}
		case <-end:
			return closed
		case <-s.replaced:
			return errReplaced
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
