package profiles

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/oncelog"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

const layerName = "profiles"

// Router is a Service that treats requests by the profile of its target. It finds
// the route of a request, adds it to the context if it has a name or labels (see
// [layer.WithRoute]), and sends the request to one of the profile's targets. Make
// one with [New].
//
// A request that every target rejects is rejected. If all targets are closed, the
// error matches [layer.ErrClosed] only after the watch of the profile has ended,
// because the next profile may have other targets.
type Router[Req, Rsp any] struct {
	options[Req, Rsp]
	target string
	life   context.Context //nolint:containedctx // of New: copies of requests end with it
	source Source
	access layer.Accessor[Req, Rsp]
	mk     layer.MakeService[string, Req, Rsp]

	current atomic.Pointer[snapshot[Req, Rsp]] // never nil
	watch   atomic.Pointer[watchState]         // never nil

	mu        sync.Mutex // held to replace current
	services  map[string]layer.Service[Req, Rsp]
	forwarded endpointService[Req, Rsp]
	budget    *layer.Budget // the most recent one
	budgetOf  RetryBudget   // its values
	invalid   oncelog.Logger

	done chan struct{} // closed when no further profile will arrive
}

// New returns a Router for target. It watches target's profile from source until
// ctx ends; then the last profile stays current. Before the first profile, and
// without one, requests go to target.
//
// mk makes the service of a target from its authority, usually a balancer with a
// queue. It is called once for each authority during the life of the Router.
// Releasing services of targets that are no longer used is up to mk, as with
// layer.Cache. If mk returns nil, the authority is closed: its requests are
// rejected with an error that matches [layer.ErrNoRoute], or go to other targets.
//
// A nil source, access or mk panics.
func New[Req, Rsp any](
	ctx context.Context,
	target string,
	source Source,
	access layer.Accessor[Req, Rsp],
	mk layer.MakeService[string, Req, Rsp],
	opts ...Option[Req, Rsp],
) *Router[Req, Rsp] {
	switch {
	case source == nil:
		panic("profiles: New: nil Source")
	case access == nil:
		panic("profiles: New: nil Accessor")
	case mk == nil:
		panic("profiles: New: nil MakeService")
	}
	r := &Router[Req, Rsp]{
		target: target, life: ctx, source: source, access: access, mk: mk,
		services: make(map[string]layer.Service[Req, Rsp]), done: make(chan struct{}),
	}
	Join(opts...).apply(&r.options)
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.invalid.Log = func(err error) { r.log.Warn("left out of a profile", "target", r.target, "err", err) }
	r.watch.Store(&watchState{})
	r.current.Store(&snapshot[Req, Rsp]{profile: &Profile{}, provisional: true, replaced: make(chan struct{})})
	if r.initialWait <= 0 {
		r.endInitialWait()
	}
	go func() { _ = panics.Contain(func() { r.follow(ctx) }) }()
	return r
}

// Profile returns the current profile, invalid parts included. It must not be
// changed.
func (r *Router[Req, Rsp]) Profile() *Profile { return r.current.Load().profile }

// Call serves the request by the current profile, from start to end.
func (r *Router[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if ctx.Err() != nil {
		return zero, r.reject(ctx, 0)
	}
	s := r.current.Load()
	if s.provisional {
		var err error
		if s, err = r.await(ctx, s); err != nil {
			return zero, err
		}
	}
	var route *liveRoute[Req, Rsp]
	if len(s.routes) > 0 {
		route = s.match(r.access, req)
	}
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		r.explain(why, s, route, req)
	}
	if route != nil && route.info != nil {
		ctx = layer.WithRoute(ctx, route.info)
	}
	if r.onResponse != nil {
		return r.report(ctx, s, route, req)
	}
	return r.serve(ctx, s, route, req)
}

func (r *Router[Req, Rsp]) serve(ctx context.Context, s *snapshot[Req, Rsp], route *liveRoute[Req, Rsp], req Req) (rsp Rsp, err error) {
	switch {
	case route != nil && route.stack != nil:
		rsp, err = route.stack.Call(context.WithValue(ctx, r, s), req)
	case route == nil && s.defaultRoute != nil:
		rsp, err = s.defaultRoute.Call(ctx, req)
	default:
		rsp, err = s.split.Call(ctx, req)
	}
	if err != nil && errors.Is(err, layer.ErrClosed) && !r.watch.Load().ended {
		err = &layer.Error{
			Layer: layerName, Target: r.target, Kind: layer.ErrNotReady,
			Reason: "closed until the profile changes", Err: notClosed{err},
		}
	}
	return rsp, err
}

// await waits for the first profile, or for the end of the initial wait.
func (r *Router[Req, Rsp]) await(ctx context.Context, s *snapshot[Req, Rsp]) (*snapshot[Req, Rsp], error) {
	start := time.Now()
	for s.provisional {
		select {
		case <-s.replaced:
			s = r.current.Load()
		case <-ctx.Done():
			return nil, r.reject(ctx, time.Since(start))
		}
	}
	return s, nil
}

// notClosed is an error that does not match ErrClosed.
type notClosed struct{ error }

func (u notClosed) Is(target error) bool {
	return target != layer.ErrClosed && errors.Is(u.error, target)
}

func (u notClosed) As(target any) bool { return errors.As(u.error, target) }

// reject returns the rejection of a request whose context is done.
func (r *Router[Req, Rsp]) reject(ctx context.Context, waited time.Duration) error {
	reason := ctxreason.Text(ctx)
	if waited > 0 {
		reason = "no profile yet"
	}
	return &layer.Error{
		Layer: layerName, Target: r.target, Kind: layer.ErrNotReady,
		Reason: reason, Waited: waited, Err: context.Cause(ctx),
	}
}

// Ready waits until one of the profile's targets is ready. It ignores the stacks of
// routes, because it does not know the route of the next request. It returns an
// error that matches [layer.ErrClosed] when every target does and no further
// profile will arrive.
func (r *Router[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		s := r.current.Load()
		if err := s.poll(); err == nil || errors.Is(err, layer.ErrClosed) && r.watch.Load().ended {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.ready(ctx, r.done); !errors.Is(err, errReplaced) {
			return err
		}
	}
}
