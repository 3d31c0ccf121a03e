package profiles

import (
	"context"
	"errors"

	"github.com/gotower/gotower/layer"
)

// WithRouteLayers gives each route the layers of its fields. From outside in:
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
// For HTTP the arguments are httplayer.Replayer{}, httplayer.Editor{} and
// httplayer.Classify, which classifies errors. With a nil edit, fields that need
// one have no effect: header changes, Redirect, Mirrors and Faults that answer.
// "Retries" in the package documentation has the rules of retries.
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

// WithMetrics makes [WithRouteLayers] count. instruments is called once for each
// route, for the instruments of its requests and of its attempts; the same route
// keeps them from one profile to the next. The layers of a route write to the
// former, see [layer.Instruments]. A request that is rejected below the route counts
// only as one of Rejections.
func WithMetrics[Req, Rsp any](instruments func(route Route) (requests, attempts layer.Instruments)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.metrics = instruments })
}

// routeLayers are the arguments of WithRouteLayers.
type routeLayers[Req, Rsp any] struct {
	replayer layer.Replayer[Req, Rsp]
	edit     layer.Editor[Req, Rsp]
	classify layer.Classifier[Rsp] // of errors
}

// routeStack makes the layers of one route.
type routeStack[Req, Rsp any] struct {
	*Router[Req, Rsp]
	route              Route // without its invalid parts
	classes            classifier
	retryBudget        *layer.Budget
	requests, attempts layer.Instruments
	mirrors            []layer.Layer[Req, Rsp]
}

// stackOf returns the layers of a route above below, or below if it needs none.
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
		return a.changeRequests(a.addOnce(st)).Service(below) // no layer needs the class of a response
	}
	return st.Service(&byProtocol[Req, Rsp]{
		Service: below, access: r.access, grpc: a.classified(true).Service(below), other: a.classified(false).Service(below),
	})
}

// withoutEdits returns r without the fields that need an Editor, and false if it
// has some.
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

// classified returns the part of the stack that needs the class of responses, which
// differs for gRPC requests.
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

// changeRequests adds RequestHeader.
func (a *routeStack[Req, Rsp]) changeRequests(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	c, edit := a.route.RequestHeader, a.layers.edit
	if c.Empty() {
		return st
	}
	return st.MapRequest(func(req Req) Req { return edit.EditRequest(req, c) })
}

// class classifies an outcome by the classes of the route.
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

// head classifies a response by its headers.
func (a *routeStack[Req, Rsp]) head(grpc bool, rsp Rsp) headerClass {
	return a.classes.head(grpc, a.access.Status(rsp), a.access.ResponseHeader(rsp))
}

// byProtocol separates gRPC requests, whose responses are classified differently.
type byProtocol[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // below both, for Ready
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
