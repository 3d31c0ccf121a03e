package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Reloadable is a service that is made from a configuration, and made again when the
// configuration changes. Each request is served by one configuration. Requests in
// flight finish with the old one.
//
// Parts that must survive a change, such as a balancer with its connections or a limit,
// are made outside of mk:
//
//	w := layer.NewReloadable(ctx, initial, func(_ context.Context, c Config) layer.Service[Req, Rsp] {
//		return layer.NewStack[Req, Rsp]().Timeout(c.Timeout).Service(balancer)
//	})
//	for c := range changes {
//		err := w.Set(c)
//		...
//	}
//
// Admission: the current service decides. A waiting call of Ready continues with the
// new service at once.
//
// Cancellation: the context is passed unchanged.
//
// Body: the context of a configuration ends when its last response has ended, see
// [WithCompletion].
//
// Errors: passed unchanged except [ErrClosed], which becomes [ErrNotReady], because the next
// configuration may work. After the end of its context a Reloadable returns ErrClosed.
//
// Cost: an atomic load and two atomic additions.
type Reloadable[C comparable, Req, Rsp any] struct {
	options[Rsp]
	mk      func(context.Context, C) Service[Req, Rsp]
	ctx     context.Context //nolint:containedctx // the parent of the contexts of all configurations
	current atomic.Pointer[reloadableState[C, Req, Rsp]]
	changes atomic.Int64

	setting sync.Mutex
}

// NewReloadable returns a service that mk makes from initial, until [Reloadable.Set]
// replaces it. mk should return at once, like every [MakeService]. The context given to
// mk ends when the configuration was replaced and its last response ended, or when ctx
// ends. After the end of ctx, calls are rejected with [ErrClosed].
//
// If mk returns nil for initial, requests are rejected with [ErrNotReady].
func NewReloadable[C comparable, Req, Rsp any](
	ctx context.Context, initial C, mk func(ctx context.Context, c C) Service[Req, Rsp], opts ...Option[Rsp],
) *Reloadable[C, Req, Rsp] {
	check(mk != nil, "NewReloadable: nil function")
	w := &Reloadable[C, Req, Rsp]{options: newOptions(opts), mk: mk, ctx: ctx}
	s := w.state(initial)
	if s.inner == nil {
		s.inner = &nilReloadable[Req, Rsp]{w.target}
	}
	w.current.Store(s)
	context.AfterFunc(ctx, func() {
		w.setting.Lock()
		defer w.setting.Unlock()
		w.current.Load().retire()
	})
	return w
}

// Set makes the service of c and uses it for new requests, unless c equals the current
// configuration. If mk panics or returns nil, the current service stays in use. Set
// returns an error if mk returns nil, and [ErrClosed] after the end of w's context.
//
// Set may be called concurrently, but not by mk. It waits for mk, but not for requests.
func (w *Reloadable[C, Req, Rsp]) Set(c C) error {
	w.setting.Lock()
	defer w.setting.Unlock()
	if w.ctx.Err() != nil {
		return w.ended()
	}
	old := w.current.Load()
	if old.config == c {
		return nil
	}
	s := w.state(c)
	if s.inner == nil {
		s.Ended()
		return &Error{Layer: "reloadable", Target: w.target, Err: errNoReloadable}
	}
	w.current.Store(s) // before retire, because a caller that finds the old one ended loads this one
	w.changes.Add(1)
	old.retire()
	return nil
}

// Config returns the current configuration.
func (w *Reloadable[C, Req, Rsp]) Config() C { return w.current.Load().config }

// Call sends req to the service of the current configuration.
func (w *Reloadable[C, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	for {
		s := w.current.Load()
		if s.Begin() {
			rsp, err := s.call(ctx, s.inner, req)
			if err != nil && errors.Is(err, ErrClosed) {
				err = w.rejectClosed(err)
			}
			return rsp, err
		}
		// The configuration was just replaced, or w has ended.
		if s == w.current.Load() {
			var zero Rsp
			return zero, w.ended()
		}
	}
}

func (w *Reloadable[C, Req, Rsp]) ended() error {
	return &Error{
		Layer: "reloadable", Target: w.target, Kind: ErrClosed,
		Reason: "its context has ended", Err: context.Cause(w.ctx),
	}
}

// rejectClosed returns the rejection of a request for a closed service. It does not
// match ErrClosed.
func (w *Reloadable[C, Req, Rsp]) rejectClosed(err error) error {
	return &Error{
		Layer: "reloadable", Target: w.target, Kind: ErrNotReady,
		Reason: "closed until the configuration changes", Err: hiddenKind{err, ErrClosed},
	}
}

// Describe returns the current service. It omits the configuration, which may have secrets.
func (w *Reloadable[C, Req, Rsp]) Describe() Node {
	s := w.current.Load()
	next := Describe(s.inner)
	return Node{
		Name:  "reloadable",
		State: State{{"changes", w.changes.Load()}, {"open", s.Open()}},
		Next:  &next,
	}
}

// reloadableState is one configuration and its service.
type reloadableState[C comparable, Req, Rsp any] struct {
	cacheLife[Req, Rsp]
	inner    Service[Req, Rsp]
	config   C
	replaced context.Context //nolint:containedctx // ends when another configuration is current
	replace  context.CancelFunc
}

// state makes the service of c. If mk panics, it ends the context given to mk.
func (w *Reloadable[C, Req, Rsp]) state(c C) *reloadableState[C, Req, Rsp] {
	s := &reloadableState[C, Req, Rsp]{config: c}
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

// retire wakes the callers that wait for s. The context of s ends after the last response.
func (s *reloadableState[C, Req, Rsp]) retire() {
	s.replace()
	s.Retire()
}

// Ready waits for the current service, and for the next one after a change.
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
				Layer: "reloadable", Target: w.target, Reason: "closed until the configuration changes: " + err.Error(),
				Err: context.Cause(ctx),
			}
		case errors.Is(err, errReplaced):
			return context.Cause(ctx)
		}
		return err
	}
}

// ready waits for the service of s until s is replaced or ctx ends.
func (s *reloadableState[C, Req, Rsp]) ready(ctx context.Context) error {
	defer s.Done()
	if ctx.Err() != nil {
		return s.inner.Ready(ctx)
	}
	if err := Poll(s.inner); err == nil {
		return nil
	}
	until, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	stop := context.AfterFunc(s.replaced, func() { leave(errReplaced) })
	defer stop()
	err := s.inner.Ready(until)
	if errors.Is(err, ErrClosed) {
		<-until.Done() // wait for the next configuration
	}
	return err
}

var (
	errReplaced     = errors.New("the configuration was replaced")
	errNoReloadable = errors.New("no service for the configuration")
)

// nilReloadable is the service that is used if mk returned nil for the first configuration.
type nilReloadable[Req, Rsp any] struct{ target string }

func (*nilReloadable[Req, Rsp]) Ready(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (n *nilReloadable[Req, Rsp]) Call(context.Context, Req) (Rsp, error) {
	var zero Rsp
	return zero, &Error{Layer: "reloadable", Target: n.target, Kind: ErrNotReady, Err: errNoReloadable}
}

func (*nilReloadable[Req, Rsp]) Describe() Node { return Node{Name: "nothing"} }
