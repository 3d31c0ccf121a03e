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
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
)

const layerName = "profiles"

// Router is a service that treats requests according to the profile of its target. It finds the
// route of a request and sends the request to one of the profile's targets. If the route has a name
// or labels, Call adds them to the context: see [layer.WithRoute]. [New] returns a Router.
//
// A request is rejected if every target rejects it. If all targets return an error that matches
// [layer.ErrClosed], the error of the Router matches ErrClosed only after the watch of the profile
// has ended. While the watch runs, the next profile may have other targets.
type Router[Req, Rsp any] struct {
	options[Req, Rsp]
	target string
	life   context.Context //nolint:containedctx // the ctx of New; copies of requests end with it
	source Source
	access layer.Accessor[Req, Rsp]
	mk     layer.MakeService[string, Req, Rsp]

	current atomic.Pointer[snapshot[Req, Rsp]] // never nil
	watch   atomic.Pointer[watchState]         // never nil

	mu        sync.Mutex                         // held while current is replaced
	services  map[string]layer.Service[Req, Rsp] // by authority
	forwarded endpointService[Req, Rsp]          // the service of the profile's Endpoint: see WithForward

	backendServices map[string]layer.Service[Req, Rsp] // by the result of Backend.key

	budget   *layer.Budget // the budget that was built last
	budgetOf RetryBudget   // the RetryBudget from which budget was built
	invalid  oncelog.Logger

	done chan struct{} // closed when no further profile will arrive
}

// New returns a Router for target. It watches the profile of target in source until ctx
// ends. After that the last profile stays current. Requests go to target until the first
// profile arrives.
//
// mk returns the service for an authority of the profile's targets, usually a balancer with a
// queue. mk is called once for each authority during the life of the Router. The Router does not
// release services. mk must release those that are not used any more, for example by a
// [layer.Cache]. If mk returns nil, the requests for the authority go to other targets. Without
// other targets, the requests are rejected with an error that matches [layer.ErrNoRoute].
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
	option.Apply(&r.options, opts)
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

// Profile returns the current profile, including its invalid parts. The caller must not
// modify the profile.
func (r *Router[Req, Rsp]) Profile() *Profile { return r.current.Load().profile }

// Call sends req according to the current profile. A later profile does not affect the
// request.
func (r *Router[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, r.reject(ctx, 0)
	}
	s := r.current.Load()
	if s.provisional {
		if s, err = r.await(ctx, s); err != nil {
			return rsp, err
		}
	}
	var route *liveRoute[Req, Rsp]
	if len(s.candidates) > 0 {
		route = s.match(r.access, req)
	}
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		r.explain(why, s, route, req)
	}
	if route != nil && route.info != nil && route.split == nil {
		ctx = layer.WithRoute(ctx, route.info)
	}
	switch {
	case route != nil && route.split != nil: // its stack does not read the snapshot
		rsp, err = route.stack.Call(ctx, req)
	case route != nil && route.stack != nil:
		rsp, err = route.stack.Call(context.WithValue(ctx, r, s), req)
	case route == nil && s.profile.RoutesOnly:
		return rsp, &layer.Error{Layer: layerName, Target: r.target, Kind: layer.ErrNoRoute, Reason: "no route matches the request"}
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

// await waits until the first profile arrives or the wait of WithInitialWait ends. It returns the
// snapshot that is then current, which is a compiled profile, or a rejection if ctx ends first. s
// is the snapshot before the wait.
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

// notClosed wraps an error of a target, so that the error does not match ErrClosed. A Router
// returns ErrClosed only after its watch has ended, because until then another profile with
// other targets may arrive.
type notClosed struct{ error } //nolint:errname // it hides ErrClosed

func (u notClosed) Is(target error) bool {
	return target != layer.ErrClosed && errors.Is(u.error, target)
}

func (u notClosed) As(target any) bool { return errors.As(u.error, target) }

// reject returns the rejection of a request after the end of its context. The argument waited is
// the time that the request waited for the first profile. It is 0 if the context had ended before
// the wait.
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

// Ready waits until one of the profile's targets is ready. It does not wait for the limits of
// routes, because it does not know the route of the next request. It returns an error that matches
// [layer.ErrClosed] if all targets return such an error and the watch of the profile has ended.
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
