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

// layerName is the name of the router in errors and descriptions.
const layerName = "profiles"

// Router is a service that treats requests according to its target's profile. It finds a request's
// route and sends the request to one of the profile's targets. If the route sets a name or labels,
// Call adds them to the context: see [layer.WithRoute]. Use [New] to make a Router.
//
// A request is rejected if every target rejects it. If all targets return an error that matches
// [layer.ErrClosed], the Router's error matches ErrClosed only after the profile's watch has ended.
// While the watch runs, the next profile may have other targets.
type Router[Req, Rsp any] struct {
	options[Req, Rsp]
	config Config
	target string          // of config
	life   context.Context //nolint:containedctx // the ctx of New; copies of requests end with it
	access layer.Accessor[Req, Rsp]
	mk     layer.MakeService[string, Req, Rsp]

	current atomic.Pointer[snapshot[Req, Rsp]] // never nil
	watch   atomic.Pointer[watchState]         // never nil

	mu       sync.Mutex                         // held while current is replaced
	services map[string]layer.Service[Req, Rsp] // by authority, made by mk

	backendServices map[backendKey]backendService[Req, Rsp] // services of the current profile's backends and targets

	budget   *layer.Budget  // the budget that was built last
	budgetOf RetryBudget    // the RetryBudget from which budget was built
	invalid  oncelog.Logger // logs each mistake in profiles once

	done chan struct{} // closed when no further profile will arrive
}

// New returns a Router for c's Target. It watches Target's profile in c's Source until ctx ends; after
// that the last profile stays current.
//
// mk returns the service for an authority of the profile's targets, usually a balancer with a
// queue. It is called once for each authority as long as the Router lives. The Router does not
// release services, so mk should release those that are not used any more, for example with a
// [layer.Cache]. If mk returns nil, requests for the authority are rejected with an error that
// matches [layer.ErrNoRoute]. With [WithBackends], mk makes only the services of a [Mirror].
//
// A nil Source, access or mk panics.
func New[Req, Rsp any](
	ctx context.Context,
	c Config,
	access layer.Accessor[Req, Rsp],
	mk layer.MakeService[string, Req, Rsp],
	opts ...Option[Req, Rsp],
) *Router[Req, Rsp] {
	switch {
	case c.Source == nil:
		panic("profiles: New: nil Source")
	case access == nil:
		panic("profiles: New: nil Accessor")
	case mk == nil:
		panic("profiles: New: nil MakeService")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Router[Req, Rsp]{
		config: c, target: c.Target, life: ctx, access: access, mk: mk,
		services: make(map[string]layer.Service[Req, Rsp]), done: make(chan struct{}),
		backendServices: make(map[backendKey]backendService[Req, Rsp]),
	}
	option.Apply(&r.options, opts)
	r.invalid.Log = func(err error) { c.Log.Warn("left out of a profile", "target", c.Target, "err", err) }
	r.watch.Store(&watchState{})
	// Until the first profile, the snapshot is empty and provisional: requests wait for the next one.
	r.current.Store(&snapshot[Req, Rsp]{profile: &Profile{}, provisional: true, replaced: make(chan struct{})})
	if c.InitialWait <= 0 {
		r.endInitialWait()
	}
	// The source is user code, so a panic in it must not end the process.
	go func() { _ = panics.Contain(func() { r.follow(ctx) }) }()
	return r
}

// Profile returns the current profile as it was received, with invalid parts, which the Router
// ignores. Before the first one, it returns an empty profile. The caller must not modify it.
func (r *Router[Req, Rsp]) Profile() *Profile { return r.current.Load().profile }

// Route returns the route of the current profile whose condition req meets, or nil. The caller must
// not modify it. Like Call, Route waits for the first profile, and returns a rejection if ctx ends first.
func (r *Router[Req, Rsp]) Route(ctx context.Context, req Req) (*Route, error) {
	s := r.current.Load()
	if s.provisional {
		var err error
		// Requests wait only for the first profile, and at most for InitialWait.
		if s, err = r.await(ctx, s); err != nil {
			return nil, err
		}
	}
	if route := s.match(r.access, req); route != nil {
		return &route.def, nil
	}
	return nil, nil //nolint:nilnil // no route is not an error
}

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
	// Without routes, nothing of the request must be read.
	if len(s.candidates) > 0 {
		route = s.match(r.access, req)
	}
	// Only a request with an Explanation pays for it.
	if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
		r.explain(explanation, s, route, req)
	}
	if route != nil && route.outer != nil {
		ctx = layer.WithRoute(ctx, route.outer)
	}
	// The order matters: a route with its own backends, any other route with layers, no route although one is required,
	// the default route, and the plain split.
	switch {
	case route != nil && route.split != nil: // its stack does not read the snapshot
		rsp, err = route.stack.Call(ctx, req)
	case route != nil && route.stack != nil:
		// The route's layers may outlive this snapshot, so the targets below them read it from the context.
		rsp, err = route.stack.Call(reqctx.WithValue(ctx, r, s), req)
	case route == nil && s.profile.RoutesOnly:
		return rsp, &layer.Error{Layer: layerName, Target: r.target, Kind: layer.ErrNoRoute, Reason: "no route matches the request"}
	case route == nil && s.defaultRoute != nil:
		rsp, err = s.defaultRoute.Call(ctx, req)
	default:
		rsp, err = s.split.Call(ctx, req)
	}
	// Until the watch ends, another profile may bring a target that is not closed.
	if err != nil && errors.Is(err, layer.ErrClosed) && !r.watch.Load().ended {
		err = &layer.Error{
			Layer: layerName, Target: r.target, Kind: layer.ErrNotReady,
			Reason: "closed until the profile changes", Err: notClosed{err},
		}
	}
	return rsp, err
}

// await waits until the first profile arrives or Config.InitialWait ends. It returns the
// snapshot that is then current, which is a compiled profile, or a rejection if ctx ends first. s
// is the snapshot before the wait.
func (r *Router[Req, Rsp]) await(ctx context.Context, s *snapshot[Req, Rsp]) (*snapshot[Req, Rsp], error) {
	start := time.Now()
	// endInitialWait also replaces the snapshot, so the wait ends in any case.
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

// notClosed wraps a target's error, so that it does not match ErrClosed. A Router returns
// ErrClosed only after its watch has ended, because until then another profile with other targets
// may arrive.
type notClosed struct{ error } //nolint:errname // it hides ErrClosed

// Is makes errors.Is find all errors in the tree but layer.ErrClosed.
func (u notClosed) Is(target error) bool {
	return target != layer.ErrClosed && errors.Is(u.error, target)
}

// As makes errors.As find the errors in the tree.
func (u notClosed) As(target any) bool { return errors.As(u.error, target) }

// reject returns the rejection of a request whose context has ended. waited is how long it waited
// for the first profile, and 0 if its context had ended before.
func (r *Router[Req, Rsp]) reject(ctx context.Context, waited time.Duration) error {
	reason := ctxreason.Text(ctx)
	// The caller has waited for the first profile until ctx ended.
	if waited > 0 {
		reason = "no profile yet"
	}
	return &layer.Error{
		Layer: layerName, Target: r.target, Kind: layer.ErrNotReady,
		Reason: reason, Waited: waited, Err: context.Cause(ctx),
	}
}

// Ready waits until one of the profile's targets is ready. It does not wait for route limits,
// because it does not know the next request's route. It returns an error that matches
// [layer.ErrClosed] if all targets return such an error and the profile's watch has ended.
func (r *Router[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		// Each profile has other targets, so the wait begins anew when one arrives.
		s := r.current.Load()
		if err := s.poll(); err == nil || errors.Is(err, layer.ErrClosed) && r.watch.Load().ended {
			return err
		}
		// With a done context, the poll above was all that was asked for.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.ready(ctx, r.done); !errors.Is(err, errReplaced) {
			return err
		}
	}
}
