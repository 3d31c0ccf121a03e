package profiles

import (
	"context"
	"errors"

	"github.com/gotower/gotower/layer"
)

// WithRouteLayers gives each route the layers that its fields require. From the caller
// to the target:
//
//	ResponseHeader             all responses
//	Limit, Rate                reject
//	[WithMetrics], requests    each request that these admitted
//	Redirect                   answers
//	Mirrors                    one copy of each request
//	Timeout                    [layer.ResponseHeaderTimeout]
//	Faults                     [layer.FaultInjection], once for each request
//	Retryable, AttemptTimeout  [layer.Retry]
//	Hedge                      [layer.Hedge]
//	[WithMetrics], attempts    each attempt and each copy of a hedge
//	RequestHeader              forwarded requests
//
// For HTTP the arguments are httplayer.Replayer{}, httplayer.Editor{} and httplayer.Classify, which
// classifies errors. Without an edit (nil), header changes, Redirect, Mirrors and Faults with a
// response have no effect. See "Retries" in the package documentation for the rules of retries.
func WithRouteLayers[Req, Rsp any](
	replayer layer.Replayer[Req, Rsp], edit layer.Editor[Req, Rsp], classify layer.Classifier[Rsp],
) Option[Req, Rsp] {
	if classify == nil {
		panic("profiles: WithRouteLayers: nil Classifier")
	}
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) {
		o.layers = &routeLayers[Req, Rsp]{replayer: replayer, edit: edit, classify: classify}
	})
}

// WithMetrics makes [WithRouteLayers] count. instruments is called once for each route. It returns
// the instruments for the requests of the route, to which its layers write, and for the attempts
// (see [layer.Instruments]). A route that is equal in the next profile keeps them. A request that
// is rejected below the route counts only in Rejections.
func WithMetrics[Req, Rsp any](instruments func(route Route) (requests, attempts layer.Instruments)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.metrics = instruments })
}

// routeLayers has the arguments of WithRouteLayers.
type routeLayers[Req, Rsp any] struct {
	replayer layer.Replayer[Req, Rsp]
	edit     layer.Editor[Req, Rsp]
	classify layer.Classifier[Rsp] // classifies errors
}

// routeStack builds the layers of one route.
type routeStack[Req, Rsp any] struct {
	*Router[Req, Rsp]
	route              Route // invalid parts have their zero value
	classes            classifier
	retryBudget        *layer.Budget
	requests, attempts layer.Instruments
	mirrors            []layer.Layer[Req, Rsp]
}

// stackOf returns the layers of a route with below as the innermost service. It returns
// below if the route needs no layers.
func (r *Router[Req, Rsp]) stackOf(def Route, budget *layer.Budget, below layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	route, problems := def.valid()
	if r.layers.edit == nil {
		var ok bool
		if route, ok = withoutEdits(route); !ok {
			problems = append(problems, errors.New("header changes, redirect, mirrors and faults with a status need a layer.Editor"))
		}
	}
	for _, err := range problems {
		r.log.Warn("left out of a profile", "target", r.target, "route", route.Name, "err", err)
	}
	a := &routeStack[Req, Rsp]{
		Router: r, route: route, retryBudget: budget,
		classes: compileClasses(route.Classes, &compiler{drop: func(error) {}}),
	}
	if r.metrics != nil {
		a.requests, a.attempts = r.metrics(route)
	}
	st := layer.NewStack[Req](a.options(r.layers.classify)...)
	if edit, change := r.layers.edit, route.ResponseHeader; !change.Empty() {
		st = st.MapResponse(func(rsp Rsp) Rsp { return edit.EditResponse(rsp, change) })
	}
	if route.Limit > 0 {
		st = st.Limit(route.Limit)
	}
	if route.Rate.PerSecond > 0 {
		st = st.RateLimit(route.Rate.PerSecond, route.Rate.burst())
	}
	a.mirrors = a.mirrorLayers()
	if r.metrics == nil && !route.Retryable && route.AttemptTimeout == 0 && route.Hedge == 0 {
		return a.changeRequests(a.addOnce(st)).Service(below) // no class of responses is needed
	}
	return st.Service(&byProtocol[Req, Rsp]{
		Service: below, access: r.access, grpc: a.classified(true).Service(below), other: a.classified(false).Service(below),
	})
}

// withoutEdits returns r without the fields that require an Editor. It returns false if
// one of them is set.
func withoutEdits(r Route) (Route, bool) {
	ok := r.RequestHeader.Empty() && r.ResponseHeader.Empty() && r.Redirect == nil && len(r.Mirrors) == 0
	r.RequestHeader, r.ResponseHeader = layer.HeaderMutation{}, layer.HeaderMutation{}
	r.Redirect, r.Mirrors = nil, nil
	var faults []Fault
	for _, f := range r.Faults {
		if f.Status == 0 {
			faults = append(faults, f)
		}
	}
	ok = ok && len(faults) == len(r.Faults)
	r.Faults = faults
	return r, ok
}

func (a *routeStack[Req, Rsp]) options(classify layer.Classifier[Rsp]) []layer.Option[Rsp] {
	return []layer.Option[Rsp]{
		layer.WithTarget[Rsp](a.target), layer.WithCompletion(a.access.Complete),
		layer.WithReplayer[Req](routeReplayer[Req, Rsp]{a.layers.replayer, a.access}),
		layer.WithClassifier(classify), layer.WithMetrics[Rsp](a.requests),
	}
}

// classified returns the layers that need the class of responses. There are two
// versions, because gRPC requests are classified differently.
func (a *routeStack[Req, Rsp]) classified(grpc bool) layer.Stack[Req, Rsp] {
	st := layer.NewStack[Req](a.options(func(o layer.Outcome[Rsp]) layer.Class { return a.class(grpc, o) })...)
	if a.metrics != nil {
		st = st.Metrics(a.requests)
	}
	return a.addAttempts(a.addOnce(st), grpc)
}

// addOnce adds the layers that apply once to each request.
func (a *routeStack[Req, Rsp]) addOnce(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if a.route.Redirect != nil {
		st = st.With("redirect", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
			return &redirectService[Req, Rsp]{Service: next, access: a.access, edit: a.layers.edit, redirect: *a.route.Redirect}
		})
	}
	for _, l := range a.mirrors {
		st = st.With("mirror", l)
	}
	if a.route.Timeout > 0 {
		st = st.ResponseHeaderTimeout(a.route.Timeout)
	}
	return a.addFaults(st)
}

// changeRequests adds the layer of RequestHeader.
func (a *routeStack[Req, Rsp]) changeRequests(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	c, edit := a.route.RequestHeader, a.layers.edit
	if c.Empty() {
		return st
	}
	return st.MapRequest(func(req Req) Req { return edit.EditRequest(req, c) })
}

// class returns the class of an outcome by the classes of the route.
func (a *routeStack[Req, Rsp]) class(grpc bool, o layer.Outcome[Rsp]) layer.Class {
	if o.Err != nil {
		return a.layers.classify(o)
	}
	h := a.head(grpc, o.Response)
	if o.Ended {
		return h.end(a.access.ResponseTrailer(o.Response))
	}
	return h.class
}

// head returns the class of a response by its headers.
func (a *routeStack[Req, Rsp]) head(grpc bool, rsp Rsp) headerClass {
	return a.classes.head(grpc, a.access.Status(rsp), a.access.ResponseHeader(rsp))
}

// byProtocol sends gRPC requests to grpc and all others to other.
type byProtocol[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // the service below both, for Ready
	access                  layer.Accessor[Req, Rsp]
	grpc, other             layer.Service[Req, Rsp]
}

func (b *byProtocol[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if isGRPC(b.access.RequestHeader(req).Get("content-type")) {
		return b.grpc.Call(ctx, req)
	}
	return b.other.Call(ctx, req)
}

func (b *byProtocol[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "by_protocol", Children: []layer.Node{
		{Name: "grpc", Next: new(layer.Describe(b.grpc))},
		{Name: "other", Next: new(layer.Describe(b.other))},
	}}
}
