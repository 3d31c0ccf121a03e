package profiles

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

// WithRouteLayers gives each route the layers that its fields require, the outermost first:
//
//	ResponseHeader             changes all responses
//	Limit, Rate                reject the requests above the limits
//	[WithMetrics], requests    count each admitted request
//	Redirect                   answers requests
//	Mirrors                    send one copy of each request
//	Policy.RequestTimeout      [layer.Timeout]
//	Timeout                    [layer.ResponseHeaderTimeout]
//	Faults                     [layer.FaultInjection], once for each request
//	Retryable, AttemptTimeout  [layer.Retry]; Policy.Retry replaces them
//	Hedge                      [layer.Hedge]
//	[WithMetrics], attempts    count each attempt and each copy of a hedge
//	Policy.ResponseTimeout     [layer.Timeout]
//	Policy.IdleTimeout         [layer.IdleTimeout]
//	RequestHeader              changes forwarded requests
//
// For HTTP, pass httplayer.Replayer{}, httplayer.Editor{} and httplayer.Classify. Without replayer
// (nil), no retries and hedges happen. Without edit (nil), header changes, Redirect, Mirrors and
// Faults with a response have no effect. See "Retries" in the package documentation.
func WithRouteLayers[Req, Rsp any](
	replayer layer.Replayer[Req, Rsp], edit layer.Editor[Req, Rsp], classify layer.Classifier[Rsp],
) Option[Req, Rsp] {
	if classify == nil {
		panic("profiles: WithRouteLayers: nil Classifier")
	}
	return func(o *options[Req, Rsp]) {
		o.layers = &routeLayers[Req, Rsp]{replayer: replayer, edit: edit, classify: classify}
	}
}

// WithMetrics sets the instruments of the layers of [WithRouteLayers]. The function instruments is
// called once for each route. It returns the instruments for the requests of the route and for the
// attempts of these requests. If the next profile has an equal route, the route keeps its
// instruments. If a service below the layers rejects a request, the request is counted only in
// Rejections.
func WithMetrics[Req, Rsp any](instruments func(route Route) (requests, attempts layer.Instruments)) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.metrics = instruments }
}

// routeLayers has the arguments of WithRouteLayers: replayer repeats requests, edit changes and
// creates messages, and classify classifies errors.
type routeLayers[Req, Rsp any] struct {
	replayer layer.Replayer[Req, Rsp]
	edit     layer.Editor[Req, Rsp]
	classify layer.Classifier[Rsp] // classifies errors
}

// routeStack builds the stack of layers of one route.
type routeStack[Req, Rsp any] struct {
	*Router[Req, Rsp]
	route              Route // the route; invalid parts have their zero value
	classes            classifier
	retryBudget        *layer.Budget
	unlimited          *layer.Budget // for Policy.Retry; it allows any number of retries
	requests, attempts layer.Instruments
	mirrors            []layer.Layer[Req, Rsp]
	overridden         bool // the stack is for requests with override fields: see RoutePolicy.Overrides
}

// stackOf returns the service of the route def. It consists of the layers of def around the service
// in the argument below. If def needs no layers, stackOf returns that service. It leaves out the
// invalid parts of def, and calls drop with an error for each. The caller must hold mu.
func (r *Router[Req, Rsp]) stackOf(
	def Route, budget *layer.Budget, below layer.Service[Req, Rsp], drop func(error),
) layer.Service[Req, Rsp] {
	route, problems := def.valid()
	if r.layers.edit == nil {
		var ok bool
		if route, ok = withoutEdits(route); !ok {
			problems = append(problems, errors.New("header changes, redirect, mirrors and faults with a status need a layer.Editor"))
		}
	}
	for _, err := range problems {
		drop(err)
	}
	a := &routeStack[Req, Rsp]{
		Router: r, route: route, retryBudget: budget,
		classes: compileClasses(route.Classes, func(error) {}),
	}
	if r.metrics != nil {
		a.requests, a.attempts = r.metrics(route)
	}
	if route.Policy != nil && route.MayRetry() {
		a.unlimited = layer.NewBudget(time.Second, 100, math.MaxInt32)
	}
	st := a.changeResponses(layer.NewStack[Req](a.options(r.layers.classify)...))
	if route.Limit > 0 {
		st = st.Limit(route.Limit)
	}
	if route.Rate.PerSecond > 0 {
		st = st.RateLimit(route.Rate.PerSecond, route.Rate.burst())
	}
	a.mirrors = a.mirrorLayers()
	if route.Policy == nil || !route.Policy.Overrides {
		return st.Service(a.admitted(below))
	}
	b := *a
	b.overridden = true
	if r.layers.edit != nil {
		b.route.RequestHeader.Remove = slices.Concat(route.RequestHeader.Remove, overrideFields[:])
	}
	return st.Service(&overrides[Req, Rsp]{Service: a.admitted(below), access: r.access, overridden: b.admitted(below)})
}

// admitted returns the service of the requests that Limit and Rate have admitted. It has all
// layers of the route except ResponseHeader, Limit and Rate.
func (a *routeStack[Req, Rsp]) admitted(below layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	if a.metrics == nil && !a.route.MayRetry() && a.route.AttemptTimeout == 0 && a.route.Hedge == 0 {
		st := layer.NewStack[Req](a.options(a.layers.classify)...) // no class of responses is needed
		return a.changeRequests(a.addAttemptTimeouts(a.addOnce(st))).Service(below)
	}
	return &byProtocol[Req, Rsp]{
		Service: below, access: a.access, grpc: a.classified(true).Service(below), other: a.classified(false).Service(below),
	}
}

// withoutEdits returns r without header changes, redirects, mirrors and faults with a response,
// for a Router without an Editor. The second result is true if neither r nor its backends have
// edits. It is false if an edit was removed, or if a backend has edits.
func withoutEdits(r Route) (Route, bool) {
	ok := r.RequestHeader.Empty() && r.ResponseHeader.Empty() && r.Redirect == nil && len(r.Mirrors) == 0
	if r.Policy != nil && r.Policy.hasEdits() {
		ok = false
	}
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

// classified returns the inner layers of the route: its metrics, the layers that apply once to each
// request, and the layers for its attempts. These layers classify responses as those of gRPC if
// grpc is true, and as those of HTTP otherwise. A route therefore has two such stacks.
func (a *routeStack[Req, Rsp]) classified(grpc bool) layer.Stack[Req, Rsp] {
	st := layer.NewStack[Req](a.options(func(o layer.Outcome[Rsp]) layer.Class { return a.class(grpc, o) })...)
	if a.metrics != nil {
		st = st.Metrics(a.requests)
	}
	return a.addAttempts(a.addOnce(st), grpc)
}

// addOnce adds to st the layers that apply once to each request, and not to its attempts.
func (a *routeStack[Req, Rsp]) addOnce(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if a.route.Redirect != nil {
		st = st.With("redirect", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
			return &redirectService[Req, Rsp]{Service: next, access: a.access, edit: a.layers.edit, redirect: *a.route.Redirect}
		})
	}
	for _, l := range a.mirrors {
		st = st.With("mirror", l)
	}
	if p := a.route.Policy; p != nil {
		st = a.addTimeout(st, p.RequestTimeout, overrideRequest, overrideTimeout)
	}
	if a.route.Timeout > 0 {
		st = st.ResponseHeaderTimeout(a.route.Timeout)
	}
	return a.addFaults(st)
}

// addAttemptTimeouts adds to st the time limits of each attempt: ResponseTimeout and IdleTimeout of
// the RoutePolicy. Without a RoutePolicy it returns st.
func (a *routeStack[Req, Rsp]) addAttemptTimeouts(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	p := a.route.Policy
	if p == nil {
		return st
	}
	st = a.addTimeout(st, p.ResponseTimeout, overrideResponse)
	if p.IdleTimeout > 0 {
		st = st.IdleTimeout(p.IdleTimeout)
	}
	return st
}

func (a *routeStack[Req, Rsp]) changeResponses(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	c, edit := a.route.ResponseHeader, a.layers.edit
	if c.Empty() {
		return st
	}
	return st.MapResponse(func(rsp Rsp) Rsp { return edit.EditResponse(rsp, c) })
}

func (a *routeStack[Req, Rsp]) changeRequests(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	c, edit := a.route.RequestHeader, a.layers.edit
	if c.Empty() {
		return st
	}
	return st.MapRequest(func(req Req) Req { return edit.EditRequest(req, c) })
}

// class classifies the outcome o of a request of this route. It classifies an error by the
// Classifier of WithRouteLayers, and a response by the ResponseClasses of the route. The argument
// grpc reports whether the request is a gRPC request.
func (a *routeStack[Req, Rsp]) class(grpc bool, o layer.Outcome[Rsp]) layer.Class {
	if o.Err != nil {
		return a.layers.classify(o)
	}
	h := a.classes.head(grpc, a.access.Status(o.Response), a.access.ResponseHeader(o.Response))
	if o.Ended {
		return h.end(a.access.ResponseTrailer(o.Response))
	}
	return h.class
}

// byProtocol sends gRPC requests to the service in the field grpc, and all other requests to the
// service in the field other.
type byProtocol[Req, Rsp any] struct {
	layer.Service[Req, Rsp] // the service below grpc and other, for Ready
	access                  layer.Accessor[Req, Rsp]
	grpc, other             layer.Service[Req, Rsp]
}

func (b *byProtocol[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if strings.HasPrefix(b.access.RequestHeader(req).Get("Content-Type"), "application/grpc") {
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
