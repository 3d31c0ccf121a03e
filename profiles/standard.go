package profiles

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// Standard makes routes act: it gives each the stack that its fields call for,
// from outside in
//
//	Limit, Rate                  what is beyond is refused
//	[Measured], requests         once for each request that was not
//	Timeout                      [layer.HeadTimeout]
//	Retryable, TryTimeout        [layer.Retry] with the profile's RetryBudget
//	Hedge                        [layer.Hedge] with the same budget
//	[Measured], tries            once for each try and copy
//
// Every try draws a target anew. A stack of [PerRoute] stands above. Requests
// without a route have none of it.
//
// What is a failure, and is sent again, a route's classes say: see
// [Route.Classes]. Where an error came in place of a response, errs says it; a
// class of [layer.Retryable] is sent again, and so is a try that took too long.
// Refusals (a full queue, fail-fast) and all other errors are not. For HTTP
// give it httplayer.Resend{} and httplayer.Classify, by which what went wrong
// at an endpoint or on the way there is sent again.
//
// Retries are linkerd's: of any method, without a pause and without a number
// but that of the budget, Timeout and MaxRetries; 99 is the most. A request body
// is kept up to 64 KiB, and a larger one is sent once. When the budget is used
// up the last response is returned as it is. A response is judged by its head:
// a gRPC status in trailers that come later is counted, but not retried. What a
// response asks for in Retry-After is not waited for.
//
// Where linkerd does not retry a request whose body was still being sent when
// the failure came, this does, as long as it stays within the 64 KiB.
func Standard[Req, Rsp any](resend layer.Resend[Req, Rsp], errs layer.Classifier[Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) {
		o.standard = &standard[Req, Rsp]{resend: atOnce[Req, Rsp]{resend}, errs: errs}
	})
}

// Measured has [Standard] count. instruments is asked once for each route, for
// those of its requests and those of its tries, whose labels are bound there;
// the layers of requests write to the former, see [layer.Instruments]. The same
// route keeps its instruments from one profile to the next.
func Measured[Req, Rsp any](instruments func(route Route) (requests, tries layer.Instruments)) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.measured = instruments })
}

type standard[Req, Rsp any] struct {
	resend layer.Resend[Req, Rsp]
	errs   layer.Classifier[Rsp]
}

// retryBody is how much of a request body linkerd's proxy keeps.
const retryBody = 64 << 10

// atOnce is a Resend that waits for nobody.
type atOnce[Req, Rsp any] struct{ layer.Resend[Req, Rsp] }

func (atOnce[Req, Rsp]) After(Rsp, error) (time.Duration, bool) { return 0, false }

// addStandard puts Standard under what PerRoute has.
func (r *Router[Req, Rsp]) addStandard() {
	if r.standard == nil {
		return
	}
	above := r.perRoute
	r.perRoute = func(route Route, targets layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		for _, err := range route.outOfRange() {
			r.log.Warn("left out of a profile", "target", r.target, "route", route.Name, "err", err)
		}
		svc := r.stackOf(route.inRange(), targets)
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
	st := layer.NewStack[Req](a.options(a.errs)...)
	if route.Limit > 0 {
		st = st.Limit(route.Limit)
	}
	if route.Rate.PerSecond > 0 {
		st = st.RateLimit(route.Rate.PerSecond, route.Rate.burst())
	}
	if !a.judges() {
		if route.Timeout > 0 {
			st = st.HeadTimeout(route.Timeout)
		}
		return st.Service(targets)
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
}

// judges reports whether somebody in the stack wants to know the class of a
// response.
func (a *acting[Req, Rsp]) judges() bool {
	return a.measured != nil || a.route.Retryable || a.route.TryTimeout > 0 || a.route.Hedge > 0
}

func (a *acting[Req, Rsp]) options(classify layer.Classifier[Rsp]) []layer.Option[Rsp] {
	to := a.requests
	if !a.route.Retryable {
		to.Skipped = nil // Retry is there for its TryTimeout alone: nothing is left undone
	}
	return []layer.Option[Rsp]{
		layer.For[Rsp](a.target), layer.Until(a.access.Complete), layer.Resending(a.standard.resend),
		layer.Classify(classify), layer.Measured[Rsp](to),
	}
}

// errs is the class of an error, and of a response as far as nobody asks.
func (a *acting[Req, Rsp]) errs(o layer.Outcome[Rsp]) layer.Class { return a.standard.errs(o) }

// judged is the part of the stack that needs the class of a response, which is
// another one for gRPC requests.
func (a *acting[Req, Rsp]) judged(grpc bool, targets layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	opts := a.options(func(o layer.Outcome[Rsp]) layer.Class { return a.judge(grpc, o) })
	st := layer.NewStack[Req](opts...)
	if a.measured != nil {
		st = st.Metrics(a.requests)
	}
	if a.route.Timeout > 0 {
		st = st.HeadTimeout(a.route.Timeout)
	}
	return st.Service(&budgeted[Req, Rsp]{
		Service: targets, router: a.Router,
		make: func(b *layer.Budget) layer.Service[Req, Rsp] {
			return a.again(layer.NewStack[Req](opts...), b, grpc).Service(targets)
		},
	})
}

// again adds what sends a request more than once, and what counts that.
func (a *acting[Req, Rsp]) again(st layer.Stack[Req, Rsp], b *layer.Budget, grpc bool) layer.Stack[Req, Rsp] {
	yes := func(Req) bool { return true }
	switch {
	case a.route.Retryable && b != nil:
		policy := layer.RetryPolicy[Req, Rsp]{
			Budget: b, Tries: a.route.MaxRetries + 1, PerTry: a.route.TryTimeout, Body: retryBody, PassRefusals: true,
			Requests: yes, Outcomes: func(o layer.Outcome[Rsp]) bool { return a.retryable(grpc, o) },
			Backoff: layer.Backoff{Min: 1, Max: 1}, // a nanosecond; 0 would be the default
		}
		if a.route.MaxRetries == 0 {
			policy.Tries = maxRetries + 1
		}
		st = st.Retry(policy)
	case a.route.TryTimeout > 0:
		st = st.Retry(layer.RetryPolicy[Req, Rsp]{
			Tries: 1, PerTry: a.route.TryTimeout, PassRefusals: true,
			Requests: func(Req) bool { return false }, Outcomes: func(layer.Outcome[Rsp]) bool { return false },
		})
	}
	if a.route.Hedge > 0 && b != nil {
		policy := layer.HedgePolicy[Req]{Budget: b, Min: a.route.Hedge, Max: a.route.Hedge, Body: retryBody}
		if a.route.Retryable {
			policy.Only = yes
		}
		st = st.Hedge(policy)
	}
	if a.measured != nil {
		st = st.Metrics(a.tries)
	}
	return st
}

// judge is the class of an outcome by the route's classes.
func (a *acting[Req, Rsp]) judge(grpc bool, o layer.Outcome[Rsp]) layer.Class {
	if o.Err != nil {
		return a.standard.errs(o)
	}
	v := a.classes.head(grpc, a.access.Status(o.Response), a.access.ResponseHeader(o.Response))
	if o.Ended {
		return v.end(a.access.ResponseTrailer(o.Response))
	}
	return v.class
}

func (a *acting[Req, Rsp]) retryable(grpc bool, o layer.Outcome[Rsp]) bool {
	class := a.judge(grpc, o)
	if o.Err != nil {
		return class == layer.Retryable
	}
	return class.Failed()
}
