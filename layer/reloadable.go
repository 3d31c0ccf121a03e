package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Reloadable is a service whose inner service is made of a configuration, and made
// anew when that changes. Each request is served by one configuration from its
// beginning to its end: those in flight finish on the old one.
//
// What is to survive a change (a balancer with its connections, a breaker, a
// limit with what is in flight) is made once, outside of mk; each service that
// mk makes stands on it, and only what a configuration decides is made anew:
//
//	w := layer.NewReloadable(ctx, initial, func(_ context.Context, c Config) layer.Service[Req, Rsp] {
//		return layer.NewStack[Req, Rsp]().Timeout(c.Timeout).Service(balancer)
//	})
//	for c := range changes {
//		err := w.Set(c)
//		...
//	}
//
// Admission: that of the current inner service. Those who wait in Ready move
// over to the new one at once.
//
// Cancellation: the context is passed as it is.
//
// Body: a configuration lives until the last of its responses ended, see
// [WithCompletion].
//
// Errors: passed as they are, but for [ErrClosed]: the next configuration may
// be served, so that a request which inner refuses for good is only not
// admitted now. A Watch is closed when its context has ended.
//
// Cost: an atomic load and two atomic additions; no allocation but for the
// body's Observer.
type Reloadable[C, Req, Rsp any] struct {
	options[Rsp]
	mk      func(context.Context, C) Service[Req, Rsp]
	equal   func(C, C) bool
	ctx     context.Context //nolint:containedctx // the parent of every configuration's own
	current atomic.Pointer[watchState[C, Req, Rsp]]
	changes atomic.Int64

	setting sync.Mutex
}

// NewReloadable returns a service that is what mk makes of initial, until
// [Reloadable.Set] changes it. mk should return at once, like every [MakeService]. Its
// context ends when the configuration was replaced and its last response
// ended, or when ctx ends. After that all calls are refused with an error that
// matches [ErrClosed].
//
// Where mk returns nil for initial, there is no service yet: requests are
// refused with an error that matches [ErrNotReady].
func NewReloadable[C comparable, Req, Rsp any](
	ctx context.Context, initial C, mk func(ctx context.Context, c C) Service[Req, Rsp], opts ...Option[Rsp],
) *Reloadable[C, Req, Rsp] {
	return NewReloadableFunc(ctx, initial, func(a, b C) bool { return a == b }, mk, opts...)
}

// NewReloadableFunc is [NewReloadable] for configurations that == does not compare. A
// nil equal takes every configuration for a new one.
func NewReloadableFunc[C, Req, Rsp any](
	ctx context.Context, initial C, equal func(a, b C) bool,
	mk func(ctx context.Context, c C) Service[Req, Rsp], opts ...Option[Rsp],
) *Reloadable[C, Req, Rsp] {
	check(mk != nil, "NewReloadable: nil function")
	if equal == nil {
		equal = func(C, C) bool { return false }
	}
	w := &Reloadable[C, Req, Rsp]{options: newOptions(opts), mk: mk, equal: equal, ctx: ctx}
	s := w.state(initial)
	if s.inner == nil {
		s.inner = &watchNothing[Req, Rsp]{w.target}
	}
	w.current.Store(s)
	context.AfterFunc(ctx, func() {
		w.setting.Lock()
		defer w.setting.Unlock()
		w.current.Load().retire()
	})
	return w
}

// Set makes the service of c and serves with it from now on, unless c is equal
// to the current configuration. Where mk panics or returns nil, what was there
// stays; for nil there is an error. It returns an error that matches
// [ErrClosed] when the context of w has ended.
//
// Set may be called at any time, but not by mk; calls take their turns. It
// waits for mk, and for no request.
func (w *Reloadable[C, Req, Rsp]) Set(c C) error {
	w.setting.Lock()
	defer w.setting.Unlock()
	if w.ctx.Err() != nil {
		return w.ended()
	}
	old := w.current.Load()
	if w.equal(old.config, c) {
		return nil
	}
	s := w.state(c)
	if s.inner == nil {
		s.Ended()
		return &Error{Layer: "watch", Target: w.target, Err: errWatchNothing}
	}
	w.current.Store(s) // first: whoever finds the old one gone finds this one
	w.changes.Add(1)
	old.retire()
	return nil
}

// Config returns the current configuration.
func (w *Reloadable[C, Req, Rsp]) Config() C { return w.current.Load().config }

// Call serves req with the current configuration.
func (w *Reloadable[C, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	for {
		s := w.current.Load()
		if s.Begin() {
			rsp, err := s.call(ctx, s.inner, req)
			if err != nil && errors.Is(err, ErrClosed) {
				err = w.refuseClosed(err)
			}
			return rsp, err
		}
		// Replaced just now, or the end.
		if s == w.current.Load() {
			var none Rsp
			return none, w.ended()
		}
	}
}

func (w *Reloadable[C, Req, Rsp]) ended() error {
	return &Error{
		Layer: "watch", Target: w.target, Kind: ErrClosed,
		Reason: "its context has ended", Err: context.Cause(w.ctx),
	}
}

// refuseClosed takes what closed the current service for what it is to those
// above.
func (w *Reloadable[C, Req, Rsp]) refuseClosed(err error) error {
	return &Error{
		Layer: "watch", Target: w.target, Kind: ErrNotReady,
		Reason: "closed until the configuration changes", Err: mapHiddenError{err, ErrClosed},
	}
}

// Describe shows the current service. It does not show the configuration,
// which may hold what is not for everybody.
func (w *Reloadable[C, Req, Rsp]) Describe() Node {
	s := w.current.Load()
	next := Describe(s.inner)
	return Node{
		Name:  "watch",
		State: State{{"changes", w.changes.Load()}, {"open", s.Open()}},
		Next:  &next,
	}
}

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
