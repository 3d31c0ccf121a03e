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

// Router is a Service that treats each request as the profile of its target
// says: it finds the request's route, tells the layers below of it (see
// [layer.WithRoute]) if it has a name or labels, and sends the request to one
// of the profile's targets. Make one with [New].
//
// A request that every target refuses is refused. Where all are closed, it is so
// with an error that matches [layer.ErrClosed] only once the watch of the profile
// has ended: until then the next profile may have others.
type Router[Req, Rsp any] struct {
	options[Req, Rsp]
	target string
	life   context.Context //nolint:containedctx // what was given to New: copies of requests end with it
	source Source
	access layer.Accessor[Req, Rsp]
	mk     layer.MakeService[string, Req, Rsp]

	current atomic.Pointer[snapshot[Req, Rsp]] // never nil
	watched atomic.Pointer[watched]            // never nil

	mu        sync.Mutex // for those who replace current
	services  map[string]layer.Service[Req, Rsp]
	forwarded forwarded[Req, Rsp]
	accounts  []account      // of late, the newest last
	amiss     oncelog.Logger // what is left out of profiles

	over chan struct{} // closed when no more profiles will come
}

// New returns a Router for target, and watches target's profile from source
// until ctx ends; from then on the last profile stays in force. Before the
// first profile, and if there is none, requests go to target.
//
// mk makes the service of a target, by its authority: usually a balancer with
// a queue before it. It is asked once for each authority that a profile sends
// requests to, for as long as the Router lives; to let go of targets that went
// out of use is its own matter, as it is layer.Cache's. An authority that it
// returns nil for is closed: requests that would go there are refused with an
// error that matches [layer.ErrNoRoute], or go to the others of a split.
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
		panic("profiles: New: nil Access")
	case mk == nil:
		panic("profiles: New: nil Make")
	}
	r := &Router[Req, Rsp]{
		target: target, life: ctx, source: source, access: access, mk: mk,
		services: make(map[string]layer.Service[Req, Rsp]), over: make(chan struct{}),
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&r.options)
		}
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.amiss.Log = func(err error) { r.log.Warn("left out of a profile", "target", r.target, "err", err) }
	r.addStandard()
	r.watched.Store(&watched{})
	r.current.Store(&snapshot[Req, Rsp]{profile: &Profile{}, provisional: true, replaced: make(chan struct{})})
	if r.initialWait <= 0 {
		r.settle()
	}
	go func() { _ = panics.Contain(func() { r.watch(ctx) }) }()
	return r
}

// Profile returns the profile in force, with all its pieces, those that are
// left out included. It is not to be changed.
func (r *Router[Req, Rsp]) Profile() *Profile { return r.current.Load().profile }

// Call serves the request by the profile that is in force now, from start to
// end.
func (r *Router[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if ctx.Err() != nil {
		var none Rsp
		return none, r.refuse(ctx, 0)
	}
	s := r.current.Load()
	if s.provisional {
		var err error
		if s, err = r.await(ctx, s); err != nil {
			var none Rsp
			return none, err
		}
	}
	var route *served[Req, Rsp]
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

func (r *Router[Req, Rsp]) serve(ctx context.Context, s *snapshot[Req, Rsp], route *served[Req, Rsp], req Req) (Rsp, error) {
	rsp, err := r.send(ctx, s, route, req)
	if err != nil && errors.Is(err, layer.ErrClosed) && !r.isOver() {
		err = r.refuseClosed(err)
	}
	return rsp, err
}

func (r *Router[Req, Rsp]) send(ctx context.Context, s *snapshot[Req, Rsp], route *served[Req, Rsp], req Req) (Rsp, error) {
	switch {
	case route != nil && route.stack != nil:
		return route.stack.Call(context.WithValue(ctx, r, s), req)
	case route == nil && s.unrouted != nil:
		return s.unrouted.Call(ctx, req)
	}
	return s.split.Call(ctx, req)
}

// await waits for the first profile, or for the time that it is given.
func (r *Router[Req, Rsp]) await(ctx context.Context, s *snapshot[Req, Rsp]) (*snapshot[Req, Rsp], error) {
	start := time.Now()
	for s.provisional {
		select {
		case <-s.replaced:
			s = r.current.Load()
		case <-ctx.Done():
			return nil, r.refuse(ctx, time.Since(start))
		}
	}
	return s, nil
}

// isOver reports whether the profile in force is the last one.
func (r *Router[Req, Rsp]) isOver() bool { return r.watched.Load().ended }

// refuseClosed takes targets that are closed for what they are to those above.
func (r *Router[Req, Rsp]) refuseClosed(err error) error {
	return &layer.Error{
		Layer: layerName, Target: r.target, Kind: layer.ErrNotReady,
		Reason: "closed until the profile changes", Err: unclosed{err},
	}
}

// unclosed is an error that no longer says "never again".
type unclosed struct{ error }

func (u unclosed) Is(target error) bool {
	return target != layer.ErrClosed && errors.Is(u.error, target)
}

func (u unclosed) As(target any) bool { return errors.As(u.error, target) }

// refuse turns away a request whose context is done.
func (r *Router[Req, Rsp]) refuse(ctx context.Context, waited time.Duration) error {
	reason := ctxreason.Text(ctx)
	if waited > 0 {
		reason = "no profile yet"
	}
	return &layer.Error{
		Layer: layerName, Target: r.target, Kind: layer.ErrNotReady,
		Reason: reason, Waited: waited, Err: context.Cause(ctx),
	}
}

// Dispatch says what to do with a connection to a destination, or with a
// request where nobody sees connections. It is for whoever serves them.
//
//	profile                                    To
//	Name, and Routes or Targets                ToRoutes     if opaque, Targets
//	Name                                       ToApex
//	Endpoint                                   ToEndpoint
//	Routes or Targets                          ToRoutes     if opaque, Targets
//	else                                       ToTarget
//
// This is the decision of linkerd's proxy, but for the last but one: without a
// name, linkerd does not look at routes.
type Dispatch struct {
	// Opaque forbids to look into the connection: its bytes are forwarded as
	// they are, also from a server that speaks first. There are no requests
	// then, and no routes. A split is drawn once for the connection.
	Opaque bool

	// To says where it goes, and Authority how that is called: the apex, which
	// is the profile's name at the port of the target; the address of the
	// endpoint; or the target as it was asked for.
	To        Destination
	Authority string
	Endpoint  *Endpoint // of ToEndpoint; not to be changed
}

// Destination is where connections and requests go.
type Destination uint8

// The kinds of Destination.
const (
	ToTarget   Destination = iota // to what was asked for, as if there were no profile
	ToApex                        // to Authority, over all of its endpoints
	ToRoutes                      // by a [Router]: routes and split, with Authority as the apex
	ToEndpoint                    // to Endpoint, without a balancer
)

// String returns the word for d.
func (d Destination) String() string {
	switch d {
	case ToTarget:
		return "target"
	case ToApex:
		return "apex"
	case ToRoutes:
		return "routes"
	case ToEndpoint:
		return "endpoint"
	}
	return "unknown"
}

// Dispatch says what to do with connections to target, which p is the profile
// of. A name and an endpoint that are not valid are none; see Validate.
func (p *Profile) Dispatch(target string) Dispatch {
	apex, err := p.apex(target)
	named := p.Name != "" && err == nil
	d := Dispatch{Opaque: p.OpaqueProtocol, Authority: apex}
	switch routed := len(p.Targets) > 0 || len(p.Routes) > 0 && !d.Opaque; {
	case !named && p.Endpoint != nil && p.Endpoint.Validate() == nil:
		d.To, d.Endpoint, d.Authority = ToEndpoint, p.Endpoint, p.Endpoint.Addr.String()
	case routed:
		d.To = ToRoutes
	case named:
		d.To = ToApex
	}
	return d
}

// Dispatch says what to do with a connection to the Router's target by the
// profile in force. Like a Call it waits for the first one, see [WithInitialWait],
// and returns an error only if ctx ends before that.
//
// A Call goes where Dispatch says, [ToEndpoint] only with [WithForward]. Who serves
// connections has to know Opaque before the first byte is looked at.
func (r *Router[Req, Rsp]) Dispatch(ctx context.Context) (Dispatch, error) {
	if ctx.Err() != nil {
		return Dispatch{}, r.refuse(ctx, 0)
	}
	s, err := r.await(ctx, r.current.Load())
	if err != nil {
		return Dispatch{}, err
	}
	return s.profile.Dispatch(r.target), nil
}

// compiledRoute is what requests need of a Route.
type compiledRoute struct {
	match   matcher
	needs   needs
	info    *layer.Route // nil if there is nothing to say
	classes classifier
}

// compileRoute returns an error if the route, number i, is to be left out, and
// tells drop what is left out of it otherwise.
func compileRoute(i int, r Route, drop func(error)) (compiledRoute, error) {
	inRoute := func(err error) { drop(routeError(i, r, err)) }
	match, err := compileMatch(r.Match, inRoute)
	if err != nil {
		return compiledRoute{}, routeError(i, r, err)
	}
	c := compiledRoute{match: match, needs: match.needs(), classes: compileClasses(r.Classes, inRoute)}
	if r.Name != "" || len(r.Labels) > 0 {
		c.info = &layer.Route{Name: r.Name, Labels: r.Labels}
	}
	return c, nil
}

// byProtocol parts gRPC requests from others, whose responses are judged
// differently.
type byProtocol[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // below both; it alone says whether they are ready
	access                  layer.Accessor[Req, Rsp]
	grpc, other             layer.Service[Req, Rsp]
}

func (b *byProtocol[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if isGRPC(b.access.RequestHeader(req).Get("content-type")) {
		return b.grpc.Call(ctx, req)
	}
	return b.other.Call(ctx, req)
}

// Describe shows both.
func (b *byProtocol[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "by_protocol", Children: []layer.Node{
		{Name: "grpc", Next: new(layer.Describe(b.grpc))},
		{Name: "other", Next: new(layer.Describe(b.other))},
	}}
}
