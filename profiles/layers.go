package profiles

import (
	"context"
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
//	[Config.Metrics], requests count each admitted request
//	Redirect, Respond          answer requests
//	Mirrors                    send one copy of each request
//	RequestTimeout             [layer.Timeout]
//	Timeout                    [layer.ResponseHeaderTimeout]
//	Faults                     [layer.FaultInjection], once for each request
//	Retry, AttemptTimeout      [layer.Retry], or [layer.ResponseHeaderTimeout] without a Retry
//	Hedge                      [layer.Hedge]
//	[Config.Metrics], attempts count each attempt and each copy of a hedge
//	ResponseTimeout            [layer.Timeout]
//	IdleTimeout                [layer.IdleTimeout]
//	Rewrite, RequestHeader     change forwarded requests
//
// For HTTP, pass httplayer.HTTP{}. See "Retries" in the package documentation.
func WithRouteLayers[Req, Rsp any](protocol Protocol[Req, Rsp]) Option[Req, Rsp] {
	if protocol == nil {
		panic("profiles: WithRouteLayers: nil Protocol")
	}
	return func(o *options[Req, Rsp]) { o.protocol = protocol }
}

// Protocol is what the layers of a route need to know about a protocol. httplayer.HTTP implements it.
type Protocol[Req, Rsp any] interface {
	layer.Protocol[Req, Rsp]
	layer.Editor[Req, Rsp]
}

// routeStack builds one route's stack of layers.
type routeStack[Req, Rsp any] struct {
	*Router[Req, Rsp]
	route              Route // the route; invalid parts have their zero value
	classes            classifier
	retryBudget        *layer.Budget
	unlimited          *layer.Budget             // for Retry.WithoutBudget; nil if not needed
	arrival            time.Time                 // when the Router received the route
	copies             []layer.Service[Req, Rsp] // the services of the route's mirrors
	requests, attempts layer.Instruments
	mirrors            []layer.Layer[Req, Rsp]
	overridden         bool // the stack is for requests with override fields: see Route.Overrides
}

// stackOf returns the service for a route: its layers around inner, or inner itself if the route
// needs no layers. It leaves out invalid parts of the route, and calls drop with an error for each.
// With Config.LazyRoutes, the service makes the layers at its first request. The caller must hold mu.
func (r *Router[Req, Rsp]) stackOf(
	route *liveRoute[Req, Rsp], budget *layer.Budget, inner layer.Service[Req, Rsp], drop func(error),
) layer.Service[Req, Rsp] {
	// The copy without the invalid parts is only for this function; service makes another one.
	valid, problems := route.def.valid()
	for _, err := range problems {
		drop(err)
	}
	copies := make([]layer.Service[Req, Rsp], 0, len(valid.Mirrors))
	// The services of mirrors are made now, because the caller holds mu.
	for _, m := range valid.Mirrors {
		copies = append(copies, r.service(m.Authority))
	}
	arrival := time.Now()
	// The layers of a lazy route are made at its first request, which may be long after this profile.
	service := func() layer.Service[Req, Rsp] {
		valid, _ := route.def.valid() // again, which takes less memory than to keep it
		a := &routeStack[Req, Rsp]{Router: r, route: valid, retryBudget: budget, classes: route.classes, arrival: arrival, copies: copies}
		return a.service(inner)
	}
	if r.config.LazyRoutes && !r.isPlain(&valid) {
		return layer.Lazy(service)
	}
	return service()
}

// isPlain reports whether route needs no class of its responses, neither for metrics nor for attempts.
func (r *Router[Req, Rsp]) isPlain(route *Route) bool {
	return r.config.Metrics == nil && !route.MayRetry() && route.AttemptTimeout == 0 && route.Hedge == 0
}

// service returns the service for the route: its layers around inner, or inner itself if the route
// needs no layers.
func (a *routeStack[Req, Rsp]) service(inner layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	route := a.route
	if a.config.Metrics != nil {
		a.requests, a.attempts = a.config.Metrics(route)
	}
	if route.Overrides || route.Retry != nil && route.Retry.WithoutBudget {
		a.unlimited = layer.NewBudget(time.Second, 100, math.MaxInt32)
	}
	// Every response gets the header changes, including those of the layers below.
	st := a.changeResponses(layer.NewStack[Req](a.options(a.protocol.Classify)...))
	if route.Limit > 0 {
		st = st.Limit(route.Limit)
	}
	if route.Rate.PerSecond > 0 {
		st = st.RateLimit(route.Rate.PerSecond, route.Rate.burst())
	}
	a.mirrors = a.mirrorLayers()
	if !route.Overrides {
		return st.Service(a.admitted(inner))
	}
	// Requests with override fields get a stack of their own, without these fields in what is forwarded.
	b := *a
	b.overridden = true
	b.route.RequestHeader.Remove = slices.Concat(route.RequestHeader.Remove, overrideFields[:])
	return st.Service(&overrides[Req, Rsp]{Service: a.admitted(inner), access: a.access, overridden: b.admitted(inner)})
}

// admitted returns the service for requests that Limit and Rate have admitted, with all of the
// route's layers except ResponseHeader, Limit and Rate.
func (a *routeStack[Req, Rsp]) admitted(inner layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	// If no layer needs a class, gRPC and other requests need no separate stacks.
	if a.isPlain(&a.route) {
		st := layer.NewStack[Req](a.options(a.protocol.Classify)...) // no class of responses is needed
		return a.changeRequests(a.addAttemptTimeouts(a.addOnce(st))).Service(inner)
	}
	return &byProtocol[Req, Rsp]{
		Service: inner, access: a.access, grpc: a.classified(true).Service(inner), other: a.classified(false).Service(inner),
	}
}

// options returns the options of the route's layers, with classify as the classifier.
func (a *routeStack[Req, Rsp]) options(classify layer.Classifier[Rsp]) []layer.Option[Rsp] {
	return []layer.Option[Rsp]{
		layer.WithTarget[Rsp](a.target), layer.WithProtocol(routeProtocol[Req, Rsp]{a.protocol}),
		layer.WithClassifier(classify), layer.WithMetrics[Rsp](a.requests),
	}
}

// measures reports whether i contains an instrument for [layer.Metrics].
func measures(i layer.Instruments) bool {
	return i.Requests != nil || i.Rejections != nil || i.Responses != nil || i.InFlight != nil || i.TimeToHeaders != nil || i.Latency != nil
}

// classified returns the route's inner layers: its metrics, the layers that apply once to each
// request, and the layers for its attempts. These layers classify responses as gRPC if grpc is
// true, and as HTTP otherwise, so a route needs two such stacks.
func (a *routeStack[Req, Rsp]) classified(grpc bool) layer.Stack[Req, Rsp] {
	st := layer.NewStack[Req](a.options(func(o layer.Outcome[Rsp]) layer.Class { return a.class(grpc, o) })...)
	if measures(a.requests) {
		st = st.Metrics(a.requests)
	}
	return a.addAttempts(a.addOnce(st), grpc)
}

// addOnce adds to st the layers that apply once to each request, and not to its attempts.
func (a *routeStack[Req, Rsp]) addOnce(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if a.route.Redirect != nil {
		st = st.With("redirect", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
			return &redirectService[Req, Rsp]{Service: next, access: a.access, edit: a.protocol, redirect: *a.route.Redirect}
		})
	}
	if a.route.Respond != nil {
		st = st.With("respond", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
			return &respondService[Req, Rsp]{next.Call, a.protocol, *a.route.Respond}
		})
	}
	for _, l := range a.mirrors {
		st = st.With("mirror", l)
	}
	st = a.addTimeout(st, a.route.RequestTimeout, a.options(a.protocol.Classify), overrideRequest, overrideTimeout)
	if a.route.Timeout > 0 {
		opts := a.options(a.protocol.Classify)
		// linkerd's route timeouts include the upload of the body.
		if !a.route.TimeoutAfterBody {
			opts = append(opts, layer.WithUploadTime[Rsp]())
		}
		st = st.With("response_header_timeout", layer.ResponseHeaderTimeout[Req](a.route.Timeout, opts...))
	}
	return a.addFaults(st)
}

// addAttemptTimeouts adds to st the time limits of each attempt's response: ResponseTimeout and IdleTimeout.
func (a *routeStack[Req, Rsp]) addAttemptTimeouts(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	opts := append(a.options(a.protocol.Classify), layer.WithoutUploadTime[Rsp]())
	st = a.addTimeout(st, a.route.ResponseTimeout, opts, overrideResponse)
	if a.route.IdleTimeout > 0 {
		st = st.IdleTimeout(a.route.IdleTimeout)
	}
	return st
}

// changeResponses returns st with the layer that modifies the header fields of responses, if the route does so.
func (a *routeStack[Req, Rsp]) changeResponses(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	c, edit := a.route.ResponseHeader, a.protocol
	if c.Empty() {
		return st
	}
	return st.MapResponse(func(rsp Rsp) Rsp { return edit.EditResponse(rsp, c) })
}

// changeRequests returns st with the layer that modifies requests, if the route does so.
func (a *routeStack[Req, Rsp]) changeRequests(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if !a.route.edits() {
		return st
	}
	return st.MapRequest(a.edited)
}

// class classifies the outcome o of a request on this route: an error with WithRouteLayers'
// Protocol, and a response with the route's ResponseClasses. grpc tells whether the request
// is a gRPC request.
func (a *routeStack[Req, Rsp]) class(grpc bool, o layer.Outcome[Rsp]) layer.Class {
	// An error has no status or headers to look at.
	if o.Err != nil {
		return a.protocol.Classify(o)
	}
	h := a.classes.head(grpc, a.access.Status(o.Response), a.access.ResponseHeader(o.Response))
	// Only now are the trailers known.
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

// Call sends req to the service for its protocol.
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
