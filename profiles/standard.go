package profiles

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// WithRouteLayers makes routes act: it gives each the stack that its fields call for,
// from outside in
//
//	ResponseHeader               of all responses, those that are made here too
//	Limit, Rate                  what is beyond is refused
//	[WithMetrics], requests         once for each request that was not
//	Redirect                     an answer in the place of the targets'
//	Mirrors                      a copy of each request
//	Timeout                      [layer.ResponseHeaderTimeout]
//	Faults                       [layer.FaultInjection], once for each request
//	Retryable, AttemptTimeout        [layer.Retry] with the profile's RetryBudget
//	Hedge                        [layer.Hedge] with the same budget
//	[WithMetrics], tries            once for each try and copy
//	RequestHeader                of what is sent
//
// Every try draws a target anew. A stack of [WithPerRoute] stands above. Requests
// without a route have none of it.
//
// What is a failure, and is sent again, a route's classes say: see
// [Route.Classes]. Where an error came in place of a response, errs says it; a
// class of [layer.Retryable] is sent again, and so is a try that took too long.
// All other errors are not, nor are refusals (a full queue, fail-fast), but for
// one: an endpoint that stands right below, without a balancer, and could not be
// reached. It is asked again when it says that it can be, within a second. For
// HTTP give it httplayer.Replayer{}, httplayer.Editor{} and httplayer.Classify, by which
// what went wrong at an endpoint or on the way there is sent again. Without an
// edit (nil), what takes one does nothing, and the log says so: header changes,
// Redirect, Mirrors, and Faults that answer.
//
// Requests that are not idempotent are retried only if the route sets
// RetryNonIdempotent. In all else retries are linkerd's: without a pause and without
// a number but that of the budget, Timeout and MaxRetries; 99 is the most. A request body
// is kept up to 64 KiB, and a larger one is sent once. When the budget is used
// up the last response is returned as it is. Where the trailers decide, which is
// what they do for gRPC, the response is held back until the first piece of its
// body is there, and judged with them if they come right after it; see
// [layer.Replayer]. Otherwise it is judged by its head: what later trailers say is
// counted, but not retried. What a response asks for in Retry-After is not
// waited for.
//
// Where linkerd does not retry a request whose body was still being sent when
// the failure came, this does, as long as it stays within the 64 KiB.
func WithRouteLayers[Req, Rsp any](
	resend layer.Replayer[Req, Rsp], edit layer.Editor[Req, Rsp], errs layer.Classifier[Rsp],
) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) {
		o.standard = &standard[Req, Rsp]{resend: resend, edit: edit, errs: errs, faults: make(faultLives)}
	})
}

// WithMetrics has [WithRouteLayers] count. instruments is asked once for each route, for
// those of its requests and those of its tries, whose labels are bound there;
// the layers of requests write to the former, see [layer.Instruments]. What is
// refused below counts as one of Refusals, and as nothing else: whoever sends it
// nowhere else counts it as a request and a failure, as linkerd does. The same
// route keeps its instruments from one profile to the next.
func WithMetrics[Req, Rsp any](instruments func(route Route) (requests, tries layer.Instruments)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.measured = instruments })
}

type standard[Req, Rsp any] struct {
	resend layer.Replayer[Req, Rsp]
	edit   layer.Editor[Req, Rsp]
	errs   layer.Classifier[Rsp]
	faults faultLives
}

// addStandard puts WithRouteLayers under what WithPerRoute has.
func (r *Router[Req, Rsp]) addStandard() {
	if r.standard == nil {
		return
	}
	above := r.perRoute
	r.perRoute = func(route Route, targets layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		acts, without := r.standard.acts(route.inRange())
		for _, err := range append(route.outOfRange(), without...) {
			r.log.Warn("left out of a profile", "target", r.target, "route", route.Name, "err", err)
		}
		svc := r.stackOf(acts, targets)
		if above != nil {
			return above(route, svc)
		}
		if svc == targets {
			return nil // straight to them
		}
		return svc
	}
}

// stackOf is the stack of a route whose limits are in range.
func (r *Router[Req, Rsp]) stackOf(route Route, targets layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	a := &acting[Req, Rsp]{Router: r, route: route, classes: compileClasses(route.Classes, func(error) {})}
	if r.measured != nil {
		a.requests, a.tries = r.measured(route)
	}
	a.lives = r.standard.faults.left(route)
	st := a.changesResponses(layer.NewStack[Req](a.options(a.errs, nil)...))
	if route.Limit > 0 {
		st = st.Limit(route.Limit)
	}
	if route.Rate.PerSecond > 0 {
		st = st.RateLimit(route.Rate.PerSecond, route.Rate.burst())
	}
	a.mirrors = a.mirrorLayers()
	if !a.judges() {
		return a.changesRequests(a.once(st)).Service(targets)
	}
	return st.Service(&byProtocol[Req, Rsp]{
		Service: targets, access: r.access, grpc: a.judged(true, targets), other: a.judged(false, targets),
	})
}

// acting is a route whose stack is made.
type acting[Req, Rsp any] struct {
	*Router[Req, Rsp]
	route           Route
	classes         classifier
	requests, tries layer.Instruments
	mirrors         []layer.Layer[Req, Rsp]
	lives           []time.Duration // what is left of those of its Faults
}

// judges reports whether somebody in the stack wants to know the class of a
// response.
func (a *acting[Req, Rsp]) judges() bool {
	return a.measured != nil || a.route.Retryable || a.route.AttemptTimeout > 0 || a.route.Hedge > 0
}

// options are those of the layers that b is for, or of the others.
func (a *acting[Req, Rsp]) options(classify layer.Classifier[Rsp], b *layer.Budget) []layer.Option[Rsp] {
	to := a.requests
	if !a.route.Retryable || b == nil {
		to.RetriesSkipped = nil // Retry is there for its AttemptTimeout alone: nothing is left undone
	}
	return []layer.Option[Rsp]{
		layer.WithTarget[Rsp](a.target), layer.WithCompletion(a.access.Complete),
		layer.WithReplayer[Req](atOnce[Req, Rsp]{a.standard.resend, a}),
		layer.WithClassifier(classify), layer.WithMetrics[Rsp](to),
	}
}

// errs is the class of an error, and of a response as far as nobody asks.
func (a *acting[Req, Rsp]) errs(o layer.Outcome[Rsp]) layer.Class { return a.standard.errs(o) }

// judged is the part of the stack that needs the class of a response, which is
// another one for gRPC requests.
func (a *acting[Req, Rsp]) judged(grpc bool, targets layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	classify := func(o layer.Outcome[Rsp]) layer.Class { return a.judge(grpc, o) }
	st := layer.NewStack[Req](a.options(classify, nil)...)
	if a.measured != nil {
		st = st.Metrics(a.requests)
	}
	return a.once(st).Service(&budgeted[Req, Rsp]{
		Service: targets, router: a.Router,
		make: func(b *layer.Budget) layer.Service[Req, Rsp] {
			return a.again(layer.NewStack[Req](a.options(classify, b)...), b, grpc).Service(targets)
		},
	})
}

// once adds what a request meets once, whatever its tries.
func (a *acting[Req, Rsp]) once(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	st = a.mirrored(a.redirects(st))
	if a.route.Timeout > 0 {
		st = st.ResponseHeaderTimeout(a.route.Timeout)
	}
	return a.faults(st)
}
